//! What `bench pond` makes of the times: a table, or JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::clock::Nanos;
use super::ducks::{Log, Step};
use super::timed::Wait;
use super::wire::Seen;

/// Middle and upper end of some times, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Half are shorter.
    pub median: f64,
    /// One in a hundred is longer.
    pub p99: f64,
    /// All of them, by their number.
    pub mean: f64,
}

impl Spread {
    /// Of nanoseconds, at least one; negative ones count as what they are.
    pub fn of(mut times: Vec<i64>) -> Spread {
        times.sort_unstable();
        let micros = |nanos: i64| nanos as f64 / 1e3;
        let at = |part: usize| times.get((times.len() * part / 100).min(times.len().saturating_sub(1))).copied();
        let sum: i64 = times.iter().sum();
        let (median, p99) = (at(50).map_or(0.0, micros), at(99).map_or(0.0, micros));
        Spread { median, p99, mean: micros(sum) / times.len().max(1) as f64 }
    }
}

/// What was asked for, and what ran.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Setting {
    /// Whose sizes.
    pub dims: String,
    /// Where numbers are rounded.
    pub numerics: String,
    /// The card, or `cpu`.
    pub stage0: String,
    /// Layers with experts, which is steps of a token.
    pub steps: usize,
    /// Modelled.
    pub ducks: usize,
    /// Domains.
    pub ports: usize,
    /// Speed of a duck's cable.
    pub mbit: u32,
    /// Speed of a port.
    pub host_mbit: u32,
    /// Of the switch, in microseconds.
    pub hop_us: f64,
    /// Of a duck in a step of one lane, in microseconds.
    pub duck_us: f64,
    /// Tokens in the caches when measuring began.
    pub context: usize,
    /// Tokens measured.
    pub tokens: usize,
}

/// Frames of a step: least and most over the measured steps, and bytes of the last, Ethernet headers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Frames {
    /// Least.
    pub least: u64,
    /// Most.
    pub most: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What a calm run has none of. With `host_nodes` there is no report; with others the times are those of a pond in trouble.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Checks {
    /// Units of every layer that the host computes, and nodes that others took over.
    pub host_nodes: u64,
    /// Frames for which the host had no room.
    pub lost: u64,
    /// Frames that a duck did not understand.
    pub bad: u64,
    /// Times that either side asked for something again.
    pub asked: u64,
    /// Blocks that were sent.
    pub blocks: u64,
    /// Measured steps of a port of which the model wrote a frame too late for its own arrival, and by how many microseconds at most.
    pub late: u64,
    /// See there.
    pub late_us: u64,
}

/// The times that were taken, all of the measured steps and tokens alone.
#[derive(Debug)]
pub struct Times<'a> {
    /// Of tokens.
    pub tokens: &'a [Nanos],
    /// By step: as the host's loop saw it.
    pub waits: &'a [Wait],
    /// By step: when the card handed over and when its wait ended, if there is a card.
    pub card: Option<&'a [[u64; 2]]>,
    /// By domain and step.
    pub domains: Vec<&'a [Step]>,
    /// By domain, of the whole run.
    pub seen: &'a [Seen],
    /// The first measured step.
    pub first: usize,
}

/// The result.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// What ran.
    pub setting: Setting,
    /// Of input, results and verdicts, over all domains.
    pub frames: [Frames; 3],
    /// A second.
    pub tokens_per_second: f64,
    /// A token, from one to the next.
    pub token_us: Spread,
    /// A step, from the hand-over to the end of the wait for it.
    pub step_us: Spread,
    /// A step's ducks and wires.
    pub model_us: Spread,
    /// A step's time that is neither stage 0's nor the ducks' nor the wires'.
    pub rest_us: Spread,
    /// Of that: from where the host knows of the hand-over to where all domains have sent.
    pub out_us: Spread,
    /// Of that: from where the last frame has arrived to where the stage is called.
    pub in_us: Spread,
    /// Of the latter: to where the last frame was handed to its port's thread.
    pub lag_us: Spread,
    /// Nanoseconds that a port's thread needs for a frame, of the whole run.
    pub frame_ns: f64,
    /// Of that: between host and card, with what is copied there.
    pub card_us: Option<Spread>,
    /// A token's stage 0: all that is outside steps.
    pub stage0_us: Spread,
    /// A token's ducks and wires.
    pub token_model_us: f64,
    /// A token's rest.
    pub token_rest_us: f64,
    /// What a calm run has none of.
    pub checks: Checks,
}

