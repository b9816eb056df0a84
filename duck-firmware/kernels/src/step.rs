//! One step on N cores.
//!
//! For a unit and a lane x: `g = gate · x`, `u = up · x` (64 each), `h = silu(g) · u`; its contribution to output r is
//! `round(weight · (down[r] · h))`. Contributions are added by [`additions`](crate::tree::additions) within each node.
//!
//! ```text
//! first half   tiles of 32 rows of gate and up, dealt out by cost; whoever completes a pair of them computes 32 values of h
//! barrier
//! second half  a fixed share of the output rows for each core, range after range: all units' products, their additions, the
//!              copy into every node's output, then the core's progress word
//! ```
//!
//! 1. Tiles, not units, are dealt out in the first half: a step has few units (eight, or as few as two), and four tiles
//!    each divide evenly among four cores.
//! 2. An expert's lanes are multiplied together. With three or more, the kernels decode a weight once for all.
//! 3. Core 0 calls a hook at least every [`BUDGET`] of estimated work and at each range's end. Its products are cut for that
//!    along columns and lanes, which changes no bit.
//! 4. Each product is told what is read next, across units and across the barrier, so that prefetching never starts afresh.

use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

use fp9::{COL_BLOCK, Inputs, Isa, Matrix, Prefetch, ROW_TILE, multiply};

use crate::abi::{
    ABI_VERSION, FULL_SHARE, HeldNode, MAX_CORES, Mode, Refusal, Session, StepBlock, UnitEntry, format_of, state,
};
use crate::plan::{ABSENT, Head, Job, Member, Request};
use crate::scratch::{GATHER, Offsets, Own, RANGE, Shared, align};
use crate::tree::Shape;
use crate::unit::{Part, SLICE, Unit, UnitLayout};

/// Estimated work between two calls of the hook, in hundredths of a nanosecond: 15 µs of one of four cores that read 25.6 GB/s.
const BUDGET: u64 = 1_500_000;
/// Lanes of one product: enough to make decoding cheap, few enough for one block of columns to stay within [`BUDGET`].
const LANES: usize = 48;
/// Bytes that products prefetch ahead: from memory fp9 wants more than 4 KiB, e4m3 does not mind.
const AHEAD: usize = 8192;
/// Looks at the barrier before the idle hook is called: some microseconds.
const SPINS: u32 = 2_000;
/// Tiles of gate and up in a unit, in this order: gate 0..32, up 0..32, gate 32..64, up 32..64.
const TILES: usize = 4;

/// What a core does besides computing.
pub trait Hooks {
    /// Called by core 0 at the end of every range of outputs, and at least every 20 µs or so: the time to look at a network card.
    fn boundary(&mut self) {}

    /// Called by a core that has waited at the barrier for some microseconds, again and again. Give the processor away
    /// where it may be shared.
    fn idle(&mut self) {
        core::hint::spin_loop();
    }
}

/// Nothing besides computing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {}

/// Which core runs, and on what.
#[derive(Clone, Copy, Debug)]
pub struct Core {
    /// 0 .. [`Session::cores`].
    pub index: usize,
    /// Detected once, since asking the processor is slow under a hypervisor.
    pub isa: Isa,
}

/// Work on one weight for `lanes` vectors, in hundredths of a nanosecond of the slowest processor that matters.
fn cost(lanes: usize) -> u64 {
    11 + 5 * lanes as u64
}

/// The share of `count` pieces that ends before core `core`'s, core 0 getting `core0` 256ths of another's.
fn cut(count: u64, core: usize, cores: usize, core0: u32) -> u64 {
    let before = |core: usize| if core == 0 { 0 } else { u64::from(core0) + u64::from(FULL_SHARE) * (core as u64 - 1) };
    (count * before(core) + before(cores) / 2) / before(cores)
}

/// The output rows that a core computes in the second half.
fn row_share(session: &Session, core: usize) -> Range<usize> {
    let tiles = u64::from(session.hidden) / ROW_TILE as u64;
    let at = |core| cut(tiles, core, session.cores as usize, session.core0_share) as usize * ROW_TILE;
    at(core)..at(core + 1)
}

/// A session whose numbers fit together.
struct Checked<'b> {
    session: &'b Session,
    layout: UnitLayout,
    shape: Shape,
    cores: usize,
    offsets: Offsets,
    scratch: *mut u8,
}

