//! The engine: one stage, one flock, the caches of the latest request.

use std::any::Any;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use flock::Flock;
use flock::plan::Plan;
use host::StageError;
use host::cpu::{CpuOptions, CpuStage, Isa};
use host::stage::{Choice, Lane, Layers, PassId, PassSpec, Rule, SequenceId, Stage};
use model::Numerics;
use model::program::{Dims, Model};

use crate::pass::Run;
use crate::request::{Event, Finish, Outcome, Request, Stats, TokenEvent};
use crate::speculate::{ChooserHook, DraftHook, Hooks, LogitsHook};
use crate::{Backend, EngineError, Stage0, speculate};

/// How an engine works.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// In-process ducks, from 1 to the model's units.
    pub ducks: usize,
    /// Threads; 0 for one per core.
    pub threads: usize,
    /// Where results are rounded.
    pub numerics: Numerics,
    /// Prompt tokens of one pass at most.
    pub chunk: usize,
    /// Positions of the context; 0 for as many as the model allows.
    pub max_len: usize,
    /// What computes stage 0.
    pub stage0: Stage0,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions { ducks: 1, threads: 0, numerics: Numerics::Exact, chunk: 128, max_len: 0, stage0: Stage0::Cpu }
    }
}

/// Answers requests, one at a time.
///
/// The caches of the latest request stay: the next one reads again only what differs from the text before (which changes no bit of the
/// answer, since no result depends on how a prompt is cut into passes).
pub struct Engine {
    pub(crate) compute: Compute,
    pub(crate) max_len: usize,
    pub(crate) hooks: Hooks,
    dims: Dims,
    plan: Plan,
    has_mtp: bool,
    chunk: usize,
    context: Option<Context>,
    backend: Backend,
    /// Whether the processors go on if a GPU fails, and with what.
    falls_back: bool,
    on_cpu: (Arc<Model>, CpuOptions),
    kept: Vec<Box<dyn Any + Send>>,
}

/// Both stages and their threads.
pub(crate) struct Compute {
    pub(crate) stage: Box<dyn Stage + Send>,
    pub(crate) flock: Flock,
    pool: rayon::ThreadPool,
}

/// What is in the caches.
pub(crate) struct Context {
    pub(crate) sequence: SequenceId,
    /// The tokens that the main layers have read, by position.
    pub(crate) tokens: Vec<u32>,
    /// Positions that the MTP layer has read.
    pub(crate) mtp_len: usize,
}

impl Compute {
    /// Runs a pass to its end on the pool's threads, lets `then` use its results, and ends it.
    pub(crate) fn pass<R: Send>(
        &mut self,
        spec: &PassSpec,
        then: impl FnOnce(&mut dyn Stage, PassId) -> Result<R, EngineError> + Send,
    ) -> Result<R, EngineError> {
        let Compute { stage, flock, pool } = self;
        let stage = &mut **stage;
        pool.install(|| {
            let run = Run::begin(stage, spec)?;
            let pass = run.pass();
            let result = run.finish(stage, flock).and_then(|()| then(stage, pass));
            stage.end(pass);
            if result.is_err() {
                flock.abandon();
            }
            result
        })
    }
}

impl Engine {
    /// An engine with in-process ducks under the planner's plan.
    ///
    /// # Errors
    /// Options out of range, or threads that cannot be started.
    pub fn new(model: Model, options: &EngineOptions) -> Result<Engine, EngineError> {
        Engine::build(model, options, |model| Flock::in_process(model, options.ducks, options.numerics))
    }

