//! One step: from the input in its slot, by the kernels on all cores, to the results in its slot, which leave while it still runs.
#![allow(unsafe_code)] // one claim of a slot's results

use std::sync::atomic::{AtomicBool, Ordering};

use fp9::Isa;
use kernels::abi::{FULL_SHARE, MAX_CORES};
use kernels::{Config, Core, HeldNode, Holder, Hooks, Refusal, Running, Step};
use wire::duck::Memory;
use wire::limits::MAX_NODES;
use wire::message::{Verdict, VerdictCode};
use wire::{Limits, Micros};

use crate::input::{Input, kernels_mode};
use crate::net::Net;
use crate::options::Options;
use crate::pool::{Others, Patience, Pool};
use crate::results::Results;
use crate::tables::{Tables, Unfit};

/// All that steps need beside the network. After the first few steps of a plan none of it grows.
pub(crate) struct Compute {
    cores: usize,
    core0_share: u32,
    most_scratch: usize,
    isa: Isa,
    patience: Patience,
    pool: Pool,
    results: Results,
    tables: Option<Tables>,
    input: Input,
    scratch: Vec<u8>,
    present: Vec<u8>,
    /// By expert: the last step that counted it.
    counted: Vec<u64>,
    steps: u64,
    /// Units read so far.
    pub units: u64,
}

/// The step in a slot, without the session's borrow.
#[derive(Clone, Copy)]
struct Order {
    slot: usize,
    seq: u32,
    layer: u16,
    lanes: usize,
    nodes: usize,
    /// When it is stopped.
    limit: Option<Micros>,
}

impl Compute {
    pub fn new(options: &Options, pool: Pool, patience: Patience, results: Results) -> Compute {
        Compute {
            cores: options.cores,
            core0_share: if options.cores == 1 { FULL_SHARE } else { options.core0_share },
            most_scratch: options.scratch,
            isa: Isa::detect(),
            patience,
            pool,
            results,
            tables: None,
            input: Input::new(),
            scratch: Vec::new(),
            present: Vec::new(),
            counted: Vec::new(),
            steps: 0,
            units: 0,
        }
    }

    /// A session was opened.
    pub fn open(&mut self, limits: &Limits) {
        self.tables = Tables::new(*limits, self.cores);
        self.input.reserve(limits);
        self.counted.clear();
        self.counted.resize(limits.experts.into(), 0);
        let flags = usize::from(limits.nodes) * usize::from(limits.lanes);
        self.present.resize(flags.max(self.present.len()), 0);
    }

    /// The list of blocks is another.
    pub fn forget_tables(&mut self) {
        self.tables.iter_mut().for_each(Tables::clear);
    }

    /// Computes the step in `slot` and sends its results; the network goes on meanwhile.
    pub fn step(&mut self, net: &mut Net, slot: usize) -> Verdict {
        let started = net.now();
        let (code, missing) = match self.compute(net, slot, started) {
            Ok(code) => (code, 0),
            Err(Unfit::Missing(missing)) => (VerdictCode::Unsupported, missing),
            Err(Unfit::Scratch) => (VerdictCode::MemoryLimit, 0),
            Err(Unfit::Numbers) => (VerdictCode::Unsupported, 0),
        };
        let busy = u32::try_from(net.now().saturating_sub(started)).unwrap_or(u32::MAX);
        Verdict { busy, missing, ..Verdict::new(code) }
    }

    fn compute(&mut self, net: &mut Net, slot: usize, started: Micros) -> Result<VerdictCode, Unfit> {
        let session = &net.session;
        let step = session.step(slot).ok_or(Unfit::Numbers)?;
        let limits = session.limits().ok_or(Unfit::Numbers)?;
        let list = session.list().ok_or(Unfit::Numbers)?;
        let tables = self.tables.as_mut().ok_or(Unfit::Numbers)?;
        let set = tables.set(step.nodes, self.most_scratch)?;
        tables.make_table(set, step.layer, list, &session.memory().blocks)?;
        self.input.read(&limits, &step.layout, session.memory().input(slot));
        let order = Order {
            slot,
            seq: step.seq,
            layer: step.layer,
            lanes: step.lanes.into(),
            nodes: step.nodes.len(),
            limit: (step.time_limit > 0).then_some(started + Micros::from(step.time_limit)),
        };
        let (_, table) = tables.get(set, order.layer);
        let table = table.ok_or(Unfit::Numbers)?;
        net.session.memory_mut().blocks.begin_step(table).map_err(Unfit::Missing)?;
        let done = self.multiply(net, &limits, order, set);
        net.session.memory_mut().blocks.end_step();
        Ok(match done {
            Ok(None) => {
                self.count_units(set);
                VerdictCode::Ok
            }
            Ok(Some(why)) => why,
            Err(refusal) => {
                tracing::warn!("step {}: {refusal}", order.seq);
                VerdictCode::Unsupported
            }
        })
    }

