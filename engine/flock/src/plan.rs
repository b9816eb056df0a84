//! Which holder has which nodes: one plan for all layers of a model.
//!
//! A plan cuts the canonical tree's units into nodes and gives each node to one holder; a holder reports one vector per node
//! and lane. Which experts a token picks is random and the holder with the largest share sets a step's pace, so [`Plan::for_ducks`]
//! minimises the expected maximum over holders of the units chosen in a step, with a small price on vectors to report.
//! Holders are taken to be equally fast and large enough; measured speed, memory and replicas are not considered here.

use std::fmt::Write;

use kernels::tree::{Node, Shape};

/// What one more node on the busiest reporter costs, as a part of the expected maximum: its vector's time on the wire, most
/// of it hidden behind the memory time of other units.
const NODE_PRICE: f64 = 0.02;
/// Random choices drawn for one estimate. The standard error is then about 2 % of a single draw's deviation.
const DRAWS: usize = 2048;
const DRAW_SEED: u64 = 0x6475_636b_706f_6e64;

/// Why a plan cannot be made or used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The tree's nodes could not be numbered.
    #[error("{slices} slices of {experts} experts cannot be planned: a layer has from 1 to 32,768 units")]
    Units {
        /// Slices of the model.
        slices: usize,
        /// Experts per layer.
        experts: usize,
    },
    /// A number of ducks that cannot all be used, or none.
    #[error("{found} ducks asked for, but this model can use from 1 to {allowed}")]
    Ducks {
        /// Number of units of a layer.
        allowed: u32,
        /// Ducks asked for.
        found: usize,
    },
    /// No lane can choose that many experts.
    #[error("{found} experts chosen per lane, but a layer has {experts}: expected from 1 to that number")]
    Chosen {
        /// Experts per layer.
        experts: u16,
        /// Experts chosen for each lane.
        found: usize,
    },
    /// A node that the tree does not have.
    #[error("holder {holder} is given {node:?}, which is no node of the tree of {shape:?}")]
    NoSuchNode {
        /// The holder.
        holder: usize,
        /// What it is given.
        node: Node,
        /// The tree's shape.
        shape: Shape,
    },
    /// Two nodes share units.
    #[error("holder {first} has {upper:?} and holder {second} has {lower:?}, which share units")]
    Overlap {
        /// Who has the node that comes first in the tree.
        first: usize,
        /// That node.
        upper: Node,
        /// Who has the other.
        second: usize,
        /// The other node.
        lower: Node,
    },
    /// Units without a holder.
    #[error("the plan places {found} of a layer's {expected} units")]
    Incomplete {
        /// Units of a layer.
        expected: u32,
        /// Units that have a holder.
        found: u32,
    },
}

/// Which holder has which nodes. Every unit has exactly one holder; a holder may have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    shape: Shape,
    holders: Vec<Vec<Node>>,
}