    /// An engine with in-process ducks under this plan; `options.ducks` does not matter.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn with_plan(model: Model, plan: Plan, options: &EngineOptions) -> Result<Engine, EngineError> {
        Engine::build(model, options, |model| Flock::with_plan(model, plan, options.numerics))
    }

    /// An engine with a flock that its owner has made for this model and these numerics; `options.ducks` does not matter.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn with_flock(model: Model, flock: Flock, options: &EngineOptions) -> Result<Engine, EngineError> {
        Engine::build(model, options, |_| Ok(flock))
    }

    /// As [`Engine::with_flock`], with a stage that its owner makes for this model and number of positions, whatever `options.stage0` is: with
    /// options of its own, or one that watches another. What it must be able to do is said as the CPU's options.
    ///
    /// # Errors
    /// As [`Engine::new`], and those of `make`.
    pub fn with_stage(
        model: Model,
        flock: Flock,
        options: &EngineOptions,
        make: impl FnOnce(&Arc<Model>, CpuOptions, usize) -> Result<(Box<dyn Stage + Send>, Backend), StageError>,
    ) -> Result<Engine, EngineError> {
        Engine::assemble(model, options, |_| Ok(flock), make)
    }

    fn build(
        model: Model,
        options: &EngineOptions,
        flock: impl FnOnce(&Model) -> Result<Flock, flock::FlockError>,
    ) -> Result<Engine, EngineError> {
        Engine::assemble(model, options, flock, |model, cpu, max_len| options.stage0.open(model, cpu, max_len))
    }

    fn assemble(
        model: Model,
        options: &EngineOptions,
        flock: impl FnOnce(&Model) -> Result<Flock, flock::FlockError>,
        make: impl FnOnce(&Arc<Model>, CpuOptions, usize) -> Result<(Box<dyn Stage + Send>, Backend), StageError>,
    ) -> Result<Engine, EngineError> {
        let dims = model.dims;
        let max_len = if options.max_len == 0 { dims.max_positions } else { options.max_len };
        if max_len > dims.max_positions {
            return Err(EngineError::MaxLen { found: max_len, limit: dims.max_positions });
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(options.threads)
            .thread_name(|i| format!("pond-{i}"))
            .build()
            .map_err(|source| EngineError::Threads { threads: options.threads, source })?;
        let flock = flock(&model)?;
        let chunk = options.chunk.clamp(1, flock.max_lanes().max(1));
        let has_mtp = model.mtp.is_some();
        let cpu = CpuOptions {
            numerics: options.numerics,
            max_lanes: chunk.max(2),
            sources: flock.sources(),
            isa: Isa::best(),
        };
        let model = Arc::new(model);
        let (stage, backend) = make(&model, cpu, max_len)?;
        let falls_back = options.stage0 == Stage0::Auto && backend == Backend::Cuda;
        let plan = flock.plan().clone();
        flock.beside(workers(backend, &pool));
        let compute = Compute { stage, flock, pool };
        Ok(Engine {
            compute,
            max_len,
            hooks: Hooks::default(),
            dims,
            plan,
            has_mtp,
            chunk,
            context: None,
            backend,
            falls_back,
            on_cpu: (model, cpu),
            kept: Vec::new(),
        })
    }

    /// Sizes of the model.
    pub fn dims(&self) -> &Dims {
        &self.dims
    }

    /// What stage 0 runs on.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Positions of the context.
    pub fn max_len(&self) -> usize {
        self.max_len
    }

    /// Keeps something as long as the engine lives, such as the lock of its pond.
    pub fn keep(&mut self, guard: Box<dyn Any + Send>) {
        self.kept.push(guard);
    }

    /// The ducks.
    pub fn flock(&mut self) -> &mut Flock {
        &mut self.compute.flock
    }

    /// Which duck holds what.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Whether drafts are possible.
    pub fn has_mtp(&self) -> bool {
        self.has_mtp
    }

    /// Forgets the latest request's caches.
    pub fn reset(&mut self) {
        if let Some(context) = self.context.take() {
            self.compute.stage.close(context.sequence);
        }
    }

    /// Calls `hook(position, logits)` for each token of an answer, with the logits from which the token at `position` was chosen.
    pub fn on_logits(&mut self, hook: Option<LogitsHook>) {
        self.hooks.logits = hook;
    }

    /// Has `hook` choose each token of an answer in the stage's place, for what stages do not know: grammars, for instance.
    pub fn on_choose(&mut self, hook: Option<ChooserHook>) {
        self.hooks.chooser = hook;
    }

    /// Replaces each draft by what `hook` makes of it. Drafts of a good model are almost always right, so that a test that wants to see
    /// rejections has to bring its own.
    pub fn replace_drafts(&mut self, hook: Option<DraftHook>) {
        self.hooks.drafts = hook;
    }

    /// Has `make` wrap the stage, as a GPU after whose failure the processors go on: for tests of that, on machines without one.
    ///
    /// # Errors
    /// None that the engine's making did not have.
    pub fn replace_stage(
        &mut self,
        make: impl FnOnce(Box<dyn Stage + Send>) -> Box<dyn Stage + Send>,
    ) -> Result<(), EngineError> {
        self.reset();
        let (model, options) = &self.on_cpu;
        self.compute.stage = make(Box::new(CpuStage::new(model.clone(), *options)?));
        (self.backend, self.falls_back) = (Backend::Cuda, true);
        Ok(())
    }

    /// Answers a request. `on_event` sees the prompt's progress and each token as it is chosen; when it breaks, the answer ends there.
    ///
    /// # Errors
    /// A prompt that is empty, too long or not of this model, before anything is computed; failures of either stage, after which the caches are
    /// forgotten.
    pub fn generate(
        &mut self,
        request: &Request,
        on_event: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<Outcome, EngineError> {
        self.check(request)?;
        let result = self.answer(request, on_event);
        if result.is_err() {
            self.reset();
        }
        result
    }

    fn check(&self, request: &Request) -> Result<(), EngineError> {
        let (found, vocab) = (request.prompt.len(), self.dims.vocab);
        if found == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if found > self.max_len {
            return Err(EngineError::PromptTooLong { found, limit: self.max_len });
        }
        if let Some(index) = request.prompt.iter().position(|&t| t as usize >= vocab) {
            return Err(EngineError::Token { index, token: request.prompt[index], vocab });
        }
        if request.mtp && !self.has_mtp {
            return Err(EngineError::NoMtp);
        }
        Ok(())
    }

    fn answer(
        &mut self,
        request: &Request,
        on_event: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<Outcome, EngineError> {
        let mut answer = Answer::new(request, self.max_len, on_event);
        let broken = match self.go_on(&mut answer) {
            Err(EngineError::Stage(StageError::Device(error))) if self.falls_back => error,
            result => return result.map(|()| answer.outcome(self.backend)),
        };
        tracing::warn!(
            "the GPU failed ({broken}); the processors read {} tokens again and go on",
            answer.tokens_so_far()
        );
        self.leave_gpu()?;
        let continued = Request { prompt: [&request.prompt[..], &answer.chosen].concat(), ..request.clone() };
        let stats = Stats { backend_changed: true, ..answer.stats };
        let started = answer.started;
        let mut answer = Answer { stats, started, ..Answer::new(&continued, self.max_len, answer.on_event) };
        self.go_on(&mut answer)?;
        Ok(answer.outcome(self.backend))
    }

    /// Reads the prompt and generates until the answer ends.
    fn go_on(&mut self, answer: &mut Answer<'_>) -> Result<(), EngineError> {
        let mut context = self.resume(answer.request)?;
        if !answer.stats.backend_changed {
            answer.stats.cached_len = context.tokens.len();
        }
        let result = match self.prefill(&mut context, answer) {
            Ok(Some(first)) => speculate::decode(self, &mut context, answer, first),
            other => other.map(|_| ()),
        };
        self.context = Some(context);
        result
    }

    /// From the GPU to the processors, with the same numerics. What the GPU had cached is gone.
    fn leave_gpu(&mut self) -> Result<(), EngineError> {
        self.reset();
        let (model, options) = &self.on_cpu;
        self.compute.stage = Box::new(CpuStage::new(model.clone(), *options)?);
        (self.backend, self.falls_back) = (Backend::Cpu, false);
        self.compute.flock.beside(workers(self.backend, &self.compute.pool));
        Ok(())
    }

    /// The caches cut back to what this request shares with the latest one.
    fn resume(&mut self, request: &Request) -> Result<Context, EngineError> {
        let Some(mut context) = self.context.take() else {
            let sequence = self.compute.stage.open(self.max_len)?;
            return Ok(Context { sequence, tokens: Vec::new(), mtp_len: 0 });
        };
        let common = context.tokens.iter().zip(&request.prompt).take_while(|(a, b)| a == b).count();
        // The last prompt token is always read again: its logits are needed.
        let mut keep = common.min(request.prompt.len() - 1);
        // The MTP layer's entry for a position depends on the token after it, so the last common position's does not hold.
        let mtp_keep = context.mtp_len.min(common.saturating_sub(1)).min(keep);
        if request.mtp {
            // It goes on from the main layers' state at its first missing position, which has to be computed again.
            keep = mtp_keep;
        }
        tracing::debug!(keep, prompt = request.prompt.len(), "positions still cached");
        self.compute.stage.truncate(context.sequence, keep, mtp_keep);
        context.tokens.truncate(keep);
        context.mtp_len = mtp_keep;
        Ok(context)
    }

    /// Reads the prompt; gives the first token of the answer, unless the receiver has had enough.
    fn prefill(&mut self, context: &mut Context, answer: &mut Answer<'_>) -> Result<Option<u32>, EngineError> {
        let request = answer.request;
        let total = request.prompt.len();
        loop {
            let start = context.tokens.len();
            let end = (start + self.chunk).min(total);
            let last = end == total;
            let lanes = lanes(context.sequence, start, &request.prompt[start..end]);
            let logits = if last { vec![lanes.len() - 1] } else { Vec::new() };
            let lane = lanes.len() - 1;
            let hooks = &mut self.hooks;
            let choice = Choice {
                lane,
                params: &request.sampling,
                choice_index: request.choice_index,
                history: &request.prompt,
                position: total,
                rule: Rule::Token,
            };
            let chosen = self.compute.pass(&PassSpec { layers: Layers::Main, lanes, logits }, |stage, pass| {
                if !last {
                    return Ok(None);
                }
                hooks.show(total, stage, pass, lane);
                Ok(Some(hooks.choose(stage, pass, choice)?.token))
            })?;
            context.tokens.extend_from_slice(&request.prompt[start..end]);
            if request.mtp && context.mtp_len + 1 < end {
                let from = context.mtp_len;
                let lanes = self::lanes(context.sequence, from, &request.prompt[from + 1..end]);
                self.compute.pass(&PassSpec { layers: Layers::Mtp, lanes, logits: Vec::new() }, |_, _| Ok(()))?;
                context.mtp_len = end - 1;
            }
            if (answer.on_event)(&Event::Prefill { done: end, total }).is_break() {
                answer.finish = Some(Finish::Cancelled);
                return Ok(None);
            }
            if last {
                return Ok(chosen);
            }
        }
    }
}

/// Threads that stage 0 computes with.
fn workers(backend: Backend, pool: &rayon::ThreadPool) -> usize {
    match backend {
        Backend::Cpu => pool.current_num_threads(),
        Backend::Cuda => 0,
    }
}

/// Lanes of neighbouring positions.
pub(crate) fn lanes(sequence: SequenceId, first: usize, tokens: &[u32]) -> Vec<Lane> {
    tokens.iter().enumerate().map(|(i, &token)| Lane { sequence, position: first + i, token }).collect()
}

/// An answer under way: what was chosen, and whether it goes on.
pub(crate) struct Answer<'a> {
    pub(crate) request: &'a Request,
    pub(crate) stats: Stats,
    pub(crate) finish: Option<Finish>,
    /// The answer's tokens.
    chosen: Vec<u32>,
    on_event: &'a mut dyn FnMut(&Event) -> ControlFlow<()>,
    max_len: usize,
    started: Instant,
}

impl<'a> Answer<'a> {
    fn new(request: &'a Request, max_len: usize, on_event: &'a mut dyn FnMut(&Event) -> ControlFlow<()>) -> Self {
        let stats = Stats { input_len: request.prompt.len(), ..Stats::default() };
        Answer { request, stats, finish: None, chosen: Vec::new(), on_event, max_len, started: Instant::now() }
    }

    /// Takes a chosen token, for position `position`; true while the answer goes on.
    pub(crate) fn take(&mut self, token: u32, position: usize, draft: Option<u32>, accepted: bool) -> bool {
        let at = self.started.elapsed();
        if self.stats.output_len == 0 {
            self.stats.ttft = at;
        }
        self.stats.time = at;
        let event = TokenEvent { index: self.stats.output_len, id: token, at, draft, accepted };
        self.stats.output_len += 1;
        self.chosen.push(token);
        let broke = (self.on_event)(&Event::Token(event)).is_break();
        self.finish = if self.request.stop_tokens.contains(&token) {
            Some(Finish::Stop)
        } else if broke {
            Some(Finish::Cancelled)
        } else if self.stats.output_len >= self.request.max_tokens {
            Some(Finish::Length)
        } else if position >= self.max_len {
            Some(Finish::ContextFull { limit: self.max_len })
        } else {
            None
        };
        self.finish.is_none()
    }

    /// Tokens that a stage has to read to go on.
    fn tokens_so_far(&self) -> usize {
        self.request.prompt.len() + self.chosen.len()
    }

    fn outcome(mut self, backend: Backend) -> Outcome {
        self.stats.backend = backend;
        let finish = self.finish.unwrap_or(Finish::Length);
        tracing::debug!(?finish, output = self.stats.output_len, "answer ended");
        Outcome { finish, stats: self.stats }
    }
}
