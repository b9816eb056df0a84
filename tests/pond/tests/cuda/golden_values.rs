//! Against golden data: every value in mode exact, every half layer in mode fp8.

use std::io::Write;

use model::Numerics;
use model::program::Model;
use pond_tests::forced::{check_forced, forced};
use pond_tests::{Pond, checks, load};

use crate::{gpu_stage, has_gpu, options};

fn pond(model: Model, numerics: Numerics) -> Pond {
    Pond::with(model, 3, numerics, |model, sources, recorder| {
        let mut stage = gpu_stage(model.clone(), options(&model, numerics, sources));
        stage.observe(Some(recorder)).expect("the same programs");
        Box::new(stage)
    })
}

#[test]
fn golden_values_hold_in_mode_exact() {
    if !has_gpu() {
        return;
    }
    for name in ["short", "long"] {
        checks::check_case(&mut pond(load(&golden::deepseek_v32_tiny()), Numerics::Exact), name);
    }
}

#[test]
fn golden_values_hold_in_mode_fp8_half_layer_by_half_layer() {
    if !has_gpu() {
        return;
    }
    for name in ["short", "long"] {
        let measured = check_forced(&mut pond(forced(name), Numerics::Fp8), name);
        let _ = writeln!(std::io::stderr(), "{name}: {}", measured.join("\n    "));
    }
}
