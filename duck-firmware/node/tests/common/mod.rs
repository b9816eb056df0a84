//! A duck on a made-up link with a made-up clock, its cores told what to do, and a host at the other end. One thread does all of it.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use duck_tests::{HostMemory, Model, StepData, assert_landed, begin, key, peer};
use kernels::abi::FULL_SHARE;
use kernels::{Core, Hooks, Running};
use node::{Carrier, Cores, Duck, Ended, Gauges, Parts, Refused, Region, Sliced};
use wire::Micros;
use wire::ethernet;
use wire::host::{self, Event, Outcome, Peer};
use wire::limits::{Limits, Mode};
use wire::list::List;

pub const LIMITS: Limits = Limits {
    hidden: 256,
    layers: 2,
    slices: 1,
    experts: 4,
    chosen: 2,
    lanes: 2,
    nodes: 2,
    mode: Mode::Exact,
    format: 1,
    step_chunk: 256,
    load_chunk: 1_440,
};
pub const LANES: usize = 2;
pub const PROGRAM: &[u8] = b"a program of kernels";
const ID: [u8; 16] = *b"duck seven\0\0\0\0\0\0";
const DUCK: [u8; 6] = [2, 0, 0, 0, 0, 7];
const HOST: [u8; 6] = [2, 0, 0, 0, 0, 1];
const HIDDEN: usize = LIMITS.hidden as usize;

/// Frames under way, and the time, which goes on by a microsecond whenever it is asked for.
#[derive(Default)]
pub struct Ether {
    to_duck: VecDeque<Vec<u8>>,
    to_host: VecDeque<Vec<u8>>,
    now: Micros,
    pub slept: Micros,
}

pub struct Wire(Rc<RefCell<Ether>>);

impl Carrier for Wire {
    fn mac(&self) -> [u8; 6] {
        DUCK
    }

    fn now(&self) -> Micros {
        let mut ether = self.0.borrow_mut();
        ether.now += 1;
        ether.now
    }

    fn rx(&mut self, each: &mut dyn FnMut(&[u8])) -> usize {
        let frames = std::mem::take(&mut self.0.borrow_mut().to_duck);
        frames.iter().for_each(|frame| each(frame));
        frames.len()
    }

    fn tx(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        let mut frame = vec![0xaa; 1_514];
        let len = fill(&mut frame);
        frame.truncate(len);
        if len > 0 {
            self.0.borrow_mut().to_host.push_back(frame);
        }
        len > 0
    }

    fn flush(&mut self) {}

    fn wait(&mut self, micros: Micros) {
        let mut ether = self.0.borrow_mut();
        ether.now += micros;
        ether.slept += micros;
    }
}

/// What cores do with steps and programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Compute,
    Trap,
    /// They go on for ever.
    Hang,
    RefuseProgram,
}

pub struct Told {
    pub way: Way,
    /// Programs that were loaded.
    pub loads: Vec<Option<Vec<u8>>>,
    /// Steps that were run.
    pub runs: u32,
    /// Where the shared region lies.
    shared: std::ops::Range<usize>,
}

pub struct OneCore(Rc<RefCell<Told>>);

struct Serve<'s>(&'s mut dyn FnMut() -> bool);

impl Hooks for Serve<'_> {
    fn boundary(&mut self) {
        (self.0)();
    }
}

impl Cores for OneCore {
    fn count(&self) -> usize {
        1
    }

    fn load(&mut self, program: Option<&[u8]>) -> Result<(), Refused> {
        let mut told = self.0.borrow_mut();
        told.loads.push(program.map(<[u8]>::to_vec));
        if told.way == Way::RefuseProgram { Err("these bytes are no program".into()) } else { Ok(()) }
    }

    fn run(&mut self, step: Running<'_>, limit: Option<Micros>, serve: &mut dyn FnMut() -> bool) -> Ended {
        self.0.borrow_mut().runs += 1;
        let (session, request) = (&step.block().session, &step.block().request);
        let addresses = [
            std::ptr::from_ref(step.block()) as usize,
            session.unit_table as usize,
            session.scratch as usize + session.scratch_len as usize,
            request.ids as usize,
            request.weights as usize,
            request.input as usize,
            request.nodes as usize,
        ];
        let shared = self.0.borrow().shared.clone();
        assert!(addresses.iter().all(|a| shared.contains(a) || *a == shared.end), "all lies in the region");
        let way = self.0.borrow().way;
        match way {
            Way::Trap => {
                serve();
                Ended::Trapped { core: 3, trap: 14, error: 6, address: 0x1234, instruction: 0x5678 }
            }
            Way::Hang => {
                assert!(limit.is_some());
                while serve() {}
                Ended::Overran
            }
            _ => Ended::Finished(step.run(Core { index: 0, isa: fp9::Isa::detect() }, &mut Serve(serve))),
        }
    }
}

pub struct Warm;

impl Gauges for Warm {
    fn temperature(&mut self) -> u64 {
        47_500
    }

    fn throttled(&mut self) -> u64 {
        3
    }
}

/// A cache line's bytes.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

fn region(len: usize) -> Region {
    let mut lines = vec![Line([0; 64]); len.div_ceil(64)];
    let base = NonNull::from(&mut lines[..]).cast();
    // SAFETY: the owner keeps the lines, which hold at least `len` bytes; a vector's content does not move with it.
    unsafe { Region::from_raw(base, len, Some(Box::new(lines))) }
}

