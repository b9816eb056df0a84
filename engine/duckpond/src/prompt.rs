//! Where a prompt comes from: the command line, a file, standard input.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// No prompt of any model is longer; keeps an endless input from filling the memory.
pub const LONGEST: usize = 16 << 20;

/// Why there is no prompt.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// There is none.
    #[error(
        "there is no prompt; give it as an argument, give `-` and write it to standard input, or name a file with --file"
    )]
    None,
    /// Nothing was said.
    #[error("the prompt {origin} is empty; give some text")]
    Empty {
        /// Where it came from.
        origin: Origin,
    },
    /// Not text.
    #[error(
        "the prompt {origin} is not valid UTF-8: byte {at} is {byte:#04x}; convert it first, for instance with iconv"
    )]
    NotUtf8 {
        /// Where it came from.
        origin: Origin,
        /// Offset of the first wrong byte, from 0.
        at: usize,
        /// That byte.
        byte: u8,
    },
    /// More than anything could read.
    #[error("the prompt {origin} has more than {LONGEST} bytes, the most that is read")]
    TooLong {
        /// Where it came from.
        origin: Origin,
    },
    /// The system refused.
    #[error("cannot read the prompt {origin}")]
    Read {
        /// Where it should come from.
        origin: Origin,
        /// The system's reason.
        source: io::Error,
    },
}

/// Where a prompt comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The argument itself.
    Argument,
    /// Standard input.
    Stdin,
    /// A file.
    File(PathBuf),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Argument => f.write_str("on the command line"),
            Origin::Stdin => f.write_str("on standard input"),
            Origin::File(path) => write!(f, "in {}", path.display()),
        }
    }
}

/// The prompt's text. `argument` is what was typed, `-` for standard input; `file` comes first. One line end at the end of a
/// file or of standard input is removed unless `raw`: `echo` and editors put it there.
///
/// # Errors
/// [`PromptError`].
pub fn read(argument: Option<&str>, file: Option<&Path>, raw: bool) -> Result<String, PromptError> {
    let (text, origin) = match (file, argument) {
        (Some(path), _) => {
            let origin = Origin::File(path.into());
            match File::open(path) {
                Ok(file) => (read_all(file, &origin)?, origin),
                Err(source) => return Err(PromptError::Read { origin, source }),
            }
        }
        (None, Some("-")) => (read_all(io::stdin().lock(), &Origin::Stdin)?, Origin::Stdin),
        (None, Some(text)) => return checked(text.to_owned(), Origin::Argument, raw),
        (None, None) => return Err(PromptError::None),
    };
    let text = match raw {
        true => text,
        false => without_line_end(text),
    };
    checked(text, origin, raw)
}

fn without_line_end(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    text
}

fn checked(text: String, origin: Origin, raw: bool) -> Result<String, PromptError> {
    let nothing = if raw { text.is_empty() } else { text.trim().is_empty() };
    if nothing { Err(PromptError::Empty { origin }) } else { Ok(text) }
}

fn read_all(stream: impl Read, origin: &Origin) -> Result<String, PromptError> {
    let mut bytes = Vec::new();
    stream
        .take(LONGEST as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| PromptError::Read { origin: origin.clone(), source })?;
    if bytes.len() > LONGEST {
        return Err(PromptError::TooLong { origin: origin.clone() });
    }
    text(bytes, origin)
}

/// The text that these bytes are.
///
/// # Errors
/// [`PromptError::NotUtf8`].
pub fn text(bytes: Vec<u8>, origin: &Origin) -> Result<String, PromptError> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        PromptError::NotUtf8 { origin: origin.clone(), at, byte: error.as_bytes()[at] }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_end_is_removed_and_no_more() {
        let cases = [("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("a", "a"), ("a\r", "a\r")];
        for (given, wanted) in cases {
            assert_eq!(without_line_end(given.to_owned()), wanted);
        }
    }

    #[test]
    fn invalid_bytes_are_named_with_their_place() {
        let error = read_all(&b"ab\xff"[..], &Origin::Stdin).expect_err("0xff is never valid");
        let expected = "the prompt on standard input is not valid UTF-8: byte 2 is 0xff; convert it first, for instance with iconv";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn an_endless_stream_is_refused() {
        assert!(matches!(read_all(io::repeat(b'a'), &Origin::Stdin), Err(PromptError::TooLong { .. })));
    }

    #[test]
    fn blanks_are_a_prompt_only_when_raw() {
        assert!(checked(" \n".into(), Origin::Argument, false).is_err());
        assert_eq!(checked(" \n".into(), Origin::Argument, true).expect("raw"), " \n");
        assert!(checked(String::new(), Origin::Argument, true).is_err());
    }
}
