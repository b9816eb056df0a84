//! What one source says: a figment provider for each of the four.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use figment::value::{Dict, Map, Value};
use figment::{Error, Metadata, Profile, Provider, Source};

use super::{KEYS, Key, Origin, SettingsError};
use crate::error::shortened;

const DEFAULT: &str = "default";
const FILE: &str = "file";
const ENVIRONMENT: &str = "environment";
const FLAG: &str = "flag";
/// Bytes of a configuration file at most.
const MOST_BYTES: u64 = 1 << 20;

/// The values of one source.
#[derive(Debug)]
pub struct Layer {
    metadata: Metadata,
    values: Dict,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        self.metadata.clone()
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        Ok(Profile::Default.collect(self.values.clone()))
    }
}

/// The origin that a provider's metadata stands for.
pub(super) fn origin(metadata: &Metadata, key: &str) -> Origin {
    match (&*metadata.name, &metadata.source) {
        (FILE, Some(Source::File(path))) => Origin::File(path.clone()),
        (ENVIRONMENT, _) => Origin::Environment(Key::named(key).variable()),
        (FLAG, _) => Origin::Flag(Key::named(key).flag()),
        _ => Origin::Default,
    }
}

impl Layer {
    fn new(name: &'static str) -> Layer {
        Layer { metadata: Metadata::named(name), values: Dict::new() }
    }

    /// Flags; filled in by [`crate::cli`].
    pub fn flags() -> Layer {
        Layer::new(FLAG)
    }

    /// Sets `key` unless there is nothing to set.
    pub fn put(&mut self, key: &'static str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.values.insert(Key::named(key).name.to_owned(), value.into());
        }
    }

    /// Sets `key` to a path. One that is not UTF-8 is kept as bytes would be shown, and then not found.
    pub fn put_path(&mut self, key: &'static str, path: Option<&Path>) {
        self.put(key, path.map(|path| path.to_string_lossy().into_owned()));
    }

    /// What holds where nothing is said. Model, seed and system text have no default.
    pub(super) fn defaults() -> Layer {
        let mut layer = Layer::new(DEFAULT);
        layer.put("ducks", Some(4));
        layer.put("threads", Some(0));
        layer.put("numerics", Some("auto"));
        layer.put("stage0", Some("auto"));
        layer.put("max_len", Some(0));
        layer.put("chunk", Some(128));
        layer.put("max_tokens", Some(0));
        layer.put("temperature", Some(0.0));
        layer.put("top_k", Some(0));
        layer.put("top_p", Some(1.0));
        layer.put("min_p", Some(0.0));
        layer.put("repetition_penalty", Some(1.0));
        layer.put("stop", Some(Vec::<String>::new()));
        layer.put("mtp", Some(false));
        layer.put("think", Some(false));
        layer.put("log", Some("warn"));
        layer
    }

    /// A configuration file. A relative `model` or `pond` in it is relative to the file's folder.
    pub(super) fn file(path: &Path) -> Result<Layer, SettingsError> {
        let text = crate::limited::read_text(path, MOST_BYTES)
            .map_err(|source| SettingsError::Read { path: path.into(), source })?;
        let table: toml::Table = toml::from_str(&text).map_err(|error| syntax(path, &text, &error))?;
        if let Some(key) = table.keys().find(|name| KEYS.iter().all(|key| key.name != *name)) {
            return Err(SettingsError::UnknownKey {
                path: path.into(),
                key: shortened(&key.escape_debug().to_string()),
                known: KEYS.iter().map(|key| key.name).collect::<Vec<_>>().join(", "),
            });
        }
        let mut values = value_of(table.into()).into_dict().expect("a table is a dictionary");
        for name in ["model", "pond"] {
            if let Some(Value::String(_, given)) = values.get_mut(name)
                && let Some(folder) = path.parent()
                && !given.is_empty()
            {
                *given = folder.join(&*given).to_string_lossy().into_owned();
            }
        }
        let metadata = Metadata::from(FILE, Source::File(path.into()));
        Ok(Layer { metadata, values })
    }
}

