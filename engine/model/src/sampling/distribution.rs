//! The distribution that a token is drawn from.

use std::cmp::Ordering;

use super::{SamplingError, SamplingParams};

/// Probabilities of the tokens that can still come, in rising order of id. They are positive and sum to 1 up to rounding.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    ids: Vec<u32>,
    probabilities: Vec<f64>,
}

impl Distribution {
    /// What `params` make of `logits` (one for each id of the vocabulary) after `history`, the tokens of prompt and answer so far.
    ///
    /// Steps, in this order; each works on what the one before left:
    /// 1. repetition penalty: the logit of each token that occurs in `history` is divided by it if positive, else multiplied;
    /// 2. temperature: logits are divided by it. Zero: all the probability goes to the largest logit, the lowest id of several;
    /// 3. top-k: the k largest stay; of equal ones the lowest ids;
    /// 4. top-p: the fewest tokens, largest first, whose probabilities reach p; of equal ones the lowest ids first; at least one;
    /// 5. min-p: those with at least min-p times the largest probability;
    /// 6. renormalisation.
    ///
    /// # Errors
    /// Parameters out of range, no logits, a logit that is not finite, or an id in `history` beyond the vocabulary.
    pub fn new(logits: &[f32], params: &SamplingParams, history: &[u32]) -> Result<Self, SamplingError> {
        params.check()?;
        if params.repetition_penalty == 1.0 {
            return Self::of_scores(logits, params);
        }
        let mut scores = logits.to_vec();
        penalise(&mut scores, logits, params.repetition_penalty, history)?;
        Self::of_scores(&scores, params)
    }

    /// All the probability on one token.
    #[must_use]
    pub fn certain(id: u32) -> Self {
        Self { ids: vec![id], probabilities: vec![1.0] }
    }

    /// A distribution from weights, not necessarily normalised; ids with weight zero are left out.
    ///
    /// # Errors
    /// [`SamplingError::Weights`] unless ids rise and weights are finite, not negative, and not all zero.
    pub fn from_weights(weights: &[(u32, f64)]) -> Result<Self, SamplingError> {
        let rising = weights.windows(2).all(|w| w[0].0 < w[1].0);
        let sound = weights.iter().all(|&(_, w)| w.is_finite() && w >= 0.0);
        let total: f64 = weights.iter().map(|&(_, w)| w).sum();
        if !(rising && sound && total > 0.0 && total.is_finite()) {
            return Err(SamplingError::Weights);
        }
        Ok(Self::normalised(weights.iter().copied().filter(|&(_, w)| w > 0.0).collect()))
    }

    /// The tokens that can come, rising.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Their probabilities, in the same order.
    #[must_use]
    pub fn probabilities(&self) -> &[f64] {
        &self.probabilities
    }

    /// The probability of `id`; zero if it cannot come.
    #[must_use]
    pub fn probability(&self, id: u32) -> f64 {
        self.ids.binary_search(&id).map_or(0.0, |at| self.probabilities[at])
    }

    /// The token, if only one can come.
    #[must_use]
    pub fn only(&self) -> Option<u32> {
        match self.ids[..] {
            [id] => Some(id),
            _ => None,
        }
    }

    /// The token at `u` in [0, 1): tokens take stretches as long as their probabilities, in the order of their ids.
    #[must_use]
    pub fn sample(&self, u: f64) -> u32 {
        let total: f64 = self.probabilities.iter().sum();
        let target = u * total;
        let mut sum = 0.0;
        for (&id, &p) in self.ids.iter().zip(&self.probabilities) {
            sum += p;
            if target < sum {
                return id;
            }
        }
        // `u` so near to 1 that u × total rounds up to the total.
        self.last()
    }

    fn last(&self) -> u32 {
        *self.ids.last().expect("a distribution has a token")
    }

