//! Modelled ducks of one domain: real sessions, real frames, and a clock in place of the kernels and the cables.
//!
//! A thread for each domain takes the host's frames the moment they are sent and hands each to every duck's [`Session`] with the time at which it
//! would arrive there. When a step's input is complete its results are written at once, stamped with the time at which they would be
//! computed, so that writing them (which a real duck does with its own cores) hides behind the time that computing takes. A frame that was
//! written too late for its own arrival is counted: a run with many of them has measured the model.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use link::{ETHERNET, Mac, ethernet};
use wire::duck::{Config, Event, Memory, STEPS, Session, Sizes, To};
use wire::frame::Kind;
use wire::frozen::{Announce, FEATURE_AVX2, ID, NONCE, identity};
use wire::key::PublicKey;
use wire::list::{Entry, MAX_BLOCKS};
use wire::message::{Counter, Verdict, VerdictCode};

use super::clock::{Clock, Nanos};
use super::wire::{Ducks, Flight, Wire, kind};

/// Frames that leave the switch within the longer of these times are handed over, in their order, once one does within the shorter.
const AHEAD: Nanos = 20_000;
const NEAR: Nanos = 10_000;
/// Frames handed over at once.
const MOST: usize = 64;
/// Looks for something to do before the thread gives up its core, where there are fewer cores than threads.
const SPINS: u32 = 64;
/// How long it then sleeps while nothing is on its way.
const CROWDED: Duration = Duration::from_micros(20);
/// Bytes of a step's input at most; only what is used takes memory.
const INPUT: usize = 8 << 20;
/// Values that results are made of: every length of a piece fits.
const VALUES: usize = 4096;

/// How fast a duck is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Every step takes so long.
    Step(Nanos),
    /// It reads the units that a step needs at so many bytes a nanosecond.
    Bandwidth(f64),
}

/// What is modelled.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Of a duck's cable.
    pub mbit: u32,
    /// Of the host's.
    pub host_mbit: u32,
    /// From the last bit in to the first bit out of the switch.
    pub hop: Nanos,
    /// Of each duck.
    pub pace: Pace,
    /// Of a unit.
    pub unit_bytes: u64,
    /// Blocks that a duck can hold, in bytes.
    pub memory: u64,
    /// Bytes after the Ethernet header.
    pub mtu: usize,
    /// Whether there are cores enough for everybody to spin.
    pub roomy: bool,
}

/// A step of a domain, in nanoseconds of the common clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Its first frame of input left the host.
    pub sent: Nanos,
    /// By so much its last frame of input was later at the ducks than if all had been sent with the first.
    pub behind: Nanos,
    /// Its last frame of results arrived.
    pub arrived: Nanos,
    /// By so much a frame of its results was written too late for its own arrival, at most.
    pub late: Nanos,
}

impl Step {
    /// How long ducks and wires took, had they been given the input at once.
    pub fn modelled(&self) -> i64 {
        self.arrived as i64 - self.sent as i64 - self.behind as i64
    }
}

/// Frames and their bytes, Ethernet headers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// How many.
    pub frames: u64,
    /// Together.
    pub bytes: u64,
}

impl Traffic {
    fn add(&mut self, bytes: usize) {
        (self.frames, self.bytes) = (self.frames + 1, self.bytes + bytes as u64);
    }

    /// Both.
    pub fn plus(self, other: Traffic) -> Traffic {
        Traffic { frames: self.frames + other.frames, bytes: self.bytes + other.bytes }
    }
}

/// What a domain has seen.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// By number of the step on the wire.
    pub steps: Vec<Step>,
    /// By step: its input, its results, its verdicts.
    pub traffic: Vec<[Traffic; 3]>,
    /// Frames for which the host had no room.
    pub dropped: u64,
    /// Frames that a session did not understand, and questions after results or input.
    pub bad: u64,
    pub asked: u64,
    /// Blocks that the host sent although all are held.
    pub blocks: u64,
}

/// The ducks of a domain.
pub struct Domain {
    clock: Clock,
    model: Model,
    ends: Ducks,
    ducks: Vec<Duck>,
    /// Host to switch, and back.
    out: Wire,
    back: Wire,
    /// The way to a duck, if a step's input were all there when its first frame is.
    ideal: [Wire; 2],
    log: Log,
}

