//! The CUDA stage on a real GPU: against golden data and the CPU stage operation by operation, and against itself bit by bit.
//!
//! Without a GPU these tests say so and pass; with `DUCKPOND_REQUIRE_GPU=1` they fail then. `DUCKPOND_TEST_GRAPHS=0` and `DUCKPOND_TEST_OVERLAP=0`
//! leave out graphs and early starts, to find out which of them a fault lies in. A program that was carried to another machine runs in the
//! repository's root.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flock::Flock;
use host::cpu::{CpuOptions, CpuStage, Isa};
use host::cuda::{CudaOptions, CudaStage, Measurement, Needs, probe};
use host::observe::{Observer, Seen};
use host::stage::{Choice, Lane, Layers, PassId, PassSpec, Progress, Rule, SequenceId, Stage};
use model::Numerics;
use model::program::{Model, Op, View};
use model::sampling::SamplingParams;
use model::synthetic;
use pond_tests::{Pond, checks, duckling_folder, load};

/// Lanes of the largest pass.
const MAX_LANES: usize = 2048;

/// Says what the tests run on, or that they cannot.
fn has_gpu() -> bool {
    let probe = probe();
    let why = match (&probe.device, &probe.nvrtc) {
        (Ok(device), Ok(_)) => {
            let _ = writeln!(std::io::stderr(), "on {} (CUDA {})", device.name, device.driver_text());
            return true;
        }
        (Err(error), _) | (_, Err(error)) => error.to_string(),
    };
    // Not by `println!`, whose lines a passing test keeps to itself.
    let _ = writeln!(std::io::stderr(), "the CUDA stage is not tested: {why}");
    let required = std::env::var("DUCKPOND_REQUIRE_GPU").is_ok_and(|value| value == "1");
    assert!(!required, "DUCKPOND_REQUIRE_GPU is set, and {why}");
    false
}

fn options(model: &Model, numerics: Numerics, sources: usize) -> CudaOptions {
    let on = |name| std::env::var(name).map_or(true, |value| value != "0");
    let mut options = CudaOptions::new(numerics, MAX_LANES, sources, model.dims.max_positions.min(MAX_LANES));
    options.bound = Duration::from_secs(10);
    options.poison = true;
    options.graphs = on("DUCKPOND_TEST_GRAPHS");
    options.overlap = on("DUCKPOND_TEST_OVERLAP");
    options
}

fn gpu_stage(model: Arc<Model>, options: CudaOptions) -> CudaStage {
    CudaStage::new(model, options, &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"))
}

/// A generated model; the folder goes with its files still mapped.
fn generated(dims: &synthetic::Dims, seed: u64) -> Model {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("checkpoint");
    synthetic::write(&synthetic::Options { folder: &path, dims, seed, shard_bytes: 1 << 30 }).expect("room");
    load(&path)
}

/// Odd sizes: ragged scale tiles, heads whose scales cannot be cut, widths without matrix instructions.
fn odd() -> synthetic::Dims {
    synthetic::Dims {
        hidden: 320,
        intermediate: 200,
        heads: 3,
        q_lora: 88,
        kv_lora: 72,
        nope: 40,
        rope: 24,
        value: 56,
        index_heads: 5,
        index_dim: 64,
        ..synthetic::Dims::tiny()
    }
}

/// The published widths of heads in fewer heads.
fn published() -> synthetic::Dims {
    synthetic::Dims {
        hidden: 1024,
        layers: 3,
        intermediate: 1152,
        moe_intermediate: 256,
        heads: 20,
        q_lora: 384,
        kv_lora: 512,
        nope: 128,
        rope: 64,
        value: 128,
        index_heads: 64,
        index_dim: 128,
        index_topk: 200,
        max_positions: 2048,
        ..synthetic::Dims::tiny()
    }
}

fn subjects() -> Vec<(&'static str, Model)> {
    vec![
        ("tiny", load(&golden::deepseek_v32_tiny())),
        ("duckling", load(&duckling_folder())),
        ("odd", generated(&odd(), 11)),
        ("published", generated(&published(), 12)),
    ]
}

fn tokens(model: &Model, count: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 33) % (model.dims.vocab as u64 - 2)) as u32 + 2
        })
        .collect()
}

