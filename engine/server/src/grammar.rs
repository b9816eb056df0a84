//! Answers that must follow a form: JSON of a schema, any JSON object, or calls of tools in the model's own markup.
//!
//! The library llguidance says which tokens may come next; this module writes the grammars and keeps its types out of the rest. A
//! grammar comes with a request, so its size and the work for each token are bounded, and a schema that the library does not know is
//! refused with its words.

use std::fmt::Write;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use llguidance::{Matcher, ParserFactory};
use model::tokenizer::Tokenizer;
use serde_json::{Value, json};

/// Bytes of a schema at most.
pub const LARGEST_SCHEMA: usize = 256 << 10;
/// White space between the parts of a JSON text: a blank, or a new line with its indentation. Were it unbounded, a model that has lost
/// its way would write nothing else.
const WHITE_SPACE: &str = r"(?: |\n(?: {0,16}|\t{0,4}))?";

/// Why there is no grammar, or no token under it.
#[derive(Debug, thiserror::Error)]
pub enum GrammarError {
    /// The schema asks for what is not supported, or for nothing at all.
    #[error("the schema cannot be followed: {reason}")]
    Schema {
        /// The library's words.
        reason: String,
    },
    /// Too long.
    #[error("the schema has {found} bytes, at most {LARGEST_SCHEMA} are taken")]
    TooLarge {
        /// Its length.
        found: usize,
    },
    /// The vocabulary cannot be used.
    #[error("answers cannot be constrained with this model's vocabulary: {reason}")]
    Vocabulary {
        /// Why.
        reason: String,
    },
    /// In the midst of an answer.
    #[error("the grammar allows no token: {reason}")]
    Stuck {
        /// The library's words.
        reason: String,
    },
}

/// What an answer has to be.
#[derive(Clone, Debug, PartialEq)]
pub enum Form {
    /// Any JSON object.
    JsonObject,
    /// JSON that the schema allows.
    Schema(Value),
    /// One or several calls of these tools: (name, schema of the parameters).
    Calls {
        /// The tools.
        tools: Vec<(String, Value)>,
        /// Whether more than one call may come.
        several: bool,
    },
}

/// Makes grammars for one vocabulary.
pub struct Grammars {
    factory: ParserFactory,
}

/// The state of one answer under its grammar. A copy goes its own way, without the work of making it.
#[derive(Clone)]
pub struct Grammar {
    matcher: Matcher,
}

struct Vocabulary {
    trie: TokTrie,
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(bytes)
    }

    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

