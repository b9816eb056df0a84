//! A random model with its units packed, and steps over it by any number of holders and cores.
#![allow(dead_code, reason = "each test binary uses a part")]

use fp9::format::{bf16, e4m3};
use fp9::{Format, Isa};
use kernels::abi::FULL_SHARE;
use kernels::reference::{Lane, Weights};
use kernels::tree::{Node, Shape, additions};
use kernels::unit::{Expert, Part, SLICE, Source, Tensor, UnitLayout, pack_unit};
use kernels::{Config, Core, HeldNode, Holder, Hooks, Limits, Mode, NoHooks, Refusal, Step, UnitEntry, scratch_len};

/// SplitMix64: small, seeded, the same everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Uniform in -1..1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Blocks are read in place: memory for them must be aligned.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct Line(pub [u8; 64]);

pub fn bytes_of(lines: &[Line]) -> &[u8] {
    // SAFETY: plain bytes without padding.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}

pub fn bytes_of_mut(lines: &mut [Line]) -> &mut [u8] {
    // SAFETY: as above, borrowed exclusively.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
}

/// One matrix of an expert in source form.
struct Matrix {
    e4m3: Vec<u8>,
    bf16: Vec<u16>,
    scales: Vec<f32>,
    columns: usize,
}

impl Matrix {
    fn random(rows: usize, columns: usize, random: &mut Random) -> Matrix {
        let mut e4m3: Vec<u8> = (0..rows * columns).map(|_| random.next() as u8).collect();
        e4m3.iter_mut().filter(|c| **c & 0x7F == 0x7F).for_each(|c| *c ^= 1);
        let bf16 = e4m3.iter().map(|&c| bf16::encode(e4m3::decode(c) * 0.37e-3)).collect();
        let blocks = rows.div_ceil(128) * columns.div_ceil(128);
        Matrix { e4m3, bf16, scales: (0..blocks).map(|_| random.unit() * 1e-3).collect(), columns }
    }
}

/// A layer of experts, packed.
pub struct Model {
    pub layout: UnitLayout,
    pub shape: Shape,
    experts: Vec<[Matrix; 3]>,
    blocks: Vec<Vec<Line>>,
}

impl Model {
    pub fn random(format: Format, shape: Shape, hidden: usize, seed: u64) -> Model {
        let random = &mut Random(seed);
        let layout = UnitLayout::new(format, hidden).unwrap();
        let width = usize::from(shape.slices) * SLICE;
        let experts: Vec<[Matrix; 3]> = (0..shape.experts)
            .map(|_| [(width, hidden), (width, hidden), (hidden, width)].map(|(r, c)| Matrix::random(r, c, random)))
            .collect();
        let mut model = Model { layout, shape, experts, blocks: Vec::new() };
        for slice in 0..shape.slices {
            for expert in 0..shape.experts {
                let mut block = vec![Line([0xA5; 64]); layout.len() / 64];
                let source = model.source(expert);
                pack_unit(&layout, &source, slice.into(), bytes_of_mut(&mut block)).unwrap();
                model.blocks.push(block);
            }
        }
        model
    }

    pub fn source(&self, expert: u16) -> Source<'_> {
        let matrices = &self.experts[usize::from(expert)];
        let width = usize::from(self.shape.slices) * SLICE;
        if self.layout.format() == Format::Bf16 {
            let [gate, up, down] = [0, 1, 2].map(|i| Tensor { codes: &matrices[i].bf16[..], scales: &[] });
            return Source::Bf16(Expert { gate, up, down, width });
        }
        let [gate, up, down] =
            [0, 1, 2].map(|i| Tensor { codes: &matrices[i].e4m3[..], scales: &matrices[i].scales[..] });
        Source::E4m3(Expert { gate, up, down, width })
    }

    pub fn block(&self, slice: u16, expert: u16) -> &[u8] {
        bytes_of(&self.blocks[usize::from(slice) * usize::from(self.shape.experts) + usize::from(expert)])
    }

    /// The unit table of a holder of `nodes`, and each node's first unit.
    pub fn table(&self, nodes: &[Node]) -> (Vec<UnitEntry<'_>>, Vec<u32>) {
        let (mut table, mut firsts) = (Vec::new(), Vec::new());
        for node in nodes {
            firsts.push(table.len() as u32);
            for slice in node.slice..node.slice + node.slices {
                for expert in (node.residue..self.shape.experts).step_by(1 << node.depth) {
                    table.push(UnitEntry::new(self.block(slice, expert)));
                }
            }
        }
        (table, firsts)
    }

    fn at(&self, slice: u16, expert: u16, part: Part, row: usize, column: usize) -> (&Matrix, usize, usize) {
        let matrix = &self.experts[usize::from(expert)][part as usize];
        let first = usize::from(slice) * SLICE;
        match part {
            Part::Gate | Part::Up => (matrix, first + row, column),
            Part::Down => (matrix, row, first + column),
        }
    }
}

