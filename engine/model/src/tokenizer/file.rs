//! `tokenizer.json`, checked before the library sees it.
//!
//! The format can describe far more than this program can use, and the library trusts what it reads: an id of four billion, a
//! merge longer than every token or a splitter of length 0 make it allocate without bound or panic. So the file is read here as
//! plain JSON, everything in it must be known to be harmless, and the library gets a fresh text made of nothing but the parts
//! checked. Whatever is not known is refused by name rather than ignored, since it might change the tokens.
//!
//! What only dresses up the library's own output (padding, truncation, a post-processor) is taken out and not obeyed.

use std::collections::HashSet;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::TokenizerError;
use super::bytes::letters;
use super::pattern;
use crate::checkpoint::one_line;

/// Longest text of all added tokens together, in bytes. The automaton that looks for them takes some hundred bytes for each;
/// DeepSeek's have 20 kB.
const LONGEST_ADDED: usize = 1 << 20;
/// Ids may have holes, but the table of all ids must stay in proportion to the file.
const ID_SLACK: usize = 4096;

/// A file that the library can be given.
pub(super) struct Checked {
    /// The text for the library.
    pub json: String,
    /// The added tokens that the file lists.
    pub added: Vec<AddedToken>,
}

/// An added token as the file has it.
#[derive(Deserialize, Serialize)]
pub(super) struct AddedToken {
    pub id: u32,
    pub content: String,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

/// Checks the text of `tokenizer.json`; `path` names it in errors.
pub(super) fn check(json: &[u8], path: &Path) -> Result<Checked, TokenizerError> {
    let fields = serde_json::from_slice(json).map_err(|error| parse_error(path, error))?;
    let mut file = Part { path, name: String::new(), fields };
    let Some(model) = file.fields.remove("model") else { return Err(parse_error(path, "it has no model")) };
    let model = file.part("model", model)?;
    file.allow("version", |version| version == "1.0", "\"1.0\"")?;
    decoder(&mut file)?;
    file.allow("normalizer", is_no_normaliser, "none or an empty Sequence")?;
    for unused in ["padding", "truncation", "post_processor"] {
        if file.fields.remove(unused).is_some_and(|value| !value.is_null()) {
            tracing::debug!(file = %path.display(), "{unused} is not used");
        }
    }
    let pre_tokenizer = pattern::pre_tokenizer(&mut file)?;
    let added = added_tokens(&mut file)?;
    let model = bpe(model, &added)?;
    file.finish()?;

    // Put together by hand: `json!` would copy the vocabulary.
    let mut checked = Map::new();
    checked.insert("version".into(), json!("1.0"));
    checked.insert("added_tokens".into(), json!(added));
    checked.insert("pre_tokenizer".into(), pre_tokenizer);
    checked.insert("model".into(), model);
    Ok(Checked { json: Value::Object(checked).to_string(), added })
}

/// The decoder is the sign of a byte-level tokenizer. The library's is not used: [`super::TokenBytes`] does its work.
fn decoder(file: &mut Part) -> Result<(), TokenizerError> {
    let value = file.fields.remove("decoder").unwrap_or_default();
    let found = match (&value, value.get("type")) {
        (Value::Null, _) => "missing".to_owned(),
        (_, Some(Value::String(kind))) if kind == "ByteLevel" => return Ok(()),
        (_, Some(Value::String(kind))) => one_line(kind),
        _ => shown(&value),
    };
    Err(TokenizerError::NotByteLevel { path: file.path.to_owned(), found })
}

fn is_no_normaliser(value: &Value) -> bool {
    value.is_null() || *value == json!({"type": "Sequence", "normalizers": []})
}

fn added_tokens(file: &mut Part) -> Result<Vec<AddedToken>, TokenizerError> {
    let value = match file.fields.remove("added_tokens") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(value) => value,
    };
    let tokens: Vec<AddedToken> =
        serde_json::from_value(value).map_err(|error| parse_error(file.path, format_args!("added_tokens: {error}")))?;
    for (index, token) in tokens.iter().enumerate() {
        // These would take in text around the token, which then comes back from no token.
        for (flag, set) in [("single_word", token.single_word), ("lstrip", token.lstrip), ("rstrip", token.rstrip)] {
            if set {
                let what = format!("added_tokens[{index}].{flag} of {}", quoted(&token.content));
                return Err(file.unsupported(what, "true", "false"));
            }
        }
        if token.content.is_empty() {
            return Err(file.unsupported(format!("added_tokens[{index}].content"), "\"\"", "some text"));
        }
    }
    let length: usize = tokens.iter().map(|token| token.content.len()).sum();
    if length > LONGEST_ADDED {
        return Err(file.unsupported("the text of all added_tokens", format!("{length} bytes"), "at most 1 MiB"));
    }
    Ok(tokens)
}

