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
use node::{Digests, Hashed, Loan, MOST_LENT, Purpose, SLICE};

use crate::error::DuckError;

/// How long a check waits for a step before it looks again.
const PAUSE: Duration = Duration::from_micros(200);

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
            filled: VecDeque::with_capacity(MOST_LENT),
            done: VecDeque::with_capacity(MOST_LENT + 1),
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
}

impl Digests for Hasher {
    fn submit(&mut self, loan: Loan, purpose: Purpose) {
        let mut queue = self.shared.queue();
        match purpose {
            Purpose::Filled { .. } => queue.filled.push_back((loan, purpose)),
            Purpose::Scrub => queue.scrub = Some(loan),
        }
        self.shared.work.notify_one();
    }

    fn poll(&mut self) -> Option<Hashed> {
        self.shared.queue().done.pop_front()
    }

    fn wait(&mut self) -> Hashed {
        let mut queue = self.shared.queue();
        loop {
            match queue.done.pop_front() {
                Some(hashed) => return hashed,
                None => queue = self.shared.finished.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn set_computing(&mut self, on: bool) {
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
    use crate::memory::region;
    use crate::options::HugePages;

    /// A block of zeroes.
    fn zeroes(block: u32, len: usize) -> Loan {
        Loan::whole(region(len, HugePages::Off).expect("memory").0, block)
    }

    #[test]
    fn arrivals_are_hashed_during_a_step_and_checks_after_it() {
        let mut hasher = Hasher::new(Waker::new(|| {})).expect("a thread");
        hasher.set_computing(true);
        hasher.submit(zeroes(1, 100), Purpose::Filled { ticket: 9 });
        let first = hasher.wait();
        assert_eq!((first.loan.block(), first.purpose), (1, Purpose::Filled { ticket: 9 }));
        assert_eq!(first.digest, *blake3::hash(&[0; 100]).as_bytes());
        hasher.submit(zeroes(0, 200_000), Purpose::Scrub);
        thread::sleep(Duration::from_millis(20));
        assert!(hasher.poll().is_none());
        hasher.set_computing(false);
        let second = hasher.wait();
        assert_eq!((second.purpose, second.digest), (Purpose::Scrub, *blake3::hash(&[0; 200_000]).as_bytes()));
    }
}
