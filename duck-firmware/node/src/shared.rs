//! What the kernels and their owner share beside weights and results: the step block, the nodes, the running layer's units, the decoded input,
//! the flags of presence, the kernels' scratch. All of it lies in one region, since the kernels may have an address space with nothing else.
//!
//! ```text
//! step block | nodes | ids | weights | input | presence | units | scratch
//! └─────────── carved when a session is opened ──────────┘└ by the step's nodes ┘
//! ```
//!
//! Parts start at multiples of 64. Before each step all of it is written anew but the units, which are copied when they are another table's: what
//! a program has left there is not believed.
#![allow(unsafe_code)] // places in raw memory

use core::ptr;

use kernels::abi::{ABI_VERSION, Progress, Request, Session, StepBlock, format_code};
use kernels::tree::Shape;
use kernels::unit::UnitLayout;
use kernels::{HeldNode, Mode, Refusal, Running, UnitEntry};
use wire::Limits;

use crate::blocks::Table;
use crate::input::Arrays;
use crate::region::Region;
use crate::tables::Nodes;

/// What parts start at a multiple of.
const LINE: usize = 64;

/// The region, and how it is carved.
#[derive(Debug)]
pub(crate) struct Shared {
    region: Region,
    places: Option<Places>,
    /// Of the table whose units lie there.
    version: Option<(u64, u64)>,
}

/// Offsets of the parts, and what they have room for.
#[derive(Clone, Copy, Debug)]
struct Places {
    lanes: usize,
    chosen: usize,
    hidden_len: usize,
    node_count: usize,
    block: usize,
    nodes: usize,
    ids: usize,
    weights: usize,
    hidden: usize,
    present: usize,
    units: usize,
}

/// Hands out places one after the other, `None` beyond `len`.
struct Next {
    at: usize,
    len: usize,
}

impl Next {
    fn place<T>(&mut self, count: usize) -> Option<usize> {
        const { assert!(align_of::<T>() <= LINE) };
        let at = self.at;
        let end = at.checked_add(count.checked_mul(size_of::<T>())?)?;
        self.at = end.checked_next_multiple_of(LINE)?;
        (end <= self.len).then_some(at)
    }
}

impl Places {
    fn new(len: usize, limits: &Limits) -> Option<Places> {
        let [lanes, chosen, node_count] = [limits.lanes, limits.chosen, limits.nodes].map(usize::from);
        let hidden_len = limits.hidden as usize;
        let mut next = Next { at: 0, len };
        Some(Places {
            lanes,
            chosen,
            hidden_len,
            node_count,
            block: next.place::<StepBlock>(1)?,
            nodes: next.place::<HeldNode<'_>>(node_count)?,
            ids: next.place::<u16>(lanes * chosen)?,
            weights: next.place::<f32>(lanes * chosen)?,
            hidden: next.place::<f32>(lanes * hidden_len)?,
            present: next.place::<u8>(node_count * lanes)?,
            units: next.place::<u8>(0)?,
        })
    }
}

/// A step, but for what [`Shared::arrays`] took.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub cores: usize,
    pub core0_share: u32,
    pub shape: Shape,
    pub layout: UnitLayout,
    pub mode: Mode,
    pub lanes: usize,
    pub nodes: &'a Nodes,
    /// The layer's units, valid while the step runs.
    pub table: &'a Table,
    /// `[nodes, lanes, hidden]`.
    pub sums: &'a mut [f32],
}

impl Shared {
    pub fn new(region: Region) -> Shared {
        Shared { region, places: None, version: None }
    }

    /// Carves the region for a session. With too little memory there is no room for any step.
    pub fn open(&mut self, limits: &Limits) {
        self.places = Places::new(self.region.len(), limits);
        self.version = None;
    }

    /// Nothing that lies there is believed any more.
    pub fn forget(&mut self) {
        self.version = None;
    }

    /// Whether so many units and bytes of scratch have room.
    pub fn has_room(&self, units: usize, scratch: usize) -> bool {
        self.places.is_some_and(|places| self.variable(&places, units, scratch).is_some())
    }

