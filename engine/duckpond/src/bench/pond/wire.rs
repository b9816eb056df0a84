//! The wires of one domain as times, and the host's end of them as a [`Link`].
//!
//! Every frame of the protocol really passes, as bytes, between the thread that owns the link and the thread that models the ducks. What is
//! computed instead of waited for is when: a wire is busy for as long as a frame's bits take, a switch passes a frame on once it has all of
//! it, and the host is given no frame before it would have arrived. The clock is looked at, never slept on.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use ::wire::frame::Kind;
use link::{ETHERNET, Link, LinkStats, Mac, Waker};

use super::clock::{Clock, Nanos};

/// Bytes on the wire around a frame: preamble, checksum, gap.
pub const AROUND: usize = 24;
/// Batches on their way in one direction; more are lost, as in the rings of a network card.
const QUEUE: usize = 16_384;
/// Frames handed over by one call.
const BATCH: usize = 32;
const CACHE_LINE: usize = 64;

/// One direction of a cable.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    mbit: u64,
    /// When its last frame has left.
    free: Nanos,
}

impl Wire {
    /// An idle one of that speed in Mbit/s, which is not 0.
    pub fn new(mbit: u32) -> Wire {
        Wire { mbit: u64::from(mbit), free: 0 }
    }

    /// When the last frame that was sent has arrived.
    pub fn free(&self) -> Nanos {
        self.free
    }

    /// Sends a frame as soon as it is there and the wire is free. Gives the time at which all of it has arrived at the other end.
    pub fn send(&mut self, ready: Nanos, frame: usize) -> Nanos {
        let bits = 8 * (frame + AROUND) as u64;
        self.free = self.free.max(ready) + (bits * 1000).div_ceil(self.mbit);
        self.free
    }
}

/// A frame on its way.
#[derive(Debug)]
pub struct Flight {
    /// When it was sent, or when it arrives.
    pub at: Nanos,
    /// Bytes of `buffer` that are the frame.
    pub len: usize,
    /// As long as the longest frame.
    pub buffer: Box<[u8]>,
}

impl Flight {
    /// The frame.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

/// Frames in one direction, several at a time, and their buffers back. Buffers are all of one length.
pub struct Outgoing {
    batches: SyncSender<Vec<Flight>>,
    used: Receiver<Vec<Flight>>,
    spare: RefCell<Spare>,
    length: usize,
}

/// What was used before.
#[derive(Default)]
struct Spare {
    buffers: Vec<Box<[u8]>>,
    batches: Vec<Vec<Flight>>,
}

/// The other end of an [`Outgoing`].
pub struct Incoming {
    batches: Receiver<Vec<Flight>>,
    used: SyncSender<Vec<Flight>>,
}

fn channel(length: usize) -> (Outgoing, Incoming) {
    let (batches, arriving) = sync_channel(QUEUE);
    let (back, used) = sync_channel(QUEUE);
    let spare = RefCell::default();
    (Outgoing { batches, used, spare, length }, Incoming { batches: arriving, used: back })
}

impl Outgoing {
    /// A buffer, used before or new.
    pub fn buffer(&self) -> Box<[u8]> {
        let spare = &mut *self.spare.borrow_mut();
        if spare.buffers.is_empty() {
            while let Ok(mut batch) = self.used.try_recv() {
                spare.buffers.extend(batch.drain(..).map(|flight| flight.buffer));
                spare.batches.push(batch);
            }
        }
        spare.buffers.pop().unwrap_or_else(|| vec![0; self.length].into_boxed_slice())
    }

    /// Takes a buffer back that was not needed: the next is this one.
    pub fn keep(&self, buffer: Box<[u8]>) {
        self.spare.borrow_mut().buffers.push(buffer);
    }

    /// An empty batch.
    pub fn batch(&self) -> Vec<Flight> {
        self.spare.borrow_mut().batches.pop().unwrap_or_default()
    }

    /// Sends a batch. Returns whether there was room.
    pub fn send(&self, batch: Vec<Flight>) -> bool {
        self.batches.try_send(batch).is_ok()
    }
}

impl Incoming {
    /// The next frames; an error if there will never be any.
    pub fn next(&self) -> Result<Option<Vec<Flight>>, ()> {
        match self.batches.try_recv() {
            Ok(batch) => Ok(Some(batch)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(()),
        }
    }

    /// Gives a batch's buffers back.
    pub fn give_back(&self, batch: Vec<Flight>) {
        // One too many goes to the allocator.
        let _ = self.used.try_send(batch);
    }
}

/// Frames that wait for their time, in order.
struct Arriving {
    from: Incoming,
    batch: Vec<Flight>,
    /// The next of it.
    at: usize,
    /// Those before it have been brought into this core's cache.
    warm: usize,
}

impl Arriving {
    /// Whether there is a next frame, arrived or not.
    fn look(&mut self) -> bool {
        if self.at == self.batch.len() {
            let Ok(Some(next)) = self.from.next() else { return false };
            let done = std::mem::replace(&mut self.batch, next);
            (self.at, self.warm) = (0, 0);
            if done.capacity() > 0 {
                self.from.give_back(done);
            }
        }
        self.at < self.batch.len()
    }

