//! What goes wrong: passes that are given up, ducks that come too late, a card that is too small.

use std::sync::Arc;
use std::time::{Duration, Instant};

use host::cuda::{CudaStage, Needs};
use host::stage::{Layers, PassSpec, Progress, SequenceId, Stage};
use model::Numerics;
use pond_tests::load;

use crate::bench::{Bench, first_difference, lanes};
use crate::{has_gpu, options, subjects, tokens};

#[test]
fn a_pass_that_is_given_up_leaves_the_stage_fit() {
    if !has_gpu() {
        return;
    }
    let model = load(&golden::deepseek_v32_tiny());
    let mut bench = Bench::new(&model, Numerics::Bf16, |options| options.bound = Duration::from_secs(2));
    let tokens = tokens(&model, 24, 4);
    let sequence = bench.stage.open(100).expect("room");
    let want = bench.logits(sequence, &tokens, 4);
    // Its ducks never answer, and its owner does not wait for them.
    bench.stage.truncate(sequence, 0, 0);
    let spec = PassSpec { layers: Layers::Main, lanes: lanes(sequence, 0, &tokens[..4]), logits: vec![0] };
    let pass = bench.stage.begin(&spec).expect("room");
    bench.segment(pass, 0);
    let started = Instant::now();
    bench.stage.close(sequence);
    assert!(started.elapsed() < Duration::from_secs(1), "the wait on the card was not ended: {:?}", started.elapsed());
    let sequence = bench.stage.open(100).expect("its room is free again");
    let got = bench.logits(sequence, &tokens, 4);
    assert_eq!(first_difference(&got, &want), None);
    // Its ducks come too late.
    bench.stage.truncate(sequence, 0, 0);
    let pass = bench.stage.begin(&spec_of(sequence, &tokens)).expect("room");
    let ticket = bench.stage.submit(pass, 0).expect("in order");
    while bench.stage.poll(&ticket).expect("it runs") == Progress::Running {}
    std::thread::sleep(Duration::from_secs(3));
    bench.flock.submit(ticket.io.clone().expect("a step")).expect("a well-formed step");
    while !ticket.io.as_ref().expect("a step").is_summed() {
        bench.flock.poll().expect("in-process ducks do not fail");
    }
    let late = (1..bench.stage.segments(Layers::Main)).try_for_each(|segment| {
        let ticket = bench.stage.submit(pass, segment)?;
        while bench.stage.poll(&ticket)? == Progress::Running {}
        if let Some(io) = &ticket.io {
            bench.flock.submit(io.clone()).expect("a well-formed step");
            while !io.is_summed() {
                bench.flock.poll().expect("in-process ducks do not fail");
            }
        }
        Ok::<(), host::StageError>(())
    });
    let graphs = std::env::var("DUCKPOND_TEST_GRAPHS").map_or(true, |value| value != "0");
    assert_eq!(late.is_err(), graphs, "{late:?}");
    bench.stage.end(pass);
    bench.stage.truncate(sequence, 0, 0);
    let got = bench.logits(sequence, &tokens, 4);
    assert_eq!(first_difference(&got, &want), None, "after a wait that was too long");
}

fn spec_of(sequence: SequenceId, tokens: &[u32]) -> PassSpec {
    PassSpec { layers: Layers::Main, lanes: lanes(sequence, 0, &tokens[..4]), logits: vec![0] }
}

#[test]
fn every_subject_can_be_lowered_without_a_gpu() {
    let mut subjects = subjects();
    subjects.push(("forced", pond_tests::forced::forced("short")));
    for (name, model) in subjects {
        for numerics in [Numerics::Exact, Numerics::Bf16, Numerics::Fp8] {
            let needs =
                Needs::of(&model, &options(&model, numerics, 1)).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(needs.weights > 0 && needs.caches > 0 && needs.activations > 0, "{name} {numerics:?}: {needs:?}");
        }
    }
}

#[test]
fn too_little_memory_is_told_with_both_numbers() {
    if !has_gpu() {
        return;
    }
    let model = load(&golden::deepseek_v32_tiny());
    let mut options = options(&model, Numerics::Bf16, 1);
    options.positions = 1 << 40;
    let error = CudaStage::new(Arc::new(model), options, &mut |_, _| ()).err().expect("no card has that").to_string();
    assert!(error.contains("bytes of GPU memory needed") && error.contains("free"), "{error}");
    assert!(!error.contains('\n'), "{error}");
}
