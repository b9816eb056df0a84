//! Ducks behind links: one thread for each domain, and the coordinator that plans, hands out steps and has others take over.
//!
//! The coordinator runs on its owner's thread, in [`Remote::submit`] and [`Remote::poll`]. It alone knows the whole pond: it makes an
//! [`Assignment`] whenever a duck comes, goes or is too slow, under a new version; steps that are under way keep theirs. When nodes of a step lose
//! their holder, it finds ducks with replicas, or the host itself, and sends what they compute to the domain that owns the step's landing
//! place. So a step always ends: in the worst case the host computes all of it.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kernels::tree::Node;
use link::{Link, Mac, Waker};
use model::Numerics;
use model::step::StepIo;
use wire::host::Config;
use wire::key::Key;
use wire::limits::{INPUT_FRAGMENTS, MAX_NODES, Mode, RESULT_FRAGMENTS, chunk_for};
use wire::message::Counter;
use wire::{Limits, frame};

mod active;
pub mod balance;
mod booting;
mod coordinator;
mod discover;
mod domain;
mod input;
mod list;
mod message;
mod patience;
pub mod placement;
mod seat;
mod signal;
mod status;
mod take_over;
mod view;

use balance::{Balance, Sample};
use list::DuckList;
use message::{Command, Report};
use patience::Patience;
use placement::{Assignment, Hints, Placement, Room};
use seat::Shared;
use signal::Signal;
use view::{Told, View};

pub use discover::{Found, discover};
pub use list::Program;
pub use status::{DuckState, DuckStatus, PondStatus, Stranger, identity_name};
pub use view::PondHandle;
pub use wire::frozen::identity;

use crate::experts::Experts;
use crate::local::{DuckStats, Local, Substitute};
use crate::{FlockError, Plan};

/// Commands that may wait for a domain; a step is one, so this is far more than ever wait.
const COMMANDS: usize = 256;
/// Nodes of one duck that sessions have room for at least: what an uneven plan gives it, and what it takes over.
const NODES: usize = 8;
/// How long a duck that was heard of may take to open its session before nobody waits for it.
const OPENING: Duration = Duration::from_secs(5);
/// How long a duck that failed a step, or was late, is left out the first time; twice as long each further time.
const UNFIT: Duration = Duration::from_secs(5);
const LATE: Duration = Duration::from_millis(100);
/// Most of that.
const REST_MOST: Duration = Duration::from_secs(60);
/// After this time without a failure, the next counts as the first again.
const FORGIVEN: Duration = Duration::from_secs(120);

/// A port of the host.
pub struct Port {
    /// For people.
    pub name: String,
    /// Its link.
    pub link: Box<dyn Link>,
    /// Answers machines that boot behind it.
    pub boot: Option<boot::Service>,
}

impl Port {
    /// A port whose ducks boot by themselves.
    pub fn new(name: impl Into<String>, link: Box<dyn Link>) -> Port {
        Port { name: name.into(), link, boot: None }
    }
}

/// A duck, as the pond's description has it.
#[derive(Clone, Debug)]
pub struct DuckSpec {
    /// At most sixteen bytes; a duck that announces this identity is the one.
    pub name: String,
    /// Index of its port.
    pub port: usize,
    /// Otherwise the one with this address is.
    pub mac: Option<Mac>,
    /// Bytes that it may be given; without it, what it announces.
    pub memory: Option<u64>,
    /// Relative speed, 1 for most.
    pub speed: f64,
}

/// How a pond is run.
pub struct Options {
    /// Ports.
    pub ports: Vec<Port>,
    /// Ducks, in the order in which units are dealt.
    pub ducks: Vec<DuckSpec>,
    /// The pond's secret key.
    pub key: Key,
    /// Names this host; the same across restarts.
    pub host: [u8; 16],
    /// How long to wait for announcements before planning without the missing ducks.
    pub wait: Duration,
    /// Silence after which a duck counts as gone.
    pub silent_after: Duration,
    /// Time without a frame after which another host may take the ducks.
    pub lease: Duration,
    /// Lanes of a step at most; fewer if the protocol cannot carry so many for this model.
    pub max_lanes: usize,
    /// Most units of every layer that the host holds for good.
    pub host_units: u32,
    /// Whether ducks hold replicas in memory left over.
    pub replicas: bool,
    /// What ducks without kernels of their own are sent.
    pub program: Option<Program>,
}

