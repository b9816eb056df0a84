//! Random checkpoints of the DeepSeek-V3.2 architecture in the published layout, of any size: for tests, and to measure
//! speed without downloading anything. They compute finite nonsense; there is no tokenizer.
//!
//! Values only need to be spread, so a matrix element is a random sign and mantissa with one of four neighbouring
//! exponents, which costs a few operations for eight bytes. NaN codes and subnormals cannot occur. A folder is a
//! function of (dimensions, seed, shard size) alone.

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::{Map, Value, json};

use crate::arch::config::ConfigError;
use crate::arch::deepseek_v32::config::Config;
use crate::arch::deepseek_v32::tensors::{TensorSpec, specs};
use crate::checkpoint::{CONFIG_FILE, DType, INDEX_FILE, SCALE_BLOCK, SCALE_SUFFIX, SINGLE_FILE, scale_shape};
use crate::converted::{PackError, Slices};
use crate::program::Model;

/// Sizes of a synthetic model; [`Config`] says what each means and what is allowed.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the fields are those of Config")]
pub struct Dims {
    pub hidden: usize,
    pub layers: usize,
    pub dense_layers: usize,
    pub intermediate: usize,
    pub moe_intermediate: usize,
    pub experts: usize,
    pub experts_per_token: usize,
    pub shared_experts: usize,
    pub groups: usize,
    pub groups_per_token: usize,
    pub heads: usize,
    pub q_lora: usize,
    pub kv_lora: usize,
    pub nope: usize,
    pub rope: usize,
    pub value: usize,
    pub index_heads: usize,
    pub index_dim: usize,
    pub index_topk: usize,
    pub vocab: usize,
    pub max_positions: usize,
    pub mtp_layers: usize,
    /// YaRN as in V3.2 (factor 40 over 4096 positions), or plain rotary positions.
    pub yarn: bool,
    /// Projections in e4m3 with block scales, or all in bf16.
    pub fp8: bool,
}

impl Dims {
    /// The real model's sizes: 671 GB. A start for models with fewer layers and experts.
    pub fn deepseek_v32() -> Dims {
        Dims {
            hidden: 7168,
            layers: 61,
            dense_layers: 3,
            intermediate: 18432,
            moe_intermediate: 2048,
            experts: 256,
            experts_per_token: 8,
            shared_experts: 1,
            groups: 8,
            groups_per_token: 4,
            heads: 128,
            q_lora: 1536,
            kv_lora: 512,
            nope: 128,
            rope: 64,
            value: 128,
            index_heads: 64,
            index_dim: 128,
            index_topk: 2048,
            vocab: 129_280,
            max_positions: 163_840,
            mtp_layers: 1,
            yarn: true,
            fp8: true,
        }
    }

    /// A model of about 1 MB with a ragged scale tile and every kind of layer, for tests.
    pub fn tiny() -> Dims {
        Dims {
            hidden: 128,
            layers: 2,
            dense_layers: 1,
            intermediate: 192,
            moe_intermediate: 128,
            experts: 8,
            experts_per_token: 2,
            shared_experts: 1,
            groups: 4,
            groups_per_token: 2,
            heads: 2,
            q_lora: 64,
            kv_lora: 64,
            nope: 32,
            rope: 16,
            value: 32,
            index_heads: 2,
            index_dim: 32,
            index_topk: 16,
            vocab: 256,
            max_positions: 512,
            mtp_layers: 1,
            yarn: true,
            fp8: true,
        }
    }

    /// The config.json of such a model.
    pub fn config_json(&self) -> Value {
        let mut config = json!({
            "architectures": ["DeepseekV32ForCausalLM"],
            "model_type": "deepseek_v32",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "first_k_dense_replace": self.dense_layers,
            "moe_layer_freq": 1,
            "intermediate_size": self.intermediate,
            "moe_intermediate_size": self.moe_intermediate,
            "n_routed_experts": self.experts,
            "num_experts_per_tok": self.experts_per_token,
            "n_shared_experts": self.shared_experts,
            "n_group": self.groups,
            "topk_group": self.groups_per_token,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "norm_topk_prob": true,
            "routed_scaling_factor": 2.5,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "q_lora_rank": self.q_lora,
            "kv_lora_rank": self.kv_lora,
            "qk_nope_head_dim": self.nope,
            "qk_rope_head_dim": self.rope,
            "v_head_dim": self.value,
            "index_n_heads": self.index_heads,
            "index_head_dim": self.index_dim,
            "index_topk": self.index_topk,
            "num_nextn_predict_layers": self.mtp_layers,
            "vocab_size": self.vocab,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "rope_scaling": null,
            "max_position_embeddings": self.max_positions,
            "hidden_act": "silu",
            "attention_bias": false,
            "tie_word_embeddings": false,
            "torch_dtype": "bfloat16",
            "bos_token_id": 0,
            "eos_token_id": 1,
        });
        if self.yarn {
            config["rope_scaling"] = json!({
                "type": "yarn", "factor": 40, "original_max_position_embeddings": 4096,
                "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
            });
        }
        if self.fp8 {
            config["quantization_config"] = json!({
                "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                "weight_block_size": [SCALE_BLOCK, SCALE_BLOCK], "scale_fmt": "ue8m0",
            });
        }
        config
    }
}

