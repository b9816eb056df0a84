//! DeepSeek-V3.2's half of each layer on the host, as programs of operations.
//!
//! DeepSeek-AI, "DeepSeek-V3.2" (2025) and "DeepSeek-V3 Technical Report" (2024): multi-head latent attention in its absorbed form, the lightning
//! indexer in front of it, group-limited sigmoid routing, one shared expert, and one multi-token-prediction layer. `h` below is
//! the normed residual stream; lane t attends to `S_t`, the positions that its indexer keeps.

use super::config::Config;
use super::tensors::{AttentionWeights, FeedForward, LayerWeights, Mlp, MoeWeights, MtpWeights, Weights as Tensors};
use crate::checkpoint::{Matrix, Vector};
use crate::program::{
    Buffer, CacheId, CacheSpec, Dims, Expert, ExpertLayer, ExpertStep, HeadRows, MatrixId, Model, Op, PairLayout,
    Precision, Program, RotaryId, RotarySpec, Routing, Segment, SelectionId, VectorId, View, Weights,
};

/// LayerNorm of the indexer's keys; the norms of the stream have their epsilon in the configuration.
const INDEX_NORM_EPS: f32 = 1e-6;

/// The one rotary table, shared by attention (interleaved pairs) and indexer (halves).
const ROTARY: RotaryId = RotaryId(0);

/// States the model: host weights, caches, the main program and, if the checkpoint has an MTP layer, its program.
pub fn build(config: &Config, tensors: &Tensors) -> Model {
    let mut parts = Parts::default();
    let main = main_program(config, tensors, &mut parts);
    let mtp = tensors.mtp.as_ref().map(|mtp| mtp_program(config, mtp, &mut parts));
    Model {
        dims: Dims {
            hidden: config.hidden,
            vocab: config.vocab,
            max_positions: config.max_positions,
            experts: config.experts,
            chosen: config.experts_per_token,
            expert_width: config.moe_intermediate,
        },
        end_tokens: config.eos.clone(),
        weights: parts.weights,
        caches: parts.caches,
        rotary: vec![RotarySpec { frequencies: config.rope_frequencies.clone() }],
        main,
        mtp,
        experts: parts.experts,
        slices: None,
    }
}

/// What programs refer to, collected while they are written.
#[derive(Default)]
struct Parts {
    weights: Weights,
    caches: Vec<CacheSpec>,
    experts: Vec<ExpertLayer>,
}

impl Parts {
    fn matrix(&mut self, matrix: &Matrix) -> MatrixId {
        self.weights.matrices.push(matrix.clone());
        MatrixId(self.weights.matrices.len() as u32 - 1)
    }

    fn vector(&mut self, vector: &Vector) -> VectorId {
        self.weights.vectors.push(vector.clone());
        VectorId(self.weights.vectors.len() as u32 - 1)
    }

    fn cache(&mut self, layer: u16, part: &str, width: usize, mtp: bool) -> CacheId {
        self.caches.push(CacheSpec { name: format!("layers.{layer}.{part}"), width, mtp });
        CacheId(self.caches.len() as u16 - 1)
    }
}

/// A program under construction: its buffers and the segment being written.
struct Writer<'a> {
    config: &'a Config,
    parts: &'a mut Parts,
    buffers: Vec<usize>,
    segments: Vec<Segment>,
    ops: Vec<Op>,
    mtp: bool,
    work: Work,
}

/// The activations that every layer uses.
struct Work {
    /// Residual stream `[hidden]`.
    x: View,
    /// Normed stream `[hidden]`.
    h: View,
    /// What attention or a feed-forward adds to the stream `[hidden]`.
    delta: View,
    /// The shared expert's output `[hidden]`.
    shared: View,
}

