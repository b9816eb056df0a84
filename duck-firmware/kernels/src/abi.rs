//! The step block: what a holder's owner and its cores share, field by field.
//!
//! The owner is whoever feeds the cores: the supervisor on bare metal, `duckd`, an engine. It is trusted: its pointers are
//! what it says. What came over the wire is not: the layer, the lanes, the ids and the weights are checked by every core before
//! anything depends on them. The crate's README says who writes which field when.

use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

use fp9::Format;

use crate::tree::Node;

/// Changes whenever the meaning or place of a field does.
pub const ABI_VERSION: u32 = 1;
/// Most cores of a holder.
pub const MAX_CORES: usize = 64;
/// [`Session::core0_share`] of a core that only computes.
pub const FULL_SHARE: u32 = 256;

/// A unit's block in memory; absent where `address` is null.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UnitEntry<'a> {
    address: *const u8,
    len: u64,
    block: PhantomData<&'a [u8]>,
}

// SAFETY: a shared slice of plain bytes in another form.
unsafe impl Send for UnitEntry<'_> {}
// SAFETY: as above.
unsafe impl Sync for UnitEntry<'_> {}

impl<'a> UnitEntry<'a> {
    /// A unit that is not in memory.
    pub const ABSENT: UnitEntry<'static> = UnitEntry { address: core::ptr::null(), len: 0, block: PhantomData };

    /// The unit in `block`, see [`UnitLayout`](crate::unit::UnitLayout).
    pub fn new(block: &'a [u8]) -> UnitEntry<'a> {
        UnitEntry { address: block.as_ptr(), len: block.len() as u64, block: PhantomData }
    }

    pub(crate) fn block(&self) -> Option<&'a [u8]> {
        // SAFETY: made from a slice, or by an owner who vouches for it (see `step::run`).
        (!self.address.is_null()).then(|| unsafe { core::slice::from_raw_parts(self.address, self.len as usize) })
    }
}

/// A node to compute, and where its sums go.
#[repr(C)]
#[derive(Debug)]
pub struct HeldNode<'a> {
    slice: u16,
    slices: u16,
    depth: u8,
    reserved: u8,
    residue: u16,
    /// Index, within each layer's part of the unit table, of the node's first unit. The unit of slice s and expert e
    /// follows `(s - slice) · experts + (e >> depth)` places on, `experts` being the node's experts in one slice.
    first_unit: u32,
    reserved2: u32,
    /// `[lanes, hidden]`.
    out: *mut f32,
    out_len: u64,
    /// `[lanes]`: 1 where the lane has a sum, 0 where it is absent.
    present: *mut u8,
    present_len: u64,
    buffers: PhantomData<&'a mut [f32]>,
}

// SAFETY: exclusive slices of plain numbers in another form.
unsafe impl Send for HeldNode<'_> {}
// SAFETY: a shared reference to this struct reads plain numbers only; the buffers are written through a running step, whose
// cores write disjoint parts.
unsafe impl Sync for HeldNode<'_> {}

impl<'a> HeldNode<'a> {
    /// `first_unit` as the field says; `out`: at least lanes · hidden; `present`: at least lanes.
    pub fn new(node: Node, first_unit: u32, out: &'a mut [f32], present: &'a mut [u8]) -> HeldNode<'a> {
        HeldNode {
            slice: node.slice,
            slices: node.slices,
            depth: node.depth,
            reserved: 0,
            residue: node.residue,
            first_unit,
            reserved2: 0,
            out: out.as_mut_ptr(),
            out_len: out.len() as u64,
            present: present.as_mut_ptr(),
            present_len: present.len() as u64,
            buffers: PhantomData,
        }
    }

    /// Which node.
    pub fn node(&self) -> Node {
        Node { slice: self.slice, slices: self.slices, depth: self.depth, residue: self.residue }
    }

    pub(crate) fn first_unit(&self) -> u32 {
        self.first_unit
    }

    pub(crate) fn out(&self) -> (*mut f32, usize) {
        (self.out, self.out_len as usize)
    }

    pub(crate) fn present(&self) -> (*mut u8, usize) {
        (self.present, self.present_len as usize)
    }
}

/// What a session's buffers are made for; a step beyond it is refused.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Lanes of a step.
    pub lanes: u32,
    /// Experts that a lane chooses.
    pub chosen: u32,
    /// Nodes computed in a step.
    pub nodes: u32,
    /// Units computed in a step, each counted once for every node it is below.
    pub units: u32,
    /// (unit, lane) pairs of a step.
    pub pairs: u32,
}

