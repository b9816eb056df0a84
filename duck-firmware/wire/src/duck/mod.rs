//! The duck's end of a session.
//!
//! [`Session`] knows one host at a time. It obeys: everything that it sends answers something, except announcements, results as
//! they become final, and log lines. Recovery is the host's affair. It never decides how weights are stored or steps computed; those
//! are the caller's, told by [`Event`]s and reached through [`Memory`].

use crate::bits::Bits;
use crate::crc::Crc;
use crate::frame::{self, Frame, Header, Kind};
use crate::frozen::{Announce, ID, NONCE};
use crate::key::PublicKey;
use crate::limits::Limits;
use crate::list::{List, Residents};
use crate::mark::mark;
use crate::message::{COUNTERS, Counter, LOG_TEXT, Log, Opened, RESIDENT_PAGE, Resident, Status};
use crate::{HEADER, Micros};

mod control;
mod load;
mod plan;
pub(crate) mod step;

pub use step::StepInfo;

use load::Load;
use plan::Plan;
use step::Step;

/// Steps that a duck keeps, running or finished: with at most this many outstanding, each finished one stays until it is surely not asked for.
pub const STEPS: usize = 4;
/// Plan versions that a duck knows.
pub const PLANS: usize = 4;
/// Blocks that may be on their way at once.
pub const LOADS: usize = 4;
/// Chunks beyond the first missing one that are taken.
pub const WINDOW: usize = 256;
/// Frames of a block that are acknowledged together.
pub const ACK_EVERY: u16 = 16;
/// Microseconds after which a frame of a block is acknowledged anyway.
pub const ACK_DELAY: Micros = 1_000;
/// Microseconds without a chunk after which a block's place may be another's.
pub const LOAD_IDLE: Micros = 100_000;
/// Microseconds between announcements while nobody holds the lease.
pub const ANNOUNCE_EVERY: Micros = 1_000_000;
/// Least microseconds between announcements that answer frames of no session.
pub const ANNOUNCE_GAP: Micros = 1_000;
/// Least microseconds between two signatures that are checked: they cost about 100 µs.
pub const VERIFY_GAP: Micros = 1_000;
/// Probes that are answered between two calls of `poll_transmit`.
pub const PROBES: usize = 4;
/// Log lines that wait to be sent; more are dropped and counted.
pub const LOG_LINES: usize = 16;

/// Names whoever a frame came from or goes to: the caller's, such as a hardware address in the low bytes.
pub type Address = u64;

/// Who a frame goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// Everyone on the link.
    All,
    /// One.
    One(Address),
}

/// A frame that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Its receiver.
    pub to: To,
    /// Its bytes.
    pub len: usize,
}

/// Bytes that the caller sets aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// For the list.
    pub list: usize,
    /// For blocks, in all.
    pub blocks: u64,
    /// For each step's input.
    pub input: usize,
    /// For each step's results.
    pub result: usize,
}

/// The caller's memory. Slots of input and results are numbered below [`STEPS`].
pub trait Memory {
    /// How much there is; an open that needs more is refused.
    fn sizes(&self) -> Sizes;
    /// `Sizes::list` bytes.
    fn list(&self) -> &[u8];
    /// The same.
    fn list_mut(&mut self) -> &mut [u8];
    /// Takes a part of a block that is not resident. Never called while a step of an earlier session still runs.
    fn write_block(&mut self, block: u32, offset: u32, bytes: &[u8]);
    /// `Sizes::input` bytes of a slot, see [`body`](crate::body).
    fn input(&self, slot: usize) -> &[u8];
    /// The same. Never called while the slot's step runs.
    fn input_mut(&mut self, slot: usize) -> &mut [u8];
    /// Copies from a slot's results, `[nodes, lanes, hidden]` of little-endian fp32, starting at byte `offset`. Only rows that were
    /// said to be final are read.
    fn read_result(&self, slot: usize, offset: usize, out: &mut [u8]);
}

