//! What a step means for one holder: which units for which lanes, and the additions of each lane's contributions.
//!
//! Every core makes the whole plan for itself, from the request: that costs about a microsecond for one lane and saves a barrier. All
//! cores reach the same plan, or refuse for the same reason. After [`Own::plan`] nothing of the request's ids and
//! weights is read again, so a plan's indices stay in bounds whatever the owner does to them.
//!
//! A **job** is a unit with the lanes that chose it. A **pair** is a lane of a job; a node's pairs are numbered job after job, and a pair's
//! contribution to each output is one row of a node's matrix of contributions.

use crate::abi::{HeldNode, Limits, Mode, Refusal};
use crate::scratch::Own;
use crate::tree::{Node, Shape, additions};

/// [`Own::roots`] of a lane without a unit below the node.
pub(crate) const ABSENT: u32 = u32::MAX;

/// A unit and the lanes that chose it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Job {
    /// Index within the layer's part of the unit table.
    pub unit: u32,
    /// First of the expert's members.
    pub first: u32,
    /// Number of members.
    pub lanes: u32,
    /// Number of pairs before it, over all nodes.
    pub pair: u32,
}

/// A lane that chose an expert.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Member {
    pub lane: u32,
}

/// A node's part of the jobs, pairs and additions.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct NodePlan {
    pub jobs: [u32; 2],
    pub pairs: [u32; 2],
    pub additions: [u32; 2],
}

/// Sizes of the current plan.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Head {
    pub lanes: u32,
    pub chosen: u32,
    pub nodes: u32,
    pub jobs: u32,
    pub active: u32,
    /// Lanes whose inputs lie in [`Own::gather`]: [`Own::gathered`].
    pub gathered: u32,
    /// Output rows of the current range: the length of a row of [`Own::contributions`].
    pub rows: u32,
    pub reserved: u32,
}

/// A request whose lengths were checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub layer: usize,
    pub lanes: usize,
    pub chosen: usize,
    pub mode: Mode,
    pub ids: &'a [u16],
    pub weights: &'a [f32],
    pub input: &'a [f32],
    pub nodes: &'a [HeldNode<'a>],
}

