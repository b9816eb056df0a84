//! Tells one waiting thread that something has happened.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use super::patience::Patience;

/// Looks that cost nothing to others before a thread gives up its core, and before it sleeps if it does not linger.
const SPINS: u32 = 64;
const YIELDS: u32 = 32;

/// Counts what happened; a waiter that has seen a lower number does not sleep.
#[derive(Debug)]
pub(crate) struct Signal {
    patience: Patience,
    count: AtomicU64,
    sleeping: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Signal {
    /// Nothing has happened yet. `patience`: the waiter's.
    pub fn new(patience: Patience) -> Signal {
        Signal {
            patience,
            count: AtomicU64::new(0),
            sleeping: AtomicBool::new(false),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// What has happened so far, as a number.
    pub fn seen(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Something has happened.
    pub fn notify(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        // Sequentially consistent with the waiter, which announces that it sleeps before it looks a last time.
        if self.sleeping.load(Ordering::SeqCst) {
            drop(self.lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
            self.wake.notify_one();
        }
    }

    /// Returns when more has happened than was `seen`, or the time is over. A thread that spins on a core which the others need costs them
    /// whole time slices, so it spins only briefly, and then gives its core up at every look.
    pub fn wait(&self, seen: u64, most: Duration) {
        let started = Instant::now();
        let (until, linger) = (started + most, self.patience.linger().min(most));
        for look in 0u32.. {
            if self.seen() != seen {
                return;
            }
            match look {
                ..SPINS => std::hint::spin_loop(),
                _ if look < SPINS + YIELDS || started.elapsed() < linger => std::thread::yield_now(),
                _ => break,
            }
        }
        let mut guard = self.lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.sleeping.store(true, Ordering::SeqCst);
        while self.seen() == seen {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            guard = self.wake.wait_timeout(guard, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        self.sleeping.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn no_wake_is_lost() {
        for patience in [Patience::new(usize::MAX), Patience::lingering()] {
            let signal = Arc::new(Signal::new(patience));
            let teller = Arc::clone(&signal);
            let thread = std::thread::spawn(move || (0..20_000).for_each(|_| teller.notify()));
            let mut seen = 0;
            while seen < 20_000 {
                let started = Instant::now();
                signal.wait(seen, Duration::from_secs(600));
                assert!(started.elapsed() < Duration::from_secs(300), "a wake was lost");
                seen = signal.seen();
            }
            thread.join().expect("it only counts");
            signal.wait(seen, Duration::from_millis(1));
        }
    }
}
