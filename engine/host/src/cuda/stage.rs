//! The CUDA implementation of the stage seam.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::kernels::tree::Shape;
use model::Numerics;
use model::program::Model;
use model::sampling::Distribution;

use super::abi;
use super::area::{Area, Plan, Programs, Sizes};
use super::bind::{attend_plain_shared, attend_shared, scores_shared};
use super::caches::{Caches, Room};
use super::compile::cache_folder;
use super::device::{Device, Properties};
use super::error::CudaError;
use super::exchange::Waits;
use super::kernels::{Kernel, Kernels};
use super::lower::{Lowered, lower};
use super::pass::{How, Pass};
use super::stream::Stream;
use super::task::{Launch, WeightKey};
use super::weights::{DeviceWeights, Source, bytes_of};
use crate::StageError;
use crate::check::{Reach, Sequences, check, check_submit};
use crate::choose::{self, Draft};
use crate::cpu::finite;
use crate::exchanges::Exchanges;
use crate::observe::Observer;
use crate::stage::{Choice, Chosen, Layers, PassId, PassSpec, Progress, SequenceId, Stage, Ticket};

/// How a [`CudaStage`] works.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// Where results are rounded.
    pub numerics: Numerics,
    /// Lanes of one pass at most.
    pub max_lanes: usize,
    /// Sources of sums that a step has, see `Flock::sources`.
    pub sources: usize,
    /// Positions of one sequence at most.
    pub max_positions: usize,
    /// Positions of all sequences together, for which caches are reserved.
    pub positions: usize,
    /// Sequences open at once.
    pub sequences: usize,
    /// Passes of few lanes under way at once.
    pub passes: usize,
    /// Passes of many lanes under way at once.
    pub large_passes: usize,
    /// How long a wait on the card lasts at most; zero: there are no ducks, steps are not handed over, and sums are the shared part alone.
    pub bound: Duration,
    /// Where compiled kernels are kept.
    pub cache: Option<PathBuf>,
    /// Passes of few lanes run as one graph.
    pub graphs: bool,
    /// Kernels may start before the one in front has ended.
    pub overlap: bool,
    /// All activations are NaN before each pass, so that a test sees what is read without having been written.
    pub poison: bool,
    /// Weights are made at random from this seed instead of being read, to measure speed.
    pub random: Option<u32>,
    /// Where the times of a pass's steps go when it ends.
    pub times: Option<Times>,
}

/// By step: when the card handed it over and when its wait for the sums ended, in nanoseconds of the card's clock.
pub type Times = Arc<Mutex<Vec<[u64; 2]>>>;

impl CudaOptions {
    /// One sequence of so many positions, and what suits most.
    pub fn new(numerics: Numerics, max_lanes: usize, sources: usize, max_positions: usize) -> CudaOptions {
        CudaOptions {
            numerics,
            max_lanes,
            sources,
            max_positions,
            positions: max_positions,
            sequences: 1,
            passes: 3,
            large_passes: 1,
            bound: Duration::from_secs(60),
            cache: cache_folder(),
            graphs: true,
            overlap: true,
            poison: false,
            random: None,
            times: None,
        }
    }
}

/// Bytes of GPU memory that a stage needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Weights.
    pub weights: u64,
    /// Caches of all positions.
    pub caches: u64,
    /// What passes work in.
    pub activations: u64,
}

impl Needs {
    /// What a stage for `model` would need; asks no GPU.
    ///
    /// # Errors
    /// A model that the CUDA stage does not run.
    pub fn of(model: &Model, options: &CudaOptions) -> Result<Needs, StageError> {
        let programs = programs(model, options.numerics, true)?;
        Ok(Needs::with(model, options, &programs))
    }

    fn with(model: &Model, options: &CudaOptions, programs: &Programs) -> Needs {
        let sizes = sizes(model, options);
        let area =
            |lanes: usize| (Plan::new(programs, &sizes, lanes).bytes + lanes.min(abi::FEW) * sizes.vocab * 4) as u64;
        Needs {
            weights: bytes_of(model, &keys(programs)) as u64,
            caches: room(options).bytes(model) as u64,
            activations: areas(options).into_iter().map(|(lanes, count)| count as u64 * area(lanes)).sum(),
        }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.caches + self.activations
    }
}