    /// The kernels' part. `Some`: it was stopped, or went wrong.
    fn multiply(
        &mut self,
        net: &mut Net,
        limits: &Limits,
        order: Order,
        set: usize,
    ) -> Result<Option<VerdictCode>, Refusal> {
        let Some(tables) = &mut self.tables else { return Err(Refusal::Session) };
        let (shape, layout) = (tables.shape, tables.layout);
        let (nodes, Some(table)) = tables.get(set, order.layer) else { return Err(Refusal::Session) };
        if self.scratch.len() < nodes.scratch {
            self.scratch.resize(nodes.scratch, 0);
        }
        let (cores, isa, hidden) = (self.cores, self.isa, layout.hidden());
        // One layer's table at a time: the layer's number was used to find it.
        let config = Config {
            layout,
            shape,
            units: table.entries().len(),
            table: table.entries(),
            cores,
            core0_share: self.core0_share,
            limits: nodes.limits,
        };
        let mut holder = Holder::new(&config, &mut self.scratch)?;
        // SAFETY: one step at a time is under way; the session reads rows of this slot only once they are told to be final.
        let sums = unsafe { self.results.claim(order.slot, order.nodes * order.lanes * hidden) };
        let mut sums = sums.chunks_exact_mut(order.lanes * hidden);
        let mut present = self.present.chunks_exact_mut(order.lanes);
        let mut held: [HeldNode<'_>; MAX_NODES] = std::array::from_fn(|i| match nodes.nodes.get(i) {
            Some(&node) => {
                let (sums, present) = (sums.next().unwrap_or_default(), present.next().unwrap_or_default());
                HeldNode::new(node, nodes.first_units[i], sums, present)
            }
            None => HeldNode::new(shape.root(), 0, &mut [], &mut []),
        });
        let running = holder.begin(Step {
            layer: 0,
            mode: kernels_mode(limits.mode),
            lanes: order.lanes,
            chosen: limits.chosen.into(),
            ids: &self.input.ids,
            weights: &self.input.weights,
            input: &self.input.hidden,
            nodes: &mut held[..order.nodes],
        })?;
        let failed = AtomicBool::new(false);
        let work = |index: usize| {
            if running.run(Core { index, isa }, &mut Wait).is_err() {
                failed.store(true, Ordering::Relaxed);
            }
        };
        let patience = self.patience;
        let (own, stopped) = self.pool.run(&work, |others| {
            let _guard = AbortOnPanic(running);
            let mut streamer = Streamer { net, running, others, order, cores, told: [0; MAX_CORES], stopped: None };
            let own = running.run(Core { index: 0, isa }, &mut streamer);
            let mut looks = 0;
            while !others.done() {
                streamer.boundary();
                patience.pause(looks);
                looks += 1;
            }
            streamer.boundary();
            (own, streamer.stopped)
        });
        match (stopped, own) {
            (Some(why), _) => Ok(Some(why)),
            (None, Err(refusal)) => Err(refusal),
            (None, Ok(())) if failed.into_inner() => Err(Refusal::Aborted),
            (None, Ok(())) => Ok(None),
        }
    }

    /// Counts what the step has read: each unit once, however many lanes chose it.
    fn count_units(&mut self, set: usize) {
        let Some(tables) = &mut self.tables else { return };
        let (nodes, _) = tables.get(set, 0);
        self.steps += 1;
        for &id in &self.input.ids {
            let Some(counted) = self.counted.get_mut(usize::from(id)).filter(|c| **c != self.steps) else { continue };
            *counted = self.steps;
            let below = nodes.nodes.iter().filter(|n| n.has(n.slice, id));
            self.units += below.map(|n| u64::from(n.slices)).sum::<u64>();
        }
    }
}

/// What other cores do while they wait at the barrier.
struct Wait;

impl Hooks for Wait {
    fn idle(&mut self) {
        std::thread::yield_now();
    }
}

/// What core 0 does besides computing: it serves the network, and sends what has become final.
struct Streamer<'s> {
    net: &'s mut Net,
    running: Running<'s>,
    others: &'s Others<'s>,
    order: Order,
    cores: usize,
    /// By core: the end of the rows that were told.
    told: [usize; MAX_CORES],
    stopped: Option<VerdictCode>,
}

impl Streamer<'_> {
    fn stop(&mut self, why: VerdictCode) {
        self.running.abort();
        self.stopped.get_or_insert(why);
    }
}

/// If core 0 panics, the others must not wait for it at the barrier for ever.
struct AbortOnPanic<'s>(Running<'s>);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort();
        }
    }
}

impl Hooks for Streamer<'_> {
    fn boundary(&mut self) {
        let slot = self.order.slot;
        for (core, told) in self.told.iter_mut().enumerate().take(self.cores) {
            let done = self.running.done(core);
            let new = done.start.max(*told)..done.end;
            if !new.is_empty() {
                *told = new.end;
                self.net.session.rows_final(slot, new.start as u32..new.end as u32);
            }
        }
        let (_, now) = self.net.poll();
        if self.order.limit.is_some_and(|limit| now >= limit) {
            self.stop(VerdictCode::TimeLimit);
        }
        // Another session has taken over, and nobody wants this step any more.
        if self.net.session.step(slot).is_none_or(|s| s.seq != self.order.seq) {
            self.stop(VerdictCode::Gone);
        }
        if self.others.panicked() {
            self.stop(VerdictCode::RuntimeError);
        }
    }

    fn idle(&mut self) {
        std::thread::yield_now();
    }
}
