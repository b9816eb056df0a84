//! What every backend refuses before it begins a pass or submits a segment.

use std::collections::HashMap;

use model::program::Dims;
use model::step::StepIo;

use crate::StageError;
use crate::stage::{Lane, Layers, PassId, PassSpec, SequenceId};

/// How far a sequence's caches reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    /// Positions of the main layers.
    pub(crate) len: usize,
    /// Positions of the MTP layer.
    pub(crate) mtp_len: usize,
    /// Positions allowed.
    pub(crate) max_len: usize,
}

/// What a backend knows of its open sequences.
pub(crate) trait Sequences {
    /// How far one's caches reach, if it is open.
    fn reach(&self, id: SequenceId) -> Option<Reach>;

    /// Whether the state of a position is kept for the MTP layer.
    fn has_kept(&self, id: SequenceId, position: usize) -> bool;
}

/// Refuses lanes that do not continue their caches, tokens outside the vocabulary, a full cache, too many lanes.
pub(crate) fn check(
    spec: &PassSpec,
    max_lanes: usize,
    dims: &Dims,
    sequences: &impl Sequences,
) -> Result<(), StageError> {
    let lanes = &spec.lanes;
    if lanes.is_empty() || lanes.len() > max_lanes {
        return Err(StageError::Lanes { found: lanes.len(), limit: max_lanes });
    }
    for (t, lane) in lanes.iter().enumerate() {
        let reach = sequences.reach(lane.sequence).ok_or(StageError::NoSequence(lane.sequence))?;
        let end = match spec.layers {
            Layers::Main => reach.len,
            Layers::Mtp => reach.mtp_len,
        };
        let expected = match t.checked_sub(1).map(|before| lanes[before]) {
            Some(before) if before.sequence == lane.sequence => before.position + 1,
            Some(_) if lanes[..t].iter().any(|before| before.sequence == lane.sequence) => {
                return Err(StageError::Unordered { what: "lanes" });
            }
            _ => end,
        };
        if lane.position != expected {
            return Err(StageError::Position { expected, found: lane.position });
        }
        if lane.position >= reach.max_len {
            return Err(StageError::CacheFull { limit: reach.max_len });
        }
        if lane.token as usize >= dims.vocab {
            return Err(StageError::Token { token: lane.token, vocab: dims.vocab });
        }
        if spec.layers == Layers::Mtp && !sequences.has_kept(lane.sequence, lane.position) {
            return Err(StageError::StateGone { position: lane.position });
        }
    }
    if !spec.logits.is_sorted_by(|a, b| a < b) {
        return Err(StageError::Unordered { what: "logits" });
    }
    match spec.logits.last() {
        Some(&lane) if lane >= lanes.len() => Err(StageError::NoLogits { lane }),
        _ => Ok(()),
    }
}

/// A pass under way, as far as order is concerned.
pub(crate) trait UnderWay {
    fn layers(&self) -> Layers;
    fn lanes(&self) -> &[Lane];
    /// The segment to submit next.
    fn next(&self) -> usize;
    /// The latest segment has not been polled to its end.
    fn pending(&self) -> bool;
    /// The latest step.
    fn io(&self) -> Option<&StepIo>;
}

/// Whether a sequence is in both.
pub(crate) fn share_sequence(a: &[Lane], b: &[Lane]) -> bool {
    a.iter().any(|a| b.iter().any(|b| a.sequence == b.sequence))
}

/// Refuses a segment out of order, one whose sums are not there, and one that an earlier pass of the same sequence has not been through. Gives
/// the pass.
pub(crate) fn check_submit<P: UnderWay>(
    passes: &HashMap<PassId, P>,
    id: PassId,
    segment: usize,
    segments: impl Fn(Layers) -> usize,
) -> Result<&P, StageError> {
    let pass = passes.get(&id).ok_or(StageError::NoPass(id))?;
    if segment != pass.next() || pass.pending() || segment >= segments(pass.layers()) {
        return Err(StageError::Segment { expected: pass.next(), found: segment });
    }
    if pass.io().is_some_and(|io| !io.is_summed()) {
        return Err(StageError::NotSummed { segment });
    }
    // Later positions read what earlier ones of the same layers have written.
    let overtaken = |(other, earlier): (&PassId, &P)| {
        other.0 < id.0
            && earlier.layers() == pass.layers()
            && earlier.next() <= segment
            && share_sequence(earlier.lanes(), pass.lanes())
    };
    if passes.iter().any(overtaken) {
        return Err(StageError::Overtaking { segment });
    }
    Ok(pass)
}
