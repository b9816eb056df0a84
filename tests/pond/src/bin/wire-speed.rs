//! What the duck protocol costs beside the link that it runs on: a step with nothing to compute against an echo of the same bytes, and loading
//! blocks against streaming them. Ratios of medians, taken in turn in one run.
//!
//! `wire-speed [--rounds N]` runs over UDP on the loopback interface.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use duckd::{HugePages, Node, Options, Stop};
use kernels::tree::Shape;
use link::{ETHERNET, Link, Mac, Udp};
use wire::Limits;
use wire::frozen::Announce;
use wire::host::{Config, Event, Memory, Outcome, Peer, Piece, StepRequest};
use wire::key::Key;
use wire::limits::{Mode, chunk_for};
use wire::list::Entry;

/// Bytes of the verdict frame, the whole answer to a step without work.
const VERDICT: usize = ETHERNET + 32 + 40;
/// A step of two lanes of DeepSeek-V3.2 in fp32.
const HIDDEN: u32 = 7168;
const BLOCK: usize = 1 << 20;
const BLOCKS: usize = 64;

/// Pauses without a frame before a thread gives up its core.
const SPINS: u32 = 64;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1));
    let rounds: usize = value("--rounds").and_then(|n| n.parse().ok()).unwrap_or(2_000);
    let ends = || -> (Box<dyn Link>, Box<dyn Link>) {
        let any = "127.0.0.1:0".parse().expect("an address");
        let one = Udp::bind(any, &[], None, 9600).expect("a free port");
        let other = Udp::bind(any, &[one.local_addr()], None, 9600).expect("a free port");
        let address = one.local_addr();
        drop(one);
        let one = Udp::bind(address, &[other.local_addr()], None, 9600).expect("the port was free");
        (Box::new(one), Box::new(other))
    };
    let (host, far) = ends();
    println!("link: {}", host.describe());
    let mut bare = Bare::start(host, far);
    let (host, far) = ends();
    let mut pond = Pond::start(host, far);
    for _ in 0..200 {
        bare.echo();
        pond.step();
    }
    let (mut echoes, mut steps) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        echoes.push(bare.echo());
        steps.push(pond.step());
    }
    let (echo, step) = (median(&mut echoes), median(&mut steps));
    println!(
        "echo {:.1} µs, step without work {:.1} µs, ratio {:.2}",
        micros(echo),
        micros(step),
        micros(step) / micros(echo)
    );
    let (mut streams, mut loads) = (Vec::new(), Vec::new());
    for round in 0..7 {
        streams.push(bare.stream(BLOCKS * BLOCK));
        loads.push(pond.load(round));
    }
    let (stream, load) = (median(&mut streams), median(&mut loads));
    let rate = |time: Duration| (BLOCKS * BLOCK) as f64 / time.as_secs_f64() / 1e9;
    println!(
        "streaming {:.2} GB/s, loading {:.2} GB/s, ratio {:.2}",
        rate(stream),
        rate(load),
        rate(load) / rate(stream)
    );
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Spins, then yields.
fn pause(idle: &mut u32) {
    *idle += 1;
    if *idle < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
}

fn header(buf: &mut [u8], to: Mac, from: Mac) {
    link::Header { to, from, ethertype: wire::ETHERTYPE }.emit(buf).expect("a link's buffers hold a header");
}

fn input_len() -> usize {
    limits(1500).input_len()
}