#[test]
fn golden_values_hold_in_mode_exact() {
    if !has_gpu() {
        return;
    }
    for name in ["short", "long"] {
        let model = load(&golden::deepseek_v32_tiny());
        let mut pond = Pond::with(model, 3, Numerics::Exact, |model, sources, recorder| {
            let mut stage = gpu_stage(model.clone(), options(&model, Numerics::Exact, sources));
            stage.observe(Some(recorder)).expect("the same programs");
            Box::new(stage)
        });
        checks::check_case(&mut pond, name);
    }
}

/// What an operation gave.
struct Record {
    layer: u16,
    op: String,
    /// By lane: what it wrote.
    rows: Vec<Vec<f32>>,
    choices: Vec<Vec<u32>>,
}

#[derive(Default)]
struct Trace(Arc<Mutex<Vec<Record>>>);

impl Observer for Trace {
    fn after(&mut self, seen: &Seen<'_>) {
        let lanes = seen.lanes.len();
        let rows = |views: &[View]| -> Vec<Vec<f32>> {
            (0..lanes).map(|t| views.iter().flat_map(|&view| seen.row(view, t)).copied().collect()).collect()
        };
        let chosen = |t: usize| {
            let each = seen.experts.len() / lanes;
            seen.experts[t * each..][..each].iter().map(|&e| u32::from(e)).collect::<Vec<u32>>()
        };
        let mut record = Record {
            layer: seen.layer,
            op: format!("{:?}", seen.op).split([' ', '{']).next().unwrap_or_default().to_owned(),
            rows: Vec::new(),
            choices: Vec::new(),
        };
        match seen.op {
            Op::Embed { out, .. }
            | Op::Recall { out }
            | Op::RmsNorm { out, .. }
            | Op::LayerNorm { out, .. }
            | Op::Project { out, .. }
            | Op::HeadMix { out, .. }
            | Op::HeadProject { out, .. }
            | Op::AttendLatent { out, .. }
            | Op::Gated { out, .. }
            | Op::Combine { out, .. } => record.rows = rows(&[*out]),
            Op::AddRmsNorm { residual, out, .. } => record.rows = rows(&[*residual, *out]),
            Op::Rotate { x, .. } => record.rows = rows(&[*x]),
            Op::Select { .. } => {
                record.rows = seen.scores.to_vec();
                record.choices = seen.kept.to_vec();
            }
            Op::Route { .. } => {
                record.rows = seen.scores.to_vec();
                record.choices = (0..lanes).map(chosen).collect();
            }
            Op::Append { .. } | Op::Keep { .. } | Op::Logits { .. } => {}
        }
        self.0.lock().expect("no test thread panicked with it").push(record);
    }
}

/// Root mean square of the error over that of the values, and the worst element.
struct Error {
    relative: f64,
    worst: f64,
    lane: usize,
    element: usize,
    got: f32,
    want: f32,
}

fn compare(got: &[Vec<f32>], want: &[Vec<f32>], skip: &BTreeSet<usize>) -> Error {
    let (mut errors, mut squares, mut count) = (0.0f64, 0.0f64, 0usize);
    let mut worst = Error { relative: 0.0, worst: 0.0, lane: 0, element: 0, got: 0.0, want: 0.0 };
    for (t, (got, want)) in got.iter().zip(want).enumerate().filter(|(t, _)| !skip.contains(t)) {
        assert_eq!(got.len(), want.len(), "values of lane {t}");
        for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
            let error = (f64::from(g) - f64::from(w)).abs();
            let error = if error.is_nan() { f64::INFINITY } else { error };
            errors += error * error;
            squares += f64::from(w) * f64::from(w);
            count += 1;
            if error > worst.worst {
                worst = Error { worst: error, lane: t, element: i, got: g, want: w, ..worst };
            }
        }
    }
    let rms = (squares / count.max(1) as f64).sqrt().max(1e-30);
    Error { relative: (errors / count.max(1) as f64).sqrt() / rms, worst: worst.worst / rms, ..worst }
}

