//! The weights by name: which tensors a checkpoint must have, of which shape and type, and where they go.
//!
//! One walk over the model states each tensor once. It serves to load the weights, to list them without any file, and
//! to find every fault at once rather than the first.

use std::collections::HashSet;

use super::config::Config;
use crate::checkpoint::{
    Checkpoint, CheckpointError, DType, Faults, Matrix, SCALE_SUFFIX, TensorFault, Vector, scale_shape,
};

/// Types of a matrix that is published quantised.
const PROJECTION: &[DType] = &[DType::F8E4M3, DType::BF16, DType::F32];
/// Types of everything that is published in bf16.
const PLAIN: &[DType] = &[DType::BF16, DType::F32];
/// Types of everything that is published in f32.
const SINGLE: &[DType] = &[DType::F32, DType::BF16];

/// All weights of a model. Shapes are written [outputs, inputs] in the names of [`Config`].
#[derive(Debug, Clone)]
pub struct Weights {
    /// `model.embed_tokens`, [vocab, hidden].
    pub embed: Matrix,
    /// `model.norm`, [hidden].
    pub norm: Vector,
    /// `lm_head`, [vocab, hidden]; the embedding where the two are tied.
    pub lm_head: Matrix,
    /// The main layers.
    pub layers: Vec<LayerWeights>,
    /// The multi-token prediction layer, if there is one.
    pub mtp: Option<MtpWeights>,
}

/// One decoder layer.
#[derive(Debug, Clone)]
pub struct LayerWeights {
    /// `input_layernorm`, [hidden].
    pub input_norm: Vector,
    /// `post_attention_layernorm`, [hidden].
    pub post_norm: Vector,
    /// `self_attn`.
    pub attention: AttentionWeights,
    /// `mlp`.
    pub mlp: Mlp,
}

/// Latent attention.
#[derive(Debug, Clone)]
pub struct AttentionWeights {
    /// `q_a_proj`, [q_lora, hidden].
    pub q_a: Matrix,
    /// `q_a_layernorm`, [q_lora].
    pub q_a_norm: Vector,
    /// `q_b_proj`, [heads × (nope + rope), q_lora].
    pub q_b: Matrix,
    /// `kv_a_proj_with_mqa`, [kv_lora + rope, hidden].
    pub kv_a: Matrix,
    /// `kv_a_layernorm`, [kv_lora].
    pub kv_a_norm: Vector,
    /// `kv_b_proj`, [heads × (nope + value), kv_lora].
    pub kv_b: Matrix,
    /// `o_proj`, [hidden, heads × value].
    pub o: Matrix,
    /// `indexer`.
    pub indexer: IndexerWeights,
}

/// The lightning indexer.
#[derive(Debug, Clone)]
pub struct IndexerWeights {
    /// `wq_b`, [index_heads × index_dim, q_lora].
    pub wq_b: Matrix,
    /// `wk`, [index_dim, hidden].
    pub wk: Matrix,
    /// `k_norm.weight`, [index_dim].
    pub k_norm_weight: Vector,
    /// `k_norm.bias`, [index_dim].
    pub k_norm_bias: Vector,
    /// `weights_proj`, [index_heads, hidden].
    pub weights_proj: Matrix,
}

/// The feed-forward half of a layer.
#[derive(Debug, Clone)]
pub enum Mlp {
    /// One network for every token.
    Dense(FeedForward),
    /// A router and its experts.
    Moe(MoeWeights),
}

/// `down(silu(gate(x)) * up(x))`.
#[derive(Debug, Clone)]
pub struct FeedForward {
    /// `gate_proj`, [width, hidden].
    pub gate: Matrix,
    /// `up_proj`, [width, hidden].
    pub up: Matrix,
    /// `down_proj`, [hidden, width].
    pub down: Matrix,
}

/// Router, routed experts and shared expert.
#[derive(Debug, Clone)]
pub struct MoeWeights {
    /// `gate`, [experts, hidden].
    pub gate: Matrix,
    /// `gate.e_score_correction_bias`, [experts].
    pub bias: Vector,
    /// `experts.N`, each moe_intermediate wide.
    pub experts: Vec<FeedForward>,
    /// `shared_experts`, moe_intermediate × shared_experts wide.
    pub shared: FeedForward,
}

