//! What can go wrong between a step and its sums.

use kernels::Refusal;
use kernels::tree::Shape;
use model::converted::PackError;

use crate::plan::PlanError;

/// Why a flock cannot be built, or a step not be computed.
#[derive(Debug, thiserror::Error)]
pub enum FlockError {
    /// The plan itself.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A plan made for another model.
    #[error("the plan is for {found:?}, but the model has {expected:?}: make a plan for this model")]
    PlanShape {
        /// The model's units.
        expected: Shape,
        /// The plan's.
        found: Shape,
    },
    /// Sizes that cannot be cut into units.
    #[error(
        "the model has hidden size {hidden} and experts of width {width}, expected at least 1 and a multiple of 64"
    )]
    Sizes {
        /// Width of the residual stream.
        hidden: usize,
        /// Width of an expert's intermediate dimension.
        width: usize,
    },
    /// The experts cannot be made ready for the kernels.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// Units of another model.
    #[error("the units are for (hidden, slices, experts) {found:?}, but the model has {expected:?}")]
    Units {
        /// The model's hidden size, slices and experts.
        expected: (usize, usize, usize),
        /// The units'.
        found: (usize, usize, usize),
    },
    /// The kernels refused a step.
    #[error("the kernels refused a step")]
    Kernels(#[from] Refusal),
    /// A step was submitted before the stage wrote its input.
    #[error("a step was submitted whose input is not published yet")]
    NoInput,
    /// A step has room for another number of sums than the flock writes.
    #[error("a step has room for {found} top nodes, but the flock writes {expected}: make it with that many")]
    TopNodes {
        /// The flock's number.
        expected: usize,
        /// The step's.
        found: usize,
    },
    /// A sum was already there: the step was submitted twice or not recycled.
    #[error("top node {slot} of step {seq} was written before: a step can be submitted only once until it is recycled")]
    AlreadySummed {
        /// The step's sequence number.
        seq: u64,
        /// The node's slot in the step.
        slot: usize,
    },
    /// A step for a layer without experts.
    #[error("a step names expert layer {found}, but the model has {layers}")]
    Layer {
        /// How many the model has.
        layers: usize,
        /// The step's.
        found: u16,
    },
    /// An input of the wrong size.
    #[error("a step of {lanes} lanes has {found} {what}, expected {per_lane} per lane")]
    InputLength {
        /// Lanes of the step.
        lanes: usize,
        /// Which part of the input.
        what: &'static str,
        /// Its size per lane.
        per_lane: usize,
        /// Its size in all.
        found: usize,
    },
    /// An expert that the layer does not have.
    #[error("lane {lane} chose expert {found}, but a layer has {experts}")]
    ExpertId {
        /// The lane.
        lane: usize,
        /// Experts of a layer.
        experts: usize,
        /// The id.
        found: u16,
    },
    /// A lane whose experts are out of order or repeated.
    #[error("lane {lane} lists expert {second} after {first}: ids must ascend")]
    ExpertOrder {
        /// The lane.
        lane: usize,
        /// An id.
        first: u16,
        /// The one listed after it.
        second: u16,
    },
    /// A duck reported values that nobody asked it for.
    #[error(
        "duck {duck} reported values {start}..{end} of lane {lane}, node {node} in step {seq}, which it does not owe"
    )]
    Fragment {
        /// The duck's place in the plan.
        duck: usize,
        /// The step's sequence number.
        seq: u64,
        /// Place in the duck's list of nodes.
        node: usize,
        /// The lane.
        lane: usize,
        /// First output.
        start: usize,
        /// Behind the last output.
        end: usize,
    },
}
