//! One step: from the input in its slot, by the kernels on all cores, to the results in its slot, which leave while it still runs.
#![allow(unsafe_code)] // one claim of a slot's results, and of the weights that stay put meanwhile

use alloc::format;
use alloc::vec::Vec;

use kernels::Running;
use kernels::abi::{FULL_SHARE, MAX_CORES};
use wire::duck::Memory;
use wire::message::{Verdict, VerdictCode};
use wire::{Limits, Micros};

use crate::input::{Decoder, kernels_mode};
use crate::net::Net;
use crate::region::Region;
use crate::results::Results;
use crate::seams::{Carrier, Cores, Ended, Refused};
use crate::shared::{Shared, Wanted};
use crate::tables::{Tables, Unfit};

/// Which kernels a session's steps run.
#[derive(Clone, Copy, Debug)]
enum Program {
    /// Not known, or not whole yet.
    Wanted,
    Ready {
        /// The host's, not those built in.
        pushed: bool,
    },
    /// None: every step ends so.
    Dead(Verdict),
}

/// All that steps need beside the network. After the first few steps of a plan none of it grows.
#[derive(Debug)]
pub(crate) struct Compute {
    cores: usize,
    core0_share: u32,
    results: Results,
    shared: Shared,
    program: Program,
    tables: Option<Tables>,
    decoder: Decoder,
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
    pub fn new(cores: usize, core0_share: u32, results: Results, shared: Region) -> Compute {
        Compute {
            cores,
            core0_share: if cores == 1 { FULL_SHARE } else { core0_share },
            results,
            shared: Shared::new(shared),
            program: Program::Wanted,
            tables: None,
            decoder: Decoder::new(),
            counted: Vec::new(),
            steps: 0,
            units: 0,
        }
    }

    /// A session was opened.
    pub fn open(&mut self, limits: &Limits) {
        self.program = Program::Wanted;
        self.tables = Tables::new(*limits, self.cores);
        self.shared.open(limits);
        self.counted.clear();
        self.counted.resize(limits.experts.into(), 0);
    }

    /// The list of blocks is another.
    pub fn forget_tables(&mut self) {
        self.tables.iter_mut().for_each(Tables::clear);
    }

    /// Whether the cores have not yet been told which program the session runs.
    pub fn wants_program(&self) -> bool {
        matches!(self.program, Program::Wanted)
    }

    /// They have been.
    pub fn loaded(&mut self, pushed: bool, loaded: &Result<(), Refused>) {
        self.program = match loaded {
            Ok(()) => Program::Ready { pushed },
            Err(_) => Program::Dead(Verdict::new(VerdictCode::Unsupported)),
        };
    }

    /// Computes the step in `slot` and sends its results; the network goes on meanwhile.
    pub fn step<C: Carrier, K: Cores>(&mut self, net: &mut Net<C>, cores: &mut K, slot: usize) -> Verdict {
        let pushed = match self.program {
            Program::Ready { pushed } => pushed,
            Program::Wanted => return Verdict { missing: 1, ..Verdict::new(VerdictCode::Unsupported) },
            Program::Dead(verdict) => return verdict,
        };
        let started = net.now();
        let (verdict, fell) = self.compute(net, cores, slot, started).unwrap_or_else(|unfit| {
            let verdict = match unfit {
                Unfit::Missing(missing) => Verdict { missing, ..Verdict::new(VerdictCode::Unsupported) },
                Unfit::Memory => Verdict::new(VerdictCode::MemoryLimit),
                Unfit::Numbers => Verdict::new(VerdictCode::Unsupported),
            };
            (verdict, false)
        });
        if fell {
            self.shared.forget();
            if pushed {
                self.program = Program::Dead(verdict);
                net.session.log(0, "the kernels' program is not run any more: open another session");
            }
        }
        let busy = u32::try_from(net.now().saturating_sub(started)).unwrap_or(u32::MAX);
        Verdict { busy, ..verdict }
    }

