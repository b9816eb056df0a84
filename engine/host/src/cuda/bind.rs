//! Gives launches their addresses: from a lowered program to calls of kernels, for one area and a number of lanes.
//!
//! What changes from step to step (positions, tokens, pages, sums) lies in tables in the card's memory, so the calls of a pass can be captured once
//! and replayed.

use model::Numerics;
use model::program::{CacheId, Model, PairLayout, View};

use super::abi::{self, FEW, KEYS, LINEARS, Plain, ROWS};
use super::area::{Area, Sizes, is_logits, packs};
use super::caches::Caches;
use super::kernels::{Call, Kernel, Parameters};
use super::task::{AttendTask, Cut, Launch, LinearTask, RouteTask, RowTask, SelectTask, Target, WeightKey};
use super::weights::DeviceWeights;
use crate::stage::Layers;

/// Lanes and rows of one block of `linear_many`.
const MANY: (usize, usize) = (64, 128);
/// Stages of a warp's ring in `linear_few`, and bytes of a lane's block of activations there.
const FEW_STAGES: usize = 2;
const FEW_ROW: usize = 2 * abi::BLOCK + 16;
/// Rows that a warp of `linear_plain` has where lanes are many; as in linear.cu.
const PLAIN_ROWS: usize = 4;
/// Heads that attention by matrix instructions takes at once.
const HEADS: usize = 16;
/// Columns of one block of `pack`.
const PACK: usize = 1024;

/// Everything that has an address.
pub(crate) struct Binder<'a> {
    pub(crate) model: &'a Model,
    pub(crate) numerics: Numerics,
    pub(crate) weights: &'a DeviceWeights,
    pub(crate) caches: &'a Caches,
    pub(crate) area: &'a Area,
    pub(crate) sizes: &'a Sizes,
    pub(crate) layers: Layers,
    /// T.
    pub(crate) lanes: usize,
    /// Lanes whose logits are wanted.
    pub(crate) wanted: usize,
    pub(crate) processors: u32,
    pub(crate) linear_many_shared: u32,
    /// Shared memory that a block may have.
    pub(crate) shared: usize,
    /// Scores are computed even where all positions are kept, for an observer.
    pub(crate) all_scores: bool,
    /// Positions that the lane which sees most sees.
    pub(crate) longest: usize,
}

/// The number of a mode.
pub(crate) fn mode(numerics: Numerics) -> u32 {
    match numerics {
        Numerics::Exact => abi::EXACT,
        Numerics::Bf16 => abi::BF16_MODE,
        Numerics::Fp8 => abi::FP8_MODE,
    }
}

/// How many warps share a row's blocks of columns in `linear_plain`; as in common.cuh.
fn splits(k: usize) -> usize {
    match k.div_ceil(abi::BLOCK) {
        16.. => 8,
        4.. => 4,
        2.. => 2,
        _ => 1,
    }
}

/// How a launch of `linear_few` or its kin is cut: warps of a block, and warps that share a row's columns. Results depend on neither.
#[derive(Clone, Copy)]
struct Few {
    warps: usize,
    ways: usize,
}

impl Few {
    /// So that all blocks fit on the card at once where that leaves each warp something to do; large products take several rounds anyway.
    fn new(list: &[LinearTask], processors: usize) -> Few {
        let tiles: usize = list.iter().map(|task| task.groups * task.rows.div_ceil(16)).sum();
        let most = list.iter().map(|task| task.k.div_ceil(abi::BLOCK)).max().unwrap_or(1);
        // 64 registers a thread: 32 warps a multiprocessor.
        let fits = |ways: &usize| *ways <= most && tiles * ways <= processors * 32;
        let ways = [16, 8, 4, 2].into_iter().find(fits).unwrap_or(if most >= 8 { 8 } else { 1 });
        Few { warps: if ways == 16 { 16 } else { 8 }, ways }
    }

    /// The same for a product whose rows may have fewer blocks.
    fn ways(self, task: &LinearTask) -> usize {
        let blocks = task.k.div_ceil(abi::BLOCK);
        self.ways.min(if blocks.is_power_of_two() { blocks } else { blocks.next_power_of_two() / 2 })
    }

    fn blocks(self, task: &LinearTask) -> usize {
        task.groups * task.rows.div_ceil(16).div_ceil(self.warps / self.ways(task))
    }

