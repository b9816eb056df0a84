//! DeepSeek-V3.2 in mode `fp8` against what the official program recorded, each half of a layer alone.
//!
//! In this mode one rounding that falls the other way soon changes a choice, and from there on two right programs part. So nothing is
//! compared end to end: [`forced`] puts what the official program gave in place of what every attention and feed-forward gives, by one more
//! [`Op::Embed`] behind each, whose table holds the recorded rows by position. Every half layer then starts from the recorded stream, in both
//! stages, and no stage needs to know of it.
//!
//! The limits say where the two programs round alike and where they don't. The golden README has the same arithmetic.

use golden::TensorSet;
use host::stage::Layers;
use model::checkpoint::{Checkpoint, DType, Matrix};
use model::numerics::round_to_bf16;
use model::program::{MatrixId, Model, Op, Program, View};

use crate::Pond;

/// Tensors of this name replace what ops computed; the recorder does not take them for a pass's start.
pub(crate) const FORCED: &str = "forced.";

const MODEL: &str = "deepseek-v32-tiny";

/// Both programs round in the same places: another order of sums, and single elements by one step of bf16 or e4m3.
const SAME: f64 = 1e-3;
/// Scores of the indexer, where one of 128 values of a key may have moved by one step of e4m3.
const SCORES: f64 = 5e-3;
/// Part of the choices that must be the recorded ones. Where a rounding fell the other way a close one may be.
const CHOICES: f64 = 0.98;
/// Attention: the recorded prompt ran in the expanded form, whose keys and values go through 8 bits once more, this one runs absorbed.
const ATTENTION: f64 = 3e-2;
/// Experts: the recorded program takes the last projection's input through 8 bits, this one leaves it in bf16.
const EXPERTS: f64 = 3e-2;

/// A model whose every half layer starts from what was recorded for the case; its tokens are positions.
pub fn forced(name: &str) -> Model {
    let recorded = golden::fp8path(MODEL, name);
    let mut model = crate::load(&golden::deepseek_v32_tiny());
    let mut tables = Vec::new();
    let ids = |name: &str| recorded.ids(name).data.iter().map(|&id| id as usize).collect::<Vec<_>>();
    for (tokens, program) in [("input_ids", Some(&model.main)), ("mtp.next_ids", model.mtp.as_ref())] {
        let Some(Op::Embed { table, .. }) = program.and_then(|program| program.segments[0].before.first()) else {
            panic!("a program starts with its embedding")
        };
        let matrix = &model.weights.matrices[table.0 as usize];
        let rows = ids(tokens).into_iter().map(|token| {
            let mut row = vec![0.0; matrix.cols];
            matrix.row_to_f32(token, &mut row);
            row
        });
        tables.push((format!("positions.{tokens}"), rows.flatten().collect()));
    }
    for part in (0..4).map(|layer| format!("layers.{layer}")).chain(["mtp".into()]) {
        for half in ["attn_out", "mlp_out"] {
            let name = format!("{part}.{half}");
            tables.push((format!("{FORCED}{name}"), recorded.tensor(&name).data));
        }
    }
    tables.push((format!("{FORCED}final_norm"), recorded.tensor("final_norm").data));
    let first = model.weights.matrices.len() as u32;
    model.weights.matrices.extend(matrices(&tables, model.dims.vocab, model.dims.hidden));
    let table = |name: &str| {
        let at = tables.iter().position(|(table, _)| table == name).expect("made above");
        MatrixId(first + at as u32)
    };
    let names: Vec<String> = model.weights.matrices.iter().map(|matrix| matrix.data.name().to_owned()).collect();
    let numbered = |layer: usize| format!("layers.{layer}");
    force(&mut model.main, &names, table("positions.input_ids"), &|layer, part| {
        table(&format!("{FORCED}{}", part.map_or("final_norm".into(), |part| format!("{}.{part}", numbered(layer)))))
    });
    let mtp = model.mtp.as_mut().expect("the model has one");
    force(mtp, &names, table("positions.mtp.next_ids"), &|_, part| {
        table(&format!("{FORCED}mtp.{}", part.expect("an MTP layer keeps nothing")))
    });
    model
}

