//! The threads that compute beside the network thread, and how they wait.
//!
//! [`Pool::run`] hands one piece of work to all of them and returns when all have left it. A waiting thread looks a few times, then gives the
//! processor away between looks, then sleeps: peers that spin on a processor they share slow one another down a hundredfold.
#![allow(unsafe_code)] // work is borrowed by other threads for the length of one call

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::error::DuckError;

/// Looks with a pause between them before a waiting thread gives the processor away.
const SPINS: u32 = 64;
/// How long after the last step a thread gives the processor away between looks before it sleeps: the time between two layers of one token.
const LINGER: Duration = Duration::from_millis(2);
/// The same where there are more threads than processors.
const LINGER_CROWDED: Duration = Duration::from_micros(200);

/// How threads of this duck wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// More threads than processors.
    crowded: bool,
}

impl Patience {
    pub fn new(threads: usize) -> Patience {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Patience { crowded: threads > processors }
    }

    /// Between the `looks`th look and the next.
    pub fn pause(self, looks: u32) {
        if looks < SPINS && !self.crowded {
            std::hint::spin_loop();
        } else {
            thread::yield_now();
        }
    }

    /// How long to wait without sleeping.
    pub fn linger(self) -> Duration {
        if self.crowded { LINGER_CROWDED } else { LINGER }
    }
}

type Work = dyn Fn(usize) + Sync + 'static;

struct Shared {
    work: UnsafeCell<Option<&'static Work>>,
    /// Counts pieces of work.
    round: AtomicU32,
    /// Threads that have not left the present one.
    inside: AtomicU32,
    /// Number of a thread that panicked in it, else 0.
    panicked: AtomicU32,
    stop: AtomicBool,
    patience: Patience,
}

// SAFETY: `work` is written by the pool's owner while no thread is inside, and read after `round`, which is released after it.
unsafe impl Sync for Shared {}
// SAFETY: work may be called from any thread, being Sync.
unsafe impl Send for Shared {}

/// Threads with numbers from 1 on.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    names: Vec<Thread>,
}

/// The other threads, during a piece of work.
pub(crate) struct Others<'p> {
    shared: &'p Shared,
}

impl Others<'_> {
    /// Whether all have left it. What they wrote is then visible.
    pub fn done(&self) -> bool {
        self.shared.inside.load(Ordering::Acquire) == 0
    }

    /// The number of one that panicked in it.
    pub fn panicked(&self) -> Option<u32> {
        Some(self.shared.panicked.load(Ordering::Relaxed)).filter(|&number| number > 0)
    }
}

/// Waits for the threads, come what may: they borrow the work.
struct Leave<'p>(Others<'p>);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let mut looks = 0;
        while !self.0.done() {
            self.0.shared.patience.pause(looks);
            looks = looks.saturating_add(1);
        }
    }
}

impl Pool {
    /// `threads` of them, number i pinned to the i-th processor of `pin`, counting round; number 0 is the caller of [`Pool::run`].
    pub fn new(threads: usize, pin: Option<&[usize]>, patience: Patience) -> Result<Pool, DuckError> {
        let shared = Arc::new(Shared {
            work: UnsafeCell::new(None),
            round: AtomicU32::new(0),
            inside: AtomicU32::new(0),
            panicked: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            patience,
        });
        let mut pool = Pool { shared, threads: Vec::new(), names: Vec::new() };
        for number in 1..=threads {
            let (shared, processor) = (Arc::clone(&pool.shared), processor(pin, number));
            let name = format!("duckd-core{number}");
            let handle = thread::Builder::new().name(name.clone()).spawn(move || {
                pin_to(processor);
                serve(&shared, number);
            });
            let handle = handle.map_err(|cause| DuckError::Thread { name, cause })?;
            pool.names.push(handle.thread().clone());
            pool.threads.push(handle);
        }
        Ok(pool)
    }