    /// Dynamic shared memory, as linear.cu states it.
    fn shared(self, list: &[LinearTask], lanes: usize, bytes: impl Fn(&LinearTask) -> usize) -> usize {
        let of = |task: &LinearTask| {
            let ring = FEW_STAGES * 16 * abi::BLOCK * bytes(task);
            let sums = task.k.div_ceil(abi::BLOCK) * (16 * lanes + 1) * 4;
            self.warps * (ring + lanes * FEW_ROW) + self.warps / self.ways(task) * sums
        };
        list.iter().map(of).max().unwrap_or(0)
    }
}

/// Dynamic shared memory of `attend`, as attend.cu lays it out: keys, queries, logits, maxima and sums.
pub(crate) fn attend_shared(latent: usize, rope: usize) -> usize {
    let row = latent + rope + 8;
    KEYS * row * 2 + HEADS * (row * 2 + (KEYS + 12) * 4 + 8)
}

/// Dynamic shared memory of `attend_plain`.
pub(crate) fn attend_plain_shared(latent: usize, rope: usize, keep: usize) -> usize {
    keep * 4 + (latent + rope) * 4 + 1024
}

/// Dynamic shared memory of `index_scores`, of `index_scores_plain`.
pub(crate) fn scores_shared(fast: bool, heads: usize, dim: usize) -> usize {
    if fast { heads.next_multiple_of(16) * (dim * 2 + 4) } else { (heads * dim + heads) * 4 }
}

fn size(n: usize) -> u32 {
    u32::try_from(n).expect("sizes of a model fit in 32 bits")
}