/// Matrices of bf16, padded with zeros to `rows` rows, from a file that goes with the last of them.
fn matrices(tables: &[(String, Vec<f32>)], rows: usize, cols: usize) -> Vec<Matrix> {
    let size = rows * cols * 2;
    let header: Vec<String> = tables
        .iter()
        .enumerate()
        .map(|(i, (name, _))| {
            let (from, to) = (i * size, (i + 1) * size);
            format!("\"{name}\":{{\"dtype\":\"BF16\",\"shape\":[{rows},{cols}],\"data_offsets\":[{from},{to}]}}")
        })
        .collect();
    let header = format!("{{{}}}", header.join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    for (name, values) in tables {
        let start = file.len();
        for &value in values {
            assert_eq!(round_to_bf16(value), value, "{name} holds bf16");
            file.extend(((value.to_bits() >> 16) as u16).to_le_bytes());
        }
        file.resize(start + size, 0);
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).expect("room");
    write("config.json", b"{}");
    write("model.safetensors", &file);
    let checkpoint = Checkpoint::open(folder.path()).expect("a well-formed file");
    let matrix = |(name, _): &(String, Vec<f32>)| checkpoint.matrix(name, [rows, cols], &[DType::BF16]);
    tables.iter().map(|table| matrix(table).expect("written above")).collect()
}

/// Replaces the embedding, and puts a table's rows behind whatever gives a half layer's output or a state that is kept.
fn force(
    program: &mut Program,
    names: &[String],
    positions: MatrixId,
    table: &dyn Fn(usize, Option<&str>) -> MatrixId,
) {
    let mut additions = 0;
    for segment in &mut program.segments {
        for ops in [&mut segment.before, &mut segment.during] {
            let mut forced = Vec::new();
            for mut op in std::mem::take(ops) {
                let layer = additions / 2;
                let behind = |half, out: View| Some(Op::Embed { table: table(layer, Some(half)), out });
                let follows = match &mut op {
                    Op::Embed { table, .. } => {
                        *table = positions;
                        None
                    }
                    Op::AddRmsNorm { .. } => {
                        additions += 1;
                        None
                    }
                    Op::Project { weight, out, .. } => match &names[weight.0 as usize] {
                        name if name.ends_with("self_attn.o_proj.weight") => behind("attn_out", *out),
                        name if name.ends_with("mlp.down_proj.weight") => behind("mlp_out", *out),
                        _ => None,
                    },
                    Op::Combine { out, .. } => behind("mlp_out", *out),
                    Op::Keep { x } => {
                        forced.push(Op::Embed { table: table(layer, None), out: *x });
                        None
                    }
                    _ => None,
                };
                forced.push(op);
                forced.extend(follows);
            }
            *ops = forced;
        }
    }
    program.check().expect("views as they were");
}

/// Root of the mean square error over that of what was recorded.
fn relative(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len(), "number of elements (got, want)");
    let square = |v: f64| v * v;
    let errors: f64 = got.iter().zip(want).map(|(&g, &w)| square(f64::from(g) - f64::from(w))).sum();
    (errors / want.iter().map(|&w| square(f64::from(w))).sum::<f64>()).sqrt()
}

/// What differs more than it may, and what was measured.
#[derive(Default)]
struct Report {
    faults: Vec<String>,
    measured: Vec<String>,
}

impl Report {
    fn close(&mut self, name: &str, got: &[f32], want: &[f32], limit: f64) {
        let error = relative(got, want);
        self.measured.push(format!("{name} {error:.2e}"));
        // A NaN must not pass.
        if error.is_nan() || error > limit {
            let furthest = |&i: &usize| (got[i] - want[i]).abs();
            let at = (0..got.len()).max_by(|a, b| furthest(a).total_cmp(&furthest(b))).unwrap_or_default();
            self.faults.push(format!(
                "{name}: relative error {error:.3e}, limit {limit:.0e}; furthest is element {at} of {}: {} instead of {}",
                got.len(),
                got[at],
                want[at]
            ));
        }
    }

    /// Compares one layer; gives the choices that are the recorded ones.
    fn layer(&mut self, pond: &Pond, case: &TensorSet, layer: usize, prefix: &str) -> usize {
        let recorded = pond.recorded();
        let rows = |part: &str| -> Vec<f32> {
            recorded.rows[&format!("layers.{layer}.{part}")].values().flatten().copied().collect()
        };
        let want = |part: &str| case.tensor(&format!("{prefix}.{part}"));
        let routed = recorded.rows.contains_key(&format!("layers.{layer}.router_logits"));
        self.close(&format!("{prefix}.attn_out"), &rows("attn_out"), &want("attn_out").data, ATTENTION);
        let limit = if routed { EXPERTS } else { SAME };
        self.close(&format!("{prefix}.mlp_out"), &rows("mlp_out"), &want("mlp_out").data, limit);
        // The MTP layer's stream starts with a projection that was not recorded.
        if prefix != "mtp" {
            let hidden: Vec<f32> = want("hidden").data.iter().map(|&v| round_to_bf16(v)).collect();
            self.close(&format!("{prefix}.hidden"), &rows("hidden"), &hidden, 0.0);
        }
        self.choices(&recorded, case, layer, prefix, routed)
    }

