//! The step block behind references: what an owner in the same process uses.

use core::marker::PhantomData;
use core::ops::Range;
use core::sync::atomic::Ordering;

use crate::abi::{
    ABI_VERSION, HeldNode, Limits, MAX_CORES, Mode, Progress, Refusal, Request, Session, StepBlock, UnitEntry,
    format_code, state,
};
use crate::step::{self, Core, Hooks};
use crate::tree::Shape;
use crate::unit::UnitLayout;

/// A session's constants.
#[derive(Clone, Copy, Debug)]
pub struct Config<'a> {
    /// Format and hidden dimension.
    pub layout: UnitLayout,
    /// The model's slices and experts.
    pub shape: Shape,
    /// Units of each layer in the table.
    pub units: usize,
    /// `[layers, units]`.
    pub table: &'a [UnitEntry<'a>],
    /// Cores that take part, 1 to [`MAX_CORES`].
    pub cores: usize,
    /// Core 0's part in 256ths of another core's, see [`Session::core0_share`].
    pub core0_share: u32,
    /// What the scratch was made for.
    pub limits: Limits,
}

/// One step's request.
#[derive(Debug)]
pub struct Step<'s, 'n> {
    /// Index into the unit table.
    pub layer: usize,
    /// Where activations are rounded.
    pub mode: Mode,
    /// Lanes T.
    pub lanes: usize,
    /// Experts of each lane, k.
    pub chosen: usize,
    /// `[T, k]`, ascending within a lane.
    pub ids: &'s [u16],
    /// `[T, k]`.
    pub weights: &'s [f32],
    /// `[T, hidden]`.
    pub input: &'s [f32],
    /// What to compute, and where it goes.
    pub nodes: &'s mut [HeldNode<'n>],
}

/// A holder's step block and scratch.
#[derive(Debug)]
pub struct Holder<'a> {
    block: StepBlock,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Holder<'a> {
    /// `scratch`: [`scratch_len`](crate::scratch_len) bytes.
    pub fn new(config: &Config<'a>, scratch: &'a mut [u8]) -> Result<Holder<'a>, Refusal> {
        let small = |n: usize| u32::try_from(n).map_err(|_| Refusal::Session);
        if config.units == 0 || !config.table.len().is_multiple_of(config.units) {
            return Err(Refusal::Session);
        }
        let session = Session {
            version: ABI_VERSION,
            size: size_of::<StepBlock>() as u32,
            format: format_code(config.layout.format()),
            hidden: small(config.layout.hidden())?,
            slices: config.shape.slices,
            experts: config.shape.experts,
            layers: small(config.table.len() / config.units)?,
            units: small(config.units)?,
            cores: small(config.cores)?,
            core0_share: config.core0_share,
            limits: config.limits,
            unit_table: config.table.as_ptr().cast(),
            scratch: scratch.as_mut_ptr(),
            scratch_len: scratch.len() as u64,
        };
        let block = StepBlock { session, request: empty(), progress: Progress::new() };
        // SAFETY: the table and the scratch are borrowed for 'a, the request is empty, no core runs.
        unsafe { step::begin(&block)? };
        Ok(Holder { block, memory: PhantomData })
    }

    /// Starts a step: every core must then run it.
    pub fn begin<'s, 'n: 's>(&'s mut self, step: Step<'s, 'n>) -> Result<Running<'s>, Refusal> {
        let small = |n: usize, refusal| u32::try_from(n).map_err(|_| refusal);
        self.block.request = Request {
            layer: small(step.layer, Refusal::Layer)?,
            lanes: small(step.lanes, Refusal::Lanes)?,
            chosen: small(step.chosen, Refusal::Chosen)?,
            mode: step.mode as u32,
            ids: step.ids.as_ptr(),
            ids_len: step.ids.len() as u64,
            weights: step.weights.as_ptr(),
            weights_len: step.weights.len() as u64,
            input: step.input.as_ptr(),
            input_len: step.input.len() as u64,
            nodes: step.nodes.as_ptr().cast(),
            nodes_len: step.nodes.len() as u64,
        };
        // SAFETY: `Running` borrows all that the pointers lead to, and with `self` exclusive no earlier `Running` is left.
        unsafe { step::begin(&self.block)? };
        Ok(Running { block: &self.block, buffers: PhantomData })
    }
}