pub struct Pond {
    pub duck: Duck<Wire, OneCore, Sliced, Warm>,
    pub told: Rc<RefCell<Told>>,
    pub ether: Rc<RefCell<Ether>>,
    pub peer: Peer<HostMemory>,
    pub events: Vec<Event>,
    /// Lines that the duck sent.
    pub lines: Vec<String>,
    done: BTreeMap<u32, Outcome>,
    model: Arc<Model>,
    epoch: u32,
}

/// A host that has, or has not, a program.
fn host_of(model: &Arc<Model>, epoch: u32, program: bool, now: Micros) -> Peer<HostMemory> {
    peer(now, ID, model, 0..1, program.then_some(PROGRAM), |config| config.epoch = epoch)
}

impl Pond {
    pub fn new(way: Way, program: bool, scrub: Option<Micros>) -> Pond {
        let shared = region(1 << 20);
        let start = shared.base().as_ptr() as usize;
        let told = Told { way, loads: Vec::new(), runs: 0, shared: start..start + shared.len() };
        let (told, ether) = (Rc::new(RefCell::new(told)), Rc::new(RefCell::new(Ether::default())));
        let parts = Parts {
            program: 0,
            features: 0,
            id: ID,
            link: 0,
            firmware: [0; 32],
            boot: 5,
            kernels: wire::built_in_kernels(),
            key: key().public(),
            seed: [9; 32],
            max_frame: 1_500,
            crc: wire::crc::portable,
            blocks: region(4 << 20),
            results: region(64 << 10),
            shared,
            input: 64 << 10,
            core0_share: FULL_SHARE,
            scrub,
            linger: 2_000,
        };
        let duck = Duck::new(parts, Wire(Rc::clone(&ether)), OneCore(Rc::clone(&told)), Sliced::new(4_096), Warm);
        let model = Model::random(LIMITS, 1);
        let peer = host_of(&model, 77, program, 0);
        let (events, lines, done) = (Vec::new(), Vec::new(), BTreeMap::new());
        Pond { duck, told, ether, peer, events, lines, done, model, epoch: 77 }
    }

    /// Another session of a host that has, or has not, a program.
    pub fn open_again(&mut self, program: bool) {
        self.epoch += 1;
        self.peer = host_of(&self.model, self.epoch, program, self.ether.borrow().now);
        self.done.clear();
    }

    /// One turn of the duck's and one of the host's.
    pub fn turn(&mut self) {
        assert_eq!(self.duck.turn(), None);
        let now = self.ether.borrow().now;
        let frames = std::mem::take(&mut self.ether.borrow_mut().to_host);
        for frame in frames {
            let (from, payload) = ethernet::open(&frame, wire::ETHERTYPE).expect("a frame of the protocol's");
            assert!(from == ethernet::address(DUCK) && frame.len() >= ethernet::SHORTEST);
            self.peer.handle_frame(now, payload);
        }
        if self.peer.next_timeout().is_some_and(|at| at <= now) {
            self.peer.handle_timeout(now);
        }
        let mut frame = [0; 1_514];
        while let Some(len) = self.peer.poll_transmit(now, &mut frame[ethernet::ETHERNET..]) {
            let header = ethernet::Header {
                to: ethernet::address(DUCK),
                from: ethernet::address(HOST),
                ethertype: wire::ETHERTYPE,
            };
            let len = ethernet::close(&mut frame, header, len);
            self.ether.borrow_mut().to_duck.push_back(frame[..len].to_vec());
        }
        while let Some(event) = self.peer.poll_event() {
            match event {
                Event::StepDone { seq, outcome, .. } => _ = self.done.insert(seq, outcome),
                Event::Log(line) => self.lines.push(line.text().to_owned()),
                event => self.events.push(event),
            }
        }
    }

    pub fn until(&mut self, what: &str, ready: impl Fn(&Pond) -> bool) {
        for _ in 0..200_000 {
            if ready(self) {
                return;
            }
            self.turn();
        }
        panic!("{what}: not after 200,000 turns; events {:?}, lines {:?}", self.events, self.lines);
    }

    /// Until all blocks are held and a plan of the whole tree is active.
    pub fn ready(&mut self) {
        let blocks = List(host::Memory::list(self.peer.memory())).len() as u32;
        self.until("loaded", |p| p.peer.is_up() && (0..blocks).all(|b| p.peer.is_resident(b)));
        let now = self.ether.borrow().now;
        self.events.clear();
        self.peer.assign(now, 1, &[root()]).expect("it is up");
        self.until("assigned", |p| p.events.contains(&Event::Assigned { plan: 1, missing: Some(0) }));
    }

    /// How a step ends.
    pub fn step(&mut self, seq: u32, time_limit: u32) -> Outcome {
        let now = self.ether.borrow().now;
        begin(&mut self.peer, now, seq, 1, &step(seq, time_limit));
        self.until("the step ends", |p| p.done.contains_key(&seq));
        self.done[&seq]
    }

    /// What has landed of a step is what the kernels give, bit for bit.
    pub fn assert_sums(&self, seq: u32) {
        let sums = self.model.sums(&step(seq, 0));
        assert!(sums.iter().any(|&v| v != 0.0));
        assert_landed(&self.peer, seq, &sums);
    }
}

/// A step of two lanes, which share an expert, below the whole tree.
fn step(seq: u32, time_limit: u32) -> StepData {
    StepData {
        layer: (seq % 2) as u16,
        lanes: LANES,
        experts: vec![0, 2, 1, 2],
        weights: vec![0.5, 0.25, -1.0, 2.0],
        hidden: (0..LANES * HIDDEN).map(|i| (i % 13) as f32 - 6.0).collect(),
        named: Vec::new(),
        nodes: vec![root()],
        time_limit,
    }
}

fn root() -> u16 {
    LIMITS.shape().root().index(LIMITS.shape())
}
