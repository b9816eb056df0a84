//! Plan versions, as far as this duck must know them.

use crate::frame::{self, Frame, Header, Kind};
use crate::limits::MAX_NODES;
use crate::mark::mark;
use crate::message::{AssignCode, Assigned};
use crate::{Micros, duck::PLANS};

use super::step::StepError;
use super::{Event, Memory, PING_RETRY, Peer, Timer};

/// One plan version.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    known: bool,
    version: u16,
    nodes: [u16; MAX_NODES],
    count: usize,
    send: bool,
    answered: bool,
    /// An answer that the caller was not told.
    news: Option<Option<u32>>,
}

impl Plan {
    pub const EMPTY: Plan =
        Plan { known: false, version: 0, nodes: [0; MAX_NODES], count: 0, send: false, answered: false, news: None };
}

impl<M: Memory> Peer<M> {
    /// Tells the duck which nodes it computes under a plan version; a later call replaces them. Versions count up, and the last [`PLANS`]
    /// are known.
    ///
    /// # Errors
    /// The duck is not up, or there are too many nodes.
    pub fn assign(&mut self, now: Micros, version: u16, nodes: &[u16]) -> Result<(), StepError> {
        if !self.is_up() {
            return Err(StepError::NotUp);
        }
        let most = usize::from(self.limits.nodes);
        if nodes.len() > most {
            return Err(StepError::Nodes { expected: most, found: nodes.len() });
        }
        let mut plan = Plan { known: true, version, count: nodes.len(), send: true, ..Plan::EMPTY };
        plan.nodes[..nodes.len()].copy_from_slice(nodes);
        self.plans[usize::from(version) % PLANS] = plan;
        let soon = now + PING_RETRY;
        let ping = self.timers[Timer::Ping.index()].unwrap_or(soon);
        self.set(Timer::Ping, Some(ping.min(soon)));
        Ok(())
    }

    /// The nodes of a plan version.
    pub(super) fn plan_nodes(&self, version: u16) -> Option<&[u16]> {
        let plan = self.plans.get(usize::from(version) % PLANS)?;
        (plan.known && plan.version == version).then(|| &plan.nodes[..plan.count])
    }

    pub(super) fn handle_assigned(&mut self, frame: Frame<'_>) {
        let Some(assigned) = Assigned::parse(frame.payload()) else { return self.stats.frames_bad += 1 };
        let plan = &mut self.plans[usize::from(frame.plan()) % PLANS];
        if !plan.known || plan.version != frame.plan() {
            return;
        }
        match AssignCode::from_code(assigned.code) {
            Some(AssignCode::Unknown) => {
                mark!("a_plan_that_the_duck_lacks_is_sent_again");
                plan.send = true;
            }
            Some(AssignCode::Active | AssignCode::Missing) => {
                plan.answered = true;
                plan.news = Some(Some(assigned.missing));
            }
            Some(AssignCode::Refused) => {
                plan.answered = true;
                plan.news = Some(None);
            }
            None => self.stats.frames_bad += 1,
        }
    }

    /// Plans without an answer are sent again, with each question after the duck's health.
    pub(super) fn repeat_plans(&mut self) {
        for plan in self.plans.iter_mut().filter(|p| p.known && !p.answered) {
            mark!("an_unanswered_assign_is_repeated");
            plan.send = true;
        }
    }

    /// Whether an answer is still awaited.
    pub(super) fn awaits_plans(&self) -> bool {
        self.plans.iter().any(|p| p.known && !p.answered)
    }

    pub(super) fn next_assigned(&mut self) -> Option<Event> {
        let plan = self.plans.iter_mut().find(|p| p.known && p.news.is_some())?;
        Some(Event::Assigned { plan: plan.version, missing: plan.news.take()? })
    }

    pub(super) fn transmit_assign(&mut self, buf: &mut [u8]) -> Option<usize> {
        self.up?;
        let (crc, header) = (self.config.crc, self.header(Kind::Assign));
        let plan = self.plans.iter_mut().find(|p| p.known && p.send)?;
        plan.send = false;
        let header = Header { plan: plan.version, node: plan.count as u16, ..header };
        let mut raw = [0; 2 * MAX_NODES];
        for (out, node) in raw.as_chunks_mut::<2>().0.iter_mut().zip(&plan.nodes[..plan.count]) {
            *out = node.to_le_bytes();
        }
        frame::emit(buf, header, &[&raw[..2 * plan.count]], crc)
    }
}
