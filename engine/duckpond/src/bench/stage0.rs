//! `duckpond bench stage0`: the host's half of a model on a GPU, alone. Weights are random and made on the card; the floor is the time that reading their
//! bytes once takes at the bandwidth measured in the same run.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use decode::Stage0;
use host::cuda::{CudaOptions, CudaStage, KernelTime, Measurement};
use host::stage::Layers;
use model::synthetic::{self, Dims};
use serde::Serialize;

use super::stage_error;
use crate::cli::{KnownDims, Stage0Args};
use crate::error::Error;
use crate::loaded::numerics;
use crate::settings::Settings;
use crate::{output, progress};

/// Lanes that are read as a prompt is, from here on.
const FEW: usize = 8;

/// Runs the command.
///
/// # Errors
/// No GPU that can be used, or too little memory on it.
pub fn run(args: &Stage0Args, settings: &Settings) -> Result<(), Error> {
    let numerics = numerics(settings.numerics, Stage0::Cuda);
    let dims = match args.dims {
        KnownDims::DeepseekV32 => Dims::deepseek_v32(),
    };
    super::need_gpu()?;
    let model = Arc::new(super::synthetic::load(&dims, synthetic::write_hollow)?);
    let lanes = args.lanes as usize;
    let position = args.context as usize;
    let positions = (position + lanes).next_multiple_of(4096).max(4096);
    let cuda = CudaOptions {
        random: Some(1),
        bound: Duration::ZERO,
        passes: 1,
        ..CudaOptions::new(numerics, lanes.max(FEW), 1, positions)
    };
    let mut measured =
        progress::spinner("making random weights on the GPU", || CudaStage::new(model.clone(), cuda, &mut |_, _| ()))
            .map_err(stage_error)?;
    let bandwidth = measured.measure_bandwidth().map_err(stage_error)?;
    let what = Measurement { layers: Layers::Main, lanes, position, logits: 1, repeats: args.repeats as usize };
    let seconds = measured.measure_pass(&what).map_err(stage_error)?;
    let kernels = if args.kernels { measured.measure_kernels(&what).map_err(stage_error)? } else { Vec::new() };
    let bytes = measured.pass_bytes(Layers::Main);
    let report = Report {
        gpu: measured.properties().name.clone(),
        dims: "deepseek-v3.2",
        numerics: numerics.name(),
        lanes,
        context: position,
        layers: dims.layers,
        bandwidth,
        bytes,
        seconds,
        floor: bytes as f64 / bandwidth,
        kernels: kernels.iter().map(|kernel| Kernel::new(kernel, bandwidth)).collect(),
    };
    let text = if args.json { report.json() } else { report.table() };
    output::print(&text).map_err(Error::Output)
}

/// What was measured. Times in seconds, bandwidth in bytes a second.
#[derive(Debug, Serialize)]
struct Report {
    gpu: String,
    dims: &'static str,
    numerics: &'static str,
    lanes: usize,
    context: usize,
    layers: usize,
    bandwidth: f64,
    /// Of weights that a pass reads, each once.
    bytes: u64,
    /// One pass from its first kernel to its last.
    seconds: f64,
    floor: f64,
    kernels: Vec<Kernel>,
}

/// All launches of one kernel in a pass, each timed alone.
#[derive(Debug, Serialize)]
struct Kernel {
    name: &'static str,
    launches: usize,
    seconds: f64,
    floor: f64,
}

impl Kernel {
    fn new(time: &KernelTime, bandwidth: f64) -> Kernel {
        let floor = time.bytes as f64 / bandwidth;
        Kernel { name: time.kernel.name(), launches: time.launches, seconds: time.seconds, floor }
    }
}

impl Report {
    fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("numbers and texts have a form");
        format!("{text}\n")
    }

    fn table(&self) -> String {
        let layers = self.layers as f64;
        let micro = |seconds: f64| seconds * 1e6;
        let mut out = String::new();
        let mut line = |name: &str, value: String| {
            writeln!(out, "{name:<9} {value}").expect("texts can be written");
        };
        line("gpu", format!("{}, {:.2} TB/s read", self.gpu, self.bandwidth / 1e12));
        line(
            "model",
            format!(
                "{} in {}, {:.1} GB of stage 0's weights, random",
                self.dims,
                self.numerics,
                self.bytes as f64 / 1e9
            ),
        );
        line(
            "pass",
            format!(
                "{} {} behind {} cached tokens",
                self.lanes,
                if self.lanes == 1 { "lane" } else { "lanes" },
                self.context
            ),
        );
        line("time", format!("{:.3} ms, {:.1} us a layer", self.seconds * 1e3, micro(self.seconds) / layers));
        line(
            "floor",
            format!("{:.3} ms, {:.1} us a layer: each weight read once", self.floor * 1e3, micro(self.floor) / layers),
        );
        line(
            "above it",
            format!(
                "{:.1} us a layer; {:.2} times the floor",
                micro(self.seconds - self.floor) / layers,
                self.seconds / self.floor
            ),
        );
        if self.lanes > FEW {
            line("prefill", format!("{:.0} tok/s", self.lanes as f64 / self.seconds));
        }
        if !self.kernels.is_empty() {
            let head = ["kernel", "launches", "us a layer", "floor", "above"];
            writeln!(out, "\n{:<20} {:>8} {:>11} {:>9} {:>9}", head[0], head[1], head[2], head[3], head[4])
                .expect("texts can be written");
        }
        for kernel in &self.kernels {
            let (time, floor) = (micro(kernel.seconds) / layers, micro(kernel.floor) / layers);
            writeln!(out, "{:<20} {:>8} {time:>11.1} {floor:>9.1} {:>9.1}", kernel.name, kernel.launches, time - floor)
                .expect("texts can be written");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_divides_by_layers() {
        let kernel = Kernel { name: "linear_one", launches: 4, seconds: 4e-6, floor: 2e-6 };
        let report = Report {
            gpu: "card".into(),
            dims: "deepseek-v3.2",
            numerics: "bf16",
            lanes: 16,
            context: 7,
            layers: 2,
            bandwidth: 1e12,
            bytes: 2_000_000,
            seconds: 3e-6,
            floor: 2e-6,
            kernels: vec![kernel],
        };
        let table = report.table();
        assert!(table.contains("time      0.003 ms, 1.5 us a layer\n"), "{table}");
        assert!(table.contains("above it  0.5 us a layer; 1.50 times the floor\n"), "{table}");
        assert!(table.contains("prefill   5333333 tok/s\n"), "{table}");
        assert!(table.ends_with("linear_one                  4         2.0       1.0       1.0\n"), "{table}");
    }
}
