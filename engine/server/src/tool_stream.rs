//! Tool calls while they are being written: the assistant's text, in pieces cut anywhere, becomes text and calls whose arguments are
//! JSON in the making.
//!
//! The markup is [`model::chat`]'s; there a finished text is read, strictly. Here nothing may wait for an end: what is certain comes
//! out at once, and only what may still become a tag is held back. A mistake in the markup ends the reading: what was begun is closed
//! so that it is JSON, and the rest is dropped, for it was not meant for anyone's eyes.

use std::fmt::Write;

use model::chat::dsml::{CALLS, END_CALLS, END_INVOKE, END_PARAMETER, INVOKE, PARAMETER, STRING};

use crate::json_stream::{JsonStream, quoted};

const BLANK_LINE: &str = "\n\n";
/// Bytes of a tool's or parameter's name at most.
const LONGEST_NAME: usize = 1024;

/// A part of an answer with tool calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text for the reader.
    Text(String),
    /// A call begins; calls are counted from 0.
    Call {
        /// The tool.
        name: String,
    },
    /// More of the latest call's arguments: all of them together are one JSON object.
    Arguments(String),
}

/// Reads an answer.
#[derive(Debug, Default)]
pub struct ToolStream {
    state: State,
    /// Text not decided on yet.
    held: String,
    /// The value that is being read, if it is an object or a list.
    json: JsonStream,
    /// The end of the first call is the end.
    single: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    /// Between calls.
    Calls,
    /// Between the parameters of a call.
    Parameters { any: bool },
    /// In a value: whether it is text, and how much of it has come out.
    Value(Value),
    /// After the calls, or after a mistake.
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// Text; goes out escaped.
    String,
    /// An object or a list; goes out as it comes, made sound.
    Json,
    /// Not known yet.
    Unknown,
}

impl ToolStream {
    /// For an answer of which one call at most is wanted, if `single`.
    pub fn new(single: bool) -> ToolStream {
        ToolStream { single, ..ToolStream::default() }
    }

    /// Whether the calls are complete, or broken off: nothing that follows matters.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Takes more text.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }

    /// The answer is over: what was held back. If it is `complete` (the model ended it), the arguments of an open call are closed so that
    /// they are JSON. Arguments that merely stop are left open, since whoever reads them is told that the answer was too long.
    pub fn finish(&mut self, complete: bool) -> Vec<Part> {
        let held = std::mem::take(&mut self.held);
        let state = std::mem::replace(&mut self.state, State::Over);
        // In a value, the beginning of a tag that will not come any more is left out.
        let end = match state {
            State::Text if !held.is_empty() => return vec![Part::Text(held)],
            State::Parameters { any } if complete => if any { "}" } else { "{}" }.to_owned(),
            State::Value(Value::String) if complete => "\"}".to_owned(),
            State::Value(Value::Json) if complete => self.json.close() + "}",
            State::Value(Value::Unknown) if complete => {
                scalar(&held[..held.len() - held_back(&held, END_PARAMETER)]) + "}"
            }
            _ => return Vec::new(),
        };
        vec![Part::Arguments(end)]
    }

