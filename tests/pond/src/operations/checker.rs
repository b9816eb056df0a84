//! The observer: keeps what every operation gave, computes it again, and compares.

mod choices;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use host::observe::{Observer, Seen};
use model::Numerics;
use model::checkpoint::DType;
use model::numerics::{hadamard, quantise, round_to_bf16};
use model::program::{CacheId, HeadRows, MatrixId, Model, Op, Precision, View};

use super::compare::{Exact, LIMIT, Place};
use super::reference::{self, Weights};
use super::{Shared, checked};

/// What a logit in f32 may differ from the exact one by, in units of the sum of its products' sizes: two roundings.
const LOGIT: f64 = 1.0 / (1u32 << 22) as f64;
/// Results of a product below which they may all be small by chance.
const SHORT: usize = 16;

/// What a cache is for.
#[derive(Clone, Copy, PartialEq)]
enum Purpose {
    Plain,
    Latent,
    IndexKeys,
}

pub(super) struct Checker {
    subject: String,
    model: Arc<Model>,
    numerics: Numerics,
    shared: Arc<Mutex<Shared>>,
    purposes: Vec<Purpose>,
    /// By buffer, then lane: what ops gave.
    buffers: HashMap<u16, Vec<Vec<f32>>>,
    /// By cache and position: what is stored.
    caches: HashMap<(u16, usize), Vec<f32>>,
    /// By position.
    kept: HashMap<usize, Vec<f32>>,
    /// By selection, then lane.
    selections: HashMap<u16, Vec<Vec<u32>>>,
    decoded: Mutex<HashMap<u32, Arc<Vec<f32>>>>,
}

impl Checker {
    pub(super) fn new(subject: String, model: Arc<Model>, numerics: Numerics, shared: Arc<Mutex<Shared>>) -> Checker {
        let mut purposes = vec![Purpose::Plain; model.caches.len()];
        let segments = model.main.segments.iter().chain(model.mtp.iter().flat_map(|mtp| &mtp.segments));
        for op in segments.flat_map(|segment| segment.before.iter().chain(&segment.during)) {
            match op {
                Op::AttendLatent { latent, .. } => purposes[usize::from(latent.0)] = Purpose::Latent,
                Op::Select { keys, .. } => purposes[usize::from(keys.0)] = Purpose::IndexKeys,
                _ => {}
            }
        }
        Checker {
            subject,
            model,
            numerics,
            shared,
            purposes,
            buffers: HashMap::new(),
            caches: HashMap::new(),
            kept: HashMap::new(),
            selections: HashMap::new(),
            decoded: Mutex::default(),
        }
    }

    fn rounds(&self) -> bool {
        self.numerics != Numerics::Exact
    }

    fn fp8(&self) -> bool {
        self.numerics == Numerics::Fp8
    }

    /// A view as the ops before gave it.
    fn row(&self, view: View, lane: usize) -> &[f32] {
        let rows = self.buffers.get(&view.buffer.0).expect("an op before wrote the buffer");
        &rows[lane][view.start..][..view.width]
    }

    /// Notes what an op gave.
    fn write(&mut self, seen: &Seen<'_>, view: View) {
        let lanes = seen.lanes.len();
        let rows = self.buffers.entry(view.buffer.0).or_default();
        rows.resize_with(lanes, Vec::new);
        for (t, row) in rows.iter_mut().enumerate() {
            row.resize(row.len().max(view.start + view.width), f32::NAN);
            row[view.start..][..view.width].copy_from_slice(seen.row(view, t));
        }
    }

    fn decoded(&self, id: MatrixId) -> Arc<Vec<f32>> {
        let mut decoded = self.decoded.lock().expect("no test thread panicked with it");
        decoded.entry(id.0).or_insert_with(|| Arc::new(self.model.weights.matrices[id.0 as usize].to_f32_vec())).clone()
    }

