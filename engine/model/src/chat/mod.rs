//! DeepSeek-V3.2's chat format: messages to prompt, and the assistant's text back to reasoning, answer and tool calls.
//!
//! The prompt is a list of [`Piece`]s, not one string: markers are markers, and everything that a person, a tool or the model wrote
//! is text, which [`chat_ids`] encodes so that no marker can come out of it. For ordinary text the ids are those of the joined
//! string, because a marker ends a stretch of text for the tokenizer anyway.
//!
//! Rules worth knowing (all the release's, see [`template`]):
//! - Reasoning is kept only after the last user message, where it runs across tool calls; that of earlier turns is dropped, and
//!   `</think>` stands in its place.
//! - A developer message is a user message with its own tools. (The release's encoder, asked to drop earlier reasoning, loses track
//!   of a developer message before the last turn and stops; here it stays, as it does there when nothing is to be dropped.)
//! - Without a system message, tools follow an empty one.
//!
//! Left out: other models' formats, and the release's quick-search "tasks". Stricter than the release: every call needs its result
//! before the conversation goes on.

mod completion;
pub mod dsml;
mod json;
pub mod template;

use serde_json::{Map, Value};

pub use completion::{Completion, CompletionError, parse_completion};

use crate::tokenizer::{Tokenizer, TokenizerError};
use json::to_json;
use template::{ASSISTANT, BEGIN, DSML, END, END_THINK, THINK, USER};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Instructions; the first one also carries the options' tools and response format.
    System {
        /// The text, may be empty.
        content: String,
    },
    /// What a person wrote.
    User {
        /// The text.
        content: String,
    },
    /// A task given by a program, with tools of its own.
    Developer {
        /// The text, not empty.
        content: String,
        /// Tools in the OpenAI form, see [`ChatOptions::tools`].
        tools: Vec<Value>,
        /// A JSON schema for the answer.
        response_format: Option<Value>,
    },
    /// What the model wrote.
    Assistant {
        /// Its reasoning, if it had any and it is still known.
        reasoning: Option<String>,
        /// Its answer, may be empty beside tool calls.
        content: String,
        /// Its tool calls, in order.
        tool_calls: Vec<ToolCall>,
    },
    /// The result of one tool call; results come in the order of the calls.
    Tool {
        /// What the tool returned.
        content: String,
    },
}

impl Message {
    /// The role's name in an API.
    #[must_use]
    pub fn role(&self) -> &'static str {
        match self {
            Self::System { .. } => "system",
            Self::User { .. } => "user",
            Self::Developer { .. } => "developer",
            Self::Assistant { .. } => "assistant",
            Self::Tool { .. } => "tool",
        }
    }

    fn begins_turn(&self) -> bool {
        matches!(self, Self::User { .. } | Self::Developer { .. })
    }
}

/// A call of a tool by the model.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// The tool's name.
    pub name: String,
    /// Its arguments in the order written.
    pub arguments: Map<String, Value>,
}

impl ToolCall {
    /// The arguments as one JSON text, as an API hands them out.
    #[must_use]
    pub fn arguments_json(&self) -> String {
        to_json(&Value::Object(self.arguments.clone()))
    }
}

/// How to write a conversation down.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatOptions {
    /// Whether the model thinks before it answers.
    pub thinking: bool,
    /// Tools in the OpenAI form, `{"type": "function", "function": {"name": …, "description": …, "parameters": …}}`. What stands
    /// under `function` goes into the prompt as it is.
    pub tools: Vec<Value>,
    /// A JSON schema that the answer must follow.
    pub response_format: Option<Value>,
}

/// A part of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A marker, one token where the tokenizer has it.
    Special(&'static str),
    /// Text that is only text.
    Text(String),
}

