//! A model of random weights for measuring: as large as wished, written to a temporary folder that is gone again as soon as its
//! files are mapped.

use kernels::tree::Shape;
use model::arch::deepseek_v32::config::Config;
use model::arch::deepseek_v32::tensors::{Part, specs};
use model::program::Model;
use model::synthetic::{self, Dims};
use tempfile::TempDir;

use crate::cli::BenchArgs;
use crate::error::Error;
use crate::loaded::{Opened, SLICE_WIDTH, check_ducks, max_len};
use crate::progress;
use crate::settings::Settings;
use crate::signals::{Temporary, temporary};

/// One dense, one with experts.
const FEWEST_LAYERS: usize = 2;
/// Layers at most: 40 GB of weights.
const MOST_LAYERS: usize = 512;
const SHARD_BYTES: u64 = 1 << 30;
/// Few files for the full sizes.
const HOLLOW_SHARD_BYTES: u64 = 4 << 30;

/// Writes, opens and removes the model.
///
/// # Errors
/// A size that cannot be had, or a disk that is full.
pub fn open(args: &BenchArgs, settings: &Settings) -> Result<Opened, Error> {
    let dims = dims(args.active_bytes, settings.mtp)?;
    let shape = Shape { slices: (dims.moe_intermediate / SLICE_WIDTH) as u16, experts: dims.experts as u16 };
    check_ducks(shape, settings.ducks)?;
    super::check_fit(args, max_len(dims.max_positions, settings.max_len)?)?;
    let (folder, _cleared) = folder()?;
    let options = synthetic::Options { folder: folder.path(), dims: &dims, seed: 1, shard_bytes: SHARD_BYTES };
    progress::spinner("writing random weights", || synthetic::write(&options))
        .map_err(|error| Error::Synthetic(Box::new(error)))?;
    // The mapped files stay readable without their names.
    let opened = Opened::open_folder(folder.path(), settings);
    if let Err(error) = folder.close() {
        tracing::warn!("the synthetic model's folder stays: {error}");
    }
    opened
}

/// Writes, loads and removes a model for a stage that makes its weights elsewhere. `write` is [`synthetic::write_hollow`], or
/// [`synthetic::write`] where weights matter.
///
/// # Errors
/// A disk that is full, or files that cannot be read again.
pub fn load(
    dims: &Dims,
    write: impl FnOnce(&synthetic::Options<'_>) -> Result<u64, synthetic::SyntheticError>,
) -> Result<Model, Error> {
    let (folder, _cleared) = folder()?;
    let options = synthetic::Options { folder: folder.path(), dims, seed: 1, shard_bytes: HOLLOW_SHARD_BYTES };
    write(&options).map_err(|error| Error::Synthetic(Box::new(error)))?;
    Ok(model::arch::load(folder.path())?)
}

/// A folder for a model's files, which goes away even if a signal ends the process.
///
/// # Errors
/// What the system says.
fn folder() -> Result<(TempDir, Temporary), Error> {
    let base = std::env::temp_dir();
    let make = || {
        let folder = tempfile::Builder::new().prefix("duckpond-bench-").tempdir_in(&base)?;
        let path = folder.path().to_owned();
        Ok((folder, path))
    };
    temporary(make).map_err(|source| Error::Folder { folder: base.clone(), source })
}

/// As many layers as it takes for a token to read `active` bytes; in each, experts and attention in about the proportion of
/// the real model.
fn dims(active: u64, mtp: bool) -> Result<Dims, Error> {
    let sizes = |layers: usize| Dims {
        hidden: 2048,
        layers,
        dense_layers: 1,
        intermediate: 8192,
        moe_intermediate: 1024,
        experts: 8,
        experts_per_token: 4,
        shared_experts: 1,
        groups: 4,
        groups_per_token: 2,
        heads: 16,
        q_lora: 768,
        kv_lora: 512,
        nope: 128,
        rope: 64,
        value: 128,
        index_heads: 16,
        index_dim: 128,
        index_topk: 2048,
        vocab: 8192,
        max_positions: 8192,
        mtp_layers: usize::from(mtp),
        yarn: false,
        fp8: true,
    };
    let least = published_active(&sizes(FEWEST_LAYERS));
    if active < least {
        let found = usize::try_from(active).unwrap_or(usize::MAX);
        return Err(Error::Length { what: "--active-bytes", found, allowed: format!("at least {least} bytes") });
    }
    (FEWEST_LAYERS..=MOST_LAYERS).map(sizes).find(|dims| published_active(dims) >= active).ok_or(Error::Length {
        what: "--active-bytes",
        found: usize::try_from(active).unwrap_or(usize::MAX),
        allowed: format!("at most {} bytes", published_active(&sizes(MOST_LAYERS))),
    })
}

/// Bytes that a token reads in the main layers of a model of those sizes.
fn published_active(dims: &Dims) -> u64 {
    let config = Config::from_json(&dims.config_json()).expect("the sizes above are allowed");
    let share = |bytes: u64| bytes * config.experts_per_token as u64 / config.experts as u64;
    let tensors = specs(&config);
    let read = tensors.iter().filter(|spec| spec.required && !spec.name.contains("embed_tokens"));
    let main = read.filter(|spec| !spec.name.starts_with(&format!("model.layers.{}.", config.layers)));
    main.filter(|spec| spec.shape.len() == 2)
        .map(|spec| match spec.part {
            Part::Host => spec.published_bytes(),
            Part::Experts { .. } => share(spec.published_bytes()),
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_the_smallest_that_reads_enough() {
        let dims = dims(1 << 30, false).expect("a usual size");
        let fewer = Dims { layers: dims.layers - 1, ..dims.clone() };
        assert!(published_active(&dims) >= 1 << 30 && published_active(&fewer) < 1 << 30);
    }

    #[test]
    fn sizes_that_no_disk_holds_are_refused() {
        let error = dims(1 << 50, false).expect_err("a petabyte");
        assert!(error.to_string().starts_with("--active-bytes is 1125899906842624, expected at most "), "{error}");
        let error = dims(1, false).expect_err("less than one layer has");
        assert!(error.to_string().starts_with("--active-bytes is 1, expected at least 1"), "{error}");
    }

    #[test]
    fn predicted_bytes_are_those_that_the_program_reads() {
        let folder = tempfile::tempdir().expect("a folder for a test");
        let dims = Dims::tiny();
        let options = synthetic::Options { folder: folder.path(), dims: &dims, seed: 1, shard_bytes: SHARD_BYTES };
        synthetic::write(&options).expect("a tiny model fits");
        let model = model::arch::load(folder.path()).expect("it is complete");
        let row = (dims.hidden * 2) as u64;
        assert_eq!(crate::bench::weights::active_bytes(&model), published_active(&dims) + row);
    }
}
