//! `model.safetensors.index.json`: which file holds which tensor.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use serde::Deserialize;

use super::error::{CheckpointError, one_line};

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The files named by the index, each with its tensors (at least one), in order of their names.
pub(super) fn parse(path: &Path, text: &[u8]) -> Result<BTreeMap<String, Vec<String>>, CheckpointError> {
    let index: Index = serde_json::from_slice(text)
        .map_err(|error| CheckpointError::Json { path: path.into(), reason: one_line(error) })?;
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (tensor, file) in index.weight_map {
        if !is_plain_name(&file) {
            return Err(CheckpointError::IndexFileName { index: path.into(), file: one_line(file) });
        }
        files.entry(file).or_default().push(tensor);
    }
    if files.is_empty() {
        return Err(CheckpointError::Json { path: path.into(), reason: "its weight_map names no tensor".into() });
    }
    Ok(files)
}

/// An index comes from elsewhere: it must not reach out of its folder, and names are shown in messages.
fn is_plain_name(file: &str) -> bool {
    let mut components = Path::new(file).components();
    let single =
        matches!((components.next(), components.next()), (Some(Component::Normal(name)), None) if name == file);
    single && !file.chars().any(char::is_control)
}