/// Runs the same passes on both stages and compares every operation. `limit` is on the error's root mean square in the first layer; what layers add to
/// the stream stays there, so it doubles with each, but in mode exact. Once a rounding has made some lane choose otherwise, later layers and lanes that
/// read its caches have other inputs: from there on only the first layer is compared.
fn operation_by_operation(name: &str, model: Model, numerics: Numerics, limit: f64) -> Vec<String> {
    let (gpu, cpu) = (Trace::default(), Trace::default());
    let (gpu_records, cpu_records) = (gpu.0.clone(), cpu.0.clone());
    let tokens = tokens(&model, 300, 5);
    let mut on_gpu = Pond::with(model.clone(), 3, numerics, |model, sources, _| {
        let mut stage = gpu_stage(model.clone(), options(&model, numerics, sources));
        stage.observe(Some(Box::new(gpu))).expect("the same programs");
        Box::new(stage)
    });
    let mut on_cpu = Pond::with(model, 3, numerics, |model, sources, _| {
        let options = CpuOptions { numerics, max_lanes: MAX_LANES, sources, isa: Isa::best() };
        let mut stage = CpuStage::new(model, options).expect("units that can be numbered");
        stage.observe(Some(Box::new(cpu)));
        Box::new(stage)
    });
    let mut faults = Vec::new();
    let (mut start, mut same_inputs) = (0, true);
    for count in [1, 2, 8, 9, 64, 200, 1] {
        let mut additions = 0;
        let part = &tokens[start..start + count];
        let got = on_gpu.pass(Layers::Main, start, part);
        let want = on_cpu.pass(Layers::Main, start, part);
        let mut skip = BTreeSet::new();
        let gpu = std::mem::take(&mut *gpu_records.lock().expect("no panic"));
        let cpu = std::mem::take(&mut *cpu_records.lock().expect("no panic"));
        assert_eq!(gpu.len(), cpu.len(), "operations of a pass");
        for (place, (g, w)) in gpu.iter().zip(&cpu).enumerate() {
            assert_eq!((g.layer, &g.op), (w.layer, &w.op), "operation {place}");
            let error = compare(&g.rows, &w.rows, &skip);
            // One choice that falls the other way moves everything after it: that lane is left out from there on.
            for (t, (g, w)) in g.choices.iter().zip(&w.choices).enumerate() {
                if g != w && skip.insert(t) {
                    same_inputs = false;
                    if numerics == Numerics::Exact {
                        faults.push(format!("{name}: {count} lanes, operation {place}, lane {t}: other choice"));
                    }
                }
            }
            let layer = additions / 2;
            additions += u32::from(w.op == "AddRmsNorm");
            if layer > 0 && !same_inputs {
                continue;
            }
            let limit = if numerics == Numerics::Exact { limit } else { limit * f64::from(1 << layer) };
            if error.relative > limit || error.worst.is_nan() {
                faults.push(format!(
                    "{name} {numerics:?}: {count} lanes at {start}, layer {layer}, operation {place} {}: error {:.2e} of rms, worst {:.2e} \
                     in lane {} element {}: {} instead of {}",
                    w.op, error.relative, error.worst, error.lane, error.element, error.got, error.want
                ));
            }
        }
        let error = compare(&got, &want, &skip);
        let _ = writeln!(
            std::io::stderr(),
            "{name} {numerics:?}: {count} lanes at {start}: logits differ by {:.2e} of rms, worst {:.2e}; {} lanes chose otherwise",
            error.relative,
            error.worst,
            skip.len()
        );
        if same_inputs && error.relative > 8.0 * limit {
            faults.push(format!("{name} {numerics:?}: {count} lanes at {start}: logits {:.2e}", error.relative));
        }
        start += count;
    }
    faults
}

