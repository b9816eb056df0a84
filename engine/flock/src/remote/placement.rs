//! Which duck holds which units, and who computes what when not everybody is there. Pure: the same ducks give the same placement, so that a
//! restarted host asks for what its ducks already hold.

use kernels::tree::{Node, Shape};

use crate::FlockError;
use crate::plan::{Plan, atoms, merged, units_below};

/// The part of a duck's memory that replicas leave free, since it may come back with a little less.
const SPARED: u32 = 16;
/// In how many pieces, about, a duck's units are spread over others as replicas, so that no single duck inherits all its work.
const REPLICA_PIECES: u32 = 4;

/// What the planner knows of a duck.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room {
    /// Units of every layer that fit its memory.
    pub units: u32,
    /// Relative speed; 1 for all if nothing is known.
    pub speed: f64,
    /// Its port. Neighbouring units go to the same port, replicas to another.
    pub port: usize,
}

/// What is planned to be held.
#[derive(Clone, Debug, PartialEq)]
pub struct Hints {
    /// Experts that a lane chooses.
    pub chosen: usize,
    /// Most units of every layer that the host holds for good.
    pub host_units: u32,
    /// Whether memory left over holds replicas.
    pub replicas: bool,
    /// Bytes of a unit in all layers, for messages.
    pub unit_bytes: u64,
}

/// Who holds what. Everybody's primary units together are all units, once each.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// Ducks, then the host.
    pub plan: Plan,
    /// By duck: units that it holds as well, and computes when those that have them as primary cannot.
    pub replicas: Vec<Vec<Node>>,
}

/// Who computes what in a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// Counts up.
    pub version: u16,
    /// By duck, in the order of the tree's leaves.
    pub ducks: Vec<Vec<Node>>,
    /// The host's.
    pub host: Vec<Node>,
}

impl Placement {
    /// Units for ducks with that much room.
    ///
    /// # Errors
    /// [`FlockError::Memory`]; no ducks.
    pub fn new(shape: Shape, ducks: &[Room], hints: &Hints) -> Result<Placement, FlockError> {
        if ducks.is_empty() {
            return Err(FlockError::NoDucks);
        }
        let units = shape
            .units()
            .ok_or(crate::PlanError::Units { slices: shape.slices.into(), experts: shape.experts.into() })?;
        let room = ducks.iter().fold(0u32, |sum, duck| sum.saturating_add(duck.units));
        let for_host = units.saturating_sub(room);
        if for_host > hints.host_units {
            let missing = u64::from(for_host - hints.host_units) * hints.unit_bytes;
            return Err(FlockError::Memory { expected: units, found: room, missing });
        }
        let mut order: Vec<usize> = (0..ducks.len()).collect();
        order.sort_by_key(|&duck| (ducks[duck].port, duck));
        let even = ducks.iter().all(|duck| duck.speed == ducks[0].speed);
        let natural = Plan::for_ducks(shape, hints.chosen, ducks.len().min(units as usize))
            .ok()
            .filter(|plan| even && (0..plan.holders()).all(|i| plan.units(i) <= ducks[order[i]].units));
        let mut holders = vec![Vec::new(); ducks.len() + 1];
        match natural {
            Some(plan) => (0..plan.holders()).for_each(|i| holders[order[i]] = plan.nodes(i).to_vec()),
            None => uneven(shape, ducks, &order, hints, &mut holders)?,
        }
        let plan = Plan::from_nodes(shape, holders)?;
        let replicas = if hints.replicas { replicas(shape, ducks, &plan) } else { vec![Vec::new(); ducks.len()] };
        Ok(Placement { plan, replicas })
    }

    /// What a duck has in memory: primary units and replicas, in as few nodes as possible.
    pub fn held(&self, duck: usize) -> Vec<Node> {
        let mut nodes: Vec<Node> = self.plan.nodes(duck).iter().chain(&self.replicas[duck]).copied().collect();
        nodes.sort_by_key(|n| n.order());
        merged(self.plan.shape(), &nodes)
    }

