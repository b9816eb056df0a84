//! The random DeepSeek-V3.2 checkpoint: which tensors it has, and in which order their numbers are drawn.
//!
//! The order of draws is part of the format: moving one line here changes every weight after it. All arithmetic is in
//! doubles, rounded to float32 and then to the stored type, as the generator that the golden data came from did it.

use half::bf16;
use safetensors::Dtype;

use crate::{
    float8::BlockMatrix,
    normal::Draw,
    shards::StoredTensor,
    spec::{BIAS_SPREAD, Dims, INDEX, KV_LORA, NOPE, ROPE, Spec, VALUE},
};

/// Every tensor of the checkpoint, in the order in which they are dealt to shards.
pub fn deepseek_v32(spec: &Spec) -> Vec<StoredTensor> {
    let mut builder = Builder { draw: Draw::new(spec.seed), dims: &spec.dims, tensors: Vec::new() };
    builder.model();
    builder.tensors
}

struct Builder<'a> {
    draw: Draw,
    dims: &'a Dims,
    tensors: Vec<StoredTensor>,
}

impl Builder<'_> {
    fn model(&mut self) {
        let &Dims { hidden, layers, dense, vocab, .. } = self.dims;
        let embedding = self.draw.normals(vocab * hidden);
        self.bf16("model.embed_tokens.weight", &[vocab, hidden], &embedding);
        let head = self.successor_head(&embedding);
        for layer in 0..layers {
            self.block(layer, layer >= dense);
        }
        self.norm("model.norm.weight", hidden);
        self.bf16("lm_head.weight", &[vocab, hidden], &head);
        self.mtp(layers, &embedding, &head);
    }

    /// `lm_head`, \[vocab, hidden\]: the row of perm(v) leans on the embedding of v, so that the model has a readable habit
    /// and greedy text clear margins.
    fn successor_head(&mut self, embedding: &[f64]) -> Vec<f64> {
        let &Dims { hidden, vocab, head_mix, .. } = self.dims;
        let permutation = self.draw.permutation(vocab as u32);
        let rows = self.draw.normals(vocab * hidden);
        let spread = standard_deviation(embedding);
        let rest = (1.0 - head_mix * head_mix).max(0.0).sqrt();
        let scale = 1.0 / (hidden as f64).sqrt();
        let mut head = vec![0.0; vocab * hidden];
        for (token, successor) in permutation.into_iter().enumerate() {
            let target = successor as usize * hidden;
            for column in 0..hidden {
                let leaning = head_mix * embedding[token * hidden + column] / spread;
                head[target + column] = (leaning + rest * rows[target + column]) * scale;
            }
        }
        head
    }

    /// One decoder layer: attention with its indexer, then a dense or a mixture-of-experts feed-forward.
    fn block(&mut self, layer: usize, mixture: bool) {
        let &Dims { hidden, inter, moe_inter, experts, .. } = self.dims;
        let prefix = format!("model.layers.{layer}.");
        self.norm(&format!("{prefix}input_layernorm.weight"), hidden);
        self.attention(&format!("{prefix}self_attn."));
        self.norm(&format!("{prefix}post_attention_layernorm.weight"), hidden);
        let mlp = format!("{prefix}mlp.");
        if !mixture {
            return self.mlp(&mlp, inter);
        }
        let gate = self.linear(experts, hidden, 1.5);
        self.bf16(&format!("{mlp}gate.weight"), &[experts, hidden], &gate);
        self.f32(&format!("{mlp}gate.e_score_correction_bias"), experts, |x| BIAS_SPREAD * x);
        for expert in 0..experts {
            self.mlp(&format!("{mlp}experts.{expert}."), moe_inter);
        }
        self.mlp(&format!("{mlp}shared_experts."), moe_inter);
    }

    fn attention(&mut self, prefix: &str) {
        let &Dims { hidden, heads, q_lora, idx_heads, ref g, .. } = self.dims;
        let name = |part: &str| format!("{prefix}{part}");
        self.projection(&name("q_a_proj"), [q_lora, hidden], 1.0);
        self.norm(&name("q_a_layernorm.weight"), q_lora);
        self.projection(&name("q_b_proj"), [heads * (NOPE + ROPE), q_lora], g.q);
        self.projection(&name("kv_a_proj_with_mqa"), [KV_LORA + ROPE, hidden], 1.0);
        self.norm(&name("kv_a_layernorm.weight"), KV_LORA);
        self.projection(&name("kv_b_proj"), [heads * (NOPE + VALUE), KV_LORA], 1.0);
        self.projection(&name("o_proj"), [hidden, heads * VALUE], g.attn * 2.0);
        self.projection(&name("indexer.wq_b"), [idx_heads * INDEX, q_lora], 1.0);
        self.projection(&name("indexer.wk"), [INDEX, hidden], 1.0);
        self.f32(&name("indexer.k_norm.weight"), INDEX, near_one);
        self.f32(&name("indexer.k_norm.bias"), INDEX, |x| 0.2 * x);
        let weights = self.linear(idx_heads, hidden, 1.0);
        self.bf16(&name("indexer.weights_proj.weight"), &[idx_heads, hidden], &weights);
    }

    fn mlp(&mut self, prefix: &str, inter: usize) {
        let hidden = self.dims.hidden;
        self.projection(&format!("{prefix}gate_proj"), [inter, hidden], 1.3);
        self.projection(&format!("{prefix}up_proj"), [inter, hidden], 1.3);
        self.projection(&format!("{prefix}down_proj"), [hidden, inter], self.dims.g.ffn * 0.8);
    }

    /// The multi-token-prediction layer; it repeats the embedding and the head under its own names, as published files do.
    fn mtp(&mut self, layer: usize, embedding: &[f64], head: &[f64]) {
        let &Dims { hidden, vocab, ref g, .. } = self.dims;
        let prefix = format!("model.layers.{layer}.");
        self.bf16(&format!("{prefix}embed_tokens.weight"), &[vocab, hidden], embedding);
        self.norm(&format!("{prefix}enorm.weight"), hidden);
        self.norm(&format!("{prefix}hnorm.weight"), hidden);
        // [hidden, 2 x hidden]: the token's half lets its embedding through, the state's half is random.
        let token_half = self.linear(hidden, hidden, 0.3);
        let state_half = self.linear(hidden, hidden, g.mtp_h);
        let mut joined = Vec::with_capacity(2 * hidden * hidden);
        for row in 0..hidden {
            let line = row * hidden..(row + 1) * hidden;
            let start = joined.len();
            joined.extend_from_slice(&token_half[line.clone()]);
            joined[start + row] += g.mtp_e;
            joined.extend_from_slice(&state_half[line]);
        }
        self.bf16(&format!("{prefix}eh_proj.weight"), &[hidden, 2 * hidden], &joined);
        self.block(layer, true);
        self.norm(&format!("{prefix}shared_head.norm.weight"), hidden);
        self.bf16(&format!("{prefix}shared_head.head.weight"), &[vocab, hidden], head);
    }

    /// Draws a matrix \[output, input\] whose product keeps a vector's size, times `gain`.
    fn linear(&mut self, output: usize, input: usize, gain: f64) -> Vec<f64> {
        let scale = gain / (input as f64).sqrt();
        let mut values = self.draw.normals(output * input);
        values.iter_mut().for_each(|x| *x *= scale);
        values
    }

    /// Draws and stores an fp8 matrix \[output, input\] with its block scales.
    fn projection(&mut self, name: &str, shape: [usize; 2], gain: f64) {
        let values: Vec<f32> = self.linear(shape[0], shape[1], gain).into_iter().map(|x| x as f32).collect();
        let matrix = BlockMatrix::quantise(&values, shape);
        self.push(&format!("{name}.weight"), Dtype::F8_E4M3, &shape, matrix.codes);
        let scales = matrix.scales.into_iter().flat_map(f32::to_le_bytes).collect();
        self.push(&format!("{name}.weight_scale_inv"), Dtype::F32, &matrix.scales_shape, scales);
    }

    /// Draws and stores a norm's weights, near one, in bf16.
    fn norm(&mut self, name: &str, n: usize) {
        let values: Vec<f64> = self.draw.normals(n).into_iter().map(near_one).collect();
        self.bf16(name, &[n], &values);
    }

    /// Draws `n` numbers, passes each through `map` and stores them in float32.
    fn f32(&mut self, name: &str, n: usize, map: impl Fn(f64) -> f64) {
        let values = self.draw.normals(n).into_iter();
        let bytes = values.flat_map(|x| (map(x) as f32).to_le_bytes()).collect();
        self.push(name, Dtype::F32, &[n], bytes);
    }

    /// Stores values in bf16, by way of float32: two roundings, as in the original.
    fn bf16(&mut self, name: &str, shape: &[usize], values: &[f64]) {
        let bytes = values.iter().flat_map(|&x| bf16::from_f32(x as f32).to_le_bytes()).collect();
        self.push(name, Dtype::BF16, shape, bytes);
    }

    fn push(&mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) {
        let (name, shape) = (name.to_owned(), shape.to_vec());
        self.tensors.push(StoredTensor { name, dtype, shape, bytes });
    }
}

fn near_one(x: f64) -> f64 {
    1.0 + 0.15 * x
}

/// `numpy.std`: of the population. The last bits may differ from numpy's, which no bf16 rounding here can see.
fn standard_deviation(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mean = pairwise_sum(values) / n;
    let squares: Vec<f64> = values.iter().map(|x| (x - mean) * (x - mean)).collect();
    (pairwise_sum(&squares) / n).sqrt()
}

/// A sum by halves, whose rounding error grows with the logarithm of the length only.
fn pairwise_sum(values: &[f64]) -> f64 {
    if values.len() <= 64 {
        return values.iter().sum();
    }
    let (left, right) = values.split_at(values.len() / 2);
    pairwise_sum(left) + pairwise_sum(right)
}
