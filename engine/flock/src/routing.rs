//! A step's input, checked.

use model::step::StepInput;

use crate::FlockError;
use crate::experts::Experts;

/// Refuses anything that would be out of bounds or has no meaning. Everyone behind this may index freely.
pub(crate) fn check(input: &StepInput, experts: &Experts) -> Result<(), FlockError> {
    let (layers, count) = (experts.slices.layers(), usize::from(experts.shape.experts));
    if usize::from(input.layer) >= layers {
        return Err(FlockError::Layer { layers, found: input.layer });
    }
    let lanes = input.lanes;
    for (what, per_lane, found) in [
        ("hidden values", experts.hidden, input.hidden.len()),
        ("expert ids", experts.chosen, input.experts.len()),
        ("expert weights", experts.chosen, input.weights.len()),
    ] {
        if lanes.checked_mul(per_lane) != Some(found) {
            return Err(FlockError::InputLength { lanes, what, per_lane, found });
        }
    }
    for (lane, ids) in input.experts.chunks_exact(experts.chosen).enumerate() {
        if let Some(&found) = ids.iter().find(|&&id| usize::from(id) >= count) {
            return Err(FlockError::ExpertId { lane, experts: count, found });
        }
        if let Some(pair) = ids.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(FlockError::ExpertOrder { lane, first: pair[0], second: pair[1] });
        }
    }
    Ok(())
}
