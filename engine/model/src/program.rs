//! An architecture's half of a layer on the host, stated as a short program of typed operations.
//!
//! An architecture (one file under `arch/`) writes [`Program`]s; a stage-0 backend (CPU, CUDA) implements the [`Op`]s and never
//! looks at the architecture. A program is cut into [`Segment`]s at the points where the experts' work is handed to the ducks: a
//! backend runs `before`, publishes the step, runs `during` while the ducks work, and starts the next segment when the
//! sum is there. Nothing here computes anything.
//!
//! Shapes are written `[lanes, width]`: every activation buffer has one row per lane of the pass, row-major, f32 in exact mode.

use std::sync::Arc;

use kernels::tree::Shape;

use crate::checkpoint::{Matrix, Vector};
use crate::converted::Slices;

/// Index of an activation buffer of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buffer(pub u16);

/// Some neighbouring columns of an activation buffer: `[lanes, width]` with the buffer's row stride.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The buffer.
    pub buffer: Buffer,
    /// First column.
    pub start: usize,
    /// Number of columns.
    pub width: usize,
}

impl View {
    /// Columns `start .. start + width` of this view.
    pub fn columns(self, start: usize, width: usize) -> View {
        assert!(start + width <= self.width, "columns {start}+{width} of a view of {}", self.width);
        View { buffer: self.buffer, start: self.start + start, width }
    }
}

/// Index of a matrix in [`Weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixId(pub u32);
/// Index of a vector in [`Weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VectorId(pub u32);
/// Index of a per-sequence cache in [`Model::caches`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheId(pub u16);
/// Index of a rotary frequency table in [`Model::rotary`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RotaryId(pub u16);
/// Index of a key selection (positions kept by an indexer), one list per lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SelectionId(pub u16);

/// Whether a result is rounded where the numeric mode rounds activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Rounded to bf16 in modes `bf16` and `fp8`, kept in f32 in `exact`.
    Activation,
    /// f32 in every mode (routers, index weights, logits).
    Full,
}

/// Which columns form a rotated pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairLayout {
    /// `(x[2i], x[2i+1])`.
    Interleaved,
    /// `(x[i], x[i + d/2])`.
    Halves,
}

/// How a router turns scores into a choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// Experts that can be chosen.
    pub experts: usize,
    /// Experts chosen for each lane.
    pub chosen: usize,
    /// Groups of neighbouring experts.
    pub groups: usize,
    /// Groups that may serve a lane.
    pub kept_groups: usize,
    /// Divide the chosen scores by their sum.
    pub normalise: bool,
    /// Factor on the final weights.
    pub scale: f32,
}

