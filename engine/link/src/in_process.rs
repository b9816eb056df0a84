//! A switch in memory: ends in one process, for tests and for ducks that live in the host.
//!
//! A frame is copied once for each receiver, into a buffer that the receiver has already read. Bandwidth is not modelled and nothing is
//! lost, unless a receiver lets [`QUEUE`] frames pile up.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::{ETHERNET, Header, Link, LinkStats, Mac, Waker};

/// Frames that wait at a port before more are dropped.
const QUEUE: usize = 4096;
/// Frames handed over by one call.
const BATCH: usize = 64;

/// A switch. Clones are the same switch.
#[derive(Clone, Debug, Default)]
pub struct Hub {
    ports: Arc<RwLock<Vec<Arc<Inbox>>>>,
}

impl Hub {
    /// A switch without ports.
    pub fn new() -> Hub {
        Hub::default()
    }

    /// A new port whose frames have up to `mtu` bytes after the header. It leaves the switch when it is dropped. Two ports of one address both
    /// get what is sent to it.
    pub fn port(&self, mac: Mac, mtu: usize) -> Port {
        let inbox = Arc::new(Inbox::new(mac, ETHERNET + mtu));
        self.ports.write().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&inbox));
        Port {
            hub: self.clone(),
            inbox,
            frame: vec![0; ETHERNET + mtu],
            batch: Vec::with_capacity(BATCH),
            stats: LinkStats::default(),
        }
    }
}

/// What other ports see of a port.
#[derive(Debug)]
struct Inbox {
    mac: Mac,
    size: usize,
    /// Length of `queue`, so that an idle poll takes no lock.
    arrived: AtomicUsize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    woken: bool,
    asleep: bool,
    dropped: u64,
}

impl Inbox {
    fn new(mac: Mac, size: usize) -> Inbox {
        let (queue, spare) = (VecDeque::with_capacity(QUEUE), Vec::with_capacity(QUEUE + BATCH));
        let state = State { queue, spare, woken: false, asleep: false, dropped: 0 };
        Inbox { mac, size, arrived: AtomicUsize::new(0), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// No code panics under the lock but by running out of memory; the state is whole after any statement.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deliver(&self, frame: &[u8]) {
        let mut state = self.state();
        if frame.len() > self.size || state.queue.len() == QUEUE {
            state.dropped += 1;
            return;
        }
        // Whole size at once: a buffer never grows later.
        let mut buffer = state.spare.pop().unwrap_or_else(|| Vec::with_capacity(self.size));
        buffer.clear();
        buffer.extend_from_slice(frame);
        state.queue.push_back(buffer);
        self.arrived.store(state.queue.len(), Ordering::Release);
        if state.asleep {
            self.changed.notify_one();
        }
    }

    fn wake(&self) {
        self.state().woken = true;
        self.changed.notify_one();
    }
}

/// A port of a [`Hub`].
#[derive(Debug)]
pub struct Port {
    hub: Hub,
    inbox: Arc<Inbox>,
    frame: Vec<u8>,
    /// Buffers that were handed over and go back to `spare` with the next call.
    batch: Vec<Vec<u8>>,
    stats: LinkStats,
}

impl Link for Port {
    fn mac(&self) -> Mac {
        self.inbox.mac
    }

    fn mtu(&self) -> usize {
        self.frame.len() - ETHERNET
    }

    fn speed(&self) -> u32 {
        0
    }

    /// Delivers at once. A frame for nobody counts as sent, as on a real switch.
    fn tx(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        let length = fill(&mut self.frame);
        if length == 0 {
            return false;
        }
        let Some((frame, header)) = self.frame.get(..length).and_then(|f| Some((f, Header::parse(f)?))) else {
            self.stats.dropped_out += 1;
            return true;
        };
        for port in self.hub.ports.read().unwrap_or_else(PoisonError::into_inner).iter() {
            if !Arc::ptr_eq(port, &self.inbox) && (port.mac == header.to || header.to.is_multicast()) {
                port.deliver(frame);
            }
        }
        self.stats.frames_out += 1;
        self.stats.bytes_out += length as u64;
        true
    }

    fn flush(&mut self) {}

    fn rx(&mut self, each: &mut dyn FnMut(&[u8])) -> usize {
        if self.inbox.arrived.load(Ordering::Acquire) == 0 {
            return 0;
        }
        {
            let mut guard = self.inbox.state();
            let state = &mut *guard;
            state.spare.append(&mut self.batch);
            let count = state.queue.len().min(BATCH);
            self.batch.extend(state.queue.drain(..count));
            self.inbox.arrived.store(state.queue.len(), Ordering::Release);
        }
        for frame in &self.batch {
            self.stats.frames_in += 1;
            self.stats.bytes_in += frame.len() as u64;
            each(frame);
        }
        self.batch.len()
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.inbox.state();
        state.asleep = true;
        while state.queue.is_empty() && !state.woken {
            let Some(deadline) = deadline else {
                state = self.inbox.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.inbox.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.asleep = false;
        state.woken = false;
    }

    fn waker(&self) -> Waker {
        let inbox = Arc::clone(&self.inbox);
        Waker::new(move || inbox.wake())
    }

    fn stats(&self) -> LinkStats {
        LinkStats { dropped_in: self.inbox.state().dropped, ..self.stats }
    }

    fn describe(&self) -> String {
        format!("in-process {}", self.inbox.mac)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.hub.ports.write().unwrap_or_else(PoisonError::into_inner).retain(|port| !Arc::ptr_eq(port, &self.inbox));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(port: &mut Port, to: Mac, length: usize) {
        let header = Header { to, from: port.mac(), ethertype: 0x88b5 };
        port.tx(&mut |frame| header.emit(frame).map_or(0, |_| length));
    }

    #[test]
    fn a_full_queue_drops_what_comes_next() {
        let hub = Hub::new();
        let (mut a, mut b) = (hub.port(Mac::from_u64(1), 100), hub.port(Mac::from_u64(2), 100));
        for _ in 0..QUEUE + 7 {
            send(&mut a, Mac([0, 0, 0, 0, 0, 2]), 60);
        }
        let mut count = 0;
        while b.rx(&mut |_| count += 1) > 0 {}
        assert_eq!((count, b.stats().dropped_in), (QUEUE, 7));
    }

    #[test]
    fn a_frame_too_long_for_its_receiver_is_dropped_there() {
        let hub = Hub::new();
        let (mut a, mut b) = (hub.port(Mac::from_u64(1), 200), hub.port(Mac::from_u64(2), 100));
        send(&mut a, b.mac(), ETHERNET + 101);
        assert_eq!(b.rx(&mut |_| ()), 0);
        assert_eq!(b.stats().dropped_in, 1);
    }

    #[test]
    fn a_dropped_port_leaves_the_switch() {
        let hub = Hub::new();
        let mut a = hub.port(Mac::from_u64(1), 100);
        let b = hub.port(Mac::from_u64(2), 100);
        let inbox = Arc::downgrade(&b.inbox);
        drop(b);
        assert!(inbox.upgrade().is_none());
        send(&mut a, Mac::from_u64(2), 60);
        assert_eq!(a.stats().frames_out, 1);
    }
}
