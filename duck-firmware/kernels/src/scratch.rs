//! Where everything lies in a session's scratch memory.
//!
//! One part is shared by the cores of a step, then each core has a part of its own. Nothing here depends on a step, so a core finds in its
//! second half what it left in the first.

use core::mem::MaybeUninit;
use core::sync::atomic::AtomicU32;

use fp9::{Matrix, ROW_TILE, Scratch};

use crate::abi::{Limits, MAX_CORES};
use crate::plan::{Head, Job, Member, NodePlan};
use crate::tree::{Node, Shape};
use crate::unit::SLICE;

/// Lanes whose inputs a core keeps side by side.
pub(crate) const GATHER: usize = 128;
/// Most output rows of a range: see `step`.
pub(crate) const RANGE: usize = 256;
/// Contributions that a core keeps at a time, unless one tile of rows needs more: 128 KiB.
const CONTRIBUTIONS: usize = 1 << 15;
/// Parts start at cache lines.
const LINE: usize = 64;

/// Bytes of scratch that a session needs, or `None` when a number is 0 or too large.
pub fn scratch_len(limits: &Limits, shape: Shape, hidden: usize, cores: usize) -> Option<usize> {
    Offsets::new(limits, shape, hidden, cores)?.total.checked_add(LINE - 1)
}

impl Limits {
    /// Enough for steps of up to `lanes` lanes that choose `chosen` experts each, over `nodes` or some of them.
    pub fn new(shape: Shape, nodes: &[Node], lanes: usize, chosen: usize) -> Limits {
        let held = |slice: u16| nodes.iter().any(|n| n.slice <= slice && slice - n.slice < n.slices);
        let slices = (0..shape.slices).filter(|&s| held(s)).count();
        let units = nodes.iter().map(|n| n.unit_count(shape)).fold(0u32, u32::saturating_add);
        let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let pairs = lanes.saturating_mul(chosen).saturating_mul(slices);
        Limits { lanes: small(lanes), chosen: small(chosen), nodes: small(nodes.len()), units, pairs: small(pairs) }
    }
}

/// An array in the scratch: offset in bytes, number of elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    at: usize,
    len: usize,
}

/// Offsets of all arrays; those of a core's own from the start of its part.
#[derive(Debug)]
pub(crate) struct Offsets {
    total: usize,
    own: usize,
    own_len: usize,
    counters: Place,
    dots: Place,
    h: Place,
    head: Place,
    kernel: Place,
    gathered: Place,
    gather: Place,
    contributions: Place,
    offsets: Place,
    members: Place,
    factors: Place,
    places: Place,
    ids: Place,
    active: Place,
    first_job: Place,
    jobs: Place,
    downs: Place,
    nodes: Place,
    additions: Place,
    roots: Place,
    order: Place,
    leaves: Place,
    leaf_pairs: Place,
}

/// Hands out places one after the other; `None` once a size overflows.
struct Next(Option<usize>);

impl Next {
    fn place<T>(&mut self, len: Option<usize>) -> Place {
        const { assert!(align_of::<T>() <= LINE) };
        let (at, len) = (self.0.unwrap_or(0), len.unwrap_or(usize::MAX));
        let end = self.0.and_then(|at| at.checked_add(len.checked_mul(size_of::<T>())?));
        self.0 = end.and_then(|end| end.checked_next_multiple_of(LINE)).filter(|&end| isize::try_from(end).is_ok());
        Place { at, len }
    }
}

impl Offsets {
    pub fn new(limits: &Limits, shape: Shape, hidden: usize, cores: usize) -> Option<Offsets> {
        let Limits { lanes, chosen, nodes, units, pairs } = *limits;
        let [lanes, chosen, nodes, units, pairs] = [lanes, chosen, nodes, units, pairs].map(|n| n as usize);
        let experts = usize::from(shape.experts);
        let positive = [lanes, chosen, nodes, units, pairs, experts, hidden, cores].iter().all(|&n| n > 0);
        if !positive || cores > MAX_CORES {
            return None;
        }
        let choices = lanes.checked_mul(chosen);
        let mut next = Next(Some(0));
        let counters = next.place::<AtomicU32>(units.checked_mul(2));
        let dots = next.place::<f32>(pairs.checked_mul(2 * SLICE));
        let h = next.place::<f32>(pairs.checked_mul(SLICE));
        let own = next.0?;

        let mut next = Next(Some(0));
        let contributions = pairs.checked_mul(ROW_TILE)?.max(CONTRIBUTIONS.min(pairs.checked_mul(RANGE)?));
        let leaves = chosen.checked_mul(shape.slices.into());
        let mut offsets = Offsets {
            total: 0,
            own,
            own_len: 0,
            counters,
            dots,
            h,
            head: next.place::<Head>(Some(1)),
            kernel: next.place::<Scratch>(Some(1)),
            gathered: next.place::<u32>(Some(GATHER)),
            gather: next.place::<f32>(lanes.min(GATHER).checked_mul(hidden)),
            contributions: next.place::<f32>(Some(contributions)),
            offsets: next.place::<u32>(experts.checked_add(1)),
            members: next.place::<Member>(choices),
            factors: next.place::<f32>(choices),
            places: next.place::<u32>(choices),
            ids: next.place::<u16>(choices),
            active: next.place::<u16>(Some(experts)),
            first_job: next.place::<u32>(Some(experts)),
            jobs: next.place::<Job>(Some(units)),
            downs: next.place::<MaybeUninit<Matrix<'static>>>(Some(units)),
            nodes: next.place::<NodePlan>(Some(nodes)),
            additions: next.place::<[u32; 2]>(Some(pairs)),
            roots: next.place::<u32>(nodes.checked_mul(lanes)),
            order: next.place::<u32>(Some(chosen)),
            leaves: next.place::<Node>(leaves),
            leaf_pairs: next.place::<u32>(leaves),
        };
        offsets.own_len = next.0?;
        offsets.total = offsets.own_len.checked_mul(cores)?.checked_add(own)?;
        isize::try_from(offsets.total).is_ok().then_some(offsets)
    }
}

