//! `duckpond bench pond`: a whole pond at full size without its ducks. Stage 0 runs on a GPU with random weights made there; the production engine,
//! coordinator, domains and session protocol carry every step to modelled ducks over modelled wires, see [`ducks`] and [`wire`].
//!
//! So what is measured is tokens a second of a serial greedy answer for ducks of a given speed, and how much of a step is neither GPU nor duck
//! nor wire. Left out: real network cards and their driver, ducks that fail, and loading; nobody has the experts, see
//! [`share_one_unit`], and a run in which the host had to compute for a duck is an error.

mod clock;
mod ducks;
mod report;
mod timed;
mod wire;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ::wire::key::Key;
use decode::{Backend, Engine, EngineOptions, Event, Request, Stage0};
use flock::Flock;
use flock::remote::{self, DuckSpec, DuckState};
use host::cpu::{CpuOptions, CpuStage};
use host::cuda::{CudaOptions, CudaStage, Times as CardTimes};
use host::stage::Stage;
use link::Mac;
use model::program::Model;
use model::sampling::SamplingParams;
use model::synthetic::{self, Dims, share_one_unit};

use crate::cli::{PondBenchArgs, PondDims, PondStage};
use crate::error::Error;
use crate::loaded::numerics;
use crate::settings::Settings;
use crate::signals::Interruptible;
use crate::{output, progress};

use self::wire::Seen;
use clock::{Clock, Nanos};
use ducks::{Domain, Log, Pace};
use report::{Checks, Report, Setting, Times};
use timed::{Timed, Wait, Waits};

/// Tokens before the measured ones: the first is the prompt's, the others make graphs and teach the pace of the ducks.
const WARM: usize = 4;
/// Nanoseconds that a switch takes to pass a frame on.
const HOP: Nanos = 1_000;
/// Nanoseconds that a duck needs for a step at most: that of --duck-us.
const SLOWEST: Nanos = 10_000_000_000;
/// Lanes of a step while the prompt is read.
const LANES: usize = 64;
/// For so long the ducks are waited for.
const WAIT: Duration = Duration::from_secs(10);

/// Runs the command.
///
/// # Errors
/// No GPU that can be used, or too little memory on it; ducks that cannot hold the model; a run that was none, because the host computed
/// experts itself.
pub fn run(args: &PondBenchArgs, settings: &Settings) -> Result<(), Error> {
    check(args)?;
    let numerics = numerics(settings.numerics, if args.stage0 == PondStage::Cuda { Stage0::Cuda } else { Stage0::Cpu });
    let dims = sizes(args.dims);
    if args.stage0 == PondStage::Cuda {
        super::need_gpu()?;
    }
    let model = progress::spinner("laying out the model", || open(args, &dims))?;
    let clock = Clock::start();
    let (mut pond, ports, rows) = Pond::start(clock, args, &model)?;
    let options = remote::Options {
        wait: WAIT,
        max_lanes: LANES,
        replicas: false,
        ..remote::Options::new(ports, rows, key(), [7; 16])
    };
    let mut flock = Flock::remote(&model, numerics, options).map_err(|error| Error::Engine(error.into()))?;
    wait_ready(&mut flock)?;
    let steps = model.experts.len();
    let (waits, card) = (Waits::default(), CardTimes::default());
    let stage_name = Mutex::new("cpu".to_owned());
    let mut engine = {
        let options = EngineOptions {
            threads: settings.threads,
            numerics,
            chunk: LANES,
            max_len: positions(args),
            ..EngineOptions::default()
        };
        let make = |model: &Arc<Model>, needs: CpuOptions, max_len: usize| {
            let (stage, backend): (Box<dyn Stage + Send>, Backend) = match args.stage0 {
                PondStage::Cpu => (Box::new(CpuStage::new(model.clone(), needs)?), Backend::Cpu),
                PondStage::Cuda => {
                    let options = CudaOptions {
                        random: Some(1),
                        times: Some(card.clone()),
                        ..CudaOptions::new(needs.numerics, needs.max_lanes, needs.sources, max_len)
                    };
                    let stage = CudaStage::new(model.clone(), options, &mut |_, _| ())?;
                    stage_name.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&stage.properties().name);
                    (Box::new(stage), Backend::Cuda)
                }
            };
            Ok((Box::new(Timed::new(stage, clock, waits.clone())) as Box<dyn Stage + Send>, backend))
        };
        progress::spinner("making stage 0", || Engine::with_stage(model, flock, &options, make))?
    };
    let at = answer(&mut engine, args)?;
    let host_nodes = host_nodes(&mut engine);
    drop(engine);
    let logs = pond.stop();
    let seen: Vec<Seen> =
        pond.seen.iter().map(|seen| seen.lock().unwrap_or_else(PoisonError::into_inner).clone()).collect();
    let setting = Setting {
        dims: args.dims.name().into(),
        numerics: numerics.name().into(),
        stage0: stage_name.into_inner().unwrap_or_else(PoisonError::into_inner),
        steps,
        duck_us: pond.duck_nanos as f64 / 1e3,
        ducks: args.ducks as usize,
        ports: args.ports as usize,
        mbit: args.mbit,
        host_mbit: args.host_mbit,
        hop_us: HOP as f64 / 1e3,
        context: args.context as usize + WARM,
        tokens: args.tokens as usize,
    };
    let card = (args.stage0 == PondStage::Cuda).then(|| taken(&card));
    let report = put_together(setting, &at, &taken(&waits), card.as_deref(), &logs, &seen, host_nodes)?;
    let text = if args.json { report.json() } else { report.table() };
    output::print(&text).map_err(Error::Output)
}

