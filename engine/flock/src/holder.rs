//! One step for the nodes of one in-process holder, by the kernels, on this process's threads.

use std::sync::Arc;

use kernels::tree::Node;
use kernels::{Core, HeldNode, NoHooks, Refusal, Running, Step};
use model::step::StepInput;
use rayon::prelude::*;

use crate::experts::Experts;
use crate::resident::Resident;

/// Multiply-adds below which waking other threads costs more than it saves: some 50 µs of one core.
const PARALLEL_WORK: usize = 1 << 20;

/// A holder's nodes, its session, and the sums of its latest step.
#[derive(Debug)]
pub(crate) struct Holder {
    experts: Arc<Experts>,
    nodes: Vec<Node>,
    /// Where each node's units start in a layer's part of the table.
    first_units: Vec<u32>,
    session: Option<Resident>,
    /// By node: `[lanes, hidden]`.
    sums: Vec<Vec<f32>>,
    /// By node: `[lanes]`, 1 where there is a sum.
    present: Vec<Vec<u8>>,
    lanes: usize,
}

impl Holder {
    pub fn new(experts: Arc<Experts>, nodes: &[Node]) -> Holder {
        let first_units = nodes.iter().scan(0, |next, node| {
            let first = *next;
            *next += node.unit_count(experts.shape);
            Some(first)
        });
        Holder {
            first_units: first_units.collect(),
            nodes: nodes.into(),
            session: None,
            sums: vec![Vec::new(); nodes.len()],
            present: vec![Vec::new(); nodes.len()],
            lanes: 0,
            experts,
        }
    }

    /// Computes a checked step; the results stay until the next one. Returns the number of units read.
    pub fn compute(&mut self, input: &StepInput) -> Result<usize, Refusal> {
        let Experts { hidden, chosen, .. } = *self.experts;
        let lanes = input.lanes;
        self.lanes = lanes;
        let pairs: usize = self.nodes.iter().map(|n| chosen_below(n, &input.experts) * usize::from(n.slices)).sum();
        for (sums, present) in self.sums.iter_mut().zip(&mut self.present) {
            sums.resize(lanes * hidden, 0.0);
            present.clear();
            present.resize(lanes, 0);
        }
        if pairs == 0 || lanes == 0 {
            return Ok(0);
        }
        let work = pairs * 3 * kernels::unit::SLICE * hidden;
        let cores = if work < PARALLEL_WORK { 1 } else { rayon::current_num_threads().min(kernels::abi::MAX_CORES) };
        let session = match &mut self.session {
            Some(session) if session.fits(lanes, cores) => session,
            other => {
                let room = lanes.next_power_of_two();
                other.insert(Resident::open(&self.experts, &self.nodes, room, cores)?)
            }
        };
        let outputs = self.sums.iter_mut().zip(&mut self.present);
        let mut nodes: Vec<HeldNode<'_>> = self
            .nodes
            .iter()
            .zip(&self.first_units)
            .zip(outputs)
            .map(|((&node, &first), (sums, present))| HeldNode::new(node, first, sums, present))
            .collect();
        let step = Step {
            layer: input.layer.into(),
            mode: self.experts.mode(),
            lanes,
            chosen,
            ids: &input.experts,
            weights: &input.weights,
            input: &input.hidden,
            nodes: &mut nodes,
        };
        run(&session.holder().begin(step)?, cores, self.experts.isa)?;
        Ok(self.nodes.iter().map(|n| experts_below(n, &input.experts) * usize::from(n.slices)).sum())
    }

    /// Calls `each(node, lane, values)` with every result of the last step.
    pub fn results(&self, mut each: impl FnMut(Node, usize, &[f32])) {
        let hidden = self.experts.hidden;
        for (node, (sums, present)) in self.nodes.iter().zip(self.sums.iter().zip(&self.present)) {
            for lane in (0..self.lanes).filter(|&lane| present[lane] == 1) {
                each(*node, lane, &sums[lane * hidden..][..hidden]);
            }
        }
    }
}

/// Both halves on `cores` threads of the pool, joined in between.
fn run(step: &Running<'_>, cores: usize, isa: fp9::Isa) -> Result<(), Refusal> {
    let core = |index| Core { index, isa };
    if cores == 1 {
        return step.run(core(0), &mut NoHooks);
    }
    (0..cores).into_par_iter().try_for_each(|index| step.first_half(core(index), &mut NoHooks))?;
    (0..cores).into_par_iter().try_for_each(|index| step.second_half(core(index), &mut NoHooks))
}

/// (expert, lane) pairs below a node, in one slice.
fn chosen_below(node: &Node, ids: &[u16]) -> usize {
    ids.iter().filter(|&&id| node.has(node.slice, id)).count()
}

/// Experts below a node that some lane chose.
fn experts_below(node: &Node, ids: &[u16]) -> usize {
    let mut below: Vec<u16> = ids.iter().copied().filter(|&id| node.has(node.slice, id)).collect();
    below.sort_unstable();
    below.dedup();
    below.len()
}
