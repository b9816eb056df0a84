//! Converted folders: the same bits as from the checkpoint, in either exact format, and the golden limits from slice files.

use decode::{Engine, EngineOptions};
use golden::Case;
use golden::compare::assert_close;
use host::cpu::Isa;
use host::stage::Layers;
use model::Numerics;
use model::checkpoint::Checkpoint;
use model::converted::{FormatChoice, Options, convert};
use pond_tests::{Answer, Pond, answer, duckling_folder, greedy_request, load};
use std::path::Path;

fn converted(source: &Path, format: fp9::Format) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let checkpoint = Checkpoint::open(source).expect("a good checkpoint");
    let options = Options { format: FormatChoice::Only(format), ..Options::default() };
    let report = convert(&checkpoint, &folder.path().join("out"), &options, &|_| {}).expect("room for a small model");
    assert!(report.rounding.is_exact(), "{format:?} holds every e4m3 value");
    folder
}

fn run(folder: &Path, prompt: &[u32], ducks: usize) -> Answer {
    let options = EngineOptions { ducks, ..EngineOptions::default() };
    let mut engine = Engine::new(load(folder), &options).expect("good options");
    answer(&mut engine, &greedy_request(prompt, 24, true))
}

#[test]
fn converted_models_give_the_checkpoints_bits() {
    let duckling = golden::duckling_greedy().into_iter().find(|c| c.prompt_ids.len() > 300).expect("a long prompt");
    let tiny = Case::open("deepseek-v32-tiny", "long");
    for (source, prompt) in
        [(duckling_folder(), &duckling.prompt_ids[..300]), (golden::deepseek_v32_tiny(), &tiny.prompt[..])]
    {
        let want = run(&source, prompt, 1);
        for format in [fp9::Format::E4m3, fp9::Format::Fp9] {
            let folder = converted(&source, format);
            for ducks in [1, 3] {
                let got = run(&folder.path().join("out"), prompt, ducks);
                assert!(got == want, "{}, {format:?}, {ducks} ducks: {got:?} for {want:?}", source.display());
            }
        }
    }
}

#[test]
fn golden_values_hold_from_slice_files() {
    for format in [fp9::Format::E4m3, fp9::Format::Fp9] {
        let folder = converted(&golden::deepseek_v32_tiny(), format);
        let case = Case::open("deepseek-v32-tiny", "short");
        let mut pond = Pond::new(load(&folder.path().join("out")), 5, Numerics::Exact, Isa::best());
        let logits = pond.pass(Layers::Main, 0, &case.sequence()).concat();
        assert_close("logits", &logits, &case.tensor("logits").data, 1e-4);
        for layer in 0..4 {
            let recorded = pond.recorded();
            let got: Vec<f32> = recorded.rows[&format!("layers.{layer}.hidden")].values().flatten().copied().collect();
            assert_close("hidden", &got, &case.tensor(&format!("layers.{layer}.hidden")).data, 1e-4);
        }
    }
}
