//! From an architecture's operations to tasks of the kernels: which kernel serves a product, in which form a matrix lies on the card, and what mode
//! `fp8` adds. Knows sizes, no addresses.

use model::Numerics;
use model::checkpoint::DType;
use model::program::{Buffer, CacheId, ExpertStep, HeadRows, MatrixId, Model, Op, Precision, Program, Segment, View};

use super::abi::BLOCK;
use super::error::CudaError;
use super::schedule::schedule;
use super::task::{
    AttendTask, Cut, Heads, Launch, LinearTask, RouteTask, RowTask, SelectTask, Target, Task, WeightKey,
};
use crate::purpose::Purpose;

/// Latent widths that attention by matrix instructions has.
const FAST_LATENT: [usize; 2] = [128, 512];
/// Width of keys that the indexer by matrix instructions has.
const FAST_KEYS: usize = 128;

/// A program as launches.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lowered {
    /// Widths of the program's buffers, and of those that lowering adds.
    pub(crate) buffers: Vec<usize>,
    /// Those whose rows lie close together.
    pub(crate) dense: Vec<Buffer>,
    pub(crate) segments: Vec<LoweredSegment>,
}

/// One segment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LoweredSegment {
    pub(crate) layer: u16,
    /// Up to and with the hand-over.
    pub(crate) before: Vec<Group>,
    /// Beside the ducks.
    pub(crate) during: Vec<Group>,
    /// The ducks' layer.
    pub(crate) step: Option<u16>,
    /// It waits for the ducks' sums first.
    pub(crate) combines: bool,
    /// It keeps states for the MTP layer.
    pub(crate) keeps: bool,
}

/// Launches of one operation (to be observed), or of all.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    /// The operation's index in its list, where each has a group of its own.
    pub(crate) op: Option<usize>,
    pub(crate) launches: Vec<Launch>,
}

impl Lowered {
    /// All launches in order.
    pub(crate) fn launches(&self) -> impl Iterator<Item = &Launch> {
        let groups = self.segments.iter().flat_map(|segment| segment.before.iter().chain(&segment.during));
        groups.flat_map(|group| &group.launches)
    }

    /// Every form of a matrix that it needs.
    pub(crate) fn weights(&self) -> Vec<WeightKey> {
        let mut keys = Vec::new();
        for launch in self.launches() {
            match launch {
                Launch::Linears(list) => keys.extend(list.iter().map(|task| task.weight)),
                Launch::Rows(chains) => keys.extend(chains.iter().flatten().filter_map(|row| match row {
                    RowTask::Embed { table, .. } => Some(WeightKey { matrix: *table, cut: Cut::Whole, decoded: false }),
                    _ => None,
                })),
                _ => {}
            }
        }
        keys
    }
}

/// Lowers a program. `merge`: tasks of different operations share launches.
///
/// # Errors
/// Something that the kernels have no room for.
pub(crate) fn lower(model: &Model, program: &Program, numerics: Numerics, merge: bool) -> Result<Lowered, CudaError> {
    let mut lowering = Lowering {
        model,
        numerics,
        program,
        purposes: Purpose::of(model),
        buffers: program.buffers.clone(),
        dense: Vec::new(),
        router_logits: None,
        handed: None,
        added: Vec::new(),
    };
    let mut segments = Vec::new();
    for (index, segment) in program.segments.iter().enumerate() {
        let after_step = index.checked_sub(1).is_some_and(|before| program.segments[before].step.is_some());
        segments.push(LoweredSegment {
            layer: segment.layer,
            before: lowering.list(segment, &segment.before, merge)?,
            during: lowering.list(segment, &segment.during, merge)?,
            step: segment.step.as_ref().map(|step| step.layer),
            combines: after_step,
            keeps: segment.before.iter().chain(&segment.during).any(|op| matches!(op, Op::Keep { .. })),
        });
        if after_step && !matches!(segment.before.first(), Some(Op::Combine { .. })) {
            return Err(CudaError::Unsupported(format!(
                "segment {index} does not take the sums of the step before it"
            )));
        }
    }
    Ok(Lowered { buffers: lowering.buffers, dense: lowering.dense, segments })
}

