//! One thread that hashes blocks, so that the network thread never does: a block takes half a millisecond.
//!
//! Blocks that have just arrived come first and are hashed at once. Blocks that are checked again are hashed slice by slice, and wait while a step
//! is under way, which needs the memory's speed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use link::Waker;

use crate::blocks::Loan;
use crate::error::DuckError;

/// Bytes that are hashed between two looks at whether a step is under way: some 20 µs.
const SLICE: usize = 64 << 10;
/// How long a check waits for a step before it looks again.
const PAUSE: Duration = Duration::from_micros(200);
/// Blocks that may wait; a session has [`LOADS`](wire::duck::LOADS) of them, and one is checked again.
const ROOM: usize = wire::duck::LOADS + 1;

/// Why a block is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// All of it has arrived.
    Filled {
        /// The session's.
        ticket: u32,
    },
    /// It is held, and checked again.
    Scrub,
}

#[derive(Debug)]
pub(crate) struct Hashed {
    pub loan: Loan,
    pub purpose: Purpose,
    pub digest: [u8; 32],
}

#[derive(Debug, Default)]
struct Queue {
    filled: VecDeque<(Loan, Purpose)>,
    scrub: Option<Loan>,
    done: VecDeque<Hashed>,
    stop: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    finished: Condvar,
    computing: AtomicBool,
    waker: Waker,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread, and what it was given.
pub(crate) struct Hasher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Hasher {
    /// `waker` is used when a digest is ready.
    pub fn new(waker: Waker) -> Result<Hasher, DuckError> {
        let queue = Queue {
            filled: VecDeque::with_capacity(ROOM),
            done: VecDeque::with_capacity(ROOM + 1),
            ..Queue::default()
        };
        let shared = Arc::new(Shared {
            queue: Mutex::new(queue),
            work: Condvar::new(),
            finished: Condvar::new(),
            computing: AtomicBool::new(false),
            waker,
        });
        let (own, name) = (Arc::clone(&shared), "duckd-hash".to_owned());
        let thread = thread::Builder::new().name(name.clone()).spawn(move || serve(&own));
        Ok(Hasher { shared, thread: Some(thread.map_err(|cause| DuckError::Thread { name, cause })?) })
    }

    pub fn submit(&self, loan: Loan, purpose: Purpose) {
        let mut queue = self.shared.queue();
        match purpose {
            Purpose::Filled { .. } => queue.filled.push_back((loan, purpose)),
            Purpose::Scrub => queue.scrub = Some(loan),
        }
        self.shared.work.notify_one();
    }

    /// A digest that is ready.
    pub fn poll(&self) -> Option<Hashed> {
        self.shared.queue().done.pop_front()
    }

    /// The next digest, whenever it is ready. Something must have been submitted.
    pub fn wait(&self) -> Hashed {
        let mut queue = self.shared.queue();
        loop {
            match queue.done.pop_front() {
                Some(hashed) => return hashed,
                None => queue = self.shared.finished.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Whether a step is under way.
    pub fn set_computing(&self, on: bool) {
        self.shared.computing.store(on, Ordering::Relaxed);
    }
}

impl Drop for Hasher {
    fn drop(&mut self) {
        self.shared.queue().stop = true;
        self.shared.computing.store(false, Ordering::Relaxed);
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(shared: &Shared) {
    let mut queue = shared.queue();
    loop {
        if queue.stop {
            return;
        }
        let scrub = |queue: &mut Queue| queue.scrub.take().map(|loan| (loan, Purpose::Scrub));
        let Some((loan, purpose)) = queue.filled.pop_front().or_else(|| scrub(&mut queue)) else {
            queue = shared.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        drop(queue);
        let mut hasher = blake3::Hasher::new();
        for slice in loan.bytes().chunks(SLICE) {
            while purpose == Purpose::Scrub && shared.computing.load(Ordering::Relaxed) {
                thread::sleep(PAUSE);
            }
            hasher.update(slice);
        }
        let digest = *hasher.finalize().as_bytes();
        queue = shared.queue();
        queue.done.push_back(Hashed { loan, purpose, digest });
        shared.finished.notify_one();
        shared.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::Blocks;
    use crate::options::HugePages;
    use crate::region::Region;
    use wire::list::Entry;

    #[test]
    fn arrivals_are_hashed_during_a_step_and_checks_after_it() {
        let mut blocks = Blocks::new(Arc::new(Region::new(1 << 20, HugePages::Off).expect("memory")));
        let entry = |node, length| Entry { layer: 0, node, length, digest: [0; 32] };
        blocks.arrange(&[entry(0, 200_000), entry(1, 100)]);
        blocks.write(1, 0, &[5; 100]);
        let hasher = Hasher::new(Waker::new(|| {})).expect("a thread");
        hasher.set_computing(true);
        hasher.submit(blocks.lend(1).expect("a place"), Purpose::Filled { ticket: 9 });
        let first = hasher.wait();
        assert_eq!((first.purpose, first.digest), (Purpose::Filled { ticket: 9 }, *blake3::hash(&[5; 100]).as_bytes()));
        hasher.submit(blocks.lend(0).expect("a place"), Purpose::Scrub);
        thread::sleep(Duration::from_millis(20));
        assert!(hasher.poll().is_none());
        hasher.set_computing(false);
        let second = hasher.wait();
        assert_eq!((second.purpose, second.digest), (Purpose::Scrub, *blake3::hash(&[0; 200_000]).as_bytes()));
    }
}