    /// Who computes what when only some ducks are `able`, and each has given up `shed` of its units for being slow. At most `most` nodes go to a
    /// duck; what no able duck holds goes to the host.
    pub fn assign(&self, version: u16, able: &[bool], shed: &[u32], most: usize) -> Assignment {
        let shape = self.plan.shape();
        let count = able.len();
        let mut work = Work { placement: self, able, given: vec![Vec::new(); count + 1], load: vec![0; count] };
        let mut orphans = Vec::new();
        for duck in 0..count {
            let nodes = self.plan.nodes(duck);
            if !able[duck] {
                orphans.extend(nodes.iter().map(|&node| (duck, node)));
                continue;
            }
            let mut left = shed[duck];
            for &node in nodes {
                work.keep_or_shed(duck, node, &mut left, &mut orphans);
            }
        }
        for (owner, node) in orphans {
            work.give(owner, node);
        }
        let mut ducks: Vec<Vec<Node>> = work
            .given
            .into_iter()
            .map(|mut nodes| {
                nodes.sort_by_key(|n| n.order());
                merged(shape, &nodes)
            })
            .collect();
        let mut host = ducks.pop().unwrap_or_default();
        host.extend_from_slice(self.plan.nodes(count));
        for nodes in &mut ducks {
            while nodes.len() > most {
                let smallest = (0..nodes.len()).min_by_key(|&i| nodes[i].unit_count(shape)).unwrap_or(0);
                host.push(nodes.remove(smallest));
            }
        }
        host.sort_by_key(|n| n.order());
        Assignment { version, ducks, host: merged(shape, &host) }
    }

    /// For each of `nodes`, which have lost their holder in the middle of a step: nodes that are the same units, each with the able duck that
    /// holds it, or `None` for the host. Ducks with little to do under `assignment` come first.
    pub fn substitutes(
        &self,
        nodes: &[Node],
        able: &[bool],
        assignment: &Assignment,
    ) -> Vec<Vec<(Option<usize>, Node)>> {
        let (count, shape) = (able.len(), self.plan.shape());
        let load = assignment.ducks.iter().map(|nodes| units_below(shape, nodes)).collect();
        let mut work = Work { placement: self, able, given: vec![Vec::new(); count + 1], load };
        let of = |node: &Node| {
            work.give(usize::MAX, *node);
            let mut all: Vec<(Option<usize>, Node)> = Vec::new();
            for (duck, nodes) in work.given.iter_mut().enumerate() {
                all.extend(nodes.drain(..).map(|node| ((duck < count).then_some(duck), node)));
            }
            all.sort_by_key(|(_, node)| node.order());
            all
        };
        nodes.iter().map(of).collect()
    }
}

/// An assignment that is being made.
struct Work<'a> {
    placement: &'a Placement,
    able: &'a [bool],
    /// By duck, then the host.
    given: Vec<Vec<Node>>,
    /// Units by duck.
    load: Vec<u32>,
}

