//! Settings: defaults < configuration file < environment < flags, merged by figment and then checked one by one.
//!
//! There are two types: a [`Layer`] holds what one source says, everything optional; [`Settings`] holds what counts, in range.
//! Limits that depend on a model (units, positions) are checked where the model is known.

mod keys;
mod layer;
mod show;

use std::path::{Path, PathBuf};

use figment::Figment;
use serde::de::DeserializeOwned;

pub use keys::{KEYS, Key};
pub use layer::{Environment, Layer};
pub use show::show;

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The configuration file cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The configuration file is no TOML.
    #[error("{}:{line}: {reason}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// The parser's words.
        reason: String,
    },
    /// The configuration file has a key that means nothing.
    #[error("{}: unknown key {key}; known are {known}", path.display())]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// All keys.
        known: String,
    },
    /// An environment variable is not UTF-8.
    #[error("the environment variable {name} is not valid UTF-8")]
    NotUtf8 {
        /// The variable.
        name: String,
    },
    /// A value is of the wrong kind or outside its range.
    #[error("{key} is {found} (from {origin}), expected {allowed}")]
    Value {
        /// The key.
        key: &'static str,
        /// The value.
        found: String,
        /// What would do.
        allowed: String,
        /// Where it came from.
        origin: Origin,
    },
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Built in.
    Default,
    /// A configuration file.
    File(PathBuf),
    /// An environment variable.
    Environment(String),
    /// A flag.
    Flag(String),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path) => path.display().fmt(f),
            Origin::Environment(name) | Origin::Flag(name) => f.write_str(name),
        }
    }
}

/// Where activations are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Numerics {
    /// `exact` where processors compute stage 0, `bf16` where a GPU does.
    Auto,
    /// f32 throughout.
    Exact,
    /// As the model's own code.
    Bf16,
    /// As the model's own code, what 8-bit projections multiply included.
    Fp8,
}

/// What computes stage 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage0 {
    /// A GPU if there is one that the model fits on, else the processors.
    Auto,
    /// The processors.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

/// The settings that count, each in its range.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Checkpoint folder; `None`: the Duckling that ships with the program.
    pub model: Option<PathBuf>,
    /// Description of the pond that computes; `None`: ducks in this process.
    pub pond: Option<PathBuf>,
    /// Ducks in this process, at least 1.
    pub ducks: usize,
    /// Computing threads; 0: one for each core.
    pub threads: usize,
    /// Rounding.
    pub numerics: Numerics,
    /// What computes stage 0.
    pub stage0: Stage0,
    /// Positions that caches may hold; 0: as many as the model allows.
    pub max_len: usize,
    /// Prompt tokens read at once, at least 1.
    pub chunk: usize,
    /// Answer tokens at most; 0: until the context is full.
    pub max_tokens: usize,
    /// 0: greedy.
    pub temperature: f64,
    /// 0: all tokens.
    pub top_k: usize,
    /// In (0, 1].
    pub top_p: f64,
    /// In [0, 1).
    pub min_p: f64,
    /// Above 0; 1: none.
    pub repetition_penalty: f64,
    /// `None`: another one each time.
    pub seed: Option<u64>,
    /// Texts that end an answer, none empty.
    pub stop: Vec<String>,
    /// Draft with the MTP layer.
    pub mtp: bool,
    /// Instructions before the conversation.
    pub system: Option<String>,
    /// Think before answering.
    pub think: bool,
    /// A filter of the crate tracing-subscriber.
    pub log: String,
}

/// The least number, other than 0, where numbers become f32: with room to divide by it.
const LEAST: f64 = 1e-30;
/// Threads for each core beyond which more of them can only do harm.
const MOST_THREADS_PER_CORE: usize = 4;

impl Settings {
    /// Takes fewer threads than asked for where the machine has far fewer cores, and says so.
    pub fn limit_threads(&mut self) {
        let most = MOST_THREADS_PER_CORE * crate::bench::bandwidth::all_threads();
        if self.threads > most {
            tracing::warn!("threads is {}, but {most} are taken: 4 for each core", self.threads);
            self.threads = most;
        }
    }
}

/// Everything that was said, merged.
#[derive(Debug)]
pub struct Merged {
    figment: Figment,
}