impl Weights for Model {
    fn weight(&self, slice: u16, expert: u16, part: Part, row: usize, column: usize) -> f32 {
        let (matrix, row, column) = self.at(slice, expert, part, row, column);
        let at = row * matrix.columns + column;
        match self.layout.format() {
            Format::Bf16 => bf16::decode(matrix.bf16[at]),
            _ => e4m3::decode(matrix.e4m3[at]),
        }
    }

    fn scale(&self, slice: u16, expert: u16, part: Part, row: usize, column: usize) -> f32 {
        let (matrix, row, column) = self.at(slice, expert, part, row, column);
        match self.layout.format() {
            Format::Bf16 => 1.0,
            _ => matrix.scales[row / 128 * matrix.columns.div_ceil(128) + column / 128],
        }
    }
}

/// What a step computes.
#[derive(Clone, Debug)]
pub struct Input {
    pub mode: Mode,
    pub lanes: usize,
    pub chosen: usize,
    pub ids: Vec<u16>,
    pub weights: Vec<f32>,
    pub x: Vec<f32>,
}

impl Input {
    pub fn random(model: &Model, mode: Mode, lanes: usize, chosen: usize, random: &mut Random) -> Input {
        let (experts, hidden) = (usize::from(model.shape.experts), model.layout.hidden());
        let mut ids = Vec::new();
        for _ in 0..lanes {
            let mut all: Vec<u16> = (0..experts as u16).collect();
            for i in 0..chosen {
                all.swap(i, i + random.below(experts - i));
            }
            all.truncate(chosen);
            all.sort_unstable();
            ids.extend(all);
        }
        let weights = (0..lanes * chosen).map(|_| random.unit()).collect();
        Input { mode, lanes, chosen, ids, weights, x: (0..lanes * hidden).map(|_| random.unit()).collect() }
    }

    /// Some of its lanes, in the given order.
    pub fn lanes(&self, lanes: &[usize]) -> Input {
        let hidden = self.x.len() / self.lanes;
        let pick = |width: usize, lane: usize| lane * width..(lane + 1) * width;
        Input {
            lanes: lanes.len(),
            ids: lanes.iter().flat_map(|&l| self.ids[pick(self.chosen, l)].to_vec()).collect(),
            weights: lanes.iter().flat_map(|&l| self.weights[pick(self.chosen, l)].to_vec()).collect(),
            x: lanes.iter().flat_map(|&l| self.x[pick(hidden, l)].to_vec()).collect(),
            ..self.clone()
        }
    }

    pub fn lane<'a>(&'a self, model: &Model, lane: usize) -> Lane<'a> {
        let hidden = model.layout.hidden();
        Lane {
            shape: model.shape,
            mode: self.mode,
            x: &self.x[lane * hidden..][..hidden],
            ids: &self.ids[lane * self.chosen..][..self.chosen],
            weights: &self.weights[lane * self.chosen..][..self.chosen],
        }
    }

    /// By the definition: `[lanes]`, absent lanes are `None`.
    pub fn reference(&self, model: &Model, node: Node) -> Vec<Option<Vec<f32>>> {
        let hidden = model.layout.hidden();
        (0..self.lanes)
            .map(|lane| {
                let (mut out, mut spare) = (vec![0.0; hidden], vec![0.0; 32 * hidden]);
                self.lane(model, lane).sum(model, node, &mut out, &mut spare).then_some(out)
            })
            .collect()
    }
}

/// How a holder's cores run.
#[derive(Clone, Copy, Debug)]
pub struct Cores {
    pub count: usize,
    pub share: u32,
    /// Real threads with the barrier; otherwise one half after the other on this thread.
    pub threads: bool,
    pub isa: Isa,
}

impl Cores {
    pub fn one() -> Cores {
        Cores { count: 1, share: FULL_SHARE, threads: false, isa: Isa::detect() }
    }
}

