//! Steps of a domain: begun, landed, lost, published.

use std::sync::Arc;

use kernels::tree::Node;
use model::step::StepIo;
use wire::Micros;
use wire::duck::STEPS;
use wire::host::{Broadcast, Outcome, StepRequest};

use super::{BROADCAST_TRIAL, Domain, Waiting, Work};
use crate::landing::Landing;
use crate::plan::merged;
use crate::remote::active::Active;
use crate::remote::input::Encoder;
use crate::remote::message::Report;
use crate::remote::placement::Assignment;
use crate::remote::seat::Seat;

impl Domain {
    /// Begins what waits, as far as slots are free: a duck keeps a step's slot until it is done.
    pub(super) fn begin_waiting(&mut self, now: Micros) {
        while !self.waiting.is_empty() {
            let oldest = self.steps.borrow().active.iter().filter(|s| !s.is_closed()).map(|s| s.seq).min_by(|a, b| {
                if wire::newer(*a, *b) { std::cmp::Ordering::Greater } else { std::cmp::Ordering::Less }
            });
            if oldest.is_some_and(|oldest| self.next_seq.wrapping_sub(oldest) as usize >= STEPS) {
                return;
            }
            let Some(Waiting { id, io, work }) = self.waiting.pop_front() else { return };
            match work {
                Work::Step(assignment) => self.begin_step(now, id, io, &assignment),
                Work::Favour { home, seat, nodes } => self.begin_favour(now, id, io, home, seat, nodes),
            }
        }
    }

    /// A place for a step.
    pub(super) fn active(&mut self, now: Micros, id: u64, io: &Arc<StepIo>, home: Option<usize>) -> Active {
        let seq = self.next_seq;
        self.next_seq = seq.wrapping_add(1);
        let chunk = self.limits.map_or(self.hidden, |l| usize::from(l.step_chunk) / 4);
        let mut step = self.spare.pop().unwrap_or_else(|| Active {
            id,
            seq,
            io: None,
            home,
            input: Vec::new(),
            landing: Landing::new(self.shape, self.hidden, chunk, false),
            owners: Vec::new(),
            open: Vec::new(),
            done: false,
            started: now,
            lanes: 0,
        });
        (step.id, step.seq, step.home, step.done, step.started) = (id, seq, home, false, now);
        step.lanes = io.input.get().map_or(0, |input| input.lanes);
        step.io = Some(Arc::clone(io));
        step.open.clear();
        step.open.resize(self.seats.len(), false);
        step
    }

    pub(super) fn begin_step(&mut self, now: Micros, id: u64, io: Arc<StepIo>, assignment: &Assignment) {
        self.prepare(assignment);
        let (Some(limits), Some(stepped)) = (self.limits, io.input.get()) else { return };
        let mut step = self.active(now, id, &io, None);
        let time_limit = self.time_limit(stepped.lanes);
        let mut input = Encoder::new(&limits, stepped, &[], time_limit, &mut step.input);
        let (seq, plan, lanes) = (step.seq, assignment.version, stepped.lanes as u16);
        // Before anything else: what follows here is done long before the input has arrived anywhere.
        if self.seats.iter().zip(&self.part.numbers).any(|(seat, numbers)| !numbers.is_empty() && seat.hears_all()) {
            let broadcast = Broadcast::new(&limits, self.config.epoch, seq, plan, lanes, self.config.crc);
            self.broadcast(broadcast, &mut input);
        }
        input.finish();
        step.landing.begin(&self.part.nodes, &self.part.tops, stepped.lanes, &stepped.experts);
        step.owners.clone_from(&self.part.owners);
        for (at, seat) in self.seats.iter_mut().enumerate() {
            let numbers = &self.part.numbers[at];
            let late = seat.late;
            let Some(peer) = seat.peer.as_mut().filter(|peer| peer.is_up() && !late) else { continue };
            if seat.version != Some(plan) && peer.assign(now, plan, numbers).is_ok() {
                seat.version = Some(plan);
            }
            if numbers.is_empty() || seat.version != Some(plan) {
                continue;
            }
            let request = StepRequest {
                seq,
                plan,
                lanes,
                experts: &stepped.experts,
                named: &[],
                broadcast: !seat.unicast,
                time_limit,
            };
            match peer.begin_step(now, request) {
                Ok(()) => step.open[at] = true,
                Err(error) => tracing::debug!(duck = %seat.name, %error, "a step is not begun"),
            }
        }
        let number = |node: Node| node.index(self.shape);
        let lost: Vec<Node> =
            (0..self.seats.len()).filter(|&at| !step.open[at]).flat_map(|at| step.lost(at, number)).collect();
        self.steps.borrow_mut().active.push(step);
        if !lost.is_empty() {
            self.report(Report::Lost { domain: self.index, id, nodes: lost });
        }
    }