fn main_program(config: &Config, tensors: &Tensors, parts: &mut Parts) -> Program {
    let mut w = Writer::new(config, parts, false);
    let (x, h, delta, _) = w.work.views();
    let table = w.parts.matrix(&tensors.embed);
    w.ops.push(Op::Embed { table, out: x });
    w.rms_norm(x, &tensors.layers[0].input_norm, h);
    for (l, layer) in tensors.layers.iter().enumerate() {
        w.layer(l as u16, layer);
        let next = tensors.layers.get(l + 1).map_or(&tensors.norm, |next| &next.input_norm);
        w.add_rms_norm(x, delta, next, h);
    }
    w.ops.push(Op::Keep { x: h });
    w.logits(h, &tensors.lm_head);
    w.finish(tensors.layers.len() as u16 - 1)
}

/// `z = [RmsNorm(embed of the next token); RmsNorm(state after the final norm)] · eh_projᵀ`, one ordinary layer, then the head.
fn mtp_program(config: &Config, mtp: &MtpWeights, parts: &mut Parts) -> Program {
    let number = config.layers as u16;
    let mut w = Writer::new(config, parts, true);
    let (x, h, delta, _) = w.work.views();
    let (embed, state) = (w.buffer(config.hidden), w.buffer(config.hidden));
    let joined = w.buffer(2 * config.hidden);
    let table = w.parts.matrix(&mtp.embed);
    w.ops.push(Op::Embed { table, out: embed });
    w.rms_norm(embed, &mtp.embed_norm, joined.columns(0, config.hidden));
    w.ops.push(Op::Recall { out: state });
    w.rms_norm(state, &mtp.hidden_norm, joined.columns(config.hidden, config.hidden));
    w.project(joined, &mtp.projection, x, Precision::Activation);
    w.rms_norm(x, &mtp.layer.input_norm, h);
    w.layer(number, &mtp.layer);
    w.add_rms_norm(x, delta, &mtp.head_norm, h);
    w.logits(h, &mtp.head);
    w.finish(number)
}

impl Work {
    fn views(&self) -> (View, View, View, View) {
        (self.x, self.h, self.delta, self.shared)
    }
}

impl<'a> Writer<'a> {
    fn new(config: &'a Config, parts: &'a mut Parts, mtp: bool) -> Self {
        let view = |i: u16| View { buffer: Buffer(i), start: 0, width: config.hidden };
        let work = Work { x: view(0), h: view(1), delta: view(2), shared: view(3) };
        Writer { config, parts, buffers: vec![config.hidden; 4], segments: Vec::new(), ops: Vec::new(), mtp, work }
    }

    /// A buffer of its own. Buffers of equal purpose in different layers are shared by [`Writer::layer`] through [`Scratch`].
    fn buffer(&mut self, width: usize) -> View {
        self.buffers.push(width);
        View { buffer: Buffer(self.buffers.len() as u16 - 1), start: 0, width }
    }

    fn finish(mut self, layer: u16) -> Program {
        self.segments.push(Segment { layer, before: self.ops, step: None, during: Vec::new() });
        let program = Program { buffers: self.buffers, selections: 1, segments: self.segments };
        debug_assert_eq!(program.check(), Ok(()));
        program
    }

    fn rms_norm(&mut self, x: View, weight: &Vector, out: View) {
        let weight = self.parts.vector(weight);
        self.ops.push(Op::RmsNorm { x, weight, eps: self.config.eps, out });
    }

    fn add_rms_norm(&mut self, residual: View, delta: View, weight: &Vector, out: View) {
        let weight = self.parts.vector(weight);
        self.ops.push(Op::AddRmsNorm { residual, delta, weight, eps: self.config.eps, out });
    }

    fn project(&mut self, x: View, weight: &Matrix, out: View, precision: Precision) {
        let weight = self.parts.matrix(weight);
        self.ops.push(Op::Project { x, weight, out, precision });
    }

    fn logits(&mut self, x: View, weight: &Matrix) {
        let weight = self.parts.matrix(weight);
        self.ops.push(Op::Logits { x, weight });
    }

