//! One broadcast domain: its ducks, and the sum of their nodes.
//!
//! Fragments land in a buffer with a place for each of the domain's nodes; when a step's last value is there, nodes are added up the
//! tree as far as the domain has all parts, and the top nodes are published. Not here: links, deadlines, who takes
//! over from a silent duck, and the adding of single ranges while others are under way.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use kernels::tree::{Node, Shape, additions};
use model::step::{NodeSum, StepInput, StepIo};
use rayon::prelude::*;

use crate::FlockError;
use crate::duck::{Duck, DuckStats, Fragment};
use crate::plan::merged;

/// Additions below which other threads are not woken.
const PARALLEL_ADDITIONS: usize = 1 << 18;

/// A duck and where its nodes stand among the domain's.
struct Seat {
    duck: Box<dyn Duck>,
    /// The duck's place in the plan, for messages.
    name: usize,
    nodes: Vec<usize>,
}

/// A node that is published, and the domain's nodes below it.
#[derive(Clone, Debug)]
struct Top {
    node: Node,
    below: Range<usize>,
}

/// A step under way.
#[derive(Debug, Default)]
struct Pending {
    seq: u64,
    io: Option<Arc<StepIo>>,
    lanes: usize,
    /// `[lanes, nodes, hidden]`.
    values: Vec<f32>,
    /// `[lanes, nodes]`.
    present: Vec<bool>,
    /// By seat: values still owed.
    owed: Vec<usize>,
    /// Ranges that have landed: (place of (lane, node) in `present`, outputs). A repeated value must neither be taken nor counted.
    landed: Vec<(usize, Range<usize>)>,
}

/// The ducks of one domain. Published nodes go to the slots of a step from `first_slot` on.
pub(crate) struct Domain {
    shape: Shape,
    hidden: usize,
    /// In the order of the tree's leaves.
    nodes: Vec<Node>,
    tops: Vec<Top>,
    first_slot: usize,
    seats: Vec<Seat>,
    steps: VecDeque<Pending>,
    spare: Vec<Pending>,
}

impl Domain {
    /// `ducks`: place in the plan, nodes in the order that the duck reports them, and the duck. No two nodes share units.
    pub fn new(
        shape: Shape,
        hidden: usize,
        first_slot: usize,
        ducks: Vec<(usize, Vec<Node>, Box<dyn Duck>)>,
    ) -> Domain {
        let mut nodes: Vec<Node> = ducks.iter().flat_map(|(_, nodes, _)| nodes.iter().copied()).collect();
        nodes.sort_by_key(|n| n.order());
        let mut end = 0;
        let tops = merged(shape, &nodes)
            .into_iter()
            .map(|node| {
                let start = end;
                end += nodes[start..].iter().take_while(|&&n| node.covers(n)).count();
                Top { node, below: start..end }
            })
            .collect();
        let place = |n: &Node| nodes.binary_search_by_key(&n.order(), |n| n.order()).expect("listed above");
        let seats = ducks
            .into_iter()
            .map(|(name, own, duck)| Seat { duck, name, nodes: own.iter().map(place).collect() })
            .collect();
        Domain { shape, hidden, tops, first_slot, seats, steps: VecDeque::new(), spare: Vec::new(), nodes }
    }

    /// How many slots of a step this domain writes.
    pub fn top_nodes(&self) -> usize {
        self.tops.len()
    }

    /// Steps whose sums are not published yet.
    pub fn outstanding(&self) -> usize {
        self.steps.len()
    }

    /// Counters by seat: the duck's place in the plan, and what it did.
    pub fn stats(&self) -> impl Iterator<Item = (usize, DuckStats)> {
        self.seats.iter().map(|seat| (seat.name, seat.duck.stats()))
    }

    /// Hands a checked step to all ducks.
    pub fn submit(&mut self, seq: u64, io: &Arc<StepIo>) -> Result<(), FlockError> {
        let input = io.input.get().ok_or(FlockError::NoInput)?;
        let mut step = self.spare.pop().unwrap_or_default();
        step.begin(seq, io, input, &self.nodes, self.hidden);
        let owed = |seat: &Seat| {
            let nodes = self.nodes.len();
            let present = |&n: &usize| (0..input.lanes).filter(|lane| step.present[lane * nodes + n]).count();
            seat.nodes.iter().map(present).sum::<usize>() * self.hidden
        };
        step.owed = self.seats.iter().map(owed).collect();
        self.seats.iter_mut().try_for_each(|seat| seat.duck.begin_step(seq, io))?;
        self.steps.push_back(step);
        Ok(())
    }

    /// Forgets every step under way.
    pub fn abandon(&mut self) {
        self.seats.iter_mut().for_each(|seat| seat.duck.abandon());
        for mut step in self.steps.drain(..) {
            step.io = None;
            self.spare.push(step);
        }
    }

