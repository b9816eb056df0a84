//! What can be wrong with golden data.

use std::path::{Path, PathBuf};

/// Why a fixture could not be read or built; each message names the object and both values.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A JSON file does not have the expected form.
    #[error("{}: not the expected JSON: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why parsing stopped.
        source: serde_json::Error,
    },
    /// A safetensors file cannot be parsed or written.
    #[error("{}: {source}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// The library's reason.
        source: safetensors::SafeTensorError,
    },
    /// A name that the data does not hold.
    #[error("no {kind} named {name:?}; there are: {known}")]
    Unknown {
        /// Case, tensor …
        kind: &'static str,
        /// What was asked for.
        name: String,
        /// What could have been asked for.
        known: String,
    },
    /// A tensor was asked for as another type than its own.
    #[error("tensor {name:?} is stored as {found}, expected {expected}")]
    Dtype {
        /// The tensor.
        name: String,
        /// The types that the called function reads.
        expected: &'static str,
        /// The type in the file.
        found: String,
    },
    /// A file's contents are not those that were recorded.
    #[error("{}: SHA-256 is {found}, expected {expected}", path.display())]
    Sum {
        /// The file.
        path: PathBuf,
        /// As recorded.
        expected: String,
        /// As computed.
        found: String,
    },
}

impl Error {
    /// For `map_err`: an I/O error that happened while doing `action` on `path`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    /// For `map_err`: a safetensors error of the file `path`.
    pub(crate) fn safetensors(path: &Path) -> impl FnOnce(safetensors::SafeTensorError) -> Self {
        let path = path.to_owned();
        move |source| Self::Safetensors { path, source }
    }
}