/// Gives the processor away while waiting.
pub struct Yield;

impl Hooks for Yield {
    fn idle(&mut self) {
        std::thread::yield_now();
    }
}

/// One value per (node, lane): what a holder reports.
pub type Sums = Vec<Vec<Option<Vec<f32>>>>;

/// A holder of `nodes` computes a step.
pub fn hold(model: &Model, nodes: &[Node], input: &Input, cores: Cores) -> Result<Sums, Refusal> {
    let hidden = model.layout.hidden();
    let (table, firsts) = model.table(nodes);
    let limits = Limits::new(model.shape, nodes, input.lanes, input.chosen);
    let mut scratch = vec![0xA5; scratch_len(&limits, model.shape, hidden, cores.count).unwrap()];
    let config = Config {
        layout: model.layout,
        shape: model.shape,
        units: table.len(),
        table: &table,
        cores: cores.count,
        core0_share: cores.share,
        limits,
    };
    let mut holder = Holder::new(&config, &mut scratch)?;
    let mut out = vec![f32::NAN; nodes.len() * input.lanes * hidden];
    let mut present = vec![7u8; nodes.len() * input.lanes];
    let mut held: Vec<HeldNode<'_>> = nodes
        .iter()
        .zip(&firsts)
        .zip(out.chunks_exact_mut(input.lanes * hidden).zip(present.chunks_exact_mut(input.lanes)))
        .map(|((&node, &first), (out, present))| HeldNode::new(node, first, out, present))
        .collect();
    let step = Step {
        layer: 0,
        mode: input.mode,
        lanes: input.lanes,
        chosen: input.chosen,
        ids: &input.ids,
        weights: &input.weights,
        input: &input.x,
        nodes: &mut held,
    };
    let running = holder.begin(step)?;
    let core = |index| Core { index, isa: cores.isa };
    if cores.threads {
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..cores.count).map(|c| scope.spawn(move || running.run(core(c), &mut Yield))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        results.into_iter().collect::<Result<(), _>>()?;
    } else {
        (0..cores.count).try_for_each(|c| running.first_half(core(c), &mut NoHooks))?;
        (0..cores.count).rev().try_for_each(|c| running.second_half(core(c), &mut NoHooks))?;
    }
    assert!(running.ended());
    let sums = out.chunks_exact(input.lanes * hidden).zip(present.chunks_exact(input.lanes));
    Ok(sums
        .map(|(out, present)| {
            let lanes = out.chunks_exact(hidden).zip(present);
            lanes
                .map(|(values, &present)| {
                    assert!(present < 2);
                    assert!(present == 1 || values.iter().all(|v| v.is_nan()), "an absent lane was written");
                    (present == 1).then(|| values.to_vec())
                })
                .collect()
        })
        .collect())
}

/// A random cut of the tree below `top` into at most `most` nodes or so, in the tree's order.
pub fn random_cut(shape: Shape, top: Node, most: usize, random: &mut Random) -> Vec<Node> {
    let mut nodes = vec![top];
    while nodes.len() < most && random.below(8) > 0 {
        let at = random.below(nodes.len());
        if let Some((left, right)) = nodes[at].children(shape) {
            nodes.splice(at..=at, [left, right]);
        }
    }
    nodes.sort_by_key(|n| n.order());
    nodes
}

/// Adds up the tree what the holders of `nodes` (in the tree's order) reported.
pub fn add_up(shape: Shape, nodes: &[Node], sums: &[Vec<Option<Vec<f32>>>], lane: usize) -> Option<Vec<f32>> {
    let present: Vec<usize> = (0..nodes.len()).filter(|&n| sums[n][lane].is_some()).collect();
    let items: Vec<Node> = present.iter().map(|&n| nodes[n]).collect();
    let mut values: Vec<Vec<f32>> = present.iter().map(|&n| sums[n][lane].clone().unwrap()).collect();
    additions(shape, shape.root(), &items, &mut |a, b| {
        let other = values[b].clone();
        values[a].iter_mut().zip(other).for_each(|(a, b)| *a += b);
    });
    values.into_iter().next()
}

pub fn bits(sum: &Option<Vec<f32>>) -> Option<Vec<u32>> {
    sum.as_ref().map(|values| values.iter().map(|v| v.to_bits()).collect())
}

pub const FORMATS: [Format; 3] = [Format::E4m3, Format::Fp9, Format::Bf16];
