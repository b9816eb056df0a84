//! The architectures that can be run, and which of them a configuration asks for.

pub mod config;
pub mod deepseek_v32;

use std::path::Path;

use serde_json::Value;

use crate::arch::config::ConfigError;
use crate::checkpoint::{Checkpoint, CheckpointError, DType, SCALE_SUFFIX, Tensor, one_line};
use crate::converted::{Converted, OpenError};
use crate::program::Model;

/// Why a checkpoint folder could not become a model.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Files or tensors.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// config.json.
    #[error("{}", folder.display())]
    Config {
        /// The checkpoint folder.
        folder: std::path::PathBuf,
        /// What is wrong with it.
        source: ConfigError,
    },
    /// A converted folder.
    #[error(transparent)]
    Converted(#[from] OpenError),
}

/// Opens a checkpoint folder or a converted one, checks its configuration and every tensor, and states its programs. Weights stay in
/// their mapped files.
///
/// # Errors
/// Whatever is missing, inconsistent or not supported, before any work starts.
pub fn load(folder: &Path) -> Result<Model, LoadError> {
    if Converted::is(folder) {
        return Converted::open(folder)?.model();
    }
    from_checkpoint(&Checkpoint::open(folder)?)
}

/// The model of an open checkpoint.
///
/// # Errors
/// As [`load`].
pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Model, LoadError> {
    let config = |source| LoadError::Config { folder: checkpoint.folder().to_owned(), source };
    match detect(checkpoint.config()).map_err(config)? {
        Architecture::DeepseekV32 => {
            let config = deepseek_v32::config::Config::from_json(checkpoint.config()).map_err(config)?;
            let tensors = deepseek_v32::tensors::Weights::load(checkpoint, &config)?;
            Ok(deepseek_v32::program::build(&config, &tensors))
        }
    }
}

/// The model of a checkpoint that has the host's tensors only; its layers of experts are listed without experts.
pub(crate) fn from_host_tensors(checkpoint: &Checkpoint) -> Result<Model, LoadError> {
    let config = |source| LoadError::Config { folder: checkpoint.folder().to_owned(), source };
    match detect(checkpoint.config()).map_err(config)? {
        Architecture::DeepseekV32 => {
            let config = deepseek_v32::config::Config::from_json(checkpoint.config()).map_err(config)?;
            let tensors = deepseek_v32::tensors::Weights::load_host(checkpoint, &config)?;
            Ok(deepseek_v32::program::build(&config, &tensors))
        }
    }
}

/// The tensors of stage 0 that the checkpoint has, block scales included, in the order of the model.
pub(crate) fn host_tensors(checkpoint: &Checkpoint) -> Result<Vec<Tensor>, ConfigError> {
    match detect(checkpoint.config())? {
        Architecture::DeepseekV32 => {
            let config = deepseek_v32::config::Config::from_json(checkpoint.config())?;
            let specs = deepseek_v32::tensors::specs(&config);
            let host = specs.iter().filter(|spec| spec.part == deepseek_v32::tensors::Part::Host);
            let with_scale = |tensor: &Tensor| {
                let quantised = tensor.dtype() == DType::F8E4M3;
                let scale = quantised.then(|| checkpoint.tensor(&format!("{}{SCALE_SUFFIX}", tensor.name()))).flatten();
                [Some(tensor.clone()), scale.cloned()].into_iter().flatten()
            };
            Ok(host.filter_map(|spec| checkpoint.tensor(&spec.name)).flat_map(with_scale).collect())
        }
    }
}

/// An architecture that this program knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// DeepSeek-V3.2: latent attention with a lightning indexer, group-limited routing, one multi-token prediction layer.
    DeepseekV32,
}

impl Architecture {
    const ALL: [Architecture; 1] = [Architecture::DeepseekV32];

    /// Name under `architectures` in config.json.
    pub fn name(self) -> &'static str {
        match self {
            Architecture::DeepseekV32 => "DeepseekV32ForCausalLM",
        }
    }

    /// Name under `model_type` in config.json.
    fn model_type(self) -> &'static str {
        match self {
            Architecture::DeepseekV32 => "deepseek_v32",
        }
    }
}

/// The architecture named by a parsed config.json: the first entry of `architectures`, else `model_type`.
///
/// # Errors
/// Names the architecture that is not supported and those that are.
pub fn detect(config: &Value) -> Result<Architecture, ConfigError> {
    let listed = config.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
    let model_type = config.get("model_type").and_then(Value::as_str);
    let known = |name: &str| Architecture::ALL.into_iter().find(|a| a.name() == name);
    let found = match (listed, model_type) {
        (Some(name), _) => known(name).ok_or(name),
        (None, Some(name)) => Architecture::ALL.into_iter().find(|a| a.model_type() == name).ok_or(name),
        (None, None) => return Err(ConfigError::NoArchitecture),
    };
    found.map_err(|name| ConfigError::Architecture { found: one_line(name), supported: supported() })
}

fn supported() -> String {
    Architecture::ALL.map(Architecture::name).join(", ")
}