fn check(args: &PondBenchArgs) -> Result<(), Error> {
    let (ducks, ports) = (args.ducks as usize, args.ports as usize);
    if ports > ducks {
        return Err(Error::Length {
            what: "--ports",
            found: ports,
            allowed: format!("at most {ducks}, one for each duck"),
        });
    }
    if args.stage0 == PondStage::Cpu && args.dims == PondDims::DeepseekV32 {
        let what = "processors would need all of its weights: give --stage0 cuda, or --dims wide".into();
        return Err(Error::Modelled { what });
    }
    Ok(())
}

/// Sizes without the MTP layer: the answer is a serial one.
fn sizes(dims: PondDims) -> Dims {
    let sizes = match dims {
        PondDims::DeepseekV32 => Dims::deepseek_v32(),
        PondDims::Tiny => Dims { layers: 5, ..Dims::tiny() },
        PondDims::Wide => Dims {
            layers: 9,
            dense_layers: 1,
            intermediate: 256,
            heads: 2,
            q_lora: 128,
            kv_lora: 64,
            nope: 32,
            rope: 16,
            value: 32,
            index_heads: 2,
            index_dim: 32,
            index_topk: 64,
            vocab: 1024,
            max_positions: 4096,
            ..Dims::deepseek_v32()
        },
    };
    Dims { mtp_layers: 0, ..sizes }
}

/// A model of those sizes. Only the smallest one's weights are worth writing; the others' are made on the card, or nought.
fn open(args: &PondBenchArgs, dims: &Dims) -> Result<Model, Error> {
    let write = match args.dims {
        PondDims::Tiny => synthetic::write,
        PondDims::Wide | PondDims::DeepseekV32 => synthetic::write_hollow,
    };
    let mut model = super::synthetic::load(dims, write)?;
    share_one_unit(&mut model).map_err(|error| Error::Synthetic(Box::new(error)))?;
    Ok(model)
}

fn positions(args: &PondBenchArgs) -> usize {
    args.context as usize + WARM + args.tokens as usize + 1
}

/// The same in every run: nobody else is on these wires.
fn key() -> Key {
    Key::from_seed([42; 32])
}