/// What all cores of a step reach, through pointers, since they write different parts of it at the same time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared<'m> {
    /// `[jobs, 2 halves]`: how many of gate and up are done.
    pub counters: &'m [AtomicU32],
    /// `[pairs, 128]`: for each job `[gate | up, half, lane, 32]`.
    pub dots: *mut f32,
    /// `[pairs, 64]`: for each job `[lane, 64]`, prepared for the down product.
    pub h: *mut f32,
}

/// A core's own arrays; `plan` explains them.
pub(crate) struct Own<'m> {
    pub head: &'m mut Head,
    pub kernel: &'m mut Scratch,
    pub gathered: &'m mut [u32],
    pub gather: &'m mut [f32],
    pub contributions: &'m mut [f32],
    pub offsets: &'m mut [u32],
    pub members: &'m mut [Member],
    pub factors: &'m mut [f32],
    pub places: &'m mut [u32],
    pub ids: &'m mut [u16],
    pub active: &'m mut [u16],
    pub first_job: &'m mut [u32],
    pub jobs: &'m mut [Job],
    pub downs: &'m mut [MaybeUninit<Matrix<'m>>],
    pub nodes: &'m mut [NodePlan],
    pub additions: &'m mut [[u32; 2]],
    pub roots: &'m mut [u32],
    pub order: &'m mut [u32],
    pub leaves: &'m mut [Node],
    pub leaf_pairs: &'m mut [u32],
}

/// The scratch's base, rounded up to a cache line.
pub(crate) fn align(scratch: *mut u8) -> *mut u8 {
    scratch.wrapping_add((scratch as usize).wrapping_neg() % LINE)
}

impl Offsets {
    /// Bytes of all parts.
    pub fn total(&self) -> usize {
        self.total
    }

    /// # Safety
    /// `base` comes from [`align`] of a scratch of [`scratch_len`] initialised bytes that only a step's cores use during 'm; the
    /// counters are reached as atomics alone.
    pub unsafe fn shared<'m>(&self, base: *mut u8) -> Shared<'m> {
        // SAFETY: inside the scratch, aligned to a line; an atomic may have any bits.
        unsafe {
            let counters = core::slice::from_raw_parts(base.add(self.counters.at).cast(), self.counters.len);
            Shared { counters, dots: base.add(self.dots.at).cast(), h: base.add(self.h.at).cast() }
        }
    }

    /// # Safety
    /// As [`shared`](Self::shared), `core` is below the number of cores, and nobody else has this core's part during 'm.
    pub unsafe fn own<'m>(&self, base: *mut u8, core: usize) -> Own<'m> {
        let base = base.wrapping_add(self.own + core * self.own_len);
        /// # Safety
        /// The place is inside memory as above; T may have any bits.
        unsafe fn array<'m, T>(base: *mut u8, place: Place) -> &'m mut [T] {
            // SAFETY: as promised; places do not overlap and are aligned to a line.
            unsafe { core::slice::from_raw_parts_mut(base.add(place.at).cast(), place.len) }
        }
        // SAFETY: every type below is made of numbers that may have any bits, or is MaybeUninit; places do not overlap.
        unsafe {
            Own {
                head: &mut *base.add(self.head.at).cast(),
                kernel: &mut *base.add(self.kernel.at).cast(),
                gathered: array(base, self.gathered),
                gather: array(base, self.gather),
                contributions: array(base, self.contributions),
                offsets: array(base, self.offsets),
                members: array(base, self.members),
                factors: array(base, self.factors),
                places: array(base, self.places),
                ids: array(base, self.ids),
                active: array(base, self.active),
                first_job: array(base, self.first_job),
                jobs: array(base, self.jobs),
                downs: array(base, self.downs),
                nodes: array(base, self.nodes),
                additions: array(base, self.additions),
                roots: array(base, self.roots),
                order: array(base, self.order),
                leaves: array(base, self.leaves),
                leaf_pairs: array(base, self.leaf_pairs),
            }
        }
    }
}
