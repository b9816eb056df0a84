//! Moves one pass through its segments: stage 0, hand-over, stage 1, and again.

use flock::Flock;
use host::stage::{PassId, PassSpec, Progress, Stage, Ticket};

use crate::EngineError;

/// A pass under way. Several may be advanced in turn over one stage and one flock; advancing waits for nobody.
pub(crate) struct Run {
    pass: PassId,
    segments: usize,
    next: usize,
    ticket: Option<Ticket>,
}

impl Run {
    /// Begins a pass.
    pub(crate) fn begin(stage: &mut dyn Stage, spec: &PassSpec) -> Result<Run, EngineError> {
        let segments = stage.segments(spec.layers);
        Ok(Run { pass: stage.begin(spec)?, segments, next: 0, ticket: None })
    }

    /// Which pass.
    pub(crate) fn pass(&self) -> PassId {
        self.pass
    }

    /// Does what can be done now; true once the last segment is through.
    pub(crate) fn advance(&mut self, stage: &mut dyn Stage, flock: &mut Flock) -> Result<bool, EngineError> {
        if let Some(ticket) = &self.ticket {
            let host_done = stage.poll(ticket)? == Progress::Done;
            flock.poll()?;
            if !host_done || ticket.io.as_ref().is_some_and(|io| !io.is_summed()) {
                return Ok(false);
            }
            self.ticket = None;
        }
        if self.next == self.segments {
            return Ok(true);
        }
        let ticket = stage.submit(self.pass, self.next)?;
        if let Some(io) = &ticket.io {
            flock.submit(io.clone())?;
        }
        self.next += 1;
        self.ticket = Some(ticket);
        Ok(false)
    }

    /// Advances to the end.
    pub(crate) fn finish(mut self, stage: &mut dyn Stage, flock: &mut Flock) -> Result<(), EngineError> {
        while !self.advance(stage, flock)? {}
        Ok(())
    }
}
