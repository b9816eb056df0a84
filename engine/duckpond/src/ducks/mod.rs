//! Ducks behind links: `duckpond ducks`, and what every command does that has a pond compute.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flock::remote::discover;
use pond::Pond;

use crate::cli::{DucksArgs, DucksCommand};
use crate::error::Error;
use crate::output::{self, Output, Wanted};
use crate::signals::Interruptible;

mod adopt;
mod bars;
pub mod control;
mod lock;
mod open;
pub mod report;
mod wake;

pub use lock::Owner;
pub use open::{open, read};

use control::{Answer, Question};
use lock::Lock;
use report::{Duck, Report};

/// What goes wrong between this program and its ducks.
#[derive(Debug, thiserror::Error)]
pub enum DucksError {
    /// A command that needs a pond.
    #[error("name the pond's description by --pond FILE; `duckpond ducks adopt --link …` writes a first one")]
    NoPond,
    /// Nobody to write down.
    #[error("no duck answered: is duckd running, on the other end of this link, and with a link to this address?")]
    NobodyThere,
    /// Both ways of naming it.
    #[error("--pond and --link cannot be given together")]
    PondOrLink,
    /// A description without a key.
    #[error("{} names no secret key, so no duck would obey: make one by `duckpond key new FILE` and add key = \"FILE\"", path.display())]
    NoKey {
        /// The description.
        path: PathBuf,
    },
    /// A link that cannot be opened.
    #[error("port {port} ({link}): {reason}")]
    Link {
        /// The port.
        port: String,
        /// Its link.
        link: String,
        /// Why.
        reason: String,
    },
    /// The pond is in use.
    #[error("the pond is in use by {}: {}", owner_text(owner), way_out(owner))]
    Held {
        /// By whom, if that can be read.
        owner: Option<Owner>,
    },
    /// Lock or socket.
    #[error("cannot make {}: set DUCKPOND_RUNTIME_DIR to a folder that can be written", path.display())]
    Runtime {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A runtime folder of somebody else's.
    #[error("{} is no folder of this user's alone: set DUCKPOND_RUNTIME_DIR to one (mode 0700)", path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
    },
    /// The engine's socket.
    #[error("the running engine does not answer at {} (it may still be starting, or ending): try again in a moment", path.display())]
    Control {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What the engine answered.
    #[error("the running engine answers: {message}")]
    Answer {
        /// Its words.
        message: String,
    },
    /// A description that cannot be written.
    #[error("writing {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A generated description.
    #[error("{} is JSON, made by another program: add the rows to what that program reads", path.display())]
    Json {
        /// The file.
        path: PathBuf,
    },
    /// Nobody to wake.
    #[error("{duck}: {reason}")]
    Wake {
        /// The duck.
        duck: String,
        /// What keeps it from being woken, and what to do.
        reason: &'static str,
    },
    /// Images that ducks boot out of.
    #[error(transparent)]
    Netboot(#[from] crate::netboot::NetbootError),
    /// Only a running engine can.
    #[error("no engine runs on this pond, so nobody can reset its ducks or turn them off: start one first")]
    NotRunning,
}

fn owner_text(owner: &Option<Owner>) -> String {
    match owner {
        Some(owner) => format!("process {} ({})", owner.pid, crate::error::one_line(&owner.command)),
        None => "another process".into(),
    }
}

/// What to do where somebody else has the pond.
fn way_out(owner: &Option<Owner>) -> String {
    match owner.as_ref().and_then(|owner| owner.url.as_deref()) {
        Some(url) => {
            let url = crate::error::one_line(url);
            format!("have that answer, by `duckpond generate --url {url} PROMPT` or `duckpond chat --url {url}`")
        }
        None => "end that, or ask it by `duckpond ducks`".into(),
    }
}

/// Runs `duckpond ducks`.
///
/// # Errors
/// A faulty description, links that cannot be opened, an engine that does not answer.
pub fn run(args: &DucksArgs, pond: Option<&Path>) -> Result<(), Error> {
    match &args.what {
        Some(DucksCommand::Adopt(args)) => adopt::run(args, pond),
        Some(DucksCommand::Reset(args)) => {
            tell(Question::Reset { duck: args.duck.clone() }, pond.ok_or(DucksError::NoPond)?)
        }
        Some(DucksCommand::Off(args)) => {
            tell(Question::Off { duck: args.duck.clone() }, pond.ok_or(DucksError::NoPond)?)
        }
        Some(DucksCommand::Wake(args)) => wake::run(&args.duck, pond.ok_or(DucksError::NoPond)?),
        None => show(args, pond.ok_or(DucksError::NoPond)?),
    }
}

fn tell(question: Question, file: &Path) -> Result<(), Error> {
    let (_, key) = read(file)?;
    let (_, socket) = lock::paths(&key.public())?;
    match Lock::try_once(&key.public()) {
        Ok(_) => Err(DucksError::NotRunning.into()),
        Err(DucksError::Held { .. }) => {
            control::ask(&socket, &question)?;
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

fn show(args: &DucksArgs, file: &Path) -> Result<(), Error> {
    let (description, key) = read(file)?;
    let speed = |name: &str| description.ducks.iter().find(|duck| duck.name == name).map(|duck| duck.link);
    let every = Duration::from_secs_f64(args.every);
    let interruptible = Interruptible::begin();
    loop {
        let report = now(&description, &key)?;
        let text = match args.json {
            true => serde_json::to_string(&report).unwrap_or_default() + "\n",
            false => report.table(&speed),
        };
        if !args.watch {
            return output::print(&text).map_err(Error::Output);
        }
        let mut stdout = Output::stdout();
        // Home, the text, and nothing of the text before.
        let clear = if args.json { "" } else { "\x1b[H\x1b[2J" };
        if stdout.piece(clear).and_then(|_| stdout.piece(&text)).map_err(Error::Output)? == Wanted::No {
            return Ok(());
        }
        let until = std::time::Instant::now() + every;
        while std::time::Instant::now() < until {
            if interruptible.is_raised() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// How the pond is: as the engine that holds it says, else as its ducks announce themselves.
fn now(description: &Pond, key: &wire::key::Key) -> Result<Report, Error> {
    let (_, socket) = lock::paths(&key.public())?;
    match Lock::try_once(&key.public()) {
        // Let go at once: whoever wants to start an engine must not wait for somebody who only looks.
        Ok(lock) => drop(lock),
        Err(DucksError::Held { .. }) => match control::ask(&socket, &Question::Ducks)? {
            Answer::Ducks(report) => return Ok(report),
            _ => return Err(DucksError::Answer { message: "something else than ducks".into() }.into()),
        },
        Err(error) => return Err(error.into()),
    }
    announced(description)
}

/// Looks on all links for a moment.
fn announced(description: &Pond) -> Result<Report, Error> {
    let mut ports = open::links(description, None, false)?;
    let found: Vec<_> = std::thread::scope(|scope| {
        let look = |port: &mut flock::remote::Port| discover(port, Duration::from_millis(600));
        let looks: Vec<_> = ports.iter_mut().map(|port| scope.spawn(move || look(port))).collect();
        looks.into_iter().map(|look| look.join().unwrap_or_default()).collect()
    });
    let mut report = Report::default();
    for duck in &description.ducks {
        report.ducks.push(Duck {
            name: duck.name.clone(),
            port: duck.port.clone(),
            state: "absent".into(),
            ..Duck::default()
        });
    }
    for (port, found) in description.ports.iter().zip(&found) {
        for duck in found {
            let row = description.find(&duck.announce.id, pond::Mac(duck.mac.0));
            let at = row.and_then(|row| description.ducks.iter().position(|duck| duck.name == row.name));
            match (at, row) {
                (Some(at), Some(row)) if row.port == port.name => {
                    let shown = &mut report.ducks[at];
                    shown.state = if duck.announce.lease > 0 { "held" } else { "free" }.into();
                    shown.mac = Some(duck.mac.to_string());
                    (shown.memory, shown.link) = (duck.announce.memory, duck.announce.link.into());
                    shown.resident = duck.announce.resident;
                }
                _ => report.strangers.push(report::Stranger {
                    name: duck.name.clone(),
                    port: port.name.clone(),
                    mac: duck.mac.to_string(),
                    expected_on: row.map(|row| row.port.clone()),
                }),
            }
        }
    }
    Ok(report)
}