impl Merged {
    /// Reads the configuration file (`file`, else the first one found) and merges all layers.
    ///
    /// # Errors
    /// A file that cannot be read or has unknown keys, or a variable that is not UTF-8.
    pub fn read(file: Option<&Path>, environment: &Environment, flags: Layer) -> Result<Merged, SettingsError> {
        let file = match file.map(Path::to_owned).or_else(|| environment.config_file()) {
            Some(path) => Some(Layer::file(&path)?),
            None => match environment.usual_files().into_iter().find(|path| path.is_file()) {
                Some(path) => Some(Layer::file(&path)?),
                None => None,
            },
        };
        let mut figment = Figment::new().merge(Layer::defaults());
        if let Some(file) = file {
            figment = figment.merge(file);
        }
        Ok(Merged { figment: figment.merge(environment.layer()?).merge(flags) })
    }

    /// Checks every value.
    ///
    /// # Errors
    /// The first value out of range: its key, the value, what is allowed and where it came from.
    pub fn resolve(&self) -> Result<Settings, SettingsError> {
        Ok(Settings {
            model: self.optional("model", |path: &PathBuf| !path.as_os_str().is_empty())?,
            pond: self.optional("pond", |path: &PathBuf| !path.as_os_str().is_empty())?,
            ducks: self.whole("ducks", 1..=65_535)?,
            threads: self.whole("threads", 0..=1024)?,
            numerics: self.required("numerics", |_: &Numerics| true)?,
            stage0: self.required("stage0", |_: &Stage0| true)?,
            max_len: self.whole("max_len", 0..=1 << 24)?,
            chunk: self.whole("chunk", 1..=2048)?,
            max_tokens: self.whole("max_tokens", 0..=1 << 24)?,
            temperature: self.required("temperature", |&t: &f64| t == 0.0 || (LEAST..=100.0).contains(&t))?,
            top_k: self.whole("top_k", 0..=1 << 24)?,
            top_p: self.required("top_p", |p: &f64| (LEAST..=1.0).contains(p))?,
            min_p: self.required("min_p", |&p: &f64| p >= 0.0 && (p as f32) < 1.0)?,
            repetition_penalty: self.required("repetition_penalty", |r: &f64| (0.01..=100.0).contains(r))?,
            seed: self.optional("seed", |&s: &i64| s >= 0)?.map(i64::unsigned_abs),
            stop: self.required("stop", |stop: &Vec<String>| {
                stop.len() <= 64 && stop.iter().all(|s| !s.is_empty() && s.len() <= 4096)
            })?,
            mtp: self.required("mtp", |_: &bool| true)?,
            system: self.optional("system", |_: &String| true)?,
            think: self.required("think", |_: &bool| true)?,
            log: self.required("log", |log: &String| crate::logging::is_filter(log))?,
        })
    }

    /// Where the value of `key` came from; `None` if nothing gave one.
    pub fn origin(&self, key: &str) -> Option<Origin> {
        let metadata = self.figment.find_metadata(key)?;
        Some(layer::origin(metadata, key))
    }

    fn value(&self, key: &str) -> Option<figment::value::Value> {
        self.figment.find_value(key).ok()
    }

    fn optional<T: DeserializeOwned>(
        &self,
        name: &'static str,
        valid: impl Fn(&T) -> bool,
    ) -> Result<Option<T>, SettingsError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        match value.deserialize::<T>() {
            Ok(checked) if valid(&checked) => Ok(Some(checked)),
            _ => Err(SettingsError::Value {
                key: name,
                found: crate::error::shortened(&show::literal(&value)),
                allowed: Key::named(name).allowed.to_owned(),
                origin: self.origin(name).unwrap_or(Origin::Default),
            }),
        }
    }

    fn required<T: DeserializeOwned>(
        &self,
        name: &'static str,
        valid: impl Fn(&T) -> bool,
    ) -> Result<T, SettingsError> {
        Ok(self.optional(name, valid)?.expect("a key without default is read by `optional`"))
    }

    fn whole(&self, name: &'static str, range: std::ops::RangeInclusive<i64>) -> Result<usize, SettingsError> {
        let value: i64 = self.required(name, |v| range.contains(v))?;
        Ok(usize::try_from(value).expect("no range has negative numbers"))
    }
}

#[cfg(test)]
mod tests;