    pub(super) fn begin_favour(
        &mut self,
        now: Micros,
        id: u64,
        io: Arc<StepIo>,
        home: usize,
        at: usize,
        nodes: Vec<Node>,
    ) {
        let (Some(limits), Some(stepped)) = (self.limits, io.input.get()) else { return };
        let mut step = self.active(now, id, &io, Some(home));
        step.landing.begin(&nodes, &nodes, stepped.lanes, &stepped.experts);
        let numbers: Vec<u16> = nodes.iter().map(|node| node.index(self.shape)).collect();
        step.owners = numbers.iter().map(|&number| (number, at)).collect();
        let time_limit = self.time_limit(stepped.lanes);
        Encoder::new(&limits, stepped, &numbers, time_limit, &mut step.input).finish();
        let request = StepRequest {
            seq: step.seq,
            plan: self.part.version.unwrap_or(0),
            lanes: stepped.lanes as u16,
            experts: &stepped.experts,
            named: &numbers,
            broadcast: false,
            time_limit,
        };
        let peer = self.seats.get_mut(at).filter(|seat| !seat.late).and_then(|seat| seat.peer.as_mut());
        match peer.map(|peer| peer.begin_step(now, request)) {
            Some(Ok(())) => {
                step.open[at] = true;
                self.steps.borrow_mut().active.push(step);
            }
            _ => {
                step.io = None;
                self.spare.push(step);
                self.report(Report::Declined { id, home, nodes });
            }
        }
    }

    /// Microseconds after which a duck gives a step up: far above what the slowest has ever taken.
    pub(super) fn time_limit(&self, lanes: usize) -> u32 {
        let work = self.part.owners.len().max(1) * lanes * usize::from(self.config.limits.chosen);
        let expected = |seat: &Seat| seat.peer.as_ref()?.pace().expected(work as u32);
        let slowest = self.seats.iter().filter_map(expected).fold(0.0, f64::max);
        (20.0 * slowest + 30e6).min(f64::from(u32::MAX)) as u32
    }

    /// This domain's part of an assignment.
    pub(super) fn prepare(&mut self, assignment: &Assignment) {
        if self.part.version == Some(assignment.version) {
            return;
        }
        let shape = self.shape;
        let part = &mut self.part;
        part.version = Some(assignment.version);
        part.nodes.clear();
        part.owners.clear();
        part.numbers.clear();
        for (at, seat) in self.seats.iter().enumerate() {
            let nodes = &assignment.ducks[seat.duck];
            part.nodes.extend_from_slice(nodes);
            part.numbers.push(nodes.iter().map(|node| node.index(shape)).collect());
            part.owners.extend(part.numbers[at].iter().map(|&number| (number, at)));
        }
        part.nodes.sort_by_key(|n| n.order());
        part.tops = merged(shape, &part.nodes);
    }