impl Options {
    /// The usual numbers.
    pub fn new(ports: Vec<Port>, ducks: Vec<DuckSpec>, key: Key, host: [u8; 16]) -> Options {
        Options {
            ports,
            ducks,
            key,
            host,
            wait: Duration::from_secs(3),
            silent_after: Duration::from_secs(1),
            lease: Duration::from_secs(10),
            max_lanes: 128,
            host_units: 0,
            replicas: true,
            program: None,
        }
    }
}

/// A domain, seen from the coordinator.
struct Handle {
    name: String,
    commands: SyncSender<Command>,
    waker: Waker,
    /// `None` once it has ended.
    thread: Option<JoinHandle<()>>,
}

/// A duck, seen from the coordinator.
struct Duck {
    spec: DuckSpec,
    /// Its place in its domain.
    seat: usize,
    /// Bytes that it announced: not what its domain shows to others, which lags behind its reports.
    memory: Option<u64>,
    state: DuckState,
    /// It is left out until then.
    unfit_until: Option<Instant>,
    /// How often in a row it was late or failed, and when last.
    hiccups: u32,
    hiccup: Option<Instant>,
    /// What it had done when the balance was looked at last.
    sample: Sample,
}

/// A step that is not published everywhere.
struct Step {
    id: u64,
    io: Arc<StepIo>,
}

/// A node of a step that the host has to compute.
struct Chore {
    id: u64,
    home: usize,
    node: Node,
}

/// Ducks behind links.
pub struct Remote {
    experts: Arc<Experts>,
    domains: Vec<Handle>,
    reports: Receiver<Report>,
    signal: Arc<Signal>,
    seen: u64,
    ducks: Vec<Duck>,
    placement: Placement,
    assignment: Arc<Assignment>,
    limits: Limits,
    /// Bytes of the kernels' program.
    program: u64,
    /// A new assignment is due.
    stale: bool,
    balance: Balance,
    steps_since_look: u64,
    steps: Vec<Step>,
    chores: VecDeque<Chore>,
    local: Local,
    substitute: Substitute,
    view: Arc<View>,
    patience: Patience,
}