fn report(faults: &[String]) {
    for fault in faults.iter().take(60) {
        let _ = writeln!(std::io::stderr(), "{fault}");
    }
    assert!(faults.is_empty(), "{} operations differ; the first: {}", faults.len(), faults[0]);
}

#[test]
fn every_operation_agrees_with_the_cpu_in_mode_exact() {
    if !has_gpu() {
        return;
    }
    let faults: Vec<String> = subjects()
        .into_iter()
        .flat_map(|(name, model)| operation_by_operation(name, model, Numerics::Exact, 1e-4))
        .collect();
    report(&faults);
}

#[test]
fn every_operation_agrees_with_the_cpu_in_mode_bf16() {
    if !has_gpu() {
        return;
    }
    let faults: Vec<String> = subjects()
        .into_iter()
        .flat_map(|(name, model)| operation_by_operation(name, model, Numerics::Bf16, 7e-3))
        .collect();
    report(&faults);
}

#[test]
fn every_operation_agrees_with_the_cpu_in_mode_fp8() {
    if !has_gpu() {
        return;
    }
    // One bf16 that rounds the other way may move an 8-bit value by a sixteenth of itself.
    let faults: Vec<String> = subjects()
        .into_iter()
        .flat_map(|(name, model)| operation_by_operation(name, model, Numerics::Fp8, 4e-2))
        .collect();
    report(&faults);
}

/// A stage with its ducks.
struct Bench {
    stage: CudaStage,
    flock: Flock,
}

impl Bench {
    fn new(model: &Model, numerics: Numerics, change: impl FnOnce(&mut CudaOptions)) -> Bench {
        let flock = Flock::in_process(model, 3, numerics).expect("a possible number of ducks");
        let mut options = options(model, numerics, flock.sources());
        change(&mut options);
        Bench { stage: gpu_stage(Arc::new(model.clone()), options), flock }
    }

    /// One segment, and the ducks' part of it.
    fn segment(&mut self, pass: PassId, segment: usize) {
        let ticket = self.stage.submit(pass, segment).unwrap_or_else(|error| panic!("segment {segment}: {error}"));
        while self.stage.poll(&ticket).unwrap_or_else(|error| panic!("segment {segment}: {error}")) == Progress::Running
        {
            std::thread::yield_now();
        }
        if let Some(io) = &ticket.io {
            self.flock.submit(io.clone()).expect("a well-formed step");
            while !io.is_summed() {
                self.flock.poll().expect("in-process ducks do not fail");
            }
        }
    }

    fn run(&mut self, layers: Layers, lanes: Vec<Lane>) -> PassId {
        let logits = (0..lanes.len()).collect();
        let pass = self.stage.begin(&PassSpec { layers, lanes, logits }).unwrap_or_else(|error| panic!("{error}"));
        (0..self.stage.segments(layers)).for_each(|segment| self.segment(pass, segment));
        pass
    }

    /// Bits of the logits of one pass, which is then ended.
    fn pass(&mut self, layers: Layers, lanes: Vec<Lane>) -> Vec<Vec<u32>> {
        let count = lanes.len();
        let pass = self.run(layers, lanes);
        let row = |t| self.stage.logits(pass, t).expect("asked for").iter().map(|v| v.to_bits()).collect();
        let rows = (0..count).map(row).collect();
        self.stage.end(pass);
        rows
    }

    /// Bits of the logits of all tokens, run in passes of `chunk` lanes.
    fn logits(&mut self, sequence: SequenceId, tokens: &[u32], chunk: usize) -> Vec<Vec<u32>> {
        let passes = tokens.chunks(chunk).enumerate();
        passes.flat_map(|(i, part)| self.pass(Layers::Main, lanes(sequence, i * chunk, part))).collect()
    }

