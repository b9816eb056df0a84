//! One answer: tokens from the engine become text on standard output, rows of the trace, and figures on standard error.

use std::io;
use std::ops::ControlFlow;

use decode::{Backend, Engine, Event, Finish, Request, Stats, TokenEvent};
use model::chat::template::{END_THINK, THINK};
use model::detokenise::Detokeniser;
use model::sampling::SamplingParams;
use model::stop::StopMatcher;
use model::tokenizer::Tokenizer;

use crate::error::Error;
use crate::output::{Output, Wanted, say};
use crate::progress::PrefillBar;
use crate::settings::Settings;
use crate::signals::Interruptible;
use crate::trace::Trace;

/// Why an answer ended, as the person at the terminal sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The model ended it.
    Stop,
    /// One of the stop strings.
    StopString,
    /// `max_tokens`.
    MaxTokens(usize),
    /// No position is left.
    ContextFull {
        /// Positions allowed.
        limit: usize,
    },
    /// Ctrl-C.
    Interrupted,
    /// Nobody reads standard output any more.
    PipeClosed,
}

/// A finished answer.
#[derive(Debug)]
pub struct Answer {
    /// Why it ended.
    pub ended: Ended,
    /// Figures.
    pub stats: Stats,
    /// The seed that it was made with.
    pub seed: u64,
    /// What was shown, without the line end at the end.
    pub shown: String,
    /// The reasoning's part of `shown`, if `</think>` came.
    pub reasoning_len: Option<usize>,
}

impl Answer {
    /// What was shown after the reasoning.
    pub fn content(&self) -> &str {
        self.shown.get(self.reasoning_len.unwrap_or(0)..).unwrap_or_default().trim_start_matches('\n')
    }
}

/// The request for `prompt` under the settings.
pub fn request(settings: &Settings, prompt: Vec<u32>, end_tokens: &[u32]) -> Request {
    let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let seed = settings.seed.unwrap_or_else(random_seed);
    Request {
        prompt,
        sampling: SamplingParams {
            temperature: settings.temperature as f32,
            top_k: narrow(settings.top_k),
            top_p: settings.top_p as f32,
            min_p: settings.min_p as f32,
            repetition_penalty: settings.repetition_penalty as f32,
            seed,
        },
        choice_index: 0,
        max_tokens: if settings.max_tokens == 0 { usize::MAX } else { settings.max_tokens },
        stop_tokens: end_tokens.to_vec(),
        mtp: settings.mtp,
    }
}

/// The standard library's hash keys are random for each process; below 2^63, so that it can be given as a setting.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish() >> 1
}