impl Binder<'_> {
    /// Calls of some launches, in order. The first one waits for everything in front of it.
    pub(crate) fn calls<'l>(&self, launches: impl IntoIterator<Item = &'l Launch>, best: bool) -> Vec<Call> {
        let mut calls = Vec::new();
        for launch in launches {
            match launch {
                Launch::Rows(chains) => calls.push(self.rows(chains)),
                Launch::Linears(list) => self.linears(list, &mut calls),
                Launch::Select(task) => self.select(task, &mut calls),
                Launch::Attend(task) => self.attend(task, &mut calls),
                Launch::Route(task) => calls.push(self.route(task)),
            }
            if let Launch::Linears(list) = launch
                && is_logits(list)
                && best
                && self.wanted > 0
            {
                calls.push(self.arg_max());
            }
        }
        hold_back(&mut calls);
        calls
    }

    fn call(kernel: Kernel, grid: [usize; 3], shared: usize, parameters: Parameters) -> Call {
        Call { kernel, grid: grid.map(size), threads: kernel.threads(), shared: size(shared), parameters, early: true }
    }

    fn view(&self, view: View) -> (u64, u32) {
        self.area.view(self.layers, view)
    }

    fn lane_table(&self) -> u64 {
        self.area.at(self.area.plan.lane)
    }

    fn cache(&self, id: CacheId) -> abi::Cache {
        self.caches.cache(id)
    }

    fn linears(&self, list: &[LinearTask], calls: &mut Vec<Call>) {
        let logits = is_logits(list);
        let lanes = if logits { self.wanted } else { self.lanes };
        if lanes == 0 {
            return;
        }
        let fast = list[0].fast;
        let few = Few::new(list, self.processors as usize);
        let few_shared = few.shared(list, lanes, |task| match self.weights.matrix(task.weight).dtype {
            abi::E4M3 => 1,
            _ => 2,
        });
        // Eight lanes of very long rows are too much for small cards.
        let many = fast && (lanes > FEW || few_shared > self.shared);
        let packed = if many { self.pack(list, lanes, logits, calls) } else { Vec::new() };
        let mut launch = abi::Linears {
            list: [abi::Linear::zeroed(); LINEARS],
            count: size(list.len()),
            lanes: size(lanes),
            wanted: if logits { self.area.at(self.area.plan.wanted) } else { 0 },
            mode: mode(self.numerics),
            _pad: 0,
        };
        let mut tiles = 0;
        for (slot, task) in launch.list.iter_mut().zip(list) {
            let weight = self.weights.matrix(task.weight);
            let (x, x_stride) =
                match packed.iter().find(|(view, quantise, ..)| (*view, *quantise) == (task.x, task.quantise)) {
                    Some(&(_, _, address, stride)) => (address, stride),
                    None => self.view(task.x),
                };
            let (out, out_stride) = match task.out {
                Target::View(view) => self.view(view),
                Target::Logits => (self.area.logits(), size(task.rows)),
            };
            let mut flags = 0;
            flags |= if task.round { abi::ROUND } else { 0 };
            flags |= if task.quantise { abi::QUANTISE } else { 0 };
            flags |= if logits && !many { abi::WANTED } else { 0 };
            *slot = abi::Linear {
                weight: weight.address,
                scale: weight.scale,
                x,
                out,
                rows: size(task.rows),
                k: size(task.k),
                groups: size(task.groups),
                dtype: weight.dtype,
                x_stride,
                x_group: size(task.x_group),
                out_stride,
                out_group: if task.groups > 1 { size(task.rows) } else { 0 },
                first_tile: size(tiles),
                flags,
                ways: size(few.ways(task)),
                _pad: 0,
            };
            tiles += match (fast, many) {
                (true, true) => task.groups * task.rows.div_ceil(MANY.1),
                (true, false) => few.blocks(task),
                (false, _) => {
                    let rows = if lanes > FEW { PLAIN_ROWS } else { 1 };
                    task.groups * task.rows.div_ceil(8 / splits(task.k) * rows)
                }
            };
        }
        let parameters = Parameters::Linears(Box::new(launch));
        calls.push(match (fast, many) {
            (true, false) => {
                let kernel = match lanes {
                    1 => Kernel::LinearOne,
                    2 => Kernel::LinearTwo,
                    _ => Kernel::LinearFew,
                };
                let call = Self::call(kernel, [tiles, 1, 1], few_shared, parameters);
                Call { threads: size(few.warps * 32), ..call }
            }
            (true, true) => {
                let shared = self.linear_many_shared as usize;
                Self::call(Kernel::LinearMany, [tiles, lanes.div_ceil(MANY.0), 1], shared, parameters)
            }
            (false, _) => Self::call(Kernel::LinearPlain, [tiles, lanes.div_ceil(FEW), 1], 0, parameters),
        });
    }

    /// Packs what a launch for many lanes reads; gives view, quantised or not, address and stride of each.
    fn pack(
        &self,
        list: &[LinearTask],
        lanes: usize,
        logits: bool,
        calls: &mut Vec<Call>,
    ) -> Vec<(View, bool, u64, u32)> {
        let mut at = self.area.at(self.area.plan.packed);
        let mut packed = Vec::new();
        for pack in packs(list) {
            let (x, x_stride) = self.view(pack.x);
            let parameters = Parameters::Pack(abi::Pack {
                x,
                out: at,
                x_stride,
                out_stride: size(pack.stride),
                width: size(pack.x.width),
                lanes: size(lanes),
                quantise: u32::from(pack.quantise),
                _pad: 0,
                wanted: if logits { self.area.at(self.area.plan.wanted) } else { 0 },
            });
            calls.push(Self::call(Kernel::Pack, [pack.x.width.div_ceil(PACK), lanes, 1], 0, parameters));
            packed.push((pack.x, pack.quantise, at, size(pack.stride)));
            at += (self.area.plan.lanes * pack.stride * 2) as u64;
        }
        packed
    }

    fn rows(&self, chains: &[Vec<RowTask>]) -> Call {
        let (pages, pages_stride) = self.caches.pages();
        let mut launch = abi::Rows {
            list: [abi::Row::zeroed(); ROWS],
            first: [0; ROWS + 1],
            chains: size(chains.len()),
            lanes: size(self.lanes),
            mode: mode(self.numerics),
            lane: self.lane_table(),
            pages,
            pages_stride,
            _pad: 0,
            exchange: self.area.exchange.address(),
        };
        let mut at = 0;
        for (i, chain) in chains.iter().enumerate() {
            for row in chain {
                launch.list[at] = self.row(row);
                at += 1;
            }
            launch.first[i + 1..].fill(size(at));
        }
        Self::call(Kernel::Rows, [chains.len(), self.lanes, 1], 0, Parameters::Rows(Box::new(launch)))
    }

    fn row(&self, task: &RowTask) -> abi::Row {
        use abi::row;
        let rounds = if self.numerics == Numerics::Exact { 0 } else { abi::ROUND };
        let mut r = abi::Row { flags: rounds, ..abi::Row::zeroed() };
        match task {
            RowTask::Embed { table, out } => {
                let weight = self.weights.matrix(WeightKey { matrix: *table, cut: Cut::Whole, decoded: false });
                r.kind = row::EMBED;
                (r.a, r.v, r.dtype) = (weight.address, weight.scale, weight.dtype);
                r.n = size(out.width);
                (r.out, r.out_stride) = self.view(*out);
            }
            RowTask::Recall { out } => {
                let (kept, ring) = self.caches.kept();
                (r.kind, r.a, r.m, r.n) = (row::RECALL, kept, size(ring), size(out.width));
                (r.out, r.out_stride) = self.view(*out);
            }
            RowTask::Keep { x } => {
                let (kept, ring) = self.caches.kept();
                (r.kind, r.a, r.m, r.n) = (row::KEEP, kept, size(ring), size(x.width));
                (r.x, r.x_stride) = self.view(*x);
            }
            RowTask::RmsNorm { x, weight, eps, out } => {
                (r.kind, r.n, r.eps, r.w) = (row::RMS_NORM, size(x.width), *eps, self.weights.vector(*weight));
                (r.x, r.x_stride) = self.view(*x);
                (r.out, r.out_stride) = self.view(*out);
            }
            RowTask::AddRmsNorm { residual, delta, weight, eps, out } => {
                (r.kind, r.n, r.eps, r.w) = (row::ADD_RMS_NORM, size(out.width), *eps, self.weights.vector(*weight));
                (r.x, r.x_stride) = self.view(*delta);
                (r.y, r.y_stride) = self.view(*residual);
                (r.out, r.out_stride) = self.view(*out);
            }
            RowTask::LayerNorm { x, weight, bias, eps, out } => {
                (r.kind, r.n, r.eps, r.w) = (row::LAYER_NORM, size(x.width), *eps, self.weights.vector(*weight));
                r.v = self.weights.vector(*bias);
                (r.x, r.x_stride) = self.view(*x);
                (r.out, r.out_stride) = self.view(*out);
            }
            RowTask::Rotate { x, heads, stride, offset, table, layout } => {
                (r.kind, r.n, r.m, r.offset) = (row::ROTATE, size(*stride), size(*heads), size(*offset));
                r.pairs = size(self.model.rotary[usize::from(table.0)].frequencies.len());
                r.layout = u32::from(*layout == PairLayout::Halves);
                r.w = self.weights.rotary(*table);
                (r.y, r.y_stride) = self.view(*x);
            }
            RowTask::Append { x, cache } => {
                (r.kind, r.n, r.cache) = (row::APPEND, size(x.width), self.cache(*cache));
                (r.x, r.x_stride) = self.view(*x);
            }
            RowTask::Gated { gate, up, out } => {
                (r.kind, r.n) = (row::GATED, size(out.width));
                (r.x, r.x_stride) = self.view(*gate);
                (r.y, r.y_stride) = self.view(*up);
                (r.out, r.out_stride) = self.view(*out);
            }
            RowTask::Wait => r.kind = row::WAIT,
            RowTask::Combine { shared, out } => {
                (r.kind, r.n) = (row::COMBINE, size(out.width));
                (r.x, r.x_stride) = self.view(*shared);
                (r.out, r.out_stride) = self.view(*out);
            }
            RowTask::Hadamard { x, heads, width } => {
                (r.kind, r.n, r.m) = (row::HADAMARD, size(*width), size(*heads));
                (r.y, r.y_stride) = self.view(*x);
            }
            RowTask::Quantise { x, out, block } => {
                (r.kind, r.n, r.m) = (row::QUANTISE_ROW, size(x.width), size(*block));
                (r.y, r.y_stride) = self.view(*x);
                (r.out, r.out_stride) = self.view(*out);
            }
        }
        r
    }

    fn route(&self, task: &RouteTask) -> Call {
        let (logits, stride) = self.view(task.logits);
        debug_assert_eq!(stride as usize, task.routing.experts, "the router's rows lie close together");
        let (input, input_stride) = self.view(task.input);
        let plan = &self.area.plan;
        let parameters = Parameters::Route(Box::new(abi::Route {
            logits,
            bias: self.weights.vector(task.bias),
            experts: size(task.routing.experts),
            chosen: size(task.routing.chosen),
            groups: size(task.routing.groups),
            kept_groups: size(task.routing.kept_groups),
            normalise: u32::from(task.routing.normalise),
            scale: task.routing.scale,
            lanes: size(self.lanes),
            hidden: size(task.input.width),
            input,
            input_stride,
            mode: mode(self.numerics),
            expert_out: self.area.at(plan.experts),
            weight_out: self.area.at(plan.weights),
            exchange: self.area.exchange.address(),
        }));
        Self::call(Kernel::Route, [self.lanes, 1, 1], 0, parameters)
    }

    fn select(&self, task: &SelectTask, calls: &mut Vec<Call>) {
        let plan = &self.area.plan;
        let (q, q_stride) = self.view(task.q);
        let (weights, weights_stride) = self.view(task.weights);
        let (positions, counts) = plan.selection(task.out);
        let (pages, pages_stride) = self.caches.pages();
        let keys = self.cache(task.keys);
        let (heads, dim) = (task.weights.width, keys.width as usize);
        let kernel = if task.fast { Kernel::IndexScores } else { Kernel::IndexScoresPlain };
        let shared = scores_shared(task.fast, heads, dim);
        // Scores of all lanes may not fit at once.
        for first in (0..self.lanes).step_by(plan.score_rows) {
            let lanes = plan.score_rows.min(self.lanes - first);
            let select = abi::Select {
                q,
                weights,
                keys,
                scores: self.area.at(plan.scores),
                selection: self.area.at(positions),
                count: self.area.at(counts),
                q_stride,
                weights_stride,
                scores_stride: size(plan.score_stride),
                heads: size(heads),
                dim: size(dim),
                keep: size(task.keep),
                head_scale: task.head_scale,
                key_scale: task.key_scale,
                lanes: size(self.lanes),
                mode: mode(self.numerics),
                lane: self.lane_table(),
                pages,
                pages_stride,
                first_lane: size(first),
            };
            let scores = if self.all_scores { abi::Select { keep: 0, ..select } } else { select };
            // Two blocks a multiprocessor, so that one computes while the other waits for keys.
            let grid = [2 * self.processors as usize, lanes, 1];
            if self.all_scores || self.longest > task.keep {
                calls.push(Self::call(kernel, grid, shared, Parameters::Select(Box::new(scores))));
            }
            calls.push(Self::call(Kernel::SelectTop, [lanes, 1, 1], 0, Parameters::Select(Box::new(select))));
        }
    }

    fn attend(&self, task: &AttendTask, calls: &mut Vec<Call>) {
        let plan = &self.area.plan;
        let (q_latent, q_stride) = self.view(task.q_latent);
        let (q_rope, rope_row) = self.view(task.q_rope);
        let (out, out_stride) = self.view(task.out);
        let (positions, counts) = plan.selection(task.selection);
        let (latent, rope) = (self.cache(task.latent), self.cache(task.rope));
        let (pages, pages_stride) = self.caches.pages();
        let parts = task.keep.div_ceil(KEYS);
        let parameters = Parameters::Attend(Box::new(abi::Attend {
            q_latent,
            q_rope,
            latent,
            rope,
            selection: self.area.at(positions),
            count: self.area.at(counts),
            part: self.area.at(plan.part),
            part_max: self.area.at(plan.part_max),
            part_sum: self.area.at(plan.part_sum),
            out,
            q_stride,
            rope_row,
            rope_stride: size(task.rope_stride),
            rope_offset: size(task.rope_offset),
            out_stride,
            heads: size(task.heads),
            keep: size(task.keep),
            parts: size(parts),
            scale: task.scale,
            lanes: size(self.lanes),
            mode: mode(self.numerics),
            flags: if self.numerics == Numerics::Exact { 0 } else { abi::ROUND },
            lane: self.lane_table(),
            pages,
            pages_stride,
            _pad: 0,
        }));
        let (width, turned) = (latent.width as usize, rope.width as usize);
        if !task.fast {
            let shared = attend_plain_shared(width, turned, task.keep);
            calls.push(Self::call(Kernel::AttendPlain, [task.heads, self.lanes, 1], shared, parameters));
            return;
        }
        let shared = attend_shared(width, turned);
        let blocks = task.heads.div_ceil(HEADS);
        // With one part the block writes the result itself.
        let several = self.lanes <= FEW && parts > 1;
        let grid = [blocks, self.lanes, if several { parts } else { 1 }];
        calls.push(Self::call(Kernel::Attend, grid, shared, parameters.clone()));
        if several {
            calls.push(Self::call(Kernel::AttendMerge, [task.heads, self.lanes, 1], 0, parameters));
        }
    }

    fn arg_max(&self) -> Call {
        let parameters = Parameters::ArgMax(abi::ArgMax {
            logits: self.area.logits(),
            vocab: size(self.sizes.vocab),
            _pad: 0,
            out: self.area.at(self.area.plan.best),
        });
        Self::call(Kernel::ArgMax, [self.wanted, 1, 1], 0, parameters)
    }
}

/// The call behind one that waits for the host must not start early: its blocks would hold the card while other passes, for which the host may be
/// waiting, have to run. Nor may the first, in front of which lies what is no kernel.
fn hold_back(calls: &mut [Call]) {
    let waits = |call: &Call| match &call.parameters {
        Parameters::Rows(rows) => rows.list[0].kind == abi::row::WAIT,
        _ => false,
    };
    let mut held = true;
    for call in calls {
        call.early = !held;
        held = waits(call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_fits_cards_with_99_kib_for_a_block() {
        // Where the keys of a part lie is shared memory of fixed size.
        let fixed = 2 * KEYS * size_of::<u64>();
        assert!(attend_shared(512, 64) + fixed <= 99 << 10, "{}", attend_shared(512, 64) + fixed);
    }
}