/// What does not change from step to step. The owner writes it before the first; cores only read it.
#[repr(C)]
#[derive(Debug)]
pub struct Session {
    /// [`ABI_VERSION`].
    pub version: u32,
    /// Bytes of a [`StepBlock`].
    pub size: u32,
    /// 0 e4m3, 1 fp9, 2 bf16.
    pub format: u32,
    /// The model's hidden dimension.
    pub hidden: u32,
    /// Slices of the model's experts.
    pub slices: u16,
    /// Experts of a layer.
    pub experts: u16,
    /// Layers in the unit table.
    pub layers: u32,
    /// Units of each layer in the unit table.
    pub units: u32,
    /// Cores that take part, 1 to [`MAX_CORES`].
    pub cores: u32,
    /// How much core 0 computes, in 256ths of another core's share, 1 to [`FULL_SHARE`].
    pub core0_share: u32,
    /// What the scratch was made for.
    pub limits: Limits,
    /// `[layers, units]`.
    pub unit_table: *const UnitEntry<'static>,
    /// Initialised memory that nobody else touches during a step; see [`scratch_len`](crate::scratch_len).
    pub scratch: *mut u8,
    /// Bytes of it.
    pub scratch_len: u64,
}

/// One step's request. The owner writes it between steps; cores only read it.
#[repr(C)]
#[derive(Debug)]
pub struct Request {
    /// Index into the unit table.
    pub layer: u32,
    /// Lanes T.
    pub lanes: u32,
    /// Experts of each lane, k.
    pub chosen: u32,
    /// 0 exact, 1 bf16: see [`Mode`].
    pub mode: u32,
    /// `[T, k]`, ascending within a lane.
    pub ids: *const u16,
    /// Values in `ids`.
    pub ids_len: u64,
    /// `[T, k]`, router weights in the order of `ids`.
    pub weights: *const f32,
    /// Values in `weights`.
    pub weights_len: u64,
    /// `[T, hidden]`.
    pub input: *const f32,
    /// Values in `input`.
    pub input_len: u64,
    /// The nodes to compute.
    pub nodes: *const HeldNode<'static>,
    /// How many.
    pub nodes_len: u64,
}

/// Where activations are rounded.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// f32 throughout.
    Exact = 0,
    /// gate · x, up · x and silu(gate · x) · (up · x) are rounded to bf16; contributions and sums stay f32.
    Bf16 = 1,
}

impl Mode {
    /// An activation as this mode keeps it.
    #[inline]
    pub fn round(self, value: f32) -> f32 {
        match self {
            Mode::Exact => value,
            Mode::Bf16 => fp9::format::bf16::decode(fp9::format::bf16::encode(value)),
        }
    }
}

/// One core's progress, on a cache line of its own.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct CoreProgress {
    /// A `state::` value; only grows within a step.
    pub state: AtomicU32,
    /// 0, or the [`Refusal`] that ended this core's part.
    pub refusal: AtomicU32,
    /// First output row of this core's share.
    pub start: AtomicU32,
    /// Rows `start..done` are final and visible to whoever reads this with Acquire: in every node, for every lane present.
    pub done: AtomicU32,
    /// End of the share.
    pub end: AtomicU32,
}

/// Values of [`CoreProgress::state`].
pub mod state {
    /// Not yet started.
    pub const READY: u32 = 0;
    /// Computing gate and up.
    pub const FIRST: u32 = 1;
    /// Done with its part of them.
    pub const BETWEEN: u32 = 2;
    /// Computing outputs.
    pub const SECOND: u32 = 3;
    /// Finished, or refused.
    pub const ENDED: u32 = 4;
}

/// A step's progress: reset by [`begin`](crate::begin), then written by the cores.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Progress {
    /// Cores that have finished the first half: the barrier.
    pub arrived: AtomicU32,
    /// Not 0: cores return at the barrier instead of waiting. Set by a core that fails after others may have started, or by the owner.
    pub abort: AtomicU32,
    /// Cores that have ended, whatever came of it.
    pub ended: AtomicU32,
    /// By core.
    pub cores: [CoreProgress; MAX_CORES],
}

/// Everything an owner and its cores share about a step.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct StepBlock {
    /// Constant.
    pub session: Session,
    /// Constant during a step.
    pub request: Request,
    /// Written by the cores.
    pub progress: Progress,
}

// SAFETY: the pointers are used by the functions of `step` alone, whose contract says what they must be; the rest is plain
// numbers and atomics.
unsafe impl Sync for StepBlock {}
// SAFETY: as above.
unsafe impl Send for StepBlock {}

const _: () = {
    assert!(size_of::<*const u8>() == 8, "the block holds 64-bit addresses");
    assert!(size_of::<UnitEntry>() == 16);
    assert!(size_of::<HeldNode>() == 48);
    assert!(size_of::<Limits>() == 20);
    assert!(size_of::<Session>() == 80 && core::mem::offset_of!(Session, unit_table) == 56);
    assert!(size_of::<Request>() == 80);
    assert!(size_of::<CoreProgress>() == 64);
    assert!(size_of::<Progress>() == 64 + 64 * MAX_CORES);
    assert!(size_of::<StepBlock>() == 192 + 64 + 64 * MAX_CORES);
    assert!(core::mem::offset_of!(StepBlock, request) == 80);
    assert!(core::mem::offset_of!(StepBlock, progress) == 192);
};