/// Has the engine answer `request` and shows the text as it comes.
///
/// # Errors
/// The engine's, or standard output's (a closed pipe is none).
pub fn stream(
    engine: &mut Engine,
    tokenizer: &Tokenizer,
    request: &Request,
    stops: &[String],
    mut trace: Option<&mut Trace>,
) -> Result<Answer, Error> {
    let working = Interruptible::begin();
    let mut text = AnswerText::new(tokenizer, request, stops);
    let mut output = Output::stdout();
    let mut bar = PrefillBar::begin();
    let mut failed: Option<io::Error> = None;
    let mut ended: Option<Ended> = None;
    let outcome = engine.generate(request, &mut |event| {
        match event {
            Event::Prefill { done, total } => bar.update(*done, *total),
            Event::Token(token) => {
                bar.clear();
                if let Some(trace) = trace.as_deref_mut() {
                    trace.token(token);
                }
                let (piece, stopped) = text.push(token);
                match output.piece(&piece) {
                    Ok(Wanted::Yes) if stopped => ended = Some(Ended::StopString),
                    Ok(Wanted::Yes) => {}
                    Ok(Wanted::No) => ended = Some(Ended::PipeClosed),
                    Err(error) => failed = Some(error),
                }
            }
        }
        if working.is_raised() && ended.is_none() {
            ended = Some(Ended::Interrupted);
        }
        if ended.is_some() || failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.clear();
    let rest = text.finish();
    let shown = output.piece(&rest).and_then(|_| output.end_line());
    let outcome = outcome?;
    if let Some(error) = failed.or(shown.err()) {
        return Err(Error::Output(error));
    }
    let ended = ended.unwrap_or(match outcome.finish {
        Finish::Stop => Ended::Stop,
        Finish::Length => Ended::MaxTokens(request.max_tokens),
        Finish::ContextFull { limit } => Ended::ContextFull { limit },
        Finish::Cancelled => Ended::Interrupted,
    });
    Ok(Answer {
        ended,
        stats: outcome.stats,
        seed: request.sampling.seed,
        shown: text.shown,
        reasoning_len: text.reasoning_len,
    })
}

/// From tokens to what is shown: markers are left out, `</think>` ends a line, stop strings end the text.
struct AnswerText<'a> {
    tokenizer: &'a Tokenizer,
    detokeniser: Detokeniser,
    stops: StopMatcher,
    stop_tokens: &'a [u32],
    end_think: Option<u32>,
    stopped: bool,
    shown: String,
    reasoning_len: Option<usize>,
}

impl<'a> AnswerText<'a> {
    fn new(tokenizer: &'a Tokenizer, request: &'a Request, stops: &[String]) -> AnswerText<'a> {
        AnswerText {
            tokenizer,
            detokeniser: tokenizer.detokeniser(),
            stops: StopMatcher::new(stops).expect("the settings have no empty stop strings"),
            stop_tokens: &request.stop_tokens,
            end_think: tokenizer.marker(END_THINK),
            stopped: false,
            shown: String::new(),
            reasoning_len: None,
        }
    }

    /// The text that is certain now, and whether it is the last.
    fn push(&mut self, token: &TokenEvent) -> (String, bool) {
        if self.stopped || self.stop_tokens.contains(&token.id) {
            return (String::new(), self.stopped);
        }
        if !self.tokenizer.is_added(token.id) {
            let piece = self.detokeniser.push(token.id);
            return self.pass(&piece);
        }
        let mut piece = self.detokeniser.finish().to_owned();
        if self.end_think == Some(token.id) && self.reasoning_len.is_none() {
            // Held-back text cannot become a stop string across the border: the reasoning is complete.
            let passed = self.stops.finish();
            let mut shown = self.show(passed + &piece);
            self.reasoning_len = Some(self.shown.len());
            if !self.shown.is_empty() && !self.shown.ends_with('\n') {
                shown += &self.show("\n".to_owned());
            }
            return (shown, false);
        }
        if self.tokenizer.marker(THINK) == Some(token.id) {
            return self.pass(&piece);
        }
        // Markers of tool calls belong to the text: without them the calls could not be read.
        if !self.tokenizer.is_special(token.id) && !is_role(self.tokenizer.token_bytes(token.id)) {
            piece += &String::from_utf8_lossy(self.tokenizer.token_bytes(token.id));
        }
        self.pass(&piece)
    }

    fn pass(&mut self, piece: &str) -> (String, bool) {
        let passed = self.stops.push(piece);
        self.stopped = passed.stopped.is_some();
        (self.show(passed.text), self.stopped)
    }

    /// What was held back, unless a stop string ended the text.
    fn finish(&mut self) -> String {
        if self.stopped {
            return String::new();
        }
        let tail = self.detokeniser.finish();
        let (mut text, _) = self.pass(tail);
        if !self.stopped {
            let held = self.stops.finish();
            text += &self.show(held);
        }
        text
    }

    fn show(&mut self, text: String) -> String {
        self.shown.push_str(&text);
        text
    }
}

/// `<｜User｜>` and its like.
fn is_role(marker: &[u8]) -> bool {
    marker.starts_with("<｜".as_bytes())
}

/// Tells figures, a seed that nobody gave, and why the answer ended unless the model ended it.
pub fn report(answer: &Answer, settings: &Settings, model_limit: usize) {
    say(stats_line(&answer.stats));
    if let Some(line) = seed_line(settings, answer.seed) {
        say(line);
    }
    if settings.mtp {
        say(mtp_line(&answer.stats));
    }
    if let Some(line) = backend_line(&answer.stats) {
        say(line);
    }
    if let Some(line) = ended_line(answer.ended, model_limit) {
        say(line);
    }
}

