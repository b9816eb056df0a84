//! Stop strings: text that ends an answer, found wherever token borders fall.
//!
//! The match that is complete first wins, because generation stops there; if several end at the same character, the longest.
//! So the outcome depends on the text alone, never on how it was cut into pieces. Text that may still turn into a stop string is
//! held back, and no more than that.
//!
//! One Knuth-Morris-Pratt automaton for each stop string: a step for each byte, whatever was held back. An Aho-Corasick automaton
//! would take one step for all of them together, but requests carry four stop strings at most.

/// Why a list of stop strings is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// The empty string would stop everything at once.
    #[error("stop string {index} is empty; leave it out or give it text")]
    Empty {
        /// Its place in the list, from 0.
        index: usize,
    },
}

/// What became of a piece of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Text that can be shown: nothing of it belongs to a stop string.
    pub text: String,
    /// The stop string that ended the answer, by its place in the list. Nothing passes after it.
    pub stopped: Option<usize>,
}

/// Watches one answer for stop strings.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<Automaton>,
    /// Text not yet passed on: the longest end of the text so far that a stop string could begin with.
    held: String,
    stopped: Option<usize>,
}

impl StopMatcher {
    /// A matcher for `stops`; with an empty list everything passes.
    ///
    /// # Errors
    /// [`StopError::Empty`].
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self, StopError> {
        let stops = stops
            .iter()
            .enumerate()
            .map(|(index, stop)| match stop.as_ref() {
                "" => Err(StopError::Empty { index }),
                text => Ok(Automaton::new(text)),
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { stops, held: String::new(), stopped: None })
    }

    /// Takes the next piece of text. After a stop, further text is dropped and the same stop reported.
    pub fn push(&mut self, piece: &str) -> Passed {
        if self.stopped.is_some() {
            return Passed { text: String::new(), stopped: self.stopped };
        }
        let before = self.held.len();
        self.held.push_str(piece);
        for (offset, byte) in piece.bytes().enumerate() {
            let mut longest: Option<(usize, usize)> = None;
            for (index, stop) in self.stops.iter_mut().enumerate() {
                if stop.step(byte) && longest.is_none_or(|(length, _)| stop.len() > length) {
                    longest = Some((stop.len(), index));
                }
            }
            if let Some((length, index)) = longest {
                let end = before + offset + 1;
                let mut text = std::mem::take(&mut self.held);
                text.truncate(end - length);
                self.stopped = Some(index);
                return Passed { text, stopped: self.stopped };
            }
        }
        let keep = self.stops.iter().map(|s| s.matched).max().unwrap_or(0);
        // A stop string begins with a whole character, so its first byte is a border in the text.
        let rest = self.held.split_off(self.held.len() - keep);
        Passed { text: std::mem::replace(&mut self.held, rest), stopped: None }
    }

    /// The answer ended otherwise: returns what was held back.
    pub fn finish(&mut self) -> String {
        for stop in &mut self.stops {
            stop.matched = 0;
        }
        std::mem::take(&mut self.held)
    }
}

/// Knuth-Morris-Pratt over bytes.
#[derive(Clone, Debug)]
struct Automaton {
    pattern: Box<[u8]>,
    /// `fallback[n]`: the longest proper end of the first n + 1 bytes that is also their beginning.
    fallback: Box<[usize]>,
    /// How many bytes of the pattern the text ends with now.
    matched: usize,
}

impl Automaton {
    fn new(pattern: &str) -> Self {
        let pattern: Box<[u8]> = pattern.as_bytes().into();
        let mut fallback = vec![0; pattern.len()].into_boxed_slice();
        let mut matched = 0;
        for end in 1..pattern.len() {
            while matched > 0 && pattern[matched] != pattern[end] {
                matched = fallback[matched - 1];
            }
            if pattern[matched] == pattern[end] {
                matched += 1;
            }
            fallback[end] = matched;
        }
        Self { pattern, fallback, matched: 0 }
    }

    fn len(&self) -> usize {
        self.pattern.len()
    }

