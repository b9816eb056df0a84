//! DeepSeek-V3.2 against Hugging Face transformers in float64, value by value, in mode `exact`.
//!
//! Limits are those of the golden data's README: 1e-4 of a tensor's rms for activations and logits, 1e-4 absolute for index scores
//! and router logits, equal choices wherever their margin is at least 1e-4.

use decode::{Engine, EngineOptions, Event, Request};
use golden::Case;
use golden::compare::{assert_close, assert_close_absolute, assert_same_choices};
use host::cpu::Isa;
use host::stage::Layers;
use model::Numerics;
use pond_tests::{Pond, load};
use std::ops::ControlFlow;

const LIMIT: f64 = 1e-4;

fn pond(isa: Isa) -> Pond {
    Pond::new(load(&golden::deepseek_v32_tiny()), 3, Numerics::Exact, isa)
}

/// Compares everything recorded for one layer; `prefix` is its name in the golden data.
fn check_layer(pond: &Pond, case: &Case, layer: usize, prefix: &str) -> usize {
    let recorded = pond.recorded();
    let mut compared = 0;
    for part in ["hidden", "attn_out", "mlp_out"] {
        let got: Vec<f32> = recorded.rows[&format!("layers.{layer}.{part}")].values().flatten().copied().collect();
        assert_close(&format!("{prefix}.{part}"), &got, &case.tensor(&format!("{prefix}.{part}")).data, LIMIT);
    }
    let (scores, kept) = (case.tensor(&format!("{prefix}.index_scores")), case.ids(&format!("{prefix}.index_topk")));
    let margins = case.tensor(&format!("{prefix}.index_margin"));
    for (&row, got) in &recorded.rows[&format!("layers.{layer}.index_scores")] {
        assert_close_absolute(&format!("{prefix}.index_scores"), got, &scores.row(row)[..=row], LIMIT);
        let chosen = &recorded.choices[&format!("layers.{layer}.index_topk")][&row];
        let name = format!("{prefix}.index_topk");
        compared += usize::from(assert_same_choices(&name, row, chosen, kept.row(row), margins.data[row], 1e-4));
    }
    if recorded.rows.contains_key(&format!("layers.{layer}.router_logits")) {
        let experts = case.ids(&format!("{prefix}.router_experts"));
        let margins = case.tensor(&format!("{prefix}.router_margin"));
        for (&row, got) in &recorded.rows[&format!("layers.{layer}.router_logits")] {
            let want = case.tensor(&format!("{prefix}.router_logits"));
            assert_close_absolute(&format!("{prefix}.router_logits"), got, want.row(row), LIMIT);
            let chosen = &recorded.choices[&format!("layers.{layer}.router_experts")][&row];
            let name = format!("{prefix}.router_experts");
            if assert_same_choices(&name, row, chosen, experts.row(row), margins.data[row], 1e-4) {
                let weights = &recorded.rows[&format!("layers.{layer}.router_weights")][&row];
                let want = case.tensor(&format!("{prefix}.router_weights"));
                assert_close_absolute(&format!("{prefix}.router_weights"), weights, want.row(row), LIMIT);
                compared += 1;
            }
        }
    }
    compared
}

fn check_case(name: &str, isa: Isa) {
    let case = Case::open("deepseek-v32-tiny", name);
    let tokens = case.sequence();
    let mut pond = pond(isa);
    let logits = pond.pass(Layers::Main, 0, &tokens).concat();
    {
        let recorded = pond.recorded();
        for part in ["embed", "final_norm"] {
            let got: Vec<f32> = recorded.rows[part].values().flatten().copied().collect();
            assert_close(part, &got, &case.tensor(part).data, LIMIT);
        }
    }
    assert_close("logits", &logits, &case.tensor("logits").data, LIMIT);
    let compared: usize = (0..4).map(|layer| check_layer(&pond, &case, layer, &format!("layers.{layer}"))).sum();
    // Four indexers and three routers; rows with a smaller margin are the few that the golden README speaks of.
    assert!(compared * 100 >= tokens.len() * 7 * 98, "only {compared} choices had room enough to compare");

    let next: Vec<u32> = case.ids("mtp.next_ids").data.iter().map(|&id| id as u32).collect();
    let drafts = pond.pass(Layers::Mtp, 0, &next).concat();
    assert_close("mtp.logits", &drafts, &case.tensor("mtp.logits").data, LIMIT);
    check_layer(&pond, &case, 4, "mtp");
    let normed: Vec<f32> = pond.recorded().rows["normed"].values().flatten().copied().collect();
    assert_close("mtp.normed", &normed, &case.tensor("mtp.normed").data, LIMIT);
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
