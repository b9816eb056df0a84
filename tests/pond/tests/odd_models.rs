//! Models of any sizes that a configuration may have, in every mode: they run and compute what the plain reference does, or are refused in words.

use std::sync::Arc;

use host::StageError;
use host::cpu::{CpuOptions, CpuStage, Isa};
use model::Numerics;
use model::program::Model;
use model::synthetic::Dims;
use pond_tests::operations::check;
use pond_tests::random::Random;
use pond_tests::subjects::generated;

fn stage(model: Arc<Model>, numerics: Numerics, sources: usize) -> Result<CpuStage, StageError> {
    CpuStage::new(model, CpuOptions { numerics, max_lanes: 32, sources, isa: Isa::best() })
}

/// Small sizes, most of them no multiple of anything.
fn dims(random: &mut Random) -> Dims {
    let mut from = |least: u64, most: u64| (least + random.below(most - least + 1)) as usize;
    let (groups, layers, rope) = (from(1, 4), from(1, 3), 2 * from(1, 12));
    let (in_group, groups_per_token) = (from(3, 5), from(1, groups as u64));
    Dims {
        // Other sizes are refused when the experts are packed.
        hidden: 64 * from(1, 4),
        layers,
        // A model without experts is refused when they are packed.
        dense_layers: from(0, layers as u64 - 1),
        intermediate: from(1, 200),
        moe_intermediate: 64 * from(1, 3),
        experts: groups * in_group,
        experts_per_token: from(1, (groups_per_token * in_group) as u64),
        shared_experts: from(1, 2),
        groups,
        groups_per_token,
        heads: from(1, 6),
        q_lora: from(1, 150),
        kv_lora: from(1, 150),
        nope: from(1, 50),
        rope,
        value: from(1, 50),
        index_heads: from(1, 6),
        index_dim: if from(0, 1) == 0 { 32 } else { rope + from(0, 20) },
        index_topk: from(1, 20),
        vocab: from(3, 100),
        max_positions: 64,
        mtp_layers: from(0, 1),
        yarn: from(0, 1) == 0,
        fp8: from(0, 1) == 0,
    }
}

#[test]
fn models_of_any_sizes_run_in_every_mode_or_are_refused_in_words() {
    let mut refused = 0;
    for seed in 0..16 {
        let dims = dims(&mut Random(seed));
        let model = generated(&dims, seed);
        for numerics in [Numerics::Exact, Numerics::Bf16, Numerics::Fp8] {
            if numerics == Numerics::Fp8 && !dims.index_dim.is_power_of_two() {
                let error = stage(Arc::new(model.clone()), numerics, 1).err().expect("no Hadamard matrix of that size");
                let expected = format!(
                    "the model does not run in mode fp8: its index keys are {} wide, which is no power of two; choose another with --numerics",
                    dims.index_dim
                );
                assert_eq!(error.to_string(), expected, "{dims:?}");
                refused += 1;
                continue;
            }
            let subject = format!("seed {seed}, {dims:?}");
            let findings = check(&subject, model.clone(), numerics, &[1, 3, 24], |model, sources, observer| {
                let mut stage = stage(model, numerics, sources).unwrap_or_else(|error| panic!("{subject}: {error}"));
                stage.observe(Some(observer));
                Box::new(stage)
            });
            assert!(findings.faults.is_empty(), "{}", findings.faults[..findings.faults.len().min(5)].join("\n"));
        }
    }
    assert!((3..13).contains(&refused), "{refused} of 16 sizes are refused: both kinds are wanted");
}
