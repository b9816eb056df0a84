//! Hosts and ducks on one link under a fake clock.

use std::boxed::Box;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::vec;
use std::vec::Vec;

use crate::Micros;
use crate::crc::portable;
use crate::duck::{self, Session, To};
use crate::frame::{Frame, Kind};
use crate::frozen::{Announce, FEATURE_AVX2};
use crate::host::{self, Outcome, Peer, StepRequest};
use crate::key::{Domain, Key};
use crate::list::List;
use crate::message::{Verdict, VerdictCode};

use super::model::{DuckMemory, HostMemory, LIMITS, Random, StepData, list, program};

pub const DUCK: u64 = 100;
pub const HOST: u64 = 1;
pub const FRAME: usize = 1_500;

pub fn key() -> Key {
    Key::from_seed([42; 32])
}

/// Per mille of frames that suffer it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub drop: u64,
    pub double: u64,
    pub damage: u64,
    /// Delayed by up to [`Faults::delay_most`], so that later ones overtake.
    pub delay: u64,
    pub delay_most: Micros,
}

#[derive(Clone, Debug)]
enum Thing {
    Frame { from: u64, to: u64, bytes: Vec<u8> },
    Rows { duck: usize, life: u32, slot: usize, rows: core::ops::Range<usize> },
    Hashed { duck: usize, life: u32, ticket: u32, block: u32 },
}

pub struct DuckNode {
    pub session: Session<DuckMemory>,
    pub frozen: bool,
    pub cut: bool,
    pub life: u32,
    inbox: Vec<(u64, Vec<u8>)>,
    /// Steps under way in each slot, as (life of the work).
    work: [Option<u32>; duck::STEPS],
    works: u32,
    held: BTreeMap<[u8; 32], Vec<u8>>,
    pub compute: Micros,
    pub hangs: bool,
    pub verdict: Option<Verdict>,
    pub computed: u32,
    pub resets: Vec<u8>,
    pub opens: u32,
    pub lease_expired: u32,
}

pub struct HostNode {
    pub address: u64,
    pub id: [u8; 16],
    pub peers: Vec<Peer<HostMemory>>,
    pub done: Vec<BTreeMap<u32, Outcome>>,
    pub events: Vec<Vec<host::Event>>,
    pub active: Vec<Option<u16>>,
    pub epoch: u32,
    broadcasts: Vec<(host::Broadcast, Vec<u8>)>,
}

