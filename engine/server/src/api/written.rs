//! What an answer looks like in the API, as it comes and as a whole: the parts that chats and completions share.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use model::tokenizer::Tokenizer;
use serde_json::{Value, json};
use tokio::time::timeout_at;

use super::App;
use super::error::ApiError;
use super::generation::{Generation, Updates, random};
use crate::answer::Piece;
use crate::backend::{Stats, Token};
use crate::choose::LogProb;
use crate::scheduler::{Done, EndReason, Update, Written};

/// Goes out when there is nothing else.
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// What is the same in every part of an answer.
#[derive(Clone, Debug)]
pub struct Head {
    /// Its name.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model, as the request called it.
    pub model: String,
}

impl Head {
    /// A new one; `prefix` is the kind.
    pub fn new(prefix: &str, model: String) -> Head {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Head { id: format!("{prefix}-{}", unique()), created, model }
    }

    /// The object that `fields` are put into.
    pub fn object(&self, kind: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id, "object": kind, "created": self.created, "model": self.model,
            "system_fingerprint": Value::Null, "choices": choices,
        })
    }
}

/// 24 characters that no other has.
pub fn unique() -> String {
    format!("{:016x}{:08x}", random(), random() as u32)
}

/// Figures of all answers of a request.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    prompts: Vec<usize>,
    cached: usize,
    output: usize,
    reasoning: usize,
    drafts: usize,
    accepted: usize,
    time: Duration,
    first: Duration,
}

impl Usage {
    /// Adds an answer; `n` answers share a prompt.
    pub fn add(&mut self, index: usize, n: usize, done: &Done) {
        let Stats { prompt, cached, output, time, ttft, drafts, accepted } = done.stats;
        if index.is_multiple_of(n) {
            self.prompts.push(prompt);
            self.cached += cached;
        }
        if self.output == 0 {
            self.first = ttft;
        }
        self.output += output;
        self.reasoning += done.reasoning_tokens;
        self.drafts += drafts;
        self.accepted += accepted;
        self.time += time;
    }

    /// As the API has it.
    pub fn json(&self) -> Value {
        let prompt: usize = self.prompts.iter().sum();
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": self.output,
            "total_tokens": prompt + self.output,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning,
                "accepted_prediction_tokens": self.accepted,
                "rejected_prediction_tokens": self.drafts - self.accepted,
            },
        })
    }

    /// The times, for our own page and chat.
    pub fn timings(&self) -> Value {
        json!({"time_ms": millis(self.time), "ttft_ms": millis(self.first)})
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A token's name: its text as far as it is text, and its bytes.
fn named(tokenizer: &Tokenizer, id: u32, logprob: f32) -> Value {
    let bytes = tokenizer.token_bytes(id);
    // JSON has no infinity; OpenAI writes -9999 for what is next to impossible.
    let logprob = logprob.max(-9999.0);
    json!({"token": String::from_utf8_lossy(bytes), "logprob": logprob, "bytes": bytes})
}

/// A token's probability as chats have it.
pub fn chat_logprob(tokenizer: &Tokenizer, found: &LogProb) -> Value {
    let mut entry = named(tokenizer, found.id, found.logprob);
    entry["top_logprobs"] = found.top.iter().map(|&(id, logprob)| named(tokenizer, id, logprob)).collect();
    entry
}

/// Makes the parts of an answer.
pub trait Style: Send + 'static {
    /// The first part of an answer, if it has one of its own.
    fn first(&mut self, index: usize) -> Option<Value>;
    /// What a token adds, as `choices` entries.
    fn token(&mut self, app: &App, index: usize, written: Written) -> Vec<Value>;
    /// The last part.
    fn last(&mut self, app: &App, index: usize, done: Done) -> Vec<Value>;
    /// The name of a part's kind.
    fn kind(&self) -> &'static str;
}

/// An answer as an event stream.
struct Stream<S> {
    app: App,
    head: Head,
    style: S,
    updates: Updates,
    generation: Generation,
    usage: Usage,
    /// Answers that have not ended.
    open: usize,
    begun: Vec<bool>,
    out: VecDeque<u8>,
}

