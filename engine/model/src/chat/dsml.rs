//! The tool markup: calls as the model writes them.
//!
//! ```text
//! <｜DSML｜function_calls>
//! <｜DSML｜invoke name="weather">
//! <｜DSML｜parameter name="city" string="true">Lyon</｜DSML｜parameter>
//! <｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>
//! </｜DSML｜invoke>
//! </｜DSML｜function_calls>
//! ```
//!
//! Strings are written as they are, without escapes; everything else is JSON. So a string that contains the end tag of a parameter
//! cannot be told from one that ends there, in this form; nothing can be done about that here.

use serde_json::{Map, Value};

use super::completion::CompletionError;
use super::json::to_json;
use super::template::DSML;
use super::{ChatError, Piece, ToolCall};

/// What opens a block of calls.
pub const CALLS: &str = "<｜DSML｜function_calls>";
/// What closes it.
pub const END_CALLS: &str = "</｜DSML｜function_calls>";
/// What opens a call, up to the tool's name.
pub const INVOKE: &str = "<｜DSML｜invoke name=\"";
/// What closes it.
pub const END_INVOKE: &str = "</｜DSML｜invoke>";
/// What opens a parameter, up to its name.
pub const PARAMETER: &str = "<｜DSML｜parameter name=\"";
/// What lies between a parameter's name and whether it is a string.
pub const STRING: &str = "\" string=\"";
/// What closes a parameter.
pub const END_PARAMETER: &str = "</｜DSML｜parameter>";

/// Writes a block of calls.
pub(super) fn write_calls(calls: &[ToolCall]) -> Result<Vec<Piece>, ChatError> {
    let mut out = Writer::default();
    out.tag("<", "function_calls>\n");
    for call in calls {
        let name = checked_name("tool name", &call.name)?;
        out.tag("<", &format!("invoke name=\"{name}\">\n"));
        for (name, value) in &call.arguments {
            let name = checked_name("parameter name", name)?;
            let (is_string, value) = match value {
                Value::String(text) => (true, text.clone()),
                other => (false, to_json(other)),
            };
            out.tag("<", &format!("parameter name=\"{name}\" string=\"{is_string}\">{value}"));
            out.tag("</", "parameter>\n");
        }
        // The release joins parameters with line breaks: none of them leaves an empty line.
        if call.arguments.is_empty() {
            out.text.push('\n');
        }
        out.tag("</", "invoke>\n");
    }
    out.tag("</", "function_calls>");
    Ok(out.finish())
}

fn checked_name<'a>(what: &'static str, name: &'a str) -> Result<&'a str, ChatError> {
    if name.contains(['"', '<', '>']) {
        return Err(ChatError::Name { what, name: name.to_owned() });
    }
    Ok(name)
}

#[derive(Default)]
struct Writer {
    pieces: Vec<Piece>,
    text: String,
}

impl Writer {
    fn tag(&mut self, open: &str, rest: &str) {
        self.text.push_str(open);
        self.pieces.push(Piece::Text(std::mem::take(&mut self.text)));
        self.pieces.push(Piece::Special(DSML));
        self.text.push_str(rest);
    }

    fn finish(mut self) -> Vec<Piece> {
        self.pieces.push(Piece::Text(self.text));
        self.pieces
    }
}

/// Reads a block of calls that starts at byte `start` of `text`. Returns the calls and where the block ends. White space between
/// tags is free, everything else is as it is written above.
pub(super) fn read_calls(text: &str, start: usize) -> Result<(Vec<ToolCall>, usize), CompletionError> {
    let mut reader = Reader { text, at: start };
    reader.expect(CALLS)?;
    let mut calls = Vec::new();
    loop {
        reader.skip_space();
        if reader.take(END_CALLS) {
            return Ok((calls, reader.at));
        }
        calls.push(reader.call()?);
    }
}

struct Reader<'a> {
    text: &'a str,
    /// Always at a border of characters: it moves over whole matched strings.
    at: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn take(&mut self, tag: &str) -> bool {
        let found = self.rest().starts_with(tag);
        if found {
            self.at += tag.len();
        }
        found
    }

    fn expect(&mut self, tag: &'static str) -> Result<(), CompletionError> {
        if self.take(tag) {
            return Ok(());
        }
        // A text that merely ends too soon was cut off, which is another matter than wrong markup.
        if tag.starts_with(self.rest()) {
            return Err(CompletionError::CutOff { expected: tag });
        }
        Err(CompletionError::Markup { at: self.at, expected: tag, found: self.rest().chars().take(24).collect() })
    }

    fn until(&mut self, tag: &'static str) -> Result<&'a str, CompletionError> {
        let rest = self.rest();
        let length = rest.find(tag).ok_or(CompletionError::CutOff { expected: tag })?;
        self.at += length + tag.len();
        Ok(&rest[..length])
    }

    fn call(&mut self) -> Result<ToolCall, CompletionError> {
        self.expect(INVOKE)?;
        let name = self.until("\">")?.to_owned();
        let mut arguments = Map::new();
        loop {
            self.skip_space();
            if self.take(END_INVOKE) {
                return Ok(ToolCall { name, arguments });
            }
            let (key, value) = self.parameter(&name)?;
            if arguments.contains_key(&key) {
                return Err(CompletionError::Duplicate { tool: name, parameter: key });
            }
            arguments.insert(key, value);
        }
    }

    fn parameter(&mut self, tool: &str) -> Result<(String, Value), CompletionError> {
        self.expect(PARAMETER)?;
        let key = self.until(STRING)?.to_owned();
        let is_string = match self.take("true\">") {
            true => true,
            false => {
                self.expect("false\">")?;
                false
            }
        };
        let text = self.until(END_PARAMETER)?;
        if is_string {
            return Ok((key, Value::String(text.to_owned())));
        }
        match serde_json::from_str(text) {
            Ok(value) => Ok((key, value)),
            Err(source) => Err(CompletionError::Value { tool: tool.to_owned(), parameter: key, source }),
        }
    }
}
