//! A host of one duck, whatever the duck is: a thread, a process, a machine. A random model, and what its steps come to by the kernels alone.
#![allow(missing_docs, reason = "names of tests' own things say what they are")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fp9::format::{bf16, e4m3};
use kernels::abi::FULL_SHARE;
use kernels::unit::{ALIGN, Expert, SLICE, Source, Tensor, UnitLayout, pack_unit};
use kernels::{Config, Core, HeldNode, Holder, NoHooks, Running, Step, UnitEntry, scratch_len};
use link::{BROADCAST, ETHERNET, Header, Link, Mac};
use wire::body::{Head, Layout};
use wire::frame::ETHERTYPE;
use wire::host::{self, Event, Outcome, Peer, Piece, StepRequest};
use wire::key::{Domain, Key};
use wire::limits::{Limits, Mode};
use wire::list::{Entry, List, PROGRAM_LAYER};

pub const LIMITS: Limits = Limits {
    hidden: 256,
    layers: 2,
    slices: 2,
    experts: 8,
    chosen: 2,
    lanes: 5,
    nodes: 3,
    mode: Mode::Exact,
    format: 1,
    step_chunk: 256,
    load_chunk: 1_440,
};

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Uniform in -1..1.
    pub fn unit(&mut self) -> f32 {
        (self.number() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Bytes that start at a multiple of 64.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Aligned {
        let bytes = vec![0; len + ALIGN];
        let start = bytes.as_ptr().align_offset(ALIGN);
        Aligned { bytes, start, len }
    }

    fn get(&self) -> &[u8] {
        &self.bytes[self.start..][..self.len]
    }

    fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }
}

/// All units of a random model.
pub struct Model {
    pub limits: Limits,
    layout: UnitLayout,
    /// By layer, slice, expert.
    blocks: BTreeMap<(u16, u16, u16), Aligned>,
}

impl Model {
    /// Units of one seed are the same in every model that has them.
    pub fn random(limits: Limits, seed: u64) -> Arc<Model> {
        let format = kernels::abi::format_of(limits.format.into()).expect("a format");
        let hidden = limits.hidden as usize;
        let layout = UnitLayout::new(format, hidden).expect("a layout");
        let width = usize::from(limits.slices) * SLICE;
        let mut blocks = BTreeMap::new();
        for layer in 0..limits.layers {
            for expert in 0..limits.experts {
                let mut random = Random(seed ^ u64::from(layer) << 20 ^ u64::from(expert));
                let mut codes = || -> Vec<u8> {
                    let finite = |c: u8| if c & 0x7f == 0x7f { c ^ 1 } else { c };
                    (0..width * hidden).map(|_| finite(random.number() as u8)).collect()
                };
                let (gate, up, down) = (codes(), codes(), codes());
                let scales: Vec<f32> =
                    (0..width.div_ceil(128) * hidden.div_ceil(128)).map(|_| random.unit() * 1e-3).collect();
                let tensor = |codes| Tensor { codes, scales: &scales[..] };
                let source =
                    Source::E4m3(Expert { gate: tensor(&gate[..]), up: tensor(&up), down: tensor(&down), width });
                for slice in 0..limits.slices {
                    let mut block = Aligned::new(layout.len());
                    pack_unit(&layout, &source, slice.into(), block.get_mut()).expect("it fits");
                    blocks.insert((layer, slice, expert), block);
                }
            }
        }
        Arc::new(Model { limits, layout, blocks })
    }

    fn block(&self, entry: Entry) -> &[u8] {
        let node = self.limits.shape().node(entry.node).expect("a unit");
        self.blocks[&(entry.layer, node.slice, node.expert())].get()
    }

    /// The list of all units of some slices.
    pub fn list(&self, slices: std::ops::Range<u16>) -> Vec<u8> {
        let shape = self.limits.shape();
        let mut entries: Vec<Entry> = self
            .blocks
            .iter()
            .filter(|((_, slice, _), _)| slices.contains(slice))
            .map(|(&(layer, slice, expert), block)| Entry {
                layer,
                node: shape.unit(slice, expert).index(shape),
                length: block.len as u32,
                digest: *blake3::hash(block.get()).as_bytes(),
            })
            .collect();
        entries.sort_by_key(|e| (e.layer, e.node));
        entries.iter().flat_map(Entry::emit).collect()
    }

    /// `[nodes, lanes, hidden]`, NaN where nothing is owed: by the kernels, on one core.
    pub fn sums(&self, data: &StepData) -> Vec<f32> {
        self.sums_by(data, 1, |running| {
            running.run(Core { index: 0, isa: fp9::Isa::detect() }, &mut NoHooks).expect("it runs");
        })
    }