    /// Polls every duck once and publishes the steps that are complete. Returns whether anything was done.
    pub fn poll(&mut self) -> Result<bool, FlockError> {
        let Domain { seats, steps, hidden, nodes, .. } = self;
        let mut progress = false;
        for (index, seat) in seats.iter_mut().enumerate() {
            let (name, places) = (seat.name, &seat.nodes);
            progress |= seat.duck.poll(&mut |fragment| {
                let step = steps.iter_mut().find(|step| step.seq == fragment.seq);
                let landed = step.is_some_and(|step| step.land(index, places, nodes.len(), *hidden, fragment));
                if landed { Ok(()) } else { Err(not_owed(name, fragment)) }
            })?;
        }
        while let Some(at) = self.steps.iter().position(|step| step.owed.iter().all(|&owed| owed == 0)) {
            let mut step = self.steps.remove(at).expect("just found");
            let published = self.publish(&mut step);
            step.io = None;
            self.spare.push(step);
            published?;
            progress = true;
        }
        Ok(progress)
    }

    fn publish(&self, step: &mut Pending) -> Result<(), FlockError> {
        let Some(io) = step.io.take() else { return Ok(()) };
        for (slot, top) in (self.first_slot..).zip(&self.tops) {
            if !io.sums[slot].publish(|sum| self.sum(step, top, sum)) {
                return Err(FlockError::AlreadySummed { seq: step.seq, slot });
            }
        }
        Ok(())
    }

    /// Adds what is below `top` and leaves it in `sum`.
    fn sum(&self, step: &mut Pending, top: &Top, sum: &mut NodeSum) {
        let (shape, all, hidden) = (self.shape, &self.nodes[..], self.hidden);
        let nodes = all.len();
        sum.node = Some(top.node);
        sum.present.clear();
        sum.present.resize(step.lanes, false);
        sum.values.resize(step.lanes * hidden, 0.0);
        let one_lane =
            |(places, items): &mut (Vec<usize>, Vec<Node>), values: &mut [f32], there: &[bool], out: &mut [f32]| {
                places.clear();
                places.extend(top.below.clone().filter(|&n| there[n]));
                let Some(&first) = places.first() else { return false };
                items.clear();
                items.extend(places.iter().map(|&n| all[n]));
                additions(shape, top.node, items, &mut |a, b| {
                    let (left, right) = values.split_at_mut(places[b] * hidden);
                    let left = &mut left[places[a] * hidden..][..hidden];
                    left.iter_mut().zip(right).for_each(|(a, b)| *a += *b);
                });
                out.copy_from_slice(&values[first * hidden..][..hidden]);
                true
            };
        if step.lanes * nodes * hidden < PARALLEL_ADDITIONS {
            let values = step.values.chunks_exact_mut(nodes * hidden).zip(step.present.chunks_exact(nodes));
            let mut memory = Default::default();
            for ((values, there), (out, present)) in
                values.zip(sum.values.chunks_exact_mut(hidden).zip(&mut sum.present))
            {
                *present = one_lane(&mut memory, values, there, out);
            }
        } else {
            let values = step.values.par_chunks_exact_mut(nodes * hidden).zip(step.present.par_chunks_exact(nodes));
            values
                .zip(sum.values.par_chunks_exact_mut(hidden).zip(&mut sum.present))
                .for_each_init(Default::default, |memory, ((values, there), (out, present))| {
                    *present = one_lane(memory, values, there, out)
                });
        }
    }
}

impl Pending {
    fn begin(&mut self, seq: u64, io: &Arc<StepIo>, input: &StepInput, nodes: &[Node], hidden: usize) {
        self.seq = seq;
        self.io = Some(Arc::clone(io));
        self.lanes = input.lanes;
        self.landed.clear();
        self.values.resize(input.lanes * nodes.len() * hidden, 0.0);
        self.present.clear();
        for ids in input.experts.chunks_exact((input.experts.len() / input.lanes.max(1)).max(1)) {
            self.present.extend(nodes.iter().map(|n| ids.iter().any(|&id| n.has(n.slice, id))));
        }
    }

    /// Takes a fragment from the duck at `seat`; false if it is not owed.
    fn land(&mut self, seat: usize, places: &[usize], nodes: usize, hidden: usize, fragment: Fragment<'_>) -> bool {
        let Fragment { node, lane, start, values, .. } = fragment;
        let Some(&place) = places.get(node) else { return false };
        let fits = start.checked_add(values.len()).is_some_and(|end| end <= hidden);
        if lane >= self.lanes || !fits || !self.present[lane * nodes + place] || self.owed[seat] < values.len() {
            return false;
        }
        let (at, range) = (lane * nodes + place, start..start + values.len());
        if self.landed.iter().any(|(other, r)| *other == at && r.start < range.end && range.start < r.end) {
            return false;
        }
        self.landed.push((at, range));
        self.values[(lane * nodes + place) * hidden + start..][..values.len()].copy_from_slice(values);
        self.owed[seat] -= values.len();
        true
    }
}

fn not_owed(duck: usize, Fragment { seq, node, lane, start, values }: Fragment<'_>) -> FlockError {
    FlockError::Fragment { duck, seq, node, lane, start, end: start.saturating_add(values.len()) }
}
