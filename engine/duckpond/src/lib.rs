//! The program `duckpond`: command line, settings, and what a person sees.
//!
//! [`run`] is the whole of it; the modules are public for its tests only. Text becomes tokens and back here, everything between
//! belongs to the crate `decode`. Standard output carries results alone (the answer, a table), standard error everything else,
//! and no failure is more than one line there.

#![forbid(unsafe_code)]

pub mod answer;
pub mod bench;
mod chat;
pub mod cli;
mod convert;
mod doctor;
mod ducks;
pub mod error;
pub mod format;
mod generate;
mod host_setup;
mod inspect;
mod key;
mod limited;
mod loaded;
mod logging;
mod model_folder;
pub mod netboot;
mod output;
mod pond_check;
mod pond_switch;
mod progress;
pub mod prompt;
mod provenance;
mod remote;
mod serve;
pub mod settings;
mod sign;
mod signals;
pub mod trace;
mod verify;

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use crate::cli::{BenchArgs, BenchCommand, Cli, Command, PondArgs, PondCommand};
use crate::error::{Error, USAGE};
use crate::output::say;
use crate::settings::{Environment, Merged};

/// Runs the program with these arguments, the first of which is its name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    install_panic_hook();
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let typed: Vec<String> = arguments.iter().map(|argument| error::one_line(&argument.to_string_lossy())).collect();
    let code = match Cli::try_parse_from(arguments) {
        Err(error) => tell_usage(&error, &typed),
        Ok(cli) => match execute(&cli.command) {
            Ok(()) => error::DONE,
            Err(error) => {
                // If a signal is ending the process, what failed by that is no news.
                signals::settle();
                tell(&error, &typed);
                error.exit_code()
            }
        },
    };
    signals::settle();
    ExitCode::from(code)
}

fn tell(error: &Error, typed: &[String]) {
    if !matches!(error, Error::Interrupted) {
        say(format_args!("duckpond: {}", error::without_long_arguments(&error.line(), typed)));
    }
}

fn execute(command: &Command) -> Result<(), Error> {
    let environment = Environment::of_process();
    let merged = Merged::read(command.config_file(), &environment, command.flags())?;
    let mut settings = merged.resolve()?;
    logging::start(&settings.log, &environment);
    settings.limit_threads();
    for name in environment.unknown_variables() {
        tracing::warn!("the environment variable {name} means nothing to duckpond");
    }
    // A server ends in its own way.
    if !matches!(command, Command::Serve(_)) {
        signals::listen();
    }
    match command {
        Command::Generate(args) => generate::run(args, &settings),
        Command::Chat(args) => chat::run(args, &settings, &environment),
        Command::Inspect(args) => inspect::run(args.checkpoint.as_deref(), &settings),
        Command::Convert(args) => convert::run(args, &settings),
        Command::Verify(args) => verify::run(&args.folder, &settings),
        Command::Bench(BenchArgs { what: Some(BenchCommand::Kernels(args)), .. }) => {
            bench::kernels::run(args, &settings)
        }
        Command::Bench(BenchArgs { what: Some(BenchCommand::Pond(args)), .. }) => bench::pond::run(args, &settings),
        Command::Bench(BenchArgs { what: Some(BenchCommand::Serve(args)), .. }) => bench::serving::run(args, &settings),
        Command::Bench(BenchArgs { what: Some(BenchCommand::Stage0(args)), .. }) => bench::stage0::run(args, &settings),
        Command::Doctor(_) => doctor::run(&settings),
        Command::Bench(args) => bench::run(args, &settings),
        Command::Config(_) => output::print(&settings::show(&merged)).map_err(Error::Output),
        Command::Ducks(args) => ducks::run(args, settings.pond.as_deref()),
        Command::Pond(PondArgs { what: PondCommand::Check(args) }) => pond_check::run(&args.file),
        Command::Pond(PondArgs { what: PondCommand::Switch(args) }) => pond_switch::run(args),
        Command::Key(args) => key::run(&args.what),
        Command::Sign(args) => sign::run(args),
        Command::Netboot(args) => netboot::run(args, settings.pond.as_deref()),
        Command::HostSetup(args) => host_setup::run(args, &settings),
        Command::Provenance(args) => provenance::run(args, settings.pond.as_deref()),
        Command::Serve(args) => serve::run(args, &settings),
    }
}

/// Help and version go to standard output; a mistake is one line on standard error.
fn tell_usage(error: &clap::Error, typed: &[String]) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => match error.print() {
            Err(source) if source.kind() != io::ErrorKind::BrokenPipe => {
                tell(&Error::Output(source), typed);
                error::FAILURE
            }
            _ => error::DONE,
        },
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // Standard error; if nobody listens there, nobody misses it.
            let _ = error.print();
            USAGE
        }
        _ => {
            tell(&Error::CommandLine { message: cli::one_line(error) }, typed);
            USAGE
        }
    }
}

/// A panic is a mistake in this program. It is told in one line; with `RUST_BACKTRACE` also where it happened.
fn install_panic_hook() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0") {
            return usual(panic);
        }
        let message = panic.payload_as_str().unwrap_or("no message");
        let place = panic.location().map(|at| format!(" at {}:{}", at.file(), at.line())).unwrap_or_default();
        let line = error::one_line(&format!("duckpond: internal error{place}: {message}; please report this"));
        say(line);
    }));
}
