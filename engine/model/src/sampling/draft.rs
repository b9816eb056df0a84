//! Accepting or replacing a drafted token so that nothing shows that there was a draft.
//!
//! Y. Leviathan, M. Kalman, Y. Matias, "Fast Inference from Transformers via Speculative Decoding", 2023: a draft drawn from q is
//! accepted with probability min(1, p/q); in its place comes a token drawn from what p has more than q. Then each token x comes out
//! with probability min(p, q)(x) + max(p − q, 0)(x) = p(x), whatever q is.

use super::Distribution;

/// What became of a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The draft is the token.
    Accepted,
    /// This is the token instead.
    Rejected(u32),
}

/// Judges `draft`, drawn from `q`, where the main model has `p`. `u_accept` and `u_residual` are independent uniform numbers in
/// [0, 1). Both distributions must come from the same parameters for good acceptance, but the outcome is distributed as `p` in any
/// case.
///
/// Accepted iff u·q(d) ≤ p(d), p(d) > 0 and q(d) > 0. If `p` has only one token (greedy), iff the draft is that one. A draft that
/// `q` cannot give is not accepted: q says nothing about it.
#[must_use]
pub fn verify_draft(draft: u32, q: &Distribution, p: &Distribution, u_accept: f64, u_residual: f64) -> Verdict {
    if let Some(token) = p.only() {
        return if token == draft { Verdict::Accepted } else { Verdict::Rejected(token) };
    }
    let (q_draft, p_draft) = (q.probability(draft), p.probability(draft));
    if q_draft > 0.0 && p_draft > 0.0 && u_accept * q_draft <= p_draft {
        return Verdict::Accepted;
    }
    // p = q up to rounding leaves no residual; then p itself is it.
    let token = match residual(p, q) {
        Some(residual) => residual.sample(u_residual),
        None => p.sample(u_residual),
    };
    Verdict::Rejected(token)
}

/// max(p − q, 0), renormalised; `None` if nothing is left.
#[must_use]
pub fn residual(p: &Distribution, q: &Distribution) -> Option<Distribution> {
    let mut others = q.ids().iter().zip(q.probabilities()).peekable();
    let mut tokens = Vec::new();
    for (&id, &probability) in p.ids().iter().zip(p.probabilities()) {
        while others.next_if(|&(&other, _)| other < id).is_some() {}
        let taken = others.next_if(|&(&other, _)| other == id).map_or(0.0, |(_, &taken)| taken);
        if probability > taken {
            tokens.push((id, probability - taken));
        }
    }
    (!tokens.is_empty()).then(|| Distribution::normalised(tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(weights: &[(u32, f64)]) -> Distribution {
        Distribution::from_weights(weights).expect("valid")
    }

    #[test]
    fn residual_is_what_p_has_more() {
        let p = of(&[(1, 0.5), (3, 0.25), (4, 0.25)]);
        let q = of(&[(0, 0.25), (1, 0.25), (3, 0.5)]);
        // 0.25 more at 1, less at 3, 0.25 more at 4.
        assert_eq!(residual(&p, &q), Some(of(&[(1, 0.5), (4, 0.5)])));
        assert_eq!(residual(&p, &p), None);
    }

    #[test]
    fn greedy_accepts_the_largest_and_nothing_else() {
        let q = of(&[(1, 0.5), (2, 0.5)]);
        let p = Distribution::certain(2);
        for u in [0.0, 0.5, 1.0f64.next_down()] {
            assert_eq!(verify_draft(2, &q, &p, u, u), Verdict::Accepted);
            assert_eq!(verify_draft(1, &q, &p, u, u), Verdict::Rejected(2));
            // Even for a draft that q does not know.
            assert_eq!(verify_draft(9, &q, &Distribution::certain(9), u, u), Verdict::Accepted);
        }
    }

    #[test]
    fn acceptance_turns_at_p_over_q() {
        let p = of(&[(0, 0.25), (1, 0.75)]);
        let q = of(&[(0, 0.5), (1, 0.5)]);
        assert_eq!(verify_draft(0, &q, &p, 0.5, 0.0), Verdict::Accepted);
        assert_eq!(verify_draft(0, &q, &p, 0.5f64.next_up(), 0.0), Verdict::Rejected(1));
        assert_eq!(verify_draft(1, &q, &p, 1.0f64.next_down(), 0.0), Verdict::Accepted);
    }

    #[test]
    fn a_token_that_p_excludes_never_comes_out_even_at_zero() {
        let p = of(&[(1, 0.5), (2, 0.5)]);
        let q = of(&[(0, 1.0)]);
        for u in [0.0, 0.3, 1.0f64.next_down()] {
            assert!(matches!(verify_draft(0, &q, &p, 0.0, u), Verdict::Rejected(1 | 2)));
        }
    }

    #[test]
    fn draft_that_q_cannot_give_is_not_accepted() {
        let p = of(&[(1, 0.5), (2, 0.5)]);
        let q = of(&[(1, 0.5), (3, 0.5)]);
        // The residual is all on 2, so the token is the same, but by rejection.
        assert_eq!(verify_draft(2, &q, &p, 0.0, 0.9), Verdict::Rejected(2));
    }

    #[test]
    fn empty_residual_falls_back_to_p() {
        let p = of(&[(1, 0.5), (2, 0.5)]);
        assert_eq!(verify_draft(7, &p, &p, 0.0, 0.9), Verdict::Rejected(2));
    }
}
