//! Ctrl-C and the other requests to end: they stop what is being made if something can be stopped, else end the program, and in
//! no case leave anything temporary behind.
//!
//! While an [`Interruptible`] lives, the first signal only raises a flag that the work looks at; a second one, or one at any other
//! time, ends the process at once with the exit code 128 + its number. What must not outlive the process is made by
//! [`temporary`]. At its prompt `chat` reads Ctrl-C from the terminal itself.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

static WORKING: AtomicBool = AtomicBool::new(false);
/// The signal that came while something could be stopped; 0: none.
static RAISED: AtomicI32 = AtomicI32::new(0);
/// Whoever holds it makes or removes something temporary, or ends the process.
static LEFT: Mutex<Left> = Mutex::new(Left { paths: Vec::new(), words: None });

/// What is left to do when the process is ended from outside.
struct Left {
    paths: Vec<PathBuf>,
    words: Option<&'static str>,
}

fn left() -> MutexGuard<'static, Left> {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts to listen. A hang-up that whoever started the program has it ignore, as nohup does, stays ignored.
pub fn listen() {
    let wanted: &[i32] = if hangup_is_ignored() { &[SIGINT, SIGTERM] } else { &[SIGINT, SIGTERM, SIGHUP] };
    let listening = Signals::new(wanted).and_then(|mut signals| {
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in &mut signals {
                if !WORKING.load(Ordering::SeqCst) || RAISED.swap(signal, Ordering::SeqCst) != 0 {
                    end(signal);
                }
            }
        })
    });
    if let Err(error) = listening {
        tracing::warn!("Ctrl-C will end the program at once: {error}");
    }
}

/// Linux says which signals are ignored, as bits from 0 for signal 1. Elsewhere nothing is known.
fn hangup_is_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bits = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).is_some_and(|bits| bits >> (SIGHUP - 1) & 1 == 1)
}

fn end(signal: i32) -> ! {
    // Never given back: nothing new is made meanwhile, and `settle` does not let the main thread end before.
    let left = left();
    for path in &left.paths {
        remove(path);
    }
    if let Some(words) = left.words {
        crate::output::say(words);
    }
    std::process::exit(128 + signal)
}

/// Other threads may still be writing files into a folder that goes away; each can make one attempt fail.
fn remove(path: &Path) {
    for _ in 0..100 {
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => std::thread::yield_now(),
            _ => return,
        }
    }
}

/// Waits if a signal is ending the process: its exit code and its clearing up count.
pub fn settle() {
    drop(left());
}

/// The signal that stopped the last work.
fn last_signal() -> i32 {
    match RAISED.load(Ordering::SeqCst) {
        0 => SIGINT,
        signal => signal,
    }
}

/// The exit code after that signal: 128 + its number, 130 for Ctrl-C.
pub fn exit_code() -> u8 {
    u8::try_from(128 + last_signal()).unwrap_or(u8::MAX)
}

/// Whether it asked for more than to stop that work.
pub fn ends_the_program() -> bool {
    last_signal() != SIGINT
}

/// Something on disk that goes away even if a signal ends the process.
#[derive(Debug)]
pub struct Temporary(PathBuf);

/// Has `make` make something at the path that it returns. Removing it in the usual course stays the caller's.
///
/// # Errors
/// Those of `make`.
pub fn temporary<T, E>(make: impl FnOnce() -> Result<(T, PathBuf), E>) -> Result<(T, Temporary), E> {
    let mut left = left();
    let (made, path) = make()?;
    left.paths.push(path.clone());
    Ok((made, Temporary(path)))
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let mut left = left();
        if let Some(at) = left.paths.iter().position(|path| *path == self.0) {
            left.paths.swap_remove(at);
        }
    }
}

/// While it lives, a signal that ends the process has this line told.
#[derive(Debug)]
pub struct LastWords(());

impl LastWords {
    /// From here on.
    pub fn begin(words: &'static str) -> LastWords {
        left().words = Some(words);
        LastWords(())
    }
}

impl Drop for LastWords {
    fn drop(&mut self) {
        left().words = None;
    }
}

/// Work that Ctrl-C can stop in an orderly way.
#[derive(Debug)]
pub struct Interruptible(());

impl Interruptible {
    /// From here on a signal raises the flag.
    pub fn begin() -> Interruptible {
        RAISED.store(0, Ordering::SeqCst);
        WORKING.store(true, Ordering::SeqCst);
        Interruptible(())
    }

    /// Whether a signal came.
    pub fn is_raised(&self) -> bool {
        RAISED.load(Ordering::SeqCst) != 0
    }
}

impl Drop for Interruptible {
    fn drop(&mut self) {
        WORKING.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_is_listed_until_its_guard_goes() {
        let path = PathBuf::from("/nowhere/of this test");
        let listed = || left().paths.contains(&path);
        let (_, guard) = temporary(|| Ok::<_, ()>(((), path.clone()))).expect("it made nothing");
        assert!(listed());
        drop(guard);
        assert!(!listed());
        assert!(temporary(|| Err::<((), PathBuf), _>(())).is_err());
        assert!(!listed());
    }

    #[test]
    fn a_folder_with_files_is_removed() {
        let folder = tempfile::tempdir().expect("a folder for a test").keep();
        fs::write(folder.join("shard"), "x").expect("the folder is new");
        remove(&folder);
        assert!(!folder.exists());
    }
}
