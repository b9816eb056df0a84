//! What can go wrong in stage 0.

use std::path::PathBuf;

use model::sampling::SamplingError;

use crate::cuda::CudaError;
use crate::stage::{PassId, SequenceId};

/// Why stage 0 refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The canonical tree numbers its nodes in 16 bits.
    #[error("{slices} slices of {experts} experts are more units than a plan can number (32,768)")]
    TooManyUnits {
        /// Slices of an expert.
        slices: usize,
        /// Experts per layer.
        experts: usize,
    },
    /// A weight that is no finite number.
    #[error("tensor {tensor} in {} has the element {code:#x} at row {row}, column {column}, which is no finite number; fetch the file again", file.display())]
    NotFinite {
        /// Its name in the checkpoint.
        tensor: String,
        /// The file that holds it.
        file: PathBuf,
        /// Where.
        row: usize,
        /// Where.
        column: usize,
        /// The element's bits.
        code: u32,
    },
    /// A model that does not run in the mode that was asked for.
    #[error("the model does not run in mode {mode}: {why}; choose another with --numerics")]
    Mode {
        /// The mode.
        mode: &'static str,
        /// What of the model is in the way.
        why: String,
    },
    /// Longer than the model's positions.
    #[error("{found} positions asked for, the model allows {limit}")]
    TooLong {
        /// Positions asked for.
        found: usize,
        /// Positions of the model.
        limit: usize,
    },
    /// A pass with no or too many lanes.
    #[error("a pass of {found} lanes, between 1 and {limit} are possible")]
    Lanes {
        /// Lanes of the pass.
        found: usize,
        /// Lanes of this stage.
        limit: usize,
    },
    /// A lane of a sequence that is not open.
    #[error("sequence {0:?} is not open")]
    NoSequence(SequenceId),
    /// A pass that is not under way.
    #[error("pass {0:?} is not under way")]
    NoPass(PassId),
    /// The checkpoint has no MTP layer.
    #[error("the model has no MTP layer")]
    NoMtp,
    /// A lane that does not continue its caches.
    #[error("a lane at position {found} where the caches end at {expected}")]
    Position {
        /// Where the caches end.
        expected: usize,
        /// The lane's position.
        found: usize,
    },
    /// All positions are used.
    #[error("the cache is full at {limit} positions")]
    CacheFull {
        /// Positions of the sequence.
        limit: usize,
    },
    /// A token id that the model does not have.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The MTP layer asks for a state that no recent main pass computed.
    #[error("the state of position {position} is no longer kept for the MTP layer")]
    StateGone {
        /// The position.
        position: usize,
    },
    /// Lanes of a sequence that do not stand together, or logits that are not listed in order.
    #[error("a pass lists {what} out of order")]
    Unordered {
        /// What.
        what: &'static str,
    },
    /// A pass that overtakes an earlier one of its sequence.
    #[error("segment {segment} submitted before an earlier pass of the sequence was through it")]
    Overtaking {
        /// The segment.
        segment: usize,
    },
    /// Segments out of order.
    #[error("segment {found} submitted, {expected} comes next")]
    Segment {
        /// The segment that comes next.
        expected: usize,
        /// The one submitted.
        found: usize,
    },
    /// The ducks' sum for the segment before is not there.
    #[error("segment {segment} submitted before the sums of the step before it")]
    NotSummed {
        /// The segment.
        segment: usize,
    },
    /// Logits that were not asked for.
    #[error("no logits for lane {lane}")]
    NoLogits {
        /// The lane.
        lane: usize,
    },
    /// The GPU cannot be used, or failed.
    #[error(transparent)]
    Device(#[from] CudaError),
    /// Logits from which no token can be chosen.
    #[error("choosing a token")]
    Sampling(#[from] SamplingError),
}
