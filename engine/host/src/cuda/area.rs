//! What one pass works in: activation buffers, selections, partial results, all in one allocation that is laid out once, and a stream.

use std::collections::HashMap;
use std::sync::Arc;

use model::program::{Buffer, SelectionId, View};

use super::abi::{self, FEW, KEYS, PAGE, Plain};
use super::device::Device;
use super::error::CudaError;
use super::exchange::{ExchangeArea, Waits};
use super::lower::Lowered;
use super::memory::{Memory, Pinned};
use super::stream::{Graph, Stream};
use super::task::{Launch, LinearTask, Target};
use crate::stage::Layers;

/// Parts start at multiples of this.
const ALIGN: usize = 256;
/// Rows of buffers start at multiples of this many values, so that kernels load 16 bytes at once.
const ROW_ALIGN: usize = 16;
/// Bytes of index scores at most: with more lanes they are computed some lanes at a time.
const SCORE_BYTES: usize = 128 << 20;

/// Sizes that all areas share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) hidden: usize,
    pub(crate) vocab: usize,
    pub(crate) chosen: usize,
    pub(crate) max_positions: usize,
}

/// A lowered program for each of [`Layers`].
pub(crate) struct Programs {
    pub(crate) main: Lowered,
    pub(crate) mtp: Option<Lowered>,
}

impl Programs {
    pub(crate) fn get(&self, layers: Layers) -> Option<&Lowered> {
        match layers {
            Layers::Main => Some(&self.main),
            Layers::Mtp => self.mtp.as_ref(),
        }
    }

    fn all(&self) -> impl Iterator<Item = (Layers, &Lowered)> {
        [(Layers::Main, Some(&self.main)), (Layers::Mtp, self.mtp.as_ref())]
            .into_iter()
            .filter_map(|(layers, lowered)| Some((layers, lowered?)))
    }
}

/// Where everything lies, from the area's start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) lanes: usize,
    /// `[lanes]` of [`abi::Lane`].
    pub(crate) lane: usize,
    /// `[lanes]` u32.
    pub(crate) wanted: usize,
    /// `[lanes]` u32.
    pub(crate) best: usize,
    /// Offset and stride of each buffer.
    buffers: HashMap<Layers, Vec<(usize, usize)>>,
    /// Offset of positions `[lanes, keep]` and of counts `[lanes]`.
    selections: HashMap<SelectionId, (usize, usize)>,
    /// Scores `[score_rows, score_stride]`.
    pub(crate) scores: usize,
    pub(crate) score_rows: usize,
    pub(crate) score_stride: usize,
    /// Partial results of attention.
    pub(crate) part: usize,
    pub(crate) part_max: usize,
    pub(crate) part_sum: usize,
    /// Packed activations.
    pub(crate) packed: usize,
    /// `[lanes, chosen]`.
    pub(crate) experts: usize,
    pub(crate) weights: usize,
    /// The first byte that has activations: from here on an area may be poisoned.
    pub(crate) activations: usize,
    pub(crate) bytes: usize,
}

impl Plan {
    /// An area for `lanes` lanes of either program.
    pub(crate) fn new(programs: &Programs, sizes: &Sizes, lanes: usize) -> Plan {
        let mut plan = Plan { lanes, ..Plan::default() };
        plan.lane = plan.place(lanes * size_of::<abi::Lane>());
        plan.wanted = plan.place(lanes * 4);
        plan.best = plan.place(lanes * 4);
        plan.activations = plan.bytes;
        plan.experts = plan.place(lanes * sizes.chosen * 4);
        plan.weights = plan.place(lanes * sizes.chosen * 4);
        plan.score_stride = sizes.max_positions.next_multiple_of(PAGE);
        plan.score_rows = (SCORE_BYTES / (plan.score_stride * 4)).clamp(1, lanes);
        let mut need = Need::default();
        for (_, lowered) in programs.all() {
            lowered.launches().for_each(|launch| need.add(launch));
        }
        if need.scores {
            plan.scores = plan.place(plan.score_rows * plan.score_stride * 4);
        }
        for (&selection, &keep) in &need.selections {
            let place = (plan.place(lanes * keep * 4), plan.place(lanes * 4));
            plan.selections.insert(selection, place);
        }
        let few = lanes.min(FEW);
        plan.part = plan.place(few * need.part * 4);
        plan.part_max = plan.place(few * need.part_heads * 4);
        plan.part_sum = plan.place(few * need.part_heads * 4);
        plan.packed = plan.place(need.packed * lanes * 2);
        // A pass runs one of the programs, so their buffers share the same bytes.
        let start = plan.bytes;
        let mut end = start;
        for (layers, lowered) in programs.all() {
            plan.bytes = start;
            let buffers = lowered.buffers.iter().enumerate().map(|(i, &width)| {
                let dense = lowered.dense.contains(&Buffer(i as u16));
                let stride = if dense { width } else { width.next_multiple_of(ROW_ALIGN) };
                (plan.place(lanes * stride * 4), stride)
            });
            let buffers = buffers.collect();
            plan.buffers.insert(layers, buffers);
            end = end.max(plan.bytes);
        }
        plan.bytes = end;
        plan
    }

    fn place(&mut self, bytes: usize) -> usize {
        let at = self.bytes;
        self.bytes += bytes.next_multiple_of(ALIGN);
        at
    }

    /// A buffer's offset and stride.
    pub(crate) fn buffer(&self, layers: Layers, buffer: Buffer) -> (usize, usize) {
        self.buffers[&layers][usize::from(buffer.0)]
    }

    /// A selection's positions and counts.
    pub(crate) fn selection(&self, id: SelectionId) -> (usize, usize) {
        self.selections[&id]
    }
}