/// The multi-token prediction layer.
#[derive(Debug, Clone)]
pub struct MtpWeights {
    /// `embed_tokens`, [vocab, hidden]: its own copy, or the main one where it has none.
    pub embed: Matrix,
    /// `enorm`, [hidden], for the embedding half.
    pub embed_norm: Vector,
    /// `hnorm`, [hidden], for the half that comes from the main model.
    pub hidden_norm: Vector,
    /// `eh_proj`, [hidden, 2 × hidden]; the embedding half comes first.
    pub projection: Matrix,
    /// An ordinary layer with experts.
    pub layer: LayerWeights,
    /// `shared_head.norm`, [hidden].
    pub head_norm: Vector,
    /// `shared_head.head`, [vocab, hidden]: its own copy, or the main one where it has none.
    pub head: Matrix,
}

impl Weights {
    /// Finds and checks every tensor, and reads vectors and block scales; matrix elements stay on disk until used.
    ///
    /// # Errors
    /// All faults at once: missing tensors, other shapes or types, scales and vector values that are not finite.
    pub fn load(checkpoint: &Checkpoint, config: &Config) -> Result<Weights, CheckpointError> {
        Weights::load_parts(checkpoint, config, true)
    }

    /// [`Weights::load`] without the routed experts: every list of them is empty.
    ///
    /// # Errors
    /// As there, for the host's tensors.
    pub fn load_host(checkpoint: &Checkpoint, config: &Config) -> Result<Weights, CheckpointError> {
        Weights::load_parts(checkpoint, config, false)
    }

    fn load_parts(checkpoint: &Checkpoint, config: &Config, routed: bool) -> Result<Weights, CheckpointError> {
        let mut walk = Walk { routed, ..Walk::new(config, Some(checkpoint)) };
        let weights = walk.weights();
        match Faults::new(walk.faults) {
            Some(faults) => Err(faults.into()),
            None => Ok(weights.expect("a walk without faults has found every tensor")),
        }
    }
}

/// Who needs a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// Stage 0.
    Host,
    /// The routed experts of that layer (the multi-token prediction layer comes after the main ones).
    Experts {
        /// The layer.
        layer: usize,
    },
}

/// One tensor of the published layout, block scales not counted.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The types it may have; the first is the one published.
    pub dtypes: &'static [DType],
    /// Who needs it.
    pub part: Part,
    /// Whether a checkpoint must have it. The others are copies.
    pub required: bool,
}

/// Every tensor of a model of that configuration, in the order of the walk.
pub fn specs(config: &Config) -> Vec<TensorSpec> {
    let mut walk = Walk::new(config, None);
    let _nothing_was_loaded = walk.weights();
    walk.specs
}

/// What a checkpoint holds, measured against a configuration. Sizes are in bytes, with block scales.
#[derive(Debug, Clone, PartialEq)]
pub struct Inventory {
    /// Bytes of stage 0.
    pub host_bytes: u64,
    /// Bytes of the routed experts, layer by layer from layer 0; 0 for a dense layer.
    pub expert_bytes: Vec<u64>,
    /// Everything that keeps the checkpoint from being loaded.
    pub faults: Vec<TensorFault>,
    /// Tensors that nothing uses, sorted.
    pub unused: Vec<String>,
}

impl Inventory {
    /// Compares the two. Reads block scales and vectors, as loading does.
    pub fn take(checkpoint: &Checkpoint, config: &Config) -> Inventory {
        let mut walk = Walk::new(config, Some(checkpoint));
        let _only_the_faults_matter = walk.weights();
        let mut inventory = Inventory {
            host_bytes: 0,
            expert_bytes: vec![0; config.all_layers()],
            faults: walk.faults,
            unused: Vec::new(),
        };
        let mut used = HashSet::new();
        for spec in &walk.specs {
            for name in [spec.name.clone(), format!("{}{SCALE_SUFFIX}", spec.name)] {
                let Some(tensor) = checkpoint.tensor(&name) else { continue };
                used.insert(tensor.name());
                let bytes = tensor.bytes().len() as u64;
                match spec.part {
                    Part::Host => inventory.host_bytes += bytes,
                    Part::Experts { layer } => inventory.expert_bytes[layer] += bytes,
                }
            }
        }
        let unused = checkpoint.tensors().map(|tensor| tensor.name()).filter(|name| !used.contains(name));
        inventory.unused = unused.map(str::to_string).collect();
        inventory.unused.sort_unstable();
        inventory
    }
}

impl TensorSpec {
    /// Bytes in the published type, with block scales.
    pub fn published_bytes(&self) -> u64 {
        let dtype = self.dtypes[0];
        let elements: u64 = self.shape.iter().map(|&size| size as u64).product();
        let bytes = elements * dtype.size().expect("only sized types are allowed") as u64;
        match (dtype, self.shape.as_slice()) {
            (DType::F8E4M3, &[rows, cols]) => {
                let [rows, cols] = scale_shape([rows, cols]);
                bytes + (rows * cols * 4) as u64
            }
            _ => bytes,
        }
    }
}