    /// The same, by whatever runs the step on so many cores.
    pub fn sums_by(&self, data: &StepData, cores: usize, run: impl FnOnce(Running<'_>)) -> Vec<f32> {
        let (shape, hidden, lanes) = (self.limits.shape(), self.limits.hidden as usize, data.lanes);
        let nodes: Vec<_> = data.nodes.iter().map(|&n| shape.node(n).expect("a node")).collect();
        let mut table = Vec::new();
        for node in &nodes {
            for slice in node.slice..node.slice + node.slices {
                for expert in (0..shape.experts).filter(|&e| node.has(slice, e)) {
                    table.push(UnitEntry::new(self.blocks[&(data.layer, slice, expert)].get()));
                }
            }
        }
        let limits = kernels::Limits::new(shape, &nodes, lanes, self.limits.chosen.into());
        let mut scratch = vec![0; scratch_len(&limits, shape, hidden, cores).expect("small")];
        let config = Config {
            layout: self.layout,
            shape,
            units: table.len(),
            table: &table,
            cores,
            core0_share: FULL_SHARE,
            limits,
        };
        let mut sums = vec![f32::NAN; nodes.len() * lanes * hidden];
        let mut present = vec![0; nodes.len() * lanes];
        let (mut first, mut held) = (0, Vec::new());
        for ((&node, sums), present) in nodes.iter().zip(sums.chunks_mut(lanes * hidden)).zip(present.chunks_mut(lanes))
        {
            held.push(HeldNode::new(node, first, sums, present));
            first += node.unit_count(shape);
        }
        let mode = if self.limits.mode == Mode::Exact { kernels::Mode::Exact } else { kernels::Mode::Bf16 };
        let input: Vec<f32> = data.hidden.iter().map(|&v| travelled(self.limits.mode, v)).collect();
        let mut holder = Holder::new(&config, &mut scratch).expect("it fits");
        let step = Step {
            layer: 0,
            mode,
            lanes,
            chosen: self.limits.chosen.into(),
            ids: &data.experts,
            weights: &data.weights,
            input: &input,
            nodes: &mut held,
        };
        let running = holder.begin(step).expect("it fits");
        run(running);
        drop(held);
        sums
    }
}

/// What arrives of a value, with scales of 1.
fn travelled(mode: Mode, value: f32) -> f32 {
    match mode {
        Mode::Exact => value,
        Mode::Bf16 => bf16::decode(bf16::encode(value)),
        Mode::Fp8 => e4m3::decode(e4m3::encode(value)),
    }
}

/// A step.
#[derive(Clone, Debug)]
pub struct StepData {
    pub layer: u16,
    pub lanes: usize,
    pub experts: Vec<u16>,
    pub weights: Vec<f32>,
    pub hidden: Vec<f32>,
    pub named: Vec<u16>,
    /// What is computed: the named nodes, or the plan's.
    pub nodes: Vec<u16>,
    pub time_limit: u32,
}

impl StepData {
    pub fn random(limits: &Limits, lanes: usize, plan: &[u16], named: &[u16], seed: u64) -> StepData {
        let mut random = Random(seed);
        let mut experts = Vec::new();
        for _ in 0..lanes {
            let mut all: Vec<u16> = (0..limits.experts).collect();
            let mut chosen: Vec<u16> =
                (0..limits.chosen).map(|_| all.swap_remove(random.number() as usize % all.len())).collect();
            chosen.sort_unstable();
            experts.extend(chosen);
        }
        StepData {
            layer: (random.number() % u64::from(limits.layers)) as u16,
            lanes,
            weights: experts.iter().map(|_| random.unit()).collect(),
            experts,
            hidden: (0..lanes * limits.hidden as usize).map(|_| random.unit() * 4.0).collect(),
            named: named.into(),
            nodes: if named.is_empty() { plan.into() } else { named.into() },
            time_limit: 0,
        }
    }

    pub fn body(&self, limits: &Limits) -> Vec<u8> {
        let mut body = Head { layer: self.layer, reserved: 0, time_limit: self.time_limit }.emit().to_vec();
        self.named.iter().chain(&self.experts).for_each(|v| body.extend(v.to_le_bytes()));
        self.weights.iter().for_each(|v| body.extend(v.to_le_bytes()));
        for lane in self.hidden.chunks(limits.hidden as usize) {
            match limits.mode {
                Mode::Exact => lane.iter().for_each(|v| body.extend(v.to_le_bytes())),
                Mode::Bf16 => lane.iter().for_each(|&v| body.extend(bf16::encode(v).to_le_bytes())),
                Mode::Fp8 => {
                    body.extend(lane.iter().map(|&v| e4m3::encode(v)));
                    (0..lane.len().div_ceil(128)).for_each(|_| body.extend(1f32.to_le_bytes()));
                }
            }
        }
        assert_eq!(body.len(), Layout::new(limits, self.lanes as u16, self.named.len() as u16).len());
        body
    }
}

pub struct HostMemory {
    model: Arc<Model>,
    list: Vec<u8>,
    program: Vec<u8>,
    /// By number of the step: its body, lanes, and `[nodes, lanes, hidden]` of what has landed.
    steps: BTreeMap<u32, (Vec<u8>, usize, Vec<f32>)>,
}

impl host::Memory for HostMemory {
    fn list(&self) -> &[u8] {
        &self.list
    }

