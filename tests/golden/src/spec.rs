//! The settings from which a checkpoint is drawn, as recorded in `meta.json`.

use serde::Deserialize;

/// What `meta.json` calls `spec`: with the generator's fixed order of draws this determines every byte.
#[derive(Debug, Deserialize)]
pub struct Spec {
    pub seed: u64,
    pub dims: Dims,
}

/// Sizes of a DeepSeek-V3.2 model. Those that no recorded model varies are constants below.
#[derive(Debug, Deserialize)]
pub struct Dims {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the dense feed-forward.
    pub inter: usize,
    /// Width of one expert.
    pub moe_inter: usize,
    /// Decoder layers, without the MTP layer.
    pub layers: usize,
    /// How many of them, from the first, are dense.
    pub dense: usize,
    pub heads: usize,
    /// Rank of the query's latent.
    pub q_lora: usize,
    pub experts: usize,
    /// Index heads.
    pub idx_heads: usize,
    pub vocab: usize,
    /// How much a row of `lm_head` leans on the embedding whose successor it is, 0 to 1.
    pub head_mix: f64,
    /// Gains of single matrices, chosen so that activations stay in range and margins are clear.
    pub g: Gains,
}

/// Gains on top of 1 / √(input width).
#[derive(Debug, Deserialize)]
pub struct Gains {
    pub q: f64,
    pub attn: f64,
    pub ffn: f64,
    pub mtp_e: f64,
    pub mtp_h: f64,
}

/// Rank of the key/value latent.
pub const KV_LORA: usize = 512;
/// Head size without rotary position.
pub const NOPE: usize = 128;
/// Head size with rotary position.
pub const ROPE: usize = 64;
/// Head size of values.
pub const VALUE: usize = 128;
/// Head size of the indexer.
pub const INDEX: usize = 128;
/// Spread of the router's correction bias.
pub const BIAS_SPREAD: f64 = 0.15;
