//! The checked configuration: every size in range, every product small enough to allocate, nothing optional left.

use std::ops::RangeInclusive;

use serde_json::Value;

use super::rope::Rope;
use crate::arch::config::{ConfigError, Fields};
use crate::arch::{self, Architecture};
use crate::checkpoint::SCALE_BLOCK;

/// Columns of an expert's intermediate dimension in one slice.
pub const SLICE_WIDTH: usize = 64;

/// Keys that other programs need and the computation does not.
const HARMLESS: &[&str] = &[
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "auto_map",
    "aux_loss_alpha",
    "dtype",
    "ep_size",
    "head_dim",
    "initializer_range",
    "model_type",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "qk_head_dim",
    "router_aux_loss_coef",
    "seq_aux",
    "torch_dtype",
    "transformers_version",
    "use_cache",
];

/// Bounds far above any model of this kind, so that a damaged file cannot ask for terabytes.
const WIDTH: RangeInclusive<usize> = 1..=1 << 20;
const HEAD_WIDTH: RangeInclusive<usize> = 1..=4096;
const COUNT: RangeInclusive<usize> = 1..=4096;
const TOKENS: RangeInclusive<usize> = 1..=1 << 24;
/// Routed experts of all layers together; V3.2 has 15,104.
const MOST_EXPERTS: usize = 1 << 17;
/// Most values of one lane in the latent space, 16 times the published model's: a pass has hundreds of lanes.
const WIDEST_ACTIVATION: usize = 1 << 20;
/// Elements of the largest matrix; V3.2's is 0.93 G.
const LARGEST_MATRIX: usize = 1 << 36;

/// Sizes and constants of a model. Names in brackets are those of config.json.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Width of the residual stream (`hidden_size`).
    pub hidden: usize,
    /// Main layers (`num_hidden_layers`); the multi-token prediction layer is not counted.
    pub layers: usize,
    /// The first so many layers have a dense feed-forward (`first_k_dense_replace`), all others experts.
    pub dense_layers: usize,
    /// Width of a dense feed-forward (`intermediate_size`).
    pub intermediate: usize,
    /// Width of one routed expert, a multiple of [`SLICE_WIDTH`] (`moe_intermediate_size`).
    pub moe_intermediate: usize,
    /// Routed experts of a layer (`n_routed_experts`).
    pub experts: usize,
    /// Routed experts of a token (`num_experts_per_tok`).
    pub experts_per_token: usize,
    /// Shared experts, stored as one of that many times the width (`n_shared_experts`).
    pub shared_experts: usize,
    /// Groups of neighbouring experts, of equal size, at least two experts each (`n_group`).
    pub groups: usize,
    /// Groups that may serve a token (`topk_group`).
    pub groups_per_token: usize,
    /// Factor on the routed experts' weights (`routed_scaling_factor`).
    pub routed_scaling: f32,
    /// Whether the chosen experts' weights are made to sum to one first (`norm_topk_prob`).
    pub norm_topk_prob: bool,
    /// Attention heads (`num_attention_heads`).
    pub heads: usize,
    /// Width of the query latent (`q_lora_rank`).
    pub q_lora: usize,
    /// Width of the key and value latent (`kv_lora_rank`).
    pub kv_lora: usize,
    /// Unrotated part of a head's query and key (`qk_nope_head_dim`).
    pub nope: usize,
    /// Rotated part of a head's query and key, even (`qk_rope_head_dim`).
    pub rope: usize,
    /// Width of a head's value (`v_head_dim`).
    pub value: usize,
    /// Heads of the indexer (`index_n_heads`).
    pub index_heads: usize,
    /// Width of an indexer head, at least `rope` (`index_head_dim`).
    pub index_dim: usize,
    /// Keys kept for attention (`index_topk`).
    pub index_topk: usize,
    /// Tokens (`vocab_size`).
    pub vocab: usize,
    /// Added to the mean square in norms (`rms_norm_eps`).
    pub eps: f32,
    /// Longest sequence (`max_position_embeddings`).
    pub max_positions: usize,
    /// Multi-token prediction layers, 0 or 1 (`num_nextn_predict_layers`).
    pub mtp_layers: usize,
    /// Whether the output head is the embedding (`tie_word_embeddings`).
    pub tied_head: bool,
    /// Token before every prompt (`bos_token_id`).
    pub bos: u32,
    /// Tokens that end an answer, at least one (`eos_token_id`).
    pub eos: Vec<u32>,
    /// How positions turn into angles.
    pub positions: Rope,
    /// Angle of each of the `rope` / 2 pairs at position 1, in radians.
    pub rope_frequencies: Vec<f32>,
    /// Factor on attention logits.
    pub softmax_scale: f32,
    /// How weights and, in mode `fp8`, activations are quantised.
    pub quantization: Quantization,
}

/// The `quantization_config`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    /// None given: the weights are expected in bf16 or f32.
    None,
    /// e4m3 with a scale for each 128 × 128 block.
    Fp8 {
        /// Whether activation scales are rounded up to powers of two (`scale_fmt` is ue8m0).
        ue8m0: bool,
    },
}