    fn read_block(&self, block: u32, offset: u32, out: &mut [u8]) {
        let entry = List(&self.list).get(block as usize).expect("a block of the list");
        let block = if entry.layer == PROGRAM_LAYER { &self.program } else { self.model.block(entry) };
        out.copy_from_slice(&block[offset as usize..][..out.len()]);
    }

    fn read_input(&self, seq: u32, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.steps[&seq].0[offset..][..out.len()]);
    }

    fn land(&mut self, piece: Piece<'_>) {
        let hidden = self.model.limits.hidden as usize;
        let (_, lanes, sums) = self.steps.get_mut(&piece.seq).expect("a step that was begun");
        let at = (piece.place * *lanes + usize::from(piece.lane)) * hidden + piece.start;
        for (sum, raw) in sums[at..].iter_mut().zip(piece.bytes.as_chunks().0) {
            assert!(sum.is_nan(), "a value lands once");
            *sum = f32::from_le_bytes(*raw);
        }
    }
}

/// The pond's key in all tests.
pub fn key() -> Key {
    Key::from_seed([42; 32])
}

/// A host's end of a duck that is to have these slices' units, and `program` if it has no kernels of its own.
pub fn peer(
    now: u64,
    id: [u8; 16],
    model: &Arc<Model>,
    slices: std::ops::Range<u16>,
    program: Option<&[u8]>,
    change: impl FnOnce(&mut host::Config),
) -> Peer<HostMemory> {
    let mut config = host::Config {
        duck: id,
        host: [1; 16],
        key: key(),
        epoch: 77,
        tag: 1,
        limits: model.limits,
        kernels: wire::built_in_kernels(),
        kernels_signature: [0; 64],
        lease: 10_000,
        max_frame: 1_500,
        silent_after: 2_000_000,
        load_rate: 0,
        crc: wire::crc::native,
    };
    let mut list = model.list(slices);
    if let Some(program) = program {
        let digest = *blake3::hash(program).as_bytes();
        list.extend(Entry { layer: PROGRAM_LAYER, node: 0, length: program.len() as u32, digest }.emit());
        (config.kernels, config.kernels_signature) = (digest, key().sign(Domain::Program, &digest));
    }
    change(&mut config);
    let program = program.unwrap_or_default().to_vec();
    let memory = HostMemory { model: Arc::clone(model), list, program, steps: BTreeMap::new() };
    Peer::new(now, config, memory).expect("sound limits")
}

/// Begins a step.
pub fn begin(peer: &mut Peer<HostMemory>, now: u64, seq: u32, plan: u16, data: &StepData) {
    let limits = *peer.limits();
    let sums = vec![f32::NAN; data.nodes.len() * data.lanes * limits.hidden as usize];
    peer.memory_mut().steps.insert(seq, (data.body(&limits), data.lanes, sums));
    let request = StepRequest {
        seq,
        plan,
        lanes: data.lanes as u16,
        experts: &data.experts,
        named: &data.named,
        broadcast: false,
        time_limit: data.time_limit,
    };
    peer.begin_step(now, request).expect("it may begin");
}

/// What has landed of a step are these very bits.
pub fn assert_landed(peer: &Peer<HostMemory>, seq: u32, expected: &[f32]) {
    let (_, _, found) = &peer.memory().steps[&seq];
    let bits = |v: &[f32]| -> Vec<u32> { v.iter().map(|v| v.to_bits()).collect() };
    assert_eq!(bits(found), bits(expected), "step {seq}");
}

/// A host of one duck.
pub struct Host {
    link: Box<dyn Link>,
    duck: Mac,
    patience: Duration,
    origin: Instant,
    pub peer: Peer<HostMemory>,
    pub events: Vec<Event>,
    /// Frames that were sent, where somebody wants them.
    pub sent: Option<Vec<Vec<u8>>>,
    pub done: BTreeMap<u32, (Outcome, u64)>,
}