/// What a duck is.
#[derive(Clone, Debug)]
pub struct Config {
    /// What announcements say; nonce, epoch, resident, root, lease and uptime are filled in.
    pub announce: Announce,
    /// blake3 of the kernels that are built in, which need no signature; zero for none.
    pub kernels: [u8; 32],
    /// The pond's public key.
    pub key: PublicKey,
    /// 32 random bytes, never used before. Nonces follow from them.
    pub seed: [u8; 32],
    /// Longest frame that can be received and sent.
    pub max_frame: usize,
    /// Checksums.
    pub crc: Crc,
}

/// What the caller must know or do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A host has opened a session. Steps under way belong to nobody any more: stop them, and say so by [`Session::step_done`].
    Opened {
        /// The list of blocks is the one from before, and what was resident still is.
        same_list: bool,
    },
    /// The session's list has arrived. Say which blocks are in memory by [`Session::keep_block`], then [`Session::list_ready`].
    Listed,
    /// All bytes of a block have arrived. Compute its blake3 digest and call [`Session::block_hashed`].
    Filled {
        /// To be handed back.
        ticket: u32,
        /// Index in the list.
        block: u32,
    },
    /// A step's input is complete: compute it, see [`Session::step`].
    Step {
        /// Slot of its input and results.
        slot: usize,
        /// Its number.
        seq: u32,
    },
    /// The host has not been heard of for the lease's time; the session goes on, but another host may open one.
    LeaseExpired,
    /// The pond's owner wants the duck to start afresh.
    Reset {
        /// 0: reboot.
        action: u8,
    },
}

/// When to wake a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    /// Nobody holds the lease: announce again.
    Announce,
    /// The lease's holder was last heard of one lease ago.
    Lease,
    /// Chunks arrived that nobody acknowledged yet.
    Ack,
}

impl Timer {
    const ALL: [Timer; 3] = [Timer::Announce, Timer::Lease, Timer::Ack];
}

/// The session that was opened last.
#[derive(Clone, Copy, Debug)]
struct Live {
    epoch: u32,
    tag: u16,
    limits: Limits,
    root: [u8; 32],
    blocks: u32,
    /// The digest that the list's program must have; `None` when the kernels are built in.
    program: Option<[u8; 32]>,
    host_id: [u8; ID],
    key_id: [u8; 8],
    host: Address,
    lease: Micros,
}

/// How far the list is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listing {
    /// Chunks are welcome.
    Receiving,
    /// The caller looks through its memory.
    Matching,
    /// Blocks are welcome.
    Ready,
    /// The root is right, yet it is no list of this session.
    Refused,
}

/// Answers that wait to be sent; a newer one takes an older one's place, since askers ask again.
#[derive(Debug, Default)]
struct Replies {
    announce: Option<To>,
    opened: Option<(Address, Opened)>,
    probes: [Option<(Address, u32, usize)>; PROBES],
    status: Option<(Address, u32)>,
    residents: Option<(u32, u32)>,
    assigned: Option<(u16, crate::message::Assigned)>,
    written: Option<(u32, crate::message::BlockCode)>,
    verdict: Option<(u32, crate::message::VerdictCode)>,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    seq: u32,
    level: u8,
    len: usize,
    text: [u8; LOG_TEXT],
}

/// Things that happened and were not told yet.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    opened: Option<bool>,
    listed: bool,
    lease_expired: bool,
    reset: Option<u8>,
}

/// One duck's end. See the crate's documentation for the calling order.
#[derive(Debug)]
pub struct Session<M> {
    config: Config,
    memory: M,
    started: Micros,
    nonce: [u8; NONCE],
    drawn: u64,
    verify_after: Micros,
    announced: Micros,
    live: Option<Live>,
    accepted: Option<[u8; 32]>,
    listing: Listing,
    residents: Residents,
    resident: u32,
    losses: u32,
    plans: [Plan; PLANS],
    steps: [Step; STEPS],
    loads: [Load; LOADS],
    tickets: u32,
    attempts: u16,
    replies: Replies,
    told: Told,
    timers: [Option<Micros>; Timer::ALL.len()],
    counters: [u64; COUNTERS],
    log: [Line; LOG_LINES],
    log_first: usize,
    log_len: usize,
    log_seq: u32,
}