/// One step of stage 0. Shapes: T lanes; widths as named on each field.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `out = table[token of the lane]`. Table `[vocab, width]`.
    Embed {
        /// Embedding table.
        table: MatrixId,
        /// `[T, width]`.
        out: View,
    },
    /// `out` = the state that a main pass kept with [`Op::Keep`] for the lane's position.
    Recall {
        /// `[T, hidden]`.
        out: View,
    },
    /// `out = x / sqrt(mean(x²) + eps) · weight`, mean and root in f32.
    RmsNorm {
        /// `[T, n]`.
        x: View,
        /// `[n]`.
        weight: VectorId,
        /// Added under the root.
        eps: f32,
        /// `[T, n]`.
        out: View,
    },
    /// `residual += delta` in f32, `out = RmsNorm(residual)` from that unrounded sum; then the residual is rounded as an
    /// activation (deepseek-ai's fused norm).
    AddRmsNorm {
        /// `[T, n]`, read and written.
        residual: View,
        /// `[T, n]`.
        delta: View,
        /// `[n]`.
        weight: VectorId,
        /// Added under the root.
        eps: f32,
        /// `[T, n]`.
        out: View,
    },
    /// `(x - mean) / sqrt(var + eps) · weight + bias` with the biased variance.
    LayerNorm {
        /// `[T, n]`.
        x: View,
        /// `[n]`.
        weight: VectorId,
        /// `[n]`.
        bias: VectorId,
        /// Added under the root.
        eps: f32,
        /// `[T, n]`.
        out: View,
    },
    /// `out = x · weightᵀ`.
    Project {
        /// `[T, k]`.
        x: View,
        /// `[n, k]`.
        weight: MatrixId,
        /// `[T, n]`.
        out: View,
        /// Rounding of the result.
        precision: Precision,
    },
    /// `out[h] = x[h] · W_h` (a row vector times a matrix): head h's rows of `weight` are
    /// `h · rows_per_head + first_row ..  + rows`, each of length k. Absorbs MLA's key half into the query.
    HeadMix {
        /// `[T, heads · x_stride]`; head h's part starts at `h · x_stride` and has `rows` columns.
        x: View,
        /// Columns from one head's part to the next.
        x_stride: usize,
        /// Which rows of which matrix.
        weight: HeadRows,
        /// `[T, heads · k]`.
        out: View,
    },
    /// `out[h] = x[h] · W_hᵀ`, head h's rows as in [`Op::HeadMix`]. MLA's value half.
    HeadProject {
        /// `[T, heads · k]`.
        x: View,
        /// Which rows of which matrix.
        weight: HeadRows,
        /// `[T, heads · rows]`.
        out: View,
    },
    /// Rotates pairs in place by the lane's position: for each head the `d` columns from `head · stride + offset`
    /// where d is twice the table's length.
    Rotate {
        /// `[T, heads · stride]`.
        x: View,
        /// Number of heads.
        heads: usize,
        /// Columns from one head to the next.
        stride: usize,
        /// First rotated column of a head.
        offset: usize,
        /// Frequencies.
        table: RotaryId,
        /// Which columns form a pair.
        layout: PairLayout,
    },
    /// Writes each lane's row into the cache at the lane's position.
    Append {
        /// `[T, n]`.
        x: View,
        /// Cache of row width n.
        cache: CacheId,
    },
    /// Scores all cached keys up to the lane's position and keeps the best `keep` of them:
    /// `I(u) = Σ_h weights[h] · head_scale · max(0, q_h · key_u · key_scale)`; ties go to the lower position.
    Select {
        /// `[T, heads · dim]`.
        q: View,
        /// `[T, heads]`.
        weights: View,
        /// Keys, row width dim.
        keys: CacheId,
        /// Factor on the weights.
        head_scale: f32,
        /// Factor on each dot product.
        key_scale: f32,
        /// How many positions are kept at most.
        keep: usize,
        /// Where the choice goes, ascending positions.
        out: SelectionId,
    },
    /// Attention in the latent space (MLA absorbed): `logit(u) = scale · (q_latent_h · c_u + q_rope_h · r_u)` over the selected
    /// u, softmax, `out_h = Σ a_u c_u`.
    AttendLatent {
        /// `[T, heads · latent]`.
        q_latent: View,
        /// `[T, heads · rope_stride]`; head h's rotary part starts at `h · rope_stride + rope_offset`.
        q_rope: View,
        /// Columns from one head's rotary part to the next.
        rope_stride: usize,
        /// First rotary column of a head.
        rope_offset: usize,
        /// Latent vectors, row width latent.
        latent: CacheId,
        /// Rotated keys, one for all heads.
        rope: CacheId,
        /// Positions to attend to.
        selection: SelectionId,
        /// Number of heads.
        heads: usize,
        /// Softmax scale.
        scale: f32,
        /// `[T, heads · latent]`.
        out: View,
    },
    /// `out = silu(gate) · up`, one rounding.
    Gated {
        /// `[T, n]`.
        gate: View,
        /// `[T, n]`.
        up: View,
        /// `[T, n]`.
        out: View,
    },
    /// Sigmoid routing with a correction bias for the choice and group limits (DeepSeek-V3); writes expert ids and
    /// weights of the segment's step, ids ascending.
    Route {
        /// `[T, hidden]`.
        x: View,
        /// `[experts, hidden]`.
        gate: MatrixId,
        /// `[experts]`.
        bias: VectorId,
        /// The rule.
        routing: Routing,
    },
    /// `out = (sum of the ducks' nodes up the canonical tree) + shared`, rounded once. First op of a segment that follows a step.
    Combine {
        /// `[T, hidden]`.
        shared: View,
        /// `[T, hidden]`.
        out: View,
    },
    /// Keeps the rows for the MTP layer's [`Op::Recall`].
    Keep {
        /// `[T, hidden]`.
        x: View,
    },
    /// `logits = x · weightᵀ` in f32, only for the lanes whose logits the pass asks for.
    Logits {
        /// `[T, hidden]`.
        x: View,
        /// `[vocab, hidden]`.
        weight: MatrixId,
    },
}

