//! Statistics of choosing with drafts: the outcome must be distributed exactly as without them. Seeds are fixed, so a run either
//! always passes or always fails; the limits leave a right implementation one chance in a million to have been unlucky.

use model::sampling::{Distribution, Purpose, SamplingParams, Verdict, uniform, verify_draft};

const DRAWS: u64 = 200_000;

/// Draws a draft from `q` and judges it against `p`, with the engine's own random numbers.
fn with_draft(p: &Distribution, q: &Distribution, seed: u64, position: u64) -> u32 {
    let u = |purpose| uniform(seed, 0, position, purpose);
    let draft = q.sample(u(Purpose::Draft));
    match verify_draft(draft, q, p, u(Purpose::Accept), u(Purpose::Residual)) {
        Verdict::Accepted => draft,
        Verdict::Rejected(token) => token,
    }
}

/// The classic mistake: after a rejection, a token from p itself.
fn without_residual(p: &Distribution, q: &Distribution, seed: u64, position: u64) -> u32 {
    let u = |purpose| uniform(seed, 0, position, purpose);
    let draft = q.sample(u(Purpose::Draft));
    match verify_draft(draft, q, p, u(Purpose::Accept), u(Purpose::Residual)) {
        Verdict::Accepted => draft,
        Verdict::Rejected(_) => p.sample(u(Purpose::Residual)),
    }
}

/// Chi-square of `DRAWS` outcomes against `p`, as standard deviations above its mean (Wilson and Hilferty's cube root).
fn deviation(p: &Distribution, draw: impl Fn(u64) -> u32) -> f64 {
    let mut counts = vec![0u64; p.ids().len()];
    for position in 0..DRAWS {
        let token = draw(position);
        let at = p.ids().binary_search(&token);
        counts[at.unwrap_or_else(|_| panic!("token {token} has no probability"))] += 1;
    }
    let chi2: f64 = counts
        .iter()
        .zip(p.probabilities())
        .map(|(&n, probability)| {
            let expected = probability * DRAWS as f64;
            assert!(expected > 5.0, "too rare for the test: {expected}");
            (n as f64 - expected).powi(2) / expected
        })
        .sum();
    let freedom = (counts.len() - 1) as f64;
    let variance = 2.0 / (9.0 * freedom);
    ((chi2 / freedom).cbrt() - (1.0 - variance)) / variance.sqrt()
}

fn of(weights: &[f64]) -> Distribution {
    let weights: Vec<(u32, f64)> = (0u32..).zip(weights.iter().copied()).collect();
    Distribution::from_weights(&weights).expect("valid")
}

fn filtered(shift: f32, params: &SamplingParams) -> Distribution {
    let logits: Vec<f32> = (0u8..50).map(|i| 3.0 * (f32::from(i) * 0.7 + shift).sin()).collect();
    Distribution::new(&logits, params, &[]).expect("valid")
}

/// (name, p, q).
fn pairs() -> Vec<(&'static str, Distribution, Distribution)> {
    let nucleus = SamplingParams { temperature: 0.8, top_p: 0.9, ..SamplingParams::default() };
    let top_k = SamplingParams { temperature: 1.2, top_k: 7, ..SamplingParams::default() };
    vec![
        ("equal", of(&[0.1, 0.2, 0.3, 0.4]), of(&[0.1, 0.2, 0.3, 0.4])),
        ("near", of(&[0.1, 0.2, 0.3, 0.4]), of(&[0.15, 0.2, 0.3, 0.35])),
        ("reversed", of(&[0.1, 0.2, 0.3, 0.4]), of(&[0.4, 0.3, 0.2, 0.1])),
        ("disjoint", of(&[0.0, 0.0, 0.7, 0.3]), of(&[0.5, 0.5])),
        ("overlapping", of(&[0.0, 0.5, 0.3, 0.2]), of(&[0.6, 0.4])),
        ("certain draft", of(&[0.5, 0.3, 0.2]), Distribution::certain(1)),
        ("impossible draft", of(&[0.5, 0.3, 0.2]), Distribution::certain(9)),
        ("top-p", filtered(0.0, &nucleus), filtered(0.4, &nucleus)),
        ("top-k", filtered(0.0, &top_k), filtered(0.15, &top_k)),
        ("top-k against top-p", filtered(0.0, &top_k), filtered(0.2, &nucleus)),
    ]
}

#[test]
fn outcome_with_a_draft_is_distributed_as_without() {
    for (seed, (name, p, q)) in (1000..).zip(pairs()) {
        let deviation = deviation(&p, |position| with_draft(&p, &q, seed, position));
        assert!(deviation < 4.75, "{name}: {deviation} standard deviations");
    }
}

#[test]
fn plain_sampling_follows_the_distribution() {
    for (seed, (name, p, _)) in (2000..).zip(pairs()) {
        let deviation = deviation(&p, |position| p.sample(uniform(seed, 0, position, Purpose::Token)));
        assert!(deviation < 4.75, "{name}: {deviation} standard deviations");
    }
}

/// The test above would see the classic mistake, by far.
#[test]
fn leaving_out_the_residual_would_be_seen() {
    for (name, p, q) in pairs() {
        if ["equal", "disjoint", "impossible draft"].contains(&name) {
            // Nothing is rejected, or all of it: there the mistake is none.
            continue;
        }
        let deviation = deviation(&p, |position| without_residual(&p, &q, 1, position));
        assert!(deviation > 10.0, "{name}: only {deviation} standard deviations");
    }
}

#[test]
fn greedy_gives_the_same_token_with_any_draft() {
    let logits = [0.3, 2.0, 2.0, -1.0];
    let greedy = Distribution::new(&logits, &SamplingParams::default(), &[]).expect("valid");
    let q = of(&[0.25, 0.25, 0.25, 0.25]);
    for position in 0..1000 {
        assert_eq!(with_draft(&greedy, &q, 5, position), 1);
    }
}

#[test]
fn same_seed_gives_the_same_tokens_and_another_seed_others() {
    let p = of(&[0.2; 5]);
    let tokens = |seed, choice| -> Vec<u32> {
        (0..64).map(|position| p.sample(uniform(seed, choice, position, Purpose::Token))).collect()
    };
    assert_eq!(tokens(3, 0), tokens(3, 0));
    assert_ne!(tokens(3, 0), tokens(4, 0));
    assert_ne!(tokens(3, 0), tokens(3, 1));
}
