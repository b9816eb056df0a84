//! A tiny model whose sums depend on every weight, so that a wrong block, lane or fragment shows; and the two ends' memory.

use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

use crate::body::{Head, Layout};
use crate::duck::{self, STEPS, Sizes};
use crate::host::{self, Piece};
use crate::limits::{Limits, Mode};
use crate::list::{Entry, List, PROGRAM_LAYER};

pub const LIMITS: Limits = Limits {
    hidden: 64,
    layers: 2,
    slices: 2,
    experts: 4,
    chosen: 2,
    lanes: 3,
    nodes: 3,
    mode: Mode::Exact,
    format: 1,
    step_chunk: 96,
    load_chunk: 128,
};

/// splitmix64.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }
}

fn weight(layer: u16, node: u16, i: usize) -> u8 {
    Random(u64::from(layer) << 48 | u64::from(node) << 32 | i as u64).next() as u8
}

/// The weights of a unit: every copy is the same.
pub fn block(layer: u16, node: u16, length: usize) -> Vec<u8> {
    (0..length).map(|i| weight(layer, node, i)).collect()
}

/// The list of a duck that holds `slices` of the model, with blocks of `length` bytes, and a program.
pub fn list(slices: core::ops::Range<u16>, length: u32) -> Vec<u8> {
    let shape = LIMITS.shape();
    let mut units: Vec<(u16, u16)> = (0..LIMITS.layers)
        .flat_map(|l| {
            slices.clone().flat_map(move |s| (0..LIMITS.experts).map(move |e| (l, shape.unit(s, e).index(shape))))
        })
        .collect();
    units.sort_unstable();
    units.push((PROGRAM_LAYER, 0));
    let entry = |&(layer, node): &(u16, u16)| {
        let digest = *blake3::hash(&block(layer, node, length as usize)).as_bytes();
        Entry { layer, node, length, digest }.emit()
    };
    units.iter().flat_map(entry).collect()
}

pub fn program(length: u32) -> [u8; 32] {
    *blake3::hash(&block(PROGRAM_LAYER, 0, length as usize)).as_bytes()
}

/// What a holder of a node sums up for one lane and row, given the units' weights.
fn value(
    layer: u16,
    node: u16,
    experts: &[u16],
    weights: &[f32],
    x: f32,
    row: usize,
    byte: impl Fn(u16, u16, usize) -> u8,
) -> f32 {
    let shape = LIMITS.shape();
    let node = shape.node(node).expect("tests name nodes of the tree");
    let mut sum = 0.0;
    for slice in node.slice..node.slice + node.slices {
        for (expert, weight) in experts.iter().zip(weights).filter(|(e, _)| node.has(slice, **e)) {
            let unit = shape.unit(slice, *expert).index(shape);
            sum += weight * (x + f32::from(byte(layer, unit, row)));
        }
    }
    sum
}

/// A step as the host keeps it.
#[derive(Clone, Debug)]
pub struct StepData {
    pub layer: u16,
    pub lanes: u16,
    pub experts: Vec<u16>,
    pub weights: Vec<f32>,
    pub hidden: Vec<f32>,
    pub named: Vec<u16>,
    pub nodes: Vec<u16>,
    pub time_limit: u32,
    pub landed: BTreeMap<(usize, u16, usize), f32>,
}

impl StepData {
    pub fn random(random: &mut Random, named: &[u16], nodes: &[u16]) -> StepData {
        let lanes = 1 + random.below(u64::from(LIMITS.lanes)) as u16;
        let mut experts = Vec::new();
        for _ in 0..lanes {
            let a = random.below(3) as u16;
            let b = a + 1 + random.below(u64::from(3 - a)) as u16;
            experts.extend([a, b]);
        }
        let weights = (0..experts.len()).map(|_| random.below(1_000) as f32 / 1_000.0).collect();
        let hidden = (0..usize::from(lanes) * 64).map(|_| random.below(100_000) as f32 / 777.0).collect();
        let layer = random.below(LIMITS.layers.into()) as u16;
        let (named, nodes) = (named.to_vec(), nodes.to_vec());
        StepData { layer, lanes, experts, weights, hidden, named, nodes, time_limit: 0, landed: BTreeMap::new() }
    }

    pub fn body(&self) -> Vec<u8> {
        let mut body = Head { layer: self.layer, reserved: 0, time_limit: self.time_limit }.emit().to_vec();
        self.named.iter().chain(&self.experts).for_each(|v| body.extend(v.to_le_bytes()));
        self.weights.iter().chain(&self.hidden).for_each(|v| body.extend(v.to_le_bytes()));
        assert_eq!(body.len(), Layout::new(&LIMITS, self.lanes, self.named.len() as u16).len());
        body
    }

    /// The right value, or `None` where nothing is owed.
    pub fn expected(&self, node: u16, lane: u16, row: usize, length: usize) -> Option<f32> {
        let at = 2 * usize::from(lane);
        let experts = &self.experts[at..at + 2];
        let tree = LIMITS.shape().node(node)?;
        if !experts.iter().any(|&e| tree.has(tree.slice, e)) {
            return None;
        }
        let x = self.hidden[64 * usize::from(lane) + row];
        let byte = |l, n, r: usize| weight(l, n, r % length);
        Some(value(self.layer, node, experts, &self.weights[at..at + 2], x, row, byte))
    }