/// A run of rows per head inside one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadRows {
    /// The matrix `[heads · rows_per_head, k]`.
    pub matrix: MatrixId,
    /// Number of heads.
    pub heads: usize,
    /// Rows of the matrix that belong to one head.
    pub rows_per_head: usize,
    /// First row used, counted within a head.
    pub first_row: usize,
    /// Rows used per head.
    pub rows: usize,
}

/// The experts' work at the end of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertStep {
    /// Index of the layer's experts in [`Model::experts`].
    pub layer: u16,
    /// `[T, hidden]`, what the ducks multiply.
    pub input: View,
}

/// A part of a program up to one hand-over (or up to the end).
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// The model's layer that this segment ends in, for logs and tests.
    pub layer: u16,
    /// Run before the hand-over.
    pub before: Vec<Op>,
    /// The hand-over; absent at the end of a program and after dense layers.
    pub step: Option<ExpertStep>,
    /// Run while the ducks work; must not need their sum.
    pub during: Vec<Op>,
}

/// One pass through the main layers or through the MTP layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Width of every activation buffer, by [`Buffer`].
    pub buffers: Vec<usize>,
    /// Number of selections.
    pub selections: usize,
    /// The segments in order.
    pub segments: Vec<Segment>,
}

impl Program {
    /// Whether every view lies within its buffer, no operation reads the buffer that it produces, and sums are combined where a
    /// step came before. Gives what is wrong, for whoever writes an architecture.
    ///
    /// # Errors
    /// The segment, the operation and the fault.
    pub fn check(&self) -> Result<(), String> {
        let mut after_step = false;
        for (index, segment) in self.segments.iter().enumerate() {
            for (place, op) in segment.before.iter().chain(&segment.during).enumerate() {
                let fault = |what: &str| format!("segment {index}, operation {place}, {op:?}: {what}");
                let (reads, writes) = op.views();
                let outside = |view: &View| {
                    self.buffers.get(usize::from(view.buffer.0)).is_none_or(|&width| view.start + view.width > width)
                };
                if reads.iter().chain(&writes).any(outside) {
                    return Err(fault("a view outside its buffer"));
                }
                if reads.iter().any(|read| writes.iter().any(|write| read.buffer == write.buffer)) {
                    return Err(fault("reads the buffer that it produces"));
                }
                if matches!(op, Op::Combine { .. }) && !(after_step && place == 0) {
                    return Err(fault("combines sums that no step gives"));
                }
                let routes = segment.before.iter().any(|op| matches!(op, Op::Route { .. }));
                if segment.step.is_some() && !routes {
                    return Err(fault("a step without a router"));
                }
            }
            after_step = segment.step.is_some();
        }
        Ok(())
    }
}

