//! The host's end of one duck's session.
//!
//! A [`Peer`] finds its duck, opens it, loads what is missing, sends steps and collects results; it alone decides when to ask again
//! and when to give up. When the duck is gone it says so once ([`Event::Silent`]) and goes on trying; whoever owns the sums lets others
//! compute what is missing meanwhile. A step's input normally goes out once for all ducks of a domain, see [`Broadcast`].

use crate::Micros;
use crate::duck::STEPS;
use crate::frame::{self, Frame, Header, Kind, MIN_MTU};
use crate::frozen::{Announce, NONCE, Reset};
use crate::limits::{LimitError, Limits, chunk_for};
use crate::list::{List, Residents};
use crate::message::{COUNTERS, LOG_TEXT, Open, Status};

mod api;
mod attach;
mod load;
mod pace;
mod plan;
mod step;

pub use api::{Config, Event, LogLine, Memory, Outcome, Piece, Refusal, Stats, Why};
pub use pace::{DEADLINE_MOST, DEADLINE_UNKNOWN, MARGIN_LEAST, Pace};
pub use step::{Broadcast, StepError, StepRequest};

use load::Load;
use plan::Plan;
use step::Step;

/// Frame lengths that are tried when a session opens, as far as the host's own port can.
pub const PROBE_SIZES: [usize; 4] = [1_500, 4_000, 9_000, 9_600];
/// How often unanswered probes are sent.
pub const PROBE_TRIES: u32 = 3;
/// Microseconds that probes are given.
pub const PROBE_WAIT: Micros = 10_000;
/// Most opens that are sent before the duck is looked for afresh.
pub const OPEN_TRIES: u32 = 12;
/// Microseconds before anything but a step is asked again; doubles up to [`RETRY_MOST`].
pub const RETRY_FIRST: Micros = 5_000;
/// See [`RETRY_FIRST`].
pub const RETRY_MOST: Micros = 200_000;
/// Microseconds between two looks for a duck that is not there; from [`RETRY_MOST`] it doubles up to this.
pub const SEARCH_MOST: Micros = 1_000_000;
/// Most resets that are sent for one that is wanted.
pub const RESET_TRIES: u32 = 10;
/// Microseconds until a duck that refused is asked again.
pub const REFUSED_RETRY: Micros = 1_000_000;
/// Microseconds between questions after a duck's health; a third of the lease if that is less.
pub const PING_EVERY: Micros = 250_000;
/// Microseconds before an unanswered question after its health is repeated.
pub const PING_RETRY: Micros = 20_000;
/// Microseconds before results are asked for again the second time; doubles up to [`ASK_MOST`].
pub const ASK_FIRST: Micros = 200;
/// See [`ASK_FIRST`].
pub const ASK_MOST: Micros = 20_000;
/// Microseconds left to results that the duck's verdict has overtaken.
pub const ASK_SOON: Micros = 100;
/// Least questions in a row that stay unanswered before a duck counts as silent; `Config::silent_after` must have passed as well.
pub const ASKS_LEAST: u32 = 5;
/// A duck that still says "running" after twice the step's time limit and this many microseconds is stuck.
pub const STUCK_GRACE: Micros = 200_000;
/// Chunks that may be on their way unacknowledged.
pub const IN_FLIGHT: usize = 256;
/// The same right after nothing was acknowledged for [`LOAD_RETRY_FIRST`].
pub const IN_FLIGHT_CAUTIOUS: usize = 8;
/// Later chunks that must be acknowledged before one that is not counts as lost.
pub const REORDER: usize = 8;
/// Microseconds without progress before chunks are sent again; doubles up to [`LOAD_RETRY_MOST`].
pub const LOAD_RETRY_FIRST: Micros = 10_000;
/// See [`LOAD_RETRY_FIRST`].
pub const LOAD_RETRY_MOST: Micros = 500_000;
/// Microseconds of idleness that `Config::load_rate` makes up for.
pub const LOAD_BURST: Micros = 500;
/// Log lines that wait for the caller; older ones make room.
pub const LOG_LINES: usize = 4;

/// When to wake a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    /// What the phase does was not answered.
    Phase,
    /// The duck's health is to be asked for, or was not told.
    Ping,
    /// No chunk was acknowledged for a while.
    Load,
    /// More bytes of blocks may be sent.
    Rate,
    /// A reset had no effect yet.
    Reset,
    /// The step in this slot is late.
    Step(usize),
}

impl Timer {
    const COUNT: usize = 5 + STEPS;

