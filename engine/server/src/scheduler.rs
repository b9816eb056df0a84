//! The thread that owns the backend: it loads it, answers one job after the other, and tells systemd that it is alive.
//!
//! Everything else (sockets, requests, lists) runs elsewhere and never waits for it: a request leaves a [`Task`] in the queue and
//! listens to a channel. When nobody listens any more, a waiting task is dropped and a running one ends at its next event.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use crate::answer::{Answer, Piece};
use crate::backend::{Backend, BoxError, Event, Failure, Finish, Job, PondSource, Stats, Token};
use crate::choose::{LogProb, Logits};
use crate::metrics::Metrics;
use crate::pond::PondStatus;
use crate::queue::FairQueue;
use crate::systemd::Systemd;

/// How often the thread looks around while there is nothing to do.
const TICK: Duration = Duration::from_millis(250);
/// How often systemd hears that the model is still loading.
const LOADING_TICK: Duration = Duration::from_secs(10);
/// Loading that has not come on for so long is stuck: systemd hears nothing more of it, so that its start time-out holds.
const STUCK: Duration = Duration::from_secs(600);

/// So many clients may wait at once, however short the queue is.
const LEAST_CLIENTS: usize = 16;

/// What a request hears of its task.
#[derive(Debug)]
pub enum Update {
    /// The prompt has been read so far.
    Prefill {
        /// So many tokens.
        done: usize,
        /// Of so many.
        total: usize,
    },
    /// A token was chosen.
    Token(Written),
    /// The answer is complete.
    Done(Done),
    /// There is no answer, or not the rest of it.
    Failed(TaskError),
}

/// A token and what it made of the answer.
#[derive(Debug)]
pub struct Written {
    /// The token.
    pub token: Token,
    /// What can be shown now; often nothing.
    pub pieces: Vec<Piece>,
    /// Its probability, if that was asked for and it is no reasoning.
    pub logprob: Option<LogProb>,
}

/// The end of an answer.
#[derive(Debug)]
pub struct Done {
    /// What was held back until now.
    pub pieces: Vec<Piece>,
    /// Why it ended.
    pub reason: EndReason,
    /// Figures; output tokens after a stop string are not among them.
    pub stats: Stats,
    /// Tokens of the reasoning.
    pub reasoning_tokens: usize,
}

/// Why an answer ended, as an API says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The model's end, or a stop string.
    Stop,
    /// No more tokens.
    Length,
    /// The model called tools.
    ToolCalls,
}

impl EndReason {
    /// The API's word.
    pub fn name(self) -> &'static str {
        match self {
            EndReason::Stop => "stop",
            EndReason::Length => "length",
            EndReason::ToolCalls => "tool_calls",
        }
    }
}

/// Why a task brought no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// Its time was up.
    #[error("the request took longer than {limit} s, the server's limit")]
    TimedOut {
        /// In seconds.
        limit: u64,
    },
    /// The server stops.
    #[error("the server is stopping; try again in a while")]
    Stopping,
    /// The backend refused the request.
    #[error("{0}")]
    Refused(String),
    /// The backend failed.
    #[error("the answer could not be computed: {0}")]
    Failed(String),
}

/// Why a task was not taken on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// The model is not there yet.
    #[error("the model is being loaded ({percent} %); try again in a while")]
    Loading {
        /// How far.
        percent: u8,
    },
    /// Too many wait, and some of them are the client's own.
    #[error("{waiting} requests are waiting already, at most {limit} may; try again in a while")]
    Full {
        /// How many.
        waiting: usize,
        /// How many may.
        limit: usize,
    },
    /// The server stops.
    #[error("the server is stopping; try again in a while")]
    Stopping,
    /// There will be no model.
    #[error("the model failed: {0}")]
    Broken(String),
}

/// One answer wanted.
pub struct Task {
    /// For whom; clients take turns.
    pub client: Arc<str>,
    /// What to compute.
    pub job: Job,
    /// What becomes of its tokens.
    pub answer: Answer,
    /// Where logits are kept, and how many of the likeliest tokens are wanted.
    pub logprobs: Option<(Logits, usize)>,
    /// Who listens.
    pub listener: UnboundedSender<(usize, Update)>,
    /// Which of the answers of its request.
    pub index: usize,
    /// When it is too late, and how long that is in seconds.
    pub deadline: Option<(Instant, u64)>,
    /// When it came.
    pub since: Instant,
}

