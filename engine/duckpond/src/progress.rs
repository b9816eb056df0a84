//! Progress, and only of what takes longer than [`PATIENCE`]; but for bytes, on a terminal only.

use std::io::{IsTerminal, stderr};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use model::converted::{Phase, Progress};

use crate::format::bytes;
use crate::output::say;

/// How long nothing is shown.
const PATIENCE: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(120);

/// Runs `work`, under a spinner with `message` if it takes long.
pub fn spinner<T>(message: &'static str, work: impl FnOnce() -> T) -> T {
    if !stderr().is_terminal() {
        return work();
    }
    let (done, wait) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if wait.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                let bar = ProgressBar::new_spinner().with_message(message);
                bar.enable_steady_tick(TICK);
                // Ends when the other side is dropped.
                let _ = wait.recv();
                bar.finish_and_clear();
            }
        });
        let result = work();
        drop(done);
        result
    })
}

/// Reading a prompt.
#[derive(Debug)]
pub struct PrefillBar {
    began: Instant,
    bar: Option<ProgressBar>,
    terminal: bool,
}

impl PrefillBar {
    /// Begins now.
    pub fn begin() -> PrefillBar {
        PrefillBar { began: Instant::now(), bar: None, terminal: stderr().is_terminal() }
    }

    /// So many tokens of so many are read.
    pub fn update(&mut self, done: usize, total: usize) {
        if !self.terminal || self.began.elapsed() < PATIENCE || done >= total && self.bar.is_none() {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("reading the prompt {bar:30} {pos}/{len} tokens, {eta} to go");
            ProgressBar::new(total as u64).with_style(style.expect("the template is valid")).with_elapsed(PATIENCE)
        });
        bar.set_position(done as u64);
    }

    /// Removes the bar, so that text can follow.
    pub fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// How long a line of [`ByteBar`] holds where there is no terminal.
const BETWEEN_LINES: Duration = Duration::from_secs(5);

/// Bytes being written or checked: a bar on a terminal, else a line every few seconds. Shared by the threads that do it.
#[derive(Debug)]
pub struct ByteBar {
    began: Instant,
    terminal: bool,
    shown: Mutex<Shown>,
}

#[derive(Debug, Default)]
struct Shown {
    bar: Option<ProgressBar>,
    told: Option<Instant>,
    most: u64,
}

impl ByteBar {
    /// Begins now.
    pub fn begin() -> ByteBar {
        ByteBar { began: Instant::now(), terminal: stderr().is_terminal(), shown: Mutex::default() }
    }

    /// How far it is. Threads may report out of order.
    pub fn update(&self, progress: Progress) {
        // Whoever is showing something will do: the next report is near.
        let Ok(mut shown) = self.shown.try_lock() else { return };
        shown.most = shown.most.max(progress.done);
        if self.began.elapsed() < PATIENCE {
            return;
        }
        let done = shown.most;
        if self.terminal {
            let bar = shown.bar.get_or_insert_with(|| {
                let template = "{msg} {bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} to go";
                let style = ProgressStyle::with_template(template).expect("the template is valid");
                // What was there before would make a rate that nobody reaches.
                let bar = ProgressBar::new(progress.total).with_style(style).with_position(progress.before);
                bar.reset_eta();
                bar
            });
            bar.set_message(phase_name(progress.phase));
            bar.set_position(done);
        } else if shown.told.is_none_or(|told| told.elapsed() >= BETWEEN_LINES) {
            shown.told = Some(Instant::now());
            say(bytes_line(progress, done, self.began.elapsed()));
        }
    }

    /// Removes the bar, so that text can follow.
    pub fn clear(&self) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bar) = shown.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Host => "the host's files",
        Phase::Slices => "slices",
        Phase::Verify => "verifying",
    }
}

fn bytes_line(progress: Progress, done: u64, time: Duration) -> String {
    let Progress { phase, total, before, .. } = progress;
    let rate = done.saturating_sub(before) as f64 / time.as_secs_f64().max(1e-3);
    let rest = total.saturating_sub(done) as f64 / rate.max(1.0);
    format!("{}: {} of {}, {}/s, {rest:.0} s to go", phase_name(phase), bytes(done), bytes(total), bytes(rate as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_does_not_count_what_was_there_before() {
        let progress = Progress { phase: Phase::Slices, done: 0, total: 40_000_000, before: 10_000_000 };
        let line = bytes_line(progress, 30_000_000, Duration::from_secs(4));
        assert_eq!(line, "slices: 30.0 MB of 40.0 MB, 5.0 MB/s, 2 s to go");
    }
}
