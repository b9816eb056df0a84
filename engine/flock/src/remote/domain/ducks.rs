//! The ducks of a domain: found, opened, late, replaced, and what their sessions tell.

use std::rc::Rc;
use std::sync::Arc;

use link::ethernet;
use wire::Micros;
use wire::frame::Kind;
use wire::frozen::FEATURE_ISOLATED;
use wire::host::{Config, Event, Peer, Why};

use super::{Domain, HEARD, LATE_MOST, LATE_PART, OVERDUE_LEAST, OVERDUE_UNKNOWN, parse_announce};
use crate::remote::active::{Active, SeatMemory};
use crate::remote::message::Report;
use crate::remote::seat::Identified;

impl Domain {
    pub(super) fn looks_for_ducks(&self) -> bool {
        self.seats.iter().any(|seat| seat.announce.is_none())
    }

    /// Makes a seat's peer, once both the duck and what it is to hold are known.
    pub(super) fn open(&mut self, now: Micros, at: usize) {
        let (Some(limits), Some(list)) = (self.limits, self.lists.get(at)) else { return };
        let seat = &mut self.seats[at];
        let (Some(announce), true) = (&seat.announce, seat.peer.is_none()) else { return };
        let (mut list, mut config) = (Arc::clone(list), self.config.clone());
        if announce.features & FEATURE_ISOLATED != 0 {
            let Some(program) = &self.program else {
                if !std::mem::replace(&mut seat.unequipped, true) {
                    tracing::warn!(duck = %seat.name, "it has no kernels of its own and none can be sent: name their program as `kernels` in the pond's description, and sign it by `duckpond sign`");
                }
                return;
            };
            list = Arc::new(list.with_program(program));
            (config.kernels, config.kernels_signature) = program.named();
        }
        let memory = SeatMemory { list, slices: Arc::clone(&self.slices), steps: Rc::clone(&self.steps) };
        // Another tag for each open of a duck by this process.
        let tag = self.config.tag.wrapping_add(seat.opened.wrapping_mul(256));
        let load_rate = load_rate(announce.link);
        let config = Config { duck: announce.id, tag, limits, load_rate, ..config };
        seat.opened = seat.opened.wrapping_add(1);
        match Peer::new(now, config, memory) {
            Ok(peer) => seat.peer = Some(Box::new(peer)),
            Err(error) => tracing::error!(duck = %seat.name, %error, "no session can be opened"),
        }
    }

    pub(super) fn receive(&mut self, now: Micros) -> bool {
        let Domain { link, boot, started, seats, index, config, reports, signal, heard, .. } = self;
        let mut found = Vec::new();
        let count = link.rx(&mut |bytes| {
            if boot.as_mut().is_some_and(|service| service.handle(started.elapsed(), bytes)) {
                return;
            }
            let Some((from, frame)) = ethernet::open(bytes, wire::ETHERTYPE) else { return };
            if frame.get(3) == Some(&(Kind::Announce as u8))
                && let Some(announce) = parse_announce(frame, config.crc)
            {
                let seat = seats.iter().position(|s| s.is_meant(from, &announce));
                let news = match seat {
                    Some(at) => {
                        let identified = seats[at].identify(from, &announce);
                        if identified != Identified::Ignored {
                            // An address is one duck's.
                            let others = seats.iter_mut().enumerate().filter(|(other, _)| *other != at);
                            others.filter(|(_, s)| s.known == Some(from)).for_each(|(_, s)| s.known = None);
                            found.push((at, identified));
                        }
                        identified == Identified::New
                    }
                    // Whoever nobody holds announces itself for ever; once is enough.
                    None => {
                        let who = (from, announce.id);
                        let fresh = !heard.contains(&who) && heard.len() < HEARD;
                        if fresh {
                            heard.push(who);
                        }
                        fresh
                    }
                };
                if news {
                    let announce = Box::new(announce);
                    let _ = reports.send(Report::Announced { domain: *index, seat, mac: from, announce });
                    signal.notify();
                }
            }
            let known = seats.iter_mut().find(|seat| seat.known == Some(from));
            if let Some(peer) = known.and_then(|seat| seat.peer.as_mut()) {
                peer.handle_frame(now, frame);
            }
        });
        for (at, identified) in found {
            if identified == Identified::Replaced {
                self.replace(now, at);
            }
            self.open(now, at);
        }
        count > 0
    }

    /// Another machine sits in this place now: what the one before had under way is lost.
    pub(super) fn replace(&mut self, now: Micros, at: usize) {
        tracing::warn!(duck = %self.seats[at].name, "another machine answers in its place");
        let seat = &mut self.seats[at];
        (seat.peer, seat.version, seat.late, seat.holds) = (None, None, false, (0, 0));
        self.report(Report::Down { domain: self.index, seat: at, why: Why::Restarted });
        self.lose(at, None);
        self.share(now);
    }