impl Domain {
    /// Ducks of these names that do as they are told by the owner of `key`.
    pub fn new(clock: Clock, model: Model, ends: Ducks, names: &[(String, Mac)], key: PublicKey) -> Domain {
        let now = clock.now();
        let ducks = names.iter().map(|(name, mac)| Duck::new(now, &model, name, *mac, key)).collect();
        let (out, back) = (Wire::new(model.host_mbit), Wire::new(model.host_mbit));
        let ideal = [Wire::new(model.host_mbit), Wire::new(model.mbit)];
        Domain { clock, model, ends, ducks, out, back, ideal, log: Log::default() }
    }

    /// Until told to stop, or the host is gone.
    pub fn run(mut self, stop: &AtomicBool) -> Log {
        let mut idle = 0u32;
        while !stop.load(Ordering::Relaxed) {
            let Ok(mut busy) = self.receive() else { break };
            self.timers();
            busy |= self.release();
            idle = if busy { 0 } else { idle.saturating_add(1) };
            match self.model.roomy || idle < SPINS {
                true => std::hint::spin_loop(),
                // Without cores enough the host's threads need this one more than it needs to be in time.
                false if self.ducks.iter().all(|duck| duck.queue.is_empty()) => std::thread::sleep(CROWDED),
                false => std::thread::yield_now(),
            }
        }
        for duck in &self.ducks {
            let count = |counter| duck.session.counter(counter);
            self.log.bad += count(Counter::FramesBad);
            self.log.asked += count(Counter::ResultAsks) + count(Counter::InputAsks);
            self.log.blocks += duck.blocks;
        }
        self.log
    }

    fn receive(&mut self) -> Result<bool, ()> {
        let mut any = false;
        while let Some(batch) = self.ends.from_host.next()? {
            any = true;
            batch.iter().for_each(|flight| self.pass_on(flight));
            self.ends.from_host.give_back(batch);
        }
        Ok(any)
    }

    /// To whoever a frame of the host is for.
    fn pass_on(&mut self, flight: &Flight) {
        let Some(to) = link::Header::parse(flight.bytes()).map(|header| header.to) else { return };
        let at_switch = self.out.send(flight.at, flight.len) + self.model.hop;
        for duck in self.ducks.iter_mut().filter(|duck| duck.mac == to || to.is_multicast()) {
            duck.receive(at_switch, flight.bytes(), &self.ends, &self.model);
        }
        self.note_input(flight);
    }

    fn timers(&mut self) {
        let now = self.clock.now();
        for duck in &mut self.ducks {
            if duck.session.next_timeout().is_some_and(|at| at <= now / 1000) {
                duck.session.handle_timeout(now / 1000);
                duck.transmit(now, &self.ends, &self.model);
            }
        }
    }

    /// Hands over what leaves the switch soon, in its order.
    fn release(&mut self) -> bool {
        let first = |ducks: &[Duck]| ducks.iter().filter_map(|duck| duck.queue.front()).map(|flight| flight.at).min();
        let now = self.clock.now();
        if first(&self.ducks).is_none_or(|at| at > now + NEAR) {
            return false;
        }
        let (mut batch, mut late) = (self.ends.to_host.batch(), None);
        while batch.len() < MOST {
            let waiting = self.ducks.iter_mut().filter(|duck| !duck.queue.is_empty());
            let next = waiting.min_by_key(|duck| duck.queue[0].at).filter(|duck| duck.queue[0].at <= now + AHEAD);
            let Some(flight) = next.and_then(|duck| duck.queue.pop_front()) else { break };
            let at = self.back.send(flight.at, flight.len);
            let seq = self.note_answer(at, &flight);
            late = late.or(seq.map(|seq| (seq, at)));
            batch.push(Flight { at, ..flight });
        }
        let frames = batch.len() as u64;
        self.log.dropped += if self.ends.to_host.send(batch) { 0 } else { frames };
        self.ends.bell.ring();
        if let Some((seq, at)) = late {
            let step = self.log.step(seq).0;
            step.late = step.late.max(self.clock.now().saturating_sub(at));
        }
        true
    }