    /// The next frame, if it has arrived. The one behind it is read ahead, as drivers of network cards do.
    fn take(&mut self, now: Nanos) -> Option<&Flight> {
        self.batch.get(self.at).filter(|flight| flight.at <= now)?;
        self.at += 1;
        if self.batch.get(self.at).is_some_and(|next| next.at <= now) {
            self.warm_up(self.at);
        }
        self.batch.get(self.at - 1)
    }

    /// With nothing else to do: brings one more frame near. A network card writes into the cache that all cores share; these frames were
    /// written into another core's own, from where each line takes several times as long.
    fn idle(&mut self) {
        self.warm_up(self.warm.max(self.at));
    }

    fn warm_up(&mut self, at: usize) {
        if at < self.warm {
            return;
        }
        if let Some(flight) = self.batch.get(at) {
            self.warm = at + 1;
            let touched = flight.bytes().iter().step_by(CACHE_LINE).fold(0, |all, byte| all | byte);
            std::hint::black_box(touched);
        }
    }
}

/// Whether the link's thread sleeps, and how to end that.
#[derive(Debug, Default)]
pub struct Bell {
    woken: AtomicBool,
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Bell {
    /// A frame has been sent: whoever sleeps looks.
    pub fn ring(&self) {
        // The sleeper says that it sleeps before it looks a last time.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst)
            && let Some(thread) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner)
        {
            thread.unpark();
        }
    }

