//! The seam between the server and whatever computes: jobs go in as token ids, events come out.
//!
//! The server knows texts and HTTP, a backend knows tokens. A backend answers one job at a time and blocks meanwhile; the
//! [`crate::scheduler`] gives it a thread of its own. Nothing here depends on how an engine works.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use model::sampling::SamplingParams;

use crate::pond::PondStatus;

/// What goes wrong in a backend or in one of its callers' hooks.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Answers jobs.
pub trait Backend {
    /// Answers a job. `on_event` sees the prompt's progress and each token as it is chosen; when it breaks, the answer ends within a
    /// step. A token that the job's `stop_tokens` name is an event, too.
    ///
    /// # Errors
    /// The backend's. The next job must be possible all the same, unless [`Failure::fatal`] says otherwise.
    fn generate(&mut self, job: Job, on_event: &mut dyn FnMut(Event) -> ControlFlow<()>) -> Result<Outcome, Failure>;

    /// Called between jobs and several times a second while there is none.
    fn tick(&mut self) {}

    /// Where the pond's state can be read at any time, also while a job runs.
    fn pond(&self) -> Arc<dyn PondSource>;
}

/// Tells the pond's state; must not wait for a step.
pub trait PondSource: Send + Sync {
    /// The state now.
    fn status(&self) -> PondStatus;
}

/// Why a job failed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// In one line.
    pub message: String,
    /// The request is at fault, not the machine.
    pub refused: bool,
    /// No further job can be answered.
    pub fatal: bool,
}

/// Chooses tokens on the host in the stage's place.
pub trait Chooser: Send {
    /// The token for `position`; `history` are all tokens before it, prompt included, `logits` one number for each id.
    ///
    /// # Errors
    /// No token can be chosen; the answer fails.
    fn choose(&mut self, position: usize, history: &[u32], logits: &[f32]) -> Result<u32, BoxError>;
}

/// Sees the logits of every token of an answer, in order, before its event: (position, logits).
pub type Observer = Box<dyn FnMut(usize, &[f32]) + Send>;

/// One answer to generate.
pub struct Job {
    /// Token ids, at least one, at most as many as the context has positions.
    pub prompt: Arc<[u32]>,
    /// How tokens are chosen, unless there is a `chooser`.
    pub sampling: SamplingParams,
    /// Which of several answers to the same prompt; keys the random numbers together with the seed.
    pub choice_index: u32,
    /// Answer tokens at most.
    pub max_tokens: usize,
    /// Tokens that end the answer.
    pub stop_tokens: Vec<u32>,
    /// Draft with the MTP layer; never together with a `chooser`.
    pub mtp: bool,
    /// Chooses in the stage's place.
    pub chooser: Option<Box<dyn Chooser>>,
    /// Looks at logits.
    pub observer: Option<Observer>,
}

/// What happens while an answer is generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Part of the prompt has been read, cached tokens included.
    Prefill {
        /// So many tokens.
        done: usize,
        /// Of so many.
        total: usize,
    },
    /// A token of the answer.
    Token(Token),
}

/// One token of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Since the job began.
    pub at: Duration,
    /// A draft was made for its place.
    pub drafted: bool,
    /// And held.
    pub accepted: bool,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// One of the job's stop tokens.
    Stop,
    /// `max_tokens`, or no position left.
    Length,
    /// The receiver of the events asked for it.
    Cancelled,
}

/// Figures of one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Prompt tokens.
    pub prompt: usize,
    /// Prompt tokens that were still in the caches.
    pub cached: usize,
    /// Answer tokens, the stop token included.
    pub output: usize,
    /// From the job's begin to its last token.
    pub time: Duration,
    /// From the job's begin to its first token.
    pub ttft: Duration,
    /// Drafts judged.
    pub drafts: usize,
    /// Drafts that held.
    pub accepted: usize,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Why.
    pub finish: Finish,
    /// Figures.
    pub stats: Stats,
}

/// What is known of a model before it is in memory.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// Its name in the API.
    pub id: String,
    /// Seconds since 1970 when it was made, for the list of models.
    pub created: u64,
    /// Positions of the context.
    pub max_len: usize,
    /// Tokens that end an answer.
    pub end_tokens: Vec<u32>,
    /// Size of the vocabulary: logits of a token.
    pub vocab: usize,
    /// What runs it, in words for people.
    pub description: String,
}
