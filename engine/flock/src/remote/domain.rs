//! One broadcast domain: its link, the sessions of its ducks, and its part of every step's sums. Runs on a thread of its own.
//!
//! The loop does what is there to do (commands, frames, timers, frames to send) and otherwise spins a little, then yields for as long as another
//! step is likely to come, see [`Patience`], then sleeps until a frame, a command or a timer. Nothing here decides who computes what; a domain says what it has lost and is told what to do.

mod ducks;
mod steps;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kernels::tree::{Node, Shape};
use link::{BROADCAST, ETHERNET, Link, Mac, ethernet};
use model::converted::Slices;
use model::step::StepIo;
use wire::frame::{Frame, Header, Kind};
use wire::frozen::Announce;
use wire::host::{Broadcast, Config};
use wire::{Limits, Micros};

use super::active::{Active, Steps};
use super::booting;
use super::input::Encoder;
use super::list::{DuckList, Program};
use super::message::{Command, Report};
use super::patience::Patience;
use super::placement::Assignment;
use super::seat::{Seat, Shared};
use super::signal::Signal;

/// Looks without anything to do before the thread gives up its core, and before it sleeps.
const SPINS: u32 = 32;
const YIELDS: u32 = 64;
/// Looks for frames in a row, while there are any, before anything else has its turn.
const ROUNDS: usize = 16;
/// Frames that are sent to one duck before others have their turn.
const TURN: usize = 32;
/// The part of the time after which a duck counts as gone in which others take over from it.
const LATE_PART: Micros = 20;
/// Most microseconds of that.
const LATE_MOST: Micros = 50_000;
/// Microseconds between looks for ducks that were never heard of: at first, and later.
const DISCOVER_FIRST: Micros = 50_000;
const DISCOVER_MOST: Micros = 1_000_000;
/// Microseconds between updates of what others may see.
const SHARE_EVERY: Micros = 100_000;
/// Unexpected ducks that are reported; a segment on which more are seen is not a pond.
const HEARD: usize = 4096;
/// Microseconds that a step may at least be open at a duck that answers, once its pace is known, and before.
const OVERDUE_LEAST: Micros = 500_000;
const OVERDUE_UNKNOWN: Micros = 5_000_000;
/// Steps after which it is decided whether broadcasts reach a duck.
const BROADCAST_TRIAL: u32 = 64;

/// What a domain is made of.
pub(super) struct Parts {
    pub index: usize,
    pub name: String,
    pub link: Box<dyn Link>,
    pub boot: Option<boot::Service>,
    /// Place of each seat's duck among all ducks, its name, and its address if that is known.
    pub ducks: Vec<(usize, String, Option<Mac>)>,
    pub shape: Shape,
    pub hidden: usize,
    pub slices: Arc<Slices>,
    pub program: Option<Program>,
    /// For every session; identity and limits are filled in.
    pub config: Config,
    pub commands: Receiver<Command>,
    pub reports: Sender<Report>,
    pub signal: Arc<Signal>,
    pub patience: Patience,
    pub shared: Arc<Mutex<Vec<Shared>>>,
}

/// A plan's part for this domain.
#[derive(Default)]
struct Part {
    version: Option<u16>,
    /// In the order of the tree's leaves.
    nodes: Vec<Node>,
    tops: Vec<Node>,
    owners: Vec<(u16, usize)>,
    /// By seat.
    numbers: Vec<Vec<u16>>,
}

/// A step that waits for a slot, or runs.
struct Waiting {
    id: u64,
    io: Arc<StepIo>,
    work: Work,
}

enum Work {
    Step(Arc<Assignment>),
    Favour { home: usize, seat: usize, nodes: Vec<Node> },
}

/// The thread's state.
pub(super) struct Domain {
    index: usize,
    name: String,
    link: Box<dyn Link>,
    /// Answers machines that boot.
    boot: Option<boot::Service>,
    seats: Vec<Seat>,
    shape: Shape,
    hidden: usize,
    slices: Arc<Slices>,
    program: Option<Program>,
    config: Config,
    limits: Option<Limits>,
    lists: Vec<Arc<DuckList>>,
    commands: Receiver<Command>,
    reports: Sender<Report>,
    signal: Arc<Signal>,
    /// Microseconds after the last sign of a step for which the thread does not sleep.
    patience: Patience,
    /// When that was.
    stepped: Micros,
    shared: Arc<Mutex<Vec<Shared>>>,
    started: Instant,
    steps: Rc<RefCell<Steps>>,
    spare: Vec<Active>,
    waiting: VecDeque<Waiting>,
    part: Part,
    next_seq: u32,
    turn: usize,
    discover_at: Micros,
    discover_wait: Micros,
    discover: bool,
    share_at: Micros,
    /// Ducks in no row that were reported: address, identity.
    heard: Vec<(Mac, [u8; 16])>,
}

