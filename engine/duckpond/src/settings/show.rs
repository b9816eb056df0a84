//! Writes settings as a configuration file that says where each value came from.

use std::fmt::Write;

use figment::value::{Num, Value};

use super::{KEYS, Merged};

/// The merged settings as TOML, one a line, each with its origin. Settings without a value are comments.
pub fn show(merged: &Merged) -> String {
    let mut lines = Vec::new();
    for key in KEYS {
        let origin = merged.origin(key.name);
        lines.push(match (merged.value(key.name), origin) {
            (Some(value), Some(origin)) => (format!("{} = {}", key.name, literal(&value)), origin.to_string()),
            _ => (format!("# {}", key.name), unset(key.name).to_owned()),
        });
    }
    let width = lines.iter().map(|(line, _)| line.chars().count()).filter(|&w| w <= 60).max().unwrap_or(0);
    lines.iter().fold(String::new(), |mut text, (line, origin)| {
        writeln!(text, "{line:width$}  # {origin}").expect("writing to a string");
        text
    })
}

fn unset(key: &str) -> &'static str {
    match key {
        "model" => "not set: the Duckling that ships with the program",
        "pond" => "not set: ducks in this process",
        "seed" => "not set: another one each time",
        _ => "not set",
    }
}

/// A value as TOML would have it.
pub(super) fn literal(value: &Value) -> String {
    match value {
        Value::String(_, text) => quoted(text),
        Value::Char(_, c) => quoted(&c.to_string()),
        Value::Bool(_, b) => b.to_string(),
        Value::Num(_, Num::F64(x)) => format!("{x:?}"),
        Value::Num(_, Num::F32(x)) => format!("{x:?}"),
        Value::Num(_, number) => {
            number.to_i128().map(|n| n.to_string()).or(number.to_u128().map(|n| n.to_string())).unwrap_or_default()
        }
        Value::Empty(..) => "nothing".to_owned(),
        Value::Array(_, values) => format!("[{}]", values.iter().map(literal).collect::<Vec<_>>().join(", ")),
        Value::Dict(_, values) => {
            let fields: Vec<_> = values.iter().map(|(k, v)| format!("{k} = {}", literal(v))).collect();
            format!("{{ {} }}", fields.join(", "))
        }
    }
}

/// A basic TOML string on one line.
fn quoted(text: &str) -> String {
    let mut line = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => line.extend(['\\', c]),
            c if c.is_control() => write!(line, "\\u{:04X}", u32::from(c)).expect("writing to a string"),
            c => line.push(c),
        }
    }
    line.push('"');
    line
}
