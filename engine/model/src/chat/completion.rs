//! What the assistant wrote, taken apart.

use super::template::{BEGIN, DSML, END, END_THINK, THINK};
use super::{ToolCall, dsml, template};

/// An assistant's text in its parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Completion {
    /// The reasoning; `None` in chat mode.
    pub reasoning: Option<String>,
    /// The answer.
    pub content: String,
    /// The tool calls, in order.
    pub tool_calls: Vec<ToolCall>,
}

/// Why an assistant's text could not be taken apart. A caller can still show the text as it is.
#[derive(Debug, thiserror::Error)]
pub enum CompletionError {
    /// The text ends within tool markup.
    #[error("the text ends within a tool call, before {expected:?}")]
    CutOff {
        /// What had to come.
        expected: &'static str,
    },
    /// The markup is wrong.
    #[error("tool markup at byte {at}: expected {expected:?}, found {found:?}")]
    Markup {
        /// Offset into the text in bytes.
        at: usize,
        /// What had to come.
        expected: &'static str,
        /// What came, shortened.
        found: String,
    },
    /// Two parameters of one call have the same name.
    #[error("tool call {tool:?} has parameter {parameter:?} twice")]
    Duplicate {
        /// The tool.
        tool: String,
        /// The parameter.
        parameter: String,
    },
    /// A parameter that is not a string is not JSON either.
    #[error("tool call {tool:?}: the value of parameter {parameter:?} is not JSON")]
    Value {
        /// The tool.
        tool: String,
        /// The parameter.
        parameter: String,
        /// The parser's complaint.
        source: serde_json::Error,
    },
    /// Tool calls where there should still be reasoning.
    #[error("tool calls at byte {at}, before the reasoning was closed with </think>")]
    CallsInReasoning {
        /// Offset into the text in bytes.
        at: usize,
    },
    /// More text after the tool calls.
    #[error("text after the tool calls, at byte {at}")]
    TextAfterCalls {
        /// Offset into the text in bytes.
        at: usize,
    },
    /// A marker in the middle of the answer or the reasoning.
    #[error("marker {marker} at byte {at}, inside the text")]
    Marker {
        /// The marker.
        marker: &'static str,
        /// Offset into the text in bytes.
        at: usize,
    },
}

/// Takes an assistant's text apart: what follows the prompt of [`super::encode_chat`], with or without the end marker.
///
/// An answer that was cut short is no error as long as it was not cut within a tool call: without `</think>`, in thinking mode, all
/// of it is reasoning.
///
/// # Errors
/// What is wrong where. Never panics, whatever the model wrote.
pub fn parse_completion(text: &str, thinking: bool) -> Result<Completion, CompletionError> {
    let body = text.strip_suffix(END).unwrap_or(text);
    let calls_at = body.find(dsml::CALLS);
    let (reasoning, answer_at) = match thinking {
        false => (None, 0),
        true => {
            let end = body.find(END_THINK);
            if let Some(at) = calls_at
                && end.is_none_or(|end| at < end)
            {
                return Err(CompletionError::CallsInReasoning { at });
            }
            let end_of_reasoning = end.unwrap_or(body.len());
            let reasoning = plain(body, 0, end_of_reasoning)?;
            let after = end.map_or(body.len(), |end| end + END_THINK.len());
            (Some(reasoning.to_owned()), after)
        }
    };
    let Some(calls_at) = calls_at else {
        let content = plain(body, answer_at, body.len())?.to_owned();
        return Ok(Completion { reasoning, content, tool_calls: Vec::new() });
    };
    // The blank line before the calls belongs to them.
    let before = &body[answer_at..calls_at];
    let content_length = before.strip_suffix(template::BLANK_LINE).unwrap_or(before).len();
    let content = plain(body, answer_at, answer_at + content_length)?.to_owned();
    let (tool_calls, end) = dsml::read_calls(body, calls_at)?;
    if !body[end..].trim().is_empty() {
        return Err(CompletionError::TextAfterCalls { at: end });
    }
    Ok(Completion { reasoning, content, tool_calls })
}

/// `text[start..end]`, unless there is a marker in it.
fn plain(text: &str, start: usize, end: usize) -> Result<&str, CompletionError> {
    let part = &text[start..end];
    for marker in [BEGIN, END, THINK, END_THINK, DSML] {
        if let Some(at) = part.find(marker) {
            return Err(CompletionError::Marker { marker, at: start + at });
        }
    }
    Ok(part)
}
