//! DeepSeek-V3.2 against Hugging Face transformers in float64, value by value, in mode `exact`.
//!
//! Limits are those of the golden data's README: 1e-4 of a tensor's rms for activations and logits, 1e-4 absolute for index scores
//! and router logits, equal choices wherever their margin is at least 1e-4.

use decode::{Engine, EngineOptions, Event, Request};
use golden::Case;
use host::cpu::Isa;
use model::Numerics;
use pond_tests::{Pond, load};
use std::ops::ControlFlow;

fn pond(isa: Isa) -> Pond {
    Pond::new(load(&golden::deepseek_v32_tiny()), 3, Numerics::Exact, isa)
}

fn check_case(name: &str, isa: Isa) {
    pond_tests::checks::check_case(&mut pond(isa), name);
}

#[test]
fn the_long_case_agrees_value_by_value() {
    check_case("long", Isa::best());
}

#[test]
fn the_short_case_agrees_value_by_value() {
    check_case("short", Isa::best());
}

#[test]
fn plain_code_agrees_value_by_value() {
    check_case("short", Isa::Scalar);
}

/// Position of the newest token, that token, draft, choice, accepted.
type Round = (usize, u32, u32, u32, bool);

/// Tokens, and a round for each verified draft.
fn greedy(case: &Case, mtp: bool, options: &EngineOptions) -> (Vec<u32>, Vec<Round>) {
    let mut engine = Engine::new(load(&golden::deepseek_v32_tiny()), options).expect("good options");
    let request = Request {
        prompt: case.prompt.clone(),
        sampling: model::sampling::SamplingParams::default(),
        choice_index: 0,
        max_tokens: case.greedy.len(),
        stop_tokens: Vec::new(),
        mtp,
    };
    let (mut tokens, mut trace) = (Vec::new(), Vec::new());
    engine
        .generate(&request, &mut |event| {
            if let Event::Token(token) = event {
                if let Some(draft) = token.draft {
                    let newest = *tokens.last().expect("a draft follows a token");
                    trace.push((case.prompt.len() + token.index - 1, newest, draft, token.id, token.accepted));
                }
                tokens.push(token.id);
            }
            ControlFlow::Continue(())
        })
        .expect("a good request");
    (tokens, trace)
}

#[test]
fn the_greedy_continuation_is_the_recorded_one() {
    for name in ["long", "short"] {
        let case = Case::open("deepseek-v32-tiny", name);
        for chunk in [1, 37, 512] {
            let (tokens, _) = greedy(&case, false, &EngineOptions { chunk, ..EngineOptions::default() });
            assert_eq!(tokens, case.greedy, "{name}, chunk {chunk}");
        }
    }
}

#[test]
fn drafts_and_their_verdicts_are_the_recorded_ones() {
    for name in ["long", "short"] {
        let case = Case::open("deepseek-v32-tiny", name);
        for chunk in [1, 37, 512] {
            let (tokens, trace) = greedy(&case, true, &EngineOptions { chunk, ..EngineOptions::default() });
            assert_eq!(tokens, case.greedy, "{name}, chunk {chunk}");
            let want: Vec<_> =
                case.mtp_trace.iter().map(|s| (s.position, s.token, s.draft, s.choice, s.accepted)).collect();
            // The last recorded round may lie past the end of this answer, where nothing is drafted any more.
            assert!(trace.len() + 1 >= want.len(), "{name}: {} rounds of {}", trace.len(), want.len());
            assert_eq!(trace, want[..trace.len()], "{name}, chunk {chunk}");
        }
    }
}