impl Plan {
    /// The plan with the least expected maximum for that many equal ducks, of which `chosen` experts serve each lane.
    /// Ducks that would not make it faster idle, with a warning.
    ///
    /// The tree's leaves, in order, are cut into contiguous pieces of equal size. The candidates differ in how finely
    /// a slice may be cut (in 1, 2, 4 … parts, down to single experts); a piece is reported as its maximal subtrees.
    ///
    /// # Errors
    /// No ducks or more than units; `chosen` 0 or more than experts; a shape too large to number.
    pub fn for_ducks(shape: Shape, chosen: usize, ducks: usize) -> Result<Plan, PlanError> {
        let units = units(shape)?;
        if ducks == 0 || ducks > units as usize {
            return Err(PlanError::Ducks { allowed: units, found: ducks });
        }
        if chosen == 0 || chosen > usize::from(shape.experts) {
            return Err(PlanError::Chosen { experts: shape.experts, found: chosen });
        }
        let finest = u16::BITS - (shape.experts - 1).leading_zeros();
        let mut best: Option<(f64, Plan)> = None;
        for depth in 0..=finest {
            let plan = Plan::in_pieces(shape, ducks, depth);
            let nodes = plan.holders.iter().map(Vec::len).max().unwrap_or(1).max(1);
            let cost = plan.expected_max(chosen) * (1.0 + NODE_PRICE * (nodes - 1) as f64);
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, plan));
            }
        }
        let (_, plan) = best.expect("depth 0 is always a candidate");
        let idle = plan.holders.iter().filter(|nodes| nodes.is_empty()).count();
        if idle > 0 {
            tracing::warn!(ducks, idle, "spare ducks stay idle: another split would not make a step faster");
        }
        Ok(plan)
    }

    /// Equal runs of the tree's nodes of that depth; the last holders stay empty when there are fewer nodes.
    fn in_pieces(shape: Shape, ducks: usize, depth: u32) -> Plan {
        let atoms = atoms(shape, depth);
        let used = ducks.min(atoms.len());
        let mut holders: Vec<Vec<Node>> =
            (0..used).map(|i| merged(shape, &atoms[i * atoms.len() / used..(i + 1) * atoms.len() / used])).collect();
        holders.resize(ducks, Vec::new());
        Plan { shape, holders }
    }

    /// A plan written down elsewhere, checked.
    ///
    /// # Errors
    /// As [`Plan::check`].
    pub fn from_nodes(shape: Shape, holders: Vec<Vec<Node>>) -> Result<Plan, PlanError> {
        let mut plan = Plan { shape, holders };
        plan.check()?;
        plan.holders.iter_mut().for_each(|nodes| nodes.sort_by_key(|n| n.order()));
        Ok(plan)
    }

    /// Any cut of the tree, its nodes dealt to any of the holders: for tests, which must find the same sums under all of them.
    ///
    /// # Errors
    /// No holders, or a shape too large to number.
    pub fn random(shape: Shape, holders: usize, seed: u64) -> Result<Plan, PlanError> {
        let units = units(shape)?;
        if holders == 0 {
            return Err(PlanError::Ducks { allowed: units, found: 0 });
        }
        let mut random = Random(seed);
        let stop = 2 + random.below(5);
        let mut plan = Plan { shape, holders: vec![Vec::new(); holders] };
        let mut open = vec![shape.root()];
        while let Some(node) = open.pop() {
            match node.children(shape) {
                Some((left, right)) if random.below(stop) != 0 => open.extend([right, left]),
                _ => plan.holders[random.below(holders)].push(node),
            }
        }
        Ok(plan)
    }

    /// Whether every unit has exactly one holder.
    ///
    /// # Errors
    /// The first node that is none, two that overlap, or the number of units left out.
    pub fn check(&self) -> Result<(), PlanError> {
        let shape = self.shape;
        let expected = units(shape)?;
        let mut nodes = Vec::new();
        for (holder, given) in self.holders.iter().enumerate() {
            for &node in given {
                if !is_node(shape, node) {
                    return Err(PlanError::NoSuchNode { holder, node, shape });
                }
                nodes.push((node.index(shape), node, holder));
            }
        }
        // A subtree is a run of preorder numbers, so nodes overlap exactly when a run reaches the next number.
        nodes.sort_unstable();
        for pair in nodes.windows(2) {
            let ((at, upper, first), (next, lower, second)) = (pair[0], pair[1]);
            if u32::from(at) + 2 * upper.unit_count(shape) - 1 > u32::from(next) {
                return Err(PlanError::Overlap { first, upper, second, lower });
            }
        }
        let found = nodes.iter().map(|(_, node, _)| node.unit_count(shape)).sum();
        if found == expected { Ok(()) } else { Err(PlanError::Incomplete { expected, found }) }
    }

    /// The tree that the plan cuts.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Number of holders, idle ones included.
    pub fn holders(&self) -> usize {
        self.holders.len()
    }

    /// A holder's nodes in the order of the tree's leaves; empty for an idle one.
    ///
    /// # Panics
    /// If there is no such holder.
    pub fn nodes(&self, holder: usize) -> &[Node] {
        &self.holders[holder]
    }

    /// Nodes of the holder that has most.
    pub fn nodes_at_most(&self) -> usize {
        self.holders.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Units of one layer that a holder has.
    ///
    /// # Panics
    /// If there is no such holder.
    pub fn units(&self, holder: usize) -> u32 {
        units_below(self.shape, &self.holders[holder])
    }

    /// Expected number of units that the busiest holder computes in a step of one lane, when every choice of `chosen`
    /// experts is equally likely. Exact where holders have whole slices, else the mean of seeded random draws.
    pub fn expected_max(&self, chosen: usize) -> f64 {
        let experts = usize::from(self.shape.experts);
        let chosen = chosen.min(experts);
        if self.holders.iter().flatten().all(|node| node.depth == 0) {
            let slices = self.holders.iter().map(|h| h.iter().map(|n| usize::from(n.slices)).sum::<usize>());
            return (chosen * slices.max().unwrap_or(0)) as f64;
        }
        let owners = self.owners();
        let (mut random, mut order) = (Random(DRAW_SEED), (0..experts).collect::<Vec<_>>());
        let (mut load, mut total) = (vec![0u32; self.holders.len()], 0u64);
        for _ in 0..DRAWS {
            load.fill(0);
            for i in 0..chosen {
                order.swap(i, i + random.below(experts - i));
                for slice in owners.chunks(experts) {
                    load[slice[order[i]]] += 1;
                }
            }
            total += u64::from(load.iter().copied().max().unwrap_or(0));
        }
        total as f64 / DRAWS as f64
    }

    /// `[slices, experts]`: who holds each unit.
    fn owners(&self) -> Vec<usize> {
        let experts = usize::from(self.shape.experts);
        let mut owners = vec![0; usize::from(self.shape.slices) * experts];
        for (holder, nodes) in self.holders.iter().enumerate() {
            for node in nodes {
                for slice in node.slice..node.slice + node.slices {
                    for expert in (usize::from(node.residue)..experts).step_by(1 << node.depth) {
                        owners[usize::from(slice) * experts + expert] = holder;
                    }
                }
            }
        }
        owners
    }

    /// A few lines for people: how many ducks hold how much, and what the busiest expects.
    pub fn summary(&self, chosen: usize) -> String {
        let busy: Vec<usize> = (0..self.holders()).filter(|&h| !self.holders[h].is_empty()).collect();
        let range = |counts: &dyn Fn(usize) -> usize| {
            let low = busy.iter().map(|&h| counts(h)).min().unwrap_or(0);
            let high = busy.iter().map(|&h| counts(h)).max().unwrap_or(0);
            if low == high { low.to_string() } else { format!("{low} to {high}") }
        };
        let even = (chosen * usize::from(self.shape.slices)) as f64 / busy.len().max(1) as f64;
        let counted =
            |count: String, what: &str| if count == "1" { format!("1 {what}") } else { format!("{count} {what}s") };
        let mut text = format!(
            "{}, each {} of a layer's {} in {}; busiest duck per lane and layer: {:.2} units expected, {even:.2} if shared evenly",
            counted(busy.len().to_string(), "duck"),
            range(&|h| self.units(h) as usize),
            counted(self.shape.units().unwrap_or(0).to_string(), "unit"),
            counted(range(&|h| self.holders[h].len()), "node"),
            self.expected_max(chosen),
        );
        if busy.len() < self.holders() {
            let _ = write!(text, "; {} idle", self.holders() - busy.len());
        }
        text
    }
}