    fn index(self) -> usize {
        match self {
            Timer::Phase => 0,
            Timer::Ping => 1,
            Timer::Load => 2,
            Timer::Rate => 3,
            Timer::Reset => 4,
            Timer::Step(slot) => 5 + slot,
        }
    }

    fn all() -> impl Iterator<Item = Timer> {
        let fixed = [Timer::Phase, Timer::Ping, Timer::Load, Timer::Rate, Timer::Reset];
        fixed.into_iter().chain((0..STEPS).map(Timer::Step))
    }
}

/// How far the duck is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Looked for.
    Lost,
    /// Which frames get through?
    Probing,
    /// Asked to open.
    Opening,
    /// Being sent the list.
    Listing,
    /// Asked what it holds.
    Attaching,
    /// Ready.
    Up,
    /// It was, and does not answer.
    Silent,
}

/// Things to send as soon as possible.
#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    discover: bool,
    /// Bit i: [`PROBE_SIZES`]\[i\].
    probes: u8,
    open: bool,
    residents: bool,
    status: bool,
    reset: bool,
}

/// One duck, seen from the host. See the crate's documentation for the calling order.
#[derive(Debug)]
pub struct Peer<M> {
    config: Config,
    memory: M,
    root: [u8; 32],
    blocks: u32,
    phase: Phase,
    tries: u32,
    pending: Pending,
    timers: [Option<Micros>; Timer::COUNT],
    /// What the duck said last.
    announce: Option<Announce>,
    nonce: [u8; NONCE],
    boot: u64,
    /// Longest frame that came back.
    path: usize,
    limits: Limits,
    tag: u16,
    open: Option<(Open, [u8; 32])>,
    /// Number of the last question that has one.
    token: u32,
    /// Numbers up to this one belong to an earlier open.
    token_floor: u32,
    losses: Option<u32>,
    residents: Residents,
    arriving: Residents,
    page: u32,
    loads: [Load; crate::duck::LOADS],
    load_cursor: usize,
    load_wait: Micros,
    in_flight_most: usize,
    loading: bool,
    load_free: Micros,
    plans: [Plan; crate::duck::PLANS],
    steps: [Step; STEPS],
    pace: Pace,
    unanswered: u32,
    asked: Micros,
    /// Counts times that the duck came up; the present one, if it is up.
    up: Option<u32>,
    ups: u32,
    /// What the caller believes `up` to be.
    told: Option<u32>,
    why: Why,
    refused: Option<Refusal>,
    loaded: bool,
    fresh_status: bool,
    status: Option<(Status, [u64; COUNTERS])>,
    log: [Option<LogLine>; LOG_LINES],
    log_seq: Option<u32>,
    /// Action and sends left.
    reset: Option<(u8, u32)>,
    stats: Stats,
}

impl<M: Memory> Peer<M> {
    /// A peer that starts to look for its duck.
    ///
    /// # Errors
    /// Limits that no duck could keep.
    pub fn new(now: Micros, config: Config, memory: M) -> Result<Peer<M>, LimitError> {
        let most = chunk_for(config.max_frame);
        let load_chunk = usize::from(config.limits.load_chunk).min(most) as u16;
        let limits = Limits { load_chunk, ..config.limits };
        limits.check()?;
        let list = List(memory.list());
        let (root, blocks) = (list.root(), list.len());
        let bounds = |field, found, least, most| match (least..=most).contains(&found) {
            true => Ok(()),
            false => Err(LimitError { field, expected: (least, most), found }),
        };
        bounds("blocks", blocks, 0, crate::list::MAX_BLOCKS)?;
        bounds("epoch", config.epoch as usize, 1, u32::MAX as usize)?;
        bounds("longest frame", config.max_frame, MIN_MTU, crate::frame::MAX_FRAME)?;
        bounds("step chunk", usize::from(limits.step_chunk), crate::limits::MIN_CHUNK, most)?;
        let mut peer = Peer {
            tag: config.tag,
            config,
            memory,
            root,
            blocks: blocks as u32,
            phase: Phase::Lost,
            tries: 0,
            pending: Pending::default(),
            timers: [None; Timer::COUNT],
            announce: None,
            nonce: [0; NONCE],
            boot: 0,
            path: 0,
            limits,
            open: None,
            token: 0,
            token_floor: 0,
            losses: None,
            residents: Residents::EMPTY,
            arriving: Residents::EMPTY,
            page: 0,
            loads: [Load::EMPTY; crate::duck::LOADS],
            load_cursor: 0,
            load_wait: LOAD_RETRY_FIRST,
            in_flight_most: IN_FLIGHT,
            loading: true,
            load_free: 0,
            plans: [Plan::EMPTY; crate::duck::PLANS],
            steps: [Step::EMPTY; STEPS],
            pace: Pace::default(),
            unanswered: 0,
            asked: 0,
            up: None,
            ups: 0,
            told: None,
            why: Why::Unanswered,
            refused: None,
            loaded: false,
            fresh_status: false,
            status: None,
            log: [None; LOG_LINES],
            log_seq: None,
            reset: None,
            stats: Stats::default(),
        };
        peer.enter(now, Phase::Lost);
        Ok(peer)
    }

