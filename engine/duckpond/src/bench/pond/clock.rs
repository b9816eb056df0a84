//! One clock for everything in the process.

use std::time::Instant;

/// Nanoseconds since the benchmark began.
pub type Nanos = u64;

/// Copies tell the same time.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Begins now.
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    /// What time it is.
    pub fn now(&self) -> Nanos {
        self.0.elapsed().as_nanos() as Nanos
    }
}