impl Work<'_> {
    /// Leaves a duck its node, except for parts of about `left` units that others have as replicas.
    fn keep_or_shed(&mut self, duck: usize, node: Node, left: &mut u32, orphans: &mut Vec<(usize, Node)>) {
        let shape = self.placement.plan.shape();
        let units = node.unit_count(shape);
        if units <= *left && self.taker(duck, node).is_some() {
            *left -= units;
            orphans.push((duck, node));
            return;
        }
        match node.children(shape) {
            Some((a, b)) if *left > 0 && self.anybody(duck, node) => {
                self.keep_or_shed(duck, a, left, orphans);
                self.keep_or_shed(duck, b, left, orphans);
            }
            _ => {
                self.given[duck].push(node);
                self.load[duck] += units;
            }
        }
    }

    fn holds(&self, duck: usize) -> impl Iterator<Item = &Node> {
        self.placement.plan.nodes(duck).iter().chain(&self.placement.replicas[duck])
    }

    /// The able duck with the least work, other than `owner`, that holds all of `node`.
    fn taker(&self, owner: usize, node: Node) -> Option<usize> {
        let shape = self.placement.plan.shape();
        let whole = |duck: &usize| {
            let mut below: Vec<Node> = Vec::new();
            for &held in self.holds(*duck) {
                if held.covers(node) {
                    return true;
                }
                if node.covers(held) {
                    below.push(held);
                }
            }
            units_below(shape, &below) == node.unit_count(shape)
        };
        let able = (0..self.able.len()).filter(|&duck| duck != owner && self.able[duck]);
        able.filter(whole).min_by_key(|&duck| self.load[duck])
    }

    /// Whether any other able duck holds a part of `node`.
    fn anybody(&self, owner: usize, node: Node) -> bool {
        (0..self.able.len())
            .filter(|&duck| duck != owner && self.able[duck])
            .any(|duck| self.holds(duck).any(|held| held.covers(node) || node.covers(*held)))
    }

    /// Finds somebody else for a node or its parts.
    fn give(&mut self, owner: usize, node: Node) {
        let shape = self.placement.plan.shape();
        if let Some(duck) = self.taker(owner, node) {
            self.given[duck].push(node);
            self.load[duck] += node.unit_count(shape);
            return;
        }
        match node.children(shape) {
            Some((left, right)) if self.anybody(owner, node) => {
                self.give(owner, left);
                self.give(owner, right);
            }
            _ => self.given[self.able.len()].push(node),
        }
    }
}

/// Contiguous pieces whose sizes follow speed and room.
fn uneven(
    shape: Shape,
    ducks: &[Room],
    order: &[usize],
    hints: &Hints,
    holders: &mut [Vec<Node>],
) -> Result<(), FlockError> {
    let units = f64::from(shape.units().unwrap_or(0));
    let shares = shares(ducks, units);
    let finest = u16::BITS - (shape.experts - 1).leading_zeros();
    let host = ducks.len();
    let mut best: Option<(f64, Vec<Vec<Node>>)> = None;
    for depth in 0..=finest {
        let mut given = vec![Vec::new(); ducks.len() + 1];
        let mut used = vec![0u32; ducks.len()];
        let (mut at, mut end, mut sum) = (0, shares[order[0]], 0.0);
        let mut rest = Vec::new();
        for atom in atoms(shape, depth) {
            let size = atom.unit_count(shape);
            // An atom goes where its middle lies.
            while at + 1 < order.len() && sum + f64::from(size) / 2.0 > end {
                at += 1;
                end += shares[order[at]];
            }
            sum += f64::from(size);
            let duck = order[at];
            if used[duck] + size <= ducks[duck].units {
                used[duck] += size;
                given[duck].push(atom);
            } else {
                rest.push(atom);
            }
        }
        let mut for_host = 0;
        for atom in rest {
            let size = atom.unit_count(shape);
            match order.iter().copied().find(|&duck| used[duck] + size <= ducks[duck].units) {
                Some(duck) => {
                    used[duck] += size;
                    given[duck].push(atom);
                }
                None => {
                    for_host += size;
                    given[host].push(atom);
                }
            }
        }
        if for_host > hints.host_units {
            continue;
        }
        for nodes in &mut given {
            nodes.sort_by_key(|n| n.order());
            *nodes = merged(shape, nodes);
        }
        let most = given.iter().map(Vec::len).max().unwrap_or(1).max(1);
        let pace = (0..ducks.len()).map(|duck| f64::from(used[duck]) / ducks[duck].speed.max(1e-3)).fold(0.0, f64::max);
        let cost = pace * (1.0 + 0.02 * (most - 1) as f64);
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, given));
        }
    }
    let Some((_, given)) = best else {
        let found = ducks.iter().map(|duck| duck.units).sum();
        return Err(FlockError::Memory { expected: units as u32, found, missing: hints.unit_bytes });
    };
    holders.clone_from_slice(&given);
    Ok(())
}