impl<'b> Checked<'b> {
    fn new(block: &'b StepBlock) -> Result<Checked<'b>, Refusal> {
        let session = &block.session;
        if session.version != ABI_VERSION || session.size as usize != size_of::<StepBlock>() {
            return Err(Refusal::Version);
        }
        let shape = Shape { slices: session.slices, experts: session.experts };
        let (cores, hidden) = (session.cores as usize, session.hidden as usize);
        let format = format_of(session.format).ok_or(Refusal::Session)?;
        let layout = UnitLayout::new(format, hidden).map_err(|_| Refusal::Session)?;
        let core0 = (1..=FULL_SHARE).contains(&session.core0_share);
        if shape.units().is_none() || !(1..=MAX_CORES).contains(&cores) || !core0 || session.unit_table.is_null() {
            return Err(Refusal::Session);
        }
        let offsets = Offsets::new(&session.limits, shape, hidden, cores).ok_or(Refusal::Session)?;
        let scratch = align(session.scratch);
        let lost = scratch as usize - session.scratch as usize;
        let needed = offsets.total().checked_add(lost).ok_or(Refusal::Session)?;
        if session.scratch.is_null() || (session.scratch_len as usize) < needed {
            return Err(Refusal::Session);
        }
        Ok(Checked { session, layout, shape, cores, offsets, scratch })
    }
}

/// A slice from the block's pointer and length.
///
/// # Safety
/// `len` elements at `data`, unless null, are readable and nobody writes them during 'b.
unsafe fn slice<'b, T>(data: *const T, len: u64) -> Result<&'b [T], Refusal> {
    if data.is_null() {
        return if len == 0 { Ok(&[]) } else { Err(Refusal::Length) };
    }
    // SAFETY: as promised.
    Ok(unsafe { core::slice::from_raw_parts(data, len as usize) })
}

/// Checks the request's numbers; ids are checked when they are copied.
///
/// # Safety
/// As [`run`].
unsafe fn request<'b>(block: &'b StepBlock) -> Result<Request<'b>, Refusal> {
    let (session, request) = (&block.session, &block.request);
    if request.layer >= session.layers {
        return Err(Refusal::Layer);
    }
    if request.lanes == 0 || request.lanes > session.limits.lanes {
        return Err(Refusal::Lanes);
    }
    if request.chosen == 0 || request.chosen > session.limits.chosen || request.chosen > session.experts.into() {
        return Err(Refusal::Chosen);
    }
    let mode = match request.mode {
        0 => Mode::Exact,
        1 => Mode::Bf16,
        _ => return Err(Refusal::Mode),
    };
    let (lanes, chosen) = (request.lanes as usize, request.chosen as usize);
    // SAFETY: as promised by the caller.
    let (ids, weights, input, nodes) = unsafe {
        (
            slice(request.ids, request.ids_len)?,
            slice(request.weights, request.weights_len)?,
            slice(request.input, request.input_len)?,
            slice(request.nodes.cast::<HeldNode<'b>>(), request.nodes_len)?,
        )
    };
    let hidden = session.hidden as usize;
    // The products were bounded when the scratch's offsets were computed.
    let (choices, values) = (lanes * chosen, lanes * hidden);
    if ids.len() < choices || weights.len() < choices || input.len() < values {
        return Err(Refusal::Length);
    }
    let fits = |n: &HeldNode<'_>| n.out().1 >= values && n.present().1 >= lanes;
    if nodes.len() > session.limits.nodes as usize || !nodes.iter().all(fits) {
        return Err(Refusal::Node);
    }
    let (ids, weights, input) = (&ids[..choices], &weights[..choices], &input[..values]);
    Ok(Request { layer: request.layer as usize, lanes, chosen, mode, ids, weights, input, nodes })
}