impl Remote {
    /// Starts the domains, waits a little for ducks, plans, and opens their sessions.
    pub(crate) fn open(experts: Arc<Experts>, options: Options) -> Result<Remote, FlockError> {
        if options.ducks.is_empty() {
            return Err(FlockError::NoDucks);
        }
        let started = Instant::now();
        if let Some(port) = options.ports.iter().find(|port| port.link.mtu() < frame::MIN_MTU) {
            let (port, found) = (port.name.clone(), port.link.mtu());
            return Err(FlockError::Mtu { port, found, least: frame::MIN_MTU });
        }
        let limits = session_limits(&experts, &options)?;
        // The domains' threads and the one that submits steps.
        let patience = Patience::new(options.ports.len() + 1);
        let signal = Arc::new(Signal::new(patience.clone()));
        let (sender, reports) = std::sync::mpsc::channel();
        let epoch = random_epoch();
        let config = Config {
            duck: [0; 16],
            host: options.host,
            key: options.key.clone(),
            epoch,
            tag: 1,
            limits,
            kernels: wire::built_in_kernels(),
            kernels_signature: [0; 64],
            lease: options.lease.as_millis() as u32,
            max_frame: frame::MIN_MTU,
            silent_after: options.silent_after.as_micros() as u64,
            load_rate: 0,
            crc: wire::crc::native,
        };
        let mut ducks: Vec<Duck> = Vec::new();
        let mut seats = vec![Vec::new(); options.ports.len()];
        for (at, spec) in options.ducks.into_iter().enumerate() {
            let list: &mut Vec<(usize, String, Option<Mac>)> = &mut seats[spec.port];
            ducks.push(Duck {
                seat: list.len(),
                memory: None,
                state: DuckState::Absent,
                unfit_until: None,
                hiccups: 0,
                hiccup: None,
                sample: Sample::default(),
                spec: spec.clone(),
            });
            list.push((at, spec.name, spec.mac));
        }
        let mut view = View {
            ducks: ducks.iter().map(|duck| (duck.spec.name.clone(), duck.spec.port, duck.seat)).collect(),
            ports: Vec::new(),
            block_bytes: experts.slices.layout().len() as u64,
            told: Mutex::new(Told {
                out: vec![None; ducks.len()],
                ended: vec![false; options.ports.len()],
                ..Told::default()
            }),
        };
        let mut domains = Vec::new();
        for (index, (port, seats)) in options.ports.into_iter().zip(seats).enumerate() {
            let (commands, receiver) = sync_channel(COMMANDS);
            let shared = Arc::new(Mutex::new(vec![Shared::default(); seats.len()]));
            let waker = port.link.waker();
            let max_frame = port.link.mtu().min(frame::MAX_FRAME);
            let parts = domain::Parts {
                index,
                name: port.name.clone(),
                link: port.link,
                boot: port.boot,
                ducks: seats,
                shape: experts.shape,
                hidden: experts.hidden,
                slices: Arc::clone(&experts.slices),
                program: options.program.clone(),
                config: Config { max_frame, ..config.clone() },
                commands: receiver,
                reports: sender.clone(),
                signal: Arc::clone(&signal),
                patience: patience.clone(),
                shared: Arc::clone(&shared),
            };
            let thread = std::thread::Builder::new()
                .name(format!("port-{}", port.name))
                // A domain's own state is not `Send`, so it is made where it lives.
                .spawn(move || domain::Domain::new(parts).run())
                .map_err(|source| FlockError::Thread { port: port.name.clone(), source })?;
            view.ports.push((port.name.clone(), shared));
            domains.push(Handle { name: port.name, commands, waker, thread: Some(thread) });
        }
        let slot = domains.len();
        let count = ducks.len();
        let nothing = Assignment { version: 0, ducks: vec![Vec::new(); count], host: vec![experts.shape.root()] };
        let all = Plan::from_nodes(experts.shape, vec![nothing.host.clone()])?;
        let mut remote = Remote {
            local: Local::new(&experts, slot, std::iter::once(&nothing.host[..])),
            substitute: Substitute::new(Arc::clone(&experts)),
            experts,
            domains,
            reports,
            signal,
            seen: 0,
            ducks,
            placement: Placement { plan: all, replicas: Vec::new() },
            assignment: Arc::new(nothing),
            limits,
            program: options.program.as_ref().map_or(0, |program| program.len() as u64),
            patience,
            stale: true,
            balance: Balance::new(count),
            steps_since_look: 0,
            steps: Vec::new(),
            chores: VecDeque::new(),
            view: Arc::new(view),
        };
        remote.wait_for_announcements(started + options.wait)?;
        remote.place(options.host_units, options.replicas)?;
        Ok(remote)
    }

    fn wait_for_announcements(&mut self, until: Instant) -> Result<(), FlockError> {
        loop {
            self.seen = self.signal.seen();
            self.drain()?;
            let heard = |duck: &Duck| duck.state != DuckState::Absent;
            let left = until.saturating_duration_since(Instant::now());
            if self.ducks.iter().all(heard) || left.is_zero() {
                return Ok(());
            }
            self.wait(left.min(Duration::from_millis(100)));
        }
    }