/// How busy the scheduler is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Load {
    /// Tasks waiting.
    pub waiting: usize,
    /// Tasks being answered.
    pub running: usize,
    /// The model is loaded.
    pub ready: bool,
    /// How far loading is, 0 to 100.
    pub percent: u8,
    /// No new tasks are taken.
    pub stopping: bool,
    /// Why there is no model.
    pub broken: Option<String>,
}

/// A task that waits.
struct Queued {
    task: Task,
    /// Whether any answer of its request has begun; shared by all of them.
    begun: Arc<AtomicBool>,
}

#[derive(Default)]
struct State {
    queue: FairQueue<Queued>,
    running: bool,
    ready: bool,
    /// How far loading is, 0 to 1, and since when.
    loaded: f32,
    moved: Option<Instant>,
    percent: u8,
    stopping: bool,
    broken: Option<String>,
    pond: Option<Arc<dyn PondSource>>,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    /// Ends what runs.
    abort: AtomicBool,
    changed: watch::Sender<()>,
    most_waiting: usize,
    metrics: Arc<Metrics>,
    systemd: Arc<Systemd>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.wake.notify_all();
        self.changed.send_replace(());
    }
}

/// Tells how far loading is.
pub struct Loading<'a> {
    shared: &'a Shared,
}

impl Loading<'_> {
    /// So much of the whole, 0 to 1. It never goes back, and may be told as often as something was done, from any thread.
    pub fn at(&self, fraction: f32) {
        let mut state = self.shared.state();
        if fraction.is_nan() || fraction <= state.loaded {
            return;
        }
        state.loaded = fraction.min(1.0);
        state.moved = Some(Instant::now());
        let percent = (state.loaded * 100.0) as u8;
        if percent > state.percent {
            state.percent = percent;
            // Under the lock, so that threads do not overtake each other.
            self.shared.systemd.loading(percent);
            drop(state);
            self.shared.changed.send_replace(());
        }
    }
}

/// The handle that requests use.
#[derive(Clone)]
pub struct Scheduler {
    shared: Arc<Shared>,
}