    /// From `h` to `delta` of the layer's second half; the residual has then taken the attention's output.
    fn layer(&mut self, number: u16, layer: &LayerWeights) {
        let (x, h, delta, _) = self.work.views();
        let mut scratch = Scratch { next: 4 + if self.mtp { 3 } else { 0 } };
        self.attention(number, &layer.attention, &mut scratch);
        self.add_rms_norm(x, delta, &layer.post_norm, h);
        match &layer.mlp {
            Mlp::Dense(ff) => self.feed_forward(ff, delta, &mut scratch),
            Mlp::Moe(moe) => self.experts(number, moe, &mut scratch),
        }
    }

    /// MLA over the positions that the indexer keeps; reads `h`, writes `delta`.
    fn attention(&mut self, number: u16, a: &AttentionWeights, scratch: &mut Scratch) {
        let c = self.config;
        let (_, h, delta, _) = self.work.views();
        let q_a = scratch.view(self, c.q_lora);
        let qr = scratch.view(self, c.q_lora);
        let q = scratch.view(self, c.heads * c.query_dim());
        let kv = scratch.view(self, c.kv_lora + c.rope);
        let latent = scratch.view(self, c.kv_lora);
        let q_latent = scratch.view(self, c.heads * c.kv_lora);
        let context = scratch.view(self, c.heads * c.kv_lora);
        let values = scratch.view(self, c.heads * c.value);
        let latent_cache = self.parts.cache(number, "latent", c.kv_lora, self.mtp);
        let rope_cache = self.parts.cache(number, "rope", c.rope, self.mtp);

        // Query: down to the latent qr, which the indexer shares, and up to nope | rope of each head.
        self.project(h, &a.q_a, q_a, Precision::Activation);
        self.rms_norm(q_a, &a.q_a_norm, qr);
        self.project(qr, &a.q_b, q, Precision::Activation);
        self.rotate(q, c.heads, c.query_dim(), c.nope, PairLayout::Interleaved);
        // Keys and values: one latent vector and one rotated key for all heads.
        self.project(h, &a.kv_a, kv, Precision::Activation);
        self.rms_norm(kv.columns(0, c.kv_lora), &a.kv_a_norm, latent);
        let k_rope = kv.columns(c.kv_lora, c.rope);
        self.rotate(k_rope, 1, c.rope, 0, PairLayout::Interleaved);
        self.ops.push(Op::Append { x: latent, cache: latent_cache });
        self.ops.push(Op::Append { x: k_rope, cache: rope_cache });
        let selection = self.indexer(number, a, qr, scratch);
        // Absorbed: q_nope K_h once, then everything in the latent space, then V_h.
        let kv_b = self.parts.matrix(&a.kv_b);
        let rows_per_head = c.nope + c.value;
        let keys = HeadRows { matrix: kv_b, heads: c.heads, rows_per_head, first_row: 0, rows: c.nope };
        self.ops.push(Op::HeadMix { x: q, x_stride: c.query_dim(), weight: keys, out: q_latent });
        self.ops.push(Op::AttendLatent {
            q_latent,
            q_rope: q,
            rope_stride: c.query_dim(),
            rope_offset: c.nope,
            latent: latent_cache,
            rope: rope_cache,
            selection,
            heads: c.heads,
            scale: c.softmax_scale,
            out: context,
        });
        self.ops.push(Op::HeadProject {
            x: context,
            weight: HeadRows { first_row: c.nope, rows: c.value, ..keys },
            out: values,
        });
        self.project(values, &a.o, delta, Precision::Activation);
    }