/// A key, which of its values are supported, and those values in words.
type Setting = (&'static str, fn(&Value) -> bool, &'static str);

/// Settings of the model, each with the values under which it does nothing. `ignore_merges` is among them because it can make
/// added tokens out of plain text.
const MODEL_SETTINGS: [Setting; 7] = [
    ("dropout", Value::is_null, "none"),
    ("unk_token", Value::is_null, "none"),
    ("continuing_subword_prefix", is_nothing, "none"),
    ("end_of_word_suffix", is_nothing, "none"),
    ("fuse_unk", is_off, "false"),
    ("byte_fallback", is_off, "false"),
    ("ignore_merges", is_off, "false"),
];

fn is_nothing(value: &Value) -> bool {
    value.is_null() || value == ""
}

fn is_off(value: &Value) -> bool {
    value.is_null() || value == false
}

fn bpe(mut model: Part, added: &[AddedToken]) -> Result<Value, TokenizerError> {
    model.require("type", |kind| kind == "BPE", "\"BPE\"")?;
    for (name, does_nothing, expected) in MODEL_SETTINGS {
        model.allow(name, does_nothing, expected)?;
    }
    let vocab = match model.fields.remove("vocab") {
        Some(Value::Object(vocab)) => vocab,
        other => return Err(model.refuse("vocab", other.as_ref(), "an object of tokens and ids")),
    };
    let merges = match model.fields.remove("merges") {
        Some(Value::Array(merges)) => merges,
        other => return Err(model.refuse("merges", other.as_ref(), "a list of pairs")),
    };
    check_ids(&model, &vocab, added)?;
    let markers: HashSet<&str> = added.iter().map(|token| token.content.as_str()).collect();
    let is_word = |name: &str| vocab.contains_key(name) && !markers.contains(name);
    if let Some((letter, byte)) = letters().find(|(letter, _)| !is_word(letter.encode_utf8(&mut [0; 4]))) {
        return Err(TokenizerError::MissingByte { path: model.path.to_owned(), byte, letter });
    }
    check_merges(&model, &merges, &vocab, &markers)?;
    model.finish()?;

    let mut checked = Map::new();
    checked.insert("type".into(), json!("BPE"));
    checked.insert("vocab".into(), Value::Object(vocab));
    checked.insert("merges".into(), Value::Array(merges));
    Ok(Value::Object(checked))
}

/// Every id is a number in proportion to the number of tokens.
fn check_ids(model: &Part, vocab: &Map<String, Value>, added: &[AddedToken]) -> Result<(), TokenizerError> {
    let entries = vocab.len() + added.len();
    let limit = (2 * entries + ID_SLACK).min(u32::MAX as usize) as u64;
    let sparse = |token: &str, id| TokenizerError::SparseIds {
        path: model.path.to_owned(),
        token: quoted(token),
        id,
        entries,
        limit,
    };
    for (token, value) in vocab {
        match value.as_u64() {
            None => return Err(model.refuse(&format!("vocab[{}]", quoted(token)), Some(value), "an id")),
            Some(id) if id >= limit => return Err(sparse(token, id)),
            Some(_) => {}
        }
    }
    match added.iter().find(|token| u64::from(token.id) >= limit) {
        Some(token) => Err(sparse(&token.content, token.id.into())),
        None => Ok(()),
    }
}