impl Domain {
    pub fn new(parts: Parts) -> Domain {
        let seats = parts.ducks.into_iter().map(|(duck, name, mac)| Seat::new(duck, name, mac)).collect();
        Domain {
            index: parts.index,
            name: parts.name,
            link: parts.link,
            boot: parts.boot,
            seats,
            shape: parts.shape,
            hidden: parts.hidden,
            slices: parts.slices,
            program: parts.program,
            config: parts.config,
            limits: None,
            lists: Vec::new(),
            commands: parts.commands,
            reports: parts.reports,
            signal: parts.signal,
            patience: parts.patience,
            stepped: 0,
            shared: parts.shared,
            started: Instant::now(),
            steps: Rc::default(),
            spare: Vec::new(),
            waiting: VecDeque::new(),
            part: Part::default(),
            next_seq: 0,
            turn: 0,
            discover_at: 0,
            discover_wait: DISCOVER_FIRST,
            discover: false,
            share_at: 0,
            heard: Vec::new(),
        }
    }

    /// Until it is told to stop, or its owner is gone.
    pub fn run(mut self) {
        let mut idle = 0u32;
        loop {
            let now = self.now();
            let mut busy = false;
            loop {
                match self.commands.try_recv() {
                    Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return,
                    Ok(command) => self.command(now, command),
                    Err(TryRecvError::Empty) => break,
                }
                busy = true;
            }
            let stepping = !self.steps.borrow().active.is_empty();
            // While frames stream in, and once sums are complete, nothing below is as urgent; nor is it kept waiting for long.
            for _ in 0..ROUNDS {
                if !self.receive(self.now()) {
                    break;
                }
                busy = true;
                self.settle();
            }
            let now = self.now();
            self.timers(now);
            self.begin_waiting(now);
            busy |= self.transmit(now);
            if let Some(service) = &mut self.boot {
                busy |= booting::answer(service, &mut *self.link, self.started.elapsed(), &self.name);
            }
            busy |= self.events(now);
            self.look_for_late(now);
            busy |= self.settle();
            if now >= self.share_at {
                self.share(now);
            }
            if busy && (stepping || !self.steps.borrow().active.is_empty()) {
                self.stepped = now;
            }
            idle = if busy { 0 } else { idle.saturating_add(1) };
            match idle {
                0 => {}
                1..=SPINS => std::hint::spin_loop(),
                _ if idle <= SPINS + YIELDS
                    || self.now() < self.stepped + self.patience.linger().as_micros() as Micros =>
                {
                    std::thread::yield_now()
                }
                _ => self.sleep(),
            }
        }
    }

    fn now(&self) -> Micros {
        self.started.elapsed().as_micros() as Micros
    }

    /// Until a frame, a waker, or the next timer.
    fn sleep(&mut self) {
        let timers = self.seats.iter().filter_map(|seat| seat.peer.as_ref()?.next_timeout());
        let boot = self.boot.as_ref().and_then(|service| service.next_deadline(self.started.elapsed()));
        let boot = boot.map(|at| Micros::try_from(at.as_micros()).unwrap_or(Micros::MAX));
        let next = timers.chain(self.looks_for_ducks().then_some(self.discover_at)).chain(boot).min();
        let now = self.now();
        let wait = next.map(|at| Duration::from_micros(at.saturating_sub(now)));
        if wait.is_none_or(|wait| !wait.is_zero()) {
            self.link.wait(wait);
        }
    }

    fn report(&self, report: Report) {
        // Without a coordinator the thread is about to end anyway.
        let _ = self.reports.send(report);
        self.signal.notify();
    }