    /// A step's input has been passed on.
    fn note_input(&mut self, flight: &Flight) {
        let Some((Kind::Input, seq)) = kind(flight.bytes()) else { return };
        let (step, traffic) = self.log.step(seq);
        traffic[0].add(flight.len);
        if step.sent == 0 {
            step.sent = flight.at;
        }
        let [out, down] = &mut self.ideal;
        let ideal = down.send(out.send(step.sent, flight.len) + self.model.hop, flight.len);
        let arrived = self.ducks.iter().map(|duck| duck.down.free()).max().unwrap_or(ideal);
        step.behind = arrived.saturating_sub(ideal);
    }

    /// A step's answer arrives. Gives the step if it is a part of its results.
    fn note_answer(&mut self, at: Nanos, flight: &Flight) -> Option<u32> {
        let (kind, seq) = kind(flight.bytes())?;
        match kind {
            Kind::Result => {
                let (step, traffic) = self.log.step(seq);
                step.arrived = at;
                traffic[1].add(flight.len);
                Some(seq)
            }
            Kind::Verdict => {
                self.log.step(seq).1[2].add(flight.len);
                None
            }
            _ => None,
        }
    }
}

impl Log {
    fn step(&mut self, seq: u32) -> (&mut Step, &mut [Traffic; 3]) {
        let at = seq as usize;
        if self.steps.len() <= at {
            self.steps.resize(at + 1, Step::default());
            self.traffic.resize(at + 1, Default::default());
        }
        (&mut self.steps[at], &mut self.traffic[at])
    }
}

/// One duck.
struct Duck {
    mac: Mac,
    session: Box<Session<Held>>,
    /// Switch to duck, and back.
    down: Wire,
    up: Wire,
    /// Until then it computes.
    free: Nanos,
    /// Frames stamped with the time at which the switch has them, in order.
    queue: VecDeque<Flight>,
    units: u64,
    blocks: u64,
}

impl Duck {
    fn new(now: Nanos, model: &Model, name: &str, mac: Mac, key: PublicKey) -> Duck {
        let id = identity(name).unwrap_or([0; ID]);
        let mut seed = [0; 32];
        seed[..ID].copy_from_slice(&id);
        let announce = Announce {
            protocol: 0,
            program: 2,
            cores: 1,
            features: FEATURE_AVX2,
            memory: model.memory,
            id,
            mac: mac.0,
            link: u16::try_from(model.mbit).unwrap_or(u16::MAX),
            firmware: [0; 32],
            nonce: [0; NONCE],
            epoch: 0,
            resident: 0,
            root: [0; 32],
            lease: 0,
            uptime: 0,
            boot: 1,
        };
        let config = Config {
            announce,
            kernels: wire::built_in_kernels(),
            key,
            seed,
            max_frame: model.mtu,
            crc: wire::crc::native,
        };
        Duck {
            mac,
            session: Box::new(Session::new(now / 1000, config, Held::new(model.memory))),
            down: Wire::new(model.mbit),
            up: Wire::new(model.mbit),
            free: 0,
            queue: VecDeque::new(),
            units: 0,
            blocks: 0,
        }
    }