impl Report {
    /// Puts the times together.
    pub fn new(setting: Setting, times: &Times<'_>, checks: Checks, frames: [Frames; 3]) -> Report {
        let steps = setting.steps.max(1);
        let longest = |at: usize| times.domains.iter().map(|d| d[at].modelled()).max().unwrap_or(0);
        let model: Vec<i64> = (0..times.waits.len()).map(longest).collect();
        let arrived = |at: usize| times.domains.iter().map(|d| d[at].arrived).max().unwrap_or(0);
        let sent = |at: usize| times.domains.iter().map(|d| d[at].sent).max().unwrap_or(0);
        let seen: Vec<i64> = times.waits.iter().map(|w| span(w.handed, w.taken)).collect();
        let step: Vec<i64> = match times.card {
            Some(card) => card.iter().map(|[handed, ended]| span(*handed, *ended)).collect(),
            None => seen.clone(),
        };
        // On a CPU the host's own half may outlast the ducks; on a card it runs beside them and nobody waits for it here.
        let own = |at: usize| span(arrived(at), times.waits[at].own).max(0);
        let rest: Vec<i64> = (0..step.len()).map(|at| step[at] - model[at] - own(at)).collect();
        let outside: Vec<i64> = times
            .tokens
            .iter()
            .zip(step.chunks(steps))
            .map(|(&token, steps)| token as i64 - steps.iter().sum::<i64>())
            .collect();
        let token_us = Spread::of(times.tokens.iter().map(|&t| t as i64).collect());
        let per_token = |spread: Spread| spread.mean * steps as f64;
        let (model_us, rest_us) = (Spread::of(model.clone()), Spread::of(rest));
        let waits = times.waits.iter().enumerate();
        let handed = |at: usize| times.seen.iter().map(|s| s.last[times.first + at]).max().unwrap_or(0);
        let lags = (0..times.waits.len()).map(|at| span(arrived(at), handed(at)));
        let sum = |of: fn(&Seen) -> u64| times.seen.iter().map(of).sum::<u64>() as f64;
        Report {
            frames,
            tokens_per_second: 1e6 / token_us.mean,
            token_us,
            step_us: Spread::of(step.clone()),
            model_us,
            rest_us,
            out_us: Spread::of(waits.clone().map(|(at, w)| span(w.handed, sent(at))).collect()),
            in_us: Spread::of(waits.map(|(at, w)| span(arrived(at).max(w.own), w.taken)).collect()),
            lag_us: Spread::of(lags.collect()),
            frame_ns: sum(|seen| seen.busy) / sum(|seen| seen.frames).max(1.0),
            card_us: times.card.map(|_| Spread::of(step.iter().zip(&seen).map(|(card, host)| card - host).collect())),
            stage0_us: Spread::of(outside),
            token_model_us: per_token(model_us),
            token_rest_us: per_token(rest_us),
            checks,
            setting,
        }
    }

    /// Frames of the measured steps, of domains that counted each step.
    pub fn frames(logs: &[Log], first: usize) -> [Frames; 3] {
        let steps = logs.iter().map(|log| log.traffic.len()).min().unwrap_or(0);
        let mut all = [Frames { least: u64::MAX, ..Frames::default() }; 3];
        for at in first..steps {
            for (which, frames) in all.iter_mut().enumerate() {
                let here = logs
                    .iter()
                    .fold(Default::default(), |sum: super::ducks::Traffic, log| sum.plus(log.traffic[at][which]));
                frames.least = frames.least.min(here.frames);
                frames.most = frames.most.max(here.frames);
                frames.bytes = here.bytes;
            }
        }
        all
    }