    fn choices(
        &mut self,
        recorded: &crate::Recorded,
        case: &TensorSet,
        layer: usize,
        prefix: &str,
        routed: bool,
    ) -> usize {
        let name = |part: &str| format!("layers.{layer}.{part}");
        let (scores, margins) =
            (case.tensor(&format!("{prefix}.index_scores")), case.tensor(&format!("{prefix}.index_margin")));
        let visible = |row: usize| scores.row(row)[..=row].to_vec();
        let got: Vec<f32> = recorded.rows[&name("index_scores")].values().flatten().copied().collect();
        let want: Vec<f32> = (0..scores.shape[0]).flat_map(visible).collect();
        self.close(&format!("{prefix}.index_scores"), &got, &want, SCORES);
        let kept = case.ids(&format!("{prefix}.index_topk"));
        let mut same = 0;
        for (&row, got) in &recorded.choices[&name("index_topk")] {
            let what = || format!("{prefix}.index_topk row {row}, margin {:.1e}", margins.data[row]);
            same += usize::from(self.same(what, got, kept.row(row)));
        }
        if !routed {
            return same;
        }
        let (experts, weights) =
            (case.ids(&format!("{prefix}.router_experts")), case.tensor(&format!("{prefix}.router_weights")));
        let (mut got, mut want) = (Vec::new(), Vec::new());
        for (&row, chosen) in &recorded.choices[&name("router_experts")] {
            if self.same(|| format!("{prefix}.router_experts row {row}"), chosen, experts.row(row)) {
                got.extend(&recorded.rows[&name("router_weights")][&row]);
                want.extend(weights.row(row));
                same += 1;
            }
        }
        self.close(&format!("{prefix}.router_weights"), &got, &want, SAME);
        same
    }

    /// Whether a choice is the recorded one; `want` may be padded with -1.
    fn same(&mut self, what: impl Fn() -> String, got: &[u32], want: &[i32]) -> bool {
        let want: Vec<u32> = want.iter().filter_map(|&id| u32::try_from(id).ok()).collect();
        let without = |a: &[u32], b: &[u32]| a.iter().filter(|id| !b.contains(id)).copied().collect::<Vec<_>>();
        let (extra, missing) = (without(got, &want), without(&want, got));
        let same = extra.is_empty() && missing.is_empty();
        if !same {
            self.measured.push(format!("{}: {extra:?} instead of {missing:?}", what()));
        }
        same
    }
}

/// Runs a pond with [`forced`]'s model and compares everything that the official program recorded of the prompt. Gives what was measured.
///
/// # Panics
/// If something differs by more than its limit, with all that does.
pub fn check_forced(pond: &mut Pond, name: &str) -> Vec<String> {
    let case = golden::fp8path(MODEL, name);
    let rows = case.ids("input_ids").data.len();
    let positions: Vec<u32> = (0..rows as u32).collect();
    let mut report = Report::default();
    let logits = pond.pass(Layers::Main, 0, &positions).concat();
    report.close("logits", &logits, &case.tensor("logits").data, SAME);
    let mut same: usize = (0..4).map(|layer| report.layer(pond, &case, layer, &format!("layers.{layer}"))).sum();
    let drafts = pond.pass(Layers::Mtp, 0, &positions).concat();
    same += report.layer(pond, &case, 4, "mtp");
    let normed: Vec<f32> = pond.recorded().rows["normed"].values().flatten().copied().collect();
    report.close("mtp.normed", &normed, &case.tensor("mtp.normed").data, SAME);
    report.close("mtp.logits", &drafts, &case.tensor("mtp.logits").data, SAME);
    // Five indexers and four routers.
    let choices = rows * 9;
    report.measured.push(format!("{same} of {choices} choices are the same"));
    if (same as f64) < CHOICES * choices as f64 {
        report.faults.push(format!("only {same} of {choices} choices are the same"));
    }
    assert!(
        report.faults.is_empty(),
        "{name}:\n{}\nmeasured: {}",
        report.faults.join("\n"),
        report.measured.join(", ")
    );
    report.measured
}