    /// Others take over from a duck that does not answer long before it counts as gone; if it answers after all, it is given work again.
    pub(super) fn look_for_late(&mut self, now: Micros) {
        let least = (self.config.silent_after / LATE_PART).min(LATE_MOST);
        for at in 0..self.seats.len() {
            let seat = &mut self.seats[at];
            let Some(peer) = seat.peer.as_mut().filter(|peer| peer.is_up()) else {
                seat.late = false;
                continue;
            };
            let quiet = peer.unanswered_since().map(|since| now.saturating_sub(since));
            match (seat.late, quiet) {
                // A duck on a busy machine is irregular, and known to be.
                (false, Some(quiet)) if quiet >= least.max(2 * peer.pace().deadline(1)) => {
                    seat.late = true;
                    let open: Vec<u32> =
                        self.steps.borrow().active.iter().filter(|s| s.open[at]).map(|s| s.seq).collect();
                    open.iter().for_each(|&seq| peer.abandon_step(seq));
                    // First, so that nobody asks it again for what it has lost.
                    self.report(Report::Late { domain: self.index, seat: at });
                    self.lose(at, None);
                }
                (true, None) => {
                    seat.late = false;
                    let (resident, blocks) = seat.holds;
                    self.report(Report::Holds { domain: self.index, seat: at, resident, blocks });
                }
                _ => {}
            }
            self.look_for_overdue(now, at);
        }
    }

    /// A duck that answers, but does not get on, is no better than one that is silent.
    pub(super) fn look_for_overdue(&mut self, now: Micros, at: usize) {
        let Some(peer) = self.seats[at].peer.as_mut() else { return };
        let limit = match peer.pace().line() {
            Some(_) => OVERDUE_LEAST,
            None => OVERDUE_UNKNOWN,
        };
        let late = |step: &&Active| {
            let open = now.saturating_sub(step.started);
            // On every turn of the thread: the pace is asked only about steps that may be late.
            step.open[at] && !step.done && open > limit && {
                let work = step.owners.len() * step.lanes * usize::from(self.config.limits.chosen);
                open > 8 * peer.pace().deadline(work as u32)
            }
        };
        let overdue: Vec<u32> = self.steps.borrow().active.iter().filter(late).map(|step| step.seq).collect();
        if overdue.is_empty() {
            return;
        }
        overdue.iter().for_each(|&seq| peer.abandon_step(seq));
        let reason = "it answers, but does not finish its steps: check its cable, port, cooling and load".into();
        self.report(Report::Unfit { domain: self.index, seat: at, reason });
        overdue.iter().for_each(|&seq| self.lose(at, Some(seq)));
    }

    pub(super) fn events(&mut self, now: Micros) -> bool {
        let mut any = false;
        for at in 0..self.seats.len() {
            while let Some(event) = self.seats[at].peer.as_mut().and_then(|peer| peer.poll_event()) {
                any = true;
                self.event(now, at, event);
            }
        }
        any
    }

    pub(super) fn event(&mut self, now: Micros, at: usize, event: Event) {
        let (domain, seat) = (self.index, at);
        match event {
            Event::StepDone { seq, outcome, micros } => self.step_done(now, at, seq, outcome, micros),
            Event::Joined { resident, blocks } | Event::Rejoined { resident, blocks } => {
                // It knows no plan.
                self.seats[at].version = None;
                self.seats[at].holds = (resident, blocks);
                self.seats[at].refused = None;
                self.share(now);
                self.report(Report::Holds { domain, seat, resident, blocks });
            }
            Event::Loaded { resident, blocks } => {
                let before = std::mem::replace(&mut self.seats[at].holds, (resident, blocks));
                if resident == blocks || resident < before.0 {
                    self.share(now);
                    self.report(Report::Holds { domain, seat, resident, blocks });
                }
            }
            Event::Assigned { plan, missing } => {
                if missing != Some(0) && self.seats[at].version == Some(plan) {
                    let reason = missing.map_or("a node of another tree".into(), |m| format!("{m} blocks are missing"));
                    self.report(Report::Unfit { domain, seat, reason });
                }
            }
            Event::Silent { why } => {
                self.seats[at].version = None;
                self.share(now);
                self.report(Report::Down { domain, seat, why });
                self.lose(at, None);
            }
            Event::Refused(refusal) => {
                // It is asked again every second; what is new is worth a word.
                let kind = std::mem::discriminant(&refusal);
                if self.seats[at].refused.replace(kind) != Some(kind) {
                    self.report(Report::Refused { domain, seat, refusal });
                }
            }
            Event::Status => {}
            Event::Log(line) => {
                // Frames can be forged, and a terminal obeys control characters.
                let text: String = line.text().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
                let (duck, lost) = (&self.seats[at].name, line.lost);
                match line.level {
                    0 => tracing::error!(%duck, lost, "{text}"),
                    1 => tracing::warn!(%duck, lost, "{text}"),
                    2 => tracing::info!(%duck, lost, "{text}"),
                    _ => tracing::debug!(%duck, lost, "{text}"),
                }
            }
        }
    }
}

/// Bytes in a millisecond that a duck's link takes, less what Ethernet and steps need; 0 for a link of unknown speed.
fn load_rate(mbits: u16) -> u32 {
    u32::from(mbits) * 125 * 92 / 100
}
