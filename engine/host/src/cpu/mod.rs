//! Stage 0 on a CPU: the reference for every other backend, and the default.
//!
//! Ops run on the caller's rayon pool, one after another, each split over rows, heads or lanes; no result depends on how many
//! threads there are. Weights are read where they lie. There is one kernel for each kind of loop ([`dot`] states the order of all dot
//! products), instantiated for AVX2 + FMA and for plain code by [`simd`].

mod attend;
mod buffers;
mod cache;
mod dot;
mod exec;
pub(crate) mod finite;
mod heads;
mod linear;
mod norm;
mod rotary;
mod route;
mod select;
mod simd;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use kernels::tree::Shape;
use model::Numerics;
use model::program::Model;
use model::step::StepIo;

pub use crate::observe::{Observer, Seen};
pub use simd::Isa;

use crate::StageError;
use crate::check::{Reach, Sequences, UnderWay, check, check_submit};
use crate::choose::{self, Draft};
use crate::exchanges::Exchanges;
use crate::purpose::Purpose;
use crate::stage::{Choice, Chosen, Lane, Layers, PassId, PassSpec, Progress, SequenceId, Stage, Ticket};
use cache::Sequence;
use exec::{Context, Work};

/// How a [`CpuStage`] works.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// Where results are rounded.
    pub numerics: Numerics,
    /// Lanes of one pass at most.
    pub max_lanes: usize,
    /// Sources of sums that a step has, see `Flock::sources`.
    pub sources: usize,
    /// Instruction set.
    pub isa: Isa,
}

/// The CPU implementation of [`Stage`].
pub struct CpuStage {
    model: Arc<Model>,
    options: CpuOptions,
    shape: Shape,
    purposes: Vec<Purpose>,
    sequences: HashMap<SequenceId, Sequence>,
    drafts: HashMap<SequenceId, Draft>,
    next_id: u64,
    passes: HashMap<PassId, Pass>,
    /// Work areas that no pass uses, by program.
    idle: HashMap<Layers, Vec<Work>>,
    exchanges: Exchanges,
    observer: Option<Box<dyn Observer>>,
}

struct Pass {
    layers: Layers,
    work: Work,
    /// The segment to submit next.
    next: usize,
    /// The latest segment's host part still to run in `poll`.
    pending: bool,
    /// The latest step.
    io: Option<Arc<StepIo>>,
}

impl CpuStage {
    /// A stage for `model`.
    ///
    /// # Errors
    /// More units than a canonical tree can number; a weight that is NaN or infinite; mode fp8 for a model whose index keys have no Hadamard
    /// transform.
    pub fn new(model: Arc<Model>, options: CpuOptions) -> Result<CpuStage, StageError> {
        let shape = model
            .dims
            .shape()
            .ok_or(StageError::TooManyUnits { slices: model.dims.slices(), experts: model.dims.experts })?;
        let purposes = Purpose::of(&model);
        check_mode(&model, &purposes, options.numerics)?;
        finite::check(&model.weights.matrices)?;
        Ok(CpuStage {
            model,
            options,
            shape,
            purposes,
            sequences: HashMap::new(),
            drafts: HashMap::new(),
            next_id: 0,
            passes: HashMap::new(),
            idle: HashMap::new(),
            exchanges: Exchanges::new(options.sources),
            observer: None,
        })
    }

    /// Shows every op's result to `observer` (for tests), or to nobody.
    pub fn observe(&mut self, observer: Option<Box<dyn Observer>>) {
        self.observer = observer;
    }

    /// Ascending, so that of two passes the one with the lower id began first.
    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Runs ops of a pass's segment.
    fn run(&mut self, id: PassId, segment: usize, part: Part) {
        let mut pass = self.passes.remove(&id).expect("checked by the caller");
        let program = pass.layers.program(&self.model).expect("`begin` checks that there is one");
        let segment = &program.segments[segment];
        let mut context = Context {
            isa: self.options.isa,
            numerics: self.options.numerics,
            model: &self.model,
            shape: self.shape,
            purposes: &self.purposes,
            sequences: &mut self.sequences,
            summed: pass.io.as_deref(),
            observer: self.observer.as_deref_mut(),
        };
        let ops = match part {
            Part::Before => &segment.before,
            Part::During => &segment.during,
        };
        pass.work.run(&mut context, segment.layer, ops);
        self.passes.insert(id, pass);
    }
}

/// Refuses mode fp8 where the indexer's heads cannot be spread: Sylvester's matrices have a power of two of rows.
fn check_mode(model: &Model, purposes: &[Purpose], numerics: Numerics) -> Result<(), StageError> {
    let keys = model.caches.iter().zip(purposes).filter(|(_, purpose)| **purpose == Purpose::IndexKeys);
    match keys.map(|(cache, _)| cache.width).find(|width| !width.is_power_of_two()) {
        Some(width) if numerics == Numerics::Fp8 => Err(StageError::Mode {
            mode: numerics.name(),
            why: format!("its index keys are {width} wide, which is no power of two"),
        }),
        _ => Ok(()),
    }
}

impl Sequences for HashMap<SequenceId, Sequence> {
    fn reach(&self, id: SequenceId) -> Option<Reach> {
        let sequence = self.get(&id)?;
        Some(Reach { len: sequence.len, mtp_len: sequence.mtp_len, max_len: sequence.max_len })
    }

