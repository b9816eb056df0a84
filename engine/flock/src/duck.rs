//! What a domain asks of one duck, wherever it is.
//!
//! The interface is that of a remote duck: a step is begun, then its results arrive in pieces, in any order, some time. How a piece
//! got here (and that a repeated one counts once) is the duck's own affair, and so are its deadlines.

use std::sync::Arc;
use std::time::Duration;

use model::step::StepIo;

use crate::FlockError;

/// Some neighbouring values of one lane of one node's sum.
#[derive(Clone, Copy, Debug)]
pub struct Fragment<'a> {
    /// The step, as [`Duck::begin_step`] numbered it.
    pub seq: u64,
    /// Place of the node in the duck's list of nodes.
    pub node: usize,
    /// The lane.
    pub lane: usize,
    /// First output.
    pub start: usize,
    /// The outputs from there on.
    pub values: &'a [f32],
}

/// One duck. Its nodes are fixed while it lives; it owes a value for each node, lane and output where one of the lane's experts lies
/// below the node, and nothing else.
pub trait Duck: Send {
    /// Takes a step on; several may be under way, with ascending numbers. The step's input is published and was checked.
    ///
    /// # Errors
    /// The duck cannot take it.
    fn begin_step(&mut self, seq: u64, io: &Arc<StepIo>) -> Result<(), FlockError>;

    /// Makes some progress without waiting for anyone, and hands over what has arrived: every value that is owed exactly once. Returns
    /// whether anything was done.
    ///
    /// # Errors
    /// The duck's, or what `land` returned.
    fn poll(&mut self, land: &mut dyn FnMut(Fragment<'_>) -> Result<(), FlockError>) -> Result<bool, FlockError>;

    /// Forgets every step under way; nothing of them may be handed over afterwards.
    fn abandon(&mut self);

    /// What it has done so far.
    fn stats(&self) -> DuckStats;
}

/// Counters of one duck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DuckStats {
    /// Steps finished, those without a chosen unit included.
    pub steps: u64,
    /// Units read: an expert's part in a slice counts once per step, however many lanes chose it.
    pub units: u64,
    /// Time spent computing.
    pub busy: Duration,
}