    fn of_scores(scores: &[f32], params: &SamplingParams) -> Result<Self, SamplingError> {
        let (best, best_score) = largest(scores)?;
        if params.temperature == 0.0 {
            return Ok(Self::certain(best));
        }
        // Weights relative to the largest, which so has exactly 1. Dividing by T keeps the order, so top-k can come before it.
        let weight = |score: f32| ((f64::from(score) - f64::from(best_score)) / f64::from(params.temperature)).exp();
        let top_k = params.top_k as usize;
        let mut tokens: Vec<(u32, f64)> = if top_k == 0 || top_k >= scores.len() {
            (0u32..).zip(scores).map(|(id, &s)| (id, weight(s))).collect()
        } else {
            let mut tokens: Vec<(u32, f32)> = (0u32..).zip(scores.iter().copied()).collect();
            tokens.select_nth_unstable_by(top_k - 1, |a, b| larger_first(*a, *b));
            tokens.truncate(top_k);
            tokens.sort_unstable_by_key(|&(id, _)| id);
            tokens.into_iter().map(|(id, s)| (id, weight(s))).collect()
        };
        if params.top_p < 1.0 {
            keep_top_p(&mut tokens, f64::from(params.top_p));
        }
        let least = f64::from(params.min_p);
        // Weights that are zero in an f64 can go, too.
        tokens.retain(|&(_, w)| w >= least && w > 0.0);
        Ok(Self::normalised(tokens))
    }

    /// `tokens` rising by id, all weights positive, at least one.
    pub(super) fn normalised(tokens: Vec<(u32, f64)>) -> Self {
        let total: f64 = tokens.iter().map(|&(_, w)| w).sum();
        let (ids, probabilities) = tokens.into_iter().map(|(id, w)| (id, w / total)).unzip();
        Self { ids, probabilities }
    }
}

/// The id of the largest logit, the lowest of several: one pass.
///
/// # Errors
/// No logits, or one that is not finite.
pub fn greedy(logits: &[f32]) -> Result<u32, SamplingError> {
    largest(logits).map(|(id, _)| id)
}

fn largest(scores: &[f32]) -> Result<(u32, f32), SamplingError> {
    let mut best: Option<(u32, f32)> = None;
    for (id, &score) in (0u32..).zip(scores) {
        if !score.is_finite() {
            return Err(SamplingError::Logit { id, value: score });
        }
        if best.is_none_or(|(_, b)| score > b) {
            best = Some((id, score));
        }
    }
    best.ok_or(SamplingError::NoLogits)
}

/// Changes each token of `history` once, however often it occurs.
fn penalise(scores: &mut [f32], logits: &[f32], penalty: f32, history: &[u32]) -> Result<(), SamplingError> {
    for &id in history {
        let (Some(score), Some(&logit)) = (scores.get_mut(id as usize), logits.get(id as usize)) else {
            return Err(SamplingError::History { id, vocabulary: logits.len() });
        };
        // From the given logit, not from the score: so a second time changes nothing.
        let penalised = if logit > 0.0 { logit / penalty } else { logit * penalty };
        // A finite logit must not leave the range by the penalty; a wrong one must not hide in it.
        *score = if logit.is_finite() { penalised.clamp(f32::MIN, f32::MAX) } else { logit };
    }
    Ok(())
}

/// Total on finite numbers: larger first, then lower ids. `total_cmp` would part -0 from 0.
fn larger_first<T: PartialOrd>(a: (u32, T), b: (u32, T)) -> Ordering {
    b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal).then(a.0.cmp(&b.0))
}