    fn has_kept(&self, id: SequenceId, position: usize) -> bool {
        self.get(&id).is_some_and(|sequence| sequence.kept(position).is_some())
    }
}

#[derive(Clone, Copy)]
enum Part {
    Before,
    During,
}

impl Stage for CpuStage {
    fn open(&mut self, max_len: usize) -> Result<SequenceId, StageError> {
        let limit = self.model.dims.max_positions;
        if max_len > limit {
            return Err(StageError::TooLong { found: max_len, limit });
        }
        let id = SequenceId(self.new_id());
        self.sequences.insert(id, Sequence::new(&self.model.caches, self.model.dims.hidden, max_len));
        Ok(id)
    }

    fn close(&mut self, sequence: SequenceId) {
        let uses = |pass: &Pass| pass.work.lanes.iter().any(|lane| lane.sequence == sequence);
        let ended: Vec<PassId> = self.passes.iter().filter(|(_, pass)| uses(pass)).map(|(&id, _)| id).collect();
        ended.into_iter().for_each(|id| self.end(id));
        self.sequences.remove(&sequence);
        self.drafts.remove(&sequence);
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize, mtp_len: usize) {
        if let Some(sequence) = self.sequences.get_mut(&sequence) {
            sequence.truncate(len, mtp_len);
        }
    }

    fn begin(&mut self, spec: &PassSpec) -> Result<PassId, StageError> {
        let Some(program) = spec.layers.program(&self.model) else { return Err(StageError::NoMtp) };
        let (widths, selections) = (program.buffers.clone(), program.selections);
        check(spec, self.options.max_lanes, &self.model.dims, &self.sequences)?;
        let idle = self.idle.get_mut(&spec.layers).and_then(Vec::pop);
        let mut work = idle.unwrap_or_else(|| Work::new(&widths, selections));
        work.start(&self.model, &spec.lanes, &spec.logits);
        for lane in &spec.lanes {
            let sequence = self.sequences.get_mut(&lane.sequence).expect("checked above");
            match spec.layers {
                Layers::Main => sequence.len = lane.position + 1,
                Layers::Mtp => sequence.mtp_len = lane.position + 1,
            }
        }
        let id = PassId(self.new_id());
        self.passes.insert(id, Pass { layers: spec.layers, work, next: 0, pending: false, io: None });
        Ok(id)
    }

    fn segments(&self, layers: Layers) -> usize {
        layers.program(&self.model).map_or(0, |p| p.segments.len())
    }

    fn submit(&mut self, id: PassId, segment: usize) -> Result<Ticket, StageError> {
        check_submit(&self.passes, id, segment, |layers| self.segments(layers))?;
        self.run(id, segment, Part::Before);
        let layers = self.passes[&id].layers;
        let step = layers.program(&self.model).expect("the pass runs it").segments[segment].step.clone();
        let io = step.is_some().then(|| self.exchanges.take());
        let pass = self.passes.get_mut(&id).expect("looked up above");
        if let (Some(step), Some(io)) = (&step, &io) {
            pass.work.hand_over(self.options.numerics, step.input, step.layer, io);
        }
        (pass.next, pass.pending) = (segment + 1, true);
        self.exchanges.give_back(std::mem::replace(&mut pass.io, io.clone()));
        Ok(Ticket { pass: id, segment, io })
    }

    fn poll(&mut self, ticket: &Ticket) -> Result<Progress, StageError> {
        let pass = self.passes.get_mut(&ticket.pass).ok_or(StageError::NoPass(ticket.pass))?;
        if std::mem::take(&mut pass.pending) {
            self.run(ticket.pass, ticket.segment, Part::During);
        }
        Ok(Progress::Done)
    }

    fn choose(&mut self, id: PassId, choices: &[Choice<'_>]) -> Result<Vec<Chosen>, StageError> {
        let mut chosen = Vec::with_capacity(choices.len());
        for choice in choices {
            let logits = self.passes.get(&id).and_then(|pass| pass.logits(choice.lane, self.model.dims.vocab));
            let logits = logits.ok_or(StageError::NoLogits { lane: choice.lane })?;
            let sequence = self.passes[&id].work.lanes[choice.lane].sequence;
            chosen.push(choose::choose(choice, logits, sequence, &mut self.drafts)?);
        }
        Ok(chosen)
    }

    fn logits(&self, pass: PassId, lane: usize) -> Option<&[f32]> {
        self.passes.get(&pass)?.logits(lane, self.model.dims.vocab)
    }

    fn end(&mut self, pass: PassId) {
        if let Some(pass) = self.passes.remove(&pass) {
            self.exchanges.give_back(pass.io);
            self.idle.entry(pass.layers).or_default().push(pass.work);
        }
    }

    fn max_lanes(&self) -> usize {
        self.options.max_lanes
    }
}

impl Pass {
    fn logits(&self, lane: usize, vocab: usize) -> Option<&[f32]> {
        let at = self.work.wanted.iter().position(|&wanted| wanted == lane)?;
        self.work.logits.get(at * vocab..(at + 1) * vocab)
    }
}

impl UnderWay for Pass {
    fn layers(&self) -> Layers {
        self.layers
    }
    fn lanes(&self) -> &[Lane] {
        &self.work.lanes
    }
    fn next(&self) -> usize {
        self.next
    }
    fn pending(&self) -> bool {
        self.pending
    }
    fn io(&self) -> Option<&StepIo> {
        self.io.as_deref()
    }
}
