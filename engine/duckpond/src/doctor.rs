//! `duckpond doctor`: what of this machine the engine would use for a model, and what is missing.
//!
//! The GPU part is here; what the processors, huge pages and ports are like is said by [`crate::host_setup`].

use std::fmt::Write as _;

use host::cuda::{CudaOptions, NVRTC_VARIABLE, Needs, Probe};
use model::Numerics;
use model::program::Model;

use crate::error::Error;
use crate::format::bytes;
use crate::loaded::Opened;
use crate::settings::Settings;
use crate::{host_setup, output};

/// Runs the command.
///
/// # Errors
/// A model that cannot be opened, a pond's description that is wrong.
pub fn run(settings: &Settings) -> Result<(), Error> {
    let opened = Opened::open(settings)?;
    let probe = host::cuda::probe();
    let mut text = gpu(&probe);
    if let Ok(device) = &probe.device {
        text += &fits(&opened.model, opened.max_len, settings.chunk, device.free);
    }
    text += "\n";
    text += &host_setup::findings(settings)?;
    output::print(&text).map_err(Error::Output)
}

fn line(out: &mut String, name: &str, value: &str) {
    writeln!(out, "{name:<12} {value}").expect("texts can be written");
}

/// The card and its compiler.
fn gpu(probe: &Probe) -> String {
    let mut out = String::new();
    match &probe.device {
        Ok(device) => {
            line(
                &mut out,
                "gpu",
                &format!("{}, sm_{}, driver {}", device.name, device.architecture(), device.driver_text()),
            );
            line(&mut out, "gpu memory", &format!("{}, {} free", bytes(device.total), bytes(device.free)));
        }
        Err(error) => line(&mut out, "gpu", &format!("not used: {error}")),
    }
    match &probe.nvrtc {
        Ok((version, file)) => line(&mut out, "nvrtc", &format!("{version}, {file}")),
        Err(error) => {
            let help =
                format!("not found: {error}; `pip install nvidia-cuda-nvrtc-cu12`, then {NVRTC_VARIABLE}=FOLDER");
            line(&mut out, "nvrtc", if probe.device.is_ok() { &help } else { "not looked for without a GPU" });
        }
    }
    out
}

/// What of a model fits on the card, in each numeric mode.
fn fits(model: &Model, max_len: usize, chunk: usize, free: u64) -> String {
    let mut out = String::new();
    for numerics in [Numerics::Exact, Numerics::Bf16, Numerics::Fp8] {
        let name = numerics.name();
        let needs = |positions: usize| Needs::of(model, &CudaOptions::new(numerics, chunk.max(2), 1, positions));
        let whole = match needs(max_len) {
            Ok(needs) => needs,
            Err(error) => {
                line(&mut out, name, &format!("does not run on a GPU: {error}"));
                continue;
            }
        };
        let parts = format!(
            "weights {}, caches of {max_len} positions {}, work areas {}",
            bytes(whole.weights),
            bytes(whole.caches),
            bytes(whole.activations)
        );
        let verdict = if whole.total() <= free {
            "fits".to_owned()
        } else {
            // The longest context that fits, by halving.
            let (mut fits, mut too_long) = (0, max_len);
            while too_long - fits > 64 {
                let middle = usize::midpoint(fits, too_long);
                match needs(middle) {
                    Ok(needs) if needs.total() <= free => fits = middle,
                    _ => too_long = middle,
                }
            }
            match fits {
                0 => format!(
                    "does not fit: {} are needed for weights and work areas alone",
                    bytes(whole.weights + whole.activations)
                ),
                _ => format!("fits with --max-len {fits}"),
            }
        };
        line(&mut out, name, &format!("{verdict} ({parts})"));
    }
    out
}