    /// What an op that writes rows gives for a lane: each view with its exact values. Inputs are read before the op's
    /// results are noted.
    fn expected(&self, seen: &Seen<'_>, t: usize) -> Vec<(View, Exact)> {
        let (model, rounds) = (&self.model, self.rounds());
        let vector = |id: model::program::VectorId| &*model.weights.vectors[id.0 as usize];
        let lane = seen.lanes[t];
        let one = |out: &View, values: Vec<f64>| vec![(*out, Exact::new(values, rounds))];
        match seen.op {
            Op::Embed { table, out } => {
                let matrix = &model.weights.matrices[table.0 as usize];
                let mut row = vec![0.0; matrix.cols];
                matrix.row_to_f32(lane.token as usize, &mut row);
                one(out, wide(&row))
            }
            Op::Recall { out } => one(out, wide(&self.kept[&lane.position])),
            Op::RmsNorm { x, weight, eps, out } => {
                one(out, reference::rms_norm(&wide(self.row(*x, t)), vector(*weight), *eps))
            }
            Op::AddRmsNorm { residual, delta, weight, eps, out } => {
                let (x, d) = (self.row(*residual, t), self.row(*delta, t));
                let sum: Vec<f64> = x.iter().zip(d).map(|(&x, &d)| f64::from(x) + f64::from(d)).collect();
                let normed = reference::rms_norm(&sum, vector(*weight), *eps);
                vec![(*residual, Exact::new(sum, rounds)), (*out, Exact::new(normed, rounds))]
            }
            Op::LayerNorm { x, weight, bias, eps, out } => {
                one(out, reference::layer_norm(self.row(*x, t), vector(*weight), vector(*bias), *eps))
            }
            Op::Project { x, weight, out, precision } => {
                let mut x = self.row(*x, t).to_vec();
                if self.fp8() && model.weights.matrices[weight.0 as usize].dtype() == DType::F8E4M3 {
                    quantise(&mut x);
                }
                let values = self.decoded(*weight);
                let want = self.product(&x, *weight, &values);
                vec![(*out, Exact { rounded: rounds && *precision == Precision::Activation, ..want })]
            }
            Op::HeadMix { x, x_stride, weight, out } => {
                let values = self.decoded(weight.matrix);
                one(out, reference::head_mix(self.row(*x, t), *x_stride, self.heads(weight, &values), weight))
            }
            Op::HeadProject { x, weight, out } => {
                let values = self.decoded(weight.matrix);
                one(out, reference::head_project(self.row(*x, t), self.heads(weight, &values), weight))
            }
            Op::Rotate { x, stride, offset, table, layout, .. } => {
                let frequencies = &model.rotary[usize::from(table.0)].frequencies;
                let row = self.row(*x, t);
                one(x, reference::rotate(row, lane.position, frequencies, [*stride, *offset], *layout))
            }
            Op::AttendLatent { out, .. } => vec![(*out, Exact { rounded: rounds, ..self.attention(seen, t) })],
            Op::Gated { gate, up, out } => one(out, reference::gated(self.row(*gate, t), self.row(*up, t))),
            Op::Combine { shared, out } => one(out, self.combined(*shared, t)),
            Op::Append { .. } | Op::Select { .. } | Op::Route { .. } | Op::Keep { .. } | Op::Logits { .. } => {
                Vec::new()
            }
        }
    }

    fn product(&self, x: &[f32], weight: MatrixId, values: &[f32]) -> Exact {
        let weight = self.weights(weight, values);
        let mut exact = Exact::new(reference::project(x, weight), false);
        if exact.values.len() < SHORT {
            exact.size = reference::project_size(x, weight);
        }
        exact
    }

