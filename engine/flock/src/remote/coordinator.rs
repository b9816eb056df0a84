//! What the coordinator makes of reports: who is there, who can be given work, and who computes what from now on.

use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use link::Mac;
use wire::frozen::Announce;
use wire::host::{Refusal, Why};

use super::balance::{Sample, WINDOW};
use super::message::{Command, Report};
use super::status::{DuckState, Stranger, identity_name};
use super::{FORGIVEN, Handle, LATE, REST_MOST, Remote, UNFIT};
use crate::FlockError;
use crate::local::Local;
use crate::plan::units_below;

impl Remote {
    /// Handles every report. Returns whether there was one.
    ///
    /// # Errors
    /// A domain has ended while steps were under way: their sums are lost. Once these are abandoned, everything goes on without its ducks.
    pub(super) fn drain(&mut self) -> Result<bool, FlockError> {
        let mut any = false;
        loop {
            match self.reports.try_recv() {
                Ok(report) => self.on_report(report)?,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => break,
            }
            any = true;
        }
        self.forgive();
        let ended = |handle: &Handle| handle.thread.as_ref().is_some_and(JoinHandle::is_finished);
        while let Some(domain) = self.domains.iter().position(ended) {
            self.ended(domain);
            any = true;
            if !self.steps.is_empty() {
                return Err(FlockError::DomainEnded { port: self.domains[domain].name.clone() });
            }
        }
        Ok(any)
    }

    /// A domain's thread has ended, which is a fault of this program. Its ducks are lost until the engine is started again; others and the host
    /// compute for them.
    fn ended(&mut self, domain: usize) {
        let handle = &mut self.domains[domain];
        // It has panicked, and has said so itself.
        let _ = handle.thread.take().map(JoinHandle::join);
        tracing::error!(port = %handle.name, "the port has stopped working; its ducks are lost until this program is started again");
        self.view.told().ended[domain] = true;
        for at in 0..self.ducks.len() {
            if self.ducks[at].spec.port == domain {
                self.ducks[at].unfit_until = None;
                self.enter(at, DuckState::Silent, String::new());
            }
        }
        self.stale = true;
    }

    pub(super) fn on_report(&mut self, report: Report) -> Result<(), FlockError> {
        match report {
            Report::Announced { domain, seat, mac, announce } => self.announced(domain, seat, mac, &announce),
            Report::Holds { domain, seat, resident, blocks } => {
                if let Some(at) = self.duck_at(domain, seat) {
                    let was = self.ducks[at].state;
                    let state = if resident == blocks { DuckState::Ready } else { DuckState::Loading };
                    let waits = self.ducks[at].unfit_until.is_some_and(|until| until > Instant::now());
                    if state == DuckState::Ready && waits {
                        self.enter(at, DuckState::Unfit, "it was late or failed a moment ago".into());
                    } else {
                        self.enter(at, state, String::new());
                    }
                    if was == DuckState::Silent || was == DuckState::Absent {
                        tracing::info!(duck = %self.ducks[at].spec.name, resident, blocks, "the duck is back");
                        self.balance.forget(at);
                    }
                }
            }
            Report::Late { domain, seat } => {
                if let Some(at) = self.duck_at(domain, seat) {
                    tracing::debug!(duck = %self.ducks[at].spec.name, "the duck is late; others take over");
                    self.rest(at, LATE);
                    self.enter(at, DuckState::Late, String::new());
                }
            }
            Report::Down { domain, seat, why } => {
                if let Some(at) = self.duck_at(domain, seat) {
                    let note = match why {
                        Why::Unanswered => "answers nothing",
                        Why::Restarted => "has started afresh",
                        Why::Stuck => "does not end a step",
                        Why::List => "refuses its list of blocks",
                    };
                    tracing::warn!(duck = %self.ducks[at].spec.name, "the duck {note}; others take over");
                    self.enter(at, DuckState::Silent, note.into());
                }
            }
            Report::Refused { domain, seat, refusal } => {
                if let Some(at) = self.duck_at(domain, seat) {
                    let note = refusal_note(refusal);
                    let known = self.view.told().out[at].as_ref().is_some_and(|(_, before)| *before == note);
                    if !known {
                        tracing::warn!(duck = %self.ducks[at].spec.name, "{note}");
                    }
                    self.enter(at, DuckState::Refused, note);
                }
            }
            Report::Unfit { domain, seat, reason } => {
                if let Some(at) = self.duck_at(domain, seat) {
                    let rest = self.rest(at, UNFIT);
                    tracing::warn!(duck = %self.ducks[at].spec.name, "left out for {:.1} s: {reason}", rest.as_secs_f64());
                    self.enter(at, DuckState::Unfit, reason);
                }
            }
            Report::Lost { domain, id, nodes } => self.take_over(id, domain, nodes)?,
            Report::Declined { id, home, nodes } => {
                self.take_over(id, home, nodes)?;
            }
            Report::Computed { id, home, node, present, values } => {
                self.send(home, Command::Land { id, node, present, values })?;
            }
        }
        Ok(())
    }

