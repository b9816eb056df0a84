//! Steps as the host drives them: input out, results in, and questions when they are late.

use core::fmt;

use crate::Micros;
use crate::bits::Bits;
use crate::body::Layout;
use crate::crc::Crc;
use crate::duck::STEPS;
use crate::duck::step::{Fragments, Inputs, owed};
use crate::frame::{self, Frame, Header, Kind};
use crate::limits::{Limits, MAX_NODES, RESULT_FRAGMENTS};
use crate::mark::mark;
use crate::message::{Verdict, VerdictCode};

use super::{ASK_FIRST, ASK_MOST, ASK_SOON, Event, Memory, Outcome, Peer, Phase, Piece, STUCK_GRACE, Timer, Why};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Active,
    Done(Outcome),
}

/// One slot: step `seq` lives in slot `seq mod STEPS`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    state: State,
    seq: u32,
    plan: u16,
    lanes: u16,
    named: u16,
    nodes: [u16; MAX_NODES],
    count: usize,
    time_limit: u32,
    to_send: Inputs,
    missing: Fragments,
    vectors: u32,
    verdict: Option<Verdict>,
    ask: bool,
    asks: u32,
    work: u32,
    started: Micros,
    micros: Micros,
}

impl Step {
    pub const EMPTY: Step = Step {
        state: State::Idle,
        seq: 0,
        plan: 0,
        lanes: 0,
        named: 0,
        nodes: [0; MAX_NODES],
        count: 0,
        time_limit: 0,
        to_send: Bits::EMPTY,
        missing: Bits::EMPTY,
        vectors: 0,
        verdict: None,
        ask: false,
        asks: 0,
        work: 0,
        started: 0,
        micros: 0,
    };

    /// The duck is gone; what ended before is still told.
    pub fn abandon(&mut self) {
        if self.state == State::Active {
            self.state = State::Idle;
        }
    }
}

/// A step that is not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepError {
    /// The duck is not up, or the caller has not been told so.
    NotUp,
    /// The step that used this number's slot has not ended, or its end was not told.
    Busy {
        /// That step.
        seq: u32,
    },
    /// A plan version that this duck was not assigned.
    Plan {
        /// Version.
        found: u16,
    },
    /// Too many nodes.
    Nodes {
        /// Most.
        expected: usize,
        /// Named.
        found: usize,
    },
    /// No lanes, too many, or another number of expert ids than lanes times chosen.
    Experts {
        /// Ids for the lanes.
        expected: usize,
        /// Ids given.
        found: usize,
    },
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            StepError::NotUp => write!(f, "duck is not up: wait until it has joined"),
            StepError::Busy { seq } => {
                write!(f, "step {seq} has not ended, and at most {STEPS} may be outstanding: poll its end first")
            }
            StepError::Plan { found } => write!(f, "plan version {found} was not assigned to this duck"),
            StepError::Nodes { expected, found } => write!(f, "nodes: expected at most {expected}, found {found}"),
            StepError::Experts { expected, found } => {
                write!(
                    f,
                    "expert ids: expected {expected} for at least one lane and at most the session's, found {found}"
                )
            }
        }
    }
}

impl core::error::Error for StepError {}

/// A step for one duck.
#[derive(Clone, Copy, Debug)]
pub struct StepRequest<'a> {
    /// Its number: counts up by one from step to step of a domain, and wraps.
    pub seq: u32,
    /// Version of the plan under which the duck computes its nodes.
    pub plan: u16,
    /// Number of lanes.
    pub lanes: u16,
    /// `[lanes, chosen]`.
    pub experts: &'a [u16],
    /// Nodes to compute in place of the plan's; then the input goes to this duck alone, since no other shares it.
    pub named: &'a [u16],
    /// Whether the input reaches the duck by a [`Broadcast`]. If not, this peer sends it.
    pub broadcast: bool,
    /// Microseconds that the duck may take, as in the input's head; 0 for any.
    pub time_limit: u32,
}

