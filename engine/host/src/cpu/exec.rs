//! Runs the ops of a segment on a pass's buffers.

use std::collections::HashMap;

use kernels::tree::{Node, Shape, additions};
use model::Numerics;
use model::checkpoint::DType;
use model::numerics::{hadamard, quantise};
use model::program::{Model, Op, Precision, SelectionId, View};
use model::step::{StepInput, StepIo};
use rayon::prelude::*;

use super::attend::{Attention, Keys, attend};
use super::buffers::{Buffers, Strided, StridedMut};
use super::cache::Sequence;
use super::heads::{head_mix, head_project};
use super::linear::{MatrixRows, product};
use super::norm::{gated, layer_norm, rms_norm};
use super::rotary::Angles;
use super::route::route;
use super::select::{self, Query};
use super::simd::Isa;
use crate::observe::{Observer, Seen, SeenRows};
use crate::purpose::Purpose;
use crate::stage::{Lane, SequenceId};

/// Everything that a pass carries from op to op.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) buffers: Buffers,
    pub(crate) lanes: Vec<Lane>,
    /// By rotary table.
    pub(crate) angles: Vec<Angles>,
    /// By selection, then lane: ascending positions.
    pub(crate) selections: Vec<Vec<Vec<u32>>>,
    /// `[T, chosen]` of the latest router.
    pub(crate) experts: Vec<u16>,
    pub(crate) weights: Vec<f32>,
    /// Lanes whose logits are wanted.
    pub(crate) wanted: Vec<usize>,
    /// `[wanted, vocab]`.
    pub(crate) logits: Vec<f32>,
    scratch: Vec<f32>,
}

/// What ops need beside the pass.
pub(crate) struct Context<'a> {
    pub(crate) isa: Isa,
    pub(crate) numerics: Numerics,
    pub(crate) model: &'a Model,
    pub(crate) shape: Shape,
    /// What each cache is for; matters in mode fp8.
    pub(crate) purposes: &'a [Purpose],
    pub(crate) sequences: &'a mut HashMap<SequenceId, Sequence>,
    /// The step whose sum [`Op::Combine`] reads.
    pub(crate) summed: Option<&'a StepIo>,
    pub(crate) observer: Option<&'a mut (dyn Observer + 'static)>,
}

impl SeenRows for Buffers {
    fn row(&self, view: View, lane: usize) -> &[f32] {
        self.read(view).row(lane)
    }
}