    pub(super) fn announced(&mut self, domain: usize, seat: Option<usize>, mac: Mac, announce: &Announce) {
        let name = identity_name(&announce.id);
        if let Some(at) = seat.and_then(|seat| self.duck_at(domain, seat)) {
            self.ducks[at].memory = Some(announce.memory);
            if self.ducks[at].state == DuckState::Absent {
                self.enter(at, DuckState::Opening, String::new());
            }
            return;
        }
        let port = self.domains[domain].name.clone();
        if self.view.told().strangers.iter().any(|s| s.mac == mac && s.port == port) {
            return;
        }
        let row = self.ducks.iter().find(|duck| duck.spec.name == name || duck.spec.mac == Some(mac));
        let expected_on = row.map(|duck| self.domains[duck.spec.port].name.clone());
        match &expected_on {
            Some(other) => tracing::warn!(duck = %name, %port, "found on another port than configured ({other})"),
            None => {
                tracing::info!(duck = %name, %port, "heard of a duck that is in no row; `duckpond ducks adopt` adds it")
            }
        }
        let stranger = Stranger { name, port, mac, memory: announce.memory, link: announce.link.into(), expected_on };
        self.view.told().strangers.push(stranger);
    }

    pub(super) fn enter(&mut self, at: usize, state: DuckState, note: String) {
        let duck = &mut self.ducks[at];
        self.stale |= (duck.state == DuckState::Ready) != (state == DuckState::Ready);
        duck.state = state;
        let left_out = matches!(state, DuckState::Refused | DuckState::Unfit | DuckState::Late);
        self.view.told().out[at] = left_out.then_some((state, note));
    }

    /// Ducks that were left out for long enough get another chance.
    fn forgive(&mut self) {
        for at in 0..self.ducks.len() {
            if self.ducks[at].unfit_until.is_some_and(|until| until <= Instant::now()) {
                self.ducks[at].unfit_until = None;
                if self.ducks[at].state == DuckState::Unfit {
                    self.enter(at, DuckState::Ready, String::new());
                }
            }
        }
    }

    /// Leaves a duck out for a while, longer each time that it fails again soon.
    pub(super) fn rest(&mut self, at: usize, least: Duration) -> Duration {
        let duck = &mut self.ducks[at];
        let now = Instant::now();
        if duck.hiccup.is_none_or(|last| now.duration_since(last) > FORGIVEN) {
            duck.hiccups = 0;
        }
        let rest = (least * (1 << duck.hiccups.min(10))).min(REST_MOST);
        duck.hiccups += 1;
        (duck.hiccup, duck.unfit_until) = (Some(now), Some(now + rest));
        rest
    }

    /// Which ducks can be given work.
    pub(super) fn able(&self) -> Vec<bool> {
        self.ducks.iter().map(|duck| duck.state == DuckState::Ready).collect()
    }

    /// Who computes what from now on.
    pub(super) fn assign(&mut self) -> Result<(), FlockError> {
        self.stale = false;
        // Steps that wait for the host are of the assignment before.
        while self.local.poll()? {}
        let version = self.assignment.version.wrapping_add(1);
        let most = self.limits.nodes.into();
        let assignment = self.placement.assign(version, &self.able(), self.balance.shed(), most);
        let shape = self.experts.shape;
        for duck in 0..self.ducks.len() {
            // Nobody may be there to take what it should give up.
            let given_up = self.placement.plan.units(duck).saturating_sub(units_below(shape, &assignment.ducks[duck]));
            self.balance.limit(duck, given_up);
        }
        if self.assignment.version > 0
            && (&assignment.ducks, &assignment.host) == (&self.assignment.ducks, &self.assignment.host)
        {
            return Ok(());
        }
        if assignment.host != self.assignment.host {
            self.local = Local::new(&self.experts, self.domains.len(), std::iter::once(&assignment.host[..]));
        }
        self.assignment = Arc::new(assignment);
        self.tell();
        Ok(())
    }

    /// Lets others know of a new assignment.
    pub(super) fn tell(&self) {
        let shape = self.experts.shape;
        let mut told = self.view.told();
        told.units = (0..self.ducks.len()).map(|duck| self.placement.plan.units(duck)).collect();
        told.active = self.assignment.ducks.iter().map(|nodes| units_below(shape, nodes)).collect();
        told.host_units = units_below(shape, &self.assignment.host);
        told.plan = self.assignment.version;
        told.plans += 1;
    }

    /// Every now and then: slow ducks give up units.
    pub(super) fn look(&mut self) {
        self.steps_since_look += 1;
        if self.steps_since_look < WINDOW {
            return;
        }
        self.steps_since_look = 0;
        let shape = self.experts.shape;
        let mut samples = Vec::new();
        for at in 0..self.ducks.len() {
            let now = self.view.shared(at, |shared| shared.sample);
            let before = std::mem::replace(&mut self.ducks[at].sample, now);
            samples.push(Sample { steps: now.steps - before.steps, micros: now.micros - before.micros });
        }
        let units: Vec<u32> = self.assignment.ducks.iter().map(|nodes| units_below(shape, nodes)).collect();
        if self.balance.look(&samples, &units) {
            tracing::debug!(shed = ?self.balance.shed(), "units by which ducks are to be relieved");
            self.stale = true;
        }
    }
}

/// Why a duck does not take the session, and what to do.
fn refusal_note(refusal: Refusal) -> String {
    match refusal {
        Refusal::Leased { left } => {
            format!("another host holds it for {} s yet: stop that one, or wait", left.div_ceil(1000))
        }
        Refusal::BadSignature => "it knows another key: give it this pond's public key".into(),
        Refusal::Limits => {
            "its buffers are too small for this model's steps: use fewer lanes, or give it more memory".into()
        }
        Refusal::Kernels => "it has other kernels than this host: update it".into(),
        Refusal::Path { found: 0, .. } => "it announces itself, but answers no probe: check its cable and port".into(),
        Refusal::Path { found, expected } => {
            format!(
                "frames of {expected} bytes do not reach it ({found} do): check the MTU of its port, cable and switch"
            )
        }
        Refusal::List => "it cannot hold what it was given: check its memory".into(),
    }
}