impl<M: Memory> Peer<M> {
    /// Sends a step. At most [`STEPS`] may be outstanding.
    ///
    /// # Errors
    /// The step cannot be sent; nothing has changed.
    pub fn begin_step(&mut self, now: Micros, request: StepRequest<'_>) -> Result<(), StepError> {
        if !self.is_up() {
            return Err(StepError::NotUp);
        }
        let (limits, slot) = (self.limits, request.seq as usize % STEPS);
        if self.steps[slot].state != State::Idle {
            return Err(StepError::Busy { seq: self.steps[slot].seq });
        }
        let expected = usize::from(request.lanes) * usize::from(limits.chosen);
        if request.lanes == 0 || request.lanes > limits.lanes || request.experts.len() != expected {
            return Err(StepError::Experts { expected, found: request.experts.len() });
        }
        let most = usize::from(limits.nodes);
        if request.named.len() > most {
            return Err(StepError::Nodes { expected: most, found: request.named.len() });
        }
        let of_plan = self.plan_nodes(request.plan);
        let nodes = if request.named.is_empty() {
            of_plan.ok_or(StepError::Plan { found: request.plan })?
        } else {
            request.named
        };
        let mut step = Step {
            state: State::Active,
            seq: request.seq,
            plan: request.plan,
            lanes: request.lanes,
            named: request.named.len() as u16,
            count: nodes.len(),
            time_limit: request.time_limit,
            started: now,
            ..Step::EMPTY
        };
        step.nodes[..nodes.len()].copy_from_slice(nodes);
        step.vectors = owed(&limits, nodes, request.lanes, request.experts.iter().copied(), &mut step.missing);
        step.work = work(&limits, nodes, request.experts);
        if !request.broadcast {
            step.to_send = Inputs::below(fragments(&limits, step.lanes, step.named));
        }
        self.steps[slot] = step;
        let late = now + self.pace.deadline(self.steps[slot].work);
        self.set(Timer::Step(slot), Some(late));
        Ok(())
    }

    /// The caller does not need the step any more. Whatever comes of it is dropped.
    pub fn abandon_step(&mut self, seq: u32) {
        let slot = seq as usize % STEPS;
        if self.steps[slot].seq == seq {
            self.steps[slot].state = State::Idle;
            self.set(Timer::Step(slot), None);
        }
    }

    /// When the step will be late, if nothing of it is missing by then.
    pub fn deadline(&self, seq: u32) -> Option<Micros> {
        self.active(seq).and(self.timers[Timer::Step(seq as usize % STEPS).index()])
    }

    fn active(&self, seq: u32) -> Option<&Step> {
        self.steps.get(seq as usize % STEPS).filter(|s| s.state == State::Active && s.seq == seq)
    }

    pub(super) fn next_done(&mut self) -> Option<Event> {
        for step in &mut self.steps {
            if let State::Done(outcome) = step.state {
                step.state = State::Idle;
                return Some(Event::StepDone { seq: step.seq, outcome, micros: step.micros });
            }
        }
        None
    }

    pub(super) fn handle_result(&mut self, now: Micros, frame: Frame<'_>) {
        let limits = self.limits;
        let Some(step) = self.active(frame.seq()).filter(|s| s.plan == frame.plan()) else { return };
        let (chunk, offset) = (usize::from(limits.step_chunk), frame.offset() as usize);
        let (vector, lane, lanes) = (4 * limits.hidden as usize, usize::from(frame.lane()), usize::from(step.lanes));
        let place = step.nodes[..step.count].iter().position(|&n| n == frame.node());
        let payload = frame.payload();
        let whole = offset.is_multiple_of(chunk) && offset < vector && payload.len() == chunk.min(vector - offset);
        let Some(place) = place.filter(|_| whole && lane < lanes) else { return self.stats.frames_bad += 1 };
        let fragment = (offset / chunk * step.count + place) * lanes + lane;
        let slot = frame.seq() as usize % STEPS;
        if !self.steps[slot].missing.has(fragment) {
            mark!("a_result_counts_once");
            return;
        }
        self.steps[slot].missing.remove(fragment);
        let (seq, node, lane) = (frame.seq(), frame.node(), frame.lane());
        self.memory.land(Piece { seq, place, node, lane, start: offset / 4, bytes: payload });
        self.settle(now, slot);
    }