/// The walk. Without a checkpoint it only notes what it asks for, and everything it returns is `None`; with one, `None`
/// means that a fault was noted.
struct Walk<'a> {
    config: &'a Config,
    checkpoint: Option<&'a Checkpoint>,
    /// Whether the routed experts are part of the walk.
    routed: bool,
    part: Part,
    specs: Vec<TensorSpec>,
    faults: Vec<TensorFault>,
}

impl<'a> Walk<'a> {
    fn new(config: &'a Config, checkpoint: Option<&'a Checkpoint>) -> Walk<'a> {
        Walk { config, checkpoint, routed: true, part: Part::Host, specs: Vec::new(), faults: Vec::new() }
    }
}

// Each function asks for all its tensors before the first `?`: a missing one must not hide the faults of the next.
impl Walk<'_> {
    fn weights(&mut self) -> Option<Weights> {
        let Config { hidden, vocab, layers, .. } = *self.config;
        let embed = self.matrix("model.embed_tokens.weight".into(), [vocab, hidden], PLAIN);
        let norm = self.vector("model.norm.weight".into(), hidden, PLAIN);
        let lm_head = match self.config.tied_head {
            true => self.copy("lm_head.weight".into(), [vocab, hidden], embed.as_ref()),
            false => self.matrix("lm_head.weight".into(), [vocab, hidden], PLAIN),
        };
        let main: Vec<_> = (0..layers).map(|layer| self.layer(layer)).collect();
        let mtp = (self.config.mtp_layers > 0).then(|| self.mtp(embed.as_ref(), lm_head.as_ref()));
        Some(Weights {
            embed: embed?,
            norm: norm?,
            lm_head: lm_head?,
            layers: main.into_iter().collect::<Option<_>>()?,
            mtp: match mtp {
                Some(mtp) => Some(mtp?),
                None => None,
            },
        })
    }

    fn mtp(&mut self, main_embed: Option<&Matrix>, main_head: Option<&Matrix>) -> Option<MtpWeights> {
        let Config { hidden, vocab, layers, .. } = *self.config;
        let at = |name: &str| format!("model.layers.{layers}.{name}.weight");
        let embed = self.copy(at("embed_tokens"), [vocab, hidden], main_embed);
        let embed_norm = self.vector(at("enorm"), hidden, PLAIN);
        let hidden_norm = self.vector(at("hnorm"), hidden, PLAIN);
        let projection = self.matrix(at("eh_proj"), [hidden, 2 * hidden], PLAIN);
        let layer = self.layer(layers);
        let head_norm = self.vector(at("shared_head.norm"), hidden, PLAIN);
        let head = self.copy(at("shared_head.head"), [vocab, hidden], main_head);
        Some(MtpWeights {
            embed: embed?,
            embed_norm: embed_norm?,
            hidden_norm: hidden_norm?,
            projection: projection?,
            layer: layer?,
            head_norm: head_norm?,
            head: head?,
        })
    }

    fn layer(&mut self, layer: usize) -> Option<LayerWeights> {
        let hidden = self.config.hidden;
        let at = format!("model.layers.{layer}");
        let input_norm = self.vector(format!("{at}.input_layernorm.weight"), hidden, PLAIN);
        let post_norm = self.vector(format!("{at}.post_attention_layernorm.weight"), hidden, PLAIN);
        let attention = self.attention(&format!("{at}.self_attn"));
        let mlp = match self.config.has_experts(layer) {
            true => self.moe(&format!("{at}.mlp"), layer).map(Mlp::Moe),
            false => self.feed_forward(&format!("{at}.mlp"), self.config.intermediate).map(Mlp::Dense),
        };
        Some(LayerWeights { input_norm: input_norm?, post_norm: post_norm?, attention: attention?, mlp: mlp? })
    }

    fn attention(&mut self, at: &str) -> Option<AttentionWeights> {
        let Config { hidden, heads, q_lora, kv_lora, nope, rope, value, .. } = *self.config;
        let q_a = self.matrix(format!("{at}.q_a_proj.weight"), [q_lora, hidden], PROJECTION);
        let q_a_norm = self.vector(format!("{at}.q_a_layernorm.weight"), q_lora, PLAIN);
        let q_b = self.matrix(format!("{at}.q_b_proj.weight"), [heads * (nope + rope), q_lora], PROJECTION);
        let kv_a = self.matrix(format!("{at}.kv_a_proj_with_mqa.weight"), [kv_lora + rope, hidden], PROJECTION);
        let kv_a_norm = self.vector(format!("{at}.kv_a_layernorm.weight"), kv_lora, PLAIN);
        let kv_b = self.matrix(format!("{at}.kv_b_proj.weight"), [heads * (nope + value), kv_lora], PROJECTION);
        let o = self.matrix(format!("{at}.o_proj.weight"), [hidden, heads * value], PROJECTION);
        let indexer = self.indexer(&format!("{at}.indexer"));
        Some(AttentionWeights {
            q_a: q_a?,
            q_a_norm: q_a_norm?,
            q_b: q_b?,
            kv_a: kv_a?,
            kv_a_norm: kv_a_norm?,
            kv_b: kv_b?,
            o: o?,
            indexer: indexer?,
        })
    }

    fn indexer(&mut self, at: &str) -> Option<IndexerWeights> {
        let Config { hidden, q_lora, index_heads, index_dim, .. } = *self.config;
        let wq_b = self.matrix(format!("{at}.wq_b.weight"), [index_heads * index_dim, q_lora], PROJECTION);
        let wk = self.matrix(format!("{at}.wk.weight"), [index_dim, hidden], PROJECTION);
        let k_norm_weight = self.vector(format!("{at}.k_norm.weight"), index_dim, SINGLE);
        let k_norm_bias = self.vector(format!("{at}.k_norm.bias"), index_dim, SINGLE);
        let weights_proj = self.matrix(format!("{at}.weights_proj.weight"), [index_heads, hidden], PLAIN);
        Some(IndexerWeights {
            wq_b: wq_b?,
            wk: wk?,
            k_norm_weight: k_norm_weight?,
            k_norm_bias: k_norm_bias?,
            weights_proj: weights_proj?,
        })
    }

    fn moe(&mut self, at: &str, layer: usize) -> Option<MoeWeights> {
        let Config { hidden, experts, moe_intermediate, .. } = *self.config;
        let gate = self.matrix(format!("{at}.gate.weight"), [experts, hidden], PLAIN);
        let bias = self.vector(format!("{at}.gate.e_score_correction_bias"), experts, SINGLE);
        self.part = Part::Experts { layer };
        let experts = if self.routed { experts } else { 0 };
        let routed: Vec<_> =
            (0..experts).map(|e| self.feed_forward(&format!("{at}.experts.{e}"), moe_intermediate)).collect();
        self.part = Part::Host;
        let shared = self.feed_forward(&format!("{at}.shared_experts"), self.config.shared_intermediate());
        Some(MoeWeights {
            gate: gate?,
            bias: bias?,
            experts: routed.into_iter().collect::<Option<_>>()?,
            shared: shared?,
        })
    }

    fn feed_forward(&mut self, at: &str, width: usize) -> Option<FeedForward> {
        let hidden = self.config.hidden;
        let gate = self.matrix(format!("{at}.gate_proj.weight"), [width, hidden], PROJECTION);
        let up = self.matrix(format!("{at}.up_proj.weight"), [width, hidden], PROJECTION);
        let down = self.matrix(format!("{at}.down_proj.weight"), [hidden, width], PROJECTION);
        Some(FeedForward { gate: gate?, up: up?, down: down? })
    }

    fn matrix(&mut self, name: String, shape: [usize; 2], dtypes: &'static [DType]) -> Option<Matrix> {
        let loaded = self.checkpoint.map(|checkpoint| checkpoint.matrix(&name, shape, dtypes));
        self.note(TensorSpec { name, shape: shape.into(), dtypes, part: self.part, required: true }, loaded)
    }

    fn vector(&mut self, name: String, len: usize, dtypes: &'static [DType]) -> Option<Vector> {
        let loaded = self.checkpoint.map(|checkpoint| checkpoint.vector(&name, len, dtypes));
        self.note(TensorSpec { name, shape: vec![len], dtypes, part: self.part, required: true }, loaded)
    }

    /// A matrix that repeats `original` and may therefore be absent.
    fn copy(&mut self, name: String, shape: [usize; 2], original: Option<&Matrix>) -> Option<Matrix> {
        if self.checkpoint.is_some_and(|checkpoint| checkpoint.tensor(&name).is_none()) {
            return original.cloned();
        }
        let copy = self.matrix(name, shape, PLAIN);
        self.specs.last_mut().expect("the matrix has just been noted").required = false;
        copy
    }

    fn note<T>(&mut self, spec: TensorSpec, loaded: Option<Result<T, TensorFault>>) -> Option<T> {
        self.specs.push(spec);
        match loaded? {
            Ok(found) => Some(found),
            Err(fault) => {
                self.faults.push(fault);
                None
            }
        }
    }
}
