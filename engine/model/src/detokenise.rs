//! Token ids to text while they are being generated.
//!
//! A token's bytes can end in the middle of a character. The stream holds back at most the three bytes that may still become one
//! and gives out everything else at once, so each token costs only its own length. The pieces together are exactly what
//! `String::from_utf8_lossy` makes of all the bytes.
//!
//! Left out: which tokens not to show (an end marker): the caller does not push those. Stop strings: [`crate::stop`].

use std::sync::Arc;

use crate::tokenizer::TokenBytes;

/// One answer's stream from ids to text; made by [`crate::tokenizer::Tokenizer::detokeniser`].
#[derive(Clone, Debug)]
pub struct Detokeniser {
    bytes: Arc<TokenBytes>,
    /// The start of a character that may still be completed: at most 3 bytes between calls.
    pending: Vec<u8>,
}

impl Detokeniser {
    pub(crate) fn new(bytes: Arc<TokenBytes>) -> Self {
        Self { bytes, pending: Vec::new() }
    }

    /// Takes the next token and returns the text that is certain now, often all of the token's. Bytes that can no longer become
    /// a character come out as U+FFFD, once for each maximal invalid run. An id without a token adds nothing.
    pub fn push(&mut self, id: u32) -> String {
        let mut bytes = std::mem::take(&mut self.pending);
        bytes.extend_from_slice(self.bytes.of(id));
        let mut text = String::with_capacity(bytes.len());
        let mut rest = &bytes[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    return text;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(std::str::from_utf8(valid).expect("valid_up_to bounds it"));
                    match error.error_len() {
                        Some(length) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            rest = &after[length..];
                        }
                        // Not wrong, only unfinished.
                        None => {
                            self.pending = after.to_vec();
                            return text;
                        }
                    }
                }
            }
        }
    }

    /// Ends the text: U+FFFD if it stopped inside a character, else nothing. The stream is as new afterwards.
    pub fn finish(&mut self) -> &'static str {
        if self.pending.is_empty() {
            ""
        } else {
            self.pending.clear();
            "\u{fffd}"
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stream(tokens: &[Vec<u8>]) -> Vec<String> {
        let mut detokeniser = Detokeniser::new(Arc::new(TokenBytes::of_tokens(tokens)));
        let mut pieces: Vec<String> = (0..tokens.len() as u32).map(|id| detokeniser.push(id)).collect();
        pieces.push(detokeniser.finish().to_owned());
        pieces
    }

    fn bytes(tokens: &[&[u8]]) -> Vec<Vec<u8>> {
        tokens.iter().map(|t| t.to_vec()).collect()
    }

    #[test]
    fn character_split_over_tokens_comes_out_whole_and_at_once() {
        let duck = "🦆".as_bytes();
        let pieces = stream(&bytes(&[b"a", &duck[..1], &duck[1..3], &duck[3..], b"b"]));
        assert_eq!(pieces, ["a", "", "", "🦆", "b", ""]);
    }

    #[test]
    fn hopeless_bytes_are_replaced_as_soon_as_they_are_hopeless() {
        // 0xff never starts a character; after 0xe4 an "x" shows that none is coming.
        assert_eq!(stream(&bytes(&[b"\xff", b"\xe4", b"x"])), ["\u{fffd}", "", "\u{fffd}x", ""]);
    }

    #[test]
    fn unfinished_character_at_the_end_is_replaced_once() {
        assert_eq!(stream(&bytes(&[b"\xf0\x9f", b"\xa6"])), ["", "", "\u{fffd}"]);
    }

    #[test]
    fn id_without_a_token_adds_nothing_and_breaks_nothing() {
        let mut detokeniser = Detokeniser::new(Arc::new(TokenBytes::of_tokens(&bytes(&[b"\xc3", b"\xa9"]))));
        assert_eq!(detokeniser.push(0), "");
        assert_eq!(detokeniser.push(u32::MAX), "");
        assert_eq!(detokeniser.push(1), "é");
    }

    proptest! {
        #[test]
        fn pieces_join_to_the_lossy_text(tokens in prop::collection::vec(token(), 0..40)) {
            let whole = tokens.concat();
            prop_assert_eq!(stream(&tokens).concat(), String::from_utf8_lossy(&whole));
        }

        #[test]
        fn never_more_than_three_bytes_are_held_back(tokens in prop::collection::vec(token(), 0..40)) {
            let mut detokeniser = Detokeniser::new(Arc::new(TokenBytes::of_tokens(&tokens)));
            let mut shown = String::new();
            let mut all = Vec::new();
            for (id, token) in (0u32..).zip(&tokens) {
                shown.push_str(&detokeniser.push(id));
                all.extend_from_slice(token);
                prop_assert!(detokeniser.pending.len() <= 3);
                // What is held back is the unfinished end of the bytes, and nothing else.
                let done = &all[..all.len() - detokeniser.pending.len()];
                prop_assert_eq!(shown.as_str(), &*String::from_utf8_lossy(done));
            }
        }
    }

    /// Bytes that are likely to be parts of characters: cut from text, or lead and continuation bytes at random.
    fn token() -> impl Strategy<Value = Vec<u8>> {
        let nasty = prop::sample::select(vec![
            0x00u8, 0x41, 0x7f, 0x80, 0x9f, 0xa0, 0xbf, 0xc0, 0xc2, 0xc3, 0xe0, 0xe4, 0xed, 0xef, 0xf0, 0xf4, 0xf5,
            0xff,
        ]);
        prop_oneof![
            prop::collection::vec(nasty, 0..5),
            (".{0,3}", 0usize..12, 0usize..12).prop_map(|(text, a, b)| {
                let bytes = text.into_bytes();
                let (a, b) = (a.min(bytes.len()), b.min(bytes.len()));
                bytes[a.min(b)..a.max(b)].to_vec()
            }),
        ]
    }
}