    pub(super) fn handle_verdict(&mut self, now: Micros, frame: Frame<'_>) {
        let Some(verdict) = Verdict::parse(frame.payload()) else { return self.stats.frames_bad += 1 };
        let Some(step) = self.active(frame.seq()) else { return };
        let slot = frame.seq() as usize % STEPS;
        match VerdictCode::from_code(verdict.code) {
            Some(VerdictCode::Running) => self.still_running(now, slot),
            Some(VerdictCode::Ok) if verdict.vectors != step.vectors => {
                let (expected, found) = (step.vectors, verdict.vectors);
                self.finish(now, slot, Outcome::Disagrees { expected, found });
            }
            Some(VerdictCode::Ok) => {
                self.steps[slot].verdict = Some(verdict);
                if !self.steps[slot].missing.is_empty() {
                    // All was sent before the verdict: what is not here soon is lost.
                    let soon = now + ASK_SOON;
                    let late = self.timers[Timer::Step(slot).index()].unwrap_or(soon);
                    self.set(Timer::Step(slot), Some(late.min(soon)));
                }
                self.settle(now, slot);
            }
            Some(_) => self.finish(now, slot, Outcome::Failed(verdict)),
            None => self.stats.frames_bad += 1,
        }
    }

    fn still_running(&mut self, now: Micros, slot: usize) {
        let step = &self.steps[slot];
        let limit = Micros::from(step.time_limit);
        if limit > 0 && now.saturating_sub(step.started) > 2 * limit + STUCK_GRACE {
            mark!("a_step_that_never_ends_makes_a_duck_stuck");
            self.go_down(now, Why::Stuck, Phase::Silent);
        }
    }

    pub(super) fn handle_need(&mut self, frame: Frame<'_>) {
        let limits = self.limits;
        let Some(step) = self.active(frame.seq()) else { return };
        if (step.lanes, step.named) != (frame.lane(), frame.node()) {
            return self.stats.frames_bad += 1;
        }
        let all = fragments(&limits, step.lanes, step.named);
        let mut wanted: Inputs = Bits::read(frame.payload());
        wanted.keep(&Inputs::below(all));
        mark!("missing_input_is_sent_again");
        self.stats.input_repeats += wanted.len() as u64;
        self.steps[frame.seq() as usize % STEPS].to_send.add(&wanted);
    }

    /// Ends the step if all is there.
    fn settle(&mut self, now: Micros, slot: usize) {
        if self.steps[slot].verdict.is_some() && self.steps[slot].missing.is_empty() {
            let (work, micros) = (self.steps[slot].work, now.saturating_sub(self.steps[slot].started));
            self.pace.learn(work, micros);
            self.stats.steps += 1;
            self.finish(now, slot, Outcome::Ok);
        }
    }

    fn finish(&mut self, now: Micros, slot: usize, outcome: Outcome) {
        self.steps[slot].micros = now.saturating_sub(self.steps[slot].started);
        self.steps[slot].state = State::Done(outcome);
        self.set(Timer::Step(slot), None);
    }

    /// A step is late.
    pub(super) fn ask_step(&mut self, now: Micros, slot: usize) {
        let step = &mut self.steps[slot];
        if step.state != State::Active {
            return;
        }
        let wait = (ASK_FIRST << step.asks.min(10)).min(ASK_MOST);
        step.ask = true;
        step.asks += 1;
        self.stats.asks += 1;
        self.set(Timer::Step(slot), Some(now + wait));
        self.asked(now);
    }