    /// Decides on the beginning of what is held; false if more text is needed.
    fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        match self.state {
            State::Text => self.text(parts),
            State::Calls => self.between_calls(parts),
            State::Parameters { any } => self.between_parameters(any, parts),
            State::Value(value) => self.value(value, parts),
            State::Over => {
                self.held.clear();
                false
            }
        }
    }

    fn text(&mut self, parts: &mut Vec<Part>) -> bool {
        if let Some(at) = self.held.find(CALLS) {
            // The blank line before the calls belongs to them.
            let before = &self.held[..at];
            let text = before.strip_suffix(BLANK_LINE).unwrap_or(before);
            if !text.is_empty() {
                parts.push(Part::Text(text.to_owned()));
            }
            self.held.drain(..at + CALLS.len());
            self.state = State::Calls;
            return true;
        }
        let opening = [BLANK_LINE, CALLS].concat();
        let keep = held_back(&self.held, &opening).max(held_back(&self.held, CALLS));
        let certain = self.held.len() - keep;
        if certain > 0 {
            parts.push(Part::Text(self.held.drain(..certain).collect()));
        }
        false
    }

    fn between_calls(&mut self, parts: &mut Vec<Part>) -> bool {
        self.skip_space();
        if self.take(END_CALLS) {
            self.state = State::Over;
            return true;
        }
        let Some(rest) = self.held.strip_prefix(INVOKE) else {
            return self.wait_or_break(&[END_CALLS, INVOKE], parts);
        };
        let Some(end) = rest.find("\">") else { return self.wait_for_name(rest.len(), parts) };
        let name = rest[..end].to_owned();
        self.held.drain(..INVOKE.len() + end + 2);
        parts.push(Part::Call { name });
        self.state = State::Parameters { any: false };
        true
    }

    fn between_parameters(&mut self, any: bool, parts: &mut Vec<Part>) -> bool {
        self.skip_space();
        if self.take(END_INVOKE) {
            parts.push(Part::Arguments(if any { "}" } else { "{}" }.to_owned()));
            self.state = if self.single { State::Over } else { State::Calls };
            return true;
        }
        let Some(rest) = self.held.strip_prefix(PARAMETER) else {
            return self.wait_or_break(&[END_INVOKE, PARAMETER], parts);
        };
        let Some(end) = rest.find(STRING) else { return self.wait_for_name(rest.len(), parts) };
        let after = &rest[end + STRING.len()..];
        let (value, kind) = if after.starts_with("true\">") {
            (Value::String, "true\">")
        } else if after.starts_with("false\">") {
            (Value::Unknown, "false\">")
        } else if "true\">".starts_with(after) || "false\">".starts_with(after) {
            return false;
        } else {
            return self.break_off(parts);
        };
        let mut begin = if any { ", ".to_owned() } else { "{".to_owned() };
        let _ = write!(begin, "{}: ", quoted(&rest[..end]));
        if value == Value::String {
            begin.push('"');
        }
        self.held.drain(..PARAMETER.len() + end + STRING.len() + kind.len());
        parts.push(Part::Arguments(begin));
        self.state = State::Value(value);
        true
    }

    fn value(&mut self, value: Value, parts: &mut Vec<Part>) -> bool {
        if value == Value::Unknown {
            // A list or an object can be long and goes out as it comes. A number or a word is short and is looked at whole.
            match self.held.trim_start().chars().next() {
                Some('{' | '[') => {
                    self.skip_space();
                    self.json = JsonStream::default();
                    self.state = State::Value(Value::Json);
                    return true;
                }
                None => return false,
                Some(_) => {}
            }
            let Some(end) = self.held.find(END_PARAMETER) else { return false };
            let text: String = self.held.drain(..end).collect();
            parts.push(Part::Arguments(scalar(&text)));
            self.held.drain(..END_PARAMETER.len());
            self.state = State::Parameters { any: true };
            return true;
        }
        let end = self.held.find(END_PARAMETER);
        let certain = end.unwrap_or_else(|| self.held.len() - held_back(&self.held, END_PARAMETER));
        let text: String = self.held.drain(..certain).collect();
        let mut out = if value == Value::String { escaped(&text) } else { self.json.push(&text) };
        if end.is_some() {
            out += &if value == Value::String { "\"".to_owned() } else { self.json.close() };
            self.held.drain(..END_PARAMETER.len());
            self.state = State::Parameters { any: true };
        }
        if !out.is_empty() {
            parts.push(Part::Arguments(out));
        }
        end.is_some()
    }

    fn skip_space(&mut self) {
        let space = self.held.len() - self.held.trim_start().len();
        self.held.drain(..space);
    }

    fn take(&mut self, tag: &str) -> bool {
        let found = self.held.starts_with(tag);
        if found {
            self.held.drain(..tag.len());
        }
        found
    }

    fn wait_for_name(&mut self, length: usize, parts: &mut Vec<Part>) -> bool {
        if length > LONGEST_NAME { self.break_off(parts) } else { false }
    }

    /// Waits while one of the tags can still come.
    fn wait_or_break(&mut self, tags: &[&str], parts: &mut Vec<Part>) -> bool {
        if tags.iter().any(|tag| tag.starts_with(self.held.as_str())) { false } else { self.break_off(parts) }
    }

    fn break_off(&mut self, parts: &mut Vec<Part>) -> bool {
        if let State::Parameters { any } = self.state {
            parts.push(Part::Arguments(if any { "}" } else { "{}" }.to_owned()));
        }
        self.state = State::Over;
        self.held.clear();
        false
    }
}