/// The figures in one line, in the form that tools for such lines know.
pub fn stats_line(stats: &Stats) -> String {
    // An answer that was stopped before its first token has no times.
    let prefill = if stats.output_len == 0 { 0.0 } else { stats.prefill_rate() };
    format!(
        "Generation stats: time {:.3}s, input_len {}, output_len {}, ttft {:.3}s, tpot {:.3}s, prefill {:.3} tok/s, decode {:.3} tok/s",
        stats.time.as_secs_f64(),
        stats.input_len,
        stats.output_len,
        stats.ttft.as_secs_f64(),
        stats.tpot().unwrap_or_default().as_secs_f64(),
        prefill,
        stats.decode_rate(),
    )
}

/// The seed, if it mattered and was not given: with it the answer can be had again.
pub fn seed_line(settings: &Settings, seed: u64) -> Option<String> {
    (settings.temperature > 0.0 && settings.seed.is_none()).then(|| format!("seed: {seed}"))
}

/// How the drafts fared.
pub fn mtp_line(stats: &Stats) -> String {
    let percent = 100.0 * stats.accepted as f64 / (stats.drafts as f64).max(1.0);
    format!("MTP: accepted {} of {} drafts ({percent:.1} %)", stats.accepted, stats.drafts)
}

/// What stage 0 ran on, unless all the time on the processors.
pub fn backend_line(stats: &Stats) -> Option<&'static str> {
    match (stats.backend, stats.backend_changed) {
        (_, true) => Some("stage 0: the GPU failed in the middle; the processors went on"),
        (Backend::Cuda, _) => Some("stage 0: GPU"),
        (Backend::Cpu, _) => None,
    }
}

/// Why an answer ended, unless the model or the request ended it as planned.
pub fn ended_line(ended: Ended, model_limit: usize) -> Option<String> {
    match ended {
        Ended::Stop | Ended::StopString | Ended::PipeClosed => None,
        Ended::MaxTokens(n) => Some(format!("stopped: --max-tokens {n} reached")),
        Ended::ContextFull { limit } if limit < model_limit => Some(format!(
            "stopped: context full at {limit} positions; raise --max-len (the model allows {model_limit})"
        )),
        Ended::ContextFull { limit } => {
            Some(format!("stopped: context full at {limit} positions; the model allows no more, shorten the prompt"))
        }
        Ended::Interrupted => Some("stopped: interrupted".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn figures_read_as_in_the_reference_system() {
        let stats = Stats {
            input_len: 11,
            cached_len: 0,
            output_len: 2037,
            time: Duration::from_millis(126_724),
            ttft: Duration::from_millis(861),
            drafts: 2036,
            accepted: 1813,
            ..Stats::default()
        };
        assert_eq!(backend_line(&stats), None);
        let moved = Stats { backend_changed: true, ..stats.clone() };
        assert!(backend_line(&moved).is_some_and(|line| line.contains("the processors went on")));
        let expected = "Generation stats: time 126.724s, input_len 11, output_len 2037, ttft 0.861s, tpot 0.062s, prefill 12.776 tok/s, decode 16.176 tok/s";
        assert_eq!(stats_line(&stats), expected);
        assert_eq!(mtp_line(&stats), "MTP: accepted 1813 of 2036 drafts (89.0 %)");
    }

    #[test]
    fn figures_of_a_single_token_are_finite() {
        let stats = Stats {
            input_len: 1,
            output_len: 1,
            time: Duration::from_secs(1),
            ttft: Duration::from_secs(1),
            ..Stats::default()
        };
        let expected = "Generation stats: time 1.000s, input_len 1, output_len 1, ttft 1.000s, tpot 0.000s, prefill 1.000 tok/s, decode 0.000 tok/s";
        assert_eq!(stats_line(&stats), expected);
        assert_eq!(mtp_line(&stats), "MTP: accepted 0 of 0 drafts (0.0 %)");
    }

    #[test]
    fn a_full_context_says_whether_more_could_be_allowed() {
        let own = ended_line(Ended::ContextFull { limit: 64 }, 2048);
        assert_eq!(
            own.as_deref(),
            Some("stopped: context full at 64 positions; raise --max-len (the model allows 2048)")
        );
        let models = ended_line(Ended::ContextFull { limit: 2048 }, 2048);
        assert_eq!(
            models.as_deref(),
            Some("stopped: context full at 2048 positions; the model allows no more, shorten the prompt")
        );
    }
}