    /// Deals the units and tells the domains.
    fn place(&mut self, host_units: u32, replicas: bool) -> Result<(), FlockError> {
        let slices = &self.experts.slices;
        let layers = slices.layers() as u64;
        // Blocks lie at multiples of 64 bytes.
        let unit_bytes = (slices.layout().len() as u64).next_multiple_of(64) * layers.max(1);
        let announced: Vec<Option<u64>> = self.ducks.iter().map(|duck| duck.memory).collect();
        // A duck that is not there is planned for as if it were like the others; if none is, as if each could hold its share beside the program.
        let share = u64::from(self.experts.shape.units().unwrap_or(0)).div_ceil(self.ducks.len() as u64);
        let enough = share.saturating_mul(unit_bytes).saturating_add(self.program);
        let usual = announced.iter().flatten().copied().min().unwrap_or(enough);
        let rooms: Vec<Room> = self
            .ducks
            .iter()
            .zip(&announced)
            .map(|(duck, announced)| {
                // What the row says holds for a duck that is not there, so that its absence changes nobody's list.
                let memory = announced.or(duck.spec.memory).unwrap_or(usual);
                let memory = duck.spec.memory.map_or(memory, |most| most.min(memory)).saturating_sub(self.program);
                let units = u32::try_from(memory / unit_bytes.max(1)).unwrap_or(u32::MAX);
                // A list of blocks has only so many entries.
                let most = ((wire::list::MAX_BLOCKS as u64 - 1) / layers.max(1)) as u32;
                Room { units: units.min(most), speed: duck.spec.speed, port: duck.spec.port }
            })
            .collect();
        let hints = Hints { chosen: self.experts.chosen, host_units, replicas, unit_bytes };
        self.placement = Placement::new(self.experts.shape, &rooms, &hints)?;
        let most = self.placement.plan.nodes_at_most();
        if most > usize::from(self.limits.nodes) {
            self.limits.nodes = most.min(MAX_NODES) as u16;
            self.limits.lanes = lanes_that_fit(&self.limits, self.limits.lanes.into());
            self.limits.check()?;
        }
        for (at, domain) in self.domains.iter().enumerate() {
            let lists = (0..self.ducks.len())
                .filter(|&duck| self.ducks[duck].spec.port == at)
                .map(|duck| {
                    let nodes = self.placement.held(duck);
                    Arc::new(DuckList::new(self.experts.shape, &nodes, slices))
                })
                .collect();
            self.send(at, Command::Lists { limits: self.limits, lists })?;
            tracing::debug!(port = %domain.name, "sessions are being opened");
        }
        self.stale = true;
        Ok(())
    }

    /// How many sources of sums a step has: the domains and the host.
    pub(crate) fn sources(&self) -> usize {
        self.domains.len() + 1
    }

    /// Most lanes of a step.
    pub(crate) fn max_lanes(&self) -> usize {
        self.limits.lanes.into()
    }

    /// Who holds what when all are there: the ducks, then the host.
    pub fn plan(&self) -> &Plan {
        &self.placement.plan
    }

    /// Sleeps until a domain has something to tell, at most so long.
    pub(crate) fn wait(&mut self, most: Duration) {
        self.signal.wait(self.seen, most);
    }

    /// Waits until every duck that is there computes its share. `progress` sees how things are every now and then and ends the wait by `false`.
    ///
    /// # Errors
    /// A domain that has ended in the middle of a step.
    pub fn wait_ready(&mut self, progress: &mut dyn FnMut(&PondStatus) -> bool) -> Result<(), FlockError> {
        let started = Instant::now();
        loop {
            self.seen = self.signal.seen();
            self.drain()?;
            let opening = started.elapsed() < OPENING;
            let pending = |duck: &Duck| match duck.state {
                DuckState::Opening => opening,
                state => state == DuckState::Loading,
            };
            let waits = self.ducks.iter().any(pending);
            if self.stale && !waits {
                self.assign()?;
            }
            if !progress(&self.status()) || !waits {
                return Ok(());
            }
            self.wait(Duration::from_millis(100));
        }
    }

    /// Keeps the coordinator's knowledge fresh while no steps run.
    ///
    /// # Errors
    /// A domain that has ended in the middle of a step.
    pub fn tick(&mut self) -> Result<(), FlockError> {
        self.drain().map(|_| ())
    }

