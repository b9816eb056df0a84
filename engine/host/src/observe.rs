//! Intermediate values of a stage, for tests and comparisons: the same for every backend.

use model::program::{Op, View};

use crate::stage::Lane;

/// Sees intermediate values.
pub trait Observer: Send {
    /// Called after each op.
    fn after(&mut self, seen: &Seen<'_>);
}

/// What an [`Observer`] sees.
pub struct Seen<'a> {
    /// The segment's layer.
    pub layer: u16,
    /// The op that has just run.
    pub op: &'a Op,
    /// The pass's lanes.
    pub lanes: &'a [Lane],
    /// For [`Op::Select`]: scores of all visible positions, by lane. For [`Op::Route`]: the router's logits, by lane.
    pub scores: &'a [Vec<f32>],
    /// For [`Op::Route`]: `[T, chosen]` experts and weights.
    pub experts: &'a [u16],
    /// See `experts`.
    pub weights: &'a [f32],
    /// For [`Op::Select`]: kept positions by lane.
    pub kept: &'a [Vec<u32>],
    pub(crate) rows: &'a dyn SeenRows,
}

/// Where a backend keeps what its ops read and write.
pub(crate) trait SeenRows {
    /// A lane's values in a view.
    fn row(&self, view: View, lane: usize) -> &[f32];
}

impl Seen<'_> {
    /// A lane's values in a view of the op.
    pub fn row(&self, view: View, lane: usize) -> &[f32] {
        self.rows.row(view, lane)
    }
}
