//! The bytes that each token stands for.

use std::path::Path;

use super::TokenizerError;
use super::file::quoted;

/// What a token is to the tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Word,
    Added,
    Special,
}

/// The bytes of every token, end to end in one buffer.
#[derive(Debug)]
pub struct TokenBytes {
    buffer: Vec<u8>,
    /// Token `id` is `buffer[starts[id]..starts[id + 1]]`.
    starts: Vec<usize>,
    kinds: Vec<Kind>,
}

impl TokenBytes {
    /// The table of a tokenizer whose ids are dense, as [`super::file`] checks: it has a place for every id up to the largest.
    pub(super) fn new(inner: &tokenizers::Tokenizer, path: &Path) -> Result<Self, TokenizerError> {
        let vocabulary = inner.get_vocab(true);
        let added = inner.get_added_tokens_decoder();
        let size = vocabulary.values().max().map_or(0, |&largest| largest as usize + 1);
        let mut names: Vec<Option<&str>> = vec![None; size];
        for (name, &id) in &vocabulary {
            if let Some(other) = names[id as usize].replace(name) {
                let (first, second) =
                    if other < name.as_str() { (other, name.as_str()) } else { (name.as_str(), other) };
                return Err(TokenizerError::DuplicateId {
                    path: path.to_owned(),
                    first: quoted(first),
                    second: quoted(second),
                    id,
                });
            }
        }
        let alphabet = byte_of_letter();
        let mut table = Self { buffer: Vec::new(), starts: vec![0], kinds: Vec::with_capacity(size) };
        for (id, name) in (0u32..).zip(&names) {
            let kind = match added.get(&id) {
                Some(token) if token.special => Kind::Special,
                Some(_) => Kind::Added,
                None => Kind::Word,
            };
            table.kinds.push(kind);
            if let Some(name) = name {
                match (kind, spelt_bytes(name, &alphabet)) {
                    (Kind::Word, Some(bytes)) => table.buffer.extend(bytes),
                    // Added tokens are written as they read. So is a word with letters outside the alphabet, as the reference
                    // decoder does it.
                    _ => table.buffer.extend_from_slice(name.as_bytes()),
                }
            }
            table.starts.push(table.buffer.len());
        }
        Ok(table)
    }

    pub(super) fn len(&self) -> usize {
        self.kinds.len()
    }

    /// The bytes of token `id`, empty if there is none.
    #[must_use]
    pub fn of(&self, id: u32) -> &[u8] {
        match self.starts.get(id as usize..).unwrap_or_default() {
            [start, end, ..] => &self.buffer[*start..*end],
            _ => &[],
        }
    }

    /// The length in bytes of the longest token.
    pub(super) fn longest(&self) -> usize {
        self.starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    }

    pub(super) fn kind(&self, id: u32) -> Kind {
        self.kinds.get(id as usize).copied().unwrap_or(Kind::Word)
    }
}

fn spelt_bytes(name: &str, alphabet: &[Option<u8>; ALPHABET]) -> Option<Vec<u8>> {
    name.chars().map(|letter| alphabet.get(letter as usize).copied().flatten()).collect()
}

/// The letters of the byte-level alphabet are U+0021 to U+0143.
const ALPHABET: usize = 0x144;

/// GPT-2's alphabet: printable Latin-1 letters stand for themselves, the other 68 bytes take U+0100 upwards in order.
fn byte_of_letter() -> [Option<u8>; ALPHABET] {
    let mut letters = [None; ALPHABET];
    let mut next = 0x100;
    for byte in 0..=u8::MAX {
        let letter = match byte {
            0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => byte as usize,
            _ => {
                next += 1;
                next - 1
            }
        };
        letters[letter] = Some(byte);
    }
    letters
}

/// Every byte with its letter in the byte-level alphabet.
pub(super) fn letters() -> impl Iterator<Item = (char, u8)> {
    ('\0'..).zip(byte_of_letter()).filter_map(|(letter, byte)| byte.map(|byte| (letter, byte)))
}

#[cfg(test)]
impl TokenBytes {
    /// A table for tests: token `i` is `tokens[i]`.
    pub(crate) fn of_tokens(tokens: &[Vec<u8>]) -> Self {
        let mut starts = vec![0];
        let mut buffer = Vec::new();
        for token in tokens {
            buffer.extend_from_slice(token);
            starts.push(buffer.len());
        }
        Self { buffer, starts, kinds: vec![Kind::Word; tokens.len()] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alphabet_names_every_byte_once() {
        let mut bytes: Vec<u8> = letters().map(|(_, byte)| byte).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=u8::MAX).collect::<Vec<_>>());
    }

    #[test]
    fn alphabet_agrees_with_well_known_letters() {
        let alphabet = byte_of_letter();
        for (letter, byte) in [('Ġ', b' '), ('Ċ', b'\n'), ('A', b'A'), ('Ń', 0xad)] {
            assert_eq!(alphabet[letter as usize], Some(byte), "{letter}");
        }
    }
}