    /// Calls `work` with each thread's number on that thread, and `own` on this one; returns when all have ended.
    pub fn run<R>(&mut self, work: &(dyn Fn(usize) + Sync), own: impl FnOnce(&Others<'_>) -> R) -> R {
        let shared = &*self.shared;
        // SAFETY: lifetimes alone; `Leave` waits until no thread is inside, and then none looks at it again.
        let work: &'static Work = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static Work>(work) };
        // SAFETY: no thread is inside: `&mut self`, and every run ends by `Leave`.
        unsafe { *shared.work.get() = Some(work) };
        shared.panicked.store(0, Ordering::Relaxed);
        shared.inside.store(self.names.len() as u32, Ordering::Relaxed);
        shared.round.fetch_add(1, Ordering::Release);
        let leave = Leave(Others { shared });
        self.names.iter().for_each(Thread::unpark);
        own(&leave.0)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.names.iter().for_each(Thread::unpark);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A thread's life.
fn serve(shared: &Shared, number: usize) {
    let mut seen = 0;
    loop {
        let (mut looks, mut since) = (0, None);
        while shared.round.load(Ordering::Acquire) == seen {
            if shared.stop.load(Ordering::Acquire) {
                return;
            }
            shared.patience.pause(looks);
            looks = looks.saturating_add(1);
            // The clock is asked only once pausing has not helped.
            if looks > SPINS && since.get_or_insert_with(Instant::now).elapsed() >= shared.patience.linger() {
                // Woken by a new round, by the end, or for nothing.
                thread::park();
            }
        }
        seen = seen.wrapping_add(1);
        // SAFETY: written before the round that was just seen, and not again before this thread has left.
        if let Some(work) = unsafe { *shared.work.get() }
            && catch_unwind(AssertUnwindSafe(|| work(number))).is_err()
        {
            shared.panicked.store(number as u32, Ordering::Relaxed);
        }
        shared.inside.fetch_sub(1, Ordering::Release);
    }
}

/// The processor of core `number`.
pub(crate) fn processor(pin: Option<&[usize]>, number: usize) -> Option<usize> {
    pin.filter(|p| !p.is_empty()).map(|p| p[number % p.len()])
}

/// Pins the calling thread.
pub(crate) fn pin_to(processor: Option<usize>) {
    let Some(processor) = processor else { return };
    let mut set = CpuSet::new();
    set.set(processor);
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::warn!("thread is not pinned to processor {processor}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn every_thread_does_its_part_of_every_round_also_after_a_sleep() {
        for crowded in [false, true] {
            let mut pool = Pool::new(3, Some(&[0]), Patience { crowded }).expect("threads");
            let parts: Vec<AtomicUsize> = (0..4).map(|_| AtomicUsize::new(0)).collect();
            for round in 1..200 {
                if round % 50 == 0 {
                    thread::sleep(LINGER * 2);
                }
                let work = |number: usize| {
                    parts[number].fetch_add(round, Ordering::Relaxed);
                };
                pool.run(&work, |others| {
                    while !others.done() {
                        thread::yield_now();
                    }
                });
            }
            let sums: Vec<usize> = parts.iter().map(|p| p.load(Ordering::Relaxed)).collect();
            assert_eq!(sums, [0, 199 * 100, 199 * 100, 199 * 100]);
        }
    }

    #[test]
    fn a_panic_in_one_round_is_told_and_the_next_round_runs() {
        let mut pool = Pool::new(2, None, Patience::new(3)).expect("threads");
        let panicked = pool.run(&|number| assert_ne!(number, 2, "the second goes wrong"), |others| {
            while !others.done() {
                thread::yield_now();
            }
            others.panicked()
        });
        assert_eq!(panicked, Some(2));
        assert_eq!(
            pool.run(&|_| {}, |others| {
                while !others.done() {
                    thread::yield_now();
                }
                others.panicked()
            }),
            None
        );
    }
}