impl<M: Memory> Session<M> {
    /// A duck that has just started, without a session.
    pub fn new(now: Micros, config: Config, memory: M) -> Session<M> {
        let mut session = Session {
            config,
            memory,
            started: now,
            nonce: [0; NONCE],
            drawn: 0,
            verify_after: 0,
            announced: now,
            live: None,
            accepted: None,
            listing: Listing::Receiving,
            residents: Residents::EMPTY,
            resident: 0,
            losses: 0,
            plans: [Plan::EMPTY; PLANS],
            steps: [Step::EMPTY; STEPS],
            loads: [Load::EMPTY; LOADS],
            tickets: 0,
            attempts: 0,
            replies: Replies::default(),
            told: Told::default(),
            timers: [None; Timer::ALL.len()],
            counters: [0; COUNTERS],
            log: [Line { seq: 0, level: 0, len: 0, text: [0; LOG_TEXT] }; LOG_LINES],
            log_first: 0,
            log_len: 0,
            log_seq: 0,
        };
        session.draw_nonce();
        session.replies.announce = Some(To::All);
        session.set(Timer::Announce, Some(now + ANNOUNCE_EVERY));
        session
    }

    /// The caller's memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The caller's memory.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    /// The session's numbers, while there is one.
    pub fn limits(&self) -> Option<Limits> {
        self.live.map(|l| l.limits)
    }