    pub(super) fn transmit_step(&mut self, buf: &mut [u8]) -> Option<usize> {
        self.up?;
        let crc = self.config.crc;
        let busy = |s: &&Step| s.state == State::Active && (s.ask || !s.to_send.is_empty());
        let first = self.steps.iter().filter(busy).reduce(|a, b| if crate::newer(a.seq, b.seq) { b } else { a })?;
        let (seq, slot) = (first.seq, first.seq as usize % STEPS);
        let header = |kind| {
            let (plan, lane, node) = (first.plan, first.lanes, first.named);
            Header { seq, plan, lane, node, ..self.header(kind) }
        };
        if let Some(fragment) = first.to_send.next(0) {
            let header = header(Kind::Input);
            let len = Layout::new(&self.limits, first.lanes, first.named).len();
            self.steps[slot].to_send.remove(fragment);
            let read = |offset, out: &mut [u8]| self.memory.read_input(seq, offset, out);
            return input_frame(buf, header, fragment, len, &self.limits, crc, read);
        }
        let header = header(Kind::AskResult);
        let mut raw = [0; RESULT_FRAGMENTS / 8];
        first.missing.write(&mut raw);
        let all = self.limits.parts() * first.count * usize::from(first.lanes);
        self.steps[slot].ask = false;
        frame::emit(buf, header, &[&raw[..all.div_ceil(8)]], crc)
    }
}

/// Fragments of an input.
fn fragments(limits: &Limits, lanes: u16, named: u16) -> usize {
    Layout::new(limits, lanes, named).len().div_ceil(limits.step_chunk.into())
}

/// (unit, lane) pairs of a step for a holder of `nodes`.
fn work(limits: &Limits, nodes: &[u16], experts: &[u16]) -> u32 {
    let shape = limits.shape();
    let of = |node: kernels::tree::Node| {
        u32::from(node.slices) * experts.iter().filter(|&&e| node.has(node.slice, e)).count() as u32
    };
    nodes.iter().filter_map(|&n| shape.node(n)).map(of).fold(0, u32::saturating_add)
}

fn input_frame(
    buf: &mut [u8],
    mut header: Header,
    fragment: usize,
    len: usize,
    limits: &Limits,
    crc: Crc,
    read: impl FnOnce(usize, &mut [u8]),
) -> Option<usize> {
    let chunk = usize::from(limits.step_chunk);
    let offset = fragment * chunk;
    header.offset = offset as u32;
    frame::emit_with(buf, header, chunk.min(len - offset), crc, |out| read(offset, out))
}

/// The input of one step for all ducks of a domain, once. What gets lost is sent again by each duck's [`Peer`].
#[derive(Clone, Copy, Debug)]
pub struct Broadcast {
    header: Header,
    limits: Limits,
    len: usize,
    next: usize,
    crc: Crc,
}

impl Broadcast {
    /// The frames of step `seq`. `epoch` and `limits` are those of all the domain's sessions.
    pub fn new(limits: &Limits, epoch: u32, seq: u32, plan: u16, lanes: u16, crc: Crc) -> Broadcast {
        let header = Header { epoch, seq, plan, lane: lanes, ..Header::new(Kind::Input) };
        Broadcast { header, limits: *limits, len: Layout::new(limits, lanes, 0).len(), next: 0, crc }
    }

    /// The step.
    pub fn seq(&self) -> u32 {
        self.header.seq
    }

    /// Writes the next frame, to be sent to everyone, if there is one; `read` copies from the input.
    pub fn poll_transmit(&mut self, buf: &mut [u8], read: impl FnOnce(usize, &mut [u8])) -> Option<usize> {
        let fragment = self.next;
        if fragment * usize::from(self.limits.step_chunk) >= self.len {
            return None;
        }
        self.next += 1;
        input_frame(buf, self.header, fragment, self.len, &self.limits, self.crc, read)
    }
}
