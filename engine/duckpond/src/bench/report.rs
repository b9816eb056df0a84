//! Figures of a run, for people and for programs.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;

use crate::format::{bytes, count};

/// Everything measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Folder, or `synthetic`.
    pub model: String,
    /// Ducks in this process.
    pub ducks: usize,
    /// Computing threads, also those of the bandwidth.
    pub threads: usize,
    /// Bytes per second that those threads read from memory.
    #[serde(rename = "bandwidth_bytes_per_s")]
    pub bandwidth: f64,
    /// Bytes of weights that one token reads.
    pub active_bytes: u64,
    /// By length.
    pub prefill: Vec<Prefill>,
    /// By length.
    pub decode: Vec<Decode>,
}

/// Reading a prompt.
#[derive(Debug, Serialize)]
pub struct Prefill {
    /// Its length.
    pub tokens: usize,
    /// Until the first token of the answer.
    pub seconds: f64,
    /// Prompt tokens per second.
    pub tokens_per_s: f64,
}

impl Prefill {
    /// From the time to the first token.
    pub fn new(tokens: usize, ttft: Duration) -> Prefill {
        let seconds = ttft.as_secs_f64();
        Prefill { tokens, seconds, tokens_per_s: tokens as f64 / seconds.max(1e-9) }
    }
}

/// Making tokens.
#[derive(Debug, Serialize)]
pub struct Decode {
    /// Tokens in the caches before.
    pub context: usize,
    /// Tokens made; the first comes out of the prompt and is not timed.
    pub tokens: usize,
    /// The first step.
    pub first_ms: f64,
    /// The median step.
    pub median_ms: f64,
    /// The slowest step.
    pub slowest_ms: f64,
    /// Mean over all steps.
    pub tokens_per_s: f64,
    /// First step over median step.
    pub first_over_median: f64,
    /// Median step over the time that reading the active weights once takes.
    pub median_over_read: f64,
}

impl Decode {
    /// From the times at which tokens came (two at least), and the time in seconds that reading the active weights takes.
    pub fn new(context: usize, at: &[Duration], read: f64) -> Decode {
        let steps: Vec<f64> = at.windows(2).map(|pair| pair[1].saturating_sub(pair[0]).as_secs_f64()).collect();
        let mut sorted = steps.clone();
        sorted.sort_by(f64::total_cmp);
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
        let first = steps.first().copied().unwrap_or(0.0);
        let all: f64 = steps.iter().sum();
        Decode {
            context,
            tokens: at.len(),
            first_ms: first * 1e3,
            median_ms: median * 1e3,
            slowest_ms: sorted.last().copied().unwrap_or(0.0) * 1e3,
            tokens_per_s: steps.len() as f64 / all.max(1e-9),
            first_over_median: first / median.max(1e-9),
            median_over_read: median / read.max(1e-9),
        }
    }
}

impl Report {
    /// Seconds that reading the active weights once takes at the measured bandwidth.
    pub fn read_time(&self) -> f64 {
        self.active_bytes as f64 / self.bandwidth.max(1.0)
    }

    /// One JSON object.
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("numbers and texts are JSON");
        text.push('\n');
        text
    }

    /// Two tables under a few lines.
    pub fn table(&self) -> String {
        let mut text = String::new();
        self.write_table(&mut text).expect("writing to a string");
        text
    }

    fn write_table(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "model    {} with {} and {}",
            self.model,
            count(self.ducks, "duck"),
            count(self.threads, "thread")
        )?;
        writeln!(text, "memory   {}/s read by these threads", bytes(self.bandwidth as u64))?;
        writeln!(
            text,
            "weights  {} for each token: {:.3} ms at that rate",
            bytes(self.active_bytes),
            self.read_time() * 1e3
        )?;
        if !self.prefill.is_empty() {
            writeln!(text, "\n{:<8}{:>8}{:>12}{:>12}", "prefill", "tokens", "seconds", "tok/s")?;
        }
        for run in &self.prefill {
            writeln!(text, "{:<8}{:>8}{:>12.3}{:>12.1}", "", run.tokens, run.seconds, run.tokens_per_s)?;
        }
        if !self.decode.is_empty() {
            writeln!(
                text,
                "\n{:<8}{:>8}{:>8}{:>10}{:>11}{:>12}{:>10}{:>14}{:>13}",
                "decode",
                "context",
                "tokens",
                "first ms",
                "median ms",
                "slowest ms",
                "tok/s",
                "first/median",
                "median/read"
            )?;
        }
        for run in &self.decode {
            writeln!(
                text,
                "{:<8}{:>8}{:>8}{:>10.3}{:>11.3}{:>12.3}{:>10.1}{:>14.2}{:>13.2}",
                "",
                run.context,
                run.tokens,
                run.first_ms,
                run.median_ms,
                run.slowest_ms,
                run.tokens_per_s,
                run.first_over_median,
                run.median_over_read
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Report {
        let at = [100, 130, 150, 170, 200, 210].map(Duration::from_millis);
        Report {
            model: "m".into(),
            ducks: 4,
            threads: 2,
            bandwidth: 20e9,
            active_bytes: 200_000_000,
            prefill: vec![Prefill::new(64, Duration::from_millis(500))],
            decode: vec![Decode::new(16, &at, 0.010)],
        }
    }

    #[test]
    fn steps_are_what_lies_between_tokens() {
        let decode = &example().decode[0];
        assert_eq!((decode.tokens, decode.first_ms.round(), decode.median_ms.round()), (6, 30.0, 20.0));
        assert!((decode.tokens_per_s - 5.0 / 0.110).abs() < 1e-6);
        assert!((decode.first_over_median - 1.5).abs() < 1e-6);
        assert!((decode.median_over_read - 2.0).abs() < 1e-6);
    }

    #[test]
    fn the_table_shows_every_run() {
        let expected = "\
model    m with 4 ducks and 2 threads
memory   20.0 GB/s read by these threads
weights  200.0 MB for each token: 10.000 ms at that rate

prefill   tokens     seconds       tok/s
              64       0.500       128.0

decode   context  tokens  first ms  median ms  slowest ms     tok/s  first/median  median/read
              16       6    30.000     20.000      30.000      45.5          1.50         2.00
";
        assert_eq!(example().table(), expected);
    }

    #[test]
    fn json_names_units() {
        let json: serde_json::Value = serde_json::from_str(&example().json()).expect("it is JSON");
        assert_eq!(json["bandwidth_bytes_per_s"], 20e9);
        assert_eq!(json["prefill"][0]["tokens_per_s"], 128.0);
        assert_eq!(json["decode"][0]["tokens"], 6);
    }
}