impl Work {
    pub(crate) fn new(widths: &[usize], selections: usize) -> Self {
        Work {
            buffers: Buffers::new(widths),
            lanes: Vec::new(),
            angles: Vec::new(),
            selections: vec![Vec::new(); selections],
            experts: Vec::new(),
            weights: Vec::new(),
            wanted: Vec::new(),
            logits: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Prepares for another pass.
    pub(crate) fn start(&mut self, model: &Model, lanes: &[Lane], wanted: &[usize]) {
        self.lanes.clear();
        self.lanes.extend_from_slice(lanes);
        self.wanted.clear();
        self.wanted.extend_from_slice(wanted);
        self.buffers.set_lanes(lanes.len());
        self.angles.resize_with(model.rotary.len(), Angles::default);
        for (angles, table) in self.angles.iter_mut().zip(&model.rotary) {
            angles.set(&table.frequencies, lanes.iter().map(|l| l.position));
        }
    }

    /// Runs ops in order.
    pub(crate) fn run(&mut self, cx: &mut Context<'_>, layer: u16, ops: &[Op]) {
        for op in ops {
            let scores = self.op(cx, op);
            if let Some(observer) = &mut cx.observer {
                let kept = match op {
                    Op::Select { out, .. } => &self.selections[usize::from(out.0)][..],
                    _ => &[],
                };
                observer.after(&Seen {
                    layer,
                    op,
                    lanes: &self.lanes,
                    scores: &scores,
                    experts: &self.experts,
                    weights: &self.weights,
                    kept,
                    rows: &self.buffers,
                });
            }
        }
    }

    /// Publishes the step's input.
    pub(crate) fn hand_over(&self, numerics: Numerics, input: View, layer: u16, io: &StepIo) {
        let hidden = self.buffers.read(input);
        let fresh = io.input.publish(|step: &mut StepInput| {
            step.layer = layer;
            step.lanes = hidden.lanes();
            step.hidden.clear();
            (0..hidden.lanes()).for_each(|t| step.hidden.extend_from_slice(hidden.row(t)));
            if numerics == Numerics::Fp8 {
                step.hidden.chunks_mut(hidden.width().max(1)).for_each(quantise);
            }
            step.experts.clone_from(&self.experts);
            step.weights.clone_from(&self.weights);
        });
        assert!(fresh, "a step's input is published once");
    }

    /// Runs one op; gives scores for the observer where [`Seen::scores`] says so.
    fn op(&mut self, cx: &mut Context<'_>, op: &Op) -> Vec<Vec<f32>> {
        let (isa, numerics, weights) = (cx.isa, cx.numerics, &cx.model.weights);
        let matrix = |id: model::program::MatrixId| &weights.matrices[id.0 as usize];
        let vector = |id: model::program::VectorId| &*weights.vectors[id.0 as usize];
        let round = |row: &mut [f32]| round_row(numerics, row);
        let lanes = &self.lanes;
        match op {
            Op::Embed { table, out } => self.buffers.write(*out).each_row(|t, row| {
                matrix(*table).row_to_f32(lanes[t].token as usize, row);
                round(row);
            }),
            Op::Recall { out } => {
                let sequences = &*cx.sequences;
                self.buffers.write(*out).each_row(|t, row| {
                    let kept = sequences[&lanes[t].sequence].kept(lanes[t].position);
                    row.copy_from_slice(kept.expect("`begin` checks that the state is kept"));
                });
            }
            Op::RmsNorm { x, weight, eps, out } => self.buffers.produce(*out, |b, out| {
                let (x, weight) = (b.read(*x), vector(*weight));
                out.for_each_row(|t, row| {
                    rms_norm(isa, x.row(t), weight, *eps, row);
                    round(row);
                });
            }),
            Op::AddRmsNorm { residual, delta, weight, eps, out } => {
                self.buffers.produce(*residual, |b, residual| {
                    let delta = b.read(*delta);
                    residual.for_each_row(|t, row| row.iter_mut().zip(delta.row(t)).for_each(|(x, d)| *x += d));
                });
                self.buffers.produce(*out, |b, out| {
                    let (x, weight) = (b.read(*residual), vector(*weight));
                    out.for_each_row(|t, row| {
                        rms_norm(isa, x.row(t), weight, *eps, row);
                        round(row);
                    });
                });
                self.buffers.write(*residual).for_each_row(|_, row| round(row));
            }
            Op::LayerNorm { x, weight, bias, eps, out } => self.buffers.produce(*out, |b, out| {
                let (x, weight, bias) = (b.read(*x), vector(*weight), vector(*bias));
                out.for_each_row(|t, row| {
                    layer_norm(x.row(t), weight, bias, *eps, row);
                    round(row);
                });
            }),
            Op::Project { x, weight, out, precision } => {
                let scratch = &mut self.scratch;
                self.buffers.produce(*out, |b, mut out| {
                    let (x, m) = (b.read(*x), matrix(*weight));
                    let eight;
                    let x = if numerics == Numerics::Fp8 && m.dtype() == DType::F8E4M3 {
                        eight = eight_bits(x);
                        Strided::dense(&eight, m.cols)
                    } else {
                        x
                    };
                    if x.lanes() == 1 {
                        return product(isa, MatrixRows::all(m), x, out.row(0));
                    }
                    scratch.resize(m.rows * x.lanes(), 0.0);
                    product(isa, MatrixRows::all(m), x, scratch);
                    transpose(scratch, x.lanes(), out);
                });
                if *precision == Precision::Activation {
                    self.buffers.write(*out).for_each_row(|_, row| round(row));
                }
            }
            Op::HeadMix { x, x_stride, weight, out } => {
                let scratch = &mut self.scratch;
                self.buffers.produce(*out, |b, out| {
                    head_mix(isa, matrix(weight.matrix), weight, b.read(*x), *x_stride, out, scratch);
                });
                self.buffers.write(*out).for_each_row(|_, row| round(row));
            }
            Op::HeadProject { x, weight, out } => {
                let scratch = &mut self.scratch;
                self.buffers.produce(*out, |b, out| {
                    head_project(isa, matrix(weight.matrix), weight, b.read(*x), out, scratch);
                });
                self.buffers.write(*out).for_each_row(|_, row| round(row));
            }
            Op::Rotate { x, stride, offset, table, layout, .. } => {
                let angles = &self.angles[usize::from(table.0)];
                self.buffers.write(*x).for_each_row(|t, row| {
                    angles.rotate(t, row, *stride, *offset, *layout);
                    round(row);
                });
            }
            Op::Append { x, cache } => {
                let x = self.buffers.read(*x);
                let purpose =
                    if numerics == Numerics::Fp8 { cx.purposes[usize::from(cache.0)] } else { Purpose::Plain };
                for (t, lane) in lanes.iter().enumerate() {
                    let sequence = sequence_mut(cx.sequences, lane.sequence);
                    match purpose {
                        Purpose::Plain => sequence.cache_mut(*cache).write(lane.position, x.row(t)),
                        Purpose::Latent => sequence.cache_mut(*cache).write(lane.position, &eight_bits_of(x.row(t))),
                        Purpose::IndexKeys => sequence.cache_mut(*cache).write(lane.position, &spread(x.row(t))),
                    }
                }
            }
            Op::Select { out, .. } => return self.select(cx, op, *out),
            Op::AttendLatent {
                q_latent,
                q_rope,
                rope_stride,
                rope_offset,
                latent,
                rope,
                selection,
                scale,
                out,
                ..
            } => {
                let (sequences, selection) = (&*cx.sequences, &self.selections[usize::from(selection.0)]);
                self.buffers.produce(*out, |b, out| {
                    let attention = Attention {
                        q_latent: b.read(*q_latent),
                        q_rope: b.read(*q_rope),
                        rope_stride: *rope_stride,
                        rope_offset: *rope_offset,
                        rope_width: cx.model.caches[usize::from(rope.0)].width,
                        scale: *scale,
                    };
                    let keys = |t: usize| {
                        let sequence = &sequences[&lanes[t].sequence];
                        Keys { latent: sequence.cache(*latent), rope: sequence.cache(*rope), positions: &selection[t] }
                    };
                    attend(isa, &attention, keys, out);
                });
                self.buffers.write(*out).for_each_row(|_, row| round(row));
            }
            Op::Gated { gate, up, out } => self.buffers.produce(*out, |b, out| {
                let (gate, up) = (b.read(*gate), b.read(*up));
                out.for_each_row(|t, row| {
                    gated(gate.row(t), up.row(t), row);
                    round(row);
                });
            }),
            Op::Route { x, gate, bias, routing } => {
                let x = self.buffers.read(*x);
                self.scratch.resize(routing.experts * x.lanes(), 0.0);
                product(isa, MatrixRows::all(matrix(*gate)), x, &mut self.scratch);
                self.experts.resize(x.lanes() * routing.chosen, 0);
                self.weights.resize(x.lanes() * routing.chosen, 0.0);
                let logits: Vec<Vec<f32>> =
                    (0..x.lanes()).map(|t| self.scratch.iter().skip(t).step_by(x.lanes()).copied().collect()).collect();
                let experts = self.experts.chunks_mut(routing.chosen).zip(self.weights.chunks_mut(routing.chosen));
                for (logits, (experts, weights)) in logits.iter().zip(experts) {
                    route(logits, vector(*bias), routing, experts, weights);
                }
                return logits;
            }
            Op::Combine { shared, out } => {
                let (io, shape) = (cx.summed.expect("a combining segment follows a step"), cx.shape);
                self.buffers.produce(*out, |b, out| {
                    let shared = b.read(*shared);
                    out.for_each_row(|t, row| {
                        combine(shape, io, t, shared.row(t), row);
                        round(row);
                    });
                });
            }
            Op::Keep { x } => {
                let x = self.buffers.read(*x);
                for (t, lane) in lanes.iter().enumerate() {
                    let fresh = t == 0 || lanes[t - 1].sequence != lane.sequence;
                    sequence_mut(cx.sequences, lane.sequence).keep(lane.position, x.row(t), fresh);
                }
            }
            Op::Logits { x, weight } => {
                let (x, m, n) = (self.buffers.read(*x), matrix(*weight), self.wanted.len());
                let rows: Vec<f32> = self.wanted.iter().flat_map(|&t| x.row(t)).copied().collect();
                self.scratch.resize(m.rows * n, 0.0);
                self.logits.resize(m.rows * n, 0.0);
                if n > 0 {
                    product(isa, MatrixRows::all(m), Strided::dense(&rows, m.cols), &mut self.scratch);
                    transpose(&self.scratch, n, StridedMut::dense(&mut self.logits, m.rows));
                }
            }
        }
        Vec::new()
    }

    /// The indexer's choice. A lane that sees no more than `keep` positions keeps all of them and needs no scores.
    fn select(&mut self, cx: &Context<'_>, op: &Op, out: SelectionId) -> Vec<Vec<f32>> {
        let Op::Select { q, weights, keys, head_scale, key_scale, keep, .. } = op else {
            unreachable!("called for Select only")
        };
        let (q, weights) = (self.buffers.read(*q), self.buffers.read(*weights));
        let heads = weights.width().max(1);
        let spread_q: Vec<f32>;
        let q = if cx.numerics == Numerics::Fp8 {
            let dim = q.width() / heads;
            spread_q = (0..q.lanes()).flat_map(|t| q.row(t).chunks(dim).flat_map(spread)).collect();
            Strided::dense(&spread_q, q.width())
        } else {
            q
        };
        let observed = cx.observer.is_some();
        let (isa, sequences, lanes) = (cx.isa, &*cx.sequences, &self.lanes);
        let lane = |t: usize| {
            let count = lanes[t].position + 1;
            let mut scores = Vec::new();
            if count > *keep || observed {
                let query =
                    Query { q: q.row(t), weights: weights.row(t), head_scale: *head_scale, key_scale: *key_scale };
                scores = select::scores(isa, query, sequences[&lanes[t].sequence].cache(*keys), count);
            }
            let kept = if count > *keep { select::best(&scores, *keep) } else { (0..count as u32).collect() };
            (kept, if observed { scores } else { Vec::new() })
        };
        let (kept, scores) = if lanes.len() == 1 {
            (vec![lane(0)]).into_iter().unzip()
        } else {
            (0..lanes.len()).into_par_iter().map(lane).unzip()
        };
        self.selections[usize::from(out.0)] = kept;
        scores
    }
}

/// A row through 8 bits.
fn eight_bits_of(row: &[f32]) -> Vec<f32> {
    let mut row = row.to_vec();
    quantise(&mut row);
    row
}

/// Rows through 8 bits.
fn eight_bits(x: Strided<'_>) -> Vec<f32> {
    (0..x.lanes()).flat_map(|t| eight_bits_of(x.row(t))).collect()
}

/// A head of an indexer's query, or its key, as mode fp8 compares them.
fn spread(head: &[f32]) -> Vec<f32> {
    let mut head = head.to_vec();
    hadamard(&mut head);
    round_row(Numerics::Bf16, &mut head);
    quantise(&mut head);
    head
}

fn sequence_mut(sequences: &mut HashMap<SequenceId, Sequence>, id: SequenceId) -> &mut Sequence {
    sequences.get_mut(&id).expect("`begin` checks that the sequence is open")
}

fn round_row(numerics: Numerics, row: &mut [f32]) {
    if numerics != Numerics::Exact {
        row.iter_mut().for_each(|v| *v = numerics.round(*v));
    }
}

/// `out[t][n] = results[n · lanes + t]`.
fn transpose(results: &[f32], lanes: usize, out: StridedMut<'_>) {
    out.for_each_row(|t, row| row.iter_mut().enumerate().for_each(|(n, v)| *v = results[n * lanes + t]));
}

/// One lane: the top of the canonical tree over the nodes that are present, plus the shared expert.
fn combine(shape: Shape, io: &StepIo, lane: usize, shared: &[f32], out: &mut [f32]) {
    let width = out.len();
    let mut nodes: Vec<(Node, &[f32])> = io
        .sums
        .iter()
        .filter_map(|slot| slot.get())
        .flat_map(|sums| {
            let lanes = sums.present.len() / sums.nodes.len().max(1);
            let row = move |n: usize| n * lanes + lane;
            let present = (0..sums.nodes.len()).filter(move |&n| sums.present[row(n)]);
            present.map(move |n| (sums.nodes[n], &sums.values[row(n) * width..][..width]))
        })
        .collect();
    nodes.sort_by_key(|(node, _)| node.order());
    match nodes.as_slice() {
        [] => out.copy_from_slice(shared),
        [(_, only)] => out.iter_mut().zip(*only).zip(shared).for_each(|((o, v), s)| *o = v + s),
        several => {
            let items: Vec<Node> = several.iter().map(|(node, _)| *node).collect();
            let mut values: Vec<Vec<f32>> = several.iter().map(|(_, v)| v.to_vec()).collect();
            additions(shape, shape.root(), &items, &mut |a, b| {
                let (left, right) = values.split_at_mut(b);
                left[a].iter_mut().zip(&right[0]).for_each(|(l, r)| *l += r);
            });
            out.iter_mut().zip(&values[0]).zip(shared).for_each(|((o, v), s)| *o = v + s);
        }
    }
}
