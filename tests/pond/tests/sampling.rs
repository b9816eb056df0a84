//! Sampled answers: repeatable for a seed, and distributed the same with drafts as without.

use std::collections::BTreeMap;

use decode::{Engine, EngineOptions};
use golden::Case;
use model::sampling::SamplingParams;
use pond_tests::{answer, greedy_request, load};

fn engine(options: &EngineOptions) -> Engine {
    Engine::new(load(&golden::deepseek_v32_tiny()), options).expect("good options")
}

fn sample(engine: &mut Engine, prompt: &[u32], seed: u64, temperature: f32, tokens: usize, mtp: bool) -> Vec<u32> {
    let mut request = greedy_request(prompt, tokens, mtp);
    request.sampling = SamplingParams { temperature, top_k: 12, seed, ..SamplingParams::default() };
    answer(engine, &request).tokens
}

#[test]
fn a_seed_gives_the_same_tokens_on_any_pond() {
    let prompt = Case::open("deepseek-v32-tiny", "short").prompt;
    for mtp in [false, true] {
        let want = sample(&mut engine(&EngineOptions::default()), &prompt, 7, 1.0, 40, mtp);
        for (ducks, threads, chunk) in [(1, 1, 512), (5, 2, 3), (16, 3, 1)] {
            let options = EngineOptions { ducks, threads, chunk, ..EngineOptions::default() };
            assert_eq!(sample(&mut engine(&options), &prompt, 7, 1.0, 40, mtp), want, "{options:?}, drafts {mtp}");
        }
        let other = sample(&mut engine(&EngineOptions::default()), &prompt, 8, 1.0, 40, mtp);
        assert_ne!(other, want, "another seed, drafts {mtp}");
    }
}

/// Two samples of the same size come from one distribution: chi-square over the values that are common enough.
fn chi_square(a: &BTreeMap<Vec<u32>, u32>, b: &BTreeMap<Vec<u32>, u32>) -> (f64, usize) {
    let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
    let (mut sum, mut cells, mut rest) = (0.0, 0, [0.0, 0.0]);
    let mut add = |x: f64, y: f64| {
        if x + y > 0.0 {
            sum += (x - y).powi(2) / (x + y);
            cells += 1;
        }
    };
    for key in keys {
        let count = |of: &BTreeMap<Vec<u32>, u32>| f64::from(of.get(key).copied().unwrap_or(0));
        if count(a) + count(b) >= 12.0 {
            add(count(a), count(b));
        } else {
            rest[0] += count(a);
            rest[1] += count(b);
        }
    }
    add(rest[0], rest[1]);
    (sum, cells - 1)
}

#[test]
fn drafts_do_not_change_the_distribution() {
    // The long suites ask for more.
    let runs = if std::env::var_os("DUCKPOND_LONG").is_some() { 6000 } else { 600 };
    let prompt = Case::open("deepseek-v32-tiny", "short").prompt;
    let mut engine = engine(&EngineOptions::default());
    let mut counts = [BTreeMap::new(), BTreeMap::new(), BTreeMap::new()];
    let mut accepted = 0;
    for seed in 0..runs {
        for (which, mtp, seed) in [(0, false, seed), (1, true, seed + runs), (2, false, seed + 2 * runs)] {
            let mut request = greedy_request(&prompt, 4, mtp);
            request.sampling = SamplingParams { temperature: 2.5, top_k: 6, seed, ..SamplingParams::default() };
            let got = answer(&mut engine, &request);
            accepted += got.accepted;
            // The second and third tokens: the ones that drafts are judged for, and that follow a verdict.
            *counts[which].entry(got.tokens[1..3].to_vec()).or_insert(0u32) += 1;
        }
    }
    assert!(accepted > runs as usize / 20, "only {accepted} drafts were accepted");
    let limit = |df: usize| df as f64 + 4.0 * (2.0 * df as f64).sqrt(); // four standard deviations
    let (drafted, df) = chi_square(&counts[0], &counts[1]);
    let (plain, plain_df) = chi_square(&counts[0], &counts[2]);
    println!("chi-square {drafted:.1} of {df} with drafts, {plain:.1} of {plain_df} without");
    assert!(df >= 6 && plain_df >= 6, "too few different tokens to compare: {df} and {plain_df}");
    assert!(plain < limit(plain_df), "the test itself is off: {plain} with {plain_df} degrees of freedom");
    assert!(drafted < limit(df), "drafts change the distribution: {drafted} with {df} degrees of freedom");
}