    /// How the step ended, and whether cores had to be taken out of it.
    fn compute<C: Carrier, K: Cores>(
        &mut self,
        net: &mut Net<C>,
        cores: &mut K,
        slot: usize,
        started: Micros,
    ) -> Result<(Verdict, bool), Unfit> {
        let session = &net.session;
        let step = session.step(slot).ok_or(Unfit::Numbers)?;
        let limits = session.limits().ok_or(Unfit::Numbers)?;
        let list = session.list().ok_or(Unfit::Numbers)?;
        let tables = self.tables.as_mut().ok_or(Unfit::Numbers)?;
        let set = tables.set(step.nodes, &self.shared)?;
        tables.make_table(set, step.layer, list, &session.memory().blocks)?;
        let lanes = usize::from(step.lanes);
        let arrays = self.shared.arrays(lanes).ok_or(Unfit::Memory)?;
        self.decoder.read(&limits, &step.layout, session.memory().input(slot), arrays);
        let order = Order {
            slot,
            seq: step.seq,
            layer: step.layer,
            lanes,
            nodes: step.nodes.len(),
            limit: (step.time_limit > 0).then_some(started + Micros::from(step.time_limit)),
        };
        let (_, table) = tables.get(set, order.layer);
        let table = table.ok_or(Unfit::Numbers)?;
        net.session.memory_mut().blocks.begin_step(table).map_err(Unfit::Missing)?;
        let (ended, stopped) = self.multiply(net, cores, &limits, order, set);
        net.session.memory_mut().blocks.end_step();
        Ok(match (ended, stopped) {
            (Ended::Trapped { core, trap, error, address, instruction }, _) => {
                let text = if (trap, instruction) == (0, 0) {
                    format!("core {core} went wrong in a step")
                } else {
                    format!(
                        "core {core}: trap {trap}, error {error:#x}, address {address:#x}, instruction {instruction:#x}"
                    )
                };
                log::error!("{text}");
                net.session.log(0, &text);
                let core = u8::try_from(core).unwrap_or(u8::MAX);
                let verdict = Verdict::new(VerdictCode::RuntimeError);
                (Verdict { core, trap, error, address, instruction, ..verdict }, true)
            }
            (Ended::Overran, why) => (Verdict::new(why.unwrap_or(VerdictCode::TimeLimit)), true),
            (Ended::Finished(_), Some(why)) => (Verdict::new(why), false),
            (Ended::Finished(Ok(())), None) => {
                self.count_units(set, lanes);
                (Verdict::new(VerdictCode::Ok), false)
            }
            (Ended::Finished(Err(refusal)), None) => {
                log::warn!("step {}: {refusal}", order.seq);
                (Verdict::new(VerdictCode::Unsupported), false)
            }
        })
    }

    /// The kernels' part: how it ended, and why it was stopped, if it was. The set's table is up to date, see [`Blocks::begin_step`].
    ///
    /// [`Blocks::begin_step`]: crate::blocks::Blocks::begin_step
    fn multiply<C: Carrier, K: Cores>(
        &mut self,
        net: &mut Net<C>,
        cores: &mut K,
        limits: &Limits,
        order: Order,
        set: usize,
    ) -> (Ended, Option<VerdictCode>) {
        let refused = |refusal| (Ended::Finished(Err(refusal)), None);
        let Some(tables) = &mut self.tables else { return refused(kernels::Refusal::Session) };
        let (shape, layout) = (tables.shape, tables.layout);
        let (nodes, Some(table)) = tables.get(set, order.layer) else { return refused(kernels::Refusal::Session) };
        // SAFETY: one step at a time is under way; the session reads rows of this slot only once they are told to be final.
        let sums = unsafe { self.results.claim(order.slot, order.nodes * order.lanes * layout.hidden()) };
        let wanted = Wanted {
            cores: self.cores,
            core0_share: self.core0_share,
            shape,
            layout,
            mode: kernels_mode(limits.mode),
            lanes: order.lanes,
            nodes,
            table,
            sums,
        };
        // SAFETY: between `begin_step` and `end_step` the table's blocks are whole and neither written nor moved; `Cores::run` returns when no core
        // is in the step.
        let running = match unsafe { self.shared.begin(wanted) } {
            Ok(running) => running,
            Err(refusal) => return refused(refusal),
        };
        let mut streamer = Streamer { net, running, order, cores: self.cores, told: [0; MAX_CORES], stopped: None };
        let ended = cores.run(running, order.limit, &mut || streamer.serve());
        streamer.serve_rows();
        (ended, streamer.stopped)
    }

    /// Counts what the step has read: each unit once, however many lanes chose it.
    fn count_units(&mut self, set: usize, lanes: usize) {
        let (Some(tables), Some(arrays)) = (&mut self.tables, self.shared.arrays(lanes)) else { return };
        let (nodes, _) = tables.get(set, 0);
        self.steps += 1;
        for &id in &*arrays.ids {
            let Some(counted) = self.counted.get_mut(usize::from(id)).filter(|c| **c != self.steps) else { continue };
            *counted = self.steps;
            let below = nodes.nodes.iter().filter(|n| n.has(n.slice, id));
            self.units += below.map(|n| u64::from(n.slices)).sum::<u64>();
        }
    }
}

/// What core 0 does besides computing: it serves the network, and sends what has become final.
struct Streamer<'s, C> {
    net: &'s mut Net<C>,
    running: Running<'s>,
    order: Order,
    cores: usize,
    /// By core: the end of the rows that were told.
    told: [usize; MAX_CORES],
    stopped: Option<VerdictCode>,
}

impl<C: Carrier> Streamer<'_, C> {
    fn serve_rows(&mut self) {
        for (core, told) in self.told.iter_mut().enumerate().take(self.cores) {
            let done = self.running.done(core);
            let new = done.start.max(*told)..done.end;
            if !new.is_empty() {
                *told = new.end;
                self.net.session.rows_final(self.order.slot, new.start as u32..new.end as u32);
            }
        }
    }

    /// Whether the step should go on.
    fn serve(&mut self) -> bool {
        self.serve_rows();
        let (_, now) = self.net.poll();
        if self.order.limit.is_some_and(|limit| now >= limit) {
            self.stopped.get_or_insert(VerdictCode::TimeLimit);
        }
        // Another session has taken over, and nobody wants this step any more.
        if self.net.session.step(self.order.slot).is_none_or(|s| s.seq != self.order.seq) {
            self.stopped.get_or_insert(VerdictCode::Gone);
        }
        self.stopped.is_none()
    }
}
