//! The CUDA stage on a real GPU: against golden data, the plain reference and the CPU stage, and against itself bit by bit.
//!
//! Without a GPU these tests say so and pass; with `DUCKPOND_REQUIRE_GPU=1` they fail then. `DUCKPOND_TEST_GRAPHS=0` and `DUCKPOND_TEST_OVERLAP=0`
//! leave out graphs and early starts, to find out which of them a fault lies in. A program that was carried to another machine runs in the
//! repository's root.

mod bench;
mod bits;
mod faults;
mod golden_values;
mod measure;
mod operations;
mod questions;
mod trace;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use host::cuda::{CudaOptions, CudaStage, probe};
use model::Numerics;
use model::program::Model;
use pond_tests::subjects;

/// Lanes of the largest pass.
const MAX_LANES: usize = 2048;

/// Says what the tests run on, or that they cannot.
fn has_gpu() -> bool {
    let probe = probe();
    let why = match (&probe.device, &probe.nvrtc) {
        (Ok(device), Ok(_)) => {
            let _ = writeln!(std::io::stderr(), "on {} (CUDA {})", device.name, device.driver_text());
            return true;
        }
        (Err(error), _) | (_, Err(error)) => error.to_string(),
    };
    // Not by `println!`, whose lines a passing test keeps to itself.
    let _ = writeln!(std::io::stderr(), "the CUDA stage is not tested: {why}");
    let required = std::env::var("DUCKPOND_REQUIRE_GPU").is_ok_and(|value| value == "1");
    assert!(!required, "DUCKPOND_REQUIRE_GPU is set, and {why}");
    false
}

fn options(model: &Model, numerics: Numerics, sources: usize) -> CudaOptions {
    let on = |name| std::env::var(name).map_or(true, |value| value != "0");
    let mut options = CudaOptions::new(numerics, MAX_LANES, sources, model.dims.max_positions.min(MAX_LANES));
    options.bound = Duration::from_secs(10);
    options.poison = true;
    options.graphs = on("DUCKPOND_TEST_GRAPHS");
    options.overlap = on("DUCKPOND_TEST_OVERLAP");
    options
}

fn gpu_stage(model: Arc<Model>, options: CudaOptions) -> CudaStage {
    CudaStage::new(model, options, &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"))
}

fn subjects() -> Vec<(&'static str, Model)> {
    subjects::all().into_iter().map(|subject| (subject.name, subject.model)).collect()
}

fn tokens(model: &Model, count: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 33) % (model.dims.vocab as u64 - 2)) as u32 + 2
        })
        .collect()
}

fn report(faults: &[String]) {
    for fault in faults.iter().take(60) {
        let _ = writeln!(std::io::stderr(), "{fault}");
    }
    assert!(faults.is_empty(), "{} operations differ; the first: {}", faults.len(), faults[0]);
}
