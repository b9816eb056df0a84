//! JSON as a model writes it, made sound on the way: what comes out is the beginning of one JSON value, and [`JsonStream::close`] ends it.
//!
//! What is certain comes out at once and unchanged. A word that JSON does not know becomes a string, a line end within a string is
//! escaped, a comma with nothing behind it is left out; after a mistake in the structure the rest is dropped.

/// Nesting at most; readers of JSON have a limit of their own (serde_json: 128).
const DEEPEST: usize = 100;
/// Characters of a number or word at most.
const LONGEST_WORD: usize = 400;

/// What may come next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Next {
    /// A value.
    #[default]
    Value,
    /// The first of a list or object, or its end.
    First,
    /// The next name of an object.
    Name,
    /// The colon behind a name.
    Colon,
    /// A comma, or the end of the list or object.
    Comma,
    /// More of a string; whether it is a name.
    Text { name: bool },
    /// More of a number or word.
    Word,
    /// Nothing: the value is complete, or there was a mistake.
    Nothing,
}

/// Passes one value on.
#[derive(Debug, Default)]
pub struct JsonStream {
    next: Next,
    /// What ends the lists and objects that are open.
    open: Vec<char>,
    /// A comma and white space, an escape or a word that is not decided on yet.
    held: String,
}

impl JsonStream {
    /// Takes more; returns what is certain.
    pub fn push(&mut self, text: &str) -> String {
        let mut out = String::new();
        text.chars().for_each(|c| self.take(c, &mut out));
        out
    }

    /// What makes a whole value of all that came out.
    pub fn close(&mut self) -> String {
        let mut out = String::new();
        if self.next == Next::Word {
            self.end_word(&mut out);
        }
        match self.next {
            Next::Text { name } => {
                self.broken_escape(&mut out);
                out.push_str(if name { "\": null" } else { "\"" });
            }
            Next::Colon => out.push_str(": null"),
            // A comma that is held back is left out; behind a colon, or where nothing came, there must be something.
            Next::Value if self.open.last() != Some(&']') => out.push_str("null"),
            _ => {}
        }
        self.held.clear();
        out.extend(self.open.drain(..).rev());
        self.next = Next::Nothing;
        out
    }

    fn take(&mut self, c: char, out: &mut String) {
        match self.next {
            Next::Nothing => {}
            Next::Text { name } => self.text(c, name, out),
            Next::Word if c.is_ascii_alphanumeric() || "+-._".contains(c) => {
                self.held.push(c);
                if self.held.len() > LONGEST_WORD {
                    self.end_word(out);
                    self.next = Next::Nothing;
                }
            }
            Next::Word => {
                self.end_word(out);
                self.take(c, out);
            }
            _ if " \t\r\n".contains(c) => {
                if self.held.is_empty() {
                    out.push(c)
                } else {
                    self.held.push(c)
                }
            }
            Next::Value => self.value(c, out),
            Next::First if self.open.last() == Some(&c) => self.end(out),
            Next::First if self.open.last() == Some(&']') => self.value(c, out),
            Next::First | Next::Name if c == '"' => self.begin(Next::Text { name: true }, '"', out),
            Next::Colon if c == ':' => {
                out.push(c);
                self.next = Next::Value;
            }
            Next::Comma if c == ',' => {
                self.held.push(c);
                self.next = if self.open.last() == Some(&']') { Next::Value } else { Next::Name };
            }
            Next::Comma if self.open.last() == Some(&c) => self.end(out),
            // A comma too many.
            Next::Name if self.open.last() == Some(&c) => {
                self.held.clear();
                self.end(out);
            }
            _ => self.give_up(out),
        }
    }

    fn value(&mut self, c: char, out: &mut String) {
        match c {
            '"' => self.begin(Next::Text { name: false }, c, out),
            '{' | '[' if self.open.len() < DEEPEST => {
                self.begin(Next::First, c, out);
                self.open.push(if c == '{' { '}' } else { ']' });
            }
            ']' if self.open.last() == Some(&c) => {
                self.held.clear();
                self.end(out);
            }
            c if c.is_ascii_alphanumeric() || c == '-' => {
                out.push_str(&std::mem::take(&mut self.held));
                self.held.push(c);
                self.next = Next::Word;
            }
            _ => self.give_up(out),
        }
    }

    /// Something begins, so a comma before it counts.
    fn begin(&mut self, next: Next, c: char, out: &mut String) {
        out.push_str(&std::mem::take(&mut self.held));
        out.push(c);
        self.next = next;
    }

    /// The innermost list or object is complete.
    fn end(&mut self, out: &mut String) {
        out.extend(self.open.pop());
        self.after_value();
    }

