//! `duckpond bench`: how fast prompts are read and tokens made, beside what the memory of this machine allows.
//!
//! Every token of an answer needs all active weights once, so the time of a decode step is compared with the time that reading
//! them takes at the bandwidth measured in the same run. Prompts are random tokens; their text does not matter to the time.

pub mod bandwidth;
pub mod kernels;
pub mod pond;
mod report;
pub mod serving;
pub mod stage0;
mod synthetic;
pub mod weights;

use std::ops::ControlFlow;
use std::time::Duration;

use decode::{Engine, Event, Request};
use model::sampling::SamplingParams;

use crate::cli::BenchArgs;
use crate::error::{Error, one_line};
use crate::loaded::Opened;
use crate::settings::Settings;
use crate::signals::Interruptible;
use crate::{output, progress};

use report::{Decode, Prefill, Report};

/// Runs the command.
///
/// # Errors
/// Lengths that cannot be measured; a model that cannot be loaded or run.
pub fn run(args: &BenchArgs, settings: &Settings) -> Result<(), Error> {
    check_lengths(args)?;
    let opened = if args.synthetic { synthetic::open(args, settings)? } else { Opened::open(settings)? };
    check_fit(args, opened.max_len)?;
    let threads = if settings.threads == 0 { bandwidth::all_threads() } else { settings.threads };
    let bandwidth = progress::spinner("measuring memory bandwidth", || bandwidth::measure(threads));
    let mut report = Report {
        model: if args.synthetic { "synthetic".to_owned() } else { one_line(&opened.folder.display().to_string()) },
        ducks: settings.ducks,
        threads,
        bandwidth,
        active_bytes: weights::active_bytes(&opened.model),
        prefill: Vec::new(),
        decode: Vec::new(),
    };
    let vocab = opened.model.dims.vocab;
    let mut engine = opened.engine(settings)?;
    // Until here a signal ends the program at once: there was nothing to stop in an orderly way.
    let working = Interruptible::begin();
    let mut bench = Bench { engine: &mut engine, vocab, mtp: settings.mtp, working: &working };
    for &tokens in &args.prefill {
        let run = bench.measure(tokens, 1)?;
        report.prefill.push(Prefill::new(tokens, run.ttft));
    }
    for &tokens in &args.decode {
        let run = bench.measure(args.context, tokens)?;
        report.decode.push(Decode::new(args.context, &run.at, report.read_time()));
    }
    let text = if args.json { report.json() } else { report.table() };
    output::print(&text).map_err(Error::Output)
}

fn check_lengths(args: &BenchArgs) -> Result<(), Error> {
    let least = |what, lengths: &[usize], least: usize| match lengths.iter().find(|&&n| n < least) {
        Some(&found) => Err(Error::Length { what, found, allowed: format!("{least} or more tokens") }),
        None => Ok(()),
    };
    least("--prefill", &args.prefill, 1)?;
    least("--decode", &args.decode, 2)?;
    least("--context", &[args.context], 1)
}

fn check_fit(args: &BenchArgs, max_len: usize) -> Result<(), Error> {
    let fits = |what, found: usize, room: usize| match found > room {
        true => Err(Error::Length { what, found, allowed: format!("at most {room} tokens ({max_len} positions)") }),
        false => Ok(()),
    };
    args.prefill.iter().try_for_each(|&n| fits("--prefill", n, max_len))?;
    fits("--context", args.context, max_len - 1)?;
    args.decode.iter().try_for_each(|&n| fits("--decode", n, max_len - args.context))
}

/// Refuses a machine whose GPU cannot be used, before anything is written for it.
fn need_gpu() -> Result<(), Error> {
    let probe = host::cuda::probe();
    probe.device.map_err(|error| stage_error(error.into()))?;
    probe.nvrtc.map_err(|error| stage_error(error.into()))?;
    Ok(())
}

/// What a stage that a measurement made itself says.
fn stage_error(error: host::StageError) -> Error {
    Error::Engine(decode::EngineError::Stage(error))
}

struct Bench<'a> {
    engine: &'a mut Engine,
    vocab: usize,
    mtp: bool,
    working: &'a Interruptible,
}

/// Times of one request.
struct Run {
    ttft: Duration,
    /// When each token came.
    at: Vec<Duration>,
}

impl Bench<'_> {
    /// Reads `prompt` tokens with empty caches and makes `tokens` more.
    fn measure(&mut self, prompt: usize, tokens: usize) -> Result<Run, Error> {
        let request = Request {
            prompt: random_tokens(prompt, self.vocab),
            sampling: SamplingParams::default(),
            choice_index: 0,
            max_tokens: tokens,
            stop_tokens: Vec::new(),
            mtp: self.mtp,
        };
        self.engine.reset();
        let mut at = Vec::with_capacity(tokens);
        let outcome = self.engine.generate(&request, &mut |event| {
            if let Event::Token(token) = event {
                at.push(token.at);
            }
            if self.working.is_raised() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if self.working.is_raised() {
            return Err(Error::Interrupted);
        }
        Ok(Run { ttft: outcome.stats.ttft, at })
    }
}

/// The same tokens in every run: a multiplicative generator modulo 2^64, upper bits.
fn random_tokens(count: usize, vocab: usize) -> Vec<u32> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state = state.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        u32::try_from((u128::from(state) * vocab as u128) >> 64).expect("below the vocabulary")
    };
    (0..count).map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_a_prompt_are_in_the_vocabulary_and_not_all_alike() {
        let tokens = random_tokens(1000, 512);
        assert!(tokens.iter().all(|&t| t < 512));
        assert!(tokens.iter().collect::<std::collections::HashSet<_>>().len() > 300);
        assert_eq!(tokens[..10], random_tokens(10, 512));
    }
}