    fn weights<'a>(&self, id: MatrixId, values: &'a [f32]) -> Weights<'a> {
        Weights { values, cols: self.model.weights.matrices[id.0 as usize].cols }
    }

    fn heads<'a>(&self, heads: &HeadRows, values: &'a [f32]) -> Weights<'a> {
        self.weights(heads.matrix, values)
    }

    fn attention(&self, seen: &Seen<'_>, t: usize) -> Exact {
        let Op::AttendLatent {
            q_latent, q_rope, rope_stride, rope_offset, latent, rope, selection, heads, scale, ..
        } = seen.op
        else {
            unreachable!("called for AttendLatent only")
        };
        let positions = &self.selections[&selection.0][t];
        let key = |cache: CacheId, u: u32| self.caches[&(cache.0, u as usize)].as_slice();
        let keys = positions.iter().map(|&u| (key(*latent, u), key(*rope, u)));
        let (q, r) = (self.row(*q_latent, t), self.row(*q_rope, t));
        let (width, turned) = (q.len() / heads, self.model.caches[usize::from(rope.0)].width);
        let head = |h: usize| {
            let r = &r[h * rope_stride + rope_offset..][..turned];
            reference::attend(&q[h * width..][..width], r, *scale, keys.clone())
        };
        let (mut exact, mut largest) = (Exact::new(Vec::new(), false), 0.0f64);
        for attended in (0..*heads).map(head) {
            exact.values.extend(attended.values);
            largest = largest.max(attended.largest);
        }
        exact.size = exact.rms() * (largest * LOGIT / LIMIT).max(1.0);
        exact
    }

    /// The ducks' nodes of a lane and the shared part.
    fn combined(&self, shared: View, t: usize) -> Vec<f64> {
        let mut out = wide(self.row(shared, t));
        let state = self.shared.lock().expect("no test thread panicked with it");
        let io = state.io.as_ref().expect("a combining segment follows a step");
        for sums in io.sums.iter().filter_map(|slot| slot.get()) {
            let lanes = sums.present.len() / sums.nodes.len().max(1);
            for row in (0..sums.nodes.len()).map(|n| n * lanes + t).filter(|&row| sums.present[row]) {
                let values = &sums.values[row * out.len()..][..out.len()];
                out.iter_mut().zip(values).for_each(|(out, &v)| *out += f64::from(v));
            }
        }
        out
    }

    fn place(&self, seen: &Seen<'_>, t: usize) -> Place {
        let op = format!("{:?}", seen.op);
        let name = op.split([' ', '{']).next().unwrap_or_default();
        let weight = match seen.op {
            Op::Project { weight, .. } => Some(*weight),
            Op::HeadMix { weight, .. } | Op::HeadProject { weight, .. } => Some(weight.matrix),
            _ => None,
        };
        let weight = weight.map(|id| self.model.weights.matrices[id.0 as usize].data.name().to_owned());
        Place {
            subject: self.subject.clone(),
            layer: seen.layer,
            op: weight.map_or_else(|| name.to_owned(), |weight| format!("{name} by {weight}")),
            lane: [t, seen.lanes.len(), seen.lanes[t].position],
        }
    }

    /// Stores a row as the mode does.
    fn append(&mut self, seen: &Seen<'_>, x: View, cache: CacheId) {
        for (t, lane) in seen.lanes.iter().enumerate() {
            let mut row = self.row(x, t).to_vec();
            match self.purposes[usize::from(cache.0)] {
                Purpose::Latent if self.fp8() => quantise(&mut row),
                Purpose::IndexKeys if self.fp8() => spread(&mut row),
                _ => {}
            }
            self.caches.insert((cache.0, lane.position), row);
        }
    }

    fn logits(&mut self, seen: &Seen<'_>, x: View, weight: MatrixId) {
        let values = self.decoded(weight);
        let lanes = seen.lanes.len();
        let lane = |t| checked(t, lanes).then(|| self.product(self.row(x, t), weight, &values));
        let logits = (0..lanes).map(lane).collect();
        self.shared.lock().expect("no test thread panicked with it").logits = logits;
    }
}

impl Observer for Checker {
    fn after(&mut self, seen: &Seen<'_>) {
        let lanes = seen.lanes.len();
        let mut outputs = Vec::new();
        for t in (0..lanes).filter(|&t| checked(t, lanes)) {
            let place = self.place(seen, t);
            for (view, want) in self.expected(seen, t) {
                let mut shared = self.shared.lock().expect("no test thread panicked with it");
                shared.findings.row(&place, seen.row(view, t), &want);
                if !outputs.contains(&view) {
                    outputs.push(view);
                }
            }
        }
        outputs.iter().for_each(|&view| self.write(seen, view));
        match seen.op {
            Op::Append { x, cache } => self.append(seen, *x, *cache),
            Op::Select { .. } => self.select(seen),
            Op::Route { .. } => self.route(seen),
            Op::Keep { x } => {
                for (t, lane) in seen.lanes.iter().enumerate() {
                    self.kept.insert(lane.position, self.row(*x, t).to_vec());
                }
            }
            Op::Logits { x, weight } => self.logits(seen, *x, *weight),
            _ => {}
        }
    }
}

fn wide(row: &[f32]) -> Vec<f64> {
    row.iter().map(|&v| f64::from(v)).collect()
}

/// A head of an indexer's query, or its key, as mode fp8 compares them.
fn spread(head: &mut [f32]) {
    hadamard(head);
    head.iter_mut().for_each(|v| *v = round_to_bf16(*v));
    quantise(head);
}
