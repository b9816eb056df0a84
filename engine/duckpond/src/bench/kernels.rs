//! `duckpond bench kernels`: whole steps of experts beside plain reads of memory, and the products themselves beside other ways
//! of computing them from the cache.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

use fp9::bench::Measurement;
use kernels::bench::StepSpeed;
use serde::Serialize;

use super::bandwidth;
use crate::cli::KernelsArgs;
use crate::error::Error;
use crate::format::bytes;
use crate::settings::Settings;
use crate::{output, progress};

/// Runs the command.
///
/// # Errors
/// A working set that does not fit into memory; a processor that cannot be measured.
pub fn run(args: &KernelsArgs, settings: &Settings) -> Result<(), Error> {
    check_memory(args.bytes)?;
    let threads = if settings.threads == 0 { bandwidth::all_threads() } else { settings.threads };
    let mut report = Report { machine: machine(), threads, bytes: args.bytes, ..Report::default() };
    progress::spinner("measuring", || report.measure()).map_err(Error::Kernels)?;
    let text = if args.json { report.json() } else { report.table() };
    output::print(&text).map_err(Error::Output)
}

/// The working set exists twice, with small and with huge pages. Where the system does not tell what is free, nothing is refused.
fn check_memory(working_set: u64) -> Result<(), Error> {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    match available(&text) {
        Some(free) if working_set > free / 2 => Err(Error::Length {
            what: "--bytes",
            found: usize::try_from(working_set).unwrap_or(usize::MAX),
            allowed: format!("at most {}, half of the memory that is free", free / 2),
        }),
        _ => Ok(()),
    }
}

fn available(meminfo: &str) -> Option<u64> {
    let kib = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB"))?;
    kib.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// The processor's name, as Linux knows it.
fn machine() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| "unknown".to_owned(), |(_, name)| crate::error::one_line(name.trim()))
}

/// A figure by format and then by number of threads, or by whatever tells figures of a name apart.
type Table = BTreeMap<&'static str, BTreeMap<usize, f64>>;

/// Everything measured. Gigabytes are 10^9 bytes.
#[derive(Debug, Default, Serialize)]
struct Report {
    machine: String,
    threads: usize,
    bytes: u64,
    /// The fastest plain read.
    read_gbps: Table,
    /// Packed weights of a step over its time.
    gemv_gbps: Table,
    gemv_to_read: Table,
    /// Nine-bit lanes over a sign and a word for each weight, from the cache.
    lanes_to_signword: f64,
    e4m3_to_signword: f64,
    /// Weights per second of a whole step from memory, over those of signword from memory, one thread, by format.
    memory_to_signword: BTreeMap<String, f64>,
    /// The time of two vectors at once over that of one, by format.
    two_to_one: BTreeMap<String, f64>,
    /// Multiplications of 16 vectors over the most that a core can do, by format and shape.
    batch16_to_peak: BTreeMap<String, f64>,
    steps: Vec<StepSpeed>,
    products: Vec<Product>,
}

/// A figure as the crate of the products names it.
#[derive(Debug, Serialize)]
struct Product {
    name: String,
    value: f64,
    unit: &'static str,
}

impl Report {
    fn measure(&mut self) -> std::io::Result<()> {
        let bytes = usize::try_from(self.bytes).unwrap_or(usize::MAX);
        let steps = kernels::bench::Options { bytes, threads: self.threads, ..Default::default() };
        kernels::bench::step_speed(steps, &mut |speed| self.step(speed))?;
        if let Some(signword) = fp9::bench::signword_from_memory(bytes) {
            for speed in self.steps.iter().filter(|speed| speed.threads == 1) {
                let bits = if speed.format == "fp9" { 9.0 } else { 8.0 };
                self.memory_to_signword.insert(speed.format.to_string(), speed.gemv_gbps * 8.0 / bits / signword);
            }
        }
        // Without threads nothing is read from memory: steps have done that already, as ducks do it.
        let products = fp9::bench::Options { threads: 0, ..Default::default() };
        fp9::bench::run(products, &mut |figure| self.product(figure))
    }