impl Config {
    /// Checks a parsed config.json. Keys that are not known are warned of, since they may change the computation.
    ///
    /// # Errors
    /// Names the architecture or the key, what it has and what was expected.
    pub fn from_json(config: &Value) -> Result<Config, ConfigError> {
        let Architecture::DeepseekV32 = arch::detect(config)?;
        let root = Fields::root(config)?;
        refuse_other_variants(&root)?;
        let config = Config::read(&root)?;
        config.check_relations()?;
        config.check_products()?;
        for key in root.unread(HARMLESS) {
            tracing::warn!("config.json: {key} is not known and has no effect");
        }
        Ok(config)
    }

    fn read(root: &Fields<'_>) -> Result<Config, ConfigError> {
        let positions = Rope::read(root)?;
        let nope = root.size("qk_nope_head_dim", HEAD_WIDTH)?;
        let rope = root.size("qk_rope_head_dim", 2..=*HEAD_WIDTH.end())?;
        let vocab = root.size("vocab_size", TOKENS)?;
        Ok(Config {
            hidden: root.size("hidden_size", WIDTH)?,
            layers: root.size("num_hidden_layers", COUNT)?,
            dense_layers: root.size("first_k_dense_replace", 0..=*COUNT.end())?,
            intermediate: root.size("intermediate_size", WIDTH)?,
            moe_intermediate: root.size("moe_intermediate_size", WIDTH)?,
            experts: root.size("n_routed_experts", COUNT)?,
            experts_per_token: root.size("num_experts_per_tok", COUNT)?,
            shared_experts: root.size("n_shared_experts", COUNT)?,
            groups: root.size("n_group", COUNT)?,
            groups_per_token: root.size("topk_group", COUNT)?,
            routed_scaling: root.number("routed_scaling_factor", 1e-6..=1e6)? as f32,
            norm_topk_prob: root.required("norm_topk_prob")?,
            heads: root.size("num_attention_heads", COUNT)?,
            q_lora: root.size("q_lora_rank", WIDTH)?,
            kv_lora: root.size("kv_lora_rank", WIDTH)?,
            nope,
            rope,
            value: root.size("v_head_dim", HEAD_WIDTH)?,
            index_heads: root.size("index_n_heads", COUNT)?,
            index_dim: root.size("index_head_dim", HEAD_WIDTH)?,
            index_topk: root.size("index_topk", TOKENS)?,
            vocab,
            eps: root.number("rms_norm_eps", 1e-12..=1e-1)? as f32,
            max_positions: root.size("max_position_embeddings", TOKENS)?,
            mtp_layers: root.size_or("num_nextn_predict_layers", 0, 0..=1)?,
            tied_head: root.optional("tie_word_embeddings")?.unwrap_or(false),
            bos: read_bos(root, vocab)?,
            eos: read_eos(root, vocab)?,
            positions,
            rope_frequencies: positions.frequencies(rope),
            softmax_scale: positions.softmax_scale(nope + rope),
            quantization: read_quantization(root)?,
        })
    }

    fn check_relations(&self) -> Result<(), ConfigError> {
        let check = |holds: bool, key: &str, found: usize, expected: &dyn Fn() -> String| match holds {
            true => Ok(()),
            false => Err(ConfigError::value(key, found, expected())),
        };
        check(self.dense_layers <= self.layers, "first_k_dense_replace", self.dense_layers, &|| {
            format!("at most num_hidden_layers, {}", self.layers)
        })?;
        check(
            self.moe_intermediate.is_multiple_of(SLICE_WIDTH),
            "moe_intermediate_size",
            self.moe_intermediate,
            &|| format!("a multiple of {SLICE_WIDTH}"),
        )?;
        check(self.experts.is_multiple_of(self.groups), "n_routed_experts", self.experts, &|| {
            format!("a multiple of n_group, {}", self.groups)
        })?;
        // A group is judged by its two best experts.
        check(self.experts / self.groups >= 2, "n_group", self.groups, &|| {
            format!("at most half of n_routed_experts, {}", self.experts)
        })?;
        check(self.groups_per_token <= self.groups, "topk_group", self.groups_per_token, &|| {
            format!("at most n_group, {}", self.groups)
        })?;
        let eligible = self.experts / self.groups * self.groups_per_token;
        check(self.experts_per_token <= eligible, "num_experts_per_tok", self.experts_per_token, &|| {
            format!("at most {eligible}, the experts in topk_group groups")
        })?;
        check(self.rope.is_multiple_of(2), "qk_rope_head_dim", self.rope, &|| "an even number".into())?;
        check(self.index_dim >= self.rope, "index_head_dim", self.index_dim, &|| {
            format!("at least qk_rope_head_dim, {}", self.rope)
        })
    }

