//! Where the values of one step land: a place for each node that somebody computes, and the sums above them.
//!
//! Outputs are cut into ranges. When the last value of a range is there, the range is added up the tree, so that after the last fragment
//! only its own range remains to be added. A node whose holder has failed is replaced by the nodes that others compute
//! instead ([`Landing::split`]); ranges that were added before stay as they are, since the values are the same whoever computes them.

use std::ops::Range;

use kernels::tree::{Node, Shape, additions};
use model::step::NodeSums;
use rayon::prelude::*;

/// Additions below which other threads are not woken.
const PARALLEL_ADDITIONS: usize = 1 << 18;

/// A node that somebody computes.
#[derive(Clone, Copy, Debug)]
struct Part {
    node: Node,
    /// Its number in the tree.
    number: u16,
}

/// What became of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Landed {
    /// It is counted.
    Taken,
    /// It was there before.
    Repeated,
    /// Nobody asked for it.
    NotOwed,
}

/// One step's values below some nodes.
#[derive(Debug)]
pub(crate) struct Landing {
    shape: Shape,
    hidden: usize,
    /// Outputs of a range.
    chunk: usize,
    /// Whether many additions may be shared with other threads.
    parallel: bool,
    lanes: usize,
    tops: Vec<Node>,
    /// In the order of the tree's leaves; together they are the tops.
    parts: Vec<Part>,
    /// `[lanes, parts, hidden]`.
    values: Vec<f32>,
    /// `[lanes, parts]`: the lane has a value there.
    owed: Vec<bool>,
    /// `[lanes, parts, ranges]`: it has landed.
    got: Vec<bool>,
    /// By range: pieces that are still owed.
    missing_in: Vec<usize>,
    /// By range: its sums are made.
    added: Vec<bool>,
    missing: usize,
    /// `[tops, lanes]` and `[tops, lanes, hidden]`.
    present: Vec<bool>,
    sums: Vec<f32>,
    /// Present nodes of the lane that is being added.
    items: Vec<Node>,
}

impl Landing {
    /// For steps of a model; `chunk` outputs arrive together.
    pub fn new(shape: Shape, hidden: usize, chunk: usize, parallel: bool) -> Landing {
        Landing {
            shape,
            hidden,
            chunk: chunk.clamp(1, hidden.max(1)),
            parallel,
            lanes: 0,
            tops: Vec::new(),
            parts: Vec::new(),
            values: Vec::new(),
            owed: Vec::new(),
            got: Vec::new(),
            missing_in: Vec::new(),
            added: Vec::new(),
            missing: 0,
            present: Vec::new(),
            sums: Vec::new(),
            items: Vec::new(),
        }
    }

    /// Starts a step of so many lanes with these experts, `[lanes, chosen]`. `nodes` are in the order of the tree's leaves, and `tops`
    /// are the same units in as few nodes as possible.
    pub fn begin(&mut self, nodes: &[Node], tops: &[Node], lanes: usize, experts: &[u16]) {
        self.lanes = lanes;
        self.tops.clear();
        self.tops.extend_from_slice(tops);
        self.parts.clear();
        self.parts.extend(nodes.iter().map(|&node| Part { node, number: node.index(self.shape) }));
        self.values.resize(lanes * nodes.len() * self.hidden, 0.0);
        self.sums.resize(tops.len() * lanes * self.hidden, 0.0);
        self.owed.clear();
        self.present.clear();
        self.present.resize(tops.len() * lanes, false);
        for lane in 0..lanes {
            let ids = lane_experts(experts, lanes, lane);
            self.owed.extend(nodes.iter().map(|&node| has_any(node, ids)));
            for (top, &node) in tops.iter().enumerate() {
                self.present[top * lanes + lane] = has_any(node, ids);
            }
        }
        let ranges = self.ranges();
        self.got.clear();
        self.got.resize(self.owed.len() * ranges, false);
        self.added.clear();
        self.added.resize(ranges, false);
        self.count();
    }

    fn ranges(&self) -> usize {
        self.hidden.div_ceil(self.chunk)
    }

    /// Counts what is missing.
    fn count(&mut self) {
        let ranges = self.ranges();
        self.missing_in.clear();
        self.missing_in.resize(ranges, 0);
        for (owed, got) in self.owed.iter().zip(self.got.chunks_exact(ranges.max(1))) {
            if *owed {
                self.missing_in.iter_mut().zip(got).for_each(|(missing, got)| *missing += usize::from(!got));
            }
        }
        self.missing = self.missing_in.iter().sum();
    }

    /// Whether everything that is owed has landed.
    pub fn is_complete(&self) -> bool {
        self.missing == 0
    }

