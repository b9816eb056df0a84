//! Forty questions of Duckling's trade for each of three seeds, answered greedily and checked by arithmetic.

use decode::{Engine, EngineOptions};
use model::Numerics;
use model::tokenizer::Tokenizer;
use pond_tests::questions::{QUESTIONS, ask, recorded};
use pond_tests::{duckling_folder, load};

fn engine(numerics: Numerics) -> (Engine, Tokenizer) {
    let folder = duckling_folder();
    let tokenizer = Tokenizer::open(&folder).expect("Duckling's tokenizer");
    let options = EngineOptions { numerics, ..EngineOptions::default() };
    (Engine::new(load(&folder), &options).expect("good options"), tokenizer)
}

/// The long suites ask for more.
fn long() -> bool {
    std::env::var_os("DUCKPOND_LONG").is_some()
}

#[test]
fn nine_in_ten_answers_are_right() {
    let (mut engine, tokenizer) = engine(Numerics::Exact);
    for seed in if long() { 1..=20 } else { 1..=3 } {
        let score = ask(&mut engine, &tokenizer, seed, QUESTIONS);
        println!("seed {seed}: {} of 40 right; wrong: {:?}", score.right, score.wrong);
        assert!(score.right >= 36, "seed {seed}: {} of 40 right, 36 wanted; wrong: {:?}", score.right, score.wrong);
        if let Some(&right) = recorded(Numerics::Exact).get(seed as usize - 1) {
            assert_eq!(score.right, right, "seed {seed}, as recorded; wrong: {:?}", score.wrong);
        }
    }
}

#[test]
fn the_modes_of_the_gpu_answer_as_recorded() {
    let mut differing = Vec::new();
    for numerics in [Numerics::Bf16, Numerics::Fp8] {
        let (mut engine, tokenizer) = engine(numerics);
        // Minutes in all: the short suite asks the first seed's first questions only.
        let (seeds, questions) = if long() { (3, QUESTIONS) } else { (1, 2) };
        for (seed, right) in (1..).zip(recorded(numerics)).take(seeds) {
            let score = ask(&mut engine, &tokenizer, seed, questions);
            let told = format!("{} seed {seed}: {} right; wrong: {:?}", numerics.name(), score.right, score.wrong);
            println!("{told}");
            if score.right != right.min(questions) {
                differing.push(told);
            }
        }
    }
    assert!(differing.is_empty(), "other than recorded: {differing:?}");
}