    pub(super) fn step_done(&mut self, now: Micros, at: usize, seq: u32, outcome: Outcome, micros: Micros) {
        if let Outcome::Ok = outcome {
            if let Some(step) = self.steps.borrow_mut().by_seq(seq) {
                step.open[at] = false;
            }
            let name = &self.name;
            let seat = &mut self.seats[at];
            seat.sample.steps += 1;
            seat.sample.micros += micros;
            seat.smooth(micros);
            let repeats = seat.peer.as_ref().map_or(0, |peer| peer.stats().input_repeats);
            if seat.trial(repeats, BROADCAST_TRIAL) {
                tracing::warn!(duck = %seat.name, port = %name, "broadcasts do not reach it: its inputs go to it alone from now on");
            }
            return;
        }
        tracing::debug!(duck = %self.seats[at].name, ?outcome, "a step failed");
        let reason = match outcome {
            Outcome::Failed(verdict) => {
                let code = wire::message::VerdictCode::from_code(verdict.code);
                format!("a step ended with {}", code.map_or("?".into(), |code| format!("{code:?}")))
            }
            _ => "it counts other results than the host".into(),
        };
        self.report(Report::Unfit { domain: self.index, seat: at, reason });
        self.lose(at, None);
        // Whatever it believes now may be wrong, by forged frames for example; a fresh session forgets it and keeps the blocks.
        let seat = &mut self.seats[at];
        (seat.peer, seat.version) = (None, None);
        self.open(now, at);
    }

    /// A seat computes a step, or all, no more.
    pub(super) fn lose(&mut self, at: usize, seq: Option<u32>) {
        let mut lost = Vec::new();
        for step in &mut self.steps.borrow_mut().active {
            if seq.is_some_and(|seq| seq != step.seq) || !std::mem::take(&mut step.open[at]) || step.done {
                continue;
            }
            let nodes = step.lost(at, |node| node.index(self.shape));
            match step.home {
                Some(home) => {
                    step.done = true;
                    lost.push(Report::Declined { id: step.id, home, nodes });
                }
                None if nodes.is_empty() => {}
                None => lost.push(Report::Lost { domain: self.index, id: step.id, nodes }),
            }
        }
        lost.into_iter().for_each(|report| self.report(report));
    }

    /// Publishes what is complete and forgets what nobody needs. Returns whether there was something.
    pub(super) fn settle(&mut self) -> bool {
        let mut any = false;
        let mut computed = Vec::new();
        let mut steps = self.steps.borrow_mut();
        for step in steps.active.iter_mut().filter(|step| !step.done && step.landing.is_complete()) {
            any = true;
            step.done = true;
            match step.home {
                None => {
                    let slot = self.index;
                    let published = step.io.take().is_some_and(|io| {
                        io.sums.get(slot).is_some_and(|sums| sums.publish(|out| step.landing.publish(out)))
                    });
                    if !published {
                        tracing::error!(port = %self.name, step = step.id, "a step was summed twice");
                    }
                }
                Some(home) => {
                    step.io = None;
                    for &(number, _) in &step.owners {
                        let (Some(node), Some((present, values))) =
                            (self.shape.node(number), step.landing.node_values(number))
                        else {
                            continue;
                        };
                        computed.push(Report::Computed { id: step.id, home, node, present, values });
                    }
                }
            }
        }
        let mut i = 0;
        while i < steps.active.len() {
            if steps.active[i].done && steps.active[i].is_closed() {
                let mut step = steps.active.remove(i);
                step.io = None;
                self.spare.push(step);
            } else {
                i += 1;
            }
        }
        drop(steps);
        if any {
            self.signal.notify();
        }
        computed.into_iter().for_each(|report| self.report(report));
        any
    }

    pub(super) fn abandon(&mut self) {
        self.waiting.clear();
        let mut steps = self.steps.borrow_mut();
        for mut step in steps.active.drain(..) {
            for (at, seat) in self.seats.iter_mut().enumerate() {
                if let (true, Some(peer)) = (step.open[at], seat.peer.as_mut()) {
                    peer.abandon_step(step.seq);
                }
            }
            step.io = None;
            self.spare.push(step);
        }
    }
}