    /// Takes the values that `write` gives for the range of a lane of a node that starts at output `start` and has `count` outputs.
    pub fn land(
        &mut self,
        number: u16,
        lane: usize,
        start: usize,
        count: usize,
        write: impl FnOnce(&mut [f32]),
    ) -> Landed {
        let Some(part) = self.parts.iter().position(|part| part.number == number) else { return Landed::NotOwed };
        let whole =
            start < self.hidden && start.is_multiple_of(self.chunk) && count == self.chunk.min(self.hidden - start);
        if lane >= self.lanes || !whole || !self.owed[lane * self.parts.len() + part] {
            return Landed::NotOwed;
        }
        let (place, range) = (lane * self.parts.len() + part, start / self.chunk);
        let got = place * self.ranges() + range;
        if std::mem::replace(&mut self.got[got], true) {
            return Landed::Repeated;
        }
        write(&mut self.values[place * self.hidden + start..][..count]);
        self.missing -= 1;
        self.missing_in[range] -= 1;
        if self.missing_in[range] == 0 {
            self.add(range);
        }
        Landed::Taken
    }

    /// As [`Landing::land`], for all outputs of a lane of a node; what has landed before is left out.
    pub fn land_vector(&mut self, node: Node, lane: usize, values: &[f32]) -> Landed {
        let number = node.index(self.shape);
        let mut landed = Landed::NotOwed;
        for (range, part) in values.chunks(self.chunk).enumerate() {
            landed = self.land(number, lane, range * self.chunk, part.len(), |out| out.copy_from_slice(part));
        }
        landed
    }

    /// Nodes of which something is missing.
    pub fn incomplete(&self) -> impl Iterator<Item = Node> + '_ {
        let (parts, ranges) = (self.parts.len(), self.ranges());
        let missing = move |lane: usize, part: usize| {
            let place = lane * parts + part;
            self.owed[place] && self.got[place * ranges..][..ranges].contains(&false)
        };
        let of = move |part: usize| (0..self.lanes).any(|lane| missing(lane, part));
        (0..parts).filter(move |&part| of(part)).map(|part| self.parts[part].node)
    }

    /// Has `node` computed as the nodes `into`, which together are the same units, in the order of the tree's leaves. What has landed of it
    /// is forgotten, except where it is added already. Does nothing for a node that is not there.
    pub fn split(&mut self, node: Node, into: &[Node], experts: &[u16]) {
        let Some(at) = self.parts.iter().position(|part| part.node == node) else { return };
        let (old, ranges, hidden) = (self.parts.len(), self.ranges(), self.hidden);
        let shape = self.shape;
        self.parts.splice(at..=at, into.iter().map(|&node| Part { node, number: node.index(shape) }));
        let new = self.parts.len();
        let mut values = vec![0.0; self.lanes * new * hidden];
        let (mut owed, mut got) = (vec![false; self.lanes * new], vec![false; self.lanes * new * ranges]);
        for lane in 0..self.lanes {
            let ids = lane_experts(experts, self.lanes, lane);
            for part in 0..new {
                let to = lane * new + part;
                if (at..at + into.len()).contains(&part) {
                    owed[to] = has_any(self.parts[part].node, ids);
                    got[to * ranges..][..ranges].copy_from_slice(&self.added);
                    continue;
                }
                let from = lane * old + if part < at { part } else { part + old - new };
                owed[to] = self.owed[from];
                got[to * ranges..][..ranges].copy_from_slice(&self.got[from * ranges..][..ranges]);
                values[to * hidden..][..hidden].copy_from_slice(&self.values[from * hidden..][..hidden]);
            }
        }
        (self.values, self.owed, self.got) = (values, owed, got);
        self.count();
        for range in 0..ranges {
            if self.missing_in[range] == 0 && !self.added[range] {
                self.add(range);
            }
        }
    }

    /// Hands over the sums, and takes the memory that they were written to before.
    pub fn publish(&mut self, out: &mut NodeSums) {
        out.nodes.clear();
        out.nodes.extend_from_slice(&self.tops);
        std::mem::swap(&mut out.present, &mut self.present);
        std::mem::swap(&mut out.values, &mut self.sums);
    }

    /// The values of a node that is not added to anything: `[lanes]` and `[lanes, hidden]`.
    pub fn node_values(&self, number: u16) -> Option<(Vec<bool>, Vec<f32>)> {
        let part = self.parts.iter().position(|part| part.number == number)?;
        let places = (0..self.lanes).map(|lane| lane * self.parts.len() + part);
        let present = places.clone().map(|place| self.owed[place]).collect();
        let values = places.flat_map(|place| self.values[place * self.hidden..][..self.hidden].iter().copied());
        Some((present, values.collect()))
    }

    /// Adds up a range of which everything is there.
    fn add(&mut self, range: usize) {
        self.added[range] = true;
        let (shape, hidden, lanes, parts) = (self.shape, self.hidden, self.lanes, &self.parts[..]);
        if parts.is_empty() || lanes == 0 {
            return;
        }
        let start = range * self.chunk;
        let outputs = start..(start + self.chunk).min(hidden);
        let many = self.parallel && lanes * parts.len() * outputs.len() >= PARALLEL_ADDITIONS;
        let mut first = 0;
        // A top's parts lie side by side.
        for (&top, sums) in self.tops.iter().zip(self.sums.chunks_exact_mut(lanes * hidden)) {
            let count = parts[first..].iter().take_while(|part| top.covers(part.node)).count();
            let below =
                Below { shape, top, parts: &parts[first..first + count], first, outputs: outputs.clone(), hidden };
            first += count;
            let owed = &self.owed[..];
            if many {
                let lanes =
                    self.values.par_chunks_exact_mut(parts.len() * hidden).zip(owed.par_chunks_exact(parts.len()));
                lanes.zip(sums.par_chunks_exact_mut(hidden)).for_each_init(Vec::new, |items, ((values, owed), out)| {
                    below.add(items, values, owed, out);
                });
            } else {
                let lanes = self.values.chunks_exact_mut(parts.len() * hidden).zip(owed.chunks_exact(parts.len()));
                for ((values, owed), out) in lanes.zip(sums.chunks_exact_mut(hidden)) {
                    below.add(&mut self.items, values, owed, out);
                }
            }
        }
    }
}

