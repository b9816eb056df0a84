//! The stage seam: what `decode` asks of stage 0, whatever computes it.
//!
//! A **pass** carries some lanes through one program (the main layers or the MTP layer). `decode` calls [`Stage::begin`], then for each
//! segment [`Stage::submit`] and [`Stage::poll`] until done, handing each ticket's [`StepIo`] to the flock in between, then
//! [`Stage::choose`], then [`Stage::end`]. A segment that starts with the ducks' sum is submitted once the earlier ticket's `StepIo` is
//! summed. Submitting returns at the hand-over; what may run beside the ducks (the shared experts) runs in `poll`.

use std::sync::Arc;

use model::program::{Model, Program};
use model::sampling::SamplingParams;
use model::step::StepIo;

use crate::StageError;

/// A request's caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SequenceId(pub u64);

/// A pass under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PassId(pub u64);

/// One token position in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Whose caches.
    pub sequence: SequenceId,
    /// Counted from 0. Lanes of a sequence in one pass are consecutive and continue its cache.
    pub position: usize,
    /// For the main layers the token at `position`; for the MTP layer the one at `position + 1`.
    pub token: u32,
}

/// Which program a pass runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layers {
    /// The main layers.
    Main,
    /// The MTP layer, at positions that a main pass kept.
    Mtp,
}

impl Layers {
    /// That program of a model; `None` for an MTP layer that it does not have.
    pub(crate) fn program(self, model: &Model) -> Option<&Program> {
        match self {
            Layers::Main => Some(&model.main),
            Layers::Mtp => model.mtp.as_ref(),
        }
    }
}

/// What a pass does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassSpec {
    /// Which program.
    pub layers: Layers,
    /// The lanes, in order.
    pub lanes: Vec<Lane>,
    /// Indices of the lanes whose logits are wanted, ascending.
    pub logits: Vec<usize>,
}

/// A submitted segment.
#[derive(Debug)]
pub struct Ticket {
    /// The pass.
    pub pass: PassId,
    /// The segment's index in its program.
    pub segment: usize,
    /// The step for the ducks, its input published; `None` where the segment has none.
    pub io: Option<Arc<StepIo>>,
}

/// What [`Stage::poll`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Call again.
    Running,
    /// The host's half of the segment is done.
    Done,
}

/// How a token is chosen from one lane's logits.
#[derive(Clone, Debug)]
pub struct Choice<'a> {
    /// Index of the lane in the pass; its logits were asked for.
    pub lane: usize,
    /// Filters, penalties and seed.
    pub params: &'a SamplingParams,
    /// Which of a request's several answers.
    pub choice_index: u32,
    /// All tokens before the one to choose, for penalties.
    pub history: &'a [u32],
    /// The position that the chosen token will take; keys the random numbers.
    pub position: usize,
    /// What for.
    pub rule: Rule,
}

/// The purpose of a [`Choice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Choose freely.
    Token,
    /// Choose a draft; the stage keeps the draft's distribution for the sequence until it is verified.
    Draft,
    /// Accept the sequence's draft at this position or replace it by the accept rule. `draft` is the token that was run, normally the
    /// one that [`Rule::Draft`] gave.
    Verify {
        /// The drafted token.
        draft: u32,
    },
}

/// The result of a [`Choice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The token at the choice's position.
    pub token: u32,
    /// For [`Rule::Verify`]: it is the draft, and what was run behind it holds.
    pub accepted: bool,
}

/// Stage 0.
pub trait Stage {
    /// Makes caches for up to `max_len` positions.
    ///
    /// # Errors
    /// Not enough memory, or more positions than the model allows.
    fn open(&mut self, max_len: usize) -> Result<SequenceId, StageError>;

    /// Frees a sequence's caches, and ends passes that use them.
    fn close(&mut self, sequence: SequenceId);

    /// Forgets the main layers' positions from `len` on, and the MTP layer's from `mtp_len` on. Two lengths, since an entry of the MTP layer
    /// depends on the token after its position as well: where that token changes, the entry before it has to go.
    fn truncate(&mut self, sequence: SequenceId, len: usize, mtp_len: usize);

    /// Starts a pass.
    ///
    /// # Errors
    /// Lanes that do not continue their caches, tokens outside the vocabulary, a full cache, too many lanes.
    fn begin(&mut self, spec: &PassSpec) -> Result<PassId, StageError>;

    /// Number of segments of a pass's program.
    fn segments(&self, layers: Layers) -> usize;

    /// Runs or enqueues the pass's next segment up to its hand-over.
    ///
    /// # Errors
    /// A segment out of order, one whose sums are not there, or one that an earlier pass of the same sequence has not been through.
    fn submit(&mut self, pass: PassId, segment: usize) -> Result<Ticket, StageError>;

    /// Lets the host's half of a segment make progress.
    ///
    /// # Errors
    /// A device that failed.
    fn poll(&mut self, ticket: &Ticket) -> Result<Progress, StageError>;

    /// Chooses tokens after the last segment.
    ///
    /// # Errors
    /// Logits that are not finite.
    fn choose(&mut self, pass: PassId, choices: &[Choice<'_>]) -> Result<Vec<Chosen>, StageError>;

    /// Logits `[vocab]` of a lane for which they were asked, after the last segment.
    fn logits(&self, pass: PassId, lane: usize) -> Option<&[f32]>;

    /// Ends a pass; its buffers are used again.
    fn end(&mut self, pass: PassId);

    /// How many lanes one pass may have.
    fn max_lanes(&self) -> usize;
}