impl Scheduler {
    /// Starts the thread, which begins with `load`.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start<B: Backend + 'static>(
        load: impl FnOnce(&Loading<'_>) -> Result<B, BoxError> + Send + 'static,
        most_waiting: usize,
        metrics: Arc<Metrics>,
        systemd: Arc<Systemd>,
    ) -> std::io::Result<(Scheduler, JoinHandle<()>)> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            wake: Condvar::new(),
            abort: AtomicBool::new(false),
            changed: watch::channel(()).0,
            most_waiting,
            metrics,
            systemd,
        });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("scheduler".into()).spawn(move || {
            // A panic in the backend must not leave requests without an answer.
            let end = Broken { shared: &of_thread };
            match still_loading(&of_thread, || load(&Loading { shared: &of_thread })) {
                Ok(backend) => run(&of_thread, backend),
                Err(error) => end.because(&chain(&*error)),
            }
        })?;
        Ok((Scheduler { shared }, thread))
    }

    /// Takes a task on.
    ///
    /// # Errors
    /// Why not.
    pub fn submit(&self, tasks: Vec<Task>) -> Result<(), Rejected> {
        let Some(first) = tasks.first() else { return Ok(()) };
        let mut state = self.shared.state();
        self.admit(&mut state, &first.client, tasks.len())?;
        let begun = Arc::new(AtomicBool::new(false));
        for task in tasks {
            let client = Arc::clone(&task.client);
            state.queue.push(&client, Queued { task, begun: Arc::clone(&begun) });
        }
        drop(state);
        self.shared.wake.notify_all();
        Ok(())
    }

    /// Whether one answer more for that client would be taken on now, which is worth asking before a request is looked at.
    ///
    /// # Errors
    /// Why not.
    pub fn would_take(&self, client: &str) -> Result<(), Rejected> {
        self.admit(&mut self.shared.state(), client, 1)
    }

    fn admit(&self, state: &mut State, client: &str, answers: usize) -> Result<(), Rejected> {
        if let Some(reason) = &state.broken {
            return Err(Rejected::Broken(reason.clone()));
        }
        if state.stopping {
            return Err(Rejected::Stopping);
        }
        if !state.ready {
            return Err(Rejected::Loading { percent: state.percent });
        }
        drop_deserted(&self.shared, state);
        let (waiting, limit) = (state.queue.len(), self.shared.most_waiting);
        // The answers of one request wait for each other at most, so an idle server takes as many as a request may have.
        let idle = waiting == 0 && !state.running;
        // A queue that others have filled keeps nobody out who has nothing in it: clients take turns.
        let newcomer = state.queue.waiting(client) == 0 && state.queue.clients() < limit.max(LEAST_CLIENTS);
        match idle || newcomer || waiting + answers <= limit {
            true => Ok(()),
            false => Err(Rejected::Full { waiting, limit }),
        }
    }

    /// How busy it is.
    pub fn load(&self) -> Load {
        let mut state = self.shared.state();
        drop_deserted(&self.shared, &mut state);
        Load {
            waiting: state.queue.len(),
            running: usize::from(state.running),
            ready: state.ready,
            percent: state.percent,
            stopping: state.stopping,
            broken: state.broken.clone(),
        }
    }

    /// The pond's state; empty until the model is loaded.
    pub fn pond(&self) -> PondStatus {
        let source = self.shared.state().pond.clone();
        source.map(|source| source.status()).unwrap_or_default()
    }

    /// Wakes whenever readiness or work changes.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.shared.changed.subscribe()
    }

    /// Takes no further task. Requests of which nothing has begun are told so; what runs goes on, with all answers of its request.
    pub fn stop(&self) {
        self.refuse_waiting(|queued| !queued.begun.load(Ordering::SeqCst));
    }

    /// Ends what runs, too.
    pub fn abort(&self) {
        self.shared.abort.store(true, Ordering::SeqCst);
        self.refuse_waiting(|_| true);
    }

    fn refuse_waiting(&self, which: impl FnMut(&Queued) -> bool) {
        let mut refused = Vec::new();
        self.shared.change(|state| {
            state.stopping = true;
            refused = state.queue.remove_if(which);
        });
        for Queued { task, .. } in refused {
            let _ = task.listener.send((task.index, Update::Failed(TaskError::Stopping)));
        }
    }
}

/// Loads, and tells systemd meanwhile that it goes on, also where the next percent takes a long time.
fn still_loading<R>(shared: &Shared, load: impl FnOnce() -> R) -> R {
    let (loaded, wait) = channel::<()>();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while wait.recv_timeout(LOADING_TICK) == Err(RecvTimeoutError::Timeout) {
                let state = shared.state();
                if state.moved.unwrap_or(begun).elapsed() < STUCK {
                    shared.systemd.loading(state.percent);
                }
            }
        });
        // Also if it panics.
        let _loaded = loaded;
        load()
    })
}

/// Nobody will ever hear the answers of these.
fn drop_deserted(shared: &Shared, state: &mut State) {
    let now = Instant::now();
    for Queued { task, .. } in state.queue.remove_if(|queued| queued.task.listener.is_closed()) {
        // Whoever listens to a late one goes when its time is up.
        let is_late = task.deadline.is_some_and(|(at, _)| now >= at);
        shared.metrics.never_begun(if is_late { "error" } else { "cancelled" }, now - task.since);
    }
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Marks the scheduler as broken unless it stopped in order.
struct Broken<'a> {
    shared: &'a Shared,
}

impl Broken<'_> {
    fn because(&self, reason: &str) {
        tracing::error!("no more answers: {reason}");
        self.shared.systemd.failed(reason);
        self.shared.change(|state| {
            state.broken.get_or_insert_with(|| reason.to_owned());
        });
    }
}

impl Drop for Broken<'_> {
    fn drop(&mut self) {
        let in_order = {
            let state = self.shared.state();
            state.stopping || state.broken.is_some()
        };
        if !in_order {
            self.because("an internal error ended the engine's thread");
        }
        // Whoever waits sees the closed channel.
        self.shared.change(|state| drop(state.queue.remove_if(|_| true)));
    }
}