/// What to write, and where.
#[derive(Debug, Clone)]
pub struct Options<'a> {
    /// The folder: absent or empty.
    pub folder: &'a Path,
    /// Sizes.
    pub dims: &'a Dims,
    /// Same seed, same values.
    pub seed: u64,
    /// A new file begins before this many bytes of data would be passed. Published files have about 4 GB.
    pub shard_bytes: u64,
}

/// Why no synthetic checkpoint was written.
#[derive(Debug, thiserror::Error)]
pub enum SyntheticError {
    /// The sizes describe no model.
    #[error("the dimensions describe no model that can be run")]
    Dims(#[from] ConfigError),
    /// Something is there already; nothing is ever overwritten.
    #[error("{} is not empty: name a folder that is empty or does not exist", folder.display())]
    NotEmpty {
        /// The folder.
        folder: PathBuf,
    },
    /// The operating system refused.
    #[error("cannot write {}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// Writes a whole checkpoint and returns the bytes of tensor data in it. Shards are written side by side.
///
/// # Errors
/// For sizes that [`Config`] refuses, a folder that is not empty, or when writing fails; what was written stays.
pub fn write(options: &Options<'_>) -> Result<u64, SyntheticError> {
    write_with(options, write_shard)
}

/// As [`write`], but all tensors apart from scales are holes that read as zeros and take no room on the disk: for whoever needs a model's shapes
/// and makes its weights elsewhere.
///
/// # Errors
/// As [`write`].
pub fn write_hollow(options: &Options<'_>) -> Result<u64, SyntheticError> {
    write_with(options, hollow_shard)
}

/// Has every unit of the model's experts be the first one, so that a model whose experts no memory holds can be served by ducks that compute
/// nothing. Reads one expert.
///
/// # Errors
/// Experts that cannot be packed.
pub fn share_one_unit(model: &mut Model) -> Result<(), PackError> {
    model.slices = Some(Slices::alike(&model.experts)?);
    Ok(())
}

type WriteShard = fn(&Path, &[Item]) -> std::io::Result<()>;

fn write_with(options: &Options<'_>, write_shard: WriteShard) -> Result<u64, SyntheticError> {
    let config_json = options.dims.config_json();
    let config = Config::from_json(&config_json)?;
    let folder = options.folder;
    create_empty(folder)?;
    let shards = split(items(&specs(&config), options), options.shard_bytes);
    let total = shards.iter().flatten().map(|item| item.bytes() as u64).sum();
    let names = shard_names(shards.len());
    write_shards(folder, &names, &shards, write_shard)?;
    if names.len() > 1 {
        write_json(&folder.join(INDEX_FILE), &index_json(&names, &shards, total))?;
    }
    write_json(&folder.join(CONFIG_FILE), &config_json)?;
    Ok(total)
}

fn create_empty(folder: &Path) -> Result<(), SyntheticError> {
    let io = |source| SyntheticError::Io { path: folder.into(), source };
    fs::create_dir_all(folder).map_err(io)?;
    match fs::read_dir(folder).map_err(io)?.next() {
        None => Ok(()),
        Some(_) => Err(SyntheticError::NotEmpty { folder: folder.into() }),
    }
}

fn write_json(path: &Path, value: &Value) -> Result<(), SyntheticError> {
    let text = format!("{value:#}\n");
    fs::write(path, text).map_err(|source| SyntheticError::Io { path: path.into(), source })
}

fn shard_names(count: usize) -> Vec<String> {
    match count {
        1 => vec![SINGLE_FILE.into()],
        _ => (1..=count).map(|i| format!("model-{i:05}-of-{count:06}.safetensors")).collect(),
    }
}

fn index_json(names: &[String], shards: &[Vec<Item>], total: u64) -> Value {
    let mut weight_map = Map::new();
    for (name, shard) in names.iter().zip(shards) {
        weight_map.extend(shard.iter().map(|item| (item.name.clone(), Value::from(name.as_str()))));
    }
    json!({ "metadata": { "total_size": total }, "weight_map": weight_map })
}

/// One tensor to be written.
struct Item {
    name: String,
    shape: Vec<usize>,
    dtype: DType,
    fill: Fill,
    seed: u64,
}

/// Distribution of a tensor's values.
#[derive(Clone, Copy)]
enum Fill {
    /// Matrix elements: ± 1.m × 2^(top - 3 .. top).
    Elements { top: i32 },
    /// Block scales: 2^(middle - 1 .. middle + 1).
    Scales { middle: i32 },
    /// A vector's values: `centre` ± 0.125, evenly.
    Around { centre: f32 },
}

/// Root mean square of ± 1.m × 2^e over all m and e = -3 .. 0.
const ELEMENT_RMS: f64 = 0.8446;
/// The exponents of e4m3 elements: 2^-3 to 2^0, in the middle of the format.
const E4M3_TOP: i32 = 0;

impl Item {
    fn bytes(&self) -> usize {
        let elements: usize = self.shape.iter().product();
        elements * self.dtype.size().expect("only sized types are written")
    }
}

/// The tensors of `specs` with their scales. Weights are scaled so that a normed input gives outputs near 1.
fn items(specs: &[TensorSpec], options: &Options<'_>) -> Vec<Item> {
    let mut items = Vec::new();
    for spec in specs {
        let published = spec.dtypes[0];
        let dtype = if published == DType::F8E4M3 && !options.dims.fp8 { DType::BF16 } else { published };
        let seed = mix(options.seed ^ mix(items.len() as u64));
        let item = |name, shape, dtype, fill| Item { name, shape, dtype, fill, seed };
        let &[rows, cols] = spec.shape.as_slice() else {
            let centre = if spec.name.ends_with("bias") { 0.0 } else { 1.0 };
            items.push(item(spec.name.clone(), spec.shape.clone(), dtype, Fill::Around { centre }));
            continue;
        };
        let inputs = if spec.name.ends_with("embed_tokens.weight") { 1 } else { cols };
        let exponent = (1.0 / ((inputs as f64).sqrt() * ELEMENT_RMS)).log2().round() as i32;
        let top = if dtype == DType::F8E4M3 { E4M3_TOP } else { exponent };
        items.push(item(spec.name.clone(), spec.shape.clone(), dtype, Fill::Elements { top }));
        if dtype == DType::F8E4M3 {
            let fill = Fill::Scales { middle: exponent - E4M3_TOP };
            let shape = scale_shape([rows, cols]).to_vec();
            items.push(item(format!("{}{SCALE_SUFFIX}", spec.name), shape, DType::F32, fill));
        }
    }
    items
}

/// Cuts the list into files, each ordered by alignment as the published ones are.
fn split(items: Vec<Item>, shard_bytes: u64) -> Vec<Vec<Item>> {
    let mut shards = vec![Vec::new()];
    let mut size = 0;
    for item in items {
        let bytes = item.bytes() as u64;
        if size > 0 && size + bytes > shard_bytes {
            shards.push(Vec::new());
            size = 0;
        }
        size += bytes;
        shards.last_mut().expect("there is always a shard").push(item);
    }
    for shard in &mut shards {
        shard.sort_by_key(|item| std::cmp::Reverse(item.dtype.size()));
    }
    shards
}

fn write_shards(
    folder: &Path,
    names: &[String],
    shards: &[Vec<Item>],
    write_shard: WriteShard,
) -> Result<(), SyntheticError> {
    let next = AtomicUsize::new(0);
    let worker = || {
        while let Some((name, shard)) = {
            let i = next.fetch_add(1, Ordering::Relaxed);
            names.get(i).zip(shards.get(i))
        } {
            let path = folder.join(name);
            write_shard(&path, shard).map_err(|source| SyntheticError::Io { path, source })?;
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(shards.len()).min(8);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })
}

fn write_shard(path: &Path, items: &[Item]) -> std::io::Result<()> {
    write_items(path, items, |_| true)
}

/// Scales are real, since whoever opens a checkpoint looks at them.
fn hollow_shard(path: &Path, items: &[Item]) -> std::io::Result<()> {
    write_items(path, items, |item| matches!(item.fill, Fill::Scales { .. }))
}

fn write_items(path: &Path, items: &[Item], real: impl Fn(&Item) -> bool) -> std::io::Result<()> {
    let mut file = File::create_new(path)?;
    let header = header(items)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    for item in items {
        let mut random = Random(item.seed);
        let mut left = item.bytes();
        if !real(item) {
            file.seek_relative(i64::try_from(left).map_err(std::io::Error::other)?)?;
            left = 0;
        }
        while left > 0 {
            let chunk = &mut buffer[..left.min(BUFFER_BYTES)];
            fill(item, &mut random, chunk);
            file.write_all(chunk)?;
            left -= chunk.len();
        }
    }
    // A hole at the end counts, too.
    let end = file.stream_position()?;
    file.set_len(end)
}

/// Fits a second-level cache, so that values go to the page cache without a detour through memory.
const BUFFER_BYTES: usize = 1 << 18;

fn header(items: &[Item]) -> std::io::Result<Vec<u8>> {
    let mut end = 0;
    let tensors = items.iter().map(|item| {
        let start = end;
        end += item.bytes();
        let dtype = match item.dtype {
            DType::F8E4M3 => Dtype::F8_E4M3,
            DType::BF16 => Dtype::BF16,
            DType::F32 | DType::Other(_) => Dtype::F32,
        };
        (item.name.clone(), TensorInfo { dtype, shape: item.shape.clone(), data_offsets: (start, end) })
    });
    let format = [("format".to_string(), "pt".to_string())].into();
    let metadata = Metadata::new(Some(format), tensors.collect()).map_err(std::io::Error::other)?;
    let mut header = serde_json::to_vec(&metadata)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok(header)
}

/// Fills a piece of a tensor. Pieces are whole multiples of eight bytes, but for the last of a tensor.
fn fill(item: &Item, random: &mut Random, out: &mut [u8]) {
    match (item.fill, item.dtype) {
        (Fill::Elements { .. }, DType::F8E4M3) => {
            // Sign, two low exponent bits and mantissa at random; exponent field 4 + 0..3, bias 7.
            const RANDOM: u64 = 0x9F9F_9F9F_9F9F_9F9F;
            const FIXED: u64 = 0x2020_2020_2020_2020;
            fill_words(out, || random.next() & RANDOM | FIXED);
        }
        (Fill::Elements { top }, DType::BF16) => {
            // Likewise; the exponent field is (top - 3 + 127) + 0..3, and the sum cannot reach the sign.
            const RANDOM: u64 = 0x81FF_81FF_81FF_81FF;
            let lowest = (top + 124).clamp(1, 250) as u64;
            let fixed = (lowest << 7) * 0x0001_0001_0001_0001;
            fill_words(out, || (random.next() & RANDOM).wrapping_add(fixed));
        }
        (Fill::Elements { top }, _) => fill_values(item.dtype, out, || {
            let bits = random.next();
            let magnitude = (1.0 + (bits >> 40 & 0x7F) as f32 / 128.0) * 2f32.powi(top - 3 + (bits >> 62) as i32);
            if bits & 1 == 1 { -magnitude } else { magnitude }
        }),
        (Fill::Scales { middle }, dtype) => {
            fill_values(dtype, out, || 2f32.powi(middle - 1 + (random.next() >> 33) as i32 % 3));
        }
        (Fill::Around { centre }, dtype) => {
            fill_values(dtype, out, || centre + (random.next() >> 40) as f32 / 2f32.powi(26) - 0.125);
        }
    }
}

fn fill_words(out: &mut [u8], mut word: impl FnMut() -> u64) {
    let (words, tail) = out.as_chunks_mut::<8>();
    for slot in words {
        *slot = word().to_le_bytes();
    }
    if !tail.is_empty() {
        tail.copy_from_slice(&word().to_le_bytes()[..tail.len()]);
    }
}

fn fill_values(dtype: DType, out: &mut [u8], mut value: impl FnMut() -> f32) {
    let size = dtype.size().expect("only sized types are written");
    for slot in out.chunks_exact_mut(size) {
        // A bf16 is the upper half; the last bits of a random number are not worth rounding.
        slot.copy_from_slice(&value().to_le_bytes()[4 - size..]);
    }
}

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators"): a counter and a mix, so the
/// compiler can work on several words at once.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