impl Op {
    /// Views read, and views produced. What is changed in place is in neither list's way: it counts as produced.
    fn views(&self) -> (Vec<View>, Vec<View>) {
        match self {
            Op::Embed { out, .. } | Op::Recall { out } => (vec![], vec![*out]),
            Op::RmsNorm { x, out, .. }
            | Op::LayerNorm { x, out, .. }
            | Op::Project { x, out, .. }
            | Op::HeadMix { x, out, .. }
            | Op::HeadProject { x, out, .. } => (vec![*x], vec![*out]),
            Op::AddRmsNorm { residual, delta, out, .. } => (vec![*delta], vec![*residual, *out]),
            Op::Rotate { x, .. } => (vec![], vec![*x]),
            Op::Append { x, .. } | Op::Keep { x } | Op::Route { x, .. } | Op::Logits { x, .. } => (vec![*x], vec![]),
            Op::Select { q, weights, .. } => (vec![*q, *weights], vec![]),
            Op::AttendLatent { q_latent, q_rope, out, .. } => (vec![*q_latent, *q_rope], vec![*out]),
            Op::Gated { gate, up, out } => (vec![*gate, *up], vec![*out]),
            Op::Combine { shared, out } => (vec![*shared], vec![*out]),
        }
    }
}

/// A per-sequence cache: one row for each position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// For messages: `layers.3.latent`.
    pub name: String,
    /// Row width.
    pub width: usize,
    /// Belongs to the MTP layer, whose length is kept apart from the main layers'.
    pub mtp: bool,
}

/// A rotary table: frequency of each pair, in radians per position.
#[derive(Clone, Debug, PartialEq)]
pub struct RotarySpec {
    /// f32 as the reference builds it; `angle = position · frequency` is an f32 product.
    pub frequencies: Vec<f32>,
}

/// One routed expert's three matrices.
#[derive(Clone, Debug)]
pub struct Expert {
    /// `[width, hidden]`.
    pub gate: Matrix,
    /// `[width, hidden]`.
    pub up: Matrix,
    /// `[hidden, width]`.
    pub down: Matrix,
}

/// One MoE layer's routed experts: what the ducks hold.
#[derive(Clone, Debug)]
pub struct ExpertLayer {
    /// The model's layer number.
    pub layer: u16,
    /// By expert id.
    pub experts: Vec<Expert>,
}

/// The weights that programs refer to.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    /// By [`MatrixId`].
    pub matrices: Vec<Matrix>,
    /// By [`VectorId`].
    pub vectors: Vec<Vector>,
}

/// Sizes that everything around the programs needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of token ids.
    pub vocab: usize,
    /// Positions that the model allows.
    pub max_positions: usize,
    /// Routed experts per layer.
    pub experts: usize,
    /// Experts chosen for each lane.
    pub chosen: usize,
    /// Width of one expert's intermediate dimension, a multiple of 64.
    pub expert_width: usize,
}

impl Dims {
    /// Slices of 64 columns of an expert's intermediate dimension.
    pub fn slices(&self) -> usize {
        self.expert_width / 64
    }

    /// The units of one layer; `None` if there are more than a canonical tree can number.
    pub fn shape(&self) -> Option<Shape> {
        let shape = Shape { slices: self.slices().try_into().ok()?, experts: self.experts.try_into().ok()? };
        shape.units().map(|_| shape)
    }
}

/// A model, ready for a stage (programs, host weights) and a flock (experts).
#[derive(Clone, Debug)]
pub struct Model {
    /// Sizes.
    pub dims: Dims,
    /// Tokens that end an answer.
    pub end_tokens: Vec<u32>,
    /// The host's weights.
    pub weights: Weights,
    /// Per-sequence caches.
    pub caches: Vec<CacheSpec>,
    /// Rotary tables.
    pub rotary: Vec<RotarySpec>,
    /// The main layers, ending in logits.
    pub main: Program,
    /// The MTP layer, if the checkpoint has one.
    pub mtp: Option<Program>,
    /// The ducks' weights, by [`ExpertStep::layer`]. From a converted folder the layers are listed without experts, and
    /// `slices` has them.
    pub experts: Vec<ExpertLayer>,
    /// The ducks' weights as units, where they are packed already, by the same layer index.
    pub slices: Option<Arc<Slices>>,
}
