//! DeepSeek-V3.2 in mode `fp8` against deepseek-ai's inference code, half a layer at a time; `pond_tests::forced` says how.

use host::cpu::Isa;
use model::Numerics;
use pond_tests::Pond;
use pond_tests::forced::{check_forced, forced};

#[test]
fn every_half_layer_agrees_with_the_official_program() {
    for name in ["short", "long"] {
        let mut pond = Pond::new(forced(name), 3, Numerics::Fp8, Isa::best());
        println!("{name}: {}", check_forced(&mut pond, name).join("\n    "));
    }
}

#[test]
#[should_panic(expected = "relative error")]
fn the_limits_tell_mode_bf16_from_mode_fp8() {
    let mut pond = Pond::new(forced("short"), 3, Numerics::Bf16, Isa::best());
    check_forced(&mut pond, "short");
}
