//! Ducks in the host's own process, and what the host computes for ducks that cannot: they compute when they are polled, on the
//! caller's threads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernels::tree::Node;
use model::step::{StepInput, StepIo};

use crate::FlockError;
use crate::experts::Experts;
use crate::holder::Holder;
use crate::landing::{Landed, Landing};
use crate::plan::merged;

/// Counters of one duck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DuckStats {
    /// Steps finished, those without a chosen unit included.
    pub steps: u64,
    /// Units read: an expert's part in a slice counts once per step, however many lanes chose it.
    pub units: u64,
    /// Time spent computing.
    pub busy: Duration,
}

struct Duck {
    holder: Holder,
    stats: DuckStats,
}

/// Holders that share one landing place. Their sums go to one slot of a step.
pub(crate) struct Local {
    ducks: Vec<Duck>,
    nodes: Vec<Node>,
    tops: Vec<Node>,
    slot: usize,
    landing: Landing,
    waiting: VecDeque<(u64, Arc<StepIo>)>,
}

impl Local {
    /// Holders of these nodes, no two of which share units.
    pub fn new<'a>(experts: &Arc<Experts>, slot: usize, holders: impl Iterator<Item = &'a [Node]> + Clone) -> Local {
        let mut nodes: Vec<Node> = holders.clone().flatten().copied().collect();
        nodes.sort_by_key(|n| n.order());
        Local {
            ducks: holders
                .map(|nodes| Duck { holder: Holder::new(Arc::clone(experts), nodes), stats: DuckStats::default() })
                .collect(),
            tops: merged(experts.shape, &nodes),
            nodes,
            slot,
            landing: Landing::new(experts.shape, experts.hidden, experts.hidden, true),
            waiting: VecDeque::new(),
        }
    }

    /// Takes a checked step on.
    pub fn submit(&mut self, seq: u64, io: &Arc<StepIo>) {
        self.waiting.push_back((seq, Arc::clone(io)));
    }

    /// Computes the oldest waiting step. Returns whether there was one.
    pub fn poll(&mut self) -> Result<bool, FlockError> {
        let Some((seq, io)) = self.waiting.pop_front() else { return Ok(false) };
        let input = io.input.get().ok_or(FlockError::NoInput)?;
        self.landing.begin(&self.nodes, &self.tops, input.lanes, &input.experts);
        for duck in &mut self.ducks {
            let started = Instant::now();
            duck.stats.units += duck.holder.compute(input)? as u64;
            duck.stats.steps += 1;
            duck.stats.busy += started.elapsed();
            duck.holder.results(|node, lane, values| {
                let landed = self.landing.land_vector(node, lane, values);
                debug_assert_eq!(landed, Landed::Taken);
            });
        }
        let slot = self.slot;
        if !io.sums[slot].publish(|sums| self.landing.publish(sums)) {
            return Err(FlockError::AlreadySummed { seq, slot });
        }
        Ok(true)
    }

    /// Forgets every step that waits.
    pub fn abandon(&mut self) {
        self.waiting.clear();
    }

    /// Steps that wait.
    pub fn outstanding(&self) -> usize {
        self.waiting.len()
    }

    /// By holder.
    pub fn stats(&self) -> impl Iterator<Item = DuckStats> + '_ {
        self.ducks.iter().map(|duck| duck.stats)
    }
}

/// Nodes that the host computes for others, one step at a time. Sessions for lists of nodes that come again are kept.
pub(crate) struct Substitute {
    experts: Arc<Experts>,
    holders: VecDeque<(Node, Holder)>,
}

/// How many sessions are kept.
const KEPT: usize = 64;

impl Substitute {
    pub fn new(experts: Arc<Experts>) -> Substitute {
        Substitute { experts, holders: VecDeque::new() }
    }

    /// Computes a node: `[lanes]` and `[lanes, hidden]`.
    pub fn compute(&mut self, node: Node, input: &StepInput) -> Result<(Vec<bool>, Vec<f32>), FlockError> {
        let found = self.holders.iter().position(|(of, _)| *of == node);
        let (_, mut holder) = match found.and_then(|at| self.holders.remove(at)) {
            Some(kept) => kept,
            None => (node, Holder::new(Arc::clone(&self.experts), &[node])),
        };
        let computed = holder.compute(input);
        let mut present = vec![false; input.lanes];
        let mut values = vec![0.0; input.lanes * self.experts.hidden];
        if computed.is_ok() {
            holder.results(|_, lane, sums| {
                present[lane] = true;
                values[lane * self.experts.hidden..][..self.experts.hidden].copy_from_slice(sums);
            });
        }
        self.holders.push_front((node, holder));
        self.holders.truncate(KEPT);
        computed?;
        Ok((present, values))
    }
}
