//! What the Duckling checkpoint answers, by an independent program.

use std::fs;

use serde::Deserialize;

use crate::{Error, data_dir, or_fail};

/// A prompt for Duckling and the greedy answer to it, computed in float32 from the dequantised fp8 weights.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DucklingCase {
    /// What the prompt is about; not unique.
    pub name: String,
    /// The prompt with its chat markers.
    pub prompt_text: String,
    /// The prompt's token ids.
    pub prompt_ids: Vec<u32>,
    /// The answer's token ids, ending with the end-of-sentence token unless it was cut for length.
    pub greedy_ids: Vec<u32>,
    /// The answer as text. It is recorded as it is: one sum is wrong.
    pub greedy_text: String,
    /// Smallest distance between the two best logits over the whole answer.
    pub smallest_margin: f64,
    /// The five best (token, logit) pairs of the answer's last step, best first.
    pub last_logits_top5: Vec<(u32, f32)>,
}

#[derive(Deserialize)]
struct Greedy {
    cases: Vec<DucklingCase>,
}

/// All 18 cases: prompts of 5 to 870 tokens, answers of up to 1,234.
///
/// # Panics
/// If the file cannot be read.
#[track_caller]
pub fn duckling_greedy() -> Vec<DucklingCase> {
    or_fail(read())
}

fn read() -> Result<Vec<DucklingCase>, Error> {
    let path = data_dir().join("duckling/greedy.json");
    let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
    let Greedy { cases } = serde_json::from_str(&text).map_err(|source| Error::Json { path, source })?;
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_cases_are_read_with_their_extremes() {
        let cases = duckling_greedy();
        assert_eq!(cases.len(), 18);
        let lengths = |of: fn(&DucklingCase) -> usize| {
            let lengths = || cases.iter().map(of);
            (lengths().min(), lengths().max())
        };
        assert_eq!(lengths(|case| case.prompt_ids.len()), (Some(5), Some(870)));
        assert_eq!(lengths(|case| case.greedy_ids.len()).1, Some(1234));
        assert_eq!(cases[0].name, "9973是质数吗");
        assert_eq!(cases[0].prompt_ids, [0, 2, 31, 31, 29, 25, 339, 3, 5]);
    }

    #[test]
    fn last_choice_is_the_best_of_the_recorded_five() {
        for case in duckling_greedy() {
            assert_eq!(case.last_logits_top5.len(), 5);
            assert_eq!(case.greedy_ids.last(), Some(&case.last_logits_top5[0].0), "{}", case.name);
            assert!(case.last_logits_top5.is_sorted_by(|a, b| a.1 >= b.1), "{}", case.name);
            assert!(case.smallest_margin > 0.0, "{}", case.name);
        }
    }
}
