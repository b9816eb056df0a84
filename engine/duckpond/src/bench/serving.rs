//! `duckpond bench serve`: what HTTP adds to a token.
//!
//! One engine, one process, and the same greedy answer again and again: from the engine's own loop, and as an event stream from a server
//! around that engine, over a real socket of the loopback interface, read by the client of `duckpond chat --url`. The two take turns, so a
//! machine that is slower for a while is so for both. What the client costs counts as HTTP, and what a request costs is spread over its
//! tokens.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use decode::Request;
use model::chat::{ChatOptions, Message, chat_ids, encode_chat};
use model::sampling::SamplingParams;
use serde::Serialize;
use serde_json::{Value, json};
use server::api::Limits;
use server::api::generation::Defaults;
use server::backend::{Backend, Event, Failure, Job, Outcome, PondSource};
use server::client::{Client, Wish};
use server::serve::{Options, Server};

use crate::cli::ServingArgs;
use crate::error::{Error, one_line};
use crate::loaded::Opened;
use crate::output;
use crate::serve::{EngineBackend, model_info};
use crate::settings::Settings;
use crate::signals::Interruptible;

/// Greedy answers do not depend on it, but a request without one has a random one.
const SEED: u64 = 1;

/// Runs the command.
///
/// # Errors
/// A model that cannot be loaded or run, a prompt that does not fit, an answer of fewer than two tokens.
pub fn run(args: &ServingArgs, settings: &Settings) -> Result<(), Error> {
    let opened = Opened::open(settings)?;
    let tokenizer = Arc::new(opened.tokenizer()?);
    let messages = [Message::User { content: args.prompt.clone() }];
    let prompt = chat_ids(&tokenizer, &encode_chat(&messages, &ChatOptions::default())?)?;
    opened.check_prompt(prompt.len())?;
    let mut report = Report {
        model: one_line(&opened.folder.display().to_string()),
        prompt_tokens: prompt.len(),
        ..Report::default()
    };
    let (model, stop_tokens) = (model_info(None, settings, &opened), opened.model.end_tokens.clone());
    let engine = Shared(Arc::new(Mutex::new(EngineBackend::new(opened.engine(settings)?))));
    let of_server = Shared(Arc::clone(&engine.0));
    let options = Options {
        host: IpAddr::V4(Ipv4Addr::LOCALHOST),
        port: 0,
        keys: None,
        allow_anyone: false,
        tls: None,
        guard: server::api::Guard::default(),
        limits: Limits::default(),
        defaults: Defaults { mtp: settings.mtp, ..Defaults::default() },
        model,
        tokenizer,
    };
    let server = Server::start(options, move |_, _| Ok(of_server))?;
    let request = Request {
        prompt,
        sampling: SamplingParams { seed: SEED, ..SamplingParams::default() },
        choice_index: 0,
        max_tokens: args.tokens as usize,
        stop_tokens,
        mtp: settings.mtp,
    };
    let body = json!({
        "messages": [{"role": "user", "content": args.prompt}],
        "thinking": {"type": "disabled"}, "temperature": 0, "top_p": 1, "seed": SEED, "max_tokens": args.tokens,
        "stream": true, "stream_options": {"include_usage": true},
    });
    let client = Client::new(server.url(), None, None)?;
    let working = Interruptible::begin();
    let bench = Bench { engine, client, request, body, working: &working };
    let measured = bench.measure(args.rounds, &mut report);
    server.stop();
    measured?;
    let text = if args.json { report.json() } else { report.table() };
    output::print(&text).map_err(Error::Output)
}

/// The engine, in turns with a server.
struct Shared(Arc<Mutex<EngineBackend>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, EngineBackend> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for Shared {
    fn generate(&mut self, job: Job, on_event: &mut dyn FnMut(Event) -> ControlFlow<()>) -> Result<Outcome, Failure> {
        self.lock().generate(job, on_event)
    }

    fn tick(&mut self) {
        match self.0.try_lock() {
            Ok(mut engine) => engine.tick(),
            Err(TryLockError::Poisoned(engine)) => engine.into_inner().tick(),
            // It works for the other side.
            Err(TryLockError::WouldBlock) => {}
        }
    }

    fn pond(&self) -> Arc<dyn PondSource> {
        self.lock().pond()
    }
}

struct Bench<'a> {
    engine: Shared,
    client: Client,
    request: Request,
    body: Value,
    working: &'a Interruptible,
}

/// One answer.
#[derive(Default)]
struct Run {
    /// Ids, where they are known.
    ids: Vec<u32>,
    tokens: usize,
    /// Until the first token, and until the end.
    first: Duration,
    whole: Duration,
}

