//! A stage whose hand-overs are timed on the host's clock.

use std::sync::{Arc, Mutex, PoisonError};

use host::StageError;
use host::stage::{Choice, Chosen, Layers, PassId, PassSpec, Progress, SequenceId, Stage, Ticket};

use super::clock::{Clock, Nanos};

/// A step as the loop that carries it sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    /// The stage had handed it over.
    pub handed: Nanos,
    /// The host's own half beside it had been enqueued, or was done.
    pub own: Nanos,
    /// The stage was given its sums.
    pub taken: Nanos,
}

/// All of them, in order.
pub type Waits = Arc<Mutex<Vec<Wait>>>;

/// A stage around a stage.
pub struct Timed {
    stage: Box<dyn Stage + Send>,
    clock: Clock,
    waits: Waits,
    open: Option<Wait>,
}

impl Timed {
    /// Times go to `waits`.
    pub fn new(stage: Box<dyn Stage + Send>, clock: Clock, waits: Waits) -> Timed {
        Timed { stage, clock, waits, open: None }
    }
}

impl Stage for Timed {
    fn open(&mut self, max_len: usize) -> Result<SequenceId, StageError> {
        self.stage.open(max_len)
    }

    fn close(&mut self, sequence: SequenceId) {
        self.stage.close(sequence);
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize, mtp_len: usize) {
        self.stage.truncate(sequence, len, mtp_len);
    }

    fn begin(&mut self, spec: &PassSpec) -> Result<PassId, StageError> {
        self.stage.begin(spec)
    }

    fn segments(&self, layers: Layers) -> usize {
        self.stage.segments(layers)
    }

    fn submit(&mut self, pass: PassId, segment: usize) -> Result<Ticket, StageError> {
        if let Some(wait) = self.open.take() {
            let taken = self.clock.now();
            self.waits.lock().unwrap_or_else(PoisonError::into_inner).push(Wait { taken, ..wait });
        }
        let ticket = self.stage.submit(pass, segment)?;
        if ticket.io.is_some() {
            let handed = self.clock.now();
            self.open = Some(Wait { handed, own: handed, taken: 0 });
        }
        Ok(ticket)
    }

    fn poll(&mut self, ticket: &Ticket) -> Result<Progress, StageError> {
        let first = self.open.as_ref().is_some_and(|wait| wait.own == wait.handed);
        let progress = self.stage.poll(ticket)?;
        if let (true, Some(wait)) = (first, &mut self.open) {
            wait.own = self.clock.now();
        }
        Ok(progress)
    }

    fn choose(&mut self, pass: PassId, choices: &[Choice<'_>]) -> Result<Vec<Chosen>, StageError> {
        self.stage.choose(pass, choices)
    }

    fn logits(&self, pass: PassId, lane: usize) -> Option<&[f32]> {
        self.stage.logits(pass, lane)
    }

    fn end(&mut self, pass: PassId) {
        self.stage.end(pass);
    }

    fn max_lanes(&self) -> usize {
        self.stage.max_lanes()
    }
}