    /// Whether every owed value landed, and is right.
    pub fn assert_complete(&self, length: usize) {
        for (place, &node) in self.nodes.iter().enumerate() {
            for lane in 0..self.lanes {
                for row in 0..64 {
                    let found = self.landed.get(&(place, lane, row)).map(|v| v.to_bits());
                    let expected = self.expected(node, lane, row, length).map(f32::to_bits);
                    assert_eq!(found, expected, "node {node} lane {lane} row {row}");
                }
            }
        }
    }
}

#[derive(Debug)]
pub struct HostMemory {
    pub list: Vec<u8>,
    pub steps: BTreeMap<u32, StepData>,
    /// Blocks that this host sends damaged, so many times.
    pub damage: BTreeMap<u32, u32>,
}

impl host::Memory for HostMemory {
    fn list(&self) -> &[u8] {
        &self.list
    }

    fn read_block(&self, index: u32, offset: u32, out: &mut [u8]) {
        let entry = List(&self.list).get(index as usize).expect("a block of the list");
        let bytes = block(entry.layer, entry.node, entry.length as usize);
        out.copy_from_slice(&bytes[offset as usize..offset as usize + out.len()]);
        if self.damage.get(&index).is_some_and(|&n| n > 0) && offset == 0 {
            out[0] ^= 1;
        }
    }

    fn read_input(&self, seq: u32, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.steps[&seq].body()[offset..offset + out.len()]);
    }

    fn land(&mut self, piece: Piece<'_>) {
        let step = self.steps.get_mut(&piece.seq).expect("a result of a step that was begun");
        assert_eq!(step.nodes[piece.place], piece.node);
        for (i, raw) in piece.bytes.as_chunks::<4>().0.iter().enumerate() {
            let again = step.landed.insert((piece.place, piece.lane, piece.start + i), f32::from_le_bytes(*raw));
            assert_eq!(again, None, "a value landed twice");
        }
    }
}

#[derive(Debug)]
pub struct DuckMemory {
    pub list: Vec<u8>,
    pub blocks: BTreeMap<u32, Vec<u8>>,
    pub inputs: [Vec<u8>; STEPS],
    pub results: [Vec<f32>; STEPS],
}

impl DuckMemory {
    pub fn new() -> DuckMemory {
        DuckMemory {
            list: vec![0; 4_096],
            blocks: BTreeMap::new(),
            inputs: core::array::from_fn(|_| vec![0; LIMITS.input_len()]),
            results: core::array::from_fn(|_| vec![f32::NAN; LIMITS.result_len() / 4]),
        }
    }

    /// Computes some rows of a step with the weights that lie here.
    pub fn compute(
        &mut self,
        slot: usize,
        layout: &Layout,
        layer: u16,
        lanes: u16,
        nodes: &[u16],
        rows: core::ops::Range<usize>,
    ) {
        let input = &self.inputs[slot];
        let f32s = |r: core::ops::Range<usize>| -> Vec<f32> {
            input[r].as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
        };
        let experts: Vec<u16> = crate::body::shorts(&input[layout.experts()]).collect();
        let (weights, hidden) = (f32s(layout.weights()), f32s(layout.hidden()));
        let shape_list = List(&self.list);
        let byte = |l: u16, n: u16, row: usize| {
            let index = (0..shape_list.len()).find(|&i| shape_list.get(i).is_some_and(|e| (e.layer, e.node) == (l, n)));
            let block = index.and_then(|i| self.blocks.get(&(i as u32))).expect("a resident block");
            block[row % block.len()]
        };
        let mut out = Vec::new();
        for (place, &node) in nodes.iter().enumerate() {
            for lane in 0..usize::from(lanes) {
                for row in rows.clone() {
                    let (e, w) = (&experts[2 * lane..2 * lane + 2], &weights[2 * lane..2 * lane + 2]);
                    let v = value(layer, node, e, w, hidden[64 * lane + row], row, byte);
                    out.push(((place * usize::from(lanes) + lane) * 64 + row, v));
                }
            }
        }
        out.into_iter().for_each(|(at, v)| self.results[slot][at] = v);
    }
}

impl duck::Memory for DuckMemory {
    fn sizes(&self) -> Sizes {
        Sizes {
            list: self.list.len(),
            blocks: 10_000_000,
            input: self.inputs[0].len(),
            result: 4 * self.results[0].len(),
        }
    }

    fn list(&self) -> &[u8] {
        &self.list
    }

    fn list_mut(&mut self) -> &mut [u8] {
        &mut self.list
    }

    fn write_block(&mut self, index: u32, offset: u32, bytes: &[u8]) {
        let entry = List(&self.list).get(index as usize).expect("only blocks of the list are written");
        let block = self.blocks.entry(index).or_default();
        block.resize(entry.length as usize, 0);
        block[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
    }

    fn input(&self, slot: usize) -> &[u8] {
        &self.inputs[slot]
    }

    fn input_mut(&mut self, slot: usize) -> &mut [u8] {
        &mut self.inputs[slot]
    }

    fn read_result(&self, slot: usize, offset: usize, out: &mut [u8]) {
        for (value, raw) in self.results[slot][offset / 4..].iter().zip(out.as_chunks_mut::<4>().0) {
            assert!(!value.is_nan(), "a row was read before it was final");
            *raw = value.to_le_bytes();
        }
    }
}