    /// The same, with the MTP layer's logits behind each pass, as a prompt is read.
    fn with_drafts(&mut self, sequence: SequenceId, tokens: &[u32], chunk: usize) -> [Vec<Vec<u32>>; 2] {
        let (mut main, mut drafts) = (Vec::new(), Vec::new());
        for (i, part) in tokens.chunks(chunk).enumerate() {
            main.extend(self.pass(Layers::Main, lanes(sequence, i * chunk, part)));
            let end = i * chunk + part.len();
            if self.stage.segments(Layers::Mtp) > 0 && drafts.len() + 1 < end {
                let from = drafts.len();
                drafts.extend(self.pass(Layers::Mtp, lanes(sequence, from, &tokens[from + 1..end])));
            }
        }
        [main, drafts]
    }
}

fn lanes(sequence: SequenceId, first: usize, tokens: &[u32]) -> Vec<Lane> {
    tokens.iter().enumerate().map(|(i, &token)| Lane { sequence, position: first + i, token }).collect()
}

/// Where two sets of logits first differ.
fn first_difference(got: &[Vec<u32>], want: &[Vec<u32>]) -> Option<String> {
    let differing = got.iter().zip(want).filter(|(g, w)| g != w).count();
    got.iter().zip(want).enumerate().find(|(_, (g, w))| g != w).map(|(position, (g, w))| {
        let element = g.iter().zip(w).position(|(a, b)| a != b).expect("rows differ");
        let [g, w] = [g[element], w[element]].map(f32::from_bits);
        format!("{differing} rows, the first at position {position}, logit {element}: {g} and {w}")
    })
}

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
fn a_stage_without_ducks_can_be_measured() {
    if !has_gpu() {
        return;
    }
    let model = Arc::new(generated(&published(), 12));
    for (numerics, lanes) in [(Numerics::Bf16, 1), (Numerics::Bf16, 2), (Numerics::Fp8, 1), (Numerics::Bf16, 512)] {
        let mut options = options(&model, numerics, 0);
        (options.bound, options.random, options.poison) = (Duration::ZERO, Some(7), false);
        let mut stage = gpu_stage(model.clone(), options);
        let floor = stage.measure_bandwidth().unwrap_or_else(|error| panic!("{error}"));
        let what = Measurement { layers: Layers::Main, lanes, position: 1000, logits: 1, repeats: 20 };
        let pass = stage.measure_pass(&what).unwrap_or_else(|error| panic!("{error}"));
        let kernels = stage.measure_kernels(&what).unwrap_or_else(|error| panic!("{error}"));
        let launches: usize = kernels.iter().map(|time| time.launches).sum();
        let _ = writeln!(
            std::io::stderr(),
            "{numerics:?}, {lanes} lanes: {:.1} GB/s, a pass {:.1} us, its bytes {:.1} us, {launches} launches",
            floor / 1e9,
            pass * 1e6,
            stage.pass_bytes(Layers::Main) as f64 / floor * 1e6
        );
        for time in &kernels {
            let _ = writeln!(
                std::io::stderr(),
                "    {:20} {:4} launches {:8.1} us, bytes {:8.1} us",
                time.kernel.name(),
                time.launches,
                time.seconds * 1e6,
                time.bytes as f64 / floor * 1e6
            );
        }
        assert!(floor > 1e10 && pass > 0.0 && launches > 40, "{floor} {pass} {launches}");
        let bytes: u64 = kernels.iter().map(|time| time.bytes).sum();
        assert_eq!(bytes, stage.pass_bytes(Layers::Main), "every weight is read once");
    }
}

#[test]
fn every_subject_can_be_lowered_without_a_gpu() {
    for (name, model) in subjects() {
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