    /// The session's list, once it has arrived.
    pub fn list(&self) -> Option<List<'_>> {
        matches!(self.listing, Listing::Matching | Listing::Ready).then(|| self.list_bytes())
    }

    /// Whether block `index` of the list is held.
    pub fn is_resident(&self, index: u32) -> bool {
        self.residents.has(index as usize)
    }

    /// Blocks held.
    pub fn resident(&self) -> u32 {
        self.resident
    }

    /// A counter or gauge.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// Sets a gauge that the platform knows, or a counter that the kernels keep.
    pub fn set_counter(&mut self, counter: Counter, value: u64) {
        self.counters[counter as usize] = value;
    }

    /// Sends a line to the host, cut to [`LOG_TEXT`] bytes; 0 is an error, 1 a warning, 2 information, 3 a detail. Lines may get lost;
    /// their numbers show it.
    pub fn log(&mut self, level: u8, text: &str) {
        if self.log_len == LOG_LINES {
            mark!("log_line_dropped");
            self.count(Counter::LogDropped);
            self.log_seq = self.log_seq.wrapping_add(1);
            return;
        }
        let len = text.floor_char_boundary(LOG_TEXT);
        let line = &mut self.log[(self.log_first + self.log_len) % LOG_LINES];
        (line.seq, line.level, line.len) = (self.log_seq, level, len);
        line.text[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.log_len += 1;
        self.log_seq = self.log_seq.wrapping_add(1);
    }

    /// Takes a frame, whatever it is.
    pub fn handle_frame(&mut self, now: Micros, from: Address, bytes: &[u8]) {
        let Ok(frame) = Frame::check(bytes, self.config.crc) else { return self.count(Counter::FramesBad) };
        self.count(Counter::FramesIn);
        match frame.kind() {
            Kind::Discover => self.announce_to(now, from),
            Kind::Reset => self.handle_reset(now, frame),
            Kind::Probe => self.handle_probe(from, frame),
            Kind::Open => self.handle_open(now, from, frame),
            Kind::AskStatus => {
                if self.live.is_some_and(|l| l.epoch == frame.epoch() && l.host == from) {
                    self.renew(now);
                }
                self.replies.status = Some((from, frame.seq()));
            }
            Kind::Write | Kind::Assign | Kind::Input | Kind::AskResult | Kind::AskResident => {
                self.handle_session(now, from, frame);
            }
            _ => self.count(Counter::FramesBad),
        }
    }

    /// A frame that belongs to a session.
    fn handle_session(&mut self, now: Micros, from: Address, frame: Frame<'_>) {
        let live = match self.live {
            Some(live) if live.epoch == frame.epoch() && live.host == from => live,
            _ => {
                mark!("frame_of_no_session_is_answered_by_an_announcement");
                self.count(Counter::FramesStale);
                return self.announce_to(now, from);
            }
        };
        let shared = frame.kind() == Kind::Input && frame.tag() == 0;
        if frame.tag() != live.tag && !shared {
            mark!("frame_of_an_earlier_open_is_dropped");
            return self.count(Counter::FramesStale);
        }
        self.renew(now);
        match frame.kind() {
            Kind::Write => self.handle_write(now, &live, frame),
            Kind::Assign => self.handle_assign(&live, frame),
            Kind::Input => self.handle_input(&live, frame),
            Kind::AskResult => self.handle_ask(&live, frame),
            _ => self.replies.residents = Some((frame.seq(), frame.offset())),
        }
    }

    /// Writes the next frame, if there is one. `buf` holds at least `max_frame` bytes.
    pub fn poll_transmit(&mut self, now: Micros, buf: &mut [u8]) -> Option<Transmit> {
        if buf.len() < self.config.max_frame {
            return None;
        }
        let sent = self.transmit_reply(now, buf).or_else(|| {
            let host = To::One(self.live?.host);
            let len =
                self.transmit_step(buf).or_else(|| self.transmit_load(buf)).or_else(|| self.transmit_rest(buf))?;
            Some(Transmit { to: host, len })
        })?;
        self.count(Counter::FramesOut);
        Some(sent)
    }

    /// What happened, in an order in which it can be acted upon.
    pub fn poll_event(&mut self) -> Option<Event> {
        if let Some(action) = self.told.reset.take() {
            return Some(Event::Reset { action });
        }
        if let Some(same_list) = self.told.opened.take() {
            return Some(Event::Opened { same_list });
        }
        if core::mem::take(&mut self.told.lease_expired) {
            return Some(Event::LeaseExpired);
        }
        if core::mem::take(&mut self.told.listed) {
            return Some(Event::Listed);
        }
        self.next_step().or_else(|| self.next_filled())
    }

    /// When [`Session::handle_timeout`] is due.
    pub fn next_timeout(&self) -> Option<Micros> {
        self.timers.iter().flatten().min().copied()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Micros) {
        for timer in Timer::ALL {
            if self.timers[timer as usize].is_none_or(|at| at > now) {
                continue;
            }
            self.set(timer, None);
            match timer {
                Timer::Announce => {
                    self.replies.announce.get_or_insert(To::All);
                    self.set(Timer::Announce, Some(now + ANNOUNCE_EVERY));
                }
                Timer::Lease => {
                    mark!("lease_expires");
                    self.told.lease_expired = true;
                    self.set(Timer::Announce, Some(now));
                }
                Timer::Ack => self.loads.iter_mut().for_each(Load::acknowledge),
            }
        }
    }

    fn set(&mut self, timer: Timer, at: Option<Micros>) {
        self.timers[timer as usize] = at;
    }

    fn count(&mut self, counter: Counter) {
        self.counters[counter as usize] += 1;
    }

    fn list_bytes(&self) -> List<'_> {
        let len = self.live.map_or(0, |l| l.blocks as usize * crate::list::Entry::LEN);
        List(self.memory.list().get(..len).unwrap_or(&[]))
    }

    /// A header of the session's.
    fn header(&self, kind: Kind) -> Header {
        let (epoch, tag) = self.live.map_or((0, 0), |l| (l.epoch, l.tag));
        Header { epoch, tag, ..Header::new(kind) }
    }

    fn lease_left(&self, now: Micros) -> u32 {
        let until = self.timers[Timer::Lease as usize].unwrap_or(now);
        u32::try_from(until.saturating_sub(now) / 1_000).unwrap_or(u32::MAX)
    }

    fn uptime(&self, now: Micros) -> u32 {
        u32::try_from(now.saturating_sub(self.started) / 1_000_000).unwrap_or(u32::MAX)
    }

    fn transmit_reply(&mut self, now: Micros, buf: &mut [u8]) -> Option<Transmit> {
        let crc = self.config.crc;
        if let Some((to, opened)) = self.replies.opened.take() {
            let len = frame::emit(buf, self.header(Kind::Opened), &[&opened.emit()], crc)?;
            return Some(Transmit { to: To::One(to), len });
        }
        if let Some(to) = self.replies.announce.take() {
            let len = frame::emit(buf, Header::new(Kind::Announce), &[&self.announcement(now).emit()], crc)?;
            return Some(Transmit { to, len });
        }
        if let Some((to, seq)) = self.replies.status.take() {
            let len = self.transmit_status(now, seq, buf)?;
            return Some(Transmit { to: To::One(to), len });
        }
        let (to, seq, length) = self.replies.probes.iter_mut().find_map(Option::take)?;
        let header = Header { seq, ..Header::new(Kind::Probed) };
        let len = frame::emit_with(buf, header, length.checked_sub(HEADER)?, crc, |p| p.fill(0))?;
        Some(Transmit { to: To::One(to), len })
    }

    fn transmit_status(&self, now: Micros, seq: u32, buf: &mut [u8]) -> Option<usize> {
        let status = Status {
            boot: self.config.announce.boot,
            root: self.live.map_or([0; 32], |l| l.root),
            resident: self.resident,
            lease: self.lease_left(now),
            uptime: self.uptime(now),
            losses: self.losses,
            listed: u8::from(self.listing == Listing::Ready),
            reserved: [0; 7],
        };
        let mut counters = [0; 8 * COUNTERS];
        for (out, value) in counters.as_chunks_mut::<8>().0.iter_mut().zip(self.counters) {
            *out = value.to_le_bytes();
        }
        frame::emit(buf, Header { seq, ..self.header(Kind::Status) }, &[&status.emit(), &counters], self.config.crc)
    }

    /// What can wait longest.
    fn transmit_rest(&mut self, buf: &mut [u8]) -> Option<usize> {
        let crc = self.config.crc;
        if let Some((plan, assigned)) = self.replies.assigned.take() {
            return frame::emit(buf, Header { plan, ..self.header(Kind::Assigned) }, &[&assigned.emit()], crc);
        }
        if let Some((seq, first)) = self.replies.residents.take() {
            // Unanswered until the caller has said what it holds: the host asks again.
            if self.listing == Listing::Ready {
                let header = Header { seq, ..self.header(Kind::Resident) };
                let first = first.min(self.list_bytes().len() as u32) / 8 * 8;
                let page = Resident { first, blocks: self.list_bytes().len() as u32, losses: self.losses };
                let bytes = (page.blocks - first).div_ceil(8).min(RESIDENT_PAGE as u32) as usize;
                let mut bits: Bits<{ RESIDENT_PAGE / 8 }> = Bits::EMPTY;
                for i in 0..8 * bytes {
                    if self.residents.has(first as usize + i) {
                        bits.insert(i);
                    }
                }
                let mut raw = [0; RESIDENT_PAGE];
                bits.write(&mut raw);
                return frame::emit(buf, header, &[&page.emit(), &raw[..bytes]], crc);
            }
        }
        if self.log_len == 0 {
            return None;
        }
        let line = self.log[self.log_first];
        (self.log_first, self.log_len) = ((self.log_first + 1) % LOG_LINES, self.log_len - 1);
        let header = Header { seq: line.seq, ..self.header(Kind::Log) };
        let log = Log { level: line.level, reserved: [0; 3] };
        frame::emit(buf, header, &[&log.emit(), &line.text[..line.len]], crc)
    }
}
