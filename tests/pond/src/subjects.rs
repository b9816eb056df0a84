//! The models that stages are tested with: the golden one, the one that ships, and generated ones of difficult sizes.

use model::program::Model;
use model::synthetic;

use crate::{duckling_folder, load};

/// A model with its name, and the lanes of passes that reach everything in it.
pub struct Subject {
    /// For messages.
    pub name: &'static str,
    /// The model.
    pub model: Model,
    /// Lanes of passes one after another: alone, few, the sizes around tiles, and enough positions that some are dropped.
    pub passes: &'static [usize],
}

/// A generated model; the folder goes with its files still mapped.
pub fn generated(dims: &synthetic::Dims, seed: u64) -> Model {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("checkpoint");
    synthetic::write(&synthetic::Options { folder: &path, dims, seed, shard_bytes: 1 << 30 }).expect("room");
    load(&path)
}

/// Odd sizes: ragged scale tiles, heads whose scales cannot be cut, widths without matrix instructions.
fn odd_dims() -> synthetic::Dims {
    synthetic::Dims {
        hidden: 320,
        intermediate: 200,
        heads: 3,
        q_lora: 88,
        kv_lora: 72,
        nope: 40,
        rope: 24,
        value: 56,
        index_heads: 5,
        index_dim: 64,
        ..synthetic::Dims::tiny()
    }
}

/// The published widths of heads in fewer heads.
fn published_dims() -> synthetic::Dims {
    synthetic::Dims {
        hidden: 1024,
        layers: 3,
        intermediate: 1152,
        moe_intermediate: 256,
        heads: 20,
        q_lora: 384,
        kv_lora: 512,
        nope: 128,
        rope: 64,
        value: 128,
        index_heads: 64,
        index_dim: 128,
        index_topk: 200,
        max_positions: 2048,
        ..synthetic::Dims::tiny()
    }
}

/// The golden data's model.
pub fn tiny() -> Subject {
    Subject { name: "tiny", model: load(&golden::deepseek_v32_tiny()), passes: &[1, 2, 8, 9, 64, 70, 1] }
}

/// Duckling, past the 256 positions that its attention sees.
pub fn duckling() -> Subject {
    Subject { name: "duckling", model: load(&duckling_folder()), passes: &[1, 2, 9, 250, 8, 1] }
}

/// Sizes that divide by nothing.
pub fn odd() -> Subject {
    Subject { name: "odd", model: generated(&odd_dims(), 11), passes: &[1, 2, 8, 9, 64, 50, 1] }
}

/// The published model's heads.
pub fn published() -> Subject {
    Subject { name: "published", model: generated(&published_dims(), 12), passes: &[1, 8, 9, 190, 2, 1] }
}

/// All of them.
pub fn all() -> Vec<Subject> {
    vec![tiny(), duckling(), odd(), published()]
}