    /// A frame is at the switch.
    fn receive(&mut self, at_switch: Nanos, frame: &[u8], ends: &Ducks, model: &Model) {
        let at = self.down.send(at_switch, frame.len());
        let Some((from, payload)) = ethernet::open(frame, wire::ETHERTYPE) else { return };
        self.session.handle_frame(at / 1000, wire::ethernet::address(from.0), payload);
        // What it answers does not wait for what it computes.
        self.transmit(at, ends, model);
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::Listed => self.keep_all(),
                Event::Step { slot, .. } => self.compute(at, slot, ends, model),
                Event::Filled { ticket, block } => {
                    self.blocks += 1;
                    let digest =
                        self.session.list().and_then(|list| list.get(block as usize)).map(|entry| entry.digest);
                    self.session.block_hashed(ticket, block, &digest.unwrap_or_default());
                }
                Event::Opened { .. } | Event::LeaseExpired | Event::Reset { .. } => {}
            }
        }
        self.transmit(at, ends, model);
    }

    /// It has every block of the list, whatever that is.
    fn keep_all(&mut self) {
        let blocks = self.session.list().map_or(0, |list| list.len());
        (0..blocks).for_each(|block| self.session.keep_block(block as u32));
        self.session.list_ready();
    }

    /// A step's input is complete.
    fn compute(&mut self, at: Nanos, slot: usize, ends: &Ducks, model: &Model) {
        let (units, time) = self.work(slot, model);
        let done = self.free.max(at) + time;
        self.free = done;
        self.units += units;
        self.session.set_counter(Counter::Units, self.units);
        let busy = u32::try_from(time / 1000).unwrap_or(u32::MAX);
        self.session.step_done(slot, Verdict { busy, ..Verdict::new(VerdictCode::Ok) });
        self.transmit(done, ends, model);
    }

    /// Units that a step reads, and how long that takes.
    fn work(&self, slot: usize, model: &Model) -> (u64, Nanos) {
        let (Some(step), Some(limits)) = (self.session.step(slot), self.session.limits()) else { return (0, 0) };
        let shape = limits.shape();
        let input = &self.session.memory().input(slot)[step.layout.experts()];
        let mut experts: Vec<u16> = input.as_chunks::<2>().0.iter().map(|&id| u16::from_le_bytes(id)).collect();
        experts.sort_unstable();
        experts.dedup();
        let below = |&number: &u16| {
            let node = shape.node(number)?;
            Some(u64::from(node.slices) * experts.iter().filter(|&&e| node.has(node.slice, e)).count() as u64)
        };
        let units = step.nodes.iter().filter_map(below).sum();
        let time = match model.pace {
            Pace::Step(time) => time,
            Pace::Bandwidth(bytes) => ((units * model.unit_bytes) as f64 / bytes) as Nanos,
        };
        (units, time)
    }

    /// Sends what the session has to say, from `ready` on.
    fn transmit(&mut self, ready: Nanos, ends: &Ducks, model: &Model) {
        loop {
            let mut buffer = ends.to_host.buffer();
            let Some(sent) = self.session.poll_transmit(ready / 1000, &mut buffer[ETHERNET..]) else {
                ends.to_host.keep(buffer);
                return;
            };
            let to = match sent.to {
                To::All => link::BROADCAST,
                To::One(address) => Mac(wire::ethernet::mac(address)),
            };
            let header = link::Header { to, from: self.mac, ethertype: wire::ETHERTYPE };
            let len = ethernet::close(&mut buffer, header, sent.len);
            let at = self.up.send(ready, len) + model.hop;
            self.queue.push_back(Flight { at, len, buffer });
        }
    }
}

/// What a session keeps, without blocks and results.
struct Held {
    memory: u64,
    list: Vec<u8>,
    input: Vec<u8>,
    values: Vec<u8>,
}

impl Held {
    fn new(memory: u64) -> Held {
        // Small, finite, not all alike.
        let values = (0..VALUES).flat_map(|i| ((i * 37 % 64) as f32 / 65536.0 - 1.0 / 2048.0).to_le_bytes());
        Held { memory, list: vec![0; MAX_BLOCKS * Entry::LEN], input: vec![0; STEPS * INPUT], values: values.collect() }
    }
}

impl Memory for Held {
    fn sizes(&self) -> Sizes {
        Sizes { list: self.list.len(), blocks: self.memory, input: INPUT, result: usize::MAX }
    }

    fn list(&self) -> &[u8] {
        &self.list
    }

    fn list_mut(&mut self) -> &mut [u8] {
        &mut self.list
    }

    fn write_block(&mut self, _: u32, _: u32, _: &[u8]) {}

    fn input(&self, slot: usize) -> &[u8] {
        &self.input[slot * INPUT..][..INPUT]
    }

    fn input_mut(&mut self, slot: usize) -> &mut [u8] {
        &mut self.input[slot * INPUT..][..INPUT]
    }

    fn read_result(&self, _: usize, offset: usize, out: &mut [u8]) {
        let from = offset % (2 * VALUES) / 4 * 4;
        out.copy_from_slice(&self.values[from..][..out.len()]);
    }
}