/// A format's number in [`Session::format`].
pub fn format_code(format: Format) -> u32 {
    match format {
        Format::E4m3 => 0,
        Format::Fp9 => 1,
        Format::Bf16 => 2,
    }
}

/// The inverse of [`format_code`].
pub fn format_of(code: u32) -> Option<Format> {
    [Format::E4m3, Format::Fp9, Format::Bf16].get(code as usize).copied()
}

impl CoreProgress {
    const fn new() -> CoreProgress {
        CoreProgress {
            state: AtomicU32::new(state::ENDED),
            refusal: AtomicU32::new(0),
            start: AtomicU32::new(0),
            done: AtomicU32::new(0),
            end: AtomicU32::new(0),
        }
    }
}

impl Progress {
    /// Before any step: every core has ended.
    pub const fn new() -> Progress {
        Progress {
            arrived: AtomicU32::new(0),
            abort: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            cores: [const { CoreProgress::new() }; MAX_CORES],
        }
    }

    /// The output rows that core `core` has finished, in every node; the rest of its share and other cores' shares may
    /// still change.
    pub fn done(&self, core: usize) -> Range<usize> {
        let Some(core) = self.cores.get(core) else { return 0..0 };
        let done = core.done.load(Ordering::Acquire);
        core.start.load(Ordering::Relaxed) as usize..done as usize
    }
}

impl Default for Progress {
    fn default() -> Self {
        Progress::new()
    }
}

/// Why a core did not compute. Every core refuses the same request for the same reason.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The block's version or size is another.
    Version = 1,
    /// The session's numbers do not fit together, or the scratch is too small.
    Session = 2,
    /// This core is not one of the session's, or has been in this step before.
    Core = 3,
    /// A layer that the unit table does not have.
    Layer = 4,
    /// No lanes, or more than the session allows.
    Lanes = 5,
    /// No experts for each lane, or more than the session allows.
    Chosen = 6,
    /// A mode without meaning.
    Mode = 7,
    /// Ids, weights or input shorter than lanes times their width.
    Length = 8,
    /// An expert id beyond the model's experts.
    ExpertId = 9,
    /// A lane's expert ids that do not ascend.
    ExpertOrder = 10,
    /// A node that the tree does not have, or too many, or with too little room for its sums.
    Node = 11,
    /// More units, or (unit, lane) pairs, than the session allows.
    TooMuch = 12,
    /// A chosen unit that is not in memory.
    NotResident = 13,
    /// A unit's block that is not one: length, alignment or scales.
    Unit = 14,
    /// The second half was asked for before every core had finished the first.
    NotReady = 15,
    /// Another core failed, or the owner gave up.
    Aborted = 16,
}

impl Refusal {
    const ALL: [Refusal; 16] = [
        Refusal::Version,
        Refusal::Session,
        Refusal::Core,
        Refusal::Layer,
        Refusal::Lanes,
        Refusal::Chosen,
        Refusal::Mode,
        Refusal::Length,
        Refusal::ExpertId,
        Refusal::ExpertOrder,
        Refusal::Node,
        Refusal::TooMuch,
        Refusal::NotResident,
        Refusal::Unit,
        Refusal::NotReady,
        Refusal::Aborted,
    ];

    /// The refusal of that number.
    pub fn of(number: u32) -> Option<Refusal> {
        Refusal::ALL.into_iter().find(|&r| r as u32 == number)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Version => "the step block's version or size is not this library's",
            Refusal::Session => "the session's sizes do not fit together or its scratch is too small",
            Refusal::Core => "the core is not one of the session's or has already run in this step",
            Refusal::Layer => "the layer is not in the unit table",
            Refusal::Lanes => "the step has no lanes or more than the session allows",
            Refusal::Chosen => "the lanes choose no experts or more than the session allows",
            Refusal::Mode => "the numeric mode is unknown",
            Refusal::Length => "ids, weights or input are shorter than the lanes need",
            Refusal::ExpertId => "an expert id is beyond the model's experts",
            Refusal::ExpertOrder => "a lane's expert ids do not ascend",
            Refusal::Node => "a node is not in the tree, is one too many, or lacks room for its sums",
            Refusal::TooMuch => "the step has more units or pairs of unit and lane than the session allows",
            Refusal::NotResident => "a chosen unit is not in memory",
            Refusal::Unit => "a unit's block has the wrong length, alignment or scales",
            Refusal::NotReady => "the second half was asked for before every core had finished the first",
            Refusal::Aborted => "another core failed or the owner gave up",
        })
    }
}

impl core::error::Error for Refusal {}