/// Makes the block ready for a step: progress at nothing, shares of rows as the session says.
///
/// # Safety
/// As [`run`], and no core is in the block: all those of the last step have ended, none of the next has started. The owner
/// orders this before the cores' start.
pub unsafe fn begin(block: &StepBlock) -> Result<(), Refusal> {
    let checked = Checked::new(block)?;
    // SAFETY: as promised by the caller.
    let shared = unsafe { checked.offsets.shared(checked.scratch) };
    shared.counters.iter().for_each(|c| c.store(0, Ordering::Relaxed));
    let progress = &block.progress;
    for word in [&progress.arrived, &progress.abort, &progress.ended] {
        word.store(0, Ordering::Relaxed);
    }
    for (index, core) in progress.cores.iter().enumerate() {
        let rows = if index < checked.cores { row_share(checked.session, index) } else { 0..0 };
        core.start.store(rows.start as u32, Ordering::Relaxed);
        core.done.store(rows.start as u32, Ordering::Relaxed);
        core.end.store(rows.end as u32, Ordering::Relaxed);
        core.refusal.store(0, Ordering::Relaxed);
        let at = if index < checked.cores { state::READY } else { state::ENDED };
        core.state.store(at, Ordering::Relaxed);
    }
    Ok(())
}

/// A core's whole step: first half, barrier, second half.
///
/// # Safety
/// The session's pointers and the request's are null or what their fields say, for as long as any core runs: the unit
/// table and its blocks readable and constant; the scratch initialised and used by nobody else; ids, weights, input and
/// nodes readable and constant; each node's sums and presence flags writable, used by nobody else beyond what the progress words say is final,
/// and apart from one another. [`begin`] was called for this step. Numbers may be anything.
pub unsafe fn run<H: Hooks>(block: &StepBlock, core: Core, hooks: &mut H) -> Result<(), Refusal> {
    // SAFETY: as promised by the caller.
    unsafe {
        first_half(block, core, hooks)?;
        wait(block, core, hooks)?;
        second_half(block, core, hooks)
    }
}

/// Until every core has finished its first half.
fn wait<H: Hooks>(block: &StepBlock, core: Core, hooks: &mut H) -> Result<(), Refusal> {
    let progress = &block.progress;
    let mut spins = 0;
    while progress.arrived.load(Ordering::Acquire) < block.session.cores {
        if progress.abort.load(Ordering::Relaxed) != 0 {
            return fail(block, core, Refusal::Aborted);
        }
        // Without a pause: under emulation it takes locks and slows the cores that still work.
        spins += 1;
        if spins >= SPINS {
            spins = SPINS;
            if core.index == 0 {
                hooks.boundary();
            }
            hooks.idle();
        }
    }
    Ok(())
}

fn fail(block: &StepBlock, core: Core, refusal: Refusal) -> Result<(), Refusal> {
    let progress = &block.progress;
    progress.abort.store(1, Ordering::Relaxed);
    let own = &progress.cores[core.index];
    own.refusal.store(refusal as u32, Ordering::Relaxed);
    own.state.store(state::ENDED, Ordering::Release);
    progress.ended.fetch_add(1, Ordering::Release);
    Err(refusal)
}

/// Moves a core's state on, if it is where it should be: only one caller gets past each.
fn advance(block: &StepBlock, core: Core, from: u32, to: u32) -> Result<(), Refusal> {
    let own = block.progress.cores.get(core.index).filter(|_| core.index < block.session.cores as usize);
    let own = own.ok_or(Refusal::Core)?;
    let moved = own.state.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed);
    moved.map(|_| ()).map_err(|_| Refusal::Core)
}

/// Gate, up and h: this core's part of them. For a caller that joins its threads between the halves.
///
/// # Safety
/// As [`run`].
pub unsafe fn first_half<H: Hooks>(block: &StepBlock, core: Core, hooks: &mut H) -> Result<(), Refusal> {
    let checked = Checked::new(block)?;
    advance(block, core, state::READY, state::FIRST)?;
    // SAFETY: as promised by the caller; only one caller gets past `advance` with this core, so its own part is its alone.
    let done = unsafe {
        request(block).and_then(|request| Worker::new(&checked, request, core, &block.progress.abort, hooks).first())
    };
    match done {
        Ok(()) => {
            block.progress.cores[core.index].state.store(state::BETWEEN, Ordering::Release);
            block.progress.arrived.fetch_add(1, Ordering::AcqRel);
            Ok(())
        }
        Err(refusal) => fail(block, core, refusal),
    }
}