    fn after_value(&mut self) {
        self.next = if self.open.is_empty() { Next::Nothing } else { Next::Comma };
    }

    fn end_word(&mut self, out: &mut String) {
        let word = std::mem::take(&mut self.held);
        match serde_json::from_str::<serde_json::Value>(&word) {
            Ok(_) => out.push_str(&word),
            Err(_) => out.push_str(&quoted(&word)),
        }
        self.after_value();
    }

    /// The rest is dropped; what is open is closed now.
    fn give_up(&mut self, out: &mut String) {
        out.push_str(&self.close());
    }

    fn text(&mut self, c: char, name: bool, out: &mut String) {
        if self.held.is_empty() {
            match c {
                '"' => {
                    out.push(c);
                    if name { self.next = Next::Colon } else { self.after_value() }
                }
                '\\' => self.held.push(c),
                c if c < ' ' => out.push_str(quoted(c.encode_utf8(&mut [0; 4])).trim_matches('"')),
                c => out.push(c),
            }
            return;
        }
        // Of an escape, or of two that make one character.
        self.held.push(c);
        let whole = [self.held.as_str(), "\""].concat();
        if serde_json::from_str::<String>(&format!("\"{whole}")).is_ok() {
            out.push_str(&std::mem::take(&mut self.held));
        } else if !may_become_escape(&self.held) {
            self.held.pop();
            self.broken_escape(out);
            self.text(c, name, out);
        }
    }

    /// An escape that is none.
    fn broken_escape(&mut self, out: &mut String) {
        let held = std::mem::take(&mut self.held);
        out.push_str(&held.replace('\\', "\\\\"));
    }
}

/// Whether an escape can begin so: `\`, `\u` and digits, or such a one for the first half of a pair and the beginning of another.
fn may_become_escape(held: &str) -> bool {
    let part = |text: &str| {
        let digits = text.strip_prefix("\\u").or(text.strip_prefix('\\').filter(|rest| rest.is_empty()));
        digits.is_some_and(|digits| digits.len() <= 4 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    match held.split_at_checked(6) {
        None => part(held),
        Some((first, rest)) => {
            let is_half = part(first) && matches!(u32::from_str_radix(&first[2..], 16), Ok(0xd800..=0xdbff));
            is_half && (rest.is_empty() || part(rest))
        }
    }
}

/// As a JSON string.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> String {
        let mut stream = JsonStream::default();
        stream.push(text) + &stream.close()
    }

    #[test]
    fn sound_json_comes_out_as_it_is() {
        for text in
            [r#"{"a": [1, -2.5e3, "<", {}], "b":{"c" :null}, "d": []}"#, "[\n  true\n]", r#"["\u00e9\ud83e\udd86\n"]"#]
        {
            assert_eq!(read(text), text);
        }
    }

    #[test]
    fn what_is_unfinished_or_wrong_is_closed() {
        for (text, expected) in [
            (r#"{"a": "x"#, r#"{"a": "x"}"#),
            (r#"{"a": [1, "#, r#"{"a": [1]}"#),
            (r#"{"a""#, r#"{"a": null}"#),
            (r#"{"a":"#, r#"{"a":null}"#),
            (r#"{"a": 1, }"#, r#"{"a": 1}"#),
            ("[1, 2", "[1, 2]"),
            ("[True, 1.]", r#"["True", "1."]"#),
            ("{a: 1}", "{}"),
            (r#"{"a": 1]"#, r#"{"a": 1}"#),
            ("[\"a\nb\\q\\", r#"["a\nb\\q\\"]"#),
            (r#"["\ud83e!"]"#, r#"["\\ud83e!"]"#),
            ("[1] and", "[1]"),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
        serde_json::from_str::<serde_json::Value>(&read(&"[".repeat(1000))).expect("not too deep for a reader");
    }

    proptest! {
        #[test]
        fn whatever_comes_out_is_json_however_it_was_cut(text in r#"([\[\]{}:," \\]|\\u|d8[0-9]{2}|dc00|[a-z0-9\n"]|1\.5|true|é){0,30}"#, at in 0usize..60) {
            let whole = read(&text);
            prop_assert!(serde_json::from_str::<serde_json::Value>(&whole).is_ok(), "{} became {}", text, whole);
            let at = (0..=at.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            let mut stream = JsonStream::default();
            let parts = [stream.push(&text[..at]), stream.push(&text[at..]), stream.close()].concat();
            prop_assert_eq!(parts, whole);
        }

        #[test]
        fn sound_values_pass_unchanged(list in prop::collection::vec((".{0,8}", any::<i64>(), any::<bool>()), 0..5)) {
            let text = serde_json::to_string(&list).expect("it can be written");
            prop_assert_eq!(read(&text), text);
        }
    }
}
