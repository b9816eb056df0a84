//! How long a thread that has nothing to do keeps its core.
//!
//! Between the steps of one token lie some hundred microseconds, and to wake a sleeping thread costs tens of them, in each of a token's sixty
//! steps and for each thread on the step's way. So while steps come, threads look again and again, and let others have the core in between:
//! whoever needs it is not kept waiting. Where there are not enough cores for that, and once no steps have come for a while, they sleep.

use std::time::Duration;

/// Longer than anything between two steps of an answer.
const LINGER: Duration = Duration::from_millis(3);

/// How long threads linger after a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    linger: Duration,
}

impl Patience {
    /// Of that many threads together.
    pub fn new(threads: usize) -> Patience {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Patience::with_cores(threads, cores)
    }

    fn with_cores(threads: usize, cores: usize) -> Patience {
        Patience { linger: if threads < cores { LINGER } else { Duration::ZERO } }
    }

    /// For so long after the last sign of a step a thread looks without sleeping.
    pub fn linger(self) -> Duration {
        self.linger
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_lingers_on_a_core_that_another_thread_needs() {
        assert_eq!(Patience::with_cores(5, 4).linger(), Duration::ZERO);
        assert_eq!(Patience::with_cores(4, 4).linger(), Duration::ZERO);
        assert_eq!(Patience::with_cores(4, 5).linger(), LINGER);
    }
}
