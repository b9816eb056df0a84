//! The part of `tokenizer.json` that splits text into words, and which patterns it may use.
//!
//! Splitting must lose nothing (`Removed` would) and add nothing (a prefix space would). Patterns are kept to a common subset:
//! what remains of the regex library's syntax can report matches that overlap or run backwards (`\K` in a look-behind), on
//! which the tokenizer library panics while it encodes.

use serde_json::{Value, json};

use super::TokenizerError;
use super::file::Part;

/// Most steps in a sequence. DeepSeek's has 4.
const MOST_STEPS: usize = 8;
/// Longest pattern in bytes. DeepSeek's longest has about 150, other models' a few hundred.
const LONGEST_PATTERN: usize = 1024;
/// Most counts such as `{1,3}` in a pattern, each up to 9: they multiply what it compiles to. With this bound and the two above,
/// the costliest files tried took 1 s and 0.15 GB to load, without it 130 s. DeepSeek's patterns have one count.
const MOST_COUNTS: usize = 4;

const KINDS: &str = "Split, Digits or ByteLevel, of which one ByteLevel, the last";

/// Takes the pre-tokenizer out of the file and returns it for the library: a ByteLevel, or a sequence that ends in one.
pub(super) fn pre_tokenizer(file: &mut Part) -> Result<Value, TokenizerError> {
    let value = file.fields.remove("pre_tokenizer").unwrap_or_default();
    let is_sequence = value.get("type").is_some_and(|kind| kind == "Sequence");
    if !is_sequence {
        return step(file, "pre_tokenizer", value, true);
    }
    let mut sequence = file.part("pre_tokenizer", value)?;
    sequence.fields.remove("type");
    let steps = match sequence.fields.remove("pretokenizers") {
        Some(Value::Array(steps)) if (1..=MOST_STEPS).contains(&steps.len()) => steps,
        other => return Err(sequence.refuse("pretokenizers", other.as_ref(), "a list of 1 to 8 steps")),
    };
    let last = steps.len() - 1;
    let checked: Result<Vec<Value>, TokenizerError> = steps
        .into_iter()
        .enumerate()
        .map(|(index, value)| step(&sequence, &format!("pretokenizers[{index}]"), value, index == last))
        .collect();
    let checked = checked?;
    sequence.finish()?;
    Ok(json!({"type": "Sequence", "pretokenizers": checked}))
}

fn step(parent: &Part, name: &str, value: Value, last: bool) -> Result<Value, TokenizerError> {
    let is_bool = Value::is_boolean;
    let kind = value.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    if !matches!((kind.as_str(), last), ("ByteLevel", true) | ("Split" | "Digits", false)) {
        return Err(parent.refuse(name, Some(&value), KINDS));
    }
    let mut part = parent.part(name, value)?;
    part.fields.remove("type");
    let checked = match kind.as_str() {
        "ByteLevel" => {
            part.require("add_prefix_space", |value| value == false, "false")?;
            part.allow("trim_offsets", is_bool, "true or false")?;
            let use_regex = part.allow("use_regex", is_bool, "true or false")?.unwrap_or(json!(true));
            json!({"type": kind, "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
        }
        "Digits" => {
            let individual = part.require("individual_digits", is_bool, "true or false")?;
            json!({"type": kind, "individual_digits": individual})
        }
        _ => {
            part.require("behavior", |value| value == "Isolated", "\"Isolated\"")?;
            part.require("invert", |value| value == false, "false")?;
            let pattern = part.fields.remove("pattern").unwrap_or_default();
            let mut pattern = part.part("pattern", pattern)?;
            let is_plain = |value: &Value| value.as_str().is_some_and(is_plain);
            let regex = pattern.require("Regex", is_plain, PLAIN)?;
            pattern.finish()?;
            json!({"type": kind, "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
        }
    };
    part.finish()?;
    Ok(checked)
}

const PLAIN: &str = "at most 1024 bytes of characters, classes, groups, look-aheads, up to 4 counts below 10, and no \
    other escape than \\p \\P \\d \\D \\s \\S \\w \\W \\n \\r \\t or of punctuation";

/// Whether a pattern keeps to the subset. It looks at every backslash and bracket, in classes too, where some harmless ones are
/// refused as well: a second parser that must agree with the library's would be the greater risk.
fn is_plain(pattern: &str) -> bool {
    if pattern.is_empty() || pattern.len() > LONGEST_PATTERN {
        return false;
    }
    let braces = || pattern.split('{').skip(1).map(|after| after.split('}').next().unwrap_or_default());
    let counts = braces().filter(|inside| inside.contains(|c: char| c.is_ascii_digit())).count();
    let is_large = |inside: &str| inside.as_bytes().windows(2).any(|pair| pair.iter().all(u8::is_ascii_digit));
    if counts > MOST_COUNTS || braces().any(is_large) {
        return false;
    }
    let mut rest = pattern;
    while let Some(at) = rest.find(['\\', '(']) {
        let bracket = rest[at..].starts_with('(');
        rest = &rest[at + 1..];
        if bracket {
            let known = ["?:", "?=", "?!", "?i:"].iter().any(|start| rest.starts_with(start));
            if !known && rest.starts_with(['?', '*']) {
                return false;
            }
        } else {
            match rest.chars().next() {
                Some(escaped) if escaped.is_ascii_punctuation() || "pPdDsSwWnrt".contains(escaped) => {
                    rest = &rest[escaped.len_utf8()..];
                }
                _ => return false,
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::is_plain;

    #[test]
    fn patterns_of_well_known_models_are_plain() {
        for pattern in [
            r"\p{N}{1,3}",
            "[一-龥぀-ゟ゠-ヿ]+",
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ] {
            assert!(is_plain(pattern), "{pattern}");
        }
    }

    #[test]
    fn constructs_beyond_the_subset_are_found_wherever_they_hide() {
        for pattern in [
            "",
            r"a\K",
            r"\Ga",
            r"(a)\1",
            r"(?<=a)b",
            r"(?<n>a)",
            r"(?>a)",
            r"(?(1)a|b)",
            r"(?x) a",
            r"\\\Ka",
            r"[\\](?=a\K)",
            r"a(*FAIL)",
            r"\g<1>",
            "a\\",
            r"(?ia)",
            "a{10}",
            "a{2,10}",
            "a{1}{1}{1}{1}{1}",
            r"\ä",
        ] {
            assert!(!is_plain(pattern), "{pattern}");
        }
        assert!(!is_plain(&"a".repeat(1025)));
    }
}