/// Some outputs of the parts below a top.
struct Below<'a> {
    shape: Shape,
    top: Node,
    parts: &'a [Part],
    /// Place of the first part among all.
    first: usize,
    outputs: Range<usize>,
    hidden: usize,
}

impl Below<'_> {
    /// One lane: `values` are `[parts, hidden]` of all parts.
    fn add(&self, items: &mut Vec<Node>, values: &mut [f32], owed: &[bool], out: &mut [f32]) {
        let Below { shape, top, hidden, .. } = *self;
        let owed = &owed[self.first..][..self.parts.len()];
        let values = &mut values[self.first * hidden..][..self.parts.len() * hidden];
        items.clear();
        items.extend(self.parts.iter().zip(owed).filter(|(_, owed)| **owed).map(|(part, _)| part.node));
        let place = |item: usize| owed.iter().enumerate().filter(|(_, owed)| **owed).nth(item).map_or(0, |(at, _)| at);
        if items.is_empty() {
            return;
        }
        additions(shape, top, items, &mut |a, b| {
            let (left, right) = values.split_at_mut(place(b) * hidden);
            let left = &mut left[place(a) * hidden..][..hidden][self.outputs.clone()];
            left.iter_mut().zip(&right[self.outputs.clone()]).for_each(|(a, b)| *a += *b);
        });
        let outputs = self.outputs.clone();
        out[outputs.clone()].copy_from_slice(&values[place(0) * hidden..][..hidden][outputs]);
    }
}

/// The experts of one lane.
fn lane_experts(experts: &[u16], lanes: usize, lane: usize) -> &[u16] {
    let chosen = experts.len() / lanes.max(1);
    &experts[lane * chosen..][..chosen]
}