pub type Filter = Box<dyn FnMut(&Frame<'_>, u64) -> bool>;

pub struct World {
    pub now: Micros,
    pub random: Random,
    pub ducks: Vec<DuckNode>,
    pub hosts: Vec<HostNode>,
    pub faults: Faults,
    /// Whether a frame on its way to the address passes.
    pub filter: Option<Filter>,
    queue: BinaryHeap<Reverse<(Micros, u64)>>,
    things: BTreeMap<u64, Thing>,
    count: u64,
    pub events: u64,
    pub length: u32,
    pub plan: u16,
    pub captured: Vec<Vec<u8>>,
    pub capture: bool,
}

fn announce(duck: usize, boot: u64) -> Announce {
    Announce {
        protocol: 0,
        program: 2,
        cores: 4,
        features: FEATURE_AVX2,
        memory: 1 << 30,
        id: [duck as u8 + 1; 16],
        mac: [2, 0, 0, 0, 0, duck as u8],
        link: 2_500,
        firmware: [3; 32],
        nonce: [0; 16],
        epoch: 0,
        resident: 0,
        root: [0; 32],
        lease: 0,
        uptime: 0,
        boot,
    }
}

impl World {
    pub fn new(seed: u64, ducks: usize, length: u32) -> World {
        let mut world = World {
            now: 1_000_000,
            random: Random(seed),
            ducks: Vec::new(),
            hosts: Vec::new(),
            faults: Faults::default(),
            filter: None,
            queue: BinaryHeap::new(),
            things: BTreeMap::new(),
            count: 0,
            events: 0,
            length,
            plan: 0,
            captured: Vec::new(),
            capture: false,
        };
        for i in 0..ducks {
            let session = world.session(i);
            world.ducks.push(DuckNode {
                session,
                frozen: false,
                cut: false,
                life: 0,
                inbox: Vec::new(),
                work: [None; duck::STEPS],
                works: 0,
                held: BTreeMap::new(),
                compute: 300,
                hangs: false,
                verdict: None,
                computed: 0,
                resets: Vec::new(),
                opens: 0,
                lease_expired: 0,
            });
        }
        world.add_host([9; 16]);
        world
    }

    fn session(&mut self, duck: usize) -> Session<DuckMemory> {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.random.next().to_le_bytes());
        let config = duck::Config {
            announce: announce(duck, self.random.next()),
            kernels: [0; 32],
            key: key().public(),
            seed,
            max_frame: FRAME,
            crc: portable,
        };
        Session::new(self.now, config, DuckMemory::new())
    }

    fn peer(&mut self, duck: usize, id: [u8; 16], epoch: u32) -> Peer<HostMemory> {
        let slice = duck as u16 % LIMITS.slices;
        self.peer_with(duck, id, epoch, list(slice..slice + 1, self.length), false)
    }

    fn peer_with(&self, duck: usize, id: [u8; 16], epoch: u32, list: Vec<u8>, built_in: bool) -> Peer<HostMemory> {
        let kernels = if built_in { [0; 32] } else { program(self.length) };
        let config = host::Config {
            duck: [duck as u8 + 1; 16],
            host: id,
            key: key(),
            epoch,
            tag: 0,
            limits: LIMITS,
            kernels,
            kernels_signature: key().sign(Domain::Program, &kernels),
            lease: 2_000,
            max_frame: FRAME,
            silent_after: 50_000,
            load_rate: 0,
            crc: portable,
        };
        let memory = HostMemory { list, steps: BTreeMap::new(), damage: BTreeMap::new() };
        Peer::new(self.now, config, memory).expect("the test's limits are possible")
    }

    /// Host 0's duck `duck` is to hold nothing.
    pub fn empty_list(&mut self, duck: usize, built_in: bool) {
        let (id, epoch) = (self.hosts[0].id, self.hosts[0].epoch);
        self.hosts[0].peers[duck] = self.peer_with(duck, id, epoch, Vec::new(), built_in);
    }

    pub fn add_host(&mut self, id: [u8; 16]) -> usize {
        let epoch = self.random.next() as u32 | 1;
        let peers: Vec<_> = (0..self.ducks.len()).map(|d| self.peer(d, id, epoch)).collect();
        let n = peers.len();
        self.hosts.push(HostNode {
            address: HOST + self.hosts.len() as u64,
            id,
            peers,
            done: vec![BTreeMap::new(); n],
            events: vec![Vec::new(); n],
            active: vec![None; n],
            epoch,
            broadcasts: Vec::new(),
        });
        self.hosts.len() - 1
    }

    /// The same host starts again, without memory.
    pub fn restart_host(&mut self, host: usize) {
        let (id, address) = (self.hosts[host].id, self.hosts[host].address);
        let at = self.add_host(id);
        let mut fresh = self.hosts.remove(at);
        fresh.address = address;
        self.hosts[host] = fresh;
    }

    pub fn restart_duck(&mut self, duck: usize) {
        let session = self.session(duck);
        let node = &mut self.ducks[duck];
        node.session = session;
        node.life += 1;
        node.work = [None; duck::STEPS];
        node.held.clear();
        node.inbox.clear();
        node.frozen = false;
    }

    pub fn thaw(&mut self, duck: usize) {
        self.ducks[duck].frozen = false;
        for (from, bytes) in core::mem::take(&mut self.ducks[duck].inbox) {
            self.ducks[duck].session.handle_frame(self.now, from, &bytes);
        }
    }

    fn push(&mut self, at: Micros, thing: Thing) {
        self.count += 1;
        self.queue.push(Reverse((at, self.count)));
        self.things.insert(self.count, thing);
    }

    /// Puts a frame on the link, for it to suffer.
    pub fn send(&mut self, from: u64, to: u64, bytes: &[u8]) {
        if self.capture {
            self.captured.push(bytes.to_vec());
        }
        let cut = |a: u64| self.ducks.get(a.wrapping_sub(DUCK) as usize).is_some_and(|d| d.cut);
        if cut(from) || cut(to) || self.random.chance(self.faults.drop) {
            return;
        }
        if let (Some(filter), Ok(frame)) = (&mut self.filter, Frame::check(bytes, portable))
            && !filter(&frame, to)
        {
            return;
        }
        for _ in 0..1 + u64::from(self.random.chance(self.faults.double)) {
            let mut bytes = bytes.to_vec();
            if self.random.chance(self.faults.damage) {
                let at = self.random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << self.random.below(8);
            }
            let late =
                if self.random.chance(self.faults.delay) { self.random.below(self.faults.delay_most) } else { 0 };
            self.push(self.now + 10 + late, Thing::Frame { from, to, bytes });
        }
    }

    /// A frame that the link does nothing to.
    pub fn queue_frame(&mut self, from: u64, to: u64, bytes: &[u8]) {
        self.push(self.now + 10, Thing::Frame { from, to, bytes: bytes.to_vec() });
    }

    fn pump_duck(&mut self, d: usize) {
        if self.ducks[d].frozen {
            return;
        }
        let mut buf = [0; FRAME];
        while let Some(event) = self.ducks[d].session.poll_event() {
            self.act(d, event);
        }
        let mut frames = 0;
        while let Some(sent) = self.ducks[d].session.poll_transmit(self.now, &mut buf) {
            frames += 1;
            assert!(frames < 10_000, "a duck that never stops sending");
            let to: Vec<u64> = match sent.to {
                To::One(address) => vec![address],
                To::All => self.hosts.iter().map(|h| h.address).collect(),
            };
            to.into_iter().for_each(|to| self.send(DUCK + d as u64, to, &buf[..sent.len]));
        }
    }

    /// What a duck's program does about an event.
    fn act(&mut self, d: usize, event: duck::Event) {
        let (now, life) = (self.now, self.ducks[d].life);
        let node = &mut self.ducks[d];
        match event {
            duck::Event::Opened { same_list } => {
                node.opens += 1;
                if !same_list {
                    for (_, bytes) in core::mem::take(&mut node.session.memory_mut().blocks) {
                        node.held.insert(*blake3::hash(&bytes).as_bytes(), bytes);
                    }
                }
                // Cores stop at the next range, some time later.
            }
            duck::Event::Listed => {
                let list: Vec<_> = {
                    let list = node.session.list().expect("it was just told");
                    (0..list.len()).filter_map(|i| list.get(i)).collect()
                };
                for (i, entry) in list.iter().enumerate() {
                    if let Some(bytes) = node.held.get(&entry.digest) {
                        node.session.memory_mut().blocks.insert(i as u32, bytes.clone());
                        node.session.keep_block(i as u32);
                    }
                }
                node.session.list_ready();
            }
            duck::Event::Filled { ticket, block } => {
                self.push(now + 50, Thing::Hashed { duck: d, life, ticket, block });
            }
            duck::Event::Step { slot, .. } => {
                node.works += 1;
                node.work[slot] = Some(node.works);
                node.computed += 1;
                node.session.memory_mut().results[slot].fill(f32::NAN);
                if !node.hangs {
                    let (life, half) = (node.works, node.compute / 2);
                    self.push(now + half, Thing::Rows { duck: d, life, slot, rows: 0..32 });
                    self.push(now + 2 * half + 1, Thing::Rows { duck: d, life, slot, rows: 32..64 });
                }
            }
            duck::Event::LeaseExpired => node.lease_expired += 1,
            duck::Event::Reset { action } => node.resets.push(action),
        }
    }

    fn rows(&mut self, d: usize, life: u32, slot: usize, rows: core::ops::Range<usize>) {
        let node = &mut self.ducks[d];
        if node.work[slot] != Some(life) {
            return;
        }
        let last = rows.end == 64;
        if let Some(info) = node.session.step(slot) {
            let (layout, layer, lanes, nodes) = (info.layout, info.layer, info.lanes, info.nodes.to_vec());
            // A thaw may turn the order of the two halves round.
            let rows = 0..rows.end;
            node.session.memory_mut().compute(slot, &layout, layer, lanes, &nodes, rows.clone());
            node.session.rows_final(slot, rows.start as u32..rows.end as u32);
        }
        if last {
            node.work[slot] = None;
            let verdict = node.verdict.unwrap_or(Verdict { busy: 300, ..Verdict::new(VerdictCode::Ok) });
            node.session.step_done(slot, verdict);
        }
    }

    fn pump_host(&mut self, h: usize) {
        let mut buf = [0; FRAME];
        let address = self.hosts[h].address;
        for (mut frames, body) in core::mem::take(&mut self.hosts[h].broadcasts) {
            while let Some(len) =
                frames.poll_transmit(&mut buf, |at, out| out.copy_from_slice(&body[at..at + out.len()]))
            {
                (0..self.ducks.len()).for_each(|d| self.send(address, DUCK + d as u64, &buf[..len]));
            }
        }
        for d in 0..self.hosts[h].peers.len() {
            while let Some(event) = self.hosts[h].peers[d].poll_event() {
                self.note(h, d, event);
            }
            let mut frames = 0;
            while let Some(len) = self.hosts[h].peers[d].poll_transmit(self.now, &mut buf) {
                frames += 1;
                assert!(frames < 10_000, "a host that never stops sending");
                self.send(address, DUCK + d as u64, &buf[..len]);
            }
        }
    }

    /// The nodes that a duck computes under a plan: its slice in one piece or in two.
    pub fn nodes(&self, duck: usize, plan: u16) -> Vec<u16> {
        let shape = LIMITS.shape();
        let slice = kernels::tree::Node { slice: duck as u16 % LIMITS.slices, slices: 1, depth: 0, residue: 0 };
        let (left, right) = slice.children(shape).expect("four experts");
        let parts = if plan.is_multiple_of(2) { vec![slice] } else { vec![left, right] };
        parts.iter().map(|n| n.index(shape)).collect()
    }

    fn note(&mut self, h: usize, d: usize, event: host::Event) {
        let (plan, nodes) = (self.plan, self.nodes(d, self.plan));
        let (now, host) = (self.now, &mut self.hosts[h]);
        if !matches!(event, host::Event::Status | host::Event::Loaded { .. }) {
            host.events[d].push(event);
        }
        match event {
            host::Event::StepDone { seq, outcome, .. } => {
                if outcome == Outcome::Ok {
                    host.peers[d].memory().steps[&seq].assert_complete(self.length as usize);
                }
                assert_eq!(host.done[d].insert(seq, outcome), None, "a step ended twice");
            }
            host::Event::Silent { .. } => host.active[d] = None,
            host::Event::Joined { resident, blocks }
            | host::Event::Rejoined { resident, blocks }
            | host::Event::Loaded { resident, blocks }
                if resident == blocks =>
            {
                host.peers[d].assign(now, plan, &nodes).expect("it has just come up");
            }
            host::Event::Assigned { plan, missing: Some(0) } => host.active[d] = Some(plan),
            _ => {}
        }
    }

    /// Begins a step with a duck. False if the peer does not take it.
    pub fn begin(&mut self, h: usize, d: usize, seq: u32, broadcast: bool, named: &[u16]) -> bool {
        let plan = self.plan;
        let nodes = if named.is_empty() { self.nodes(d, plan) } else { named.to_vec() };
        let step = StepData::random(&mut self.random, named, &nodes);
        self.begin_with(h, &[d], seq, broadcast, step)
    }

    pub fn begin_with(&mut self, h: usize, ducks: &[usize], seq: u32, broadcast: bool, step: StepData) -> bool {
        let (now, plan) = (self.now, self.plan);
        let mut all = true;
        for &d in ducks {
            let nodes = if step.named.is_empty() { self.nodes(d, plan) } else { step.named.clone() };
            let step = StepData { nodes, ..step.clone() };
            let peer = &mut self.hosts[h].peers[d];
            let request = StepRequest {
                seq,
                plan,
                lanes: step.lanes,
                experts: &step.experts,
                named: &step.named,
                broadcast,
                time_limit: step.time_limit,
            };
            let begun = peer.begin_step(now, request).is_ok();
            if begun {
                peer.memory_mut().steps.insert(seq, step.clone());
                peer.memory_mut().steps.retain(|&s, _| seq.wrapping_sub(s) < 10_000);
            }
            all &= begun;
        }
        if broadcast {
            let frames = host::Broadcast::new(&LIMITS, self.hosts[h].epoch, seq, plan, step.lanes, portable);
            self.hosts[h].broadcasts.push((frames, step.body()));
        }
        all
    }

    fn pump(&mut self) {
        (0..self.ducks.len()).for_each(|d| self.pump_duck(d));
        (0..self.hosts.len()).for_each(|h| self.pump_host(h));
    }

    /// Lets one thing happen. Returns whether anything was left to happen.
    pub fn step(&mut self) -> bool {
        self.pump();
        let timers = self.ducks.iter().filter(|d| !d.frozen).filter_map(|d| d.session.next_timeout());
        let timer = timers.chain(self.hosts.iter().flat_map(|h| &h.peers).filter_map(Peer::next_timeout)).min();
        let next = self.queue.peek().map(|r| r.0.0);
        self.events += 1;
        match (next, timer) {
            (Some(at), timer) if timer.is_none_or(|t| at <= t) => {
                let Reverse((at, id)) = self.queue.pop().expect("it was just seen");
                self.now = self.now.max(at);
                let thing = self.things.remove(&id).expect("queued things exist");
                self.happen(thing);
            }
            (_, Some(at)) => {
                self.now = self.now.max(at);
                let now = self.now;
                self.ducks.iter_mut().filter(|d| !d.frozen).for_each(|d| d.session.handle_timeout(now));
                self.hosts.iter_mut().flat_map(|h| &mut h.peers).for_each(|p| p.handle_timeout(now));
            }
            _ => return false,
        }
        true
    }

    fn happen(&mut self, thing: Thing) {
        let now = self.now;
        match thing {
            Thing::Frame { from, to, bytes } if to >= DUCK => {
                let duck = &mut self.ducks[(to - DUCK) as usize];
                if !duck.frozen {
                    duck.session.handle_frame(now, from, &bytes);
                } else if duck.inbox.len() < 64 {
                    duck.inbox.push((from, bytes));
                }
            }
            Thing::Frame { from, to, bytes } => {
                let host = self.hosts.iter_mut().find(|h| h.address == to);
                if let Some(peer) = host.and_then(|h| h.peers.get_mut((from - DUCK) as usize)) {
                    peer.handle_frame(now, &bytes);
                }
            }
            Thing::Rows { duck, life, slot, rows } => {
                if self.ducks[duck].frozen {
                    return self.push(now + 1_000, Thing::Rows { duck, life, slot, rows });
                }
                self.rows(duck, life, slot, rows);
            }
            Thing::Hashed { duck, life, ticket, block } => {
                let node = &mut self.ducks[duck];
                if node.life != life {
                    return;
                }
                let Some(bytes) = node.session.memory().blocks.get(&block) else { return };
                let digest = *blake3::hash(bytes).as_bytes();
                node.session.block_hashed(ticket, block, &digest);
                for host in &mut self.hosts {
                    if let Some(left) = host.peers[duck].memory_mut().damage.get_mut(&block) {
                        *left = left.saturating_sub(1);
                    }
                }
            }
        }
    }

    /// Goes on until `done`, for at most so many microseconds.
    #[track_caller]
    pub fn run(&mut self, most: Micros, what: &str, mut done: impl FnMut(&World) -> bool) {
        let (end, limit) = (self.now + most, self.events + 1_000_000 + 10 * most);
        loop {
            self.pump();
            if done(self) {
                return;
            }
            assert!(self.step() && self.now <= end && self.events < limit, "{what}: not within {most} us");
        }
    }

    pub fn wait(&mut self, micros: Micros) {
        let end = self.now + micros;
        let (events, most) = (self.events, 1_000_000 + 10 * micros);
        while self.now < end {
            assert!(self.step() && self.events - events < most, "time stands still");
        }
        self.pump();
    }

    /// Everything found, opened, loaded and assigned.
    #[track_caller]
    pub fn ready(&mut self) {
        self.run(10_000_000, "ready", |w| w.hosts[0].active.iter().all(|a| *a == Some(w.plan)));
    }

    /// One step with duck 0, to its end.
    #[track_caller]
    pub fn one(&mut self, seq: u32, broadcast: bool) -> Outcome {
        assert!(self.begin(0, 0, seq, broadcast, &[]));
        self.run(5_000_000, "step", |w| w.hosts[0].done[0].contains_key(&seq));
        self.hosts[0].done[0][&seq]
    }

    pub fn peer0(&self) -> &Peer<HostMemory> {
        &self.hosts[0].peers[0]
    }

    pub fn saw(&self, event: host::Event) -> bool {
        self.hosts[0].events[0].contains(&event)
    }

    /// Drops the first `n` frames of a kind on their way to anyone.
    pub fn drop_first(&mut self, kind: Kind, n: usize) {
        let mut left = n;
        self.filter = Some(Box::new(move |frame, _| {
            let hit = frame.kind() == kind && left > 0;
            left -= usize::from(hit);
            !hit
        }));
    }
}

/// The whole list, for tests that look into it.
pub fn blocks(world: &World) -> u32 {
    List(&world.hosts[0].peers[0].memory().list).len() as u32
}
