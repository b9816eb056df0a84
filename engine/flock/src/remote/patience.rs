//! How long a thread that has nothing to do keeps its core.
//!
//! Between the steps of one token lie some hundred microseconds, and to wake a sleeping thread costs tens of them, in each of a token's sixty
//! steps and for each thread on the step's way. So while steps come, threads look again and again, and let others have the core in between.
//! That is no gift to others, which wait for the scheduler to notice them: so it is done only where there is a core for each of these threads and of those
//! that compute beside them. Otherwise, and once no steps have come for a while, they sleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longer than most of what lies between two steps of an answer.
const LINGER: Duration = Duration::from_millis(3);

/// How long threads linger; all clones change together.
#[derive(Clone, Debug)]
pub(super) struct Patience {
    threads: usize,
    cores: usize,
    lingers: Arc<AtomicBool>,
}

impl Patience {
    /// Of that many threads together, which do not linger before somebody has said who computes beside them.
    pub fn new(threads: usize) -> Patience {
        Patience::with_cores(threads, std::thread::available_parallelism().map_or(1, usize::from))
    }

    fn with_cores(threads: usize, cores: usize) -> Patience {
        Patience { threads, cores, lingers: Arc::default() }
    }

    /// So many other threads compute while steps are under way.
    pub fn beside(&self, workers: usize) {
        self.lingers.store(self.threads + workers < self.cores, Ordering::Relaxed);
    }

    /// For so long after the last sign of a step, or after the beginning of a wait, a thread looks without sleeping.
    pub fn linger(&self) -> Duration {
        if self.lingers.load(Ordering::Relaxed) { LINGER } else { Duration::ZERO }
    }

    /// One that lingers wherever it is.
    #[cfg(test)]
    pub fn lingering() -> Patience {
        let patience = Patience::with_cores(1, 2);
        patience.beside(0);
        patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_lingers_on_a_core_that_another_thread_needs() {
        let linger = |threads, workers, cores| {
            let patience = Patience::with_cores(threads, cores);
            assert_eq!(patience.linger(), Duration::ZERO);
            let clone = patience.clone();
            patience.beside(workers);
            clone.linger()
        };
        assert_eq!(linger(5, 0, 4), Duration::ZERO);
        assert_eq!(linger(4, 0, 4), Duration::ZERO);
        assert_eq!(linger(4, 0, 5), LINGER);
        assert_eq!(linger(4, 1, 5), Duration::ZERO);
        assert_eq!(linger(5, 16, 16), Duration::ZERO);
    }
}