    /// No product of two sizes that is allocated or mapped is absurd.
    fn check_products(&self) -> Result<(), ConfigError> {
        let at_most = |key: &str, found: usize, limit: usize| match found <= limit {
            true => Ok(()),
            false => Err(ConfigError::value(key, found, format_args!("at most {limit}"))),
        };
        at_most("vocab_size x hidden_size", self.vocab * self.hidden, LARGEST_MATRIX)?;
        at_most("intermediate_size x hidden_size", self.intermediate * self.hidden, LARGEST_MATRIX)?;
        let widest_head = self.query_dim().max(self.nope + self.value);
        let widest_rank = self.q_lora.max(self.kv_lora).max(self.hidden);
        at_most("num_attention_heads x head widths x ranks", self.heads * widest_head * widest_rank, LARGEST_MATRIX)?;
        at_most("num_attention_heads x kv_lora_rank", self.heads * self.kv_lora, WIDEST_ACTIVATION)?;
        let index = self.index_heads * self.index_dim * self.q_lora;
        at_most("index_n_heads x index_head_dim x q_lora_rank", index, LARGEST_MATRIX)?;
        at_most(
            "moe_intermediate_size x n_shared_experts x hidden_size",
            self.shared_intermediate() * self.hidden,
            LARGEST_MATRIX,
        )?;
        at_most("n_routed_experts x num_hidden_layers", self.experts * self.all_layers(), MOST_EXPERTS)
    }

    /// Main layers and the multi-token prediction layer.
    pub fn all_layers(&self) -> usize {
        self.layers + self.mtp_layers
    }

    /// Whether layer `layer` has routed experts. The multi-token prediction layer, number `layers`, always has.
    pub fn has_experts(&self, layer: usize) -> bool {
        layer >= self.dense_layers
    }

    /// Width of a head's query and key.
    pub fn query_dim(&self) -> usize {
        self.nope + self.rope
    }

    /// Width of the shared experts taken as one.
    pub fn shared_intermediate(&self) -> usize {
        self.moe_intermediate * self.shared_experts
    }

    /// Experts in a group.
    pub fn group_size(&self) -> usize {
        self.experts / self.groups
    }

    /// Slices of every expert.
    pub fn slices(&self) -> usize {
        self.moe_intermediate / SLICE_WIDTH
    }
}

/// Keys whose other values mean a computation that this program does not do.
fn refuse_other_variants(root: &Fields<'_>) -> Result<(), ConfigError> {
    root.only("hidden_act", "silu".to_string())?;
    root.only("scoring_func", "sigmoid".to_string())?;
    root.only("topk_method", "noaux_tc".to_string())?;
    root.only("moe_layer_freq", 1usize)?;
    root.only("attention_bias", false)?;
    root.only("mlp_bias", false)?;
    // Spelt out by newer tools: attention rotates neighbouring values, the indexer halves.
    root.only("rope_interleave", true)?;
    root.only("indexer_rope_interleave", false)?;
    if let Some(heads) = root.optional::<usize>("num_attention_heads")? {
        root.only("num_key_value_heads", heads)?;
    }
    Ok(())
}

fn read_bos(root: &Fields<'_>, vocab: usize) -> Result<u32, ConfigError> {
    let bos = root.required("bos_token_id")?;
    check_token("bos_token_id", bos, vocab)
}

/// One token or a list of them.
fn read_eos(root: &Fields<'_>, vocab: usize) -> Result<Vec<u32>, ConfigError> {
    let eos = match root.required::<Value>("eos_token_id")? {
        Value::Array(_) => root.required("eos_token_id")?,
        _ => vec![root.required("eos_token_id")?],
    };
    if eos.is_empty() {
        return Err(ConfigError::value("eos_token_id", "an empty list", "at least one token"));
    }
    eos.into_iter().map(|token| check_token("eos_token_id", token, vocab)).collect()
}

fn check_token(key: &str, token: u32, vocab: usize) -> Result<u32, ConfigError> {
    match (token as usize) < vocab {
        true => Ok(token),
        false => Err(ConfigError::value(key, token, format_args!("less than vocab_size, {vocab}"))),
    }
}

fn read_quantization(root: &Fields<'_>) -> Result<Quantization, ConfigError> {
    let Some(fields) = root.object("quantization_config")? else { return Ok(Quantization::None) };
    let method: String = fields.required("quant_method")?;
    if method != "fp8" {
        return Err(ConfigError::unsupported(fields.key("quant_method"), method, "fp8"));
    }
    fields.only("fmt", "e4m3".to_string())?;
    fields.only("activation_scheme", "dynamic".to_string())?;
    let block: Vec<usize> = fields.required("weight_block_size")?;
    if block != [SCALE_BLOCK, SCALE_BLOCK] {
        let supported = format_args!("[{SCALE_BLOCK}, {SCALE_BLOCK}]");
        return Err(ConfigError::unsupported(fields.key("weight_block_size"), format_args!("{block:?}"), supported));
    }
    let scale_fmt: Option<String> = fields.optional("scale_fmt")?;
    let ue8m0 = match scale_fmt.as_deref() {
        None => false,
        Some("ue8m0") => true,
        Some(other) => return Err(ConfigError::unsupported(fields.key("scale_fmt"), other, "ue8m0 or absent")),
    };
    for key in fields.unread(&["modules_to_not_convert"]) {
        tracing::warn!("config.json: {key} is not known and has no effect");
    }
    Ok(Quantization::Fp8 { ue8m0 })
}
