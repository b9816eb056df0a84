//! Every operation of the CPU stage against the plain reference, in every mode. The GPU's turn is in `cuda/`; what passes here proves the reference.

use host::cpu::{CpuOptions, CpuStage, Isa};
use model::Numerics;
use pond_tests::operations::check;
use pond_tests::operations::compare::Findings;
use pond_tests::subjects::{self, Subject};

/// What is found where the stage computes in one mode and the reference in another, or in the same.
fn findings(subject: &Subject, isa: Isa, stage: Numerics, reference: Numerics, passes: &[usize]) -> Findings {
    check(subject.name, subject.model.clone(), reference, passes, |model, sources, observer| {
        let options = CpuOptions { numerics: stage, max_lanes: 512, sources, isa };
        let mut stage = CpuStage::new(model, options).expect("a model that it runs");
        stage.observe(Some(observer));
        Box::new(stage)
    })
}

const MODES: [Numerics; 3] = [Numerics::Exact, Numerics::Bf16, Numerics::Fp8];

fn check_subject(subject: &Subject, isa: Isa, modes: &[Numerics]) {
    for &numerics in modes {
        let findings = findings(subject, isa, numerics, numerics, subject.passes);
        println!("{} {}:\n{}", subject.name, numerics.name(), findings.summary());
        let faults = &findings.faults;
        assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults[..faults.len().min(20)].join("\n"));
    }
}

#[test]
fn every_operation_on_the_golden_model_is_what_it_says() {
    check_subject(&subjects::tiny(), Isa::best(), &MODES);
}

#[test]
fn every_operation_on_duckling_is_what_it_says() {
    check_subject(&subjects::duckling(), Isa::best(), &MODES);
}

#[test]
fn every_operation_on_odd_sizes_is_what_it_says() {
    check_subject(&subjects::odd(), Isa::best(), &MODES);
}

#[test]
fn every_operation_on_published_widths_is_what_it_says() {
    // A lane costs most here, and this mode has every step that the others have.
    check_subject(&subjects::published(), Isa::best(), &[Numerics::Fp8]);
}

#[test]
fn every_operation_in_plain_code_is_what_it_says() {
    check_subject(&subjects::odd(), Isa::Scalar, &MODES);
}

#[test]
fn one_rounding_that_is_left_out_is_found_wherever_it_is_missing() {
    let subject = subjects::tiny();
    // Without the way through 8 bits: every projection of 8-bit weights, attention over rounded latents, the indexer, and what is handed over.
    let faults = findings(&subject, Isa::best(), Numerics::Bf16, Numerics::Fp8, &[80]).faults;
    for op in ["Project by model.layers.2.self_attn.q_a_proj", "AttendLatent", "Select", "hand-over"] {
        assert!(faults.iter().any(|fault| fault.contains(op)), "nothing of {op} among {} faults", faults.len());
    }
    let spared = [
        "HeadMix",
        "HeadProject",
        "RmsNorm",
        "Rotate",
        "Gated",
        "Combine",
        "Logits",
        "weights_proj",
        "eh_proj",
        "Route",
    ];
    let spared: Vec<_> = faults.iter().filter(|fault| spared.iter().any(|op| fault.contains(op))).collect();
    assert!(spared.is_empty(), "{spared:?}");
    // Without any rounding.
    let faults = findings(&subject, Isa::best(), Numerics::Exact, Numerics::Bf16, &[3]).faults;
    for op in
        ["AddRmsNorm", "AttendLatent", "Combine", "Gated", "HeadMix", "HeadProject", "LayerNorm", "Project", "Rotate"]
    {
        assert!(faults.iter().any(|fault| fault.contains(op)), "nothing of {op} among {} faults", faults.len());
    }
}
