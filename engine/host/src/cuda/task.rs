//! What a program is lowered to: tasks with what they read and write, and launches of several tasks each. No addresses yet.

use model::program::{Buffer, CacheId, MatrixId, PairLayout, RotaryId, Routing, SelectionId, VectorId, View};

/// A form of a matrix on the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WeightKey {
    pub(crate) matrix: MatrixId,
    pub(crate) cut: Cut,
    /// Decoded to f32, because its block scales cannot be cut.
    pub(crate) decoded: bool,
}

/// Which part of a matrix, and which way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cut {
    /// All of it, as stored.
    Whole,
    /// Each head's rows one after another: `[heads · rows, k]`.
    Rows(Heads),
    /// Each head's rows transposed: `[heads · k, rows]`.
    Columns(Heads),
}

/// A run of rows for each head, see [`model::program::HeadRows`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Heads {
    pub(crate) heads: usize,
    pub(crate) rows_per_head: usize,
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
}

/// One operation on each lane's row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RowTask {
    Embed {
        table: MatrixId,
        out: View,
    },
    Recall {
        out: View,
    },
    Keep {
        x: View,
    },
    RmsNorm {
        x: View,
        weight: VectorId,
        eps: f32,
        out: View,
    },
    AddRmsNorm {
        residual: View,
        delta: View,
        weight: VectorId,
        eps: f32,
        out: View,
    },
    LayerNorm {
        x: View,
        weight: VectorId,
        bias: VectorId,
        eps: f32,
        out: View,
    },
    Rotate {
        x: View,
        heads: usize,
        stride: usize,
        offset: usize,
        table: RotaryId,
        layout: PairLayout,
    },
    Append {
        x: View,
        cache: CacheId,
    },
    Gated {
        gate: View,
        up: View,
        out: View,
    },
    /// Waits for the ducks.
    Wait,
    Combine {
        shared: View,
        out: View,
    },
    Hadamard {
        x: View,
        heads: usize,
        width: usize,
    },
    /// Through e4m3 and back, with one scale for each `block` columns; in place if both are one view.
    Quantise {
        x: View,
        out: View,
        block: usize,
    },
}

/// Where a product goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    View(View),
    /// `[wanted lanes, vocab]`, and only those lanes are computed.
    Logits,
}

/// One product with a matrix, or with one for each group.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LinearTask {
    pub(crate) x: View,
    /// Columns of `x` from one group's part to the next.
    pub(crate) x_group: usize,
    pub(crate) groups: usize,
    /// Rows of one group.
    pub(crate) rows: usize,
    pub(crate) k: usize,
    pub(crate) weight: WeightKey,
    pub(crate) out: Target,
    pub(crate) round: bool,
    pub(crate) quantise: bool,
    /// By matrix instructions.
    pub(crate) fast: bool,
}

/// The indexer's choice.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SelectTask {
    pub(crate) q: View,
    pub(crate) weights: View,
    pub(crate) keys: CacheId,
    pub(crate) head_scale: f32,
    pub(crate) key_scale: f32,
    pub(crate) keep: usize,
    pub(crate) out: SelectionId,
    pub(crate) fast: bool,
}

/// Attention over a selection.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AttendTask {
    pub(crate) q_latent: View,
    pub(crate) q_rope: View,
    pub(crate) rope_stride: usize,
    pub(crate) rope_offset: usize,
    pub(crate) latent: CacheId,
    pub(crate) rope: CacheId,
    pub(crate) selection: SelectionId,
    /// Positions that the selection has at most.
    pub(crate) keep: usize,
    pub(crate) heads: usize,
    pub(crate) scale: f32,
    pub(crate) out: View,
    pub(crate) fast: bool,
}

/// The choice of experts and the hand-over.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RouteTask {
    pub(crate) logits: View,
    pub(crate) bias: VectorId,
    pub(crate) routing: Routing,
    /// What the ducks multiply.
    pub(crate) input: View,
}

/// One unit of work.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Task {
    Row(RowTask),
    Linear(LinearTask),
    Select(SelectTask),
    Attend(AttendTask),
    Route(RouteTask),
}

