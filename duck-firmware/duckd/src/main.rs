//! The program `duckd`: a [`Node`] from a command line, with signals and systemd around it.
#![forbid(unsafe_code)]

mod args;

use std::error::Error;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use clap::Parser;
use duckd::{Exit, Monitor, Node, Options, Stop};
use link::{Faulty, Link};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing_subscriber::filter::LevelFilter;
use wire::frame::ETHERTYPE;
use wire::message::Counter;

use crate::args::{Args, default_memory};

/// How often systemd is told how things are.
const STATUS_EVERY: Duration = Duration::from_secs(5);
/// Seed of `--faults`: the same faults in every run.
const FAULTS_SEED: u64 = 1;

fn main() -> ExitCode {
    let args = Args::parse();
    start_log(&args);
    match run(args) {
        Ok(Exit::Stopped) => ExitCode::SUCCESS,
        Ok(Exit::Reset { .. }) => {
            // All memory is given back by becoming the program anew.
            let error = Command::new("/proc/self/exe").args(std::env::args_os().skip(1)).exec();
            tracing::error!("cannot start afresh: {error}");
            ExitCode::FAILURE
        }
        Err(error) => {
            let mut text = error.to_string();
            let mut cause = error.source();
            while let Some(error) = cause {
                text.push_str(&format!(": {error}"));
                cause = error.source();
            }
            tracing::error!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn start_log(args: &Args) {
    let level = match i16::from(args.verbose) - i16::from(args.quiet) {
        ..=-2 => LevelFilter::ERROR,
        -1 => LevelFilter::WARN,
        0 => LevelFilter::INFO,
        1 => LevelFilter::DEBUG,
        2.. => LevelFilter::TRACE,
    };
    // A log that nobody can read any more must not end the duck: told on the same stream, the failure would panic.
    let log = tracing_subscriber::fmt().log_internal_errors(false);
    let log = log.with_writer(std::io::stderr).with_max_level(level).with_target(false);
    // The journal has its own times and no colours.
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        log.with_ansi(false).without_time().init();
    } else {
        log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init();
    }
}

fn run(args: Args) -> Result<Exit, Box<dyn Error>> {
    let mut link = args.link.open(ETHERTYPE, args.mtu)?;
    if let Some(faults) = args.faults {
        tracing::warn!("frames suffer {faults}");
        link = Box::new(Faulty::new(link, faults, FAULTS_SEED));
    }
    let options = options(&args, &*link);
    let (memory, cores, name) = (options.memory, options.cores, describe(&options.id));
    let described = link.describe();
    tracing::info!("{name} on {described}: taking {} MiB for blocks", memory >> 20);
    let mut node = Node::new(link, options)?;
    tracing::info!("{name} is ready: {} MiB for blocks, {cores} cores, {}", node.memory() >> 20, fp9_name());

    let stop = Stop::new();
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let (handle, stopper) = (signals.handle(), stop.clone());
    let catcher = thread::Builder::new().name("duckd-signals".into()).spawn(move || {
        if signals.forever().next().is_some() {
            stopper.trigger();
        }
    })?;
    let monitor = node.monitor();
    thread::Builder::new().name("duckd-status".into()).spawn(move || tell_systemd(&monitor))?;
    notify(&[NotifyState::Ready]);
    let exit = node.run(&stop);
    notify(&[if exit == Exit::Stopped { NotifyState::Stopping } else { NotifyState::Status("starting afresh") }]);
    handle.close();
    let _ = catcher.join();
    tracing::info!("{name} stops");
    Ok(exit)
}

fn options(args: &Args, link: &dyn Link) -> Options {
    let id = args.id.unwrap_or_else(|| {
        let mut id = [0; 16];
        let digits: String = link.mac().0.iter().map(|b| format!("{b:02x}")).collect();
        id[..12].copy_from_slice(digits.as_bytes());
        id
    });
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    Options {
        cores: args
            .cores
            .unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from).min(kernels::abi::MAX_CORES)),
        pin: args.pin.clone().map(|p| p.0),
        memory: args.memory.unwrap_or_else(|| default_memory(&meminfo, args.huge_pages.into())),
        lock: !args.no_lock,
        huge_pages: args.huge_pages.into(),
        scrub: (args.scrub > 0).then(|| Duration::from_secs(3_600 * u64::from(args.scrub))),
        ..Options::new(id, args.key)
    }
}

/// An identity as text.
fn describe(id: &[u8]) -> String {
    let len = id.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1);
    String::from_utf8_lossy(&id[..len]).into_owned()
}

fn fp9_name() -> &'static str {
    fp9::Isa::detect().name()
}

/// Tells systemd, if it started this program, that the network thread lives, and how things are.
fn tell_systemd(monitor: &Monitor) {
    let watchdog = sd_notify::watchdog_enabled();
    let every = watchdog.map_or(STATUS_EVERY, |limit| (limit / 3).min(STATUS_EVERY));
    let mut seen = 0;
    loop {
        let beats = monitor.beats();
        if beats != seen {
            seen = beats;
            let status = format!(
                "{} of {} blocks, {} steps",
                monitor.resident(),
                monitor.blocks(),
                monitor.counter(Counter::Steps)
            );
            notify(&[NotifyState::Watchdog, NotifyState::Status(&status)]);
        }
        thread::sleep(every);
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("systemd is not told: {error}");
    }
}
