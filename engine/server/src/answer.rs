//! From tokens to what an API shows: reasoning, text, tool calls, and where a stop string ends it.
//!
//! Runs in the scheduler's thread beside the engine, so that a stop string ends the answer at the very token, whatever the network
//! does. It costs microseconds.

use std::sync::Arc;

use model::chat::template::{END_THINK, THINK};
use model::detokenise::Detokeniser;
use model::stop::StopMatcher;
use model::tokenizer::Tokenizer;

use crate::tool_stream::{Part, ToolStream};

/// What kind of text is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A continuation of plain text.
    Plain,
    /// An assistant's turn.
    Turn {
        /// The prompt ended with `<think>`: reasoning comes first.
        thinking: bool,
        /// Which tool calls may come.
        calls: Calls,
    },
}

/// How many tool calls may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// None: their markup is text.
    None,
    /// The end of the first one is the answer's.
    One,
    /// Any number.
    Several,
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Reasoning.
    Reasoning(String),
    /// The answer's text.
    Text(String),
    /// A tool call begins.
    Call {
        /// Counted from 0.
        index: usize,
        /// The tool.
        name: String,
    },
    /// More of a tool call's arguments.
    Arguments {
        /// The call.
        index: usize,
        /// A part of a JSON object.
        json: String,
    },
}

/// Puts one answer together.
#[derive(Debug)]
pub struct Answer {
    tokenizer: Arc<Tokenizer>,
    detokeniser: Detokeniser,
    stop_tokens: Vec<u32>,
    stops: StopMatcher,
    tools: Option<ToolStream>,
    plain: bool,
    reasoning: bool,
    reasoning_tokens: usize,
    calls: usize,
    /// The tool calls are complete: nothing may follow.
    over: bool,
    stopped: Option<usize>,
    end_think: Option<u32>,
}

impl Answer {
    /// A new answer. `stops` has no empty string.
    pub fn new(tokenizer: Arc<Tokenizer>, shape: Shape, stop_tokens: Vec<u32>, stops: &[String]) -> Answer {
        let reasoning = matches!(shape, Shape::Turn { thinking: true, .. });
        let tools = match shape {
            Shape::Plain | Shape::Turn { calls: Calls::None, .. } => None,
            Shape::Turn { calls, .. } => Some(ToolStream::new(calls == Calls::One)),
        };
        Answer {
            detokeniser: tokenizer.detokeniser(),
            end_think: tokenizer.marker(END_THINK),
            tokenizer,
            stop_tokens,
            stops: StopMatcher::new(stops).expect("empty stop strings are refused with the request"),
            tools,
            plain: shape == Shape::Plain,
            reasoning,
            reasoning_tokens: 0,
            calls: 0,
            over: false,
            stopped: None,
        }
    }

    /// Takes a token; returns what is certain now.
    pub fn push(&mut self, id: u32) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if self.reasoning {
            self.reasoning_tokens += 1;
        }
        if self.is_over() || self.stop_tokens.contains(&id) {
            return pieces;
        }
        if !self.tokenizer.is_added(id) {
            let text = self.detokeniser.push(id);
            self.pass(&text, &mut pieces);
            return pieces;
        }
        let rest = self.detokeniser.finish();
        self.pass(rest, &mut pieces);
        if self.reasoning && self.end_think == Some(id) {
            self.end_reasoning(&mut pieces);
        } else if self.is_text(id) {
            let text = String::from_utf8_lossy(self.tokenizer.token_bytes(id)).into_owned();
            self.pass(&text, &mut pieces);
        }
        pieces
    }

    /// The answer is over: what was held back. `complete`: the model ended it.
    pub fn finish(&mut self, complete: bool) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if self.is_over() {
            return pieces;
        }
        let rest = self.detokeniser.finish();
        self.pass(rest, &mut pieces);
        if self.is_over() {
            return pieces;
        }
        if self.reasoning {
            let held = self.stops.finish();
            add(&mut pieces, Piece::Reasoning(held));
            return pieces;
        }
        let parts = self.tools.as_mut().map(|tools| tools.finish(complete)).unwrap_or_default();
        self.parts(parts, &mut pieces);
        if !self.is_over() {
            let held = self.stops.finish();
            add(&mut pieces, Piece::Text(held));
        }
        pieces
    }

    /// Whether a stop string, or the end of the tool calls, ended the answer.
    pub fn is_over(&self) -> bool {
        self.over || self.stopped.is_some()
    }

    /// Whether the next token is still reasoning.
    pub fn is_reasoning(&self) -> bool {
        self.reasoning
    }

    /// Tokens of the reasoning so far, its end included.
    pub fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// Tool calls begun so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// The stop string that ended the answer, by its place in the list.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    /// Markers that are no text: special tokens, roles, and in a turn the think marks. Those of tool calls are text, or the calls could
    /// not be read.
    fn is_text(&self, id: u32) -> bool {
        if self.tokenizer.is_special(id) {
            return false;
        }
        let bytes = self.tokenizer.token_bytes(id);
        let think = !self.plain && (bytes == THINK.as_bytes() || bytes == END_THINK.as_bytes());
        !think && !bytes.starts_with("<｜".as_bytes())
    }

    fn end_reasoning(&mut self, pieces: &mut Vec<Piece>) {
        // Held-back text cannot become a stop string across the border.
        let held = self.stops.finish();
        add(pieces, Piece::Reasoning(held));
        self.reasoning = false;
    }

    fn pass(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        if text.is_empty() || self.is_over() {
            return;
        }
        if self.reasoning {
            let passed = self.stops.push(text);
            self.stopped = passed.stopped;
            return add(pieces, Piece::Reasoning(passed.text));
        }
        match &mut self.tools {
            None => self.text(text, pieces),
            Some(tools) => {
                let parts = tools.push(text);
                self.parts(parts, pieces);
            }
        }
    }

    fn parts(&mut self, parts: Vec<Part>, pieces: &mut Vec<Piece>) {
        for part in parts {
            if self.is_over() {
                return;
            }
            match part {
                Part::Text(text) => self.text(&text, pieces),
                Part::Call { name } => {
                    let held = self.stops.finish();
                    add(pieces, Piece::Text(held));
                    pieces.push(Piece::Call { index: self.calls, name });
                    self.calls += 1;
                }
                Part::Arguments(json) => add(pieces, Piece::Arguments { index: self.calls.saturating_sub(1), json }),
            }
        }
        if self.tools.as_ref().is_some_and(ToolStream::is_over) {
            self.over = true;
        }
    }

    fn text(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        let passed = self.stops.push(text);
        self.stopped = passed.stopped;
        add(pieces, Piece::Text(passed.text));
    }
}

