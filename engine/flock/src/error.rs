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
    /// A step for another number of sources of sums.
    #[error("a step has room for {found} sources of sums, but the flock has {expected}: make it with that many")]
    Sources {
        /// The flock's number.
        expected: usize,
        /// The step's.
        found: usize,
    },
    /// A step of too many lanes.
    #[error("a step has {found} lanes, ducks take at most {limit}: cut it into smaller ones")]
    Lanes {
        /// Most.
        limit: usize,
        /// The step's.
        found: usize,
    },
    /// A sum was already there: the step was submitted twice or not recycled.
    #[error("sums {slot} of step {seq} were written before: a step can be submitted only once until it is recycled")]
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
    /// Numbers that the duck protocol cannot carry.
    #[error("ducks cannot be sent this model")]
    Limits(#[from] wire::limits::LimitError),
    /// More memory is needed than there is.
    #[error(
        "the ducks have room for {found} of a layer's {expected} units ({missing} bytes are missing): add ducks or memory"
    )]
    Memory {
        /// Units of a layer.
        expected: u32,
        /// Units that fit.
        found: u32,
        /// Bytes for the rest, in all layers.
        missing: u64,
    },
    /// No ducks at all.
    #[error("the pond has no ducks: `duckpond ducks adopt` writes rows for those that answer")]
    NoDucks,
    /// A link whose frames are too short.
    #[error("port {port} passes frames of {found} bytes, ducks need {least}: raise its MTU")]
    Mtu {
        /// The port's name.
        port: String,
        /// Longest payload.
        found: usize,
        /// Needed.
        least: usize,
    },
    /// A domain's thread could not be started.
    #[error("starting the thread of port {port}")]
    Thread {
        /// The port's name.
        port: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A domain's thread has ended.
    #[error(
        "port {port} has stopped working: its thread ended, see the log; the next request goes on without its ducks"
    )]
    DomainEnded {
        /// The port's name.
        port: String,
    },
}