/// This core's share of the outputs, after every core's [`first_half`].
///
/// # Safety
/// As [`run`].
pub unsafe fn second_half<H: Hooks>(block: &StepBlock, core: Core, hooks: &mut H) -> Result<(), Refusal> {
    let checked = Checked::new(block)?;
    if block.progress.arrived.load(Ordering::Acquire) < block.session.cores {
        return Err(Refusal::NotReady);
    }
    advance(block, core, state::BETWEEN, state::SECOND)?;
    // SAFETY: as in `first_half`.
    let done = unsafe {
        request(block).and_then(|request| {
            Worker::new(&checked, request, core, &block.progress.abort, hooks).second(&block.progress.cores)
        })
    };
    if let Err(refusal) = done {
        return fail(block, core, refusal);
    }
    block.progress.cores[core.index].state.store(state::ENDED, Ordering::Release);
    block.progress.ended.fetch_add(1, Ordering::Release);
    Ok(())
}

/// Calls core 0's hook often enough.
struct Pace<'h, H> {
    hooks: &'h mut H,
    /// `None` on other cores.
    spent: Option<u64>,
}

impl<H: Hooks> Pace<'_, H> {
    fn spend(&mut self, cost: u64) {
        if let Some(spent) = &mut self.spent {
            *spent += cost;
            if *spent >= BUDGET {
                self.boundary();
            }
        }
    }

    fn boundary(&mut self) {
        if self.spent.is_some() {
            self.spent = Some(0);
            self.hooks.boundary();
        }
    }
}

/// One core in one half of a step.
struct Worker<'w, H> {
    checked: &'w Checked<'w>,
    request: Request<'w>,
    core: Core,
    abort: &'w AtomicU32,
    table: &'w [UnitEntry<'w>],
    shared: Shared<'w>,
    own: Own<'w>,
    pace: Pace<'w, H>,
}

