//! A duck on a made-up link with a made-up clock, its cores told what to do, and a host at the other end. One thread does all of it.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ptr::NonNull;
use std::rc::Rc;

use kernels::abi::FULL_SHARE;
use kernels::unit::{Expert, SLICE, Source, Tensor, UnitLayout, pack_unit};
use kernels::{Config, Core, HeldNode, Holder, Hooks, NoHooks, Running, Step, UnitEntry, scratch_len};
use node::{Carrier, Cores, Duck, Ended, Gauges, Parts, Refused, Region, Sliced};
use wire::Micros;
use wire::body::{Head, Layout};
use wire::ethernet;
use wire::host::{self, Event, Outcome, Peer, Piece, StepRequest};
use wire::key::{Domain, Key};
use wire::limits::{Limits, Mode};
use wire::list::{Entry, List, PROGRAM_LAYER};

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

pub struct HostMemory {
    list: Vec<u8>,
    blocks: Vec<Vec<u8>>,
    input: Vec<u8>,
    sums: Vec<f32>,
}

impl host::Memory for HostMemory {
    fn list(&self) -> &[u8] {
        &self.list
    }

    fn read_block(&self, block: u32, offset: u32, out: &mut [u8]) {
        out.copy_from_slice(&self.blocks[block as usize][offset as usize..][..out.len()]);
    }

    fn read_input(&self, _: u32, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.input[offset..][..out.len()]);
    }

    fn land(&mut self, piece: Piece<'_>) {
        let at = (piece.place * LANES + usize::from(piece.lane)) * HIDDEN + piece.start;
        for (sum, raw) in self.sums[at..].iter_mut().zip(piece.bytes.as_chunks().0) {
            *sum = f32::from_le_bytes(*raw);
        }
    }
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
    epoch: u32,
}

fn key() -> Key {
    Key::from_seed([42; 32])
}

/// Units and, with one, a program.
fn blocks(program: bool) -> (Vec<u8>, Vec<Vec<u8>>) {
    let shape = LIMITS.shape();
    let format = kernels::abi::format_of(LIMITS.format.into()).expect("a format");
    let layout = UnitLayout::new(format, HIDDEN).expect("a layout");
    let mut units = Vec::new();
    for layer in 0..LIMITS.layers {
        for expert in 0..LIMITS.experts {
            let codes = |matrix: usize| -> Vec<u8> {
                let seed = usize::from(layer) * 7 + usize::from(expert) * 3 + matrix;
                (0..SLICE * HIDDEN).map(|i| (i * 37 + seed * 11) as u8 & 0xbf).collect()
            };
            let (gate, up, down) = (codes(0), codes(1), codes(2));
            let scales = [0.01; 2];
            let tensor = |codes| Tensor { codes, scales: &scales[..] };
            let source =
                Source::E4m3(Expert { gate: tensor(&gate[..]), up: tensor(&up), down: tensor(&down), width: SLICE });
            let mut block = vec![0; layout.len()];
            pack_unit(&layout, &source, 0, &mut block).expect("it fits");
            units.push((layer, shape.unit(0, expert).index(shape), block));
        }
    }
    if program {
        units.push((PROGRAM_LAYER, 0, PROGRAM.to_vec()));
    }
    units.sort_by_key(|(layer, node, _)| (*layer, *node));
    let entry = |(layer, node, block): &(u16, u16, Vec<u8>)| {
        let digest = *blake3::hash(block).as_bytes();
        Entry { layer: *layer, node: *node, length: block.len() as u32, digest }.emit()
    };
    (units.iter().flat_map(entry).collect(), units.into_iter().map(|u| u.2).collect())
}