/// Units for each duck: in proportion to speed, but no more than fit; what one cannot hold the others share.
fn shares(ducks: &[Room], units: f64) -> Vec<f64> {
    let mut shares = vec![0.0; ducks.len()];
    let mut full = vec![false; ducks.len()];
    for _ in 0..ducks.len() {
        let fixed: f64 = (0..ducks.len()).filter(|&i| full[i]).map(|i| shares[i]).sum();
        let speed: f64 = (0..ducks.len()).filter(|&i| !full[i]).map(|i| ducks[i].speed).sum();
        let mut again = false;
        for i in (0..ducks.len()).filter(|&i| !full[i]).collect::<Vec<_>>() {
            shares[i] = (units - fixed).max(0.0) * ducks[i].speed / speed.max(1e-9);
            if shares[i] > f64::from(ducks[i].units) {
                shares[i] = f64::from(ducks[i].units);
                (full[i], again) = (true, true);
            }
        }
        if !again {
            break;
        }
    }
    shares
}

/// Fills memory left over: every duck's units, in some pieces, to others with room, of another port where possible.
fn replicas(shape: Shape, ducks: &[Room], plan: &Plan) -> Vec<Vec<Node>> {
    let room = |duck: &Room| duck.units - duck.units / SPARED;
    let mut spare: Vec<u32> = (0..ducks.len()).map(|d| room(&ducks[d]).saturating_sub(plan.units(d))).collect();
    let mut replicas = vec![Vec::new(); ducks.len()];
    // The duck's pieces go round, so that neighbours in the table do not all lean on one.
    let mut turn = 0;
    for owner in 0..ducks.len() {
        let piece = plan.units(owner).div_ceil(REPLICA_PIECES).max(1);
        let mut open: Vec<Node> = plan.nodes(owner).to_vec();
        while let Some(node) = open.pop() {
            let size = node.unit_count(shape);
            let fits = |duck: &usize| *duck != owner && spare[*duck] >= size;
            let best = (0..ducks.len()).map(|i| (i + turn) % ducks.len()).filter(fits).max_by_key(|&duck| {
                let far = ducks[duck].port != ducks[owner].port;
                (far, spare[duck])
            });
            match (best, node.children(shape)) {
                (best, Some((left, right))) if size > piece || best.is_none() => open.extend([right, left]),
                (Some(duck), _) => {
                    spare[duck] -= size;
                    replicas[duck].push(node);
                    turn += 1;
                }
                _ => {}
            }
        }
    }
    for nodes in &mut replicas {
        nodes.sort_by_key(|n| n.order());
    }
    replicas
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { slices: 4, experts: 8 };
    const HINTS: Hints = Hints { chosen: 2, host_units: 0, replicas: true, unit_bytes: 10 };

    fn rooms(units: &[u32]) -> Vec<Room> {
        units.iter().enumerate().map(|(i, &units)| Room { units, speed: 1.0, port: i / 2 }).collect()
    }

    fn check(assignment: &Assignment) {
        let mut holders = assignment.ducks.clone();
        holders.push(assignment.host.clone());
        Plan::from_nodes(SHAPE, holders).expect("every unit once");
    }

    #[test]
    fn equal_ducks_get_the_natural_plan_and_replicas_cover_any_one_of_them() {
        let placement = Placement::new(SHAPE, &rooms(&[18; 4]), &HINTS).expect("room");
        assert_eq!(placement.plan.units(4), 0);
        for duck in 0..4 {
            assert_eq!((placement.plan.units(duck), placement.plan.nodes(duck).len()), (8, 1));
            let held: u32 = placement.held(duck).iter().map(|n| n.unit_count(SHAPE)).sum();
            assert!(held <= 18);
            let mut able = [true; 4];
            able[duck] = false;
            let assignment = placement.assign(1, &able, &[0; 4], 8);
            check(&assignment);
            assert!(assignment.host.is_empty() && assignment.ducks[duck].is_empty(), "{assignment:?}");
            let most = assignment.ducks.iter().flatten().map(|n| n.unit_count(SHAPE)).sum::<u32>();
            assert_eq!(most, 32);
        }
    }

    #[test]
    fn a_whole_port_is_covered_by_the_other() {
        let placement = Placement::new(SHAPE, &rooms(&[18; 4]), &HINTS).expect("room");
        let assignment = placement.assign(1, &[false, false, true, true], &[0; 4], 8);
        check(&assignment);
        assert!(assignment.host.is_empty(), "{assignment:?}");
    }

    #[test]
    fn without_replicas_the_host_takes_over() {
        let placement = Placement::new(SHAPE, &rooms(&[8; 4]), &HINTS).expect("just enough");
        let assignment = placement.assign(1, &[true, false, true, false], &[0; 4], 8);
        check(&assignment);
        assert_eq!(assignment.host.iter().map(|n| n.unit_count(SHAPE)).sum::<u32>(), 16);
        let all = placement.assign(2, &[false; 4], &[0; 4], 8);
        assert_eq!(all.host, [SHAPE.root()]);
    }

    #[test]
    fn uneven_memory_is_used_and_too_little_is_refused_with_what_is_missing() {
        let placement = Placement::new(SHAPE, &rooms(&[3, 20, 9, 5]), &HINTS).expect("37 of 32");
        for (duck, most) in [3, 20, 9, 5].into_iter().enumerate() {
            assert!(placement.plan.units(duck) <= most, "{placement:?}");
        }
        check(&placement.assign(1, &[true; 4], &[0; 4], 64));
        let error = Placement::new(SHAPE, &rooms(&[3, 20, 4]), &HINTS).expect_err("27 of 32");
        assert!(matches!(error, FlockError::Memory { expected: 32, found: 27, missing: 50 }), "{error}");
        let helped =
            Placement::new(SHAPE, &rooms(&[3, 20, 4]), &Hints { host_units: 5, ..HINTS }).expect("with the host");
        assert_eq!(helped.plan.units(3), 5);
        assert!(matches!(Placement::new(SHAPE, &[], &HINTS), Err(FlockError::NoDucks)));
    }

    #[test]
    fn faster_ducks_get_more() {
        let ducks = [Room { units: 32, speed: 3.0, port: 0 }, Room { units: 32, speed: 1.0, port: 0 }];
        let placement = Placement::new(SHAPE, &ducks, &HINTS).expect("room");
        assert_eq!((placement.plan.units(0), placement.plan.units(1)), (24, 8));
    }

    #[test]
    fn a_slow_duck_sheds_no_more_than_asked_and_only_what_others_hold() {
        let placement = Placement::new(SHAPE, &rooms(&[18; 4]), &HINTS).expect("room");
        let units = |nodes: &[Node]| nodes.iter().map(|n| n.unit_count(SHAPE)).sum::<u32>();
        for shed in 0..=8 {
            let assignment = placement.assign(1, &[true; 4], &[0, shed, 0, 0], 64);
            check(&assignment);
            assert_eq!(units(&assignment.ducks[1]), 8 - shed, "{assignment:?}");
            assert!(assignment.host.is_empty());
        }
        let bare = Placement::new(SHAPE, &rooms(&[8; 4]), &HINTS).expect("no replicas");
        assert_eq!(units(&bare.assign(1, &[true; 4], &[0, 5, 0, 0], 64).ducks[1]), 8);
    }

    #[test]
    fn a_duck_gets_no_more_nodes_than_it_may() {
        let placement = Placement::new(SHAPE, &rooms(&[32; 4]), &HINTS).expect("room");
        for most in 1..4 {
            let assignment = placement.assign(1, &[true, false, false, true], &[3, 0, 0, 0], most);
            check(&assignment);
            assert!(assignment.ducks.iter().all(|nodes| nodes.len() <= most));
        }
    }

    #[test]
    fn substitutes_are_the_node_in_order() {
        let placement = Placement::new(SHAPE, &rooms(&[18; 4]), &HINTS).expect("room");
        let node = placement.plan.nodes(0)[0];
        for able in [[false, true, true, true], [false, false, false, true], [false; 4]] {
            let now = placement.assign(1, &able, &[0; 4], 8);
            let found = placement.substitutes(&[node], &able, &now).remove(0);
            let nodes: Vec<Node> = found.iter().map(|(_, n)| *n).collect();
            assert_eq!(merged(SHAPE, &nodes), [node]);
            assert!(found.iter().all(|(duck, _)| duck.is_none_or(|d| able[d])));
        }
    }
}
