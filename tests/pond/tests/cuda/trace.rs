//! Whole passes beside the CPU stage, operation by operation: what adds up from one to the next, and choices.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Arc, Mutex};

use host::cpu::{CpuOptions, CpuStage, Isa};
use host::observe::{Observer, Seen};
use host::stage::Layers;
use model::Numerics;
use model::program::{Model, Op, View};
use pond_tests::Pond;

use crate::{MAX_LANES, gpu_stage, has_gpu, options, report, subjects, tokens};

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

/// Every subject in a mode.
fn agrees(numerics: Numerics, limit: f64) {
    if !has_gpu() {
        return;
    }
    let faults: Vec<String> =
        subjects().into_iter().flat_map(|(name, model)| operation_by_operation(name, model, numerics, limit)).collect();
    report(&faults);
}

#[test]
fn every_operation_agrees_with_the_cpu_in_mode_exact() {
    agrees(Numerics::Exact, 1e-4);
}

#[test]
fn every_operation_agrees_with_the_cpu_in_mode_bf16() {
    agrees(Numerics::Bf16, 7e-3);
}

#[test]
fn every_operation_agrees_with_the_cpu_in_mode_fp8() {
    // One bf16 that rounds the other way may move an 8-bit value by a sixteenth of itself.
    agrees(Numerics::Fp8, 4e-2);
}