impl<'w, H: Hooks> Worker<'w, H> {
    /// # Safety
    /// As [`run`]; the core is the session's, and this is the only worker for it.
    unsafe fn new(
        checked: &'w Checked<'w>,
        request: Request<'w>,
        core: Core,
        abort: &'w AtomicU32,
        hooks: &'w mut H,
    ) -> Worker<'w, H> {
        let units = checked.session.units as usize;
        // SAFETY: as promised by the caller; the layer was checked.
        let (table, shared, own) = unsafe {
            let layer = checked.session.unit_table.cast::<UnitEntry<'w>>().add(request.layer * units);
            let table = core::slice::from_raw_parts(layer, units);
            (table, checked.offsets.shared(checked.scratch), checked.offsets.own(checked.scratch, core.index))
        };
        let pace = Pace { hooks, spent: (core.index == 0).then_some(0) };
        Worker { checked, request, core, abort, table, shared, own, pace }
    }

    fn first(&mut self) -> Result<(), Refusal> {
        let Checked { session, shape, layout, .. } = self.checked;
        self.own.plan(&self.request, *shape, self.table.len(), &session.limits)?;
        let jobs = self.own.head.jobs as usize;
        for job in &self.own.jobs[..jobs] {
            let block = self.table[job.unit as usize].block().ok_or(Refusal::NotResident)?;
            if block.len() != layout.len() {
                return Err(Refusal::Unit);
            }
        }
        if self.core.index == 0 {
            self.write_presence();
        }
        let mut work = self.deal();
        let mut next = work.next(&self.own.jobs[..jobs]);
        while let Some((index, tiles)) = next {
            next = work.next(&self.own.jobs[..jobs]);
            let following = match &next {
                Some((index, tiles)) => self.tile(*index, tiles.start)?.1,
                None => self.first_outputs()?,
            };
            self.tiles(index, tiles, following)?;
        }
        Ok(())
    }

    /// Which lanes have a unit below which node.
    fn write_presence(&mut self) {
        let Request { lanes, chosen, nodes, .. } = self.request;
        for held in nodes {
            let node = held.node();
            // SAFETY: core 0 alone writes the flags, once a step; there are at least `lanes` of them.
            let present = unsafe { core::slice::from_raw_parts_mut(held.present().0, lanes) };
            for (present, ids) in present.iter_mut().zip(self.own.ids.chunks_exact(chosen)) {
                *present = ids.iter().any(|&id| node.has(node.slice, id)).into();
            }
        }
    }

    /// This core's part of the tiles.
    fn deal(&self) -> Deal {
        let jobs = &self.own.jobs[..self.own.head.jobs as usize];
        let total = jobs.iter().map(|j| TILES as u64 * cost(j.lanes as usize)).sum::<u64>();
        let Session { cores, core0_share, .. } = *self.checked.session;
        let at = |core| cut(2 * total, core, cores as usize, core0_share);
        Deal { job: 0, before: 0, mine: at(self.core.index)..at(self.core.index + 1) }
    }

    /// Matrix and packed bytes of a tile of a job's gate or up.
    fn tile(&self, job: usize, tile: usize) -> Result<(Matrix<'w>, &'w [u8]), Refusal> {
        let part = if tile.is_multiple_of(2) { Part::Gate } else { Part::Up };
        let matrix = self.part(&self.own.jobs[job], part)?;
        Ok((matrix, matrix.rows_data(tile_rows(tile))))
    }

    fn part(&self, job: &Job, part: Part) -> Result<Matrix<'w>, Refusal> {
        let block = self.table[job.unit as usize].block().ok_or(Refusal::NotResident)?;
        Unit::part(&self.checked.layout, block, part).map_err(|_| Refusal::Unit)
    }

    /// What this core reads first in the second half.
    fn first_outputs(&self) -> Result<&'w [u8], Refusal> {
        let rows = row_share(self.checked.session, self.core.index);
        match self.own.jobs[..self.own.head.jobs as usize].first() {
            Some(job) => Ok(self.part(job, Part::Down)?.rows_data(rows)),
            None => Ok(&[]),
        }
    }

    /// Some tiles of one job, for all its lanes.
    fn tiles(&mut self, index: usize, tiles: Range<usize>, following: &'w [u8]) -> Result<(), Refusal> {
        let job = self.own.jobs[index];
        let chunks = (job.lanes as usize).div_ceil(GATHER);
        for chunk in 0..chunks {
            let lanes = chunk * GATHER..((chunk + 1) * GATHER).min(job.lanes as usize);
            self.gather(&job, lanes.clone());
            for tile in tiles.clone() {
                let next = if tile + 1 < tiles.end {
                    self.tile(index, tile + 1)?.1
                } else if chunk + 1 < chunks {
                    self.tile(index, tiles.start)?.1
                } else {
                    following
                };
                self.dots(index, tile, lanes.clone(), next)?;
            }
        }
        for tile in tiles {
            let half = tile / 2;
            // Release this core's dots, acquire the other matrix's.
            if self.shared.counters[2 * index + half].fetch_add(1, Ordering::AcqRel) == 1 {
                self.hidden(&job, half);
            }
        }
        Ok(())
    }

    /// Copies the inputs of some of a job's lanes side by side, prepared for the products, unless they are there.
    fn gather(&mut self, job: &Job, lanes: Range<usize>) {
        let hidden = self.checked.layout.hidden();
        let Own { head, gathered, gather, members, .. } = &mut self.own;
        let members = &members[job.first as usize..][lanes];
        let there = head.gathered as usize == members.len();
        if there && members.iter().zip(&**gathered).all(|(m, &lane)| m.lane == lane) {
            return;
        }
        for ((Member { lane }, known), row) in
            members.iter().zip(gathered.iter_mut()).zip(gather.chunks_exact_mut(hidden))
        {
            *known = *lane;
            row.copy_from_slice(&self.request.input[*lane as usize * hidden..][..hidden]);
            fp9::prepare(self.checked.layout.format(), row);
        }
        head.gathered = members.len() as u32;
    }

    /// Whether anybody still wants the step: looked at every few microseconds.
    fn go_on(&self) -> Result<(), Refusal> {
        if self.abort.load(Ordering::Relaxed) == 0 { Ok(()) } else { Err(Refusal::Aborted) }
    }

    /// 32 rows of gate or up times the gathered lanes, which are the job's `lanes`.
    fn dots(&mut self, index: usize, tile: usize, lanes: Range<usize>, next: &[u8]) -> Result<(), Refusal> {
        self.go_on()?;
        let (matrix, _) = self.tile(index, tile)?;
        let job = self.own.jobs[index];
        let hidden = matrix.k();
        for first in lanes.clone().step_by(LANES) {
            let count = LANES.min(lanes.end - first);
            let inputs = Inputs::strided(&self.own.gather[(first - lanes.start) * hidden..], hidden, count);
            // SAFETY: `count` rows of 32 within the job's part of the dots; each (tile, lane) is written by the one core
            // that was dealt the tile.
            let out = unsafe {
                let at = self.shared.dots.add(dots_at(&job, tile) + first * ROW_TILE);
                core::slice::from_raw_parts_mut(at, count * ROW_TILE)
            };
            let step = match self.pace.spent {
                Some(_) => (BUDGET / (ROW_TILE as u64 * cost(count))) as usize / COL_BLOCK * COL_BLOCK,
                None => hidden,
            };
            for column in (0..hidden).step_by(step.max(COL_BLOCK)) {
                let columns = column..(column + step.max(COL_BLOCK)).min(hidden);
                self.pace.spend((ROW_TILE * columns.len()) as u64 * cost(count));
                let product = fp9::Job {
                    rows: tile_rows(tile),
                    columns,
                    prefetch: Prefetch { distance: AHEAD, next },
                    ..fp9::Job::new(&matrix, inputs)
                };
                multiply(self.core.isa, &product, out, ROW_TILE, self.own.kernel).map_err(|_| Refusal::Unit)?;
            }
        }
        Ok(())
    }

    /// 32 values of h for all lanes of a job, whose gate and up are there.
    fn hidden(&mut self, job: &Job, half: usize) {
        let (mode, format) = (self.request.mode, self.checked.layout.format());
        for lane in 0..job.lanes as usize {
            let [mut gate, mut up] = [2 * half, 2 * half + 1].map(|tile| {
                // SAFETY: written before the counter said so; nobody writes it any more in this step.
                unsafe { self.shared.dots.add(dots_at(job, tile) + lane * ROW_TILE).cast::<[f32; ROW_TILE]>().read() }
            });
            gate.iter_mut().chain(&mut up).for_each(|v| *v = mode.round(*v));
            let mut h = [0.0; ROW_TILE];
            fp9::silu_mul(self.core.isa, &gate, &up, &mut h).expect("three arrays of one length");
            h.iter_mut().for_each(|v| *v = mode.round(*v));
            fp9::prepare(format, &mut h);
            // SAFETY: this half of the lane's h is written by the one core that completed the pair of tiles.
            unsafe {
                let at = (job.pair as usize + lane) * SLICE + half * ROW_TILE;
                self.shared.h.add(at).cast::<[f32; ROW_TILE]>().write(h);
            }
            self.pace.spend(ROW_TILE as u64 * 400);
        }
    }

    fn second(&mut self, progress: &[crate::abi::CoreProgress; MAX_CORES]) -> Result<(), Refusal> {
        let share = row_share(self.checked.session, self.core.index);
        let nodes = self.request.nodes;
        if self.own.head.nodes as usize != nodes.len() || self.own.head.lanes as usize != self.request.lanes {
            // The owner changed the request between the halves.
            return Err(Refusal::Length);
        }
        self.own.plan_additions(nodes, self.checked.shape);
        let jobs = self.own.head.jobs as usize;
        for index in 0..jobs {
            let down = self.part(&self.own.jobs[index], Part::Down)?;
            self.own.downs[index].write(down);
        }
        let most = self.own.nodes[..nodes.len()].iter().map(|n| n.pairs[1] - n.pairs[0]).max().unwrap_or(0).max(1);
        let most_rows = self.own.contributions.len() / most as usize / ROW_TILE * ROW_TILE;
        let step = most_rows.clamp(ROW_TILE, RANGE);
        for first in share.clone().step_by(step) {
            let rows = first..(first + step).min(share.end);
            for (index, held) in nodes.iter().enumerate() {
                self.products(index, rows.clone(), rows.end..(rows.end + step).min(share.end))?;
                self.add(index);
                self.deliver(index, held, rows.clone());
            }
            progress[self.core.index].done.store(rows.end as u32, Ordering::Release);
            self.pace.boundary();
        }
        Ok(())
    }

    /// The contributions of all of a node's jobs to some rows. `later`: the rows after them.
    fn products(&mut self, node: usize, rows: Range<usize>, later: Range<usize>) -> Result<(), Refusal> {
        self.go_on()?;
        let Own { head, nodes, jobs, downs, contributions, factors, kernel, .. } = &mut self.own;
        let plan = &nodes[node];
        // SAFETY: `second` has written the first `head.jobs`.
        let downs = unsafe { written(&downs[..head.jobs as usize]) };
        for index in plan.jobs[0] as usize..plan.jobs[1] as usize {
            let job = jobs[index];
            // The next job's rows, in whichever node, or the first's of the next range.
            let next = match downs.get(index + 1) {
                Some(down) => down.rows_data(rows.clone()),
                None => downs[0].rows_data(later.clone()),
            };
            for first in (0..job.lanes as usize).step_by(LANES) {
                let count = LANES.min(job.lanes as usize - first);
                let pair = job.pair as usize + first;
                // SAFETY: the job's h, complete since the barrier.
                let h = unsafe { core::slice::from_raw_parts(self.shared.h.add(pair * SLICE), count * SLICE) };
                let product = fp9::Job {
                    rows: rows.clone(),
                    factors: Some(&factors[job.first as usize + first..][..count]),
                    prefetch: Prefetch { distance: AHEAD, next },
                    ..fp9::Job::new(&downs[index], Inputs::strided(h, SLICE, count))
                };
                let out = &mut contributions[(pair - plan.pairs[0] as usize) * rows.len()..][..count * rows.len()];
                multiply(self.core.isa, &product, out, rows.len(), kernel).map_err(|_| Refusal::Unit)?;
                self.pace.spend((rows.len() * SLICE) as u64 * cost(count));
            }
        }
        head.rows = rows.len() as u32;
        Ok(())
    }

    /// Adds a node's contributions up the tree, each lane's into its root pair.
    fn add(&mut self, node: usize) {
        let Own { head, nodes, additions, contributions, .. } = &mut self.own;
        let rows = head.rows as usize;
        let list = nodes[node].additions;
        for &[a, b] in &additions[list[0] as usize..list[1] as usize] {
            let (a, b) = (a as usize * rows, b as usize * rows);
            let (low, high) = contributions.split_at_mut(a.max(b));
            let (low, high) = (&mut low[a.min(b)..][..rows], &mut high[..rows]);
            let (sum, other) = if a < b { (low, high) } else { (high, low) };
            sum.iter_mut().zip(other).for_each(|(sum, other)| *sum += *other);
        }
    }

    /// Copies a node's sums to where the owner wants them.
    fn deliver(&mut self, node: usize, held: &HeldNode<'_>, rows: Range<usize>) {
        let lanes = self.request.lanes;
        for (lane, &root) in self.own.roots[node * lanes..][..lanes].iter().enumerate() {
            if root == ABSENT {
                continue;
            }
            let sum = &self.own.contributions[root as usize * rows.len()..][..rows.len()];
            // SAFETY: inside the node's lanes · hidden values; these rows are this core's, and not yet announced as final.
            let out = unsafe {
                let at = held.out().0.add(lane * self.checked.layout.hidden() + rows.start);
                core::slice::from_raw_parts_mut(at, rows.len())
            };
            out.copy_from_slice(sum);
        }
        let pairs = self.own.nodes[node].pairs;
        self.pace.spend((pairs[1] - pairs[0]) as u64 * rows.len() as u64 * 50);
    }
}