/// Units of one layer below nodes that do not overlap.
pub fn units_below(shape: Shape, nodes: &[Node]) -> u32 {
    nodes.iter().map(|n| n.unit_count(shape)).sum()
}

/// The tree's nodes of that depth, in order: slices and below.
pub(crate) fn atoms(shape: Shape, depth: u32) -> Vec<Node> {
    let mut atoms = Vec::new();
    let mut open = vec![shape.root()];
    while let Some(node) = open.pop() {
        match node.children(shape) {
            Some((left, right)) if node.slices > 1 || u32::from(node.depth) < depth => open.extend([right, left]),
            _ => atoms.push(node),
        }
    }
    atoms
}

/// The fewest nodes that cover the same units; `nodes` do not overlap and are sorted by [`Node::order`].
pub fn merged(shape: Shape, nodes: &[Node]) -> Vec<Node> {
    fn cover(shape: Shape, top: Node, nodes: &[Node], out: &mut Vec<Node>) {
        let units = units_below(shape, nodes);
        if units == top.unit_count(shape) {
            out.push(top);
        } else if let (Some((left, right)), false) = (top.children(shape), nodes.is_empty()) {
            let cut = nodes.partition_point(|&n| left.covers(n));
            cover(shape, left, &nodes[..cut], out);
            cover(shape, right, &nodes[cut..], out);
        }
    }
    let mut out = Vec::new();
    cover(shape, shape.root(), nodes, &mut out);
    out
}

fn units(shape: Shape) -> Result<u32, PlanError> {
    let (slices, experts) = (shape.slices.into(), shape.experts.into());
    shape.units().ok_or(PlanError::Units { slices, experts })
}

/// The tree's own functions expect nodes of the tree; these bounds keep them from overflowing on anything else.
fn is_node(shape: Shape, node: Node) -> bool {
    let last = u32::from(node.slice) + u32::from(node.slices);
    let bounded = node.slices > 0 && last <= shape.slices.into() && node.residue < shape.experts && node.depth <= 16;
    bounded && shape.node(node.index(shape)) == Some(node)
}

/// SplitMix64: plans must come out the same on every machine and in every version.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `n - 1`; the bias for the small n used here is below 2^-48.
    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests;