/// What was enqueued has run within this time, or never will.
const LONG: Duration = Duration::from_secs(60);

/// Lanes and number of each kind of area.
fn areas(options: &CudaOptions) -> [(usize, usize); 2] {
    let large = if options.max_lanes > abi::FEW { options.large_passes.max(1) } else { 0 };
    [(options.max_lanes.clamp(1, abi::FEW), options.passes.max(1)), (options.max_lanes, large)]
}

fn sizes(model: &Model, options: &CudaOptions) -> Sizes {
    let dims = &model.dims;
    let max_positions = options.max_positions.min(dims.max_positions);
    Sizes { hidden: dims.hidden, vocab: dims.vocab, chosen: dims.chosen, max_positions }
}

fn room(options: &CudaOptions) -> Room {
    Room {
        max_positions: options.max_positions,
        positions: options.positions,
        sequences: options.sequences.max(1),
        max_lanes: options.max_lanes,
        value_bytes: if options.numerics == Numerics::Exact { 4 } else { 2 },
    }
}

fn programs(model: &Model, numerics: Numerics, merge: bool) -> Result<Programs, CudaError> {
    let mtp = model.mtp.as_ref().map(|program| lower(model, program, numerics, merge)).transpose()?;
    Ok(Programs { main: lower(model, &model.main, numerics, merge)?, mtp })
}

fn keys(programs: &Programs) -> Vec<WeightKey> {
    let mtp = programs.mtp.as_ref().map(Lowered::weights).unwrap_or_default();
    programs.main.weights().into_iter().chain(mtp).collect()
}

/// The CUDA implementation of [`Stage`].
pub struct CudaStage {
    // Passes and areas go before what their kernels use.
    pub(super) passes: HashMap<PassId, Pass>,
    idle: Vec<Area>,
    pub(super) programs: Programs,
    /// The same, operation by operation, while there is an observer.
    pub(super) observed: Option<Programs>,
    pub(super) weights: DeviceWeights,
    pub(super) caches: Caches,
    pub(super) kernels: Kernels,
    pub(super) device: Arc<Device>,
    pub(super) model: Arc<Model>,
    pub(super) options: CudaOptions,
    pub(super) sizes: Sizes,
    pub(super) shape: Shape,
    drafts: HashMap<SequenceId, Draft>,
    next_id: u64,
    pub(super) exchanges: Exchanges,
    pub(super) observer: Option<Box<dyn Observer>>,
    /// An error that stays: nothing is asked of the card any more.
    dead: Option<CudaError>,
}

