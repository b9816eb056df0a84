//! Choosing tokens on the host, for what the stages do not know: grammars, presence and frequency penalties, logit biases.
//!
//! The order: repetition penalty, presence and frequency penalties, biases, then the grammar's mask, then temperature and filters as
//! in [`model::sampling`]. With none of the four the tokens are those that the stage would choose without drafts: the random numbers
//! are keyed in the same way.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use model::sampling::{Distribution, Purpose, SamplingError, SamplingParams, uniform};

use crate::backend::{BoxError, Chooser, Observer};
use crate::grammar::Grammar;

/// What the stages do not know.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extras {
    /// Taken off the logit of each token that the answer has already.
    pub presence_penalty: f32,
    /// Taken off as often as the answer has it.
    pub frequency_penalty: f32,
    /// Added to logits, by token.
    pub bias: Vec<(u32, f32)>,
}

impl Extras {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.presence_penalty == 0.0 && self.frequency_penalty == 0.0 && self.bias.is_empty()
    }
}

/// Where a grammar begins to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// With the first token.
    AtOnce,
    /// After this token, the end of the reasoning.
    After(u32),
}

/// Chooses the tokens of one answer.
pub struct HostChooser {
    params: SamplingParams,
    choice_index: u32,
    extras: Extras,
    grammar: Option<Grammar>,
    waiting_for: Option<u32>,
    /// Tokens of `history` that were looked at; the prompt at first.
    seen: usize,
    counts: HashMap<u32, u32>,
}

impl HostChooser {
    /// For an answer to a prompt of so many tokens.
    pub fn new(
        prompt_len: usize,
        params: SamplingParams,
        choice_index: u32,
        extras: Extras,
        grammar: Option<(Grammar, Begin)>,
    ) -> HostChooser {
        let (grammar, waiting_for) = match grammar {
            None => (None, None),
            Some((grammar, Begin::AtOnce)) => (Some(grammar), None),
            Some((grammar, Begin::After(token))) => (Some(grammar), Some(token)),
        };
        HostChooser { params, choice_index, extras, grammar, waiting_for, seen: prompt_len, counts: HashMap::new() }
    }

    fn look_at(&mut self, history: &[u32]) -> Result<(), BoxError> {
        for &token in history.get(self.seen..).unwrap_or_default() {
            *self.counts.entry(token).or_default() += 1;
            match (self.waiting_for, &mut self.grammar) {
                (Some(end), _) => self.waiting_for = (end != token).then_some(end),
                (None, Some(grammar)) => grammar.take(token)?,
                (None, None) => {}
            }
        }
        self.seen = history.len();
        Ok(())
    }

    fn scores(&self, history: &[u32], logits: &[f32]) -> Result<Vec<f32>, SamplingError> {
        if let Some((id, &value)) = (0u32..).zip(logits).find(|(_, logit)| !logit.is_finite()) {
            return Err(SamplingError::Logit { id, value });
        }
        let mut scores = logits.to_vec();
        let penalty = self.params.repetition_penalty;
        if penalty != 1.0 {
            for &id in history {
                let vocabulary = logits.len();
                let logit = *logits.get(id as usize).ok_or(SamplingError::History { id, vocabulary })?;
                // From the given logit, so that a second time changes nothing.
                scores[id as usize] = if logit > 0.0 { logit / penalty } else { logit * penalty };
            }
        }
        let Extras { presence_penalty, frequency_penalty, bias } = &self.extras;
        for (&id, &count) in &self.counts {
            if let Some(score) = scores.get_mut(id as usize) {
                *score -= presence_penalty + frequency_penalty * count as f32;
            }
        }
        for &(id, more) in bias {
            if let Some(score) = scores.get_mut(id as usize) {
                *score += more;
            }
        }
        for score in &mut scores {
            *score = score.clamp(f32::MIN, f32::MAX);
        }
        Ok(scores)
    }
}

impl Chooser for HostChooser {
    fn choose(&mut self, position: usize, history: &[u32], logits: &[f32]) -> Result<u32, BoxError> {
        self.look_at(history)?;
        let scores = self.scores(history, logits)?;
        let params = SamplingParams { repetition_penalty: 1.0, ..self.params };
        let u = uniform(params.seed, self.choice_index, position as u64, Purpose::Token);
        let allowed = match &mut self.grammar {
            Some(grammar) if self.waiting_for.is_none() => grammar.allowed(logits.len())?,
            _ => return Ok(Distribution::new(&scores, &params, &[])?.sample(u)),
        };
        let scores: Vec<f32> = allowed.iter().map(|&id| scores[id as usize]).collect();
        // The place in the list of allowed ids, which rise: so ties go to the lowest id as ever.
        let place = Distribution::new(&scores, &params, &[])?.sample(u);
        Ok(allowed[place as usize])
    }
}

