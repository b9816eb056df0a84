//! A bad wire in front of a good one: frames are lost, doubled, overtaken, damaged and late, by a seeded generator, so that a run repeats.
//!
//! What is drawn for a frame depends on the seed and on how many frames went before it in its direction, never on time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::faults::DELAY_MOST;
use crate::{ETHERNET, Faults, Link, LinkStats, Mac, Waker};

/// Most frames that may overtake one.
const OVERTAKEN: u64 = 4;
/// How long an overtaken frame waits for them when nothing follows.
const HOLD: Duration = Duration::from_millis(1);
/// Frames held in each direction before more are lost.
const HELD: usize = 65_536;

/// What happened to frames so far, one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Frames lost.
    pub lost: u64,
    /// Frames doubled.
    pub duplicated: u64,
    /// Frames put aside so that others overtake them.
    pub reordered: u64,
    /// Frames damaged.
    pub corrupted: u64,
}

/// A link with faults.
pub struct Faulty {
    inner: Box<dyn Link>,
    outward: Pipe,
    inward: Pipe,
    /// Where a frame is written before its fate is drawn.
    frame: Vec<u8>,
    handed: u64,
    handed_bytes: u64,
}

impl Faulty {
    /// The same faults both ways.
    pub fn new(inner: Box<dyn Link>, faults: Faults, seed: u64) -> Faulty {
        Faulty::each_way(inner, faults, faults, seed)
    }

    /// Faults of what is sent and of what is received.
    pub fn each_way(inner: Box<dyn Link>, outward: Faults, inward: Faults, seed: u64) -> Faulty {
        let size = ETHERNET + inner.mtu();
        // Any other constant would do: the directions must not draw the same.
        let (outward, inward) = (Pipe::new(outward, seed, size), Pipe::new(inward, !seed, size));
        Faulty { inner, outward, inward, frame: vec![0; size], handed: 0, handed_bytes: 0 }
    }

    /// What happened to frames sent and received.
    pub fn counts(&self) -> (FaultCounts, FaultCounts) {
        (self.outward.counts, self.inward.counts)
    }

    /// Sends the held frames whose time has come; whether there were any.
    fn release(&mut self) -> bool {
        let (inner, mut any) = (&mut self.inner, false);
        self.outward.release(&mut |frame| {
            any = true;
            pass_on(inner, frame);
        });
        any
    }
}

fn pass_on(link: &mut Box<dyn Link>, frame: &[u8]) {
    link.tx(&mut |buffer| {
        let Some(buffer) = buffer.get_mut(..frame.len()) else { return usize::MAX };
        buffer.copy_from_slice(frame);
        frame.len()
    });
}

impl Link for Faulty {
    fn mac(&self) -> Mac {
        self.inner.mac()
    }

    fn mtu(&self) -> usize {
        self.inner.mtu()
    }

    fn speed(&self) -> u32 {
        self.inner.speed()
    }

    fn tx(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        self.release();
        let length = fill(&mut self.frame);
        if length == 0 {
            return false;
        }
        let inner = &mut self.inner;
        match self.frame.get_mut(..length) {
            Some(frame) if length >= ETHERNET => self.outward.push(frame, &mut |frame| pass_on(inner, frame)),
            // The inner link counts it.
            _ => drop(inner.tx(&mut |_| length)),
        }
        true
    }

    fn flush(&mut self) {
        self.release();
        self.inner.flush();
    }

    fn rx(&mut self, each: &mut dyn FnMut(&[u8])) -> usize {
        if self.release() {
            self.inner.flush();
        }
        let (mut count, mut bytes) = (0, 0);
        let mut each = |frame: &[u8]| {
            count += 1;
            bytes += frame.len() as u64;
            each(frame);
        };
        let (inner, inward, scratch) = (&mut self.inner, &mut self.inward, &mut self.frame);
        inward.release(&mut each);
        inner.rx(&mut |frame| {
            // Its own copy: damage must not reach the carrier's buffer.
            if let Some(copy) = scratch.get_mut(..frame.len()) {
                copy.copy_from_slice(frame);
                inward.push(copy, &mut each);
            }
        });
        self.handed += count as u64;
        self.handed_bytes += bytes;
        count
    }

