//! Which nodes a duck computes under which plan version.

use crate::body::shorts;
use crate::frame::Frame;
use crate::limits::MAX_NODES;
use crate::list::Entry;
use crate::mark::mark;
use crate::message::{AssignCode, Assigned};

use super::{Live, Memory, PLANS, Session};

/// One plan version, as far as it concerns this duck.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub known: bool,
    pub version: u16,
    pub nodes: [u16; MAX_NODES],
    pub count: usize,
    /// Blocks below the nodes that are not resident.
    pub missing: u32,
}

impl Plan {
    pub const EMPTY: Plan = Plan { known: false, version: 0, nodes: [0; MAX_NODES], count: 0, missing: 0 };

    pub fn nodes(&self) -> &[u16] {
        &self.nodes[..self.count]
    }
}

/// Whether plan version `a` comes after `b`; they wrap.
pub(crate) fn later(a: u16, b: u16) -> bool {
    let ahead = a.wrapping_sub(b);
    ahead != 0 && ahead < 1 << 15
}

impl<M: Memory> Session<M> {
    pub(super) fn plan(&self, version: u16) -> Option<&Plan> {
        self.plans.get(usize::from(version) % PLANS).filter(|p| p.known && p.version == version)
    }

    pub(super) fn handle_assign(&mut self, live: &Live, frame: Frame<'_>) {
        let (version, count) = (frame.plan(), usize::from(frame.node()));
        let held = self.plans[usize::from(version) % PLANS];
        if held.known && later(held.version, version) {
            mark!("late_assign_does_not_replace_a_newer_plan");
            return;
        }
        let shape = live.limits.shape();
        let mut plan = Plan { known: true, version, count, ..Plan::EMPTY };
        let good = count <= usize::from(live.limits.nodes)
            && frame.payload().len() == 2 * count
            && shorts(frame.payload()).all(|n| shape.node(n).is_some());
        if !good {
            return self.reply_assigned(version, AssignCode::Refused, 0);
        }
        for (place, node) in plan.nodes.iter_mut().zip(shorts(frame.payload())) {
            *place = node;
        }
        if !(held.known && held.version == version && held.nodes() == plan.nodes()) {
            let list = self.list_bytes();
            let missing = |n: &u16| shape.node(*n).map_or(0, |n| list.missing(&live.limits, n, &self.residents));
            plan.missing = plan.nodes().iter().map(missing).fold(0, u32::saturating_add);
            self.plans[usize::from(version) % PLANS] = plan;
        }
        let missing = self.plan(version).map_or(0, |p| p.missing);
        self.reply_assigned(version, if missing == 0 { AssignCode::Active } else { AssignCode::Missing }, missing);
        self.retry_unplanned(live);
    }

    pub(super) fn reply_assigned(&mut self, version: u16, code: AssignCode, missing: u32) {
        self.replies.assigned = Some((version, Assigned { code: code as u8, reserved: [0; 3], missing }));
    }

    /// Block `index` came or went: plans that need it miss fewer or more.
    pub(super) fn plans_note(&mut self, live: &Live, entry: Entry, came: bool) {
        let shape = live.limits.shape();
        let Some(unit) = shape.node(entry.node).filter(|_| entry.layer < live.limits.layers) else { return };
        for plan in self.plans.iter_mut().filter(|p| p.known) {
            let uses = plan.nodes().iter().filter(|&&n| shape.node(n).is_some_and(|n| n.covers(unit))).count() as u32;
            plan.missing = if came { plan.missing.saturating_sub(uses) } else { plan.missing.saturating_add(uses) };
        }
    }
}