/// Tasks that are launched together and do not depend on each other (but within a chain).
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Launch {
    /// Chains of row operations, each run in order.
    Rows(Vec<Vec<RowTask>>),
    /// Products of one kernel.
    Linears(Vec<LinearTask>),
    Select(SelectTask),
    Attend(AttendTask),
    Route(RouteTask),
}

/// What a task touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Columns { buffer: Buffer, start: usize, end: usize },
    Cache(CacheId),
    Selection(SelectionId),
    Kept,
    Sums,
    Handed,
    Logits,
}

impl Resource {
    fn overlaps(self, other: Resource) -> bool {
        match (self, other) {
            (
                Resource::Columns { buffer, start, end },
                Resource::Columns { buffer: buffer_2, start: start_2, end: end_2 },
            ) => buffer == buffer_2 && start < end_2 && start_2 < end,
            _ => self == other,
        }
    }
}

fn columns(view: View) -> Resource {
    Resource::Columns { buffer: view.buffer, start: view.start, end: view.start + view.width }
}

impl Task {
    /// What it reads, and what it writes (or changes).
    pub(crate) fn touches(&self) -> (Vec<Resource>, Vec<Resource>) {
        match self {
            Task::Row(row) => row.touches(),
            Task::Linear(task) => {
                let out = match task.out {
                    Target::View(view) => columns(view),
                    Target::Logits => Resource::Logits,
                };
                (vec![columns(task.x)], vec![out])
            }
            Task::Select(task) => (
                vec![columns(task.q), columns(task.weights), Resource::Cache(task.keys)],
                vec![Resource::Selection(task.out)],
            ),
            Task::Attend(task) => (
                vec![
                    columns(task.q_latent),
                    columns(task.q_rope),
                    Resource::Cache(task.latent),
                    Resource::Cache(task.rope),
                    Resource::Selection(task.selection),
                ],
                vec![columns(task.out)],
            ),
            Task::Route(task) => (vec![columns(task.logits), columns(task.input)], vec![Resource::Handed]),
        }
    }

    /// Whether this task has to run after `earlier`.
    pub(crate) fn depends_on(&self, earlier: &Task) -> bool {
        // What is handed over tells the host that everything in front of it is there, caches included.
        if matches!(self, Task::Route(_)) || matches!(earlier, Task::Route(_)) {
            return true;
        }
        let ((reads, writes), (reads_before, writes_before)) = (self.touches(), earlier.touches());
        let any = |a: &[Resource], b: &[Resource]| a.iter().any(|x| b.iter().any(|y| x.overlaps(*y)));
        any(&reads, &writes_before) || any(&writes, &writes_before) || any(&writes, &reads_before)
    }
}

impl RowTask {
    fn touches(&self) -> (Vec<Resource>, Vec<Resource>) {
        match self {
            RowTask::Embed { out, .. } => (vec![], vec![columns(*out)]),
            RowTask::Recall { out } => (vec![Resource::Kept], vec![columns(*out)]),
            RowTask::Keep { x } => (vec![columns(*x)], vec![Resource::Kept]),
            RowTask::RmsNorm { x, out, .. } | RowTask::LayerNorm { x, out, .. } => {
                (vec![columns(*x)], vec![columns(*out)])
            }
            RowTask::AddRmsNorm { residual, delta, out, .. } => {
                (vec![columns(*delta), columns(*residual)], vec![columns(*residual), columns(*out)])
            }
            RowTask::Rotate { x, .. } | RowTask::Hadamard { x, .. } => (vec![columns(*x)], vec![columns(*x)]),
            RowTask::Append { x, cache } => (vec![columns(*x)], vec![Resource::Cache(*cache)]),
            RowTask::Gated { gate, up, out } => (vec![columns(*gate), columns(*up)], vec![columns(*out)]),
            RowTask::Wait => (vec![], vec![Resource::Sums]),
            RowTask::Combine { shared, out } => (vec![columns(*shared), Resource::Sums], vec![columns(*out)]),
            RowTask::Quantise { x, out, .. } => (vec![columns(*x)], vec![columns(*out)]),
        }
    }
}