/// A peer that answers the bytes of a step's input by those of a verdict, and acknowledges a stream; nothing is looked at.
struct Bare {
    link: Box<dyn Link>,
    far: Mac,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Bare {
    fn start(link: Box<dyn Link>, mut far: Box<dyn Link>) -> Bare {
        let stop = Arc::new(AtomicBool::new(false));
        let (own, host, stopped) = (far.mac(), link.mac(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let (mut idle, mut got, mut streamed, wanted) = (0, 0, 0u32, input_len());
            while !stopped.load(Ordering::Relaxed) {
                let mut answers = 0;
                let n = far.rx(&mut |frame| {
                    if frame[ETHERNET] == 0 {
                        got += frame.len() - ETHERNET - 32;
                        if got >= wanted {
                            (got, answers) = (0, answers + 1);
                        }
                    } else {
                        streamed += 1;
                        answers += u32::from(streamed.is_multiple_of(16));
                    }
                });
                for _ in 0..answers {
                    far.tx(&mut |buf| {
                        header(buf, host, own);
                        VERDICT
                    });
                }
                far.flush();
                if n > 0 { idle = 0 } else { pause(&mut idle) }
            }
        });
        Bare { link, far: own, stop, thread: Some(thread) }
    }

    fn send(&mut self, len: usize, mark: u8) {
        let (to, from) = (self.far, self.link.mac());
        self.link.tx(&mut |buf| {
            header(buf, to, from);
            buf[ETHERNET] = mark;
            len
        });
    }

    fn echo(&mut self) -> Duration {
        let started = Instant::now();
        let (chunk, mut left) = (chunk_for(1500), input_len());
        while left > 0 {
            let part = chunk.min(left);
            self.send(ETHERNET + 32 + part, 0);
            left -= part;
        }
        self.link.flush();
        let mut idle = 0;
        while self.link.rx(&mut |_| {}) == 0 {
            pause(&mut idle);
        }
        started.elapsed()
    }

    /// With as many frames on their way at most as loading has.
    fn stream(&mut self, bytes: usize) -> Duration {
        let started = Instant::now();
        let chunk = chunk_for(self.link.mtu());
        let frames = bytes.div_ceil(chunk).next_multiple_of(16);
        let (mut sent, mut acked, mut idle) = (0, 0, 0);
        while acked < frames {
            while sent < frames && sent - acked < wire::host::IN_FLIGHT {
                self.send(ETHERNET + 32 + chunk, 1);
                sent += 1;
            }
            self.link.flush();
            let n = self.link.rx(&mut |_| {});
            acked += 16 * n;
            if n > 0 { idle = 0 } else { pause(&mut idle) }
        }
        started.elapsed()
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

const SHAPE: Shape = Shape { slices: 2, experts: 256 };

fn limits(mtu: usize) -> Limits {
    Limits {
        hidden: HIDDEN,
        layers: 1,
        slices: SHAPE.slices,
        experts: SHAPE.experts,
        chosen: 8,
        lanes: 2,
        nodes: 2,
        mode: Mode::Exact,
        format: 0,
        step_chunk: chunk_for(1500) as u16,
        load_chunk: chunk_for(mtu) as u16,
    }
}

/// What a session of this measurement reads and writes: blocks that are computed from their number, an input of zeros.
struct Mine {
    list: Vec<u8>,
    blocks: Arc<Vec<Vec<u8>>>,
    input: Vec<u8>,
}

impl Memory for Mine {
    fn list(&self) -> &[u8] {
        &self.list
    }
    fn read_block(&self, block: u32, offset: u32, out: &mut [u8]) {
        out.copy_from_slice(&self.blocks[block as usize][offset as usize..][..out.len()]);
    }
    fn read_input(&self, _: u32, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.input[offset..][..out.len()]);
    }
    fn land(&mut self, _: Piece<'_>) {}
}

/// A duck in a thread, and a host's session with it on this one.
struct Pond {
    link: Box<dyn Link>,
    far: Mac,
    started: Instant,
    peer: Option<Box<Peer<Mine>>>,
    duck: [u8; 16],
    seq: u32,
    epoch: u32,
    stop: Stop,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Pond {
    fn start(link: Box<dyn Link>, far: Box<dyn Link>) -> Pond {
        let (duck, key, mac, stop) = (*b"wire-speed\0\0\0\0\0\0", Key::from_seed([1; 32]), far.mac(), Stop::new());
        let options = Options {
            memory: 2 * (BLOCKS * BLOCK) as u64,
            lock: false,
            huge_pages: HugePages::Off,
            scrub: None,
            ..Options::new(duck, key.public())
        };
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut node = Node::new(far, options).expect("memory for the blocks");
            node.run(&stopped);
        });
        let mut pond = Pond {
            link,
            far: mac,
            started: Instant::now(),
            peer: None,
            duck,
            seq: 0,
            epoch: 0,
            stop,
            thread: Some(thread),
        };
        pond.open(0);
        pond
    }

    /// A new session; with `salt` not 0 it has blocks that the duck has never seen.
    fn open(&mut self, salt: u64) {
        let blocks: Vec<Vec<u8>> = match salt {
            0 => Vec::new(),
            _ => (0..BLOCKS as u64)
                .map(|b| (0..BLOCK as u64 / 8).flat_map(|i| (i * 7 + b + salt * 1000).to_le_bytes()).collect())
                .collect(),
        };
        let mut list = Vec::new();
        for (at, block) in blocks.iter().enumerate() {
            let node = SHAPE.unit(0, 0).index(SHAPE);
            let units: Vec<u16> = (0..SHAPE.experts).map(|e| SHAPE.unit(0, e).index(SHAPE)).collect();
            let mut sorted = units.clone();
            sorted.sort_unstable();
            let node = sorted.get(at).copied().unwrap_or(node);
            let digest = *blake3::hash(block).as_bytes();
            list.extend_from_slice(&Entry { layer: 0, node, length: BLOCK as u32, digest }.emit());
        }
        self.epoch += 1;
        let max_frame = self.link.mtu().min(wire::frame::MAX_FRAME);
        let config = Config {
            duck: self.duck,
            host: [1; 16],
            key: Key::from_seed([1; 32]),
            epoch: self.epoch,
            tag: 1,
            limits: limits(max_frame),
            kernels: wire::built_in_kernels(),
            kernels_signature: [0; 64],
            lease: 60_000,
            max_frame,
            silent_after: 5_000_000,
            load_rate: 0,
            crc: wire::crc::native,
        };
        let memory = Mine { list, blocks: Arc::new(blocks), input: Vec::new() };
        let now = self.now();
        let mut peer = Box::new(Peer::new(now, config, memory).expect("limits that hold"));
        peer.memory_mut().input = vec![0; peer.limits().input_len()];
        self.peer = Some(peer);
        loop {
            match self.turn() {
                Some(Event::Joined { .. }) => break,
                Some(Event::Refused(why)) => panic!("refused: {why:?}"),
                _ => {}
            }
        }
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// One round of the loop; gives the next event.
    fn turn(&mut self) -> Option<Event> {
        let now = self.now();
        let Pond { link, peer, far, duck, .. } = self;
        let peer = peer.as_mut().expect("opened");
        let own = link.mac();
        link.rx(&mut |frame| {
            let payload = &frame[ETHERNET..];
            let theirs = wire::Frame::check(payload, wire::crc::native).ok().and_then(|f| Announce::parse(f.payload()));
            if payload[3] != wire::Kind::Announce as u8 || theirs.is_some_and(|a| a.id == *duck) {
                peer.handle_frame(now, payload);
            }
        });
        if peer.next_timeout().is_some_and(|at| at <= now) {
            peer.handle_timeout(now);
        }
        let mut sent = false;
        while link.tx(&mut |buf| {
            let Some(len) = peer.poll_transmit(now, &mut buf[ETHERNET..]) else { return 0 };
            header(buf, *far, own);
            ETHERNET + len
        }) {
            sent = true;
        }
        if sent {
            link.flush();
        }
        let event = peer.poll_event();
        if event.is_none() && !sent {
            std::thread::yield_now();
        }
        event
    }

    fn step(&mut self) -> Duration {
        let now = self.now();
        let peer = self.peer.as_mut().expect("opened");
        if self.seq == 0 {
            peer.assign(now, 1, &[]).expect("it is up");
        }
        self.seq += 1;
        let experts: Vec<u16> = (0..16).map(|i| i % 8).collect();
        let started = Instant::now();
        let request = StepRequest {
            seq: self.seq,
            plan: 1,
            lanes: 2,
            experts: &experts,
            named: &[],
            broadcast: false,
            time_limit: 0,
        };
        // The input's ids are zeros twice, which no duck that has work would take; one without nodes does not look.
        let input = &mut peer.memory_mut().input;
        experts.iter().enumerate().for_each(|(i, id)| input[8 + 2 * i..][..2].copy_from_slice(&id.to_le_bytes()));
        peer.begin_step(now, request).expect("nothing else is outstanding");
        loop {
            match self.turn() {
                Some(Event::StepDone { outcome: Outcome::Ok, .. }) => return started.elapsed(),
                Some(Event::StepDone { outcome, .. }) => panic!("{outcome:?}"),
                _ => {}
            }
        }
    }

    fn load(&mut self, round: u64) -> Duration {
        self.open(round + 1);
        // The session is open; what is timed is the blocks' way alone.
        let started = Instant::now();
        loop {
            if let Some(Event::Loaded { resident, blocks }) = self.turn()
                && resident == blocks
            {
                return started.elapsed();
            }
        }
    }
}

impl Drop for Pond {
    fn drop(&mut self) {
        self.stop.trigger();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
