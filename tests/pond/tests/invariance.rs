//! Bit for bit equal logits, however the work is cut: ducks, plans, threads, passes, drafts, cached prefixes.

use decode::{Engine, EngineOptions};
use flock::plan::Plan;
use model::Numerics;
use model::program::Model;
use pond_tests::{Answer, answer, duckling_folder, greedy_request, load};

/// The two models, each with a prompt longer than its indexer's top-k.
fn subjects() -> Vec<(&'static str, Model, Vec<u32>)> {
    let tiny = golden::Case::open("deepseek-v32-tiny", "long").prompt;
    let long = golden::duckling_greedy().into_iter().max_by_key(|c| c.prompt_ids.len()).expect("eighteen cases");
    vec![
        ("tiny", load(&golden::deepseek_v32_tiny()), tiny),
        ("duckling", load(&duckling_folder()), long.prompt_ids[..400].to_vec()),
    ]
}

const TOKENS: usize = 24;

fn run(model: &Model, prompt: &[u32], options: &EngineOptions, mtp: bool) -> Answer {
    let mut engine = Engine::new(model.clone(), options).expect("good options");
    answer(&mut engine, &greedy_request(prompt, TOKENS, mtp))
}

fn assert_same(name: &str, got: &Answer, want: &Answer) {
    assert_eq!(got.tokens, want.tokens, "{name}");
    assert_eq!(got.logits.len(), want.logits.len(), "{name}: logits of {TOKENS} positions");
    for (position, logits) in &want.logits {
        assert!(got.logits[position] == *logits, "{name}: logits at position {position} differ");
    }
}

#[test]
fn ducks_threads_and_chunks_change_no_bit() {
    for (name, model, prompt) in subjects() {
        for numerics in [Numerics::Exact, Numerics::Bf16] {
            let base = EngineOptions { numerics, threads: 1, chunk: 512, ..EngineOptions::default() };
            let want = run(&model, &prompt, &base, false);
            assert_eq!(want.logits.len(), TOKENS);
            for (ducks, threads, chunk) in
                [(1, 2, 512), (2, 1, 64), (3, 2, 7), (4, 3, 400), (8, 2, 33), (32, 2, 128), (5, 2, 1), (32, 1, 512)]
            {
                let options = EngineOptions { ducks, threads, chunk, ..base.clone() };
                let got = run(&model, &prompt, &options, false);
                assert_same(&format!("{name}, {options:?}"), &got, &want);
            }
        }
    }
}

#[test]
fn random_plans_change_no_bit() {
    for (name, model, prompt) in subjects() {
        let options = EngineOptions::default();
        let want = run(&model, &prompt, &options, false);
        let shape = model.dims.shape().expect("a small model");
        for seed in 0..6 {
            let plan = Plan::random(shape, 2 + 3 * seed as usize, seed).expect("fewer holders than units");
            let mut engine = Engine::with_plan(model.clone(), plan, &options).expect("good options");
            let got = answer(&mut engine, &greedy_request(&prompt, TOKENS, false));
            assert_same(&format!("{name}, plan {seed}"), &got, &want);
        }
    }
}

#[test]
fn drafts_right_or_wrong_change_no_bit() {
    for (name, model, prompt) in subjects() {
        for numerics in [Numerics::Exact, Numerics::Bf16] {
            let options = EngineOptions { numerics, ..EngineOptions::default() };
            let want = run(&model, &prompt, &options, false);
            let drafted = run(&model, &prompt, &options, true);
            assert_same(&format!("{name}, drafts"), &drafted, &want);
            assert!(drafted.accepted > 0, "{name}: no draft was accepted");

            let mut engine = Engine::new(model.clone(), &options).expect("good options");
            let (mut seed, vocab) = (1u64, model.dims.vocab as u64);
            engine.replace_drafts(Some(Box::new(move |draft| {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                if seed >> 63 == 0 { draft } else { ((seed >> 20) % vocab) as u32 }
            })));
            let mixed = answer(&mut engine, &greedy_request(&prompt, TOKENS, true));
            assert_same(&format!("{name}, half of the drafts random"), &mixed, &want);
            assert!(mixed.accepted > 0 && mixed.accepted < mixed.drafts, "{name}: {mixed:?}");
        }
    }
}

#[test]
fn a_cached_prefix_changes_no_bit() {
    for (name, model, prompt) in subjects() {
        let options = EngineOptions::default();
        // Sampled as well: drafts are then part of what decides a token.
        for temperature in [0.0, 1.0] {
            let request = |prompt: &[u32], tokens, mtp| {
                let mut request = greedy_request(prompt, tokens, mtp);
                request.sampling.temperature = temperature;
                request.sampling.seed = 5;
                request
            };
            for mtp in [false, true] {
                let mut fresh = Engine::new(model.clone(), &options).expect("good options");
                let want = answer(&mut fresh, &request(&prompt, TOKENS, mtp));
                let mut engine = Engine::new(model.clone(), &options).expect("good options");
                for cut in [prompt.len() / 2, prompt.len() - 1, 1] {
                    let mut other = prompt[..cut].to_vec();
                    other.extend([3, 1, 4, 1, 5]);
                    // Two requests before, with and without drafts, so that the MTP layer's caches are level, behind, or partly of
                    // another text.
                    for before in [[false, false], [true, false], [false, true], [true, true]] {
                        answer(&mut engine, &request(&other, 9, before[0]));
                        answer(&mut engine, &request(&prompt, 5, before[1]));
                        let got = answer(&mut engine, &request(&prompt, TOKENS, mtp));
                        let case = format!("{name}, T {temperature}, {cut} cached, drafts {before:?} then {mtp}");
                        assert_same(&case, &got, &want);
                        assert_eq!((got.drafts, got.accepted), (want.drafts, want.accepted), "{case}");
                    }
                }
            }
        }
    }
}