/// Both sides of a merge and what it makes are tokens. The library (0.23) panics on a merge longer than every token.
fn check_merges(
    model: &Part,
    merges: &[Value],
    vocab: &Map<String, Value>,
    markers: &HashSet<&str>,
) -> Result<(), TokenizerError> {
    let path = || model.path.to_owned();
    let mut made = String::new();
    for (index, merge) in merges.iter().enumerate() {
        let pair = match merge {
            // The older way to write them, in which the first line can be a comment.
            Value::String(line) if line.starts_with("#version") => continue,
            Value::String(line) => line.split_once(' ').filter(|(_, right)| !right.contains(' ')),
            Value::Array(sides) => match &sides[..] {
                [Value::String(left), Value::String(right)] => Some((left.as_str(), right.as_str())),
                _ => None,
            },
            _ => None,
        };
        let Some((left, right)) = pair else {
            return Err(model.refuse(&format!("merges[{index}]"), Some(merge), "two tokens"));
        };
        made.clear();
        made.extend([left, right]);
        if let Some(token) = [left, right, &made].into_iter().find(|token| !vocab.contains_key(*token)) {
            return Err(TokenizerError::MergeToken { path: path(), index, token: quoted(token) });
        }
        if markers.contains(made.as_str()) {
            return Err(TokenizerError::MergeMakesAdded { path: path(), index, token: quoted(&made) });
        }
    }
    Ok(())
}

/// An object in the file. Fields are taken out as they are checked; what is left at the end is not known.
pub(super) struct Part<'a> {
    pub path: &'a Path,
    /// Where it is in the file; empty for the file itself.
    pub name: String,
    pub fields: Map<String, Value>,
}

impl<'a> Part<'a> {
    /// The object `value`, which is at `name`.
    pub fn part(&self, name: &str, value: Value) -> Result<Part<'a>, TokenizerError> {
        match value {
            Value::Object(fields) => Ok(Part { path: self.path, name: self.place(name), fields }),
            other => Err(self.refuse(name, Some(&other), "an object")),
        }
    }

    /// Takes out field `name`, which must be there and `right`.
    pub fn require(
        &mut self,
        name: &str,
        right: impl Fn(&Value) -> bool,
        expected: &'static str,
    ) -> Result<Value, TokenizerError> {
        match self.fields.remove(name) {
            Some(value) if right(&value) => Ok(value),
            other => Err(self.refuse(name, other.as_ref(), expected)),
        }
    }

    /// Takes out field `name`, which must be `right` if it is there.
    pub fn allow(
        &mut self,
        name: &str,
        right: impl Fn(&Value) -> bool,
        expected: &'static str,
    ) -> Result<Option<Value>, TokenizerError> {
        match self.fields.remove(name) {
            Some(value) if !right(&value) => Err(self.refuse(name, Some(&value), expected)),
            other => Ok(other),
        }
    }

    /// Refuses a field that nobody took out.
    pub fn finish(&self) -> Result<(), TokenizerError> {
        match self.fields.iter().next() {
            Some((name, value)) => Err(self.refuse(&one_line(name), Some(value), "no setting of that name")),
            None => Ok(()),
        }
    }

    /// The error for field `name`.
    pub fn refuse(&self, name: &str, found: Option<&Value>, expected: &'static str) -> TokenizerError {
        let found = found.map_or_else(|| "missing".to_owned(), shown);
        self.unsupported(self.place(name), found, expected)
    }

    fn unsupported(&self, what: impl Into<String>, found: impl Into<String>, expected: &'static str) -> TokenizerError {
        TokenizerError::Unsupported {
            path: self.path.to_owned(),
            what: one_line(what.into()),
            found: found.into(),
            expected,
        }
    }

    fn place(&self, name: &str) -> String {
        if self.name.is_empty() { name.to_owned() } else { format!("{}.{name}", self.name) }
    }
}

pub(super) fn parse_error(path: &Path, reason: impl std::fmt::Display) -> TokenizerError {
    TokenizerError::Parse { path: path.to_owned(), reason: one_line(reason) }
}

/// A token's name for a message.
pub(super) fn quoted(token: &str) -> String {
    one_line(format!("{token:?}"))
}

/// A value for a message: an object with a type by that type, which says more than its first field.
fn shown(value: &Value) -> String {
    match value.get("type") {
        Some(Value::String(kind)) => one_line(kind),
        _ => one_line(value),
    }
}