impl Own<'_> {
    /// Makes the plan for `request`. `units`: of a layer.
    pub fn plan(&mut self, request: &Request<'_>, shape: Shape, units: usize, limits: &Limits) -> Result<(), Refusal> {
        self.head.lanes = request.lanes as u32;
        self.head.chosen = request.chosen as u32;
        self.head.nodes = request.nodes.len() as u32;
        self.head.gathered = 0;
        self.head.rows = 0;
        self.head.reserved = 0;
        self.copy_ids(request, usize::from(shape.experts))?;
        self.group(request);
        let (mut jobs, mut pairs) = (0, 0);
        for (index, held) in request.nodes.iter().enumerate() {
            let node = held.node();
            let fits = u64::from(held.first_unit()) + u64::from(node.unit_count_checked(shape)?) <= units as u64;
            if !fits {
                return Err(Refusal::Node);
            }
            let before = (jobs, pairs);
            self.node_jobs(held, shape, limits, (&mut jobs, &mut pairs))?;
            let plan = NodePlan { jobs: [before.0, jobs], pairs: [before.1, pairs], additions: [0, 0] };
            self.nodes[index] = plan;
        }
        self.head.jobs = jobs;
        Ok(())
    }

    /// Copies the ids, refusing what is out of range or order.
    fn copy_ids(&mut self, request: &Request<'_>, experts: usize) -> Result<(), Refusal> {
        self.offsets[..=experts].fill(0);
        for (lane, ids) in request.ids.chunks_exact(request.chosen).enumerate() {
            let copy = &mut self.ids[lane * request.chosen..][..request.chosen];
            copy.copy_from_slice(ids);
            if copy.iter().any(|&id| usize::from(id) >= experts) {
                return Err(Refusal::ExpertId);
            }
            if !copy.is_sorted_by(|a, b| a < b) {
                return Err(Refusal::ExpertOrder);
            }
            copy.iter().for_each(|&id| self.offsets[usize::from(id)] += 1);
        }
        Ok(())
    }

    /// Turns the lanes' experts round into the experts' lanes. `offsets` counts each expert's lanes when called.
    fn group(&mut self, request: &Request<'_>) {
        let experts = self.first_job.len();
        let (mut end, mut active) = (0, 0);
        for expert in 0..experts {
            let count = self.offsets[expert];
            if count > 0 {
                self.active[active] = expert as u16;
                active += 1;
            }
            end += count;
            self.offsets[expert] = end;
        }
        self.offsets[experts] = end;
        self.head.active = active as u32;
        // From the back, each offset moves from its group's end to its start, and lanes ascend within a group.
        let choices = request.lanes * request.chosen;
        for (choice, &id) in self.ids[..choices].iter().enumerate().rev() {
            let offset = &mut self.offsets[usize::from(id)];
            *offset -= 1;
            let member = *offset as usize;
            self.members[member] = Member { lane: (choice / request.chosen) as u32 };
            self.factors[member] = request.weights[choice];
            self.places[choice] = *offset;
        }
    }

    /// Lists a node's jobs.
    fn node_jobs(
        &mut self,
        held: &HeldNode<'_>,
        shape: Shape,
        limits: &Limits,
        (jobs, pairs): (&mut u32, &mut u32),
    ) -> Result<(), Refusal> {
        let node = held.node();
        let experts = node.experts(shape);
        for &expert in &self.active[..self.head.active as usize] {
            if !node.has(node.slice, expert) {
                continue;
            }
            let first = self.offsets[usize::from(expert)];
            let lanes = self.offsets[usize::from(expert) + 1] - first;
            let unit = held.first_unit() + (u32::from(expert) >> node.depth);
            let end = (u64::from(*pairs) + u64::from(lanes) * u64::from(node.slices), *jobs + u32::from(node.slices));
            if end.0 > limits.pairs.into() || end.1 > limits.units {
                return Err(Refusal::TooMuch);
            }
            for slice in 0..u32::from(node.slices) {
                let pair = *pairs + slice * lanes;
                self.jobs[(*jobs + slice) as usize] = Job { unit: unit + slice * experts, first, lanes, pair };
            }
            (*pairs, *jobs) = (end.0 as u32, end.1);
        }
        Ok(())
    }

    /// Lists every node's additions and the pair in which each lane's sum will stand, both counted from the node's first pair.
    pub fn plan_additions(&mut self, nodes: &[HeldNode<'_>], shape: Shape) {
        let (lanes, chosen) = (self.head.lanes as usize, self.head.chosen as usize);
        let mut end = 0;
        for (index, held) in nodes.iter().enumerate() {
            let node = held.node();
            let start = end;
            let jobs = self.nodes[index].jobs;
            let mut job = jobs[0];
            for &expert in &self.active[..self.head.active as usize] {
                if node.has(node.slice, expert) {
                    self.first_job[usize::from(expert)] = job;
                    job += u32::from(node.slices);
                }
            }
            for lane in 0..lanes {
                let below = self.lane_leaves(node, shape, lane * chosen, chosen, self.nodes[index].pairs[0]);
                self.roots[index * lanes + lane] = if below == 0 { ABSENT } else { self.leaf_pairs[0] };
                let (list, pairs) = (&mut *self.additions, &*self.leaf_pairs);
                additions(shape, node, &self.leaves[..below], &mut |a, b| {
                    list[end] = [pairs[a], pairs[b]];
                    end += 1;
                });
            }
            self.nodes[index].additions = [start as u32, end as u32];
        }
    }

    /// Fills `leaves` and `leaf_pairs` with one lane's units below `node`, in the tree's order; returns how many.
    fn lane_leaves(&mut self, node: Node, shape: Shape, first: usize, chosen: usize, base: u32) -> usize {
        let mut count = 0;
        for (choice, &id) in self.ids[first..first + chosen].iter().enumerate() {
            if node.has(node.slice, id) {
                self.order[count] = u32::from(id.reverse_bits()) << 16 | choice as u32;
                count += 1;
            }
        }
        self.order[..count].sort_unstable();
        for (place, &key) in self.order[..count].iter().enumerate() {
            let choice = first + (key & 0xFFFF) as usize;
            let expert = usize::from(self.ids[choice]);
            let leaf = shape.unit(0, expert as u16);
            let member = self.places[choice] - self.offsets[expert];
            for slice in 0..node.slices {
                let job = &self.jobs[(self.first_job[expert] + u32::from(slice)) as usize];
                let at = usize::from(slice) * count + place;
                self.leaves[at] = Node { slice: node.slice + slice, ..leaf };
                self.leaf_pairs[at] = job.pair + member - base;
            }
        }
        count * usize::from(node.slices)
    }
}

impl Node {
    /// The number of units, or a refusal if the tree has no such node.
    fn unit_count_checked(self, shape: Shape) -> Result<u32, Refusal> {
        if shape.contains(self) { Ok(self.unit_count(shape)) } else { Err(Refusal::Node) }
    }
}
