//! The control socket of a running engine: one question a connection, a line of JSON each way.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flock::remote::PondHandle;
use serde::{Deserialize, Serialize};

use super::DucksError;
use super::report::Report;

/// Longest question, and longest answer.
const MOST_QUESTION: usize = 4 << 10;
const MOST_BYTES: u64 = 1 << 22;
/// How long the other side may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// What may be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub enum Question {
    /// How is the pond?
    Ducks,
    /// Tell a duck to start afresh.
    Reset {
        /// Its name.
        duck: String,
    },
    /// Tell a duck to power off.
    Off {
        /// Its name.
        duck: String,
    },
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// So.
    Ducks(Report),
    /// Done.
    Done,
    /// Why not.
    Error(String),
}

/// Answers until it is dropped.
#[derive(Debug)]
pub struct Control {
    stop: Arc<AtomicBool>,
    socket: std::path::PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Listens at `socket`.
    ///
    /// # Errors
    /// A socket that cannot be made.
    pub fn start(socket: &Path, pond: PondHandle) -> Result<Control, DucksError> {
        let failed = |source| DucksError::Runtime { path: socket.into(), source };
        let listener = UnixListener::bind(socket).map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let serve = move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                match stream {
                    // Whoever does not wait for the answer does not want it.
                    Ok(stream) => _ = answer(stream, &pond),
                    // Too many open files, say; it must not spin.
                    Err(_) => std::thread::sleep(Duration::from_millis(100)),
                }
            }
        };
        let thread = std::thread::Builder::new().name("control".into()).spawn(serve).map_err(failed)?;
        Ok(Control { stop, socket: socket.into(), thread: Some(thread) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A connection ends the wait for one.
        if UnixStream::connect(&self.socket).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

fn answer(stream: UnixStream, pond: &PondHandle) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let line = question(&stream)?;
    let answer = match serde_json::from_str(&line) {
        Ok(Question::Ducks) => Answer::Ducks(Report::from(&pond.status())),
        Ok(Question::Reset { duck }) => tell(pond, &duck, PondHandle::reset),
        Ok(Question::Off { duck }) => tell(pond, &duck, PondHandle::power_off),
        Err(error) => Answer::Error(format!("not a question: {error}")),
    };
    let mut text = serde_json::to_vec(&answer).unwrap_or_default();
    text.push(b'\n');
    (&stream).write_all(&text)
}

fn tell(pond: &PondHandle, duck: &str, what: fn(&PondHandle, usize) -> bool) -> Answer {
    match pond.status().ducks.iter().position(|d| d.name == duck) {
        Some(at) if what(pond, at) => Answer::Done,
        Some(_) => Answer::Error(format!("{duck} was never heard of, or the engine is ending")),
        None => Answer::Error(format!("there is no duck {duck:?}")),
    }
}

/// A line, as long as it comes within [`PATIENCE`] as a whole.
fn question(mut stream: &UnixStream) -> std::io::Result<String> {
    let until = Instant::now() + PATIENCE;
    let (mut line, mut part) = (Vec::new(), [0; 1024]);
    while !line.ends_with(b"\n") && line.len() < MOST_QUESTION && Instant::now() < until {
        match stream.read(&mut part)? {
            0 => break,
            len => line.extend_from_slice(&part[..len]),
        }
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// Asks the engine that listens at `socket`.
///
/// # Errors
/// Nobody there, no answer, or the answer's own error.
pub fn ask(socket: &Path, question: &Question) -> Result<Answer, DucksError> {
    let failed = |source| DucksError::Control { path: socket.into(), source };
    let stream = UnixStream::connect(socket).map_err(failed)?;
    stream.set_read_timeout(Some(2 * PATIENCE)).map_err(failed)?;
    let mut text = serde_json::to_vec(question).unwrap_or_default();
    text.push(b'\n');
    (&stream).write_all(&text).map_err(failed)?;
    let mut line = String::new();
    BufReader::new((&stream).take(MOST_BYTES)).read_line(&mut line).map_err(failed)?;
    match serde_json::from_str(&line) {
        Ok(Answer::Error(message)) => Err(DucksError::Answer { message }),
        Ok(answer) => Ok(answer),
        Err(error) => Err(DucksError::Answer { message: format!("not an answer: {error}") }),
    }
}
