//! What systemd is told: readiness, a line of status, that the engine is alive, that a reload or a stop is under way.
//!
//! Outside systemd all of it does nothing. The watchdog is fed by the scheduler's thread alone, between steps and while idle, so that
//! a stuck engine is noticed although the HTTP side still answers. That thread, loading included, never waits for systemd: what it says goes
//! through another one, in order, and is dropped if that cannot keep up.

use std::sync::Mutex;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// While weights load, the start may take so much longer, told again and again.
const EXTEND_BY: Duration = Duration::from_secs(60);
/// Status lines come no faster.
const BETWEEN_LINES: Duration = Duration::from_secs(1);

/// Messages of the engine's thread on their way: more than a start has percents, so none of these is dropped.
const MOST_QUEUED: usize = 256;
/// How long a failure waits until systemd has heard of it: the process ends then.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The connection to systemd, if there is one.
#[derive(Debug, Default)]
pub struct Systemd {
    active: bool,
    /// How often the watchdog wants to hear something.
    watchdog: Option<Duration>,
    told: Mutex<Told>,
    queue: Option<SyncSender<Said>>,
}

/// What the engine's thread says.
#[derive(Debug)]
enum Said {
    Alive,
    Status(String),
    Loading(u8),
    Ready,
    /// Why, and who waits until it is told.
    Failed(String, SyncSender<()>),
}

#[derive(Debug, Default)]
struct Told {
    fed: Option<Instant>,
    line: Option<Instant>,
    text: String,
}

impl Systemd {
    /// As the environment says.
    pub fn of_process() -> Systemd {
        let active = std::env::var_os("NOTIFY_SOCKET").is_some();
        let watchdog = sd_notify::watchdog_enabled().map(|limit| limit / 4);
        let queue = if active { messenger() } else { None };
        Systemd { active, watchdog, told: Mutex::default(), queue }
    }

    fn tell(&self, states: &[NotifyState<'_>]) {
        if self.active {
            notify(states);
        }
    }

    /// Passes something on in order, unless too much waits already.
    fn queue(&self, said: Said) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.try_send(said).is_ok())
    }

    /// Weights are loading.
    pub fn loading(&self, percent: u8) {
        self.queue(Said::Loading(percent));
    }

    /// Requests can be answered.
    pub fn ready(&self) {
        // This one must not be lost.
        if !self.queue(Said::Ready) {
            self.tell(&READY);
        }
    }

    /// There will be no more answers; the process is about to end with an exit code that says so.
    pub fn failed(&self, reason: &str) {
        let (told, wait) = sync_channel(1);
        if self.queue(Said::Failed(format!("failed: {reason}"), told)) {
            let _ = wait.recv_timeout(LAST_WORDS);
        }
    }

    /// A reload begins; [`ready`](Self::ready) ends it.
    pub fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.tell(&[NotifyState::Reloading, now]),
            Err(error) => tracing::warn!("cannot tell systemd the time: {error}"),
        }
    }

    /// The server ends, at the latest after `limit`.
    pub fn stopping(&self, limit: Duration) {
        let extend = u32::try_from((limit + Duration::from_secs(10)).as_micros()).unwrap_or(u32::MAX);
        let states = [NotifyState::Stopping, NotifyState::Status("stopping"), NotifyState::ExtendTimeoutUsec(extend)];
        self.tell(&states);
    }

    /// The engine's thread is alive; `line` says what it does.
    pub fn alive(&self, line: impl FnOnce() -> String) {
        let Some(queue) = &self.queue else { return };
        let now = Instant::now();
        let Ok(mut told) = self.told.lock() else { return };
        if let Some(every) = self.watchdog
            && told.fed.is_none_or(|fed| now - fed >= every)
        {
            told.fed = Some(now);
            let _ = queue.try_send(Said::Alive);
        }
        if told.line.is_none_or(|at| now - at >= BETWEEN_LINES) {
            told.line = Some(now);
            let line = line();
            if line != told.text {
                told.text.clone_from(&line);
                let _ = queue.try_send(Said::Status(line));
            }
        }
    }
}

const READY: [NotifyState<'static>; 2] = [NotifyState::Ready, NotifyState::Status("ready")];

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot tell systemd: {error}");
    }
}

/// A thread that passes on what the engine's thread says.
fn messenger() -> Option<SyncSender<Said>> {
    let (queue, messages) = sync_channel(MOST_QUEUED);
    let thread = std::thread::Builder::new().name("systemd".into()).spawn(move || {
        for said in messages {
            match said {
                Said::Alive => notify(&[NotifyState::Watchdog]),
                Said::Status(line) => notify(&[NotifyState::Status(&line)]),
                Said::Loading(percent) => {
                    let line = format!("loading the model: {percent} %");
                    let extend = u32::try_from(EXTEND_BY.as_micros()).unwrap_or(u32::MAX);
                    notify(&[NotifyState::ExtendTimeoutUsec(extend), NotifyState::Status(&line)]);
                }
                Said::Ready => notify(&READY),
                Said::Failed(line, told) => {
                    notify(&[NotifyState::Status(&line)]);
                    let _ = told.send(());
                }
            }
        }
    });
    if let Err(error) = &thread {
        tracing::warn!("systemd will not be told that the engine is alive: {error}");
    }
    thread.is_ok().then_some(queue)
}