    /// The lightning indexer: its own keys, one for all its heads, rotated on their first columns.
    fn indexer(&mut self, number: u16, a: &AttentionWeights, qr: View, scratch: &mut Scratch) -> SelectionId {
        let (c, i) = (self.config, &a.indexer);
        let h = self.work.h;
        let q = scratch.view(self, c.index_heads * c.index_dim);
        let key_raw = scratch.view(self, c.index_dim);
        let key = scratch.view(self, c.index_dim);
        let weights = scratch.view(self, c.index_heads);
        let keys = self.parts.cache(number, "index", c.index_dim, self.mtp);
        self.project(qr, &i.wq_b, q, Precision::Activation);
        self.rotate(q, c.index_heads, c.index_dim, 0, PairLayout::Halves);
        self.project(h, &i.wk, key_raw, Precision::Activation);
        let (weight, bias) = (self.parts.vector(&i.k_norm_weight), self.parts.vector(&i.k_norm_bias));
        self.ops.push(Op::LayerNorm { x: key_raw, weight, bias, eps: INDEX_NORM_EPS, out: key });
        self.rotate(key, 1, c.index_dim, 0, PairLayout::Halves);
        self.ops.push(Op::Append { x: key, cache: keys });
        self.project(h, &i.weights_proj, weights, Precision::Full);
        let out = SelectionId(0);
        self.ops.push(Op::Select {
            q,
            weights,
            keys,
            head_scale: (c.index_heads as f32).sqrt().recip(),
            key_scale: (c.index_dim as f32).sqrt().recip(),
            keep: c.index_topk,
            out,
        });
        out
    }

    fn rotate(&mut self, x: View, heads: usize, stride: usize, offset: usize, layout: PairLayout) {
        self.ops.push(Op::Rotate { x, heads, stride, offset, table: ROTARY, layout });
    }

    /// `(silu(h gateᵀ) · (h upᵀ)) downᵀ`.
    fn feed_forward(&mut self, ff: &FeedForward, out: View, scratch: &mut Scratch) {
        let h = self.work.h;
        let (gate, up) = (scratch.view(self, ff.gate.rows), scratch.view(self, ff.up.rows));
        let gated = scratch.view(self, ff.gate.rows);
        self.project(h, &ff.gate, gate, Precision::Activation);
        self.project(h, &ff.up, up, Precision::Activation);
        self.ops.push(Op::Gated { gate, up, out: gated });
        self.project(gated, &ff.down, out, Precision::Activation);
    }

    /// Router, hand-over, shared expert beside the ducks, and the sum as the next segment's first op.
    fn experts(&mut self, number: u16, moe: &MoeWeights, scratch: &mut Scratch) {
        let c = self.config;
        let (_, h, delta, shared) = self.work.views();
        let (gate, bias) = (self.parts.matrix(&moe.gate), self.parts.vector(&moe.bias));
        self.ops.push(Op::Route {
            x: h,
            gate,
            bias,
            routing: Routing {
                experts: c.experts,
                chosen: c.experts_per_token,
                groups: c.groups,
                kept_groups: c.groups_per_token,
                normalise: c.norm_topk_prob,
                scale: c.routed_scaling,
            },
        });
        let before = std::mem::take(&mut self.ops);
        self.feed_forward(&moe.shared, shared, scratch);
        let during = std::mem::take(&mut self.ops);
        let layer = self.parts.experts.len() as u16;
        let expert = |e: &FeedForward| Expert { gate: e.gate.clone(), up: e.up.clone(), down: e.down.clone() };
        self.parts.experts.push(ExpertLayer { layer: number, experts: moe.experts.iter().map(expert).collect() });
        self.segments.push(Segment { layer: number, before, step: Some(ExpertStep { layer, input: h }), during });
        self.ops.push(Op::Combine { shared, out: delta });
    }
}

/// Gives every layer the same working buffers, in the order in which it asks, and makes them when the first layer does. A place whose
/// width differs between layers (dense and shared feed-forward) has the larger one.
struct Scratch {
    next: usize,
}

impl Scratch {
    fn view(&mut self, writer: &mut Writer<'_>, width: usize) -> View {
        let index = self.next;
        self.next += 1;
        match writer.buffers.get_mut(index) {
            Some(have) => *have = width.max(*have),
            None => writer.buffers.push(width),
        }
        View { buffer: Buffer(index as u16), start: 0, width }
    }
}