    /// The caller's memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The caller's memory.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    /// Whether it may be sent steps.
    pub fn is_up(&self) -> bool {
        self.up.is_some() && self.up == self.told
    }

    /// What the duck said of itself last.
    pub fn announcement(&self) -> Option<&Announce> {
        self.announce.as_ref()
    }

    /// How the duck was when it last said so.
    pub fn status(&self) -> Option<&Status> {
        self.status.as_ref().map(|(s, _)| s)
    }

    /// Its counters then, in the order of [`Counter`](crate::message::Counter).
    pub fn counters(&self) -> Option<&[u64; COUNTERS]> {
        self.status.as_ref().map(|(_, c)| c)
    }

    /// The session's numbers, with the chunks that the path allows.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Longest frame that came back when paths were probed.
    pub fn path(&self) -> usize {
        self.path
    }

    /// Whether the duck held block `index` when it last told.
    pub fn is_resident(&self, index: u32) -> bool {
        self.residents.has(index as usize)
    }

    /// When the first of at least [`ASKS_LEAST`] - 2 questions in a row was sent that have no answer yet: the duck may be about to
    /// count as silent.
    pub fn unanswered_since(&self) -> Option<Micros> {
        (self.unanswered + 2 >= ASKS_LEAST).then_some(self.asked)
    }

    /// What was learnt of its speed.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// What this peer did.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Whether missing blocks are sent, which is so unless told otherwise. Steps go first in any case.
    pub fn set_loading(&mut self, on: bool) {
        self.loading = on;
    }

    /// Tells the duck to start afresh: 0 reboots it. It need not be open. Repeated up to [`RESET_TRIES`] times, until another start of the
    /// duck announces itself.
    pub fn reset(&mut self, now: Micros, action: u8) {
        self.reset = Some((action, RESET_TRIES));
        self.repeat_reset(now);
    }

    fn repeat_reset(&mut self, now: Micros) {
        let Some((_, tries)) = self.reset.as_mut().filter(|r| r.1 > 0) else { return self.reset = None };
        *tries -= 1;
        self.pending.reset = true;
        // The nonce that is known may be spent: the answer brings the present one.
        self.pending.discover = true;
        self.set(Timer::Reset, Some(now + RETRY_MOST));
    }

    /// Takes a frame that came from the duck, whatever it is.
    pub fn handle_frame(&mut self, now: Micros, bytes: &[u8]) {
        let Ok(frame) = Frame::check(bytes, self.config.crc) else { return self.stats.frames_bad += 1 };
        self.stats.frames_in += 1;
        match frame.kind() {
            Kind::Announce => self.handle_announce(now, frame),
            Kind::Probed => self.handle_probed(now, frame),
            Kind::Opened => self.handle_opened(now, frame),
            Kind::Status => self.handle_status(now, frame),
            _ => self.handle_session(now, frame),
        }
    }

    fn handle_session(&mut self, now: Micros, frame: Frame<'_>) {
        let ours = frame.epoch() == self.config.epoch && frame.tag() == self.tag;
        let open = matches!(self.phase, Phase::Listing | Phase::Attaching | Phase::Up | Phase::Silent);
        if !ours || !open {
            self.stats.frames_bad += 1;
            return;
        }
        if self.phase == Phase::Silent {
            // A sign of life; what it means is settled by its answer.
            self.ask_status_soon(now);
            return;
        }
        self.heard();
        match frame.kind() {
            Kind::Written => self.handle_written(now, frame),
            Kind::Assigned => self.handle_assigned(frame),
            Kind::Result => self.handle_result(now, frame),
            Kind::Verdict => self.handle_verdict(now, frame),
            Kind::NeedInput => self.handle_need(frame),
            Kind::Resident => self.handle_resident(now, frame),
            Kind::Log => self.handle_log(frame),
            _ => self.stats.frames_bad += 1,
        }
    }