impl Grammars {
    /// For a tokenizer, and the tokens that end an answer. Takes a second or so for a large vocabulary.
    ///
    /// # Errors
    /// [`GrammarError::Vocabulary`].
    pub fn new(tokenizer: &Tokenizer, end_tokens: &[u32]) -> Result<Grammars, GrammarError> {
        let vocabulary = |reason: &str| GrammarError::Vocabulary { reason: reason.to_owned() };
        let size = u32::try_from(tokenizer.vocab_size()).map_err(|_| vocabulary("it has too many tokens"))?;
        let &end = end_tokens.first().ok_or_else(|| vocabulary("no token ends an answer"))?;
        let words: Vec<Vec<u8>> = (0..size)
            .map(|id| {
                let bytes = tokenizer.token_bytes(id);
                // The tool markup's marker is text to a grammar; all others can come only as themselves.
                if tokenizer.is_added(id) && bytes != model::chat::template::DSML.as_bytes() {
                    return [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat();
                }
                bytes.to_vec()
            })
            .collect();
        let trie = TokTrie::from(&TokRxInfo::new(size, end), &words).with_eos_tokens(end_tokens);
        let env: TokEnv = Arc::new(Vocabulary { trie });
        let mut factory = ParserFactory::new_simple(&env).map_err(|error| vocabulary(&error.to_string()))?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        factory.limits_mut().max_grammar_size = 100_000;
        factory.limits_mut().max_lexer_states = 50_000;
        Ok(Grammars { factory })
    }

    /// A fresh grammar of that form.
    ///
    /// # Errors
    /// [`GrammarError::Schema`], [`GrammarError::TooLarge`].
    pub fn grammar(&self, form: &Form) -> Result<Grammar, GrammarError> {
        let top = match form {
            Form::JsonObject => TopLevelGrammar::from_json_schema(with_options(json!({"type": "object"}))?),
            Form::Schema(schema) => TopLevelGrammar::from_json_schema(with_options(schema.clone())?),
            Form::Calls { tools, several } => TopLevelGrammar::from_lark(calls(tools, *several)?),
        };
        let matcher = Matcher::new(self.factory.create_parser(top));
        match matcher.get_error() {
            Some(reason) => Err(GrammarError::Schema { reason: one_line(&reason) }),
            None => {
                // What cannot even begin is the schema's fault, and must not be found out in the middle of an answer.
                let begin = Grammar { matcher: matcher.clone() }.allowed(usize::MAX);
                begin.map_err(|error| GrammarError::Schema { reason: error.to_string() })?;
                Ok(Grammar { matcher })
            }
        }
    }
}

impl Grammar {
    /// The ids that may come next, rising, below `vocab`; never none.
    ///
    /// # Errors
    /// [`GrammarError::Stuck`].
    pub fn allowed(&mut self, vocab: usize) -> Result<Vec<u32>, GrammarError> {
        let stuck = |reason: String| GrammarError::Stuck { reason: one_line(&reason) };
        let mask = self.matcher.compute_mask_or_eos().map_err(|error| stuck(error.to_string()))?;
        let mut allowed = Vec::new();
        mask.iter_set_entries(|id| {
            if id < vocab {
                allowed.push(id as u32);
            }
        });
        if allowed.is_empty() {
            return Err(stuck("nothing matches".to_owned()));
        }
        Ok(allowed)
    }

    /// Goes on by a token.
    ///
    /// # Errors
    /// [`GrammarError::Stuck`] for one that was not allowed.
    pub fn take(&mut self, token: u32) -> Result<(), GrammarError> {
        if self.matcher.is_stopped() {
            return Ok(());
        }
        self.matcher.consume_token(token).map_err(|error| GrammarError::Stuck { reason: one_line(&error.to_string()) })
    }
}

fn one_line(text: &str) -> String {
    // The library catches its own panics, and tells of them with all of their stack.
    if text.contains("panic") || text.contains("backtrace") {
        return "it is beyond what can be followed here".to_owned();
    }
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.chars().take(300).collect()
}

/// The schema with the way JSON is written here.
fn with_options(mut schema: Value) -> Result<Value, GrammarError> {
    let found = schema.to_string().len();
    if found > LARGEST_SCHEMA {
        return Err(GrammarError::TooLarge { found });
    }
    let options = json!({"whitespace_flexible": true, "whitespace_pattern": WHITE_SPACE});
    match &mut schema {
        Value::Object(fields) => {
            fields.insert("x-guidance".to_owned(), options);
            Ok(schema)
        }
        // `true` allows everything.
        Value::Bool(true) => Ok(json!({"x-guidance": options})),
        _ => Err(GrammarError::Schema { reason: "it is no object".to_owned() }),
    }
}

/// The markup of calls, as a Lark grammar. Parameters come in the order of the schema, which is how the model has seen them.
fn calls(tools: &[(String, Value)], several: bool) -> Result<String, GrammarError> {
    let mut out = String::new();
    let names: Vec<String> = (0..tools.len()).map(|i| format!("call{i}")).collect();
    let more = if several { "+" } else { "" };
    let _ = writeln!(
        out,
        "start: \"\\n\\n<｜DSML｜function_calls>\\n\" ({}){more} \"</｜DSML｜function_calls>\"",
        names.join(" | ")
    );
    for (i, (name, schema)) in tools.iter().enumerate() {
        let no_properties = serde_json::Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&no_properties);
        let required: Vec<&str> =
            schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let open = quoted(&format!("<｜DSML｜invoke name=\"{name}\">\n"));
        let _ = write!(out, "call{i}: {open}");
        if properties.is_empty() {
            out.push_str(" \"\\n\"?");
        }
        for (j, property) in properties.keys().enumerate() {
            let _ = write!(out, " p{i}x{j}{}", if required.contains(&property.as_str()) { "" } else { "?" });
        }
        out.push_str(" \"</｜DSML｜invoke>\\n\"\n");
        for (j, (property, sort)) in properties.iter().enumerate() {
            let is_text = is_free_text(sort);
            let open = quoted(&format!("<｜DSML｜parameter name=\"{property}\" string=\"{}\">", is_string(sort)));
            if is_text {
                let _ = writeln!(out, "p{i}x{j}: {open} text \"\\n\"");
            } else if is_string(sort) {
                let choices: Vec<String> =
                    strings(sort).iter().map(|text| quoted(&format!("{text}</｜DSML｜parameter>\n"))).collect();
                let _ = writeln!(out, "p{i}x{j}: {open} ({})", choices.join(" | "));
            } else {
                let mut sort = sort.clone();
                // References in a parameter's schema lead into the whole one.
                for key in ["$defs", "definitions"] {
                    if let (Some(fields), Some(definitions)) = (sort.as_object_mut(), schema.get(key)) {
                        fields.entry(key).or_insert_with(|| definitions.clone());
                    }
                }
                let sort = with_options(sort)?;
                let _ = writeln!(out, "p{i}x{j}: {open} %json {sort} \"</｜DSML｜parameter>\\n\"");
            }
        }
    }
    out.push_str("text[suffix=\"</｜DSML｜parameter>\"]: /(?s:.*)/\n");
    Ok(out)
}