fn has_any(node: Node, experts: &[u16]) -> bool {
    experts.iter().any(|&id| node.has(node.slice, id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;
    use crate::plan::merged;
    use crate::testing::Random;

    const SHAPE: Shape = Shape { slices: 4, experts: 8 };
    const HIDDEN: usize = 96;
    const CHUNK: usize = 40;

    fn sorted(mut nodes: Vec<Node>) -> Vec<Node> {
        nodes.sort_by_key(|n| n.order());
        nodes
    }

    /// What the unit of an expert adds to an output.
    fn unit(slice: u16, expert: u16, lane: usize, output: usize) -> f32 {
        let mixed =
            Random((u64::from(slice) << 40) ^ (u64::from(expert) << 20) ^ (lane * HIDDEN + output) as u64).next();
        (mixed >> 40) as f32 / 1e5 - 80.0
    }

    /// The value of a node, by the definition of the tree.
    fn value(node: Node, lane: usize, output: usize, ids: &[u16]) -> Option<f32> {
        match node.children(SHAPE) {
            None => ids.contains(&node.expert()).then(|| unit(node.slice, node.expert(), lane, output)),
            Some((l, r)) => match (value(l, lane, output, ids), value(r, lane, output, ids)) {
                (Some(a), Some(b)) => Some(a + b),
                (a, b) => a.or(b),
            },
        }
    }

    /// Every piece of a node, as the ducks send them.
    fn pieces(node: Node, lanes: usize, experts: &[u16]) -> Vec<(u16, usize, usize, Vec<f32>)> {
        let mut all = Vec::new();
        for lane in 0..lanes {
            let ids = lane_experts(experts, lanes, lane);
            for start in (0..HIDDEN).step_by(CHUNK) {
                let outputs = start..(start + CHUNK).min(HIDDEN);
                let values: Option<Vec<f32>> = outputs.map(|o| value(node, lane, o, ids)).collect();
                all.extend(values.map(|values| (node.index(SHAPE), lane, start, values)));
            }
        }
        all
    }

    fn take(landing: &mut Landing, piece: &(u16, usize, usize, Vec<f32>)) -> Landed {
        landing.land(piece.0, piece.1, piece.2, piece.3.len(), |out| out.copy_from_slice(&piece.3))
    }

    fn shuffled<T>(random: &mut Random, mut items: Vec<T>) -> Vec<T> {
        (1..items.len()).rev().for_each(|i| items.swap(i, random.below(i + 1)));
        items
    }

    #[test]
    fn pieces_in_any_order_with_holders_that_fail_give_the_sums_of_the_tree() {
        let mut random = Random(7);
        let mut out = NodeSums::default();
        let mut landing = Landing::new(SHAPE, HIDDEN, CHUNK, false);
        for round in 0..300 {
            let lanes = 1 + random.below(3);
            let experts: Vec<u16> = (0..lanes)
                .flat_map(|_| {
                    let first = random.below(7) as u16;
                    [first, first + 1 + random.below(7 - usize::from(first)) as u16]
                })
                .collect();
            let plan = Plan::random(SHAPE, 1, round).expect("one holder");
            let all = sorted(plan.nodes(0).to_vec());
            // A domain has some of the nodes.
            let nodes: Vec<Node> = all.into_iter().filter(|_| random.below(4) != 0).collect();
            let tops = merged(SHAPE, &nodes);
            landing.begin(&nodes, &tops, lanes, &experts);
            let mut left: Vec<_> = nodes.iter().flat_map(|&n| pieces(n, lanes, &experts)).collect();
            left = shuffled(&mut random, left);
            // Some of it lands, then a holder fails and two others compute its node's halves.
            let first = random.below(left.len() + 1);
            for piece in left.drain(..first) {
                assert_eq!(take(&mut landing, &piece), Landed::Taken);
                assert_eq!(take(&mut landing, &piece), Landed::Repeated);
            }
            let lost = nodes.iter().copied().find(|_| random.below(3) == 0);
            if let Some((lost, (l, r))) = lost.and_then(|n| Some((n, n.children(SHAPE)?))) {
                let listed = landing.incomplete().any(|n| n == lost);
                assert_eq!(listed, left.iter().any(|p| p.0 == lost.index(SHAPE)));
                landing.split(lost, &[l, r], &experts);
                left.retain(|p| p.0 != lost.index(SHAPE));
                let again = [l, r].into_iter().flat_map(|n| pieces(n, lanes, &experts)).collect();
                left.extend(shuffled(&mut random, again));
                assert_eq!(take(&mut landing, &(lost.index(SHAPE), 0, 0, vec![9.0; CHUNK])), Landed::NotOwed);
            }
            assert!(nodes.is_empty() || left.is_empty() || !landing.is_complete() || lost.is_some());
            left.iter().for_each(|piece| _ = take(&mut landing, piece));
            assert!(landing.is_complete());
            landing.publish(&mut out);
            assert_eq!(out.nodes, tops);
            for (n, &top) in tops.iter().enumerate() {
                for lane in 0..lanes {
                    let ids = lane_experts(&experts, lanes, lane);
                    for output in 0..HIDDEN {
                        let want = value(top, lane, output, ids);
                        assert_eq!(out.present[n * lanes + lane], want.is_some());
                        if let Some(want) = want {
                            let found = out.values[(n * lanes + lane) * HIDDEN + output];
                            assert_eq!(found.to_bits(), want.to_bits(), "round {round}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_owed_is_not_taken() {
        let (left, right) = SHAPE.root().children(SHAPE).expect("four slices");
        let mut landing = Landing::new(SHAPE, HIDDEN, CHUNK, false);
        landing.begin(&[left], &[left], 1, &[2, 3]);
        let number = left.index(SHAPE);
        for (number, lane, start, count) in [
            (right.index(SHAPE), 0, 0, CHUNK),
            (number, 1, 0, CHUNK),
            (number, 0, 8, CHUNK),
            (number, 0, 80, CHUNK),
            (number, 0, 0, 16),
            (number, 0, usize::MAX, 1),
            (number, 0, 120, 0),
        ] {
            let landed = landing.land(number, lane, start, count, |_| panic!("nothing is written"));
            assert_eq!(landed, Landed::NotOwed, "{number} {lane} {start} {count}");
        }
        assert_eq!(landing.incomplete().collect::<Vec<_>>(), [left]);
    }
}