    /// For programs.
    pub fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("numbers and texts have a form");
        format!("{text}\n")
    }

    /// For people.
    pub fn table(&self) -> String {
        let Setting { dims, numerics, stage0, steps, ducks, ports, mbit, host_mbit, hop_us, duck_us, context, tokens } =
            &self.setting;
        let mut out = String::new();
        let mut line = |name: &str, value: String| {
            writeln!(out, "{name:<9} {value}").expect("texts can be written");
        };
        let gbit = |mbit: u32| f64::from(mbit) / 1e3;
        let ms = |micros: f64| micros / 1e3;
        line("model", format!("{dims} in {numerics}, random weights, stage 0 on {stage0}, {steps} steps a token"));
        line(
            "ducks",
            format!(
                "{ducks} modelled, {duck_us:.0} us a step, {} Gb/s each; {ports} ports of {} Gb/s, {hop_us} us a hop",
                gbit(*mbit),
                gbit(*host_mbit)
            ),
        );
        let [input, results, verdicts] = &self.frames;
        let count = |frames: &Frames| match frames.least == frames.most {
            true => frames.most.to_string(),
            false => format!("{} to {}", frames.least, frames.most),
        };
        line(
            "frames",
            format!(
                "a step: {} of input ({} bytes), {} of results ({} bytes), {} verdicts",
                count(input),
                input.bytes,
                count(results),
                results.bytes,
                count(verdicts)
            ),
        );
        line(
            "speed",
            format!(
                "{:.2} tok/s, {:.3} ms a token (99%: {:.3}), {tokens} tokens behind {context}",
                self.tokens_per_second,
                ms(self.token_us.mean),
                ms(self.token_us.p99)
            ),
        );
        line(
            "token",
            format!(
                "stage 0 {:.3} ms, ducks and wires {:.3} ms, rest {:.3} ms",
                ms(self.stage0_us.mean),
                ms(self.token_model_us),
                ms(self.token_rest_us)
            ),
        );
        line(
            "step",
            format!(
                "{:.1} us: ducks and wires {:.1}, rest {:.1} (99%: {:.1}, mean {:.1})",
                self.step_us.median, self.model_us.median, self.rest_us.median, self.rest_us.p99, self.rest_us.mean
            ),
        );
        let spread = |s: &Spread| format!("{:.1} us (99%: {:.1})", s.median, s.p99);
        line("out", format!("{} from the hand-over until all ports have sent", spread(&self.out_us)));
        line(
            "in",
            format!(
                "{} from the last frame until the stage has the sums; {} of that until its port's thread has it, at {:.0} ns a frame",
                spread(&self.in_us),
                spread(&self.lag_us),
                self.frame_ns
            ),
        );
        if let Some(card) = &self.card_us {
            line("card", format!("{} between host and card, with what is copied there", spread(card)));
        }
        let Checks { host_nodes, lost, bad, asked, blocks, late, late_us } = self.checks;
        line(
            "checks",
            format!(
                "{host_nodes} nodes computed by others, {lost} frames lost, {bad} bad, {asked} questions, {blocks} blocks sent; {late} steps modelled late, by {late_us} us at most"
            ),
        );
        out
    }
}

fn span(from: Nanos, to: Nanos) -> i64 {
    to as i64 - from as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_the_model_and_the_rest() {
        let setting = Setting { steps: 2, ..Setting::default() };
        // Two tokens of two steps; the second domain is the slower one.
        let wait = |at: u64| Wait { handed: at, own: at + 1_000, taken: at + 60_000 };
        let waits = [wait(100_000), wait(200_000), wait(300_000), wait(400_000)];
        let step = |at: u64, took: u64| Step { sent: at + 4_000, behind: 1_000, arrived: at + 5_000 + took, late: 0 };
        let seen = [Seen { last: waits.iter().map(|w| w.handed + 53_000).collect(), frames: 4, busy: 1_000 }];
        let fast: Vec<Step> = waits.iter().map(|w| step(w.handed, 30_000)).collect();
        let slow: Vec<Step> = waits.iter().map(|w| step(w.handed, 45_000)).collect();
        let times = Times {
            tokens: &[150_000, 170_000],
            waits: &waits,
            card: None,
            domains: vec![&fast, &slow],
            seen: &seen,
            first: 0,
        };
        let report = Report::new(setting.clone(), &times, Checks::default(), [Frames::default(); 3]);
        assert_eq!(report.model_us.median, 45.0);
        assert_eq!(report.rest_us, Spread { median: 15.0, p99: 15.0, mean: 15.0 });
        assert_eq!((report.out_us.median, report.in_us.median, report.lag_us.median), (4.0, 10.0, 3.0));
        assert_eq!(report.frame_ns, 250.0);
        assert_eq!((report.stage0_us.mean, report.token_model_us, report.token_rest_us), (40.0, 90.0, 30.0));
        assert_eq!(report.tokens_per_second, 6250.0);
        // The card's wait is longer than what the host sees of it.
        let card: Vec<[u64; 2]> = (0..4).map(|at| [at * 1_000_000, at * 1_000_000 + 62_000]).collect();
        let times = Times { card: Some(&card), ..times };
        let report = Report::new(setting, &times, Checks::default(), [Frames::default(); 3]);
        assert_eq!((report.rest_us.median, report.card_us.map(|s| s.median)), (17.0, Some(2.0)));
    }

    #[test]
    fn percentiles_are_of_the_sorted_times() {
        let spread = Spread::of((0..200).rev().map(|n| n * 1000).collect());
        assert_eq!(spread, Spread { median: 100.0, p99: 198.0, mean: 99.5 });
        assert_eq!(Spread::of(vec![-3000]).median, -3.0);
    }
}