    /// Sleeps no longer than until a held frame is due.
    fn wait(&mut self, timeout: Option<Duration>) {
        if self.release() {
            self.inner.flush();
        }
        let due = self.outward.due().into_iter().chain(self.inward.due()).min();
        let due = due.map(|due| due.saturating_duration_since(Instant::now()));
        self.inner.wait(timeout.into_iter().chain(due).min());
        if self.release() {
            self.inner.flush();
        }
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    /// Frames out are those that left, doubles included; frames in are those handed over. Lost ones count as dropped.
    fn stats(&self) -> LinkStats {
        let stats = self.inner.stats();
        LinkStats {
            frames_in: self.handed,
            bytes_in: self.handed_bytes,
            dropped_out: stats.dropped_out + self.outward.counts.lost,
            dropped_in: stats.dropped_in + self.inward.counts.lost,
            ..stats
        }
    }

    fn describe(&self) -> String {
        format!("{} with faults (out {}, in {})", self.inner.describe(), self.outward.faults, self.inward.faults)
    }
}

struct Held {
    bytes: Vec<u8>,
    due: Instant,
    /// Frames that still overtake it.
    behind: u64,
}

/// One direction.
struct Pipe {
    faults: Faults,
    random: Random,
    size: usize,
    /// Late frames, in the order of their time.
    late: VecDeque<Held>,
    /// Frames that others overtake.
    aside: Vec<Held>,
    spare: Vec<Vec<u8>>,
    counts: FaultCounts,
}

impl Pipe {
    fn new(faults: Faults, seed: u64, size: usize) -> Pipe {
        let (late, aside, spare) = (VecDeque::new(), Vec::new(), Vec::new());
        let faults = Faults { delay: faults.delay.min(DELAY_MOST), ..faults };
        Pipe { faults, random: Random(seed), size, late, aside, spare, counts: FaultCounts::default() }
    }

    /// Decides what becomes of a frame; calls `leave` for all that leave because of it.
    fn push(&mut self, frame: &mut [u8], leave: &mut dyn FnMut(&[u8])) {
        // Always as many draws, so that one fault's rate does not change what others hit.
        let [loss, duplicate, reorder, corrupt, place] = std::array::from_fn(|_| self.random.next());
        let hits = |draw: u64, rate: u16| draw % 1000 < u64::from(rate);
        if hits(loss, self.faults.loss) {
            self.counts.lost += 1;
            return;
        }
        if hits(corrupt, self.faults.corrupt) {
            self.counts.corrupted += 1;
            // Bits of one byte, at least one of them.
            let at = (place >> 8).checked_rem(frame.len() as u64).unwrap_or(0);
            if let Some(byte) = frame.get_mut(at as usize) {
                *byte ^= (place as u8).max(1);
            }
        }
        let twice = hits(duplicate, self.faults.duplicate);
        self.counts.duplicated += u64::from(twice);
        if hits(reorder, self.faults.reorder) {
            self.counts.reordered += 1;
            let behind = 1 + (reorder >> 32) % OVERTAKEN;
            self.hold(frame, self.faults.delay + HOLD, behind);
        } else {
            self.send(frame, leave);
        }
        if twice {
            self.send(frame, leave);
        }
    }

    fn send(&mut self, frame: &[u8], leave: &mut dyn FnMut(&[u8])) {
        if self.faults.delay.is_zero() {
            leave(frame);
            self.overtake(leave);
        } else {
            self.hold(frame, self.faults.delay, 0);
        }
    }

    fn hold(&mut self, frame: &[u8], time: Duration, behind: u64) {
        if self.late.len() + self.aside.len() >= HELD {
            self.counts.lost += 1;
            return;
        }
        let mut bytes = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(self.size));
        bytes.clear();
        bytes.extend_from_slice(frame);
        let held = Held { bytes, due: Instant::now() + time, behind };
        if behind > 0 { self.aside.push(held) } else { self.late.push_back(held) }
    }

    /// A frame has left: those aside have one less to wait for.
    fn overtake(&mut self, leave: &mut dyn FnMut(&[u8])) {
        self.aside.iter_mut().for_each(|held| held.behind = held.behind.saturating_sub(1));
        self.leave_aside(&|held| held.behind == 0, leave);
    }

    fn leave_aside(&mut self, ready: &dyn Fn(&Held) -> bool, leave: &mut dyn FnMut(&[u8])) {
        while let Some(at) = self.aside.iter().position(ready) {
            let held = self.aside.remove(at);
            leave(&held.bytes);
            self.spare.push(held.bytes);
        }
    }

    /// Lets go of what is due.
    fn release(&mut self, leave: &mut dyn FnMut(&[u8])) {
        if self.late.is_empty() && self.aside.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(held) = self.late.pop_front_if(|held| held.due <= now) {
            leave(&held.bytes);
            self.spare.push(held.bytes);
            self.overtake(leave);
        }
        self.leave_aside(&|held| held.due <= now, leave);
    }

    /// When the next held frame is due.
    fn due(&self) -> Option<Instant> {
        self.late.front().into_iter().chain(&self.aside).map(|held| held.due).min()
    }
}

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): every seed is good.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}