/// The response that streams an answer.
pub fn stream<S: Style>(
    app: &App,
    head: Head,
    style: S,
    updates: Updates,
    generation: Generation,
    answers: usize,
) -> Response {
    let keep_alive = app.limits.keep_alive;
    let begun = vec![false; answers];
    let usage = Usage::default();
    let state = Stream {
        app: app.clone(),
        head,
        style,
        updates,
        generation,
        usage,
        open: answers,
        begun,
        out: VecDeque::new(),
    };
    let chunks = futures_util::stream::unfold(state, move |mut state| async move {
        let bytes = state.more(keep_alive).await?;
        Some((Ok::<Bytes, Infallible>(bytes), state))
    });
    let mut response = Response::new(Body::from_stream(chunks));
    for (name, value) in [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        // Proxies must not wait for more.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

impl<S: Style> Stream<S> {
    /// The next bytes, never none of them; a comment if nothing else is to be said for so long, whatever happens meanwhile.
    async fn more(&mut self, keep_alive: Duration) -> Option<Bytes> {
        // What was made before has just gone out.
        let silent = Instant::now() + keep_alive;
        while self.open > 0 && self.out.is_empty() {
            match timeout_at(silent.into(), self.updates.next()).await {
                Err(_) => self.out.extend(KEEP_ALIVE),
                Ok(None) => self.fail(&engine_ended()),
                Ok(Some((index, update))) => {
                    self.take(index, update);
                    // What has come meanwhile goes out together.
                    while self.open > 0
                        && let Some((index, update)) = self.updates.at_hand()
                    {
                        self.take(index, update);
                    }
                    if self.out.is_empty() && Instant::now() >= silent {
                        self.out.extend(KEEP_ALIVE);
                    }
                }
            }
        }
        (!self.out.is_empty()).then(|| Bytes::from(Vec::from(std::mem::take(&mut self.out))))
    }

    fn take(&mut self, index: usize, update: Update) {
        match update {
            Update::Prefill { done, total } => {
                if self.generation.timings {
                    let mut part = self.head.object(self.style.kind(), Vec::new());
                    part["prefill"] = json!({"index": index, "done": done, "total": total});
                    self.event(&part);
                }
            }
            Update::Token(written) => {
                self.begin(index);
                let token = written.token;
                let mut choices = self.style.token(&self.app, index, written);
                let timings = self.generation.timings.then(|| times(index, token));
                if choices.is_empty() && timings.is_none() {
                    return;
                }
                // Parts of one token that cannot stand in one piece; its times go with the last.
                let last = choices.pop();
                for choice in choices {
                    self.part(vec![choice], None);
                }
                self.part(last.into_iter().collect(), timings);
            }
            Update::Done(done) => {
                self.begin(index);
                self.usage.add(index, self.generation.n, &done);
                for choice in self.style.last(&self.app, index, done) {
                    self.part(vec![choice], None);
                }
                self.open -= 1;
                if self.open == 0 {
                    self.end();
                }
            }
            Update::Failed(error) => self.fail(&error.into()),
        }
    }

    fn begin(&mut self, index: usize) {
        if !std::mem::replace(&mut self.begun[index], true)
            && let Some(choice) = self.style.first(index)
        {
            self.part(vec![choice], None);
        }
    }

    fn part(&mut self, choices: Vec<Value>, timings: Option<Value>) {
        let mut part = self.head.object(self.style.kind(), choices);
        if self.generation.include_usage {
            part["usage"] = Value::Null;
        }
        if let Some(timings) = timings {
            part["token"] = timings;
        }
        self.event(&part);
    }

    fn end(&mut self) {
        if self.generation.include_usage || self.generation.timings {
            let mut part = self.head.object(self.style.kind(), Vec::new());
            part["usage"] = self.usage.json();
            if self.generation.timings {
                part["timings"] = self.usage.timings();
            }
            self.event(&part);
        }
        self.out.extend(b"data: [DONE]\n\n");
    }

    /// The status is out already, so the fault is an event, and the last one.
    fn fail(&mut self, error: &ApiError) {
        self.event(&error.body());
        self.out.extend(b"data: [DONE]\n\n");
        self.open = 0;
    }

    fn event(&mut self, value: &Value) {
        self.out.extend(b"data: ");
        self.out.extend(value.to_string().into_bytes());
        self.out.extend(b"\n\n");
    }
}

/// A token's time and draft.
fn times(index: usize, token: Token) -> Value {
    json!({
        "index": index, "id": token.id, "ms": millis(token.at), "drafted": token.drafted, "accepted": token.accepted,
    })
}

/// A whole answer.
#[derive(Debug)]
pub struct Collected {
    /// Everything in it, in order.
    pub pieces: Vec<Piece>,
    /// Its tokens' probabilities, if they were asked for.
    pub logprobs: Vec<LogProb>,
    /// Why it ended.
    pub reason: EndReason,
}

/// Waits for all answers, `n` to each prompt.
///
/// # Errors
/// The first failure.
pub async fn collect(mut updates: Updates, answers: usize, n: usize) -> Result<(Vec<Collected>, Usage), ApiError> {
    let mut usage = Usage::default();
    let mut all: Vec<Collected> =
        (0..answers).map(|_| Collected { pieces: Vec::new(), logprobs: Vec::new(), reason: EndReason::Stop }).collect();
    let mut open = answers;
    while open > 0 {
        let (index, update) = updates.next().await.ok_or_else(engine_ended)?;
        match update {
            Update::Prefill { .. } => {}
            Update::Token(written) => {
                all[index].pieces.extend(written.pieces);
                all[index].logprobs.extend(written.logprob);
            }
            Update::Done(done) => {
                usage.add(index, n, &done);
                all[index].pieces.extend(done.pieces);
                all[index].reason = done.reason;
                open -= 1;
            }
            Update::Failed(error) => return Err(error.into()),
        }
    }
    Ok((all, usage))
}

fn engine_ended() -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the engine ended before the answer did")
}
