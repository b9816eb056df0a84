//! `duckpond verify`: reads a converted folder back.

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use model::converted::{self, VerifyReport};

use crate::error::{Error, one_line};
use crate::format::{bytes, count, grouped};
use crate::output;
use crate::progress::ByteBar;
use crate::settings::Settings;

/// Runs the command.
///
/// # Errors
/// A folder that cannot be read; or, after all of them were listed, faults.
pub fn run(folder: &Path, settings: &Settings) -> Result<(), Error> {
    let began = Instant::now();
    let threads = settings.threads;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|source| Error::Threads { threads, source })?;
    let bar = ByteBar::begin();
    let report = pool.install(|| converted::verify(folder, &|progress| bar.update(progress)));
    bar.clear();
    let report = report.map_err(Error::Verify)?;
    output::print(&text(folder, &report, began.elapsed())).map_err(Error::Output)?;
    match report.faults.len() {
        0 => Ok(()),
        faults => Err(Error::Damaged { folder: folder.into(), faults: count(faults, "fault") }),
    }
}

fn text(folder: &Path, report: &VerifyReport, time: Duration) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| writeln!(text, "{name:<14}{value}").expect("writing to a string");
    line("verified", &one_line(&folder.display().to_string()));
    let seconds = time.as_secs_f64();
    line(
        "files",
        &format!(
            "{} with {} and {} blocks, in {seconds:.1} s",
            count(report.files, "file"),
            bytes(report.bytes),
            grouped(report.blocks)
        ),
    );
    for fault in &report.faults {
        line("fault", &one_line(&fault.to_string()));
    }
    line("state", if report.faults.is_empty() { "undamaged" } else { "damaged" });
    text
}
