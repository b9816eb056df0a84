//! DeepSeek-V3.2 in mode `exact` against the golden data, for every stage.
//!
//! Limits are those of the golden data's README: 1e-4 of a tensor's rms for activations and logits, 1e-4 absolute for index scores
//! and router logits, equal choices wherever their margin is at least 1e-4.

use golden::Case;
use golden::compare::{assert_close, assert_close_absolute, assert_same_choices};
use host::stage::Layers;

use crate::Pond;

const LIMIT: f64 = 1e-4;

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

/// Runs the case's sequence through the main layers and the MTP layer and compares everything.
///
/// # Panics
/// At the first value that is too far from the recorded one.
pub fn check_case(pond: &mut Pond, name: &str) {
    let case = Case::open("deepseek-v32-tiny", name);
    let tokens = case.sequence();
    let logits = pond.pass(Layers::Main, 0, &tokens).concat();
    {
        let recorded = pond.recorded();
        for part in ["embed", "final_norm"] {
            let got: Vec<f32> = recorded.rows[part].values().flatten().copied().collect();
            assert_close(part, &got, &case.tensor(part).data, LIMIT);
        }
    }
    assert_close("logits", &logits, &case.tensor("logits").data, LIMIT);
    let compared: usize = (0..4).map(|layer| check_layer(pond, &case, layer, &format!("layers.{layer}"))).sum();
    // Four indexers and three routers; rows with a smaller margin are the few that the golden README speaks of.
    assert!(compared * 100 >= tokens.len() * 7 * 98, "only {compared} choices had room enough to compare");

    let next: Vec<u32> = case.ids("mtp.next_ids").data.iter().map(|&id| id as u32).collect();
    let drafts = pond.pass(Layers::Mtp, 0, &next).concat();
    assert_close("mtp.logits", &drafts, &case.tensor("mtp.logits").data, LIMIT);
    check_layer(pond, &case, 4, "mtp");
    let normed: Vec<f32> = pond.recorded().rows["normed"].values().flatten().copied().collect();
    assert_close("mtp.normed", &normed, &case.tensor("mtp.normed").data, LIMIT);
}