impl CudaStage {
    /// A stage for `model` on the first GPU. `progress` hears bytes of weights copied, and bytes in all.
    ///
    /// # Errors
    /// No driver, card or compiler, one that is too old, too little memory (with what is needed and free), a weight that is NaN or infinite.
    pub fn new(
        model: Arc<Model>,
        options: CudaOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<CudaStage, StageError> {
        let shape = model
            .dims
            .shape()
            .ok_or(StageError::TooManyUnits { slices: model.dims.slices(), experts: model.dims.experts })?;
        let device = Device::open(0)?;
        let kernels = Kernels::load(&device, options.cache.as_deref())?;
        let programs = programs(&model, options.numerics, true)?;
        allow_shared(&kernels, &model, &programs)?;
        let needs = Needs::with(&model, &options, &programs);
        let (free, _) = device.memory()?;
        if needs.total() > free {
            let what = format!(
                "weights ({}), caches of {} positions ({}) and work areas ({})",
                needs.weights, options.positions, needs.caches, needs.activations
            );
            return Err(CudaError::OutOfMemory { what, needed: needs.total(), free }.into());
        }
        let stream = Stream::new(&device)?;
        let source = match options.random {
            Some(seed) => Source::Random { kernels: &kernels, stream: &stream, seed },
            None => {
                finite::check(&model.weights.matrices)?;
                Source::Checkpoint(progress)
            }
        };
        let weights = DeviceWeights::load(&device, &model, &keys(&programs), source)?;
        let sizes = sizes(&model, &options);
        let caches = Caches::new(&device, &model, room(&options))?;
        let bound = u64::try_from(options.bound.as_nanos()).unwrap_or(u64::MAX);
        let waits = Waits { bound, timed: options.times.is_some() };
        let mut idle = Vec::new();
        for (lanes, count) in areas(&options) {
            for _ in 0..count {
                idle.push(Area::new(&device, &programs, &sizes, lanes, waits)?);
            }
        }
        let work: usize = idle.iter().map(Area::bytes).sum();
        tracing::info!(
            gpu = device.properties().name,
            weights = weights.bytes(),
            caches = caches.bytes(),
            work,
            "stage 0 on the GPU"
        );
        let exchanges = Exchanges::new(options.sources);
        Ok(CudaStage {
            passes: HashMap::new(),
            idle,
            programs,
            observed: None,
            weights,
            caches,
            kernels,
            device,
            model,
            options,
            sizes,
            shape,
            drafts: HashMap::new(),
            next_id: 0,
            exchanges,
            observer: None,
            dead: None,
        })
    }

    /// The card.
    pub fn properties(&self) -> &Properties {
        self.device.properties()
    }

    /// Shows every op's result to `observer` (for tests), or to nobody. Passes under way are not affected.
    ///
    /// # Errors
    /// None that the stage's making did not have.
    pub fn observe(&mut self, observer: Option<Box<dyn Observer>>) -> Result<(), StageError> {
        self.observed = match observer {
            Some(_) => Some(programs(&self.model, self.options.numerics, false)?),
            None => None,
        };
        self.observer = observer;
        Ok(())
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// The error that ended this stage, if one did.
    fn alive(&self) -> Result<(), StageError> {
        match &self.dead {
            Some(error) => Err(CudaError::Dead(error.to_string()).into()),
            None => Ok(self.device.bind()?),
        }
    }

    /// Remembers errors that stay, and which pass is broken.
    pub(super) fn noted<T>(&mut self, pass: PassId, result: Result<T, CudaError>) -> Result<T, StageError> {
        result.map_err(|error| {
            if matches!(error, CudaError::Failed { .. }) {
                tracing::error!(%error, "the GPU stage ends");
                self.dead = Some(error.clone());
            }
            if let Some(pass) = self.passes.get_mut(&pass) {
                pass.broken = true;
            }
            error.into()
        })
    }

    /// Takes an area that suits.
    fn take_area(&mut self, lanes: usize) -> Result<Area, CudaError> {
        let suits = |area: &&Area| area.plan.lanes >= lanes;
        let best = self.idle.iter().filter(suits).map(|area| area.plan.lanes).min();
        // The one that was used last has its graphs.
        let at = best.and_then(|lanes| self.idle.iter().rposition(|area| area.plan.lanes == lanes));
        at.map(|at| self.idle.remove(at)).ok_or(CudaError::Passes { found: self.passes.len() })
    }

    /// Puts a pass's lanes where kernels read them.
    fn prepare(&self, area: &mut Area, spec: &PassSpec) -> Result<(), CudaError> {
        let (_, ring) = self.caches.kept();
        for (slot, lane) in area.lane_table.get_mut().iter_mut().zip(&spec.lanes) {
            let sequence = self.caches.get(lane.sequence).expect("checked: it is open");
            *slot = abi::Lane {
                token: lane.token,
                position: u32::try_from(lane.position).expect("positions fit in 32 bits"),
                sequence: sequence.row as u32,
                kept: (lane.position % ring) as u32,
            };
        }
        let wanted = area.wanted_table.get_mut();
        wanted.iter_mut().zip(&spec.logits).for_each(|(slot, &lane)| *slot = lane as u32);
        if self.options.poison {
            area.poison()?;
        }
        area.stream.upload(area.at(area.plan.lane), &area.lane_table, 0, spec.lanes.len())?;
        if !spec.logits.is_empty() {
            area.stream.upload(area.at(area.plan.wanted), &area.wanted_table, 0, spec.logits.len())?;
        }
        area.ensure_logits(spec.logits.len())
    }
}

/// Lets kernels have the shared memory that the programs need.
fn allow_shared(kernels: &Kernels, model: &Model, programs: &Programs) -> Result<(), CudaError> {
    let width = |id: model::program::CacheId| model.caches[usize::from(id.0)].width;
    let mut most: HashMap<&str, (Kernel, usize)> = HashMap::new();
    let mut need = |kernel: Kernel, bytes: usize| {
        let entry = most.entry(kernel.name()).or_insert((kernel, 0));
        entry.1 = entry.1.max(bytes);
    };
    let launches = programs.main.launches().chain(programs.mtp.iter().flat_map(Lowered::launches));
    for launch in launches {
        match launch {
            Launch::Select(task) => {
                let kernel = if task.fast { Kernel::IndexScores } else { Kernel::IndexScoresPlain };
                need(kernel, scores_shared(task.fast, task.weights.width, width(task.keys)));
            }
            Launch::Attend(task) if task.fast => {
                need(Kernel::Attend, attend_shared(width(task.latent), width(task.rope)));
            }
            Launch::Attend(task) => {
                let bytes = attend_plain_shared(width(task.latent), width(task.rope), task.keep);
                need(Kernel::AttendPlain, bytes);
            }
            _ => {}
        }
    }
    most.into_values().try_for_each(|(kernel, bytes)| kernels.allow(kernel, bytes))
}

impl Sequences for Caches {
    fn reach(&self, id: SequenceId) -> Option<Reach> {
        let sequence = self.get(id)?;
        Some(Reach { len: sequence.len, mtp_len: sequence.mtp_len, max_len: sequence.max_len })
    }

    fn has_kept(&self, id: SequenceId, position: usize) -> bool {
        self.get(id).is_some_and(|sequence| sequence.has_kept(position))
    }
}

impl Stage for CudaStage {
    fn open(&mut self, max_len: usize) -> Result<SequenceId, StageError> {
        self.alive()?;
        let limit = self.sizes.max_positions;
        if max_len > limit {
            return Err(StageError::TooLong { found: max_len, limit });
        }
        let id = SequenceId(self.new_id());
        self.caches.open(id, max_len)?;
        Ok(id)
    }

    fn close(&mut self, sequence: SequenceId) {
        let uses = |pass: &Pass| pass.lanes.iter().any(|lane| lane.sequence == sequence);
        let ended: Vec<PassId> = self.passes.iter().filter(|(_, pass)| uses(pass)).map(|(&id, _)| id).collect();
        ended.into_iter().for_each(|id| self.end(id));
        self.caches.close(sequence);
        self.drafts.remove(&sequence);
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize, mtp_len: usize) {
        if let Some(sequence) = self.caches.get_mut(sequence) {
            sequence.truncate(len, mtp_len);
        }
    }

    fn begin(&mut self, spec: &PassSpec) -> Result<PassId, StageError> {
        self.alive()?;
        if self.programs.get(spec.layers).is_none() {
            return Err(StageError::NoMtp);
        }
        check(spec, self.options.max_lanes, &self.model.dims, &self.caches)?;
        let mut area = self.take_area(spec.lanes.len())?;
        let id = PassId(self.new_id());
        if let Err(error) = self.prepare(&mut area, spec) {
            self.idle.push(area);
            return self.noted(id, Err(error));
        }
        let how = self.how(spec);
        for lane in &spec.lanes {
            let sequence = self.caches.get_mut(lane.sequence).expect("checked above");
            match spec.layers {
                Layers::Main => sequence.len = lane.position + 1,
                Layers::Mtp => sequence.mtp_len = lane.position + 1,
            }
        }
        self.passes.insert(id, Pass::new(spec.layers, &spec.lanes, &spec.logits, area, how));
        Ok(id)
    }

    fn segments(&self, layers: Layers) -> usize {
        self.programs.get(layers).map_or(0, |p| p.segments.len())
    }

    fn submit(&mut self, id: PassId, segment: usize) -> Result<Ticket, StageError> {
        check_submit(&self.passes, id, segment, |layers| self.segments(layers))?;
        self.alive()?;
        let result = self.run(id, segment);
        let io = self.noted(id, result)?;
        Ok(Ticket { pass: id, segment, io })
    }

    fn poll(&mut self, ticket: &Ticket) -> Result<Progress, StageError> {
        let pass = self.passes.get_mut(&ticket.pass).ok_or(StageError::NoPass(ticket.pass))?;
        if !pass.pending {
            return Ok(Progress::Done);
        }
        let program = self.programs.get(pass.layers).expect("`begin` checks that there is one");
        if ticket.segment + 1 < program.segments.len() {
            // What runs beside the ducks is enqueued and nobody waits for it.
            pass.pending = false;
            return Ok(Progress::Done);
        }
        let bound = self.options.bound;
        let progress = (|| {
            self.device.bind()?;
            if pass.area.stream.is_idle()? {
                pass.finish()?;
                pass.pending = false;
                return Ok(Progress::Done);
            }
            if !bound.is_zero() && pass.since.elapsed() > bound {
                return Err(CudaError::Timeout { what: "the last layers".into(), seconds: bound.as_secs() });
            }
            Ok(Progress::Running)
        })();
        self.noted(ticket.pass, progress)
    }

    fn choose(&mut self, id: PassId, choices: &[Choice<'_>]) -> Result<Vec<Chosen>, StageError> {
        self.alive()?;
        let vocab = self.sizes.vocab;
        let pass = self.passes.get_mut(&id).ok_or(StageError::NoPass(id))?;
        let finished = pass.finish();
        self.noted(id, finished)?;
        let mut chosen = Vec::with_capacity(choices.len());
        for choice in choices {
            let pass = &self.passes[&id];
            let lane = choice.lane;
            let sequence = pass.lanes.get(lane).ok_or(StageError::NoLogits { lane })?.sequence;
            let best = pass.best(lane).filter(|_| choose::is_greedy(choice));
            if let Some(token) = best {
                // The card has found it, and nobody asks for the logits.
                let distribution = Distribution::certain(token);
                chosen.push(choose::choose_from(choice, distribution, sequence, &mut self.drafts));
                continue;
            }
            let logits = match pass.lane_logits(lane, vocab) {
                Ok(logits) => logits.ok_or(StageError::NoLogits { lane })?,
                Err(error) => return self.noted(id, Err(error)),
            };
            chosen.push(choose::choose(choice, logits, sequence, &mut self.drafts)?);
        }
        Ok(chosen)
    }

    fn logits(&self, pass: PassId, lane: usize) -> Option<&[f32]> {
        self.alive().ok()?;
        let logits = self.passes.get(&pass)?.lane_logits(lane, self.sizes.vocab);
        // An error that stays shows itself again in the next call, which can say so.
        logits.inspect_err(|error| tracing::error!(%error, "logits")).ok().flatten()
    }

    fn end(&mut self, id: PassId) {
        let Some(mut pass) = self.passes.remove(&id) else { return };
        self.exchanges.give_back(pass.io.take());
        if self.dead.is_some() || self.device.bind().is_err() {
            return;
        }
        let underway = pass.how == How::Graph && pass.next > 0 && pass.next < self.segments(pass.layers);
        let ended = if underway || pass.broken {
            pass.area.exchange.give_up(&pass.area.stream)
        } else {
            pass.area.stream.finish_within(self.options.bound.max(LONG))
        };
        if let Err(error) = ended {
            tracing::error!(%error, "the GPU stage ends");
            self.dead = Some(error);
            return;
        }
        if let Some(times) = &self.options.times {
            times.lock().unwrap_or_else(PoisonError::into_inner).extend(pass.area.exchange.times());
        }
        self.idle.push(pass.area);
        if self.passes.is_empty() {
            self.idle.iter_mut().for_each(Area::tidy);
        }
    }

    fn max_lanes(&self) -> usize {
        self.options.max_lanes
    }
}

impl Drop for CudaStage {
    fn drop(&mut self) {
        let passes: Vec<PassId> = self.passes.keys().copied().collect();
        passes.into_iter().for_each(|id| self.end(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_may_move_to_another_thread() {
        fn moves<T: Send>() {}
        moves::<CudaStage>();
    }
}