    fn command(&mut self, now: Micros, command: Command) {
        match command {
            Command::Lists { limits, lists } => {
                self.limits = Some(limits);
                self.lists = lists;
                self.spare.clear();
                (0..self.seats.len()).for_each(|seat| self.open(now, seat));
            }
            Command::Step { id, io, assignment } => {
                self.waiting.push_back(Waiting { id, io, work: Work::Step(assignment) });
            }
            Command::Favour { id, home, io, seat, nodes } => {
                self.waiting.push_back(Waiting { id, io, work: Work::Favour { home, seat, nodes } });
            }
            Command::Split { id, node, into } => {
                let mut steps = self.steps.borrow_mut();
                if let Some(step) = steps.by_id(id)
                    && let Some(input) = step.io.as_ref().and_then(|io| io.input.get())
                {
                    step.landing.split(node, &into, &input.experts);
                }
            }
            Command::Land { id, node, present, values } => {
                let mut steps = self.steps.borrow_mut();
                if let Some(step) = steps.by_id(id) {
                    let rows = present.iter().zip(values.chunks_exact(self.hidden.max(1))).enumerate();
                    for (lane, (_, row)) in rows.filter(|(_, (present, _))| **present) {
                        step.landing.land_vector(node, lane, row);
                    }
                }
            }
            Command::Abandon => self.abandon(),
            Command::Reset { seat, action } => {
                if let Some(peer) = self.seats.get_mut(seat).and_then(|seat| seat.peer.as_mut()) {
                    peer.reset(now, action);
                }
            }
            Command::Stop => {}
        }
    }

    fn timers(&mut self, now: Micros) {
        for peer in self.seats.iter_mut().filter_map(|seat| seat.peer.as_mut()) {
            if peer.next_timeout().is_some_and(|at| at <= now) {
                peer.handle_timeout(now);
            }
        }
        if now >= self.discover_at && self.looks_for_ducks() {
            self.discover = true;
            self.discover_at = now + self.discover_wait;
            self.discover_wait = (2 * self.discover_wait).min(DISCOVER_MOST);
        }
    }

    /// Sends a step's input to all, at once: everything waits for it. The first frames leave while the next are written, since ducks' cables are
    /// slower than this thread; the rest together, since to flush may cost a system call.
    fn broadcast(&mut self, mut broadcast: Broadcast, input: &mut Encoder<'_>) {
        let own = self.link.mac();
        let mut first = true;
        while self.link.tx(&mut |buf| {
            let read = |offset: usize, out: &mut [u8]| {
                out.copy_from_slice(&input.reach(offset + out.len())[offset..]);
            };
            let len = broadcast.poll_transmit(&mut buf[ETHERNET..], read);
            finish(buf, BROADCAST, own, len)
        }) {
            if std::mem::take(&mut first) {
                self.link.flush();
            }
        }
        self.link.flush();
    }

    /// Sends what waits. Returns whether there was something.
    fn transmit(&mut self, now: Micros) -> bool {
        let Domain { link, seats, config, .. } = self;
        let own = link.mac();
        let mut sent = false;
        if std::mem::take(&mut self.discover) {
            sent |= ask_everybody(&mut **link, config.crc);
        }
        let count = seats.len();
        for i in 0..count {
            let seat = &mut seats[(self.turn + i) % count];
            let (Some(peer), Some(mac)) = (seat.peer.as_mut(), seat.known) else { continue };
            for _ in 0..TURN {
                let more = link.tx(&mut |buf| {
                    let len = peer.poll_transmit(now, &mut buf[ETHERNET..]);
                    finish(buf, mac, own, len)
                });
                if !more {
                    break;
                }
                sent = true;
            }
        }
        self.turn = (self.turn + 1) % count.max(1);
        if sent {
            link.flush();
        }
        sent
    }

    /// Tells others how things are.
    fn share(&mut self, now: Micros) {
        self.share_at = now + SHARE_EVERY;
        let mut shared = self.shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for (seat, out) in self.seats.iter().zip(shared.iter_mut()) {
            seat.share(out);
        }
    }
}

/// An announcement, if it is one.
pub(super) fn parse_announce(frame: &[u8], crc: wire::Crc) -> Option<Announce> {
    let frame = Frame::check(frame, crc).ok().filter(|frame| frame.kind() == Kind::Announce)?;
    Announce::parse(frame.payload())
}

/// Asks everybody on a link to announce themselves; sent with the next flush.
pub(super) fn ask_everybody(link: &mut dyn Link, crc: wire::Crc) -> bool {
    let own = link.mac();
    link.tx(&mut |buf| {
        let len = wire::frame::emit(&mut buf[ETHERNET..], Header::new(Kind::Discover), &[], crc);
        finish(buf, BROADCAST, own, len)
    })
}

/// Completes a frame whose payload lies behind the Ethernet header. Returns its length; 0 if there is none.
fn finish(buf: &mut [u8], to: Mac, from: Mac, payload: Option<usize>) -> usize {
    let header = ethernet::Header { to, from, ethertype: wire::ETHERTYPE };
    payload.map_or(0, |len| ethernet::close(buf, header, len))
}
