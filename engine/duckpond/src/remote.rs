//! Answers that a server gives, for `generate --url` and `chat --url`.

use std::io;
use std::time::{Duration, Instant};

use decode::Stats;
use model::chat::Message;
use serde_json::{Value, json};
use server::client::{Client, Wish};

use crate::answer::{Answer, Ended};
use crate::cli::ServerFlags;
use crate::error::Error;
use crate::limited;
use crate::output::{Output, Wanted};
use crate::progress::PrefillBar;
use crate::settings::Settings;
use crate::signals::Interruptible;

/// Bytes of a file with a key at most.
const LONGEST_KEY: u64 = 1 << 16;

/// A server and the model that it serves.
pub struct Remote {
    client: Client,
    model: Value,
    max_len: usize,
}

impl Remote {
    /// Reaches the server that the flags name, if they name one, and asks what it serves.
    ///
    /// # Errors
    /// A file or an address that cannot be used, a server that cannot be reached.
    pub fn open(flags: &ServerFlags) -> Result<Option<Remote>, Error> {
        let Some(url) = &flags.url else { return Ok(None) };
        let key = match &flags.api_key {
            None => None,
            Some(path) => {
                let text = limited::read_text(path, LONGEST_KEY)
                    .map_err(|source| Error::ApiKey { path: path.clone(), source })?;
                Some(text.lines().next().unwrap_or_default().trim().to_owned())
            }
        };
        let client = Client::new(url, key, flags.ca.clone())?;
        let models = client.get("/v1/models")?;
        let model = models.pointer("/data/0/id").cloned().unwrap_or(Value::Null);
        let max_len = models.pointer("/data/0/max_model_len").and_then(Value::as_u64);
        let max_len = max_len.and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        Ok(Some(Remote { client, model, max_len }))
    }

    /// Positions of the context; 0 if the server does not say.
    pub fn max_len(&self) -> usize {
        self.max_len
    }

    /// Has the server answer and shows the text as it comes.
    ///
    /// # Errors
    /// The server's, or standard output's (a closed pipe is none).
    pub fn answer(&self, messages: &[Message], thinking: bool, settings: &Settings) -> Result<Answer, Error> {
        let working = Interruptible::begin();
        let mut incoming = Incoming::new();
        let mut bar = PrefillBar::begin();
        let wish = || if working.is_raised() { Wish::Stop } else { Wish::GoOn };
        let body = self.body(messages, thinking, settings);
        let streamed = self.client.stream(
            "/v1/chat/completions",
            &body,
            |event| {
                if let Some(prefill) = event.get("prefill") {
                    let count = |name| prefill.get(name).and_then(Value::as_u64).unwrap_or(0) as usize;
                    bar.update(count("done"), count("total"));
                } else {
                    bar.clear();
                }
                incoming.take(event);
                if incoming.failed.is_some() || incoming.pipe_closed { Wish::Stop } else { wish() }
            },
            wish,
        );
        bar.clear();
        let ended_line = incoming.output.end_line();
        streamed?;
        if let Some(error) = incoming.failed.take().or(ended_line.err()) {
            return Err(Error::Output(error));
        }
        let ended = match incoming.finish.as_deref() {
            _ if incoming.pipe_closed => Ended::PipeClosed,
            None => Ended::Interrupted,
            Some("length") if settings.max_tokens > 0 && incoming.stats.output_len >= settings.max_tokens => {
                Ended::MaxTokens(settings.max_tokens)
            }
            Some("length") => Ended::ContextFull { limit: self.max_len },
            Some(_) => Ended::Stop,
        };
        let Incoming { stats, shown, reasoning_len, .. } = incoming;
        Ok(Answer { ended, stats, seed: settings.seed.unwrap_or(0), shown, reasoning_len })
    }