    /// Offsets of units and scratch.
    fn variable(&self, places: &Places, units: usize, scratch: usize) -> Option<(usize, usize)> {
        let mut next = Next { at: places.units, len: self.region.len() };
        Some((next.place::<UnitEntry<'_>>(units)?, next.place::<u8>(scratch)?))
    }

    /// Where the input of a step of so many lanes goes; `None` if there are too many.
    pub fn arrays(&mut self, lanes: usize) -> Option<Arrays<'_>> {
        let p = self.places.filter(|p| lanes <= p.lanes)?;
        // SAFETY: parts do not overlap, any bits are numbers, and no step runs: a `Running` borrows `self`.
        Some(unsafe {
            Arrays {
                ids: self.region.array(p.ids, lanes * p.chosen),
                weights: self.region.array(p.weights, lanes * p.chosen),
                hidden: self.region.array(p.hidden, lanes * p.hidden_len),
            }
        })
    }

    /// Makes the step block for what [`Shared::arrays`] has taken. The cores may then run it, as long as the table is valid.
    ///
    /// # Safety
    /// The blocks of `wanted.table` are readable and constant as long as any core runs the step.
    pub unsafe fn begin<'s>(&'s mut self, wanted: Wanted<'s>) -> Result<Running<'s>, Refusal> {
        let Wanted { cores, core0_share, shape, layout, mode, lanes, nodes, table, sums } = wanted;
        let p = self.places.ok_or(Refusal::Session)?;
        let (count, vector, entries) = (nodes.nodes.len(), lanes * layout.hidden(), table.entries());
        if lanes == 0 || lanes > p.lanes || layout.hidden() != p.hidden_len {
            return Err(Refusal::Lanes);
        }
        if count > p.node_count || sums.len() != count * vector {
            return Err(Refusal::Node);
        }
        let (units, scratch) = self.variable(&p, entries.len(), nodes.scratch).ok_or(Refusal::Session)?;
        let unit_table: *mut UnitEntry<'_> = self.region.place(units, entries.len());
        if self.version != Some(table.version()) {
            // SAFETY: inside the region, with room for so many, and no step runs: a `Running` borrows `self`.
            unsafe { ptr::copy_nonoverlapping(entries.as_ptr(), unit_table, entries.len()) };
            self.version = Some(table.version());
        }
        // SAFETY: as above; any bits are flags.
        let present: &mut [u8] = unsafe { self.region.array(p.present, count * lanes) };
        let held: *mut HeldNode<'_> = self.region.place(p.nodes, count);
        let buffers = sums.chunks_exact_mut(vector).zip(present.chunks_exact_mut(lanes));
        for (i, ((&node, &first), (sums, present))) in
            nodes.nodes.iter().zip(&nodes.first_units).zip(buffers).enumerate()
        {
            // SAFETY: below `count`, for which there is room.
            unsafe { held.add(i).write(HeldNode::new(node, first, sums, present)) };
        }
        let session = Session {
            version: ABI_VERSION,
            size: size_of::<StepBlock>() as u32,
            format: format_code(layout.format()),
            hidden: layout.hidden() as u32,
            slices: shape.slices,
            experts: shape.experts,
            // One layer's units at a time: the layer's number was used to find them.
            layers: 1,
            units: u32::try_from(entries.len()).map_err(|_| Refusal::Session)?,
            cores: u32::try_from(cores).map_err(|_| Refusal::Session)?,
            core0_share,
            limits: nodes.limits,
            unit_table: unit_table.cast(),
            scratch: self.region.place(scratch, nodes.scratch),
            scratch_len: nodes.scratch as u64,
        };
        let choices = lanes * p.chosen;
        let request = Request {
            layer: 0,
            lanes: lanes as u32,
            chosen: p.chosen as u32,
            mode: mode as u32,
            ids: self.region.place(p.ids, choices),
            ids_len: choices as u64,
            weights: self.region.place(p.weights, choices),
            weights_len: choices as u64,
            input: self.region.place(p.hidden, vector),
            input_len: vector as u64,
            nodes: held.cast(),
            nodes_len: count as u64,
        };
        let block: *mut StepBlock = self.region.place(p.block, 1);
        // SAFETY: there is room for one, and no step runs. What it points to lies in the region, apart from one another and initialised, and is
        // borrowed for 's, as the sums are; for the weights the caller has promised.
        unsafe {
            block.write(StepBlock { session, request, progress: Progress::new() });
            let block: &'s StepBlock = &*block;
            kernels::begin(block)?;
            Ok(Running::from_block(block))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::tests::heap;
    use wire::limits::Mode;

    const LIMITS: Limits = Limits {
        hidden: 64,
        layers: 1,
        slices: 1,
        experts: 4,
        chosen: 2,
        lanes: 3,
        nodes: 2,
        mode: Mode::Exact,
        format: 0,
        step_chunk: 64,
        load_chunk: 64,
    };

    #[test]
    fn parts_lie_apart_at_cache_lines_and_end_where_the_memory_does() {
        let fixed = size_of::<StepBlock>() + 128 + 64 + 64 + 3 * 64 * 4 + 64;
        let mut shared = Shared::new(heap(fixed + 128 + 1_000));
        assert!(!shared.has_room(0, 0), "no session");
        shared.open(&LIMITS);
        assert!(shared.has_room(5, 1_000) && !shared.has_room(5, 1_001) && !shared.has_room(9, 1_000));
        assert!(!shared.has_room(usize::MAX, 1) && !shared.has_room(1, usize::MAX));
        let mut places = 0;
        if let Some(Arrays { ids, weights, hidden }) = shared.arrays(3) {
            ids.fill(1);
            weights.fill(2.0);
            hidden.fill(3.0);
            assert_eq!((ids, weights), (&mut [1; 6][..], &mut [2.0; 6][..]));
            places = hidden.len();
        }
        assert_eq!(places, 3 * 64);
        assert!(shared.arrays(4).is_none());
        let mut little = Shared::new(heap(fixed - 65));
        little.open(&LIMITS);
        assert!(!little.has_room(0, 0) && little.arrays(1).is_none());
    }
}
