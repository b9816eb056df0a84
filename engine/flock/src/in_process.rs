//! A duck in the host's own process: it computes when it is polled, on the caller's threads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use kernels::tree::Node;
use model::step::StepIo;

use crate::FlockError;
use crate::duck::{Duck, DuckStats, Fragment};
use crate::experts::Experts;
use crate::holder::Holder;

/// Holds its nodes' units of all layers; steps wait in order.
#[derive(Debug)]
pub(crate) struct InProcessDuck {
    holder: Holder,
    waiting: VecDeque<(u64, Arc<StepIo>)>,
    stats: DuckStats,
}

impl InProcessDuck {
    pub fn new(experts: Arc<Experts>, nodes: &[Node]) -> InProcessDuck {
        InProcessDuck { holder: Holder::new(experts, nodes), waiting: VecDeque::new(), stats: DuckStats::default() }
    }
}

impl Duck for InProcessDuck {
    fn begin_step(&mut self, seq: u64, io: &Arc<StepIo>) -> Result<(), FlockError> {
        self.waiting.push_back((seq, Arc::clone(io)));
        Ok(())
    }

    /// Computes the oldest waiting step.
    fn poll(&mut self, land: &mut dyn FnMut(Fragment<'_>) -> Result<(), FlockError>) -> Result<bool, FlockError> {
        let Some((seq, io)) = self.waiting.pop_front() else { return Ok(false) };
        let started = Instant::now();
        let units = self.holder.compute(io.input.get().ok_or(FlockError::NoInput)?)?;
        self.stats.steps += 1;
        self.stats.units += units as u64;
        self.stats.busy += started.elapsed();
        self.holder.results(|node, lane, start, values| land(Fragment { seq, node, lane, start, values }))?;
        Ok(true)
    }

    fn abandon(&mut self) {
        self.waiting.clear();
    }

    fn stats(&self) -> DuckStats {
        self.stats
    }
}