    /// How the pond is.
    pub fn status(&self) -> PondStatus {
        self.handle().status()
    }

    /// Answers the same from any thread.
    pub fn handle(&self) -> PondHandle {
        let commands = self.domains.iter().map(|domain| (domain.commands.clone(), domain.waker.clone())).collect();
        PondHandle { view: Arc::clone(&self.view), commands }
    }

    /// Counters by duck.
    pub(crate) fn stats(&self) -> Vec<DuckStats> {
        let of = |shared: &Shared| {
            let counter = |which: Counter| shared.counters.as_ref().map_or(0, |counters| counters[which as usize]);
            DuckStats {
                steps: shared.sample.steps,
                units: counter(Counter::Units),
                busy: Duration::from_micros(counter(Counter::Busy)),
            }
        };
        (0..self.ducks.len()).map(|at| self.view.shared(at, of)).collect()
    }

    /// Tells a domain something. One that has ended is known to have ended and has no part in anything, so that nothing is lost with what
    /// it is told.
    fn send(&self, domain: usize, command: Command) -> Result<(), FlockError> {
        let handle = &self.domains[domain];
        if handle.thread.is_none() {
            return Ok(());
        }
        let sent = handle.commands.send(command);
        handle.waker.wake();
        sent.map_err(|_| FlockError::DomainEnded { port: handle.name.clone() })
    }

    fn duck_at(&self, domain: usize, seat: usize) -> Option<usize> {
        self.ducks.iter().position(|duck| duck.spec.port == domain && duck.seat == seat)
    }
}

impl Remote {
    /// So many threads compute while steps are under way: whether others may keep cores while they wait depends on that.
    pub(crate) fn beside(&self, workers: usize) {
        self.patience.beside(workers);
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        for at in 0..self.domains.len() {
            let _ = self.send(at, Command::Stop);
        }
        for handle in &mut self.domains {
            if let Some(thread) = handle.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

/// The numbers of sessions: as many lanes as asked for and possible.
fn session_limits(experts: &Experts, options: &Options) -> Result<Limits, FlockError> {
    let small = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    let mtu = options.ports.iter().map(|port| port.link.mtu()).min().unwrap_or(frame::MIN_MTU).min(frame::MAX_FRAME);
    let mut limits = Limits {
        hidden: experts.hidden as u32,
        layers: small(experts.slices.layers()),
        slices: experts.shape.slices,
        experts: experts.shape.experts,
        chosen: small(experts.chosen),
        lanes: 1,
        nodes: NODES as u16,
        mode: match experts.numerics {
            Numerics::Exact => Mode::Exact,
            // Exact in bf16 once stage 0 has quantised it, see `Experts::mode`.
            Numerics::Bf16 | Numerics::Fp8 => Mode::Bf16,
        },
        format: match experts.slices.format() {
            fp9::Format::E4m3 => 0,
            fp9::Format::Fp9 => 1,
            fp9::Format::Bf16 => 2,
        },
        // Short frames have the lower latency, long ones the higher rate.
        step_chunk: chunk_for(frame::MIN_MTU) as u16,
        load_chunk: chunk_for(mtu) as u16,
    };
    limits.lanes = lanes_that_fit(&limits, options.max_lanes);
    limits.check()?;
    Ok(limits)
}

/// Most lanes, up to `wanted`, whose input and results have no more fragments than the protocol can count.
fn lanes_that_fit(limits: &Limits, wanted: usize) -> u16 {
    let results = RESULT_FRAGMENTS / (limits.parts() * usize::from(limits.nodes)).max(1);
    let one = Limits { lanes: 1, ..*limits }.input_len();
    let inputs = INPUT_FRAGMENTS * usize::from(limits.step_chunk) / one.max(1);
    wanted.min(results).min(inputs).clamp(1, usize::from(u16::MAX)) as u16
}

/// Not 0, and another for each run of a host.
fn random_epoch() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    // The hasher's keys are random for each process.
    let random = std::hash::RandomState::new().build_hasher().finish();
    (random as u32).max(1)
}
