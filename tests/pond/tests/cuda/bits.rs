//! What must not change a bit: other lanes, graphs, early starts, other sequences and passes.

use std::io::Write;
use std::time::Instant;

use host::stage::{Choice, Layers, PassSpec, Rule, Stage};
use model::Numerics;
use model::sampling::SamplingParams;

use crate::bench::{Bench, first_difference, lanes};
use crate::{MAX_LANES, has_gpu, report, subjects, tokens};

#[test]
fn one_lanes_result_does_not_depend_on_the_others() {
    if !has_gpu() {
        return;
    }
    let mut faults = Vec::new();
    for (name, model) in subjects() {
        let count = model.dims.max_positions.min(MAX_LANES) - 1;
        let tokens = tokens(&model, count, 9);
        for numerics in [Numerics::Exact, Numerics::Bf16, Numerics::Fp8] {
            let mut bench = Bench::new(&model, numerics, |options| options.passes = 1);
            let sequence = bench.stage.open(count).expect("room");
            let mut want: Option<[Vec<Vec<u32>>; 2]> = None;
            for chunk in [2048, 512, 64, 9, 8, 3, 1] {
                let started = Instant::now();
                bench.stage.truncate(sequence, 0, 0);
                let tokens = if chunk < 64 { &tokens[..count.min(400)] } else { &tokens[..] };
                let got = bench.with_drafts(sequence, tokens, chunk);
                let _ = writeln!(std::io::stderr(), "{name} {numerics:?}: chunks of {chunk}: {:?}", started.elapsed());
                if !got.iter().flatten().flatten().all(|&bits| f32::from_bits(bits).is_finite()) {
                    faults.push(format!("{name} {numerics:?}: chunks of {chunk}: logits that are not finite"));
                }
                let Some(want) = &want else {
                    want = Some(got);
                    continue;
                };
                for ((got, want), part) in got.iter().zip(want).zip(["main", "MTP"]) {
                    faults.extend(
                        first_difference(got, want)
                            .map(|what| format!("{name} {numerics:?}, {part}: chunks of {chunk} and of 2048: {what}")),
                    );
                }
            }
        }
    }
    report(&faults);
}

#[test]
fn graphs_early_starts_and_poison_change_no_bit() {
    if !has_gpu() {
        return;
    }
    let mut faults = Vec::new();
    for (name, model) in subjects() {
        let tokens = tokens(&model, 120, 3);
        for numerics in [Numerics::Bf16, Numerics::Fp8, Numerics::Exact] {
            let mut want = None;
            for (graphs, overlap, poison) in
                [(false, false, false), (false, true, true), (true, false, true), (true, true, false)]
            {
                let mut bench = Bench::new(&model, numerics, |options| {
                    (options.graphs, options.overlap, options.poison) = (graphs, overlap, poison);
                });
                let sequence = bench.stage.open(200).expect("room");
                let got = bench.logits(sequence, &tokens, 4);
                match &want {
                    None => want = Some(got),
                    Some(want) => faults.extend(first_difference(&got, want).map(|what| {
                        format!("{name} {numerics:?}: graphs {graphs}, early {overlap}, poison {poison}: {what}")
                    })),
                }
            }
        }
    }
    report(&faults);
}

#[test]
fn two_sequences_and_two_passes_at_once_change_no_bit() {
    if !has_gpu() {
        return;
    }
    let mut faults = Vec::new();
    for (name, model) in subjects() {
        let numerics = Numerics::Bf16;
        let mut bench = Bench::new(&model, numerics, |options| {
            options.sequences = 2;
            options.positions *= 2;
        });
        let (first, second) = (tokens(&model, 80, 21), tokens(&model, 80, 22));
        let a = bench.stage.open(100).expect("room");
        let b = bench.stage.open(100).expect("room");
        let want = [bench.logits(a, &first, 4), bench.logits(b, &second, 4)];
        // Both in one pass.
        bench.stage.truncate(a, 0, 0);
        bench.stage.truncate(b, 0, 0);
        let mut got = [Vec::new(), Vec::new()];
        for start in (0..80).step_by(4) {
            let mut both = lanes(a, start, &first[start..start + 4]);
            both.extend(lanes(b, start, &second[start..start + 4]));
            let pass = bench.run(Layers::Main, both);
            for t in 0..8 {
                let row = bench.stage.logits(pass, t).expect("asked for").iter().map(|v| v.to_bits()).collect();
                got[t / 4].push(row);
            }
            bench.stage.end(pass);
        }
        for (got, want) in got.iter().zip(&want) {
            faults.extend(first_difference(got, want).map(|what| format!("{name}: both in one pass: {what}")));
        }
        // Two passes that overlap, of one sequence: the second follows the first through the layers.
        bench.stage.truncate(a, 0, 0);
        let mut got = Vec::new();
        for start in (0..80).step_by(8) {
            let spec = |from: usize| PassSpec {
                layers: Layers::Main,
                lanes: lanes(a, from, &first[from..from + 4]),
                logits: (0..4).collect(),
            };
            let passes =
                [start, start + 4].map(|from| bench.stage.begin(&spec(from)).unwrap_or_else(|error| panic!("{error}")));
            for segment in 0..bench.stage.segments(Layers::Main) {
                passes.iter().for_each(|&pass| bench.segment(pass, segment));
            }
            for pass in passes {
                for t in 0..4 {
                    got.push(bench.stage.logits(pass, t).expect("asked for").iter().map(|v| v.to_bits()).collect());
                }
                bench.stage.end(pass);
            }
        }
        faults.extend(first_difference(&got, &want[0]).map(|what| format!("{name}: two passes at once: {what}")));
    }
    report(&faults);
}

#[test]
fn the_token_that_the_card_chooses_is_the_largest_logit() {
    if !has_gpu() {
        return;
    }
    for (name, model) in subjects() {
        let mut bench = Bench::new(&model, Numerics::Bf16, |_| ());
        let sequence = bench.stage.open(200).expect("room");
        let tokens = tokens(&model, 40, 31);
        let params = SamplingParams::default();
        for (i, part) in tokens.chunks(8).enumerate() {
            let pass = bench.run(Layers::Main, lanes(sequence, i * 8, part));
            for lane in 0..part.len() {
                let choice = Choice {
                    lane,
                    params: &params,
                    choice_index: 0,
                    history: &[],
                    position: i * 8 + lane + 1,
                    rule: Rule::Token,
                };
                let chosen = bench.stage.choose(pass, &[choice]).expect("finite logits")[0].token;
                let logits = bench.stage.logits(pass, lane).expect("asked for");
                assert_eq!(chosen, model::sampling::greedy(logits).expect("finite"), "{name}, lane {lane}");
            }
            bench.stage.end(pass);
        }
    }
}
