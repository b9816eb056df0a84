//! Moves one pass through its segments: stage 0, hand-over, stage 1, and again.

use std::time::Duration;

use flock::Flock;
use host::stage::{PassId, PassSpec, Progress, Stage, Ticket};

use crate::EngineError;

/// How long a wait for ducks lasts before the flock is looked at again.
const WAIT: Duration = Duration::from_millis(20);

/// What [`Run::advance`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advance {
    /// The last segment is through.
    Done,
    /// There is more to do at once.
    Moved,
    /// Ducks have to answer first.
    Blocked,
}

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

    /// Does what can be done now.
    pub(crate) fn advance(&mut self, stage: &mut dyn Stage, flock: &mut Flock) -> Result<Advance, EngineError> {
        if let Some(ticket) = &self.ticket {
            let host_done = stage.poll(ticket)? == Progress::Done;
            let moved = flock.poll()?;
            if !host_done {
                return Ok(Advance::Moved);
            }
            if ticket.io.as_ref().is_some_and(|io| !io.is_summed()) {
                return Ok(if moved { Advance::Moved } else { Advance::Blocked });
            }
            self.ticket = None;
        }
        if self.next == self.segments {
            return Ok(Advance::Done);
        }
        let ticket = stage.submit(self.pass, self.next)?;
        if let Some(io) = &ticket.io {
            flock.submit(io.clone())?;
        }
        self.next += 1;
        self.ticket = Some(ticket);
        Ok(Advance::Moved)
    }

    /// Advances to the end.
    pub(crate) fn finish(mut self, stage: &mut dyn Stage, flock: &mut Flock) -> Result<(), EngineError> {
        loop {
            match self.advance(stage, flock)? {
                Advance::Done => return Ok(()),
                Advance::Moved => {}
                Advance::Blocked => flock.wait(WAIT),
            }
        }
    }
}
