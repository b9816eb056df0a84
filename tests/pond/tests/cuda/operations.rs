//! Every operation against the plain reference, from the inputs that the card itself showed.

use std::io::Write;

use model::Numerics;
use pond_tests::{operations, subjects};

use crate::{gpu_stage, has_gpu, options, report};

fn every_operation_is_what_it_says(numerics: Numerics) {
    if !has_gpu() {
        return;
    }
    let mut faults = Vec::new();
    for subject in subjects::all() {
        let name = subject.name;
        let findings = operations::check(name, subject.model, numerics, subject.passes, |model, sources, observer| {
            let mut stage = gpu_stage(model.clone(), options(&model, numerics, sources));
            stage.observe(Some(observer)).expect("the same programs");
            Box::new(stage)
        });
        let (count, summary) = (findings.faults.len(), findings.summary());
        let _ = writeln!(std::io::stderr(), "{name} {}: {count} faults\n{summary}", numerics.name());
        // Some of each model: what is wrong with one says little about the others.
        let mut findings = findings.faults;
        if count > 15 {
            findings.truncate(15);
            findings.push(format!("{name} {}: {} more", numerics.name(), count - 15));
        }
        faults.extend(findings);
    }
    report(&faults);
}

#[test]
fn every_operation_is_what_it_says_in_mode_exact() {
    every_operation_is_what_it_says(Numerics::Exact);
}

#[test]
fn every_operation_is_what_it_says_in_mode_bf16() {
    every_operation_is_what_it_says(Numerics::Bf16);
}

#[test]
fn every_operation_is_what_it_says_in_mode_fp8() {
    every_operation_is_what_it_says(Numerics::Fp8);
}
