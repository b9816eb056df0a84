//! Reading config.json key by key, so that every refusal names its key, and every key that nobody read can be named too.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::{Debug, Display};
use std::ops::RangeInclusive;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::checkpoint::one_line;

/// Why a configuration was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// config.json names no architecture at all.
    #[error("config.json names no architecture under architectures or model_type")]
    NoArchitecture,
    /// An architecture that this program does not know.
    #[error("architecture {found} is not supported; supported: {supported}")]
    Architecture {
        /// The name in config.json.
        found: String,
        /// The names that would do.
        supported: String,
    },
    /// config.json is no object.
    #[error("config.json: {key} should be an object, found {found}")]
    NotAnObject {
        /// The key, or `the whole file`.
        key: String,
        /// What is there.
        found: String,
    },
    /// A key is absent.
    #[error("config.json: {key} is missing")]
    Missing {
        /// The key.
        key: String,
    },
    /// A value of another type.
    #[error("config.json: {key}: {reason}")]
    Type {
        /// The key.
        key: String,
        /// Expected and found type.
        reason: String,
    },
    /// A number outside what can be run.
    #[error("config.json: {key} is {found}, expected {expected}")]
    Value {
        /// The key.
        key: String,
        /// The value in the file.
        found: String,
        /// What would do.
        expected: String,
    },
    /// A known key with a value whose meaning is not implemented.
    #[error("config.json: {key} {found} is not supported; supported: {supported}")]
    Unsupported {
        /// The key.
        key: String,
        /// The value in the file.
        found: String,
        /// What would do.
        supported: String,
    },
}

impl ConfigError {
    /// A value that is out of range or contradicts another one.
    pub(crate) fn value(key: impl Into<String>, found: impl Display, expected: impl Display) -> ConfigError {
        ConfigError::Value { key: key.into(), found: one_line(found), expected: expected.to_string() }
    }

    /// A value whose meaning is not implemented.
    pub(crate) fn unsupported(key: impl Into<String>, found: impl Display, supported: impl Display) -> ConfigError {
        ConfigError::Unsupported { key: key.into(), found: one_line(found), supported: supported.to_string() }
    }
}

/// The keys of one JSON object. Remembers what was asked for.
pub(crate) struct Fields<'a> {
    prefix: String,
    map: &'a Map<String, Value>,
    read: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Fields<'a> {
    /// The whole of config.json.
    pub(crate) fn root(config: &'a Value) -> Result<Fields<'a>, ConfigError> {
        match config {
            Value::Object(map) => Ok(Fields { prefix: String::new(), map, read: RefCell::default() }),
            other => Err(ConfigError::NotAnObject { key: "the whole file".into(), found: kind(other).into() }),
        }
    }

    /// The object under `key`; `None` where absent or null.
    pub(crate) fn object(&self, key: &'static str) -> Result<Option<Fields<'a>>, ConfigError> {
        match self.raw(key) {
            None => Ok(None),
            Some(Value::Object(map)) => {
                Ok(Some(Fields { prefix: format!("{}.", self.key(key)), map, read: RefCell::default() }))
            }
            Some(other) => Err(ConfigError::NotAnObject { key: self.key(key), found: kind(other).into() }),
        }
    }

    /// The full name of `key` for messages.
    pub(crate) fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// The value of `key`; null counts as absent, as in the Python tools.
    fn raw(&self, key: &'static str) -> Option<&'a Value> {
        self.read.borrow_mut().insert(key);
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn optional<T: DeserializeOwned>(&self, key: &'static str) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.raw(key) else { return Ok(None) };
        match T::deserialize(value) {
            Ok(value) => Ok(Some(value)),
            Err(error) => Err(ConfigError::Type { key: self.key(key), reason: one_line(error) }),
        }
    }

    pub(crate) fn required<T: DeserializeOwned>(&self, key: &'static str) -> Result<T, ConfigError> {
        self.optional(key)?.ok_or_else(|| ConfigError::Missing { key: self.key(key) })
    }

    /// A whole number within `range`.
    pub(crate) fn size(&self, key: &'static str, range: RangeInclusive<usize>) -> Result<usize, ConfigError> {
        self.within(key, self.required(key)?, range)
    }

    /// A whole number within `range`, or `default` where the key is absent.
    pub(crate) fn size_or(
        &self,
        key: &'static str,
        default: usize,
        range: RangeInclusive<usize>,
    ) -> Result<usize, ConfigError> {
        self.within(key, self.optional(key)?.unwrap_or(default), range)
    }

    fn within(&self, key: &str, found: usize, range: RangeInclusive<usize>) -> Result<usize, ConfigError> {
        if range.contains(&found) {
            return Ok(found);
        }
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        Err(ConfigError::value(self.key(key), found, expected))
    }

    /// A number within `range`.
    pub(crate) fn number(&self, key: &'static str, range: RangeInclusive<f64>) -> Result<f64, ConfigError> {
        let found: f64 = self.required(key)?;
        if range.contains(&found) {
            return Ok(found);
        }
        let expected = format!("a number from {} to {}", range.start(), range.end());
        Err(ConfigError::value(self.key(key), found, expected))
    }

    /// Refuses every value of `key` but `only`; the key may be absent.
    pub(crate) fn only<T>(&self, key: &'static str, only: T) -> Result<(), ConfigError>
    where
        T: DeserializeOwned + PartialEq + Debug,
    {
        match self.optional::<T>(key)? {
            Some(found) if found != only => {
                Err(ConfigError::unsupported(self.key(key), format_args!("{found:?}"), format_args!("{only:?}")))
            }
            _ => Ok(()),
        }
    }

    /// Keys present that were neither read nor in `harmless`.
    pub(crate) fn unread(&self, harmless: &[&str]) -> Vec<String> {
        let read = self.read.borrow();
        let known = |key: &str| read.contains(key) || harmless.contains(&key);
        self.map.keys().filter(|key| !known(key)).map(|key| one_line(self.key(key))).collect()
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
