//! The exchanges in which a stage hands its steps over: those that nobody else holds are used again.

use std::sync::Arc;

use model::step::StepIo;

/// A stage's exchanges that no step uses.
#[derive(Debug)]
pub(crate) struct Exchanges {
    free: Vec<Arc<StepIo>>,
    sources: usize,
}

impl Exchanges {
    /// None yet, each for so many sources of sums.
    pub(crate) fn new(sources: usize) -> Exchanges {
        Exchanges { free: Vec::new(), sources }
    }

    /// An empty one that nobody else holds.
    pub(crate) fn take(&mut self) -> Arc<StepIo> {
        let free = self.free.iter_mut().position(|io| Arc::get_mut(io).map(StepIo::recycle).is_some());
        match free {
            Some(i) => self.free.swap_remove(i),
            None => Arc::new(StepIo::new(self.sources)),
        }
    }

    /// Keeps what a pass no longer needs until its last holder has let go of it.
    pub(crate) fn give_back(&mut self, done: Option<Arc<StepIo>>) {
        self.free.extend(done);
    }
}