    fn body(&self, messages: &[Message], thinking: bool, settings: &Settings) -> Value {
        let messages: Vec<Value> = messages
            .iter()
            .filter_map(|message| match message {
                Message::System { content } | Message::User { content } | Message::Assistant { content, .. } => {
                    Some(json!({"role": message.role(), "content": content}))
                }
                // A conversation at a terminal has no others.
                Message::Developer { .. } | Message::Tool { .. } => None,
            })
            .collect();
        let mut body = json!({
            "model": self.model,
            "messages": messages,
            "stream": true,
            "stream_options": {"include_usage": true, "timings": true},
            "thinking": {"type": if thinking { "enabled" } else { "disabled" }},
            "temperature": settings.temperature,
            "top_p": settings.top_p,
        });
        // What other servers may not know goes along only if it says something.
        let mut put = |name: &str, said: bool, value: Value| {
            if said {
                body[name] = value;
            }
        };
        put("top_k", settings.top_k > 0, json!(settings.top_k));
        put("min_p", settings.min_p > 0.0, json!(settings.min_p));
        put("repetition_penalty", settings.repetition_penalty != 1.0, json!(settings.repetition_penalty));
        put("seed", settings.seed.is_some(), json!(settings.seed));
        put("stop", !settings.stop.is_empty(), json!(settings.stop));
        put("max_tokens", settings.max_tokens > 0, json!(settings.max_tokens));
        body
    }
}

/// An answer as far as it has come.
struct Incoming {
    began: Instant,
    output: Output,
    stats: Stats,
    shown: String,
    reasoning: bool,
    reasoning_len: Option<usize>,
    finish: Option<String>,
    failed: Option<io::Error>,
    pipe_closed: bool,
}

impl Incoming {
    fn new() -> Incoming {
        Incoming {
            began: Instant::now(),
            output: Output::stdout(),
            stats: Stats::default(),
            shown: String::new(),
            reasoning: false,
            reasoning_len: None,
            finish: None,
            failed: None,
            pipe_closed: false,
        }
    }

    fn take(&mut self, event: &Value) {
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
        if let Some(more) = text("/choices/0/delta/reasoning_content").or(text("/choices/0/delta/reasoning")) {
            self.reasoning = true;
            self.show(more);
        }
        if let Some(more) = text("/choices/0/delta/content") {
            if self.reasoning_len.is_none() {
                // Also where the server sent no reasoning, though it may have been asked to think: all that it said is the answer.
                self.reasoning_len = Some(self.shown.len());
                if self.reasoning && !self.shown.ends_with('\n') {
                    self.show("\n");
                }
            }
            self.show(more);
        }
        if let Some(finish) = text("/choices/0/finish_reason") {
            self.finish = Some(finish.to_owned());
        }
        if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
            self.figures(usage, event.get("timings"));
        }
    }

    fn show(&mut self, text: &str) {
        if self.stats.ttft.is_zero() {
            self.stats.ttft = self.began.elapsed();
        }
        self.shown.push_str(text);
        match self.output.piece(text) {
            Ok(Wanted::Yes) => {}
            Ok(Wanted::No) => self.pipe_closed = true,
            Err(error) => self.failed = Some(error),
        }
    }

    fn figures(&mut self, usage: &Value, timings: Option<&Value>) {
        let count = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64).unwrap_or(0) as usize;
        let time = |name: &str, measured: Duration| {
            let millis = timings.and_then(|timings| timings.get(name)?.as_f64());
            millis.and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok()).unwrap_or(measured)
        };
        let accepted = count("/completion_tokens_details/accepted_prediction_tokens");
        self.stats = Stats {
            input_len: count("/prompt_tokens"),
            cached_len: count("/prompt_tokens_details/cached_tokens"),
            output_len: count("/completion_tokens"),
            time: time("time_ms", self.began.elapsed()),
            ttft: time("ttft_ms", self.stats.ttft),
            drafts: accepted + count("/completion_tokens_details/rejected_prediction_tokens"),
            accepted,
            ..Stats::default()
        };
    }
}