    fn step(&mut self, speed: &StepSpeed) {
        let figures = [
            (&mut self.read_gbps, speed.read_gbps),
            (&mut self.gemv_gbps, speed.gemv_gbps),
            (&mut self.gemv_to_read, speed.gemv_to_read),
        ];
        for (table, value) in figures {
            table.entry(speed.format).or_default().insert(speed.threads, value);
        }
        self.steps.push(speed.clone());
    }

    fn product(&mut self, figure: &Measurement) {
        let Measurement { name, value, unit } = figure;
        match name.strip_prefix("cache/").unwrap_or_default() {
            "lanes_to_signword" => self.lanes_to_signword = *value,
            "e4m3_to_signword" => self.e4m3_to_signword = *value,
            other => {
                if let Some(format) = other.strip_prefix("two_to_one ") {
                    self.two_to_one.insert(format.to_owned(), *value);
                }
            }
        }
        if let Some(shape) = name.strip_prefix("batch/").and_then(|rest| rest.strip_suffix(" times 16 to_peak")) {
            self.batch16_to_peak.insert(shape.to_lowercase(), *value);
        }
        self.products.push(Product { name: name.clone(), value: *value, unit });
    }

    fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("numbers and texts are JSON");
        text.push('\n');
        text
    }

    fn table(&self) -> String {
        let mut text = String::new();
        self.write_table(&mut text).expect("writing to a string");
        text
    }

    fn write_table(&self, text: &mut String) -> std::fmt::Result {
        writeln!(text, "machine  {}", self.machine)?;
        writeln!(text, "memory   {} of weights", bytes(self.bytes))?;
        writeln!(
            text,
            "\n{:<8}{:>8}{:>12}{:>12}{:>12}{:>11}",
            "step", "threads", "read GB/s", "step GB/s", "step µs", "step/read"
        )?;
        for s in &self.steps {
            writeln!(
                text,
                "{:<8}{:>8}{:>12.2}{:>12.2}{:>12.1}{:>11.3}",
                s.format, s.threads, s.read_gbps, s.gemv_gbps, s.step_us, s.gemv_to_read
            )?;
        }
        writeln!(text, "\nproducts of one core")?;
        for Product { name, value, unit } in &self.products {
            writeln!(text, "  {name:<40}{value:>10.3} {unit}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_by_their_names() {
        let mut report = Report::default();
        let figures = [
            ("cache/lanes_to_signword", 1.5),
            ("cache/e4m3_to_signword", 2.5),
            ("cache/two_to_one fp9", 1.25),
            ("batch/E4m3 64x7168 times 16", 40.0),
            ("batch/E4m3 64x7168 times 16 to_peak", 0.75),
            ("batch/E4m3 64x7168 times 512 to_peak", 0.5),
        ];
        for (name, value) in figures {
            report.product(&Measurement { name: name.into(), value, unit: "ratio" });
        }
        assert_eq!((report.lanes_to_signword, report.e4m3_to_signword), (1.5, 2.5));
        assert_eq!(report.two_to_one, BTreeMap::from([("fp9".to_owned(), 1.25)]));
        assert_eq!(report.batch16_to_peak, BTreeMap::from([("e4m3 64x7168".to_owned(), 0.75)]));
        assert_eq!(report.products.len(), figures.len());
    }

    #[test]
    fn the_table_shows_every_step_and_product() {
        let mut report = Report { machine: "m".into(), bytes: 2_000_000_000, ..Report::default() };
        report.step(&StepSpeed {
            format: "fp9",
            threads: 2,
            read_gbps: 20.0,
            gemv_gbps: 18.0,
            gemv_to_read: 0.9,
            step_us: 500.0,
            gemv_gbps_small_pages: 17.0,
            reads_gbps: [20.0; 4],
        });
        report.product(&Measurement { name: "cache/fp9".into(), value: 16.5, unit: "Gparam/s" });
        let expected = "\
machine  m
memory   2.0 GB of weights

step     threads   read GB/s   step GB/s     step µs  step/read
fp9            2       20.00       18.00       500.0      0.900

products of one core
  cache/fp9                                   16.500 Gparam/s
";
        assert_eq!(report.table(), expected);
        assert_eq!(report.gemv_to_read["fp9"][&2], 0.9);
    }

    #[test]
    fn free_memory_is_read_in_bytes() {
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        assert_eq!(available("MemTotal: 9 kB\n"), None);
        assert!(check_memory(1 << 50).is_err());
    }
}