fn taken<T: Clone>(shared: &Mutex<Vec<T>>) -> Vec<T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The threads of the modelled ducks.
struct Pond {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Log>>,
    /// By port, once the host's end is gone.
    seen: Vec<Arc<Mutex<Seen>>>,
    /// A duck's time for a step of one lane.
    duck_nanos: Nanos,
}

impl Pond {
    /// Starts them. Gives the host's ends and the rows of the pond's description, too.
    fn start(
        clock: Clock,
        args: &PondBenchArgs,
        model: &Model,
    ) -> Result<(Pond, Vec<remote::Port>, Vec<DuckSpec>), Error> {
        let (ducks, ports) = (args.ducks as usize, args.ports as usize);
        let slices = model.slices.as_ref().expect("`open` has made them");
        let unit_bytes = slices.layout().len() as u64;
        let units = (slices.slices() * slices.experts()) as u64;
        let share = units.div_ceil(ducks as u64) * slices.layers() as u64;
        let pace = match args.duck_us {
            Some(micros) => Pace::Step(u64::from(micros) * 1000),
            None => Pace::Bandwidth(args.duck_bandwidth),
        };
        let chosen = (model.dims.chosen * slices.slices()) as f64 / ducks as f64;
        let duck_nanos = match pace {
            Pace::Step(time) => time,
            Pace::Bandwidth(bytes) => (chosen * unit_bytes as f64 / bytes) as Nanos,
        };
        if duck_nanos > SLOWEST {
            let what = format!(
                "a duck would need {} s for a step: give a --duck-bandwidth of more GB/s",
                duck_nanos / 1_000_000_000
            );
            return Err(Error::Modelled { what });
        }
        let modelled = ducks::Model {
            mbit: args.mbit,
            host_mbit: args.host_mbit,
            hop: HOP,
            pace,
            unit_bytes,
            memory: 2 * share * unit_bytes.next_multiple_of(64) + (1 << 30),
            mtu: args.mtu as usize,
            roomy: std::thread::available_parallelism().is_ok_and(|cores| usize::from(cores) > 2 * ports),
        };
        let rows: Vec<DuckSpec> = (0..ducks)
            .map(|duck| DuckSpec {
                name: format!("duck-{duck}"),
                port: duck * ports / ducks,
                mac: None,
                memory: None,
                speed: 1.0,
            })
            .collect();
        let stop = Arc::new(AtomicBool::new(false));
        let mut pond = Pond { stop, threads: Vec::new(), seen: Vec::new(), duck_nanos };
        let mut ends = Vec::new();
        for port in 0..ports {
            let number = port as u8;
            let shown = Arc::new(Mutex::new(Seen::default()));
            pond.seen.push(Arc::clone(&shown));
            let (host, far) =
                self::wire::ends(clock, Mac([2, 0, 0, 0, number, 1]), modelled.mtu, args.host_mbit, shown);
            ends.push(remote::Port::new(format!("port-{port}"), Box::new(host)));
            let of_port = rows.iter().enumerate().filter(|(_, row)| row.port == port);
            let names: Vec<(String, Mac)> = of_port
                .map(|(duck, row)| (row.name.clone(), Mac([2, 0, 1, (duck >> 8) as u8, duck as u8, 2])))
                .collect();
            let (stop, public) = (Arc::clone(&pond.stop), key().public());
            let thread = std::thread::Builder::new()
                .name(format!("ducks-{port}"))
                .spawn(move || Domain::new(clock, modelled, far, &names, public).run(&stop));
            pond.threads.push(thread.map_err(|source| {
                Error::Engine(flock::FlockError::Thread { port: format!("port-{port}"), source }.into())
            })?);
        }
        Ok((pond, ends, rows))
    }

    /// Ends them; gives what each has seen.
    fn stop(&mut self) -> Vec<Log> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).map(|thread| thread.join().expect("a modelled duck does not panic")).collect()
    }
}

impl Drop for Pond {
    fn drop(&mut self) {
        self.stop();
    }
}

