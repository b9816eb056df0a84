//! `duckpond serve`: the engine behind the HTTP API.
//!
//! The server itself is the crate `server`; here it gets its options, its model and an engine in its own words.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use decode::{Engine, EngineError, Request};
use flock::DuckStats;
use flock::remote::{DuckState, PondHandle};
use model::sampling::SamplingParams;
use server::api::generation::Defaults;
use server::api::{Guard, Limits};
use server::backend::{Backend, Event, Failure, Finish, Job, ModelInfo, Outcome, PondSource, Stats, Token};
use server::pond::{Build, Duck, PondStatus, Port};
use server::serve::{Options, Server};

use crate::cli::ServeArgs;
use crate::error::Error;
use crate::loaded::Opened;
use crate::output::say;
use crate::provenance::Provenance;
use crate::settings::Settings;

/// Runs the command.
///
/// # Errors
/// A model or options that cannot be used, an address that is taken; later, an engine that broke down.
pub fn run(args: &ServeArgs, settings: &Settings) -> Result<(), Error> {
    let opened = Opened::open(settings)?;
    let tokenizer = Arc::new(opened.tokenizer()?);
    let model = model_info(args.served_name.as_deref(), settings, &opened);
    let for_engine = settings.clone();
    let pond = settings.pond.as_deref().map(pond::Pond::load).transpose()?;
    let build = Provenance::of(Path::new("/"), pond.as_ref()).build();
    let server = Server::start(options(args, settings, model, tokenizer), move |loading, url| {
        let progress = |part| loading.at(part);
        let engine = opened.engine_of_server(&for_engine, &progress, Some(url)).map_err(|error| error.line())?;
        Ok(EngineBackend::new(engine).with_build(build))
    })?;
    let url = server.url().to_owned();
    say(format_args!("listening on {url}"));
    server.run(|| say(format_args!("ready: open {url} in a browser, or point a client at {url}/v1")))?;
    Ok(())
}

/// What the API tells of a model, under this name or its folder's.
pub(crate) fn model_info(name: Option<&str>, settings: &Settings, opened: &Opened) -> ModelInfo {
    let folder = &opened.folder;
    let own = || folder.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned());
    let rounding = crate::loaded::numerics(settings.numerics, crate::loaded::stage0(settings.stage0)).name();
    let ducks = match (&settings.pond, settings.ducks) {
        (Some(file), _) => format!("the ducks of {}", file.file_name().unwrap_or(file.as_os_str()).display()),
        (None, 1) => "1 duck in this process".to_owned(),
        (None, ducks) => format!("{ducks} ducks in this process"),
    };
    ModelInfo {
        id: name.map_or_else(own, str::to_owned),
        created: made(&folder.join("config.json")),
        max_len: opened.max_len,
        end_tokens: opened.model.end_tokens.clone(),
        vocab: opened.model.dims.vocab,
        description: format!("{ducks}, {rounding} numerics"),
    }
}

/// When a file was written, in seconds since 1970.
fn made(path: &Path) -> u64 {
    let written = std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    written.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map_or(0, |since| since.as_secs())
}

fn options(
    args: &ServeArgs,
    settings: &Settings,
    model: ModelInfo,
    tokenizer: Arc<model::tokenizer::Tokenizer>,
) -> Options {
    let request = crate::answer::request(settings, Vec::new(), &[]);
    Options {
        host: args.host,
        port: args.port,
        keys: args.api_keys.clone(),
        allow_anyone: args.allow_anyone,
        tls: args.tls_certificate.clone().zip(args.tls_key.clone()),
        guard: Guard { hosts: args.allow_host.clone(), origins: args.allow_origin.clone() },
        limits: Limits {
            body: usize::try_from(args.max_body).unwrap_or(usize::MAX),
            waiting: args.max_queue,
            choices: args.max_choices,
            time: Duration::from_secs(args.request_timeout),
            keep_alive: Duration::from_secs(args.keep_alive),
            connections: args.max_connections,
            grace: Duration::from_secs(args.grace),
            ..Limits::default()
        },
        defaults: Defaults {
            sampling: SamplingParams { seed: 0, ..request.sampling },
            seed: settings.seed,
            max_tokens: settings.max_tokens,
            mtp: settings.mtp,
            thinking: settings.think,
            system: settings.system.clone(),
            stop: settings.stop.clone(),
        },
        model,
        tokenizer,
    }
}

/// The engine in the server's words.
pub(crate) struct EngineBackend {
    /// For whoever goes past the server.
    pub(crate) engine: Engine,
    ducks: Ducks,
    build: Option<Build>,
}

/// Where the ducks' state is read.
enum Ducks {
    /// In this process they work only while the engine is busy, so it is looked up after each answer.
    Here { seen: Arc<LastSeen>, before: Vec<DuckStats> },
    /// Behind links it is known at any time.
    There(Arc<Remote>),
}

/// The pond as it was after the last answer.
#[derive(Default)]
struct LastSeen(Mutex<PondStatus>);