fn run<B: Backend>(shared: &Shared, mut backend: B) {
    let pond = backend.pond();
    shared.change(|state| {
        state.pond = Some(pond);
        state.loaded = 1.0;
        state.percent = 100;
        state.ready = true;
    });
    shared.systemd.ready();
    while let Some(next) = next(shared) {
        shared.systemd.alive(|| status_line(shared));
        backend.tick();
        let Some(task) = next else { continue };
        let fatal = serve(shared, &mut backend, task);
        shared.change(|state| state.running = false);
        if let Some(reason) = fatal {
            return Broken { shared }.because(&reason);
        }
    }
    // Whoever waits for the end of all answers may not have heard of one that nobody wanted any more.
    shared.change(|_| ());
}

fn status_line(shared: &Shared) -> String {
    let state = shared.state();
    let running = if state.running { "answering" } else { "idle" };
    let waiting = state.queue.len();
    if state.stopping { "stopping".to_owned() } else { format!("{running}, {waiting} waiting") }
}

/// A task, or nothing for a while, or the end.
fn next(shared: &Shared) -> Option<Option<Task>> {
    let mut state = shared.state();
    drop_deserted(shared, &mut state);
    if state.queue.is_empty() {
        if state.stopping {
            return None;
        }
        state = shared.wake.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner).0;
    }
    let queued = state.queue.pop();
    state.running = queued.is_some();
    Some(queued.map(|Queued { task, begun }| {
        begun.store(true, Ordering::SeqCst);
        task
    }))
}

/// Answers a task. Returns why no further one can be.
fn serve<B: Backend>(shared: &Shared, backend: &mut B, task: Task) -> Option<String> {
    let Task { job, mut answer, logprobs, listener, index, deadline, since, .. } = task;
    // If nobody listens, the next look at the listener ends the answer.
    let tell = |update| drop(listener.send((index, update)));
    let begun = Instant::now();
    let late = |now: Instant| deadline.filter(|(at, _)| now >= *at).map(|(_, limit)| TaskError::TimedOut { limit });
    if let Some(error) = late(begun) {
        shared.metrics.never_begun("error", begun - since);
        tell(Update::Failed(error));
        return None;
    }
    shared.metrics.begun(begun - since);
    let mut ended: Option<TaskError> = None;
    let mut cut = false;
    let mut last: Option<Duration> = None;
    let outcome = backend.generate(job, &mut |event| {
        shared.systemd.alive(|| status_line(shared));
        match event {
            Event::Prefill { done, total } => tell(Update::Prefill { done, total }),
            Event::Token(token) => {
                shared.metrics.token(last.is_none(), token.at.saturating_sub(last.unwrap_or_default()));
                last = Some(token.at);
                let counts = !answer.is_reasoning();
                let logprob =
                    logprobs.as_ref().and_then(|(logits, top)| logits.next(token.id, *top)).filter(|_| counts);
                let pieces = answer.push(token.id);
                tell(Update::Token(Written { token, pieces, logprob }));
                if answer.is_over() {
                    cut = true;
                    return ControlFlow::Break(());
                }
            }
        }
        ended = if shared.abort.load(Ordering::SeqCst) { Some(TaskError::Stopping) } else { late(Instant::now()) };
        if ended.is_some() || listener.is_closed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let took = begun.elapsed();
    match outcome {
        Err(Failure { message, refused, fatal }) => {
            shared.metrics.ended("error", &Stats::default(), took);
            let error = if refused { TaskError::Refused(message.clone()) } else { TaskError::Failed(message.clone()) };
            tracing::warn!("{error}");
            tell(Update::Failed(error));
            fatal.then_some(message)
        }
        Ok(outcome) => {
            let gone = outcome.finish == Finish::Cancelled && !cut;
            let reason = match outcome.finish {
                Finish::Length => EndReason::Length,
                _ if answer.calls() > 0 => EndReason::ToolCalls,
                _ => EndReason::Stop,
            };
            let word =
                if gone && ended.is_none() { "cancelled" } else { ended.as_ref().map_or(reason.name(), |_| "error") };
            shared.metrics.ended(word, &outcome.stats, took);
            let update = match ended {
                Some(error) if gone => Update::Failed(error),
                _ => Update::Done(Done {
                    pieces: answer.finish(outcome.finish == Finish::Stop),
                    reason,
                    stats: outcome.stats,
                    reasoning_tokens: answer.reasoning_tokens(),
                }),
            };
            tell(update);
            None
        }
    }
}

#[cfg(test)]
mod tests;