/// A token's logarithmic probability, and those of the likeliest ones at its place.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProb {
    /// The chosen token.
    pub id: u32,
    /// ln of its probability under the model itself, before temperature, filters and penalties.
    pub logprob: f32,
    /// The likeliest ones with theirs, falling.
    pub top: Vec<(u32, f32)>,
}

/// Keeps logits between the moment when they are seen and the moment when the token is known.
#[derive(Clone, Default)]
pub struct Logits {
    kept: Arc<Mutex<VecDeque<Vec<f32>>>>,
}

impl Logits {
    /// What the backend shows them to.
    pub fn observer(&self) -> Observer {
        let kept = Arc::clone(&self.kept);
        Box::new(move |_, logits| kept.lock().unwrap_or_else(PoisonError::into_inner).push_back(logits.to_vec()))
    }

    /// The figures of the next token.
    pub fn next(&self, id: u32, top: usize) -> Option<LogProb> {
        let logits = self.kept.lock().unwrap_or_else(PoisonError::into_inner).pop_front()?;
        log_prob(&logits, id, top)
    }
}

fn log_prob(logits: &[f32], id: u32, top: usize) -> Option<LogProb> {
    let largest = f64::from(logits.iter().copied().fold(f32::MIN, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
    let log_prob = |logit: f32| (f64::from(logit) - largest - sum.ln()) as f32;
    let mut ids: Vec<u32> = (0..u32::try_from(logits.len()).ok()?).collect();
    let order = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let top = top.min(ids.len());
    if 0 < top && top < ids.len() {
        ids.select_nth_unstable_by(top - 1, order);
    }
    ids.truncate(top);
    ids.sort_unstable_by(order);
    let top = ids.into_iter().map(|id| (id, log_prob(logits[id as usize]))).collect();
    Some(LogProb { id, logprob: log_prob(*logits.get(id as usize)?), top })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chooser(params: SamplingParams, extras: Extras) -> HostChooser {
        HostChooser::new(1, params, 0, extras, None)
    }

    const GREEDY: SamplingParams =
        SamplingParams { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0, seed: 7 };

    #[test]
    fn without_extras_the_stage_would_choose_the_same() {
        let params = SamplingParams { temperature: 0.7, top_p: 0.9, repetition_penalty: 1.3, ..GREEDY };
        let logits = [0.1, 0.9, 0.8, -0.5, 0.85];
        for position in 1..200 {
            let history = [1, 4, 2];
            let expected = Distribution::new(&logits, &params, &history).expect("valid").sample(uniform(
                7,
                0,
                position as u64,
                Purpose::Token,
            ));
            let chosen = chooser(params, Extras::default()).choose(position, &history, &logits).expect("valid");
            assert_eq!(chosen, expected, "position {position}");
        }
    }

    #[test]
    fn penalties_count_the_answer_and_not_the_prompt() {
        let extras = Extras { frequency_penalty: 0.4, ..Extras::default() };
        let logits = [1.0, 0.5];
        // The prompt is token 0; the answer so far has it once, then twice.
        assert_eq!(chooser(GREEDY, extras.clone()).choose(1, &[0], &logits).expect("valid"), 0);
        assert_eq!(chooser(GREEDY, extras.clone()).choose(2, &[0, 0], &logits).expect("valid"), 0);
        assert_eq!(chooser(GREEDY, extras).choose(3, &[0, 0, 0], &logits).expect("valid"), 1);
        let presence = Extras { presence_penalty: 0.4, ..Extras::default() };
        assert_eq!(chooser(GREEDY, presence).choose(3, &[0, 0, 0], &logits).expect("valid"), 0);
    }

    #[test]
    fn a_bias_moves_a_token() {
        let extras = Extras { bias: vec![(1, 100.0), (99, 1.0)], ..Extras::default() };
        assert_eq!(chooser(GREEDY, extras).choose(1, &[0], &[1.0, 0.5]).expect("valid"), 1);
    }

    #[test]
    fn log_probabilities_are_those_of_the_softmax() {
        let logits = [0.2f32, 0.5, 0.3].map(f32::ln);
        let logits = Logits { kept: Arc::new(Mutex::new(VecDeque::from([logits.to_vec()]))) };
        let found = logits.next(2, 2).expect("there are logits");
        assert!((found.logprob - 0.3f32.ln()).abs() < 1e-6);
        assert_eq!(found.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2]);
        assert!((found.top[0].1 - 0.5f32.ln()).abs() < 1e-6);
        assert_eq!(logits.next(2, 2), None);
    }

    #[test]
    fn nonsense_is_an_error() {
        let error = chooser(GREEDY, Extras::default()).choose(1, &[0], &[0.0, f32::NAN]).expect_err("no number");
        assert_eq!(error.to_string(), "logit of token 1 is NaN, not a finite number");
    }
}