impl PondSource for LastSeen {
    fn status(&self) -> PondStatus {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A flock behind links.
struct Remote {
    pond: PondHandle,
    build: Option<Build>,
}

impl PondSource for Remote {
    fn status(&self) -> PondStatus {
        let flock::remote::PondStatus { ducks, take_overs, .. } = self.pond.status();
        let mut ports: Vec<Port> = Vec::new();
        for duck in &ducks {
            let at = ports.iter().position(|port| port.name == duck.port).unwrap_or_else(|| {
                ports.push(Port { name: duck.port.clone(), state: "down".to_owned(), ..Port::default() });
                ports.len() - 1
            });
            let port = &mut ports[at];
            // A link is up if anybody is heard over it.
            if !matches!(duck.state, DuckState::Absent | DuckState::Silent) {
                port.state = "up".to_owned();
            }
            port.speed_mbit = port.speed_mbit.max(duck.link);
            port.retries += duck.retries;
            port.losses += duck.losses;
        }
        PondStatus { build: self.build.clone(), ports, ducks: ducks.into_iter().map(duck).collect(), take_overs }
    }
}

fn duck(duck: flock::remote::DuckStatus) -> Duck {
    Duck {
        name: duck.name,
        port: duck.port,
        state: duck.state.name().to_owned(),
        note: duck.note,
        units: duck.units.into(),
        active: duck.active.into(),
        resident: duck.resident.into(),
        blocks: duck.blocks.into(),
        steps: duck.steps,
        step_us: duck.step_time.as_secs_f64() * 1e6,
        retries: duck.retries,
        losses: duck.losses,
        temperature: duck.temperature,
        throttled: duck.throttled,
    }
}

impl EngineBackend {
    pub(crate) fn new(mut engine: Engine) -> EngineBackend {
        let ducks = match engine.flock().as_remote() {
            Some(remote) => Ducks::There(Arc::new(Remote { pond: remote.handle(), build: None })),
            None => Ducks::Here { seen: Arc::default(), before: Vec::new() },
        };
        let mut backend = EngineBackend { engine, ducks, build: None };
        backend.look();
        backend
    }

    /// Tells what computes, beside the ducks.
    fn with_build(mut self, build: Build) -> EngineBackend {
        self.build = Some(build);
        if let Ducks::There(remote) = &mut self.ducks {
            let pond = remote.pond.clone();
            *remote = Arc::new(Remote { pond, build: self.build.clone() });
        }
        self.look();
        self
    }

    /// Looks at the ducks in this process.
    fn look(&mut self) {
        let Ducks::Here { seen, before } = &mut self.ducks else { return };
        let stats = self.engine.flock().stats();
        let plan = self.engine.plan();
        let ducks = stats.iter().enumerate().map(|(i, now)| {
            let before = before.get(i).copied().unwrap_or_default();
            let steps = now.steps.saturating_sub(before.steps);
            let busy = now.busy.saturating_sub(before.busy);
            let units = u64::from(plan.units(i));
            Duck {
                name: format!("duck-{:02}", i + 1),
                state: "ready".to_owned(),
                units,
                active: units,
                steps: now.steps,
                step_us: if steps == 0 { 0.0 } else { busy.as_secs_f64() * 1e6 / steps as f64 },
                ..Duck::default()
            }
        });
        let status = PondStatus { build: self.build.clone(), ducks: ducks.collect(), ..PondStatus::default() };
        *seen.0.lock().unwrap_or_else(PoisonError::into_inner) = status;
        *before = stats;
    }
}

impl Backend for EngineBackend {
    fn generate(&mut self, job: Job, on_event: &mut dyn FnMut(Event) -> ControlFlow<()>) -> Result<Outcome, Failure> {
        let Job { prompt, sampling, choice_index, max_tokens, stop_tokens, mtp, chooser, observer } = job;
        let request = Request { prompt: prompt.to_vec(), sampling, choice_index, max_tokens, stop_tokens, mtp };
        self.engine.on_logits(observer);
        self.engine.on_choose(chooser.map(|mut chooser| -> decode::ChooserHook {
            Box::new(move |position, history, logits| chooser.choose(position, history, logits))
        }));
        let outcome = self.engine.generate(&request, &mut |event| {
            on_event(match event {
                decode::Event::Prefill { done, total } => Event::Prefill { done: *done, total: *total },
                decode::Event::Token(token) => Event::Token(Token {
                    id: token.id,
                    at: token.at,
                    drafted: token.draft.is_some(),
                    accepted: token.accepted,
                }),
            })
        });
        self.engine.on_logits(None);
        self.engine.on_choose(None);
        self.look();
        let outcome = outcome.map_err(failure)?;
        let stats = outcome.stats;
        Ok(Outcome {
            finish: match outcome.finish {
                decode::Finish::Stop => Finish::Stop,
                decode::Finish::Length | decode::Finish::ContextFull { .. } => Finish::Length,
                decode::Finish::Cancelled => Finish::Cancelled,
            },
            stats: Stats {
                prompt: stats.input_len,
                cached: stats.cached_len,
                output: stats.output_len,
                time: stats.time,
                ttft: stats.ttft,
                drafts: stats.drafts,
                accepted: stats.accepted,
            },
        })
    }

    fn tick(&mut self) {
        if let Some(remote) = self.engine.flock().as_remote()
            && let Err(error) = remote.tick()
        {
            // The next answer fails for it, and tells why.
            tracing::debug!("the flock: {error}");
        }
    }

    fn pond(&self) -> Arc<dyn PondSource> {
        match &self.ducks {
            Ducks::Here { seen, .. } => seen.clone(),
            Ducks::There(remote) => remote.clone(),
        }
    }
}

/// After a failure the engine takes the next request: its caches are forgotten.
fn failure(error: EngineError) -> Failure {
    let refused = matches!(
        error,
        EngineError::EmptyPrompt | EngineError::PromptTooLong { .. } | EngineError::Token { .. } | EngineError::NoMtp
    );
    Failure { message: Error::Engine(error).line(), refused, fatal: false }
}