/// Sorts only as far as the sum needs it: a nucleus is usually a few hundred tokens of a hundred thousand.
fn keep_top_p(tokens: &mut Vec<(u32, f64)>, top_p: f64) {
    const FIRST: usize = 256;
    let enough = top_p * tokens.iter().map(|&(_, w)| w).sum::<f64>();
    let (mut sorted, mut sum) = (0, 0.0);
    let mut step = FIRST;
    let kept = 'search: loop {
        let rest = &mut tokens[sorted..];
        if rest.is_empty() {
            // The parts, added in another order, can fall short of the whole by rounding.
            break sorted;
        }
        let part = step.min(rest.len());
        if part < rest.len() {
            rest.select_nth_unstable_by(part - 1, |a, b| larger_first(*a, *b));
        }
        rest[..part].sort_unstable_by(|a, b| larger_first(*a, *b));
        for (offset, &(_, weight)) in rest[..part].iter().enumerate() {
            sum += weight;
            if sum >= enough {
                break 'search sorted + offset + 1;
            }
        }
        sorted += part;
        step *= 4;
    };
    tokens.truncate(kept);
    tokens.sort_unstable_by_key(|&(id, _)| id);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn params() -> SamplingParams {
        SamplingParams { temperature: 1.0, ..SamplingParams::default() }
    }

    /// Logits of these probabilities.
    fn logits(probabilities: &[f32]) -> Vec<f32> {
        probabilities.iter().map(|p| p.ln()).collect()
    }

    fn kept(logits: &[f32], params: &SamplingParams) -> Vec<u32> {
        Distribution::new(logits, params, &[]).expect("valid").ids().to_vec()
    }

    #[test]
    fn greedy_takes_the_lowest_id_of_the_largest() {
        assert_eq!(greedy(&[1.0, 3.0, 3.0, -1.0]).expect("finite"), 1);
        assert_eq!(greedy(&[-0.0, 0.0]).expect("finite"), 0);
        let zero = SamplingParams { temperature: 0.0, ..params() };
        assert_eq!(Distribution::new(&[1.0, 3.0, 3.0], &zero, &[]).expect("valid"), Distribution::certain(1));
    }

    #[test]
    fn softmax_is_over_the_temperature() {
        let half = SamplingParams { temperature: 0.5, ..params() };
        let d = Distribution::new(&logits(&[0.2, 0.8]), &half, &[]).expect("valid");
        // Probabilities to the power of 1/T, renormalised.
        assert!((d.probability(0) - 0.04 / 0.68).abs() < 1e-6);
        assert!((d.probability(1) - 0.64 / 0.68).abs() < 1e-6);
        assert_eq!(d.probability(2), 0.0);
    }

    #[test]
    fn huge_logits_neither_overflow_nor_vanish() {
        let d = Distribution::new(&[f32::MAX, f32::MIN, f32::MAX], &params(), &[]).expect("valid");
        assert_eq!((d.ids(), d.probabilities()), (&[0, 2][..], &[0.5, 0.5][..]));
        let tiny = SamplingParams { temperature: f32::MIN_POSITIVE, ..params() };
        assert_eq!(kept(&[1.0, 2.0, 1.5], &tiny), [1]);
    }

    #[test]
    fn top_k_keeps_exactly_k_with_low_ids_first() {
        let scores = [1.0, 2.0, 2.0, 0.0, 2.0];
        for (k, ids) in [
            (1, &[1][..]),
            (2, &[1, 2]),
            (3, &[1, 2, 4]),
            (4, &[0, 1, 2, 4]),
            (5, &[0, 1, 2, 3, 4]),
            (99, &[0, 1, 2, 3, 4]),
            (0, &[0, 1, 2, 3, 4]),
        ] {
            let top_k = SamplingParams { top_k: k, ..params() };
            assert_eq!(kept(&scores, &top_k), ids, "k = {k}");
        }
    }

    #[test]
    fn top_p_keeps_the_token_that_reaches_p_and_none_after_it() {
        // Powers of two, so that the sums are exact.
        let scores = [0.125f32, 0.5, 0.25, 0.125].map(f32::log2);
        let ln2 = SamplingParams { temperature: 1.0 / std::f32::consts::LN_2, ..params() };
        for (p, ids) in [
            (0.01, &[1][..]),
            (0.499, &[1]),
            (0.501, &[1, 2]),
            (0.749, &[1, 2]),
            // Equal ones: the lower id first.
            (0.751, &[0, 1, 2]),
            (0.88, &[0, 1, 2, 3]),
            (1.0, &[0, 1, 2, 3]),
        ] {
            let top_p = SamplingParams { top_p: p, ..ln2 };
            assert_eq!(kept(&scores, &top_p), ids, "p = {p}");
        }
    }

    #[test]
    fn top_p_boundary_is_inclusive() {
        // Two equal weights of exactly 1: a half is reached by the first.
        let half = SamplingParams { top_p: 0.5, ..params() };
        assert_eq!(kept(&[3.0, 3.0], &half), [0]);
    }

    #[test]
    fn min_p_is_relative_to_the_largest_and_inclusive() {
        let scores = [0.0, -1.0, -2.0];
        let at = (-1.0f64).exp();
        for (p, ids) in [((at - 1e-6) as f32, &[0, 1][..]), ((at + 1e-6) as f32, &[0]), (1.0, &[0]), (0.0, &[0, 1, 2])]
        {
            let min_p = SamplingParams { min_p: p, ..params() };
            assert_eq!(kept(&scores, &min_p), ids, "p = {p}");
        }
        let one = SamplingParams { min_p: 1.0, ..params() };
        assert_eq!(kept(&[5.0, 5.0, 4.9], &one), [0, 1]);
    }

    #[test]
    fn top_p_counts_what_top_k_left() {
        let scores = logits(&[0.4, 0.3, 0.2, 0.1]);
        let both = SamplingParams { top_k: 2, top_p: 0.5, ..params() };
        // 0.4 / 0.7 = 0.57 reaches a half; 0.4 alone would not.
        assert_eq!(kept(&scores, &both), [0]);
    }

    #[test]
    fn repetition_penalty_divides_positive_and_multiplies_negative_logits_once() {
        let penalty = SamplingParams { repetition_penalty: 2.0, ..params() };
        let given = Distribution::new(&[2.0, -1.0, 1.0], &penalty, &[0, 0, 1]).expect("valid");
        let expected = Distribution::new(&[1.0, -2.0, 1.0], &params(), &[]).expect("valid");
        assert_eq!(given, expected);
        let greedy = SamplingParams { temperature: 0.0, ..penalty };
        assert_eq!(Distribution::new(&[2.0, -1.0, 1.5], &greedy, &[0]).expect("valid").only(), Some(2));
    }

    #[test]
    fn faults_are_errors_with_values() {
        let message = |logits: &[f32], params: &SamplingParams, history: &[u32]| {
            Distribution::new(logits, params, history).expect_err("must be refused").to_string()
        };
        assert_eq!(message(&[0.0, f32::NAN], &params(), &[]), "logit of token 1 is NaN, not a finite number");
        let penalty = SamplingParams { repetition_penalty: 2.0, ..params() };
        assert_eq!(message(&[f32::INFINITY], &penalty, &[0]), "logit of token 0 is inf, not a finite number");
        assert_eq!(message(&[], &params(), &[]), "there are no logits");
        assert_eq!(message(&[0.0], &penalty, &[1]), "token 1 in the history is beyond the vocabulary of 1 tokens");
        assert!(matches!(greedy(&[0.0, f32::NEG_INFINITY]), Err(SamplingError::Logit { id: 1, .. })));
    }

    #[test]
    fn sample_cuts_the_unit_interval_by_probability() {
        let d = Distribution::from_weights(&[(2, 1.0), (5, 2.0), (9, 1.0)]).expect("valid");
        for (u, id) in [(0.0, 2), (0.249, 2), (0.25, 5), (0.749, 5), (0.75, 9), (1.0f64.next_down(), 9)] {
            assert_eq!(d.sample(u), id, "u = {u}");
        }
    }

    #[test]
    fn weights_that_are_none_are_refused() {
        for weights in [&[][..], &[(0, 0.0)], &[(0, -1.0), (1, 2.0)], &[(1, 1.0), (0, 1.0)], &[(0, f64::NAN)]] {
            assert!(Distribution::from_weights(weights).is_err(), "{weights:?}");
        }
    }

    /// The definition, with a full sort and no shortcuts.
    fn naive(logits: &[f32], params: &SamplingParams) -> Vec<u32> {
        let best = logits.iter().copied().fold(f32::MIN, f32::max);
        let mut tokens: Vec<(u32, f64)> = (0u32..)
            .zip(logits)
            .map(|(id, &l)| (id, ((f64::from(l) - f64::from(best)) / f64::from(params.temperature)).exp()))
            .collect();
        tokens.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        if params.top_k > 0 {
            tokens.truncate(params.top_k as usize);
        }
        let mut by_id = tokens.clone();
        by_id.sort_by_key(|t| t.0);
        let total: f64 = by_id.iter().map(|t| t.1).sum();
        let mut sum = 0.0;
        let mut ids = Vec::new();
        for (id, weight) in tokens {
            if params.top_p == 1.0 || sum < f64::from(params.top_p) * total {
                sum += weight;
                if weight >= f64::from(params.min_p) && weight > 0.0 {
                    ids.push(id);
                }
            }
        }
        ids.sort_unstable();
        ids
    }

    proptest! {
        #[test]
        fn partial_selection_keeps_what_a_full_sort_keeps(
            // Few different values: many ties. Long enough for several rounds of the search.
            logits in prop::collection::vec((-40i8..40).prop_map(|x| f32::from(x) / 8.0), 1..3000),
            top_k in prop_oneof![Just(0u32), 1u32..3000],
            top_p in prop_oneof![Just(1.0f32), 0.01f32..1.0],
            min_p in prop_oneof![Just(0.0f32), 0.0f32..0.5],
            temperature in 0.1f32..4.0,
        ) {
            let params = SamplingParams { temperature, top_k, top_p, min_p, ..params() };
            let d = Distribution::new(&logits, &params, &[]).expect("valid");
            prop_assert_eq!(d.ids(), naive(&logits, &params));
            let total: f64 = d.probabilities().iter().sum();
            prop_assert!((total - 1.0).abs() < 1e-12);
        }
    }
}