impl Bench<'_> {
    fn measure(&self, rounds: u32, report: &mut Report) -> Result<(), Error> {
        self.wait_until_ready()?;
        // Not timed: caches fill, and both have to answer the same.
        let expected = self.direct()?;
        let mut body = self.body.clone();
        body["stream_options"]["timings"] = true.into();
        let found = self.over_http(&body)?;
        if expected.ids != found.ids {
            return Err(Error::OtherAnswer { engine: expected.ids.len(), server: found.ids.len() });
        }
        if expected.tokens < 2 {
            return Err(Error::Length {
                what: "the answer",
                found: expected.tokens,
                allowed: "2 tokens or more".into(),
            });
        }
        report.tokens = expected.tokens;
        for _ in 0..rounds {
            let (direct, http) = (self.direct()?, self.over_http(&self.body)?);
            if (direct.tokens, http.tokens) != (expected.tokens, expected.tokens) {
                return Err(Error::OtherAnswer { engine: direct.tokens, server: http.tokens });
            }
            report.add(&direct, &http);
        }
        Ok(())
    }

    fn wait_until_ready(&self) -> Result<(), Error> {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            match self.client.get("/ready") {
                Err(error) if Instant::now() > end => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
                Ok(_) => return Ok(()),
            }
        }
    }

    fn direct(&self) -> Result<Run, Error> {
        let mut run = Run::default();
        let mut engine = self.engine.lock();
        let begun = Instant::now();
        engine.engine.generate(&self.request, &mut |event| {
            if let decode::Event::Token(token) = event {
                run.ids.push(token.id);
                if run.ids.len() == 1 {
                    run.first = begun.elapsed();
                }
            }
            if self.working.is_raised() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        run.whole = begun.elapsed();
        run.tokens = run.ids.len();
        if self.working.is_raised() { Err(Error::Interrupted) } else { Ok(run) }
    }

    fn over_http(&self, body: &Value) -> Result<Run, Error> {
        let mut run = Run::default();
        let wish = || if self.working.is_raised() { Wish::Stop } else { Wish::GoOn };
        let begun = Instant::now();
        self.client.stream(
            "/v1/chat/completions",
            body,
            |event| {
                let text = event.pointer("/choices/0/delta/content").and_then(Value::as_str);
                if run.first.is_zero() && text.is_some_and(|text| !text.is_empty()) {
                    run.first = begun.elapsed();
                }
                let number = |pointer| event.pointer(pointer).and_then(Value::as_u64);
                run.ids.extend(number("/token/id").and_then(|id| u32::try_from(id).ok()));
                run.tokens = number("/usage/completion_tokens").map_or(run.tokens, |tokens| tokens as usize);
                wish()
            },
            wish,
        )?;
        run.whole = begun.elapsed();
        if self.working.is_raised() { Err(Error::Interrupted) } else { Ok(run) }
    }
}

/// What was measured; times are medians over the rounds.
#[derive(Debug, Default, Serialize)]
struct Report {
    model: String,
    prompt_tokens: usize,
    /// Of each answer.
    tokens: usize,
    rounds: usize,
    /// A token's time in the engine's own loop, in milliseconds, and over HTTP.
    engine_ms: f64,
    http_ms: f64,
    /// What HTTP adds to a token: the median of the rounds' differences.
    added_ms: f64,
    /// HTTP's time over the engine's.
    ratio: f64,
    /// What HTTP adds before the first token.
    added_first_ms: f64,
    #[serde(skip)]
    direct: Vec<f64>,
    #[serde(skip)]
    http: Vec<f64>,
    #[serde(skip)]
    added: Vec<f64>,
    #[serde(skip)]
    added_first: Vec<f64>,
}

impl Report {
    fn add(&mut self, direct: &Run, http: &Run) {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let token = |run: &Run| ms(run.whole) / run.tokens as f64;
        self.direct.push(token(direct));
        self.http.push(token(http));
        self.added.push(token(http) - token(direct));
        self.added_first.push(ms(http.first) - ms(direct.first));
        self.rounds = self.added.len();
        self.engine_ms = median(&self.direct);
        self.http_ms = median(&self.http);
        self.added_ms = median(&self.added);
        self.ratio = self.http_ms / self.engine_ms.max(1e-9);
        self.added_first_ms = median(&self.added_first);
    }

    fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("numbers and texts are JSON");
        text.push('\n');
        text
    }

    fn table(&self) -> String {
        let mut text = String::new();
        let Report {
            model, prompt_tokens, tokens, rounds, engine_ms, http_ms, added_ms, ratio, added_first_ms, ..
        } = self;
        let mut line = |name: &str, said: std::fmt::Arguments<'_>| {
            writeln!(text, "{name:<12}{said}").expect("writing to a string");
        };
        line("model", format_args!("{model}"));
        line("answer", format_args!("{tokens} tokens to a prompt of {prompt_tokens}, {rounds} times each"));
        line("engine", format_args!("{engine_ms:.3} ms a token"));
        line("over HTTP", format_args!("{http_ms:.3} ms a token, {ratio:.3} times as much"));
        line("added", format_args!("{added_ms:.3} ms a token; {added_first_ms:.3} ms before the first"));
        text
    }
}

/// Of a list that is not empty.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { (sorted[middle - 1] + sorted[middle]) / 2.0 } else { sorted[middle] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_that_was_disturbed_changes_no_median() {
        let run = |ms: u64| Run { tokens: 10, whole: Duration::from_millis(ms), ..Run::default() };
        let mut report = Report::default();
        for (direct, http) in [(100, 101), (100, 900), (200, 203)] {
            report.add(&run(direct), &run(http));
        }
        assert_eq!((report.rounds, report.engine_ms, report.http_ms), (3, 10.0, 20.3));
        assert!((report.added_ms - 0.3).abs() < 1e-9, "{report:?}");
        assert_eq!(median(&[1.0, 4.0]), 2.5);
    }
}