    /// Writes the next frame to the duck, if there is one. `buf` holds at least `max_frame` bytes.
    pub fn poll_transmit(&mut self, now: Micros, buf: &mut [u8]) -> Option<usize> {
        if buf.len() < self.config.max_frame {
            return None;
        }
        let len = self
            .transmit_attach(buf)
            .or_else(|| self.transmit_assign(buf))
            .or_else(|| self.transmit_step(buf))
            .or_else(|| self.transmit_load(now, buf))?;
        self.stats.frames_out += 1;
        Some(len)
    }

    /// What happened, in an order in which it can be acted upon.
    pub fn poll_event(&mut self) -> Option<Event> {
        if let Some(done) = self.next_done() {
            return Some(done);
        }
        if self.told.is_some() && self.told != self.up {
            self.told = None;
            return Some(Event::Silent { why: self.why });
        }
        if let (None, Some(up)) = (self.told, self.up) {
            self.told = self.up;
            self.loaded = false;
            let (resident, blocks) = (self.residents.len() as u32, self.blocks);
            return Some(if up == 1 {
                Event::Joined { resident, blocks }
            } else {
                Event::Rejoined { resident, blocks }
            });
        }
        if let Some(refusal) = self.refused.take() {
            return Some(Event::Refused(refusal));
        }
        if core::mem::take(&mut self.loaded) && self.is_up() {
            return Some(Event::Loaded { resident: self.residents.len() as u32, blocks: self.blocks });
        }
        if let Some(assigned) = self.next_assigned() {
            return Some(assigned);
        }
        if core::mem::take(&mut self.fresh_status) {
            return Some(Event::Status);
        }
        let line = self.log[0].take()?;
        self.log.rotate_left(1);
        Some(Event::Log(line))
    }

    /// When [`Peer::handle_timeout`] is due.
    pub fn next_timeout(&self) -> Option<Micros> {
        self.timers.iter().flatten().min().copied()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Micros) {
        for timer in Timer::all() {
            if self.timers[timer.index()].is_none_or(|at| at > now) {
                continue;
            }
            self.set(timer, None);
            match timer {
                Timer::Phase => self.retry_phase(now),
                Timer::Ping => self.ping(now),
                Timer::Load => self.retry_load(now),
                Timer::Rate => {}
                Timer::Reset => self.repeat_reset(now),
                Timer::Step(slot) => self.ask_step(now, slot),
            }
        }
    }

    fn set(&mut self, timer: Timer, at: Option<Micros>) {
        self.timers[timer.index()] = at;
    }

    /// A header of the session's.
    fn header(&self, kind: Kind) -> Header {
        Header { epoch: self.config.epoch, tag: self.tag, ..Header::new(kind) }
    }

    /// The duck lives.
    fn heard(&mut self) {
        self.unanswered = 0;
    }

    /// A question went out. Whether the duck has been silent for too long is decided here and nowhere else.
    fn asked(&mut self, now: Micros) {
        if self.unanswered == 0 {
            self.asked = now;
        }
        self.unanswered += 1;
        if self.unanswered > ASKS_LEAST && now.saturating_sub(self.asked) >= self.config.silent_after {
            crate::mark::mark!("unanswered_questions_make_a_duck_silent");
            self.go_down(now, Why::Unanswered, Phase::Silent);
        }
    }

    fn handle_log(&mut self, frame: Frame<'_>) {
        let (head, payload) = (crate::message::Log::parse(frame.payload()), frame.payload());
        let Some(head) = head else { return self.stats.frames_bad += 1 };
        let lost = match self.log_seq {
            Some(before) if !crate::newer(frame.seq(), before) => return,
            Some(before) => frame.seq().wrapping_sub(before) - 1,
            None => 0,
        };
        self.log_seq = Some(frame.seq());
        let text = &payload[crate::message::Log::LEN..];
        let len = text.len().min(LOG_TEXT);
        let mut line = LogLine { level: head.level, lost, len, text: [0; LOG_TEXT] };
        line.text[..len].copy_from_slice(&text[..len]);
        let len = self.log.iter().flatten().count();
        if len == LOG_LINES {
            let after = self.log[1].as_mut().unwrap_or(&mut line);
            after.lost = after.lost.saturating_add(1);
            self.log.rotate_left(1);
        }
        self.log[len.min(LOG_LINES - 1)] = Some(line);
    }

    /// A signed reset, with the last nonce that is known.
    fn transmit_reset(&mut self, action: u8, buf: &mut [u8]) -> Option<usize> {
        let reset = Reset::sign(self.nonce, self.config.duck, action, &self.config.key);
        frame::emit(buf, Header::new(Kind::Reset), &[&reset.emit()], self.config.crc)
    }
}
