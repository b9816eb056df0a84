//! Descriptions for both sides, and what the engine makes of one.

use std::collections::BTreeMap;
use std::fs;

use pond::Pond;
use serde_json::Value;

use crate::repository;

/// A description in `tests/ponds`.
pub struct Case {
    /// Its file, as in `bad/mac-twice.toml`.
    pub file: String,
    /// What it says; of a TOML file, as JSON.
    pub description: Value,
    /// The field that it must be refused for, `None` if it must be taken.
    pub field: Option<String>,
}

/// All the descriptions in `tests/ponds`, in order.
///
/// # Panics
/// If the folder is not as its README says.
pub fn cases() -> Vec<Case> {
    let ponds = repository().join("tests/ponds");
    let expected = fs::read(ponds.join("expected.json")).expect("it ships with the code");
    let expected: BTreeMap<String, String> = serde_json::from_slice(&expected).expect("file to field");
    let mut files = Vec::new();
    for folder in ["bad", "good"] {
        for entry in fs::read_dir(ponds.join(folder)).expect("it ships with the code") {
            let name = entry.expect("an entry").file_name().into_string().expect("a name");
            files.push(format!("{folder}/{name}"));
        }
    }
    files.sort();
    let case = |file: String| {
        let text = fs::read_to_string(ponds.join(&file)).expect("readable");
        let description = match file.ends_with(".toml") {
            true => toml::from_str(&text).expect("TOML"),
            false => serde_json::from_str(&text).expect("JSON"),
        };
        let field = expected.get(&file).cloned();
        assert_eq!(field.is_some(), file.starts_with("bad/"), "{file} and expected.json");
        Case { file, description, field }
    };
    files.into_iter().map(case).collect()
}

/// What the engine's own parser and check say of a description: `None`, or the field and what is wrong with it.
pub fn engine_verdict(description: &Value) -> Option<(String, String)> {
    let read = Pond::from_json(&description.to_string());
    let error = read.and_then(|pond| pond.check()).err()?;
    Some((error.field().into(), error.to_string()))
}