    fn wake(&self) {
        self.woken.store(true, Ordering::SeqCst);
        self.ring();
    }
}

/// What the host's end has seen.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// By number of the step on the wire: when its last frame of results was handed over.
    pub last: Vec<Nanos>,
    /// Frames handed over, and nanoseconds spent on that by their receiver and the channel.
    pub frames: u64,
    /// See there.
    pub busy: Nanos,
}

/// What the ducks' thread has of a domain's wires.
pub struct Ducks {
    /// From the host, stamped when they were sent.
    pub from_host: Incoming,
    /// To the host, stamped when they arrive.
    pub to_host: Outgoing,
    /// Rung after frames were sent.
    pub bell: Arc<Bell>,
}

/// The host's end.
pub struct HostEnd {
    clock: Clock,
    mac: Mac,
    mtu: usize,
    mbit: u32,
    out: Outgoing,
    arriving: Arriving,
    /// Written, not flushed.
    waiting: Vec<Flight>,
    bell: Arc<Bell>,
    stats: LinkStats,
    seen: Seen,
    /// Where `seen` goes in the end.
    shown: Arc<Mutex<Seen>>,
}

impl Drop for HostEnd {
    fn drop(&mut self) {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = std::mem::take(&mut self.seen);
    }
}

/// Both ends of a domain's wires. What the host's end has seen is in `shown` once it is gone.
pub fn ends(clock: Clock, mac: Mac, mtu: usize, mbit: u32, shown: Arc<Mutex<Seen>>) -> (HostEnd, Ducks) {
    let (out, from_host) = channel(ETHERNET + mtu);
    let (to_host, arriving) = channel(ETHERNET + mtu);
    let bell = Arc::new(Bell::default());
    let host = HostEnd {
        clock,
        mac,
        mtu,
        mbit,
        out,
        arriving: Arriving { from: arriving, batch: Vec::new(), at: 0, warm: 0 },
        waiting: Vec::new(),
        bell: Arc::clone(&bell),
        stats: LinkStats::default(),
        seen: Seen::default(),
        shown,
    };
    (host, Ducks { from_host, to_host, bell })
}

impl Link for HostEnd {
    fn mac(&self) -> Mac {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn speed(&self) -> u32 {
        self.mbit
    }

    fn tx(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        let mut buffer = self.out.buffer();
        let len = fill(&mut buffer);
        if len == 0 || len > buffer.len() {
            self.stats.dropped_out += u64::from(len > 0);
            self.out.keep(buffer);
            return len > 0;
        }
        self.waiting.push(Flight { at: 0, len, buffer });
        true
    }

    /// A frame leaves when it is flushed, as with a network card that is told of several at once.
    fn flush(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let at = self.clock.now();
        let mut batch = self.out.batch();
        let bytes: u64 = self.waiting.iter().map(|flight| flight.len as u64).sum();
        batch.extend(self.waiting.drain(..).map(|flight| Flight { at, ..flight }));
        let frames = batch.len() as u64;
        if self.out.send(batch) {
            (self.stats.frames_out, self.stats.bytes_out) =
                (self.stats.frames_out + frames, self.stats.bytes_out + bytes);
        } else {
            self.stats.dropped_out += frames;
        }
    }

    fn rx(&mut self, each: &mut dyn FnMut(&[u8])) -> usize {
        if !self.arriving.look() {
            return 0;
        }
        let (mut count, now) = (0, self.clock.now());
        while count < BATCH && self.arriving.look() {
            let Some(flight) = self.arriving.take(now) else { break };
            self.stats.frames_in += 1;
            self.stats.bytes_in += flight.len as u64;
            if let Some((Kind::Result, seq)) = kind(flight.bytes()) {
                let at = seq as usize;
                self.seen.last.resize(self.seen.last.len().max(at + 1), 0);
                self.seen.last[at] = now;
            }
            each(flight.bytes());
            count += 1;
        }
        if count == 0 {
            self.arriving.idle();
        } else {
            self.seen.frames += count as u64;
            self.seen.busy += self.clock.now() - now;
        }
        count
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        let mut thread = self.bell.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.get_or_insert_with(std::thread::current);
        drop(thread);
        self.bell.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let (soon, woken) = (self.arriving.look(), self.bell.woken.swap(false, Ordering::SeqCst));
        match timeout {
            _ if woken => {}
            // A frame arrives within microseconds: too soon to sleep.
            _ if soon => std::thread::yield_now(),
            Some(timeout) => std::thread::park_timeout(timeout),
            None => std::thread::park(),
        }
        self.bell.asleep.store(false, Ordering::SeqCst);
        self.bell.woken.store(false, Ordering::SeqCst);
    }

    fn waker(&self) -> Waker {
        let bell = Arc::clone(&self.bell);
        Waker::new(move || bell.wake())
    }

    fn stats(&self) -> LinkStats {
        self.stats
    }

    fn describe(&self) -> String {
        format!("modelled {} Mbit/s", self.mbit)
    }
}

/// What a frame is and of which step, by its header alone.
pub fn kind(frame: &[u8]) -> Option<(Kind, u32)> {
    let header = ::wire::Header::parse(frame.get(ETHERNET..)?)?;
    Some((Kind::from_code(header.kind)?, header.seq))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wire_is_busy_for_as_long_as_a_frames_bits_take() {
        let mut wire = Wire::new(2500);
        // 1,250 bytes with what is around them: 4 µs.
        assert_eq!(wire.send(1000, 1226), 5_000);
        assert_eq!(wire.send(1000, 1226), 9_000);
        assert_eq!(wire.send(20_000, 1226), 24_000);
    }

    #[test]
    fn a_frame_is_not_handed_over_before_it_has_arrived() {
        let clock = Clock::start();
        let (mut host, ducks) = ends(clock, Mac::from_u64(1), 100, 1000, Arc::default());
        let at = clock.now() + 3_000_000;
        assert!(ducks.to_host.send(vec![Flight { at, len: 60, buffer: ducks.to_host.buffer() }]));
        assert_eq!(host.rx(&mut |_| panic!("3 ms early")), 0);
        while host.rx(&mut |frame| assert_eq!(frame.len(), 60)) == 0 {}
        assert!(clock.now() >= at);
    }

    #[test]
    fn no_frame_and_no_wake_is_slept_through() {
        let clock = Clock::start();
        let (mut host, ducks) = ends(clock, Mac::from_u64(1), 100, 1000, Arc::default());
        let waker = host.waker();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..2_000 {
                    let buffer = ducks.to_host.buffer();
                    assert!(ducks.to_host.send(vec![Flight { at: clock.now(), len: 60, buffer }]));
                    ducks.bell.ring();
                    std::thread::yield_now();
                }
            });
            let mut got = 0;
            while got < 2_000 {
                let started = std::time::Instant::now();
                host.wait(Some(Duration::from_secs(600)));
                assert!(started.elapsed() < Duration::from_secs(300), "a ring was lost");
                got += host.rx(&mut |_| ());
            }
        });
        waker.wake();
        host.wait(None);
    }
}