/// Adds a piece unless it is empty, to the last one if that is of the same kind.
fn add(pieces: &mut Vec<Piece>, piece: Piece) {
    let more = match &piece {
        Piece::Reasoning(text) | Piece::Text(text) | Piece::Arguments { json: text, .. } => text,
        Piece::Call { .. } => return pieces.push(piece),
    };
    if more.is_empty() {
        return;
    }
    match (pieces.last_mut(), &piece) {
        (Some(Piece::Reasoning(last)), Piece::Reasoning(more)) | (Some(Piece::Text(last)), Piece::Text(more)) => {
            last.push_str(more);
        }
        (Some(Piece::Arguments { index: a, json: last }), Piece::Arguments { index: b, json: more }) if a == b => {
            last.push_str(more);
        }
        _ => pieces.push(piece),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::duckling;

    fn answer(shape: Shape, stops: &[&str]) -> Answer {
        let stops: Vec<String> = stops.iter().map(|&s| s.to_owned()).collect();
        Answer::new(duckling(), shape, vec![1], &stops)
    }

    /// All pieces, joined where they are of one kind.
    fn all(answer: &mut Answer, ids: &[u32]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for &id in ids {
            answer.push(id).into_iter().for_each(|piece| add(&mut pieces, piece));
        }
        answer.finish(true).into_iter().for_each(|piece| add(&mut pieces, piece));
        pieces
    }

    fn ids(text: &str) -> Vec<u32> {
        duckling().encode(text).expect("any text can be encoded")
    }

    const TURN: Shape = Shape::Turn { thinking: false, calls: Calls::None };
    const TOOLS: Shape = Shape::Turn { thinking: false, calls: Calls::Several };
    const THINKING: Shape = Shape::Turn { thinking: true, calls: Calls::Several };

    #[test]
    fn reasoning_ends_at_its_marker() {
        let mut answer = answer(THINKING, &[]);
        let pieces = all(&mut answer, &ids("hm</think>yes"));
        assert_eq!(pieces, [Piece::Reasoning("hm".into()), Piece::Text("yes".into())]);
        assert_eq!(answer.reasoning_tokens(), ids("hm</think>").len());
    }

    #[test]
    fn a_stop_string_ends_the_answer_before_it_across_tokens() {
        let mut answer = answer(TURN, &["lo w"]);
        assert_eq!(all(&mut answer, &ids("hello world")), [Piece::Text("hel".into())]);
        assert!(answer.is_over());
    }

    #[test]
    fn markers_and_stop_tokens_are_no_text() {
        let mut answer = answer(TURN, &[]);
        let mut tokens = ids("a<think></think><｜User｜>b");
        tokens.push(1);
        assert_eq!(all(&mut answer, &tokens), [Piece::Text("ab".into())]);
    }

    #[test]
    fn plain_text_shows_think_marks_as_a_reader_of_tokens_would() {
        // Duckling flags them as special, so that not even plain text has them; others do not.
        let mut answer = answer(Shape::Plain, &[]);
        assert_eq!(all(&mut answer, &ids("a</think>b")), [Piece::Text("ab".into())]);
    }

    #[test]
    fn calls_follow_the_text_and_end_the_answer() {
        let text = "Well\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">x</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"g\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>";
        // A stop string that occurs in the markup only stops nothing.
        let mut answer = answer(TOOLS, &["invoke"]);
        let pieces = all(&mut answer, &ids(text));
        assert_eq!(
            pieces,
            [
                Piece::Text("Well".into()),
                Piece::Call { index: 0, name: "f".into() },
                Piece::Arguments { index: 0, json: r#"{"a": "x"}"#.into() },
                Piece::Call { index: 1, name: "g".into() },
                Piece::Arguments { index: 1, json: "{}".into() },
            ]
        );
        assert!(answer.is_over() && answer.stopped().is_none());
    }

    #[test]
    fn without_tools_markup_is_text() {
        let mut answer = answer(TURN, &[]);
        let pieces = all(&mut answer, &ids("<｜DSML｜function_calls>"));
        assert_eq!(pieces, [Piece::Text("<｜DSML｜function_calls>".into())]);
    }
}
