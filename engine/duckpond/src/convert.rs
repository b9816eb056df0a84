//! `duckpond convert`: a checkpoint once and for all cut into the units that ducks hold.

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use fp9::Format;
use model::arch::LoadError;
use model::checkpoint::Checkpoint;
use model::converted::{self, FormatChoice, Options, Report, RoundingReport};

use crate::cli::{ConvertArgs, ExpertFormat};
use crate::error::Error;
use crate::format::{bytes, count, grouped};
use crate::output;
use crate::progress::ByteBar;
use crate::settings::Settings;
use crate::signals::LastWords;

/// Runs the command.
///
/// # Errors
/// A checkpoint that cannot be converted, a folder that cannot be written; what is there is kept for the next attempt.
pub fn run(args: &ConvertArgs, settings: &Settings) -> Result<(), Error> {
    let began = Instant::now();
    let checkpoint = Checkpoint::open(&args.checkpoint).map_err(LoadError::from)?;
    let options = Options { format: choice(args.format), threads: settings.threads, ..Options::default() };
    let report = {
        let _words = LastWords::begin("duckpond: stopped; the same command goes on from here");
        let bar = ByteBar::begin();
        let report = converted::convert(&checkpoint, &args.out, &options, &|progress| bar.update(progress));
        bar.clear();
        report.map_err(Error::Convert)?
    };
    output::print(&text(&args.out, &report, began.elapsed())).map_err(Error::Output)
}

fn choice(format: ExpertFormat) -> FormatChoice {
    match format {
        ExpertFormat::Auto => FormatChoice::Auto,
        ExpertFormat::E4m3 => FormatChoice::Only(Format::E4m3),
        ExpertFormat::Fp9 => FormatChoice::Only(Format::Fp9),
        ExpertFormat::Bf16 => FormatChoice::Only(Format::Bf16),
    }
}

fn text(folder: &Path, report: &Report, time: Duration) -> String {
    let model = &report.manifest.model;
    let mut text = String::new();
    let mut line = |name: &str, value: &str| writeln!(text, "{name:<14}{value}").expect("writing to a string");
    line("converted", &crate::error::one_line(&folder.display().to_string()));
    // The manifest is a file, too.
    let files = count(report.manifest.files.len() + 1, "file");
    line("files", &format!("{files} with {}, {} of them slices", bytes(report.bytes), model.slices));
    line("experts", &format!("{} ({})", model.format, rounding(&report.rounding)));
    let seconds = time.as_secs_f64();
    let rate = bytes((report.written as f64 / seconds.max(1e-3)) as u64);
    line(
        "written",
        &match report.written {
            0 => format!("nothing, everything was there; {seconds:.1} s"),
            written => format!("{} in {seconds:.1} s, {rate}/s", bytes(written)),
        },
    );
    text
}

/// What storing the experts so did to their weights.
pub fn rounding(report: &RoundingReport) -> String {
    if report.is_exact() {
        return "every weight as in the checkpoint".to_owned();
    }
    let RoundingReport { weights, changed, flushed, max_relative, .. } = *report;
    let zeros = if flushed > 0 { format!(", {} became 0", grouped(flushed)) } else { String::new() };
    format!(
        "{} of {} weights rounded{zeros}; error {:.3} % rms, {:.3} % at most",
        grouped(changed),
        grouped(weights),
        report.relative_rms() * 100.0,
        max_relative * 100.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_told_only_if_there_was_any() {
        let exact = RoundingReport { weights: 10, squared_weight: 4.0, ..RoundingReport::default() };
        assert_eq!(rounding(&exact), "every weight as in the checkpoint");
        let rounded = RoundingReport { changed: 9, flushed: 2, max_relative: 0.03125, squared_error: 0.0004, ..exact };
        assert_eq!(rounding(&rounded), "9 of 10 weights rounded, 2 became 0; error 1.000 % rms, 3.125 % at most");
    }
}