/// How many bytes at the end of `text` `tag` could begin with.
fn held_back(text: &str, tag: &str) -> usize {
    let most = text.len().min(tag.len().saturating_sub(1));
    (1..=most)
        .rev()
        .find(|&n| tag.is_char_boundary(n) && text.is_char_boundary(text.len() - n) && text.ends_with(&tag[..n]))
        .unwrap_or(0)
}

/// A number or a word; what JSON does not know becomes a string.
fn scalar(text: &str) -> String {
    let is_json = serde_json::from_str::<serde_json::Value>(text).is_ok();
    if is_json { text.trim().to_owned() } else { quoted(text) }
}

/// As within the quotation marks of a JSON string.
fn escaped(text: &str) -> String {
    let quoted = quoted(text);
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TWO_CALLS: &str = "Looking it up.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n\
        <｜DSML｜parameter name=\"city\" string=\"true\">Ly\"on\n</b></｜DSML｜parameter>\n\
        <｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n\
        <｜DSML｜parameter name=\"opts\" string=\"false\">{\"a\": [1, \"<\"]}</｜DSML｜parameter>\n\
        </｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n\n</｜DSML｜invoke>\n</｜DSML｜function_calls>";

    /// Text, and each call with its arguments.
    fn read(pieces: &[&str]) -> (String, Vec<(String, String)>) {
        let mut stream = ToolStream::default();
        let mut parts: Vec<Part> = pieces.iter().flat_map(|piece| stream.push(piece)).collect();
        parts.extend(stream.finish(true));
        let (mut text, mut calls) = (String::new(), Vec::<(String, String)>::new());
        for part in parts {
            match part {
                Part::Text(more) => text += &more,
                Part::Call { name } => calls.push((name, String::new())),
                Part::Arguments(more) => calls.last_mut().expect("a call comes first").1 += &more,
            }
        }
        (text, calls)
    }

    fn expected() -> (String, Vec<(String, String)>) {
        let first = r#"{"city": "Ly\"on\n</b>", "days": 3, "opts": {"a": [1, "<"]}}"#;
        ("Looking it up.".into(), vec![("weather".into(), first.into()), ("now".into(), "{}".into())])
    }

    #[test]
    fn two_calls_come_out_the_same_split_at_every_character() {
        for (at, _) in TWO_CALLS.char_indices() {
            assert_eq!(read(&[&TWO_CALLS[..at], &TWO_CALLS[at..]]), expected(), "split at {at}");
        }
    }

    #[test]
    fn the_strict_reader_agrees() {
        let strict = model::chat::parse_completion(TWO_CALLS, false).expect("it is well formed");
        let (text, calls) = read(&[TWO_CALLS]);
        assert_eq!(text, strict.content);
        for (call, strict) in calls.iter().zip(&strict.tool_calls) {
            assert_eq!((&call.0, &call.1), (&strict.name, &strict.arguments_json()));
        }
    }

    #[test]
    fn a_string_streams_before_it_ends() {
        let mut stream = ToolStream::default();
        stream.push(
            "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"w\">\n<｜DSML｜parameter name=\"a\" string=\"true\">",
        );
        assert_eq!(stream.push("long te"), [Part::Arguments("long te".into())]);
        // It could be the end tag.
        assert_eq!(stream.push("xt</"), [Part::Arguments("xt".into())]);
        assert_eq!(stream.push("b>"), [Part::Arguments("</b>".into())]);
    }

    #[test]
    fn an_object_streams_before_it_ends() {
        let mut stream = ToolStream::default();
        stream.push(&opening(false));
        assert_eq!(stream.push("[1, 2"), [Part::Arguments("[1, ".into())]);
    }

    /// Up to the value of a first parameter.
    fn opening(string: bool) -> String {
        format!("<｜DSML｜function_calls><｜DSML｜invoke name=\"w\"><｜DSML｜parameter name=\"a\" string=\"{string}\">")
    }

    #[test]
    fn arguments_that_the_model_ends_too_soon_are_closed() {
        for (string, value, expected) in [
            (true, "x \"y", r#"{"a": "x \"y"}"#),
            (true, "x</｜DSML｜para", r#"{"a": "x"}"#),
            (false, "[{\"b\": [1, ", r#"{"a": [{"b": [1]}]}"#),
            (false, "{\"b\": \"c</｜DSML｜", r#"{"a": {"b": "c"}}"#),
            (false, "12", r#"{"a": 12}"#),
            (false, "", r#"{"a": ""}"#),
            (false, "[1, 2}</｜DSML｜parameter>", r#"{"a": [1, 2]}"#),
            (false, "12</｜DSML｜parameter>\n<｜DSML｜param", r#"{"a": 12}"#),
        ] {
            assert_eq!(read(&[&opening(string), value]).1, [("w".to_owned(), expected.to_owned())], "{value}");
        }
        assert_eq!(read(&["<｜DSML｜function_calls><｜DSML｜invoke name=\"w\">"]).1, [("w".into(), "{}".into())]);
    }

    #[test]
    fn arguments_that_are_cut_off_stay_open() {
        let mut stream = ToolStream::default();
        stream.push(&opening(true));
        assert_eq!(stream.push("ab<"), [Part::Arguments("ab".into())]);
        assert_eq!(stream.finish(false), []);
        let mut stream = ToolStream::default();
        stream.push(&opening(false));
        assert_eq!(stream.push("[1, "), [Part::Arguments("[1".into())]);
        assert_eq!(stream.finish(false), []);
    }

    #[test]
    fn where_one_call_is_wanted_its_end_is_the_end() {
        let mut stream = ToolStream::new(true);
        let parts = stream.push(TWO_CALLS);
        assert_eq!(parts.iter().filter(|part| matches!(part, Part::Call { .. })).count(), 1);
        assert!(stream.is_over());
    }

    #[test]
    fn text_that_only_looks_like_a_tag_comes_out() {
        for text in ["a\n\n", "a < b", "<｜DSML｜", "\n\n<｜DSML｜function_cal"] {
            assert_eq!(read(&[text]), (text.to_owned(), Vec::new()));
        }
    }

    #[test]
    fn a_word_that_is_no_json_becomes_a_string() {
        let text = "<｜DSML｜function_calls><｜DSML｜invoke name=\"w\"><｜DSML｜parameter name=\"a\" string=\"false\">True</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>";
        assert_eq!(read(&[text]).1, [("w".to_owned(), r#"{"a": "True"}"#.to_owned())]);
    }

    #[test]
    fn wrong_markup_leaves_json_and_leaks_no_mark() {
        let text = "ok<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"w\">\n<｜DSML｜parameter name=\"a\" string=\"true\">x</｜DSML｜parameter>oops</｜DSML｜invoke></｜DSML｜function_calls>";
        let (text, calls) = read(&[text]);
        assert_eq!((text.as_str(), calls), ("ok", vec![("w".to_owned(), r#"{"a": "x"}"#.to_owned())]));
    }

    #[test]
    fn text_after_the_calls_is_dropped() {
        let (text, calls) = read(&[TWO_CALLS, "\n</｜DSML｜function_calls> and"]);
        assert_eq!((text, calls), expected());
    }

    proptest! {
        #[test]
        fn cuts_do_not_matter(cuts in prop::collection::vec(0usize..TWO_CALLS.len(), 0..12)) {
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|&at| TWO_CALLS.is_char_boundary(at)).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut last = 0;
            for at in cuts {
                pieces.push(&TWO_CALLS[last..at]);
                last = at;
            }
            pieces.push(&TWO_CALLS[last..]);
            prop_assert_eq!(read(&pieces), expected());
        }

        #[test]
        fn any_text_without_a_tag_passes_unchanged(text in "[a-z<｜D\\n/>]{0,40}") {
            prop_assume!(!text.contains(CALLS));
            prop_assert_eq!(read(&[&text]).0, text);
        }

        #[test]
        fn every_calls_arguments_are_json(begin in any::<bool>(), pieces in prop::collection::vec("(<｜DSML｜(function_calls>|invoke name=\"|parameter name=\")|</｜DSML｜(invoke>|parameter>|)|x\">|\" string=\"(true|false)\">|[a-z\n\\[{\\]}:,\"1\\\\]{0,3}){0,4}", 0..8)) {
            let opening = if begin { opening(false) } else { String::new() };
            let pieces: Vec<&str> = [opening.as_str()].into_iter().chain(pieces.iter().map(String::as_str)).collect();
            for (_, arguments) in read(&pieces).1 {
                let found = serde_json::from_str::<serde_json::Value>(&arguments);
                prop_assert!(found.is_ok_and(|found| found.is_object()), "{:?} became {}", pieces, arguments);
            }
        }
    }
}
