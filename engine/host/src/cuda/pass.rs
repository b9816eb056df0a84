//! A pass under way on the card.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Instant;

use model::step::StepIo;

use super::area::Area;
use super::error::CudaError;
use crate::check::UnderWay;
use crate::stage::{Lane, Layers};

/// How a pass's launches reach the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// One graph for all segments.
    Graph,
    /// Segment by segment.
    Launches,
    /// Operation by operation, shown to an observer.
    Observed,
}

/// One pass.
pub(crate) struct Pass {
    pub(crate) layers: Layers,
    pub(crate) lanes: Vec<Lane>,
    /// Lanes whose logits are wanted.
    pub(crate) wanted: Vec<usize>,
    pub(crate) area: Area,
    pub(crate) how: How,
    /// The segment to submit next.
    pub(crate) next: usize,
    /// The latest segment has not been polled to its end.
    pub(crate) pending: bool,
    /// When the latest segment was submitted.
    pub(crate) since: Instant,
    /// All that was enqueued has run.
    pub(crate) done: bool,
    /// Something failed: waits on the card have to be ended.
    pub(crate) broken: bool,
    /// The latest step.
    pub(crate) io: Option<Arc<StepIo>>,
    /// By place in `wanted`, once somebody has asked.
    pub(crate) logits: Vec<OnceCell<Vec<f32>>>,
}

impl Pass {
    pub(crate) fn new(layers: Layers, lanes: &[Lane], wanted: &[usize], area: Area, how: How) -> Pass {
        Pass {
            layers,
            lanes: lanes.to_vec(),
            wanted: wanted.to_vec(),
            area,
            how,
            next: 0,
            pending: false,
            since: Instant::now(),
            done: true,
            broken: false,
            io: None,
            logits: wanted.iter().map(|_| OnceCell::new()).collect(),
        }
    }

    /// Waits until what was enqueued has run.
    pub(crate) fn finish(&mut self) -> Result<(), CudaError> {
        if !self.done {
            self.area.stream.synchronize()?;
            self.area.exchange.check("the ducks' sums")?;
            self.done = true;
        }
        Ok(())
    }

    /// Logits of a wanted lane, copied when they are first asked for.
    pub(crate) fn lane_logits(&self, lane: usize, vocab: usize) -> Result<Option<&[f32]>, CudaError> {
        let Some(at) = self.wanted.iter().position(|&wanted| wanted == lane) else { return Ok(None) };
        if let Some(values) = self.logits[at].get() {
            return Ok(Some(values));
        }
        let values = self.area.read::<f32>(self.area.logits() + (at * vocab * 4) as u64, vocab)?;
        self.area.exchange.check("the ducks' sums")?;
        Ok(Some(self.logits[at].get_or_init(|| values)))
    }

    /// The largest logit's token of a wanted lane, if all are finite; the pass has finished.
    pub(crate) fn best(&self, lane: usize) -> Option<u32> {
        let at = self.wanted.iter().position(|&wanted| wanted == lane)?;
        let token = self.area.best.get()[at];
        (token != u32::MAX).then_some(token)
    }
}

impl UnderWay for Pass {
    fn layers(&self) -> Layers {
        self.layers
    }
    fn lanes(&self) -> &[Lane] {
        &self.lanes
    }
    fn next(&self) -> usize {
        self.next
    }
    fn pending(&self) -> bool {
        self.pending
    }
    fn io(&self) -> Option<&StepIo> {
        self.io.as_deref()
    }
}