/// A schema of strings only.
fn is_string(sort: &Value) -> bool {
    let all_text = |list: Option<&Value>| {
        list.and_then(Value::as_array).is_some_and(|list| !list.is_empty() && list.iter().all(Value::is_string))
    };
    sort.get("type") == Some(&json!("string")) || (sort.get("type").is_none() && all_text(sort.get("enum")))
}

/// Strings with nothing said about them that a grammar could check in unescaped text.
fn is_free_text(sort: &Value) -> bool {
    is_string(sort) && strings(sort).is_empty()
}

/// The strings that a schema lists.
fn strings(sort: &Value) -> Vec<&str> {
    let listed = sort.get("enum").and_then(Value::as_array).into_iter().flatten();
    listed.chain(sort.get("const")).filter_map(Value::as_str).collect()
}

/// A Lark string literal: its escapes are JSON's.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::duckling;

    fn grammars() -> Grammars {
        Grammars::new(&duckling(), &[1]).expect("Duckling has a vocabulary")
    }

    /// Whether the whole text, and an end after it, is allowed; else how far it was.
    fn follows(form: &Form, text: &str) -> Result<(), usize> {
        let tokenizer = duckling();
        let mut grammar = grammars().grammar(form).expect("a sound form");
        let ids = tokenizer.encode_plain(text).expect("any text can be encoded");
        for (at, id) in ids.into_iter().chain([1]).enumerate() {
            let allowed = grammar.allowed(tokenizer.vocab_size()).expect("not stuck");
            if !allowed.contains(&id) {
                return Err(at);
            }
            grammar.take(id).expect("it is allowed");
        }
        Ok(())
    }

    #[test]
    fn an_object_is_any_object_and_nothing_else() {
        assert_eq!(follows(&Form::JsonObject, r#"{"a": [1, null], "b": "x"}"#), Ok(()));
        assert_eq!(follows(&Form::JsonObject, "{}"), Ok(()));
        assert_eq!(follows(&Form::JsonObject, "[1]"), Err(0));
        assert!(follows(&Form::JsonObject, r#"{"a": 1"#).is_err());
    }

    #[test]
    fn copies_of_a_grammar_go_their_own_ways() {
        let tokenizer = duckling();
        let mut one = grammars().grammar(&Form::JsonObject).expect("a sound form");
        let mut other = one.clone();
        let begin = other.allowed(tokenizer.vocab_size()).expect("not stuck");
        for id in tokenizer.encode_plain("{\"").expect("any text can be encoded") {
            one.take(id).expect("it is allowed");
        }
        assert_ne!(one.allowed(tokenizer.vocab_size()).expect("not stuck"), begin);
        assert_eq!(other.allowed(tokenizer.vocab_size()).expect("not stuck"), begin);
    }

    #[test]
    fn a_schema_is_followed() {
        let schema = json!({
            "type": "object", "properties": {"n": {"type": "integer"}, "s": {"enum": ["up", "down"]}},
            "required": ["n", "s"], "additionalProperties": false,
        });
        let form = Form::Schema(schema);
        assert_eq!(follows(&form, r#"{"n": 12, "s": "down"}"#), Ok(()));
        assert!(follows(&form, r#"{"n": 1.5, "s": "down"}"#).is_err());
        assert!(follows(&form, r#"{"n": 1, "s": "left"}"#).is_err());
    }

    fn tools(several: bool) -> Form {
        let weather = json!({
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "unit": {"type": "string", "enum": ["C", "F"]},
            },
            "required": ["city"],
        });
        Form::Calls { tools: vec![("weather".into(), weather), ("now".into(), json!({"type": "object"}))], several }
    }

    const WEATHER: &str = "<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">L < \"y\"\non</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n<｜DSML｜parameter name=\"unit\" string=\"true\">C</｜DSML｜parameter>\n</｜DSML｜invoke>\n";
    const NOW: &str = "<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n";

    fn block(calls: &[&str]) -> String {
        format!("\n\n<｜DSML｜function_calls>\n{}</｜DSML｜function_calls>", calls.concat())
    }

    #[test]
    fn calls_follow_the_markup_and_the_tools_schemas() {
        assert_eq!(follows(&tools(true), &block(&[WEATHER])), Ok(()));
        assert_eq!(follows(&tools(true), &block(&[NOW, WEATHER])), Ok(()));
        assert_eq!(follows(&tools(false), &block(&[NOW])), Ok(()));
        for wrong in [
            block(&[&WEATHER.replace(">3<", ">three<")]),
            block(&[&WEATHER.replace(">C<", ">K<")]),
            block(&[&NOW.replace("now", "then")]),
            block(&[]),
            "Sunny.".to_owned(),
        ] {
            assert!(follows(&tools(true), &wrong).is_err(), "{wrong}");
        }
        assert!(follows(&tools(false), &block(&[NOW, NOW])).is_err());
    }

    #[test]
    fn what_the_model_was_taught_to_write_is_allowed() {
        let written = model::chat::Message::Assistant {
            reasoning: None,
            content: String::new(),
            tool_calls: vec![model::chat::ToolCall {
                name: "weather".into(),
                arguments: serde_json::from_str(r#"{"city": "Lyon", "days": 2}"#).expect("JSON"),
            }],
        };
        let user = model::chat::Message::User { content: String::new() };
        let prompt = model::chat::encode_chat(&[user, written], &Default::default()).expect("sound");
        let text = model::chat::prompt_text(&prompt);
        let (_, calls) = text.split_once("</think>").expect("chat mode");
        let calls = calls.strip_suffix("<｜end▁of▁sentence｜>").expect("an assistant's end");
        assert_eq!(follows(&tools(true), calls), Ok(()));
    }

    #[test]
    fn schemas_that_make_no_sense_are_refused() {
        let refused = |schema| grammars().grammar(&Form::Schema(schema)).err().map(|e| e.to_string());
        assert!(refused(json!([])).is_some_and(|e| e.contains("it is no object")));
        assert!(refused(json!({"type": "nonsense"})).is_some());
        assert!(refused(json!({"type": "string", "pattern": "(["})).is_some());
        let large = json!({"description": "x".repeat(LARGEST_SCHEMA)});
        assert!(refused(large).is_some_and(|e| e.contains("at most 262144")));
    }
}
