//! What is asked and what comes back.

use std::time::Duration;

use model::sampling::SamplingParams;

use crate::Backend;

/// One answer to generate.
#[derive(Clone, Debug)]
pub struct Request {
    /// Token ids, at least one.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Which of several answers to the same prompt; keys the random numbers together with the seed.
    pub choice_index: u32,
    /// Answer tokens at most.
    pub max_tokens: usize,
    /// Tokens that end the answer; they are counted but carry no text.
    pub stop_tokens: Vec<u32>,
    /// Draft with the MTP layer.
    pub mtp: bool,
}

/// What happens while an answer is generated.
#[derive(Clone, Debug)]
pub enum Event {
    /// Part of the prompt has been read.
    Prefill {
        /// Tokens read so far, those still cached from the request before included.
        done: usize,
        /// Prompt tokens in all.
        total: usize,
    },
    /// A token of the answer.
    Token(TokenEvent),
}

/// One token of an answer.
#[derive(Clone, Debug)]
pub struct TokenEvent {
    /// Counted from 0.
    pub index: usize,
    /// Token id.
    pub id: u32,
    /// Since the request began.
    pub at: Duration,
    /// What the MTP layer had drafted for this place.
    pub draft: Option<u32>,
    /// Whether that draft was accepted.
    pub accepted: bool,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// One of the request's stop tokens.
    Stop,
    /// `max_tokens`.
    Length,
    /// The model or the configuration allows no further position.
    ContextFull {
        /// Positions allowed.
        limit: usize,
    },
    /// The receiver of the events asked for it.
    Cancelled,
}

/// Figures of one answer.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Prompt tokens.
    pub input_len: usize,
    /// Prompt tokens that were still in the caches.
    pub cached_len: usize,
    /// Answer tokens, the stop token included.
    pub output_len: usize,
    /// From the request to its last token.
    pub time: Duration,
    /// From the request to its first token.
    pub ttft: Duration,
    /// Tokens drafted and verified.
    pub drafts: usize,
    /// Drafts accepted.
    pub accepted: usize,
    /// What stage 0 ran on when the answer ended.
    pub backend: Backend,
    /// The GPU failed in the middle, and the processors read everything again and went on.
    pub backend_changed: bool,
}

impl Stats {
    /// Mean time per answer token after the first.
    pub fn tpot(&self) -> Option<Duration> {
        let rest = u32::try_from(self.output_len.checked_sub(1)?).ok()?;
        self.time.saturating_sub(self.ttft).checked_div(rest)
    }

    /// Prompt tokens read per second.
    pub fn prefill_rate(&self) -> f64 {
        (self.input_len - self.cached_len) as f64 / self.ttft.as_secs_f64().max(1e-9)
    }

    /// Answer tokens per second after the first.
    pub fn decode_rate(&self) -> f64 {
        self.tpot().map_or(0.0, |t| 1.0 / t.as_secs_f64().max(1e-9))
    }
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Why.
    pub finish: Finish,
    /// Figures.
    pub stats: Stats,
}