impl Host {
    /// A host that wants these slices' units on the duck at `duck`, and `program` if that has no kernels of its own.
    pub fn new(link: Box<dyn Link>, duck: (Mac, [u8; 16]), model: &Arc<Model>, slices: std::ops::Range<u16>) -> Host {
        Host::with(link, duck, model, slices, None, |_| ())
    }

    pub fn with(
        link: Box<dyn Link>,
        (duck, id): (Mac, [u8; 16]),
        model: &Arc<Model>,
        slices: std::ops::Range<u16>,
        program: Option<&[u8]>,
        change: impl FnOnce(&mut host::Config),
    ) -> Host {
        let peer = peer(0, id, model, slices, program, |config| {
            config.max_frame = link.mtu();
            change(config);
        });
        let patience = Duration::from_secs(20);
        Host {
            link,
            duck,
            patience,
            origin: Instant::now(),
            peer,
            events: Vec::new(),
            sent: None,
            done: BTreeMap::new(),
        }
    }

    /// How long [`Host::until`] waits, for ducks that are slower than a thread.
    pub fn patient(mut self, patience: Duration) -> Host {
        self.patience = patience;
        self
    }

    /// The model whose units the duck has.
    pub fn model(&self) -> &Arc<Model> {
        &self.peer.memory().model
    }

    /// The link, for another host of the same duck.
    pub fn into_link(self) -> Box<dyn Link> {
        self.link
    }

    pub fn now(&self) -> u64 {
        self.origin.elapsed().as_micros() as u64
    }

    /// Takes and sends what there is.
    pub fn turn(&mut self) {
        let now = self.now();
        let Host { link, peer, duck, sent, .. } = self;
        let (duck, own) = (*duck, link.mac());
        link.rx(&mut |frame| {
            assert!(frame.len() >= 60, "short frames are padded");
            if Header::parse(frame).is_some_and(|h| h.from == duck && [own, BROADCAST].contains(&h.to)) {
                peer.handle_frame(now, &frame[ETHERNET..]);
            }
        });
        if peer.next_timeout().is_some_and(|at| at <= now) {
            peer.handle_timeout(now);
        }
        let fill = &mut |buf: &mut [u8]| {
            Header { to: duck, from: own, ethertype: ETHERTYPE }.emit(buf);
            let len = peer.poll_transmit(now, &mut buf[ETHERNET..]).map_or(0, |len| ETHERNET + len);
            if let Some(sent) = sent.as_mut().filter(|_| len > 0) {
                sent.push(buf[..len].to_vec());
            }
            len
        };
        while link.tx(fill) {}
        link.flush();
        while let Some(event) = self.peer.poll_event() {
            match event {
                Event::StepDone { seq, outcome, micros } => _ = self.done.insert(seq, (outcome, micros)),
                event => self.events.push(event),
            }
        }
    }

    /// Goes on until `ready`.
    pub fn until(&mut self, what: &str, ready: impl Fn(&Host) -> bool) {
        let start = Instant::now();
        while !ready(self) {
            assert!(start.elapsed() < self.patience, "{what} within {:?}; events: {:?}", self.patience, self.events);
            self.turn();
            std::thread::yield_now();
        }
    }

    pub fn wait(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.turn();
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Until the duck is up, with all blocks of the list.
    pub fn loaded(&mut self) {
        let blocks = List(host::Memory::list(self.peer.memory())).len() as u32;
        self.until("all blocks are resident", |h| h.peer.is_up() && (0..blocks).all(|b| h.peer.is_resident(b)));
    }

    pub fn assign(&mut self, plan: u16, nodes: &[u16]) {
        let now = self.now();
        self.peer.assign(now, plan, nodes).expect("the duck is up");
        let answer = |e: &Event| matches!(e, Event::Assigned { plan: p, missing: Some(0) } if *p == plan);
        self.until("the plan is active", |h| h.events.iter().any(answer));
    }

    pub fn begin(&mut self, seq: u32, plan: u16, data: &StepData) {
        let now = self.now();
        begin(&mut self.peer, now, seq, plan, data);
    }

    pub fn outcome(&mut self, seq: u32) -> Outcome {
        self.until("the step ends", |h| h.done.contains_key(&seq));
        self.done[&seq].0
    }

    /// The step ended well, with these very bits.
    pub fn assert_sums(&mut self, seq: u32, expected: &[f32]) {
        assert_eq!(self.outcome(seq), Outcome::Ok);
        assert_landed(&self.peer, seq, expected);
    }
}

/// Numbers of the nodes of whole slices.
pub fn slice_nodes(limits: &Limits, slices: std::ops::Range<u16>) -> Vec<u16> {
    let shape = limits.shape();
    slices.map(|slice| kernels::tree::Node { slice, slices: 1, depth: 0, residue: 0 }.index(shape)).collect()
}