/// # Safety
/// Every element has been written.
unsafe fn written<T>(items: &[MaybeUninit<T>]) -> &[T] {
    // SAFETY: as promised; MaybeUninit<T> has T's layout.
    unsafe { core::slice::from_raw_parts(items.as_ptr().cast(), items.len()) }
}

/// Rows of its matrix that a tile covers.
fn tile_rows(tile: usize) -> Range<usize> {
    let half = tile / 2;
    half * ROW_TILE..(half + 1) * ROW_TILE
}

/// Where a job's dots of a tile begin.
fn dots_at(job: &Job, tile: usize) -> usize {
    job.pair as usize * 2 * SLICE + tile * job.lanes as usize * ROW_TILE
}

/// Goes through the tiles of all jobs, keeping those whose middle, by cost, lies in this core's share.
struct Deal {
    job: usize,
    /// Twice the cost before `job`.
    before: u64,
    mine: Range<u64>,
}

impl Deal {
    /// The next job with tiles for this core.
    fn next(&mut self, jobs: &[Job]) -> Option<(usize, Range<usize>)> {
        while let Some(job) = jobs.get(self.job) {
            let (index, before, one) = (self.job, self.before, 2 * cost(job.lanes as usize));
            self.job += 1;
            self.before += TILES as u64 * one;
            let mine = |tile: &usize| self.mine.contains(&(before + *tile as u64 * one + one / 2));
            let first = (0..TILES).find(mine);
            if let Some(first) = first {
                let last = (first..TILES).take_while(mine).last().unwrap_or(first);
                return Some((index, first..last + 1));
            }
        }
        None
    }
}

const _: () = assert!(GATHER >= LANES && SLICE == 2 * ROW_TILE && size_of::<Head>() == 32);