/// All of them are there and hold their share: nothing needs to be loaded.
fn wait_ready(flock: &mut Flock) -> Result<(), Error> {
    let remote = flock.as_remote().expect("it was made of links");
    remote.wait_ready(&mut |_| true).map_err(|error| Error::Engine(error.into()))?;
    let status = remote.status();
    match status.ducks.iter().find(|duck| duck.state != DuckState::Ready) {
        None => Ok(()),
        Some(duck) => Err(Error::Modelled {
            what: format!("{} is {}, expected ready: {}", duck.name, duck.state.name(), duck.note),
        }),
    }
}

/// Reads the prompt and makes the tokens. Gives the time of each, the prompt's one and the warm-up's included.
fn answer(engine: &mut Engine, args: &PondBenchArgs) -> Result<Vec<Duration>, Error> {
    let working = Interruptible::begin();
    let request = Request {
        prompt: super::random_tokens(args.context as usize, engine.dims().vocab),
        sampling: SamplingParams::default(),
        choice_index: 0,
        max_tokens: WARM + args.tokens as usize + 1,
        stop_tokens: Vec::new(),
        mtp: false,
    };
    let mut at = Vec::with_capacity(request.max_tokens);
    engine.generate(&request, &mut |event| {
        if let Event::Token(token) = event {
            at.push(token.at);
        }
        if working.is_raised() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if working.is_raised() { Err(Error::Interrupted) } else { Ok(at) }
}

/// Nodes of steps that had to be taken over, and units that the host computes by plan.
fn host_nodes(engine: &mut Engine) -> u64 {
    let status = engine.flock().as_remote().map(|remote| remote.status()).unwrap_or_default();
    status.take_overs + u64::from(status.host_units)
}

fn put_together(
    setting: Setting,
    at: &[Duration],
    waits: &[Wait],
    card: Option<&[[u64; 2]]>,
    logs: &[Log],
    seen: &[Seen],
    host_nodes: u64,
) -> Result<Report, Error> {
    if host_nodes > 0 {
        let what = format!(
            "nodes that the host had to compute or give to others: expected 0, found {host_nodes}; ducks this slow, or this machine this busy, \
             count as gone"
        );
        return Err(Error::Modelled { what });
    }
    let measured = setting.tokens * setting.steps;
    for (who, found) in logs
        .iter()
        .map(|log| ("a port", log.steps.len()))
        .chain(card.map(|card| ("the card", card.len())))
        .chain(seen.iter().map(|seen| ("a port's thread", seen.last.len())))
    {
        if found != waits.len() || found < measured {
            let what = format!(
                "steps seen by {who}: expected {} of which {measured} are measured, found {found}; if ducks have nothing to do in some steps, \
                 take fewer --ports or --ducks",
                waits.len()
            );
            return Err(Error::Modelled { what });
        }
    }
    let first = waits.len() - measured;
    let tokens: Vec<Nanos> =
        at[at.len() - setting.tokens - 1..].windows(2).map(|pair| (pair[1] - pair[0]).as_nanos() as Nanos).collect();
    let times = Times {
        tokens: &tokens,
        waits: &waits[first..],
        card: card.map(|card| &card[first..]),
        domains: logs.iter().map(|log| &log.steps[first..]).collect(),
        seen,
        first,
    };
    let sum = |of: fn(&Log) -> u64| logs.iter().map(of).sum::<u64>();
    let checks = Checks {
        host_nodes,
        lost: sum(|log| log.dropped),
        bad: sum(|log| log.bad),
        asked: sum(|log| log.asked),
        blocks: sum(|log| log.blocks),
        late: logs.iter().flat_map(|log| &log.steps[first..]).filter(|step| step.late > 0).count() as u64,
        late_us: logs
            .iter()
            .flat_map(|log| &log.steps[first..])
            .map(|step| step.late)
            .max()
            .unwrap_or(0)
            .div_ceil(1000),
    };
    Ok(Report::new(setting, &times, checks, Report::frames(logs, first)))
}