fn syntax(path: &Path, text: &str, error: &toml::de::Error) -> SettingsError {
    let start = error.span().map_or(0, |span| span.start);
    let line = text.as_bytes().iter().take(start).filter(|&&byte| byte == b'\n').count() + 1;
    let reason = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
    SettingsError::Syntax { path: path.into(), line, reason: shortened(&reason) }
}

/// The process's environment, as far as it matters; read once, so that tests can state it.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    variables: Vec<(OsString, OsString)>,
}

impl Environment {
    /// This process's.
    pub fn of_process() -> Environment {
        Environment { variables: std::env::vars_os().collect() }
    }

    /// One with these variables only.
    #[cfg(test)]
    pub(super) fn of(variables: &[(&str, &str)]) -> Environment {
        Environment { variables: variables.iter().map(|(k, v)| (k.into(), v.into())).collect() }
    }

    /// A variable that is set and not empty.
    fn get(&self, name: &str) -> Option<&OsString> {
        self.variables.iter().find(|(n, value)| n == name && !value.is_empty()).map(|(_, value)| value)
    }

    /// The file named by `DUCKPOND_CONFIG`.
    pub(super) fn config_file(&self) -> Option<PathBuf> {
        self.get("DUCKPOND_CONFIG").map(PathBuf::from)
    }

    /// Where a configuration file is looked for: the current folder, then the user's.
    pub(super) fn usual_files(&self) -> Vec<PathBuf> {
        let mut files = vec![PathBuf::from("duckpond.toml")];
        files.extend(self.user_folder("XDG_CONFIG_HOME", ".config").map(|folder| folder.join("config.toml")));
        files
    }

    /// Where the history of `chat` is kept.
    pub fn state_folder(&self) -> Option<PathBuf> {
        self.user_folder("XDG_STATE_HOME", ".local/state")
    }

    /// The XDG rules: a relative path in the variable counts as unset.
    fn user_folder(&self, variable: &str, in_home: &str) -> Option<PathBuf> {
        let stated = self.get(variable).map(PathBuf::from).filter(|path| path.is_absolute());
        let base = stated.or_else(|| Some(PathBuf::from(self.get("HOME")?).join(in_home)))?;
        Some(base.join("duckpond"))
    }

    /// Whether the user wants no colours.
    pub fn no_colour(&self) -> bool {
        self.get("NO_COLOR").is_some() || self.get("TERM").is_some_and(|term| term == "dumb")
    }

    /// Names that look like ours and mean nothing, for a warning.
    pub fn unknown_variables(&self) -> Vec<String> {
        let known = |name: &str| {
            ["DUCKPOND_CONFIG", "DUCKPOND_RUNTIME_DIR", host::cuda::NVRTC_VARIABLE].contains(&name)
                || KEYS.iter().any(|key| key.variable() == name)
        };
        let names = self.variables.iter().map(|(name, _)| name.to_string_lossy().into_owned());
        names.filter(|name| name.starts_with("DUCKPOND_") && !known(name)).collect()
    }

    /// The settings in the environment; an empty variable says nothing.
    pub(super) fn layer(&self) -> Result<Layer, SettingsError> {
        let mut layer = Layer::new(ENVIRONMENT);
        for key in KEYS {
            let name = key.variable();
            let Some(value) = self.get(&name) else { continue };
            let Some(text) = value.to_str() else { return Err(SettingsError::NotUtf8 { name }) };
            layer.put(key.name, Some(parse(key, text)));
        }
        Ok(layer)
    }
}

/// `DUCKPOND_STOP` is one text, or a list of texts in brackets; numbers and switches are what they look like.
fn parse(key: &Key, text: &str) -> Value {
    if key.text {
        return Value::from(text);
    }
    match (key.name, text.parse::<toml::Value>()) {
        ("stop", Ok(list @ toml::Value::Array(_))) => value_of(list),
        ("stop", _) => Value::from(vec![text.to_owned()]),
        (_, Ok(value)) => value_of(value),
        (_, Err(_)) => Value::from(text),
    }
}

/// Every TOML value is a value here; a date becomes what nobody asks for.
pub(super) fn value_of(value: toml::Value) -> Value {
    Value::serialize(value).expect("TOML knows no values that figment does not")
}
