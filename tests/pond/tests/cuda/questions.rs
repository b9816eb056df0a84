//! Duckling's questions through the production engine with stage 0 on the card, in every mode.

use std::io::Write;

use decode::{Backend, Engine, EngineOptions, Stage0};
use model::Numerics;
use model::tokenizer::Tokenizer;
use pond_tests::questions::{QUESTIONS, ask, recorded};
use pond_tests::{duckling_folder, load};

use crate::{has_gpu, report};

/// How many more or fewer of forty may be right than on the processors. Card and processors part where two logits lie so close that the order of a
/// sum decides, which in most answers happens nowhere: of 120 questions few change, most of those from one right answer to another.
const BAND: usize = 2;

#[test]
fn questions_are_answered_as_well_as_by_the_processors_in_every_mode() {
    if !has_gpu() {
        return;
    }
    let folder = duckling_folder();
    let tokenizer = Tokenizer::open(&folder).expect("Duckling's tokenizer");
    let mut faults = Vec::new();
    for numerics in [Numerics::Exact, Numerics::Bf16, Numerics::Fp8] {
        let options = EngineOptions { numerics, stage0: Stage0::Cuda, ..EngineOptions::default() };
        let mut engine = Engine::new(load(&folder), &options).expect("a card that it fits on");
        assert_eq!(engine.backend(), Backend::Cuda);
        for (seed, expected) in (1..).zip(recorded(numerics)) {
            let score = ask(&mut engine, &tokenizer, seed, QUESTIONS);
            let told = format!("{} seed {seed}: {} right, {expected} on the processors", numerics.name(), score.right);
            let _ = writeln!(std::io::stderr(), "{told}; wrong: {:?}", score.wrong);
            // In mode exact both round after 24 bits: no answer is known to differ.
            let band = if numerics == Numerics::Exact { 0 } else { BAND };
            if score.right.abs_diff(expected) > band {
                faults.push(format!("{told}; wrong: {:?}", score.wrong));
            }
        }
    }
    report(&faults);
}