fn empty() -> Request {
    use core::ptr::null;
    Request {
        layer: 0,
        lanes: 0,
        chosen: 0,
        mode: 0,
        ids: null(),
        ids_len: 0,
        weights: null(),
        weights_len: 0,
        input: null(),
        input_len: 0,
        nodes: null(),
        nodes_len: 0,
    }
}

/// A step in progress, shared by the threads that act as its cores.
#[derive(Clone, Copy, Debug)]
pub struct Running<'s> {
    block: &'s StepBlock,
    buffers: PhantomData<&'s [f32]>,
}

impl<'s> Running<'s> {
    /// A step in a block that its owner filled in, for owners whose blocks, requests and buffers lie in memory of their own choosing.
    ///
    /// # Safety
    /// As [`run`](crate::run), as long as 's: whoever has the value may run each of the session's cores once.
    pub unsafe fn from_block(block: &'s StepBlock) -> Running<'s> {
        Running { block, buffers: PhantomData }
    }

    /// What the cores share: for owners whose cores run elsewhere.
    pub fn block(&self) -> &'s StepBlock {
        self.block
    }

    /// Runs a core's whole step. Every core of the session must run at the same time: they wait for one another.
    pub fn run<H: Hooks>(&self, core: Core, hooks: &mut H) -> Result<(), Refusal> {
        // SAFETY: `Holder::begin` made the block from borrows that outlive `self`, or the owner has promised as much.
        unsafe { step::run(self.block, core, hooks) }
    }

    /// A core's first half, for callers that join their threads before the second.
    pub fn first_half<H: Hooks>(&self, core: Core, hooks: &mut H) -> Result<(), Refusal> {
        // SAFETY: as in `run`.
        unsafe { step::first_half(self.block, core, hooks) }
    }

    /// A core's second half.
    pub fn second_half<H: Hooks>(&self, core: Core, hooks: &mut H) -> Result<(), Refusal> {
        // SAFETY: as in `run`.
        unsafe { step::second_half(self.block, core, hooks) }
    }

    /// Makes cores that wait at the barrier give up.
    pub fn abort(&self) {
        self.block.progress.abort.store(1, Ordering::Relaxed);
    }

    /// The output rows that core `core` has finished so far, in every node and lane.
    pub fn done(&self, core: usize) -> Range<usize> {
        self.block.progress.done(core)
    }

    /// Whether every core has ended its part.
    pub fn ended(&self) -> bool {
        let cores = &self.block.progress.cores[..(self.block.session.cores as usize).min(MAX_CORES)];
        cores.iter().all(|c| c.state.load(Ordering::Acquire) == state::ENDED)
    }

    /// Some rows of a lane's sum below the `node`th node of the step, if they are final and the lane is present there.
    pub fn values(&self, node: usize, lane: usize, rows: Range<usize>) -> Option<&[f32]> {
        let hidden = self.block.session.hidden as usize;
        if rows.is_empty() || rows.end > hidden || lane >= self.block.request.lanes as usize {
            return None;
        }
        let done = |row: usize| (0..self.block.session.cores as usize).any(|core| self.done(core).contains(&row));
        // Rows become final in whole tiles of 32.
        if !rows.clone().step_by(32).chain([rows.end - 1]).all(done) || node >= self.block.request.nodes_len as usize {
            return None;
        }
        // SAFETY: the node's buffers are borrowed and were checked by the cores to hold every lane, before any row was done.
        // Rows that are done, and the flags, are not written again while `self` exists.
        unsafe {
            let node = &*self.block.request.nodes.add(node);
            let present = *node.present().0.add(lane) == 1;
            present.then(|| core::slice::from_raw_parts(node.out().0.add(lane * hidden + rows.start), rows.len()))
        }
    }
}