struct Lowering<'a> {
    model: &'a Model,
    numerics: Numerics,
    program: &'a Program,
    /// By cache.
    purposes: Vec<Purpose>,
    buffers: Vec<usize>,
    dense: Vec<Buffer>,
    /// Scratch of routers, shared by all layers.
    router_logits: Option<View>,
    /// The quantised input of a step.
    handed: Option<View>,
    /// Quantised copies by width, for products that cannot quantise themselves.
    added: Vec<View>,
}

impl Lowering<'_> {
    fn list(&mut self, segment: &Segment, ops: &[Op], merge: bool) -> Result<Vec<Group>, CudaError> {
        let mut tasks = Vec::new();
        for op in ops {
            tasks.push(self.op(segment, op)?);
        }
        if merge {
            return Ok(vec![Group { op: None, launches: schedule(&tasks.concat()) }]);
        }
        let group = |(op, tasks): (usize, &Vec<Task>)| Group { op: Some(op), launches: schedule(tasks) };
        Ok(tasks.iter().enumerate().map(group).collect())
    }

    fn rounds(&self) -> bool {
        self.numerics != Numerics::Exact
    }

    fn fp8(&self) -> bool {
        self.numerics == Numerics::Fp8
    }

    fn scratch(&mut self, width: usize) -> View {
        self.buffers.push(width);
        View { buffer: Buffer(self.buffers.len() as u16 - 1), start: 0, width }
    }

    /// The tasks of one operation, in order.
    fn op(&mut self, segment: &Segment, op: &Op) -> Result<Vec<Task>, CudaError> {
        let row = |row| vec![Task::Row(row)];
        Ok(match op {
            Op::Embed { table, out } => row(RowTask::Embed { table: *table, out: *out }),
            Op::Recall { out } => row(RowTask::Recall { out: *out }),
            Op::Keep { x } => row(RowTask::Keep { x: *x }),
            Op::RmsNorm { x, weight, eps, out } => {
                row(RowTask::RmsNorm { x: *x, weight: *weight, eps: *eps, out: *out })
            }
            Op::AddRmsNorm { residual, delta, weight, eps, out } => {
                row(RowTask::AddRmsNorm { residual: *residual, delta: *delta, weight: *weight, eps: *eps, out: *out })
            }
            Op::LayerNorm { x, weight, bias, eps, out } => {
                row(RowTask::LayerNorm { x: *x, weight: *weight, bias: *bias, eps: *eps, out: *out })
            }
            Op::Rotate { x, heads, stride, offset, table, layout } => {
                let pairs = self.model.rotary[usize::from(table.0)].frequencies.len();
                at_most("rotary pairs", pairs, 256)?;
                row(RowTask::Rotate {
                    x: *x,
                    heads: *heads,
                    stride: *stride,
                    offset: *offset,
                    table: *table,
                    layout: *layout,
                })
            }
            Op::Append { x, cache } => {
                let mut tasks = if self.fp8() { self.quantised_for_cache(*x, *cache)? } else { Vec::new() };
                tasks.push(Task::Row(RowTask::Append { x: *x, cache: *cache }));
                tasks
            }
            Op::Gated { gate, up, out } => row(RowTask::Gated { gate: *gate, up: *up, out: *out }),
            Op::Combine { shared, out } => {
                vec![Task::Row(RowTask::Wait), Task::Row(RowTask::Combine { shared: *shared, out: *out })]
            }
            Op::Project { x, weight, out, precision } => {
                self.project(*x, *weight, Target::View(*out), *precision == Precision::Activation)
            }
            // The head stays as it is in every mode.
            Op::Logits { x, weight } => self.project(*x, *weight, Target::Logits, false),
            Op::HeadMix { x, x_stride, weight, out } => vec![self.head_mix(*x, *x_stride, weight, *out)],
            Op::HeadProject { x, weight, out } => vec![self.head_project(*x, weight, *out)],
            Op::Select { .. } => self.select(op)?,
            Op::AttendLatent { .. } => vec![self.attend(op)?],
            Op::Route { .. } => self.route(segment, op)?,
        })
    }

    fn project(&mut self, x: View, weight: MatrixId, out: Target, round: bool) -> Vec<Task> {
        let matrix = &self.model.weights.matrices[weight.0 as usize];
        let (rows, k, dtype) = (matrix.rows, matrix.cols, matrix.dtype());
        let fast = self.is_fast(dtype, x, k, 0);
        let quantise = self.fp8() && dtype == DType::F8E4M3 && out != Target::Logits;
        let mut tasks = Vec::new();
        let mut input = x;
        if quantise && !fast {
            input = match self.added.iter().find(|view| view.width == k) {
                Some(&view) => view,
                None => {
                    let view = self.scratch(k);
                    self.added.push(view);
                    view
                }
            };
            tasks.push(Task::Row(RowTask::Quantise { x, out: input, block: BLOCK }));
        }
        tasks.push(Task::Linear(LinearTask {
            x: input,
            x_group: 0,
            groups: 1,
            rows,
            k,
            weight: WeightKey { matrix: weight, cut: Cut::Whole, decoded: false },
            out,
            round: round && self.rounds(),
            quantise: quantise && fast,
            fast,
        }));
        tasks
    }

    /// Whether matrix instructions serve a product: types, and 16-byte loads of weights and activations.
    fn is_fast(&self, dtype: DType, x: View, k: usize, x_group: usize) -> bool {
        self.rounds()
            && matches!(dtype, DType::F8E4M3 | DType::BF16)
            && k.is_multiple_of(16)
            && x.start.is_multiple_of(16)
            && x_group.is_multiple_of(16)
    }

    /// How a head's rows lie on the card: as stored where block scales can be cut, else as f32.
    fn head_weight(&self, weight: &HeadRows, cut: fn(Heads) -> Cut) -> (WeightKey, DType) {
        let HeadRows { matrix: id, heads, rows_per_head, first_row, rows } = *weight;
        let matrix = &self.model.weights.matrices[id.0 as usize];
        let whole = [rows_per_head, first_row, rows, matrix.cols].iter().all(|n| n.is_multiple_of(BLOCK));
        let decoded = matrix.dtype() == DType::F8E4M3 && !whole;
        let key = WeightKey { matrix: id, cut: cut(Heads { heads, rows_per_head, first_row, rows }), decoded };
        (key, if decoded { DType::F32 } else { matrix.dtype() })
    }

    fn head_mix(&self, x: View, x_stride: usize, weight: &HeadRows, out: View) -> Task {
        let (key, dtype) = self.head_weight(weight, Cut::Columns);
        let cols = self.model.weights.matrices[weight.matrix.0 as usize].cols;
        Task::Linear(LinearTask {
            x,
            x_group: x_stride,
            groups: weight.heads,
            rows: cols,
            k: weight.rows,
            weight: key,
            out: Target::View(out),
            round: self.rounds(),
            quantise: false,
            fast: self.is_fast(dtype, x, weight.rows, x_stride),
        })
    }

    fn head_project(&self, x: View, weight: &HeadRows, out: View) -> Task {
        let (key, dtype) = self.head_weight(weight, Cut::Rows);
        let cols = self.model.weights.matrices[weight.matrix.0 as usize].cols;
        Task::Linear(LinearTask {
            x,
            x_group: cols,
            groups: weight.heads,
            rows: weight.rows,
            k: cols,
            weight: key,
            out: Target::View(out),
            round: self.rounds(),
            quantise: false,
            fast: self.is_fast(dtype, x, cols, cols),
        })
    }

    fn cache_width(&self, cache: CacheId) -> usize {
        self.model.caches[usize::from(cache.0)].width
    }

    fn select(&self, op: &Op) -> Result<Vec<Task>, CudaError> {
        let Op::Select { q, weights, keys, head_scale, key_scale, keep, out } = op else {
            unreachable!("called for Select only")
        };
        let dim = self.cache_width(*keys);
        let mut tasks = if self.fp8() { self.turned(*q, dim)? } else { Vec::new() };
        tasks.push(Task::Select(SelectTask {
            q: *q,
            weights: *weights,
            keys: *keys,
            head_scale: *head_scale,
            key_scale: *key_scale,
            keep: *keep,
            out: *out,
            fast: self.rounds() && dim == FAST_KEYS,
        }));
        Ok(tasks)
    }

    /// Mode fp8: the indexer's queries and keys are turned by a Hadamard matrix, which spreads outliers, then quantised.
    fn turned(&self, x: View, width: usize) -> Result<Vec<Task>, CudaError> {
        if !width.is_power_of_two() || width > 512 {
            return Err(CudaError::Unsupported(format!("mode fp8 with index keys of width {width}")));
        }
        Ok(vec![
            Task::Row(RowTask::Hadamard { x, heads: x.width / width, width }),
            // Each head has scales of its own.
            Task::Row(RowTask::Quantise { x, out: x, block: width.min(BLOCK) }),
        ])
    }

    /// Mode fp8: what the official path stores quantised.
    fn quantised_for_cache(&self, x: View, cache: CacheId) -> Result<Vec<Task>, CudaError> {
        match self.purposes[usize::from(cache.0)] {
            Purpose::Plain => Ok(Vec::new()),
            Purpose::Latent => Ok(vec![Task::Row(RowTask::Quantise { x, out: x, block: BLOCK })]),
            Purpose::IndexKeys => self.turned(x, x.width),
        }
    }

    fn attend(&self, op: &Op) -> Result<Task, CudaError> {
        let Op::AttendLatent { q_latent, q_rope, rope_stride, rope_offset, latent, rope, selection, heads, scale, out } =
            op
        else {
            unreachable!("called for AttendLatent only")
        };
        let fast = self.rounds()
            && FAST_LATENT.contains(&self.cache_width(*latent))
            && self.cache_width(*rope).is_multiple_of(16);
        let keeps = |op: &Op| match op {
            Op::Select { keep, out, .. } if out == selection => Some(*keep),
            _ => None,
        };
        let ops = self.program.segments.iter().flat_map(|segment| segment.before.iter().chain(&segment.during));
        let mut kept = ops.filter_map(keeps);
        let keep = kept.next().ok_or_else(|| CudaError::Unsupported("attention without a selection".into()))?;
        if kept.any(|other| other != keep) {
            return Err(CudaError::Unsupported("selections of several lengths in one place".into()));
        }
        Ok(Task::Attend(AttendTask {
            q_latent: *q_latent,
            q_rope: *q_rope,
            rope_stride: *rope_stride,
            rope_offset: *rope_offset,
            latent: *latent,
            rope: *rope,
            selection: *selection,
            keep,
            heads: *heads,
            scale: *scale,
            out: *out,
            fast,
        }))
    }

    fn route(&mut self, segment: &Segment, op: &Op) -> Result<Vec<Task>, CudaError> {
        let Op::Route { x, gate, bias, routing } = op else { unreachable!("called for Route only") };
        let Some(ExpertStep { input, .. }) = segment.step else {
            return Err(CudaError::Unsupported(format!("layer {} routes without a step", segment.layer)));
        };
        at_most("experts", routing.experts, 1024)?;
        at_most("groups of experts", routing.groups, 64)?;
        at_most("experts for a lane", routing.chosen, 64)?;
        let logits = match self.router_logits {
            Some(view) if view.width == routing.experts => view,
            _ => {
                let view = self.scratch(routing.experts);
                self.dense.push(view.buffer);
                view
            }
        };
        self.router_logits = Some(logits);
        let matrix = &self.model.weights.matrices[gate.0 as usize];
        let mut tasks = vec![Task::Linear(LinearTask {
            x: *x,
            x_group: 0,
            groups: 1,
            rows: matrix.rows,
            k: matrix.cols,
            weight: WeightKey { matrix: *gate, cut: Cut::Whole, decoded: false },
            out: Target::View(logits),
            round: false,
            quantise: false,
            fast: false,
        })];
        let mut handed = input;
        if self.fp8() {
            // The router and the residual see the values as they are; the ducks see what travels as e4m3.
            handed = match self.handed {
                Some(view) if view.width == input.width => view,
                _ => self.scratch(input.width),
            };
            self.handed = Some(handed);
            tasks.push(Task::Row(RowTask::Quantise { x: input, out: handed, block: BLOCK }));
        }
        tasks.push(Task::Route(RouteTask { logits, bias: *bias, routing: routing.clone(), input: handed }));
        Ok(tasks)
    }
}

fn at_most(what: &str, found: usize, limit: usize) -> Result<(), CudaError> {
    if found > limit {
        return Err(CudaError::Unsupported(format!("{found} {what}, at most {limit} are possible")));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