    /// Takes a byte; true once the whole pattern was read. The matcher stops then, so there is no way on from there.
    fn step(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.pattern[self.matched] != byte {
            self.matched = self.fallback[self.matched - 1];
        }
        if self.pattern[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == self.pattern.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All the text that passes, and the stop.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops).expect("stops are not empty");
        let mut text = String::new();
        for piece in pieces {
            let passed = matcher.push(piece);
            text.push_str(&passed.text);
            if passed.stopped.is_some() {
                return (text, passed.stopped);
            }
        }
        text.push_str(&matcher.finish());
        (text, None)
    }

    #[test]
    fn stop_across_pieces_is_found_and_not_shown() {
        assert_eq!(run(&["\nUser:"], &["Hello\nUs", "e", "r: more"]), ("Hello".to_owned(), Some(0)));
    }

    #[test]
    fn text_that_only_began_like_a_stop_is_given_back() {
        let mut matcher = StopMatcher::new(&["STOP"]).expect("not empty");
        assert_eq!(matcher.push("a ST").text, "a ");
        assert_eq!(matcher.push("ST").text, "ST");
        assert_eq!(matcher.push("x").text, "STx");
        assert_eq!(matcher.push("S").text, "");
        assert_eq!(matcher.finish(), "S");
    }

    #[test]
    fn match_that_ends_first_wins_even_inside_a_longer_one() {
        assert_eq!(run(&["abcd", "bc"], &["xabcd"]), ("xa".to_owned(), Some(1)));
        assert_eq!(run(&["abcd", "bc"], &["x", "a", "b", "c", "d"]), ("xa".to_owned(), Some(1)));
    }

    #[test]
    fn of_two_that_end_together_the_longer_wins() {
        assert_eq!(run(&["c", "abc"], &["xabc"]), ("x".to_owned(), Some(1)));
    }

    #[test]
    fn stop_that_begins_within_a_broken_off_one_is_found() {
        // After "aabaaa" comes "b": what still counts is the "aa" before it.
        assert_eq!(run(&["aabaaac"], &["aabaaa", "baaac"]), ("aaba".to_owned(), Some(0)));
    }

    #[test]
    fn nothing_passes_after_a_stop() {
        let mut matcher = StopMatcher::new(&["."]).expect("not empty");
        assert_eq!(matcher.push("a.b").text, "a");
        assert_eq!(matcher.push("more"), Passed { text: String::new(), stopped: Some(0) });
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn without_stops_everything_passes() {
        assert_eq!(run(&[], &["a", "b"]), ("ab".to_owned(), None));
    }

    #[test]
    fn empty_stop_is_refused_by_its_place() {
        assert_eq!(StopMatcher::new(&["a", ""]).err(), Some(StopError::Empty { index: 1 }));
    }

    /// The definition, over the whole text: the first place where a stop ends, the longest that ends there.
    fn naive(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
            let mut best: Option<usize> = None;
            for (index, stop) in stops.iter().enumerate() {
                if text[..end].ends_with(stop.as_str()) && best.is_none_or(|b| stop.len() > stops[b].len()) {
                    best = Some(index);
                }
            }
            if let Some(index) = best {
                return (text[..end - stops[index].len()].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    /// The longest end of `text` that a longer stop begins with.
    fn must_hold(stops: &[String], text: &str) -> usize {
        (0..=text.len())
            .filter(|&n| text.is_char_boundary(text.len() - n))
            .filter(|&n| stops.iter().any(|s| s.len() > n && s.starts_with(&text[text.len() - n..])))
            .max()
            .unwrap_or(0)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn agrees_with_the_whole_text_however_it_is_cut(
            stops in prop::collection::vec("[abé鸭]{1,5}|[aé]{1,9}", 0..4),
            pieces in prop::collection::vec("[abé鸭]{0,6}|[aé]{0,9}", 0..12),
        ) {
            let mut matcher = StopMatcher::new(&stops).expect("not empty");
            let (mut shown, mut seen, mut stopped) = (String::new(), String::new(), None);
            for piece in &pieces {
                seen.push_str(piece);
                let passed = matcher.push(piece);
                shown.push_str(&passed.text);
                stopped = passed.stopped;
                if stopped.is_some() {
                    break;
                }
                prop_assert_eq!(shown.len(), seen.len() - must_hold(&stops, &seen));
            }
            shown.push_str(&matcher.finish());
            prop_assert_eq!((shown, stopped), naive(&stops, &pieces.concat()));
        }
    }
}