/// What launches need beside buffers.
#[derive(Default)]
struct Need {
    scores: bool,
    selections: HashMap<SelectionId, usize>,
    /// Values of one lane's partial results, and of their maxima.
    part: usize,
    part_heads: usize,
    /// Packed values of one lane.
    packed: usize,
}

impl Need {
    fn add(&mut self, launch: &Launch) {
        match launch {
            Launch::Select(task) => {
                self.scores = true;
                let keep = self.selections.entry(task.out).or_default();
                *keep = task.keep.max(*keep);
            }
            Launch::Attend(task) if task.fast => {
                let rows = task.keep.div_ceil(KEYS) * task.heads;
                self.part = self.part.max(rows * (task.out.width / task.heads.max(1)));
                self.part_heads = self.part_heads.max(rows);
            }
            Launch::Linears(list) if list[0].fast => {
                let width = packs(list).iter().map(|pack| pack.stride).sum();
                self.packed = self.packed.max(width);
            }
            _ => {}
        }
    }
}

/// An activation that the kernel for many lanes reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PackedView {
    pub(crate) x: View,
    pub(crate) quantise: bool,
    /// Values from one lane's row to the next.
    pub(crate) stride: usize,
}

/// What a launch of products packs first, each once.
pub(crate) fn packs(list: &[LinearTask]) -> Vec<PackedView> {
    let mut packs: Vec<PackedView> = Vec::new();
    for task in list {
        let pack = PackedView { x: task.x, quantise: task.quantise, stride: task.x.width.next_multiple_of(ROW_ALIGN) };
        if !packs.contains(&pack) {
            packs.push(pack);
        }
    }
    packs
}

/// Whether a launch computes logits.
pub(crate) fn is_logits(list: &[LinearTask]) -> bool {
    list.first().is_some_and(|task| task.out == Target::Logits)
}

/// What a captured graph was captured for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GraphKey {
    pub(crate) layers: Layers,
    pub(crate) lanes: usize,
    pub(crate) wanted: usize,
}

/// The area of a pass.
pub(crate) struct Area {
    pub(crate) plan: Plan,
    memory: Memory,
    /// `[rows, vocab]`.
    logits: Memory,
    /// Outgrown; freeing would wait for the whole card.
    outgrown: Vec<Memory>,
    pub(crate) stream: Stream,
    pub(crate) exchange: ExchangeArea,
    pub(crate) lane_table: Pinned<abi::Lane>,
    pub(crate) wanted_table: Pinned<u32>,
    pub(crate) best: Pinned<u32>,
    pub(crate) graphs: HashMap<GraphKey, Graph>,
    outgrown_graphs: Vec<Graph>,
    device: Arc<Device>,
    vocab: usize,
}

impl Area {
    pub(crate) fn new(
        device: &Arc<Device>,
        programs: &Programs,
        sizes: &Sizes,
        lanes: usize,
        waits: Waits,
    ) -> Result<Area, CudaError> {
        let plan = Plan::new(programs, sizes, lanes);
        let memory = Memory::new(device, &format!("activations of {lanes} lanes"), plan.bytes)?;
        let rows = lanes.min(FEW);
        Ok(Area {
            memory,
            logits: Memory::new(device, "logits", rows * sizes.vocab * 4)?,
            stream: Stream::new(device)?,
            exchange: ExchangeArea::new(device, sizes.hidden, sizes.chosen, lanes, waits)?,
            lane_table: Pinned::new(device, lanes)?,
            wanted_table: Pinned::new(device, lanes)?,
            best: Pinned::new(device, lanes)?,
            graphs: HashMap::new(),
            outgrown: Vec::new(),
            outgrown_graphs: Vec::new(),
            device: device.clone(),
            vocab: sizes.vocab,
            plan,
        })
    }

    /// An address in the area.
    pub(crate) fn at(&self, offset: usize) -> u64 {
        self.memory.address() + offset as u64
    }

    /// A view's address and its rows' stride.
    pub(crate) fn view(&self, layers: Layers, view: View) -> (u64, u32) {
        let (offset, stride) = self.plan.buffer(layers, view.buffer);
        (self.at(offset + view.start * 4), stride as u32)
    }

    /// Where logits go.
    pub(crate) fn logits(&self) -> u64 {
        self.logits.address()
    }

    /// Room for logits of so many lanes.
    pub(crate) fn ensure_logits(&mut self, rows: usize) -> Result<(), CudaError> {
        if rows * self.vocab * 4 > self.logits.bytes() {
            let larger = Memory::new(&self.device, "logits", rows * self.vocab * 4)?;
            self.outgrown.push(std::mem::replace(&mut self.logits, larger));
            self.outgrown_graphs.extend(self.graphs.drain().map(|(_, graph)| graph));
        }
        Ok(())
    }

    /// Frees what was outgrown; no pass may be under way.
    pub(crate) fn tidy(&mut self) {
        self.outgrown_graphs.clear();
        self.outgrown.clear();
    }

    /// Fills everything that a pass computes with NaN.
    pub(crate) fn poison(&self) -> Result<(), CudaError> {
        let nan = f32::NAN.to_bits();
        self.stream.set(self.at(self.plan.activations), nan, (self.plan.bytes - self.plan.activations) / 4)?;
        self.stream.set(self.logits.address(), nan, self.logits.bytes() / 4)
    }

    /// Copies values back, after everything enqueued before.
    pub(crate) fn read<T: Plain>(&self, at: u64, count: usize) -> Result<Vec<T>, CudaError> {
        let mut values = vec![T::zeroed(); count];
        self.stream.read(at, &mut values)?;
        Ok(values)
    }

    /// Bytes on the card.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.bytes() + self.logits.bytes()
    }
}