fn peer(epoch: u32, program: bool, now: Micros) -> Peer<HostMemory> {
    let digest = *blake3::hash(PROGRAM).as_bytes();
    let (kernels, kernels_signature) = match program {
        true => (digest, key().sign(Domain::Program, &digest)),
        false => (wire::built_in_kernels(), [0; 64]),
    };
    let config = host::Config {
        duck: ID,
        host: [1; 16],
        key: key(),
        epoch,
        tag: 1,
        limits: LIMITS,
        kernels,
        kernels_signature,
        lease: 10_000,
        max_frame: 1_500,
        silent_after: 2_000_000,
        load_rate: 0,
        crc: wire::crc::portable,
    };
    let (list, blocks) = blocks(program);
    let memory = HostMemory { list, blocks, input: Vec::new(), sums: vec![f32::NAN; LANES * HIDDEN] };
    Peer::new(now, config, memory).expect("sound limits")
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
        let peer = peer(77, program, 0);
        Pond { duck, told, ether, peer, events: Vec::new(), lines: Vec::new(), done: BTreeMap::new(), epoch: 77 }
    }

    /// Another session of a host that has, or has not, a program.
    pub fn open_again(&mut self, program: bool) {
        self.epoch += 1;
        self.peer = peer(self.epoch, program, self.ether.borrow().now);
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
        self.peer.assign(now, 1, &[LIMITS.shape().root().index(LIMITS.shape())]).expect("it is up");
        self.until("assigned", |p| p.events.contains(&Event::Assigned { plan: 1, missing: Some(0) }));
    }

    /// How a step ends.
    pub fn step(&mut self, seq: u32, time_limit: u32) -> Outcome {
        let mut input = Head { layer: (seq % 2) as u16, reserved: 0, time_limit }.emit().to_vec();
        EXPERTS.iter().for_each(|e| input.extend(e.to_le_bytes()));
        WEIGHTS.iter().for_each(|w| input.extend(w.to_le_bytes()));
        hidden().iter().for_each(|v| input.extend(v.to_le_bytes()));
        assert_eq!(input.len(), Layout::new(&LIMITS, LANES as u16, 0).len());
        let memory = self.peer.memory_mut();
        memory.input = input;
        memory.sums.fill(f32::NAN);
        let now = self.ether.borrow().now;
        let (lanes, experts) = (LANES as u16, &EXPERTS[..]);
        let request = StepRequest { seq, plan: 1, lanes, experts, named: &[], broadcast: false, time_limit };
        self.peer.begin_step(now, request).expect("it may begin");
        self.until("the step ends", |p| p.done.contains_key(&seq));
        self.done[&seq]
    }

    /// What has landed of the last step is what the kernels give, bit for bit.
    pub fn assert_sums(&self, seq: u32) {
        let memory = self.peer.memory();
        let experts = usize::from(LIMITS.experts);
        let mut units: Vec<Vec<Line>> = Vec::new();
        let list = List(&memory.list);
        for expert in 0..LIMITS.experts {
            let unit = LIMITS.shape().unit(0, expert).index(LIMITS.shape());
            let at = (0..list.len())
                .find(|&i| list.get(i).is_some_and(|e| u32::from(e.layer) == seq % 2 && e.node == unit))
                .expect("a unit");
            units.push(
                memory.blocks[at]
                    .chunks(64)
                    .map(|c| {
                        let mut line = Line([0; 64]);
                        line.0[..c.len()].copy_from_slice(c);
                        line
                    })
                    .collect(),
            );
        }
        let table: Vec<UnitEntry<'_>> = units
            .iter()
            .map(|lines| {
                // SAFETY: lines are plain bytes.
                UnitEntry::new(unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), memory.blocks[0].len()) })
            })
            .collect();
        let root = LIMITS.shape().root();
        let limits = kernels::Limits::new(LIMITS.shape(), &[root], LANES, 2);
        let mut scratch = vec![0; scratch_len(&limits, LIMITS.shape(), HIDDEN, 1).expect("small")];
        let format = kernels::abi::format_of(LIMITS.format.into()).expect("a format");
        let config = Config {
            layout: UnitLayout::new(format, HIDDEN).expect("a layout"),
            shape: LIMITS.shape(),
            units: experts,
            table: &table,
            cores: 1,
            core0_share: FULL_SHARE,
            limits,
        };
        let (mut sums, mut present) = (vec![0.0; LANES * HIDDEN], vec![0; LANES]);
        let mut nodes = [HeldNode::new(root, 0, &mut sums, &mut present)];
        let mut holder = Holder::new(&config, &mut scratch).expect("it fits");
        let step = Step {
            layer: 0,
            mode: kernels::Mode::Exact,
            lanes: LANES,
            chosen: 2,
            ids: &EXPERTS,
            weights: &WEIGHTS,
            input: &hidden(),
            nodes: &mut nodes,
        };
        let core = Core { index: 0, isa: fp9::Isa::detect() };
        holder.begin(step).expect("it fits").run(core, &mut NoHooks).expect("it runs");
        let bits = |v: &[f32]| -> Vec<u32> { v.iter().map(|v| v.to_bits()).collect() };
        assert!(sums.iter().any(|&v| v != 0.0));
        assert_eq!(bits(&memory.sums), bits(&sums));
    }
}

const EXPERTS: [u16; 4] = [0, 2, 1, 2];
const WEIGHTS: [f32; 4] = [0.5, 0.25, -1.0, 2.0];

fn hidden() -> Vec<f32> {
    (0..LANES * HIDDEN).map(|i| (i % 13) as f32 - 6.0).collect()
}
