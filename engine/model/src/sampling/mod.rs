//! From logits to the next token: pure functions, no state, no clock.
//!
//! A request's [`SamplingParams`] turn logits into a [`Distribution`]; [`uniform`] names a random number; [`Distribution::sample`]
//! picks. With a draft, [`verify_draft`] decides so that the outcome is distributed exactly as without one. Same seed, same bits.
//!
//! Left out: presence and frequency penalties and logit biases, and grammars. A grammar's mask would be a list of allowed ids: a
//! logit of minus infinity is refused, because here it would mean a fault in the model.

mod distribution;
mod draft;
mod random;

pub use distribution::{Distribution, greedy};
pub use draft::{Verdict, residual, verify_draft};
pub use random::{Purpose, uniform};

/// How to choose tokens. The default is greedy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingParams {
    /// Logits are divided by it; 0 is greedy. 0 to 100.
    pub temperature: f32,
    /// Only the k largest; 0: all.
    pub top_k: u32,
    /// Only the largest that together reach this probability; above 0, up to 1: all.
    pub top_p: f32,
    /// Only those with at least this part of the largest probability; 0: all; up to 1.
    pub min_p: f32,
    /// Above 1 makes tokens rarer that occurred, below 1 likelier; 1: off. Above 0, up to 100.
    pub repetition_penalty: f32,
    /// Names the random numbers, see [`uniform`].
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0, seed: 0 }
    }
}

impl SamplingParams {
    /// Whether every parameter is in its range.
    ///
    /// # Errors
    /// [`SamplingError::Parameter`] for the first that is not.
    pub fn check(&self) -> Result<(), SamplingError> {
        let positive = f32::MIN_POSITIVE;
        for (field, value, range, allowed) in [
            ("temperature", self.temperature, 0.0..=100.0, "0 to 100"),
            ("top_p", self.top_p, positive..=1.0, "above 0, up to 1"),
            ("min_p", self.min_p, 0.0..=1.0, "0 to 1"),
            ("repetition_penalty", self.repetition_penalty, positive..=100.0, "above 0, up to 100"),
        ] {
            // NaN is in no range.
            if !range.contains(&value) {
                return Err(SamplingError::Parameter { field, value, allowed });
            }
        }
        Ok(())
    }

    /// Whether the same logits always give the same token.
    #[must_use]
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }
}

/// Why no token can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// A parameter is out of range.
    #[error("{field} is {value}, expected {allowed}")]
    Parameter {
        /// The parameter.
        field: &'static str,
        /// Its value.
        value: f32,
        /// What it may be.
        allowed: &'static str,
    },
    /// The model computed nonsense.
    #[error("logit of token {id} is {value}, not a finite number")]
    Logit {
        /// The first such token.
        id: u32,
        /// Its logit.
        value: f32,
    },
    /// Nothing to choose from.
    #[error("there are no logits")]
    NoLogits,
    /// A token of the text so far cannot be one.
    #[error("token {id} in the history is beyond the vocabulary of {vocabulary} tokens")]
    History {
        /// The token.
        id: u32,
        /// The number of logits.
        vocabulary: usize,
    },
    /// Weights that make no distribution.
    #[error("weights make no distribution: ids must rise, weights be finite, not negative, and not all zero")]
    Weights,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_out_of_range_are_named_with_value_and_range() {
        let good = SamplingParams::default();
        assert_eq!(good.check(), Ok(()));
        for (params, message) in [
            (SamplingParams { temperature: -0.5, ..good }, "temperature is -0.5, expected 0 to 100"),
            (SamplingParams { temperature: f32::NAN, ..good }, "temperature is NaN, expected 0 to 100"),
            (SamplingParams { top_p: 0.0, ..good }, "top_p is 0, expected above 0, up to 1"),
            (SamplingParams { top_p: 1.1, ..good }, "top_p is 1.1, expected above 0, up to 1"),
            (SamplingParams { min_p: 2.0, ..good }, "min_p is 2, expected 0 to 1"),
            (
                SamplingParams { repetition_penalty: 0.0, ..good },
                "repetition_penalty is 0, expected above 0, up to 100",
            ),
        ] {
            assert_eq!(params.check().expect_err("out of range").to_string(), message);
        }
    }
}