/// Why a conversation cannot be written down, or not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// Nothing to write.
    #[error("the conversation has no messages")]
    Empty,
    /// A tool is not in the OpenAI form.
    #[error("tool {index} has no object under \"function\"; expected {{\"type\": \"function\", \"function\": {{…}}}}")]
    Tool {
        /// Its place in the list, from 0.
        index: usize,
    },
    /// A developer message says nothing.
    #[error("message {index} (developer) is empty")]
    EmptyDeveloper {
        /// Its place in the conversation, from 0.
        index: usize,
    },
    /// In thinking mode an answer of the current turn must show reasoning or tool calls, else the model is taught not to think.
    #[error(
        "message {index} (assistant) comes after the last user message and has neither reasoning nor tool calls; \
        give its reasoning, or turn thinking off"
    )]
    MissingReasoning {
        /// Its place in the conversation, from 0.
        index: usize,
    },
    /// A result that nothing asked for.
    #[error("message {index} (tool) is result {result} to an assistant message with {calls} tool calls")]
    UnexpectedResult {
        /// Its place in the conversation, from 0.
        index: usize,
        /// Which result it would be, from 1.
        result: usize,
        /// How many calls there were.
        calls: usize,
    },
    /// Calls without results.
    #[error(
        "message {index} (assistant) has {calls} tool calls, but {results} results follow; give one for each call, in order"
    )]
    MissingResults {
        /// The calling message's place in the conversation, from 0.
        index: usize,
        /// How many calls there are.
        calls: usize,
        /// How many results follow.
        results: usize,
    },
    /// A name would break the markup that it is written into.
    #[error("{what} {name:?} cannot be written into tool markup: it contains a quotation mark or an angle bracket")]
    Name {
        /// Tool or parameter.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// The tokenizer lacks a marker that the format cannot do without.
    #[error("the tokenizer has no token {marker:?}; this is not a tokenizer for DeepSeek-V3.2's chat format")]
    Marker {
        /// The marker.
        marker: &'static str,
    },
    /// The tokenizer failed.
    #[error("cannot encode the prompt")]
    Tokenizer(#[from] TokenizerError),
}

/// Writes a conversation down. After a user, developer or last tool message the prompt ends with `<think>` or `</think>`, and the
/// model's answer follows; after an assistant message it ends with that message's end.
///
/// # Errors
/// What is wrong with which message.
pub fn encode_chat(messages: &[Message], options: &ChatOptions) -> Result<Vec<Piece>, ChatError> {
    if messages.is_empty() {
        return Err(ChatError::Empty);
    }
    check_results(messages)?;
    let last_turn = messages.iter().rposition(Message::begins_turn);
    let mut prompt = Prompt::default();
    prompt.special(BEGIN);
    let first_system = messages.iter().position(|m| matches!(m, Message::System { .. }));
    if first_system.is_none() {
        prompt.sections(&options.tools, options.response_format.as_ref())?;
    }
    for (index, message) in messages.iter().enumerate() {
        let think = match options.thinking && Some(index) >= last_turn {
            true => THINK,
            false => END_THINK,
        };
        match message {
            Message::System { content } => {
                prompt.text(content);
                if first_system == Some(index) {
                    prompt.sections(&options.tools, options.response_format.as_ref())?;
                }
            }
            Message::User { content } => prompt.turn(think, |turn| {
                turn.text(content);
                Ok(())
            })?,
            Message::Developer { content, .. } if content.is_empty() => {
                return Err(ChatError::EmptyDeveloper { index });
            }
            Message::Developer { content, tools, response_format } => prompt.turn(think, |turn| {
                turn.sections(tools, response_format.as_ref())?;
                turn.text(template::DEVELOPER);
                turn.text(content);
                Ok(())
            })?,
            Message::Tool { content } => {
                let position = ResultPosition::of(messages, index);
                prompt.result(content, position, think);
            }
            Message::Assistant { reasoning, content, tool_calls } => {
                if options.thinking && Some(index) > last_turn {
                    let reasoning = reasoning.as_deref().unwrap_or_default();
                    if reasoning.is_empty() && tool_calls.is_empty() {
                        return Err(ChatError::MissingReasoning { index });
                    }
                    prompt.text(reasoning);
                    prompt.special(END_THINK);
                }
                prompt.text(content);
                if !tool_calls.is_empty() {
                    prompt.text(template::BLANK_LINE);
                    prompt.marked(&dsml::write_calls(tool_calls)?);
                }
                prompt.special(END);
            }
        }
    }
    Ok(prompt.pieces)
}

/// The token ids of a prompt. A marker that the tokenizer does not have as one token is an error, except for [`template::DSML`],
/// which then joins the text around it.
///
/// # Errors
/// [`ChatError::Marker`] and [`ChatError::Tokenizer`].
pub fn chat_ids(tokenizer: &Tokenizer, pieces: &[Piece]) -> Result<Vec<u32>, ChatError> {
    let mut ids = Vec::new();
    let mut text = String::new();
    for piece in pieces {
        let marker = match piece {
            Piece::Text(more) => {
                text.push_str(more);
                continue;
            }
            Piece::Special(marker) => marker,
        };
        match tokenizer.marker(marker) {
            Some(id) => {
                ids.extend(tokenizer.encode_plain(&text)?);
                text.clear();
                ids.push(id);
            }
            None if *marker == DSML => text.push_str(marker),
            None => return Err(ChatError::Marker { marker }),
        }
    }
    ids.extend(tokenizer.encode_plain(&text)?);
    Ok(ids)
}

/// The prompt as one string, for people and logs. Encoding it would let text act as markers.
#[must_use]
pub fn prompt_text(pieces: &[Piece]) -> String {
    pieces
        .iter()
        .map(|piece| match piece {
            Piece::Special(marker) => marker,
            Piece::Text(text) => text.as_str(),
        })
        .collect()
}

/// Each tool message answers a call, and each call is answered.
fn check_results(messages: &[Message]) -> Result<(), ChatError> {
    let mut index = 0;
    while let Some(message) = messages.get(index) {
        let results = messages[index + 1..].iter().take_while(|m| matches!(m, Message::Tool { .. })).count();
        let calls = match message {
            Message::Assistant { tool_calls, .. } => tool_calls.len(),
            // A result at the very beginning: it counts as its own first.
            Message::Tool { .. } => {
                return Err(ChatError::UnexpectedResult { index, result: 1, calls: 0 });
            }
            _ => 0,
        };
        if results > calls {
            return Err(ChatError::UnexpectedResult { index: index + calls + 1, result: calls + 1, calls });
        }
        // Calls at the very end are a complete transcript, not a gap.
        let is_last = index + 1 == messages.len();
        if results < calls && !is_last {
            return Err(ChatError::MissingResults { index, calls, results });
        }
        index += results + 1;
    }
    Ok(())
}

/// Where a result stands among those of its message.
#[derive(Clone, Copy)]
struct ResultPosition {
    is_first: bool,
    is_last: bool,
}

impl ResultPosition {
    /// Once every call has its result, the first and last are those at the ends of a run of tool messages.
    fn of(messages: &[Message], index: usize) -> Self {
        let is_tool = |m: Option<&Message>| matches!(m, Some(Message::Tool { .. }));
        Self {
            is_first: !is_tool(index.checked_sub(1).and_then(|i| messages.get(i))),
            is_last: !is_tool(messages.get(index + 1)),
        }
    }
}

/// A prompt being written; neighbouring texts are one piece.
#[derive(Default)]
struct Prompt {
    pieces: Vec<Piece>,
}

impl Prompt {
    fn special(&mut self, marker: &'static str) {
        self.pieces.push(Piece::Special(marker));
    }

    fn text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match self.pieces.last_mut() {
            Some(Piece::Text(last)) => last.push_str(text),
            _ => self.pieces.push(Piece::Text(text.to_owned())),
        }
    }

    fn marked(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            match piece {
                Piece::Special(marker) => self.special(marker),
                Piece::Text(text) => self.text(text),
            }
        }
    }

    /// The program's own text, in which [`DSML`], [`THINK`] and [`END_THINK`] are markers.
    fn own(&mut self, text: &str) {
        let mut rest = text;
        while let Some((at, marker)) =
            [DSML, THINK, END_THINK].into_iter().filter_map(|marker| Some((rest.find(marker)?, marker))).min()
        {
            self.text(&rest[..at]);
            self.special(marker);
            rest = &rest[at + marker.len()..];
        }
        self.text(rest);
    }

    /// Tools and response format, each after a blank line.
    fn sections(&mut self, tools: &[Value], response_format: Option<&Value>) -> Result<(), ChatError> {
        if !tools.is_empty() {
            let mut schemas = Vec::with_capacity(tools.len());
            for (index, tool) in tools.iter().enumerate() {
                let function = tool.get("function").filter(|f| f.is_object());
                schemas.push(to_json(function.ok_or(ChatError::Tool { index })?));
            }
            let (before, after) = template::TOOLS.split_once(template::TOOLS_SLOT).expect("the template has its slot");
            self.text(template::BLANK_LINE);
            self.own(before);
            self.text(&schemas.join("\n"));
            self.own(after);
        }
        if let Some(schema) = response_format {
            self.text(template::BLANK_LINE);
            self.text(template::RESPONSE_FORMAT);
            self.text(&to_json(schema));
        }
        Ok(())
    }

    fn turn(
        &mut self,
        think: &'static str,
        content: impl FnOnce(&mut Self) -> Result<(), ChatError>,
    ) -> Result<(), ChatError> {
        self.special(USER);
        content(self)?;
        self.special(ASSISTANT);
        self.special(think);
        Ok(())
    }

    fn result(&mut self, content: &str, position: ResultPosition, think: &'static str) {
        if position.is_first {
            self.text(template::RESULTS);
        }
        self.text(template::RESULT);
        self.text(content);
        self.text(template::END_RESULT);
        if position.is_last {
            self.text(template::END_RESULTS);
            self.text(template::BLANK_LINE);
            self.special(think);
        }
    }
}

#[cfg(test)]
mod tests;
