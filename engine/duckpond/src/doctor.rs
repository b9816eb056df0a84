//! `duckpond doctor`: what of this machine the engine would use for a model, and what is missing.
//!
//! The GPU and the network interfaces are here; what the processors, huge pages and a pond's ports are like is said by [`crate::host_setup`].

use std::fmt::Write as _;

use host::cuda::{CudaOptions, NVRTC_VARIABLE, Needs, Probe};
use model::Numerics;
use model::program::Model;

use crate::error::{Error, one_line};
use crate::format::bytes;
use crate::host_setup::machine::Machine;
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
    text += &interfaces(&Machine::below("/"));
    text += "\n";
    text += &host_setup::findings(settings)?;
    output::print(&text).map_err(Error::Output)
}

/// Bytes of a frame that count as long: what switches and cards of every make carry when they carry long ones.
const JUMBO: u64 = 9000;

/// The network interfaces with hardware behind them: speed, frames, and whether those are long ones.
fn interfaces(machine: &Machine) -> String {
    const CLASS: &str = "/sys/class/net";
    let mut out = String::new();
    for name in machine.names(CLASS).iter().filter(|name| machine.exists(&format!("{CLASS}/{name}/device"))) {
        let read = |file: &str| machine.text(&format!("{CLASS}/{name}/{file}"));
        let state = read("operstate").unwrap_or_else(|| "in an unknown state".into());
        // In Mbit/s; an error or -1 where there is no link, and on virtual cards.
        let speed = match read("speed").and_then(|speed| speed.parse::<u64>().ok()).filter(|&speed| speed > 0) {
            Some(speed) if speed % 1000 == 0 => format!("{} Gbit/s", speed / 1000),
            Some(speed) => format!("{speed} Mbit/s"),
            None => "of unknown speed".into(),
        };
        let frames = match machine.number(&format!("{CLASS}/{name}/mtu")) {
            Some(mtu) if mtu >= JUMBO => {
                format!("frames of {mtu} bytes (long ones, if switch and ducks carry them too)")
            }
            // A name is anything without a slash, and this line is made to be pasted.
            Some(mtu)
                if name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-@".contains(&b))
                    && !name.starts_with('-') =>
            {
                format!("frames of {mtu} bytes; for long ones: ip link set {name} mtu {JUMBO}")
            }
            Some(mtu) => format!("frames of {mtu} bytes"),
            None => "frames of unknown size".into(),
        };
        line(&mut out, "interface", &format!("{}: {state}, {speed}, {frames}", one_line(name)));
    }
    if out.is_empty() {
        line(&mut out, "interface", "none with hardware behind it; ducks in this process need none");
    }
    out
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

#[cfg(test)]
mod tests {
    use host::cuda::{CudaError, Properties};
    use model::synthetic;

    use super::*;

    /// A machine of plain files: path and content.
    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Machine) {
        let folder = tempfile::tempdir().expect("a folder for a test");
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("below the folder");
            std::fs::write(path, format!("{text}\n")).expect("below the folder");
        }
        let machine = Machine::below(folder.path());
        (folder, machine)
    }

    #[test]
    fn interfaces_are_told_with_speed_frames_and_what_long_ones_take() {
        let (_folder, machine) = machine(&[
            ("sys/class/net/eno1/device/vendor", "0x8086"),
            ("sys/class/net/eno1/operstate", "up"),
            ("sys/class/net/eno1/speed", "1000"),
            ("sys/class/net/eno1/mtu", "1500"),
            ("sys/class/net/enp3s0f0/device/vendor", "0x8086"),
            ("sys/class/net/enp3s0f0/operstate", "up"),
            ("sys/class/net/enp3s0f0/speed", "2500"),
            ("sys/class/net/enp3s0f0/mtu", "9000"),
            ("sys/class/net/enp4s0/device/vendor", "0x8086"),
            ("sys/class/net/enp4s0/operstate", "down"),
            ("sys/class/net/enp4s0/speed", "-1"),
            ("sys/class/net/enp4s0/mtu", "1500"),
            ("sys/class/net/enp5s0/device/vendor", "0x8086"),
            ("sys/class/net/lo/mtu", "65536"),
            ("sys/class/net/veth0/mtu", "1500"),
        ]);
        let expected = "\
interface    eno1: up, 1 Gbit/s, frames of 1500 bytes; for long ones: ip link set eno1 mtu 9000
interface    enp3s0f0: up, 2500 Mbit/s, frames of 9000 bytes (long ones, if switch and ducks carry them too)
interface    enp4s0: down, of unknown speed, frames of 1500 bytes; for long ones: ip link set enp4s0 mtu 9000
interface    enp5s0: in an unknown state, of unknown speed, frames of unknown size
";
        assert_eq!(interfaces(&machine), expected);
    }

    #[test]
    fn a_machine_without_interfaces_is_told_that_it_needs_none() {
        let (_folder, machine) = machine(&[("sys/class/net/lo/mtu", "65536")]);
        assert_eq!(
            interfaces(&machine),
            "interface    none with hardware behind it; ducks in this process need none\n"
        );
    }

    fn card() -> Properties {
        Properties {
            name: "A card".into(),
            capability: (9, 0),
            driver: 12080,
            total: 10_000_000_000,
            free: 9_000_000_000,
            processors: 100,
            shared: 200_000,
        }
    }

    #[test]
    fn card_and_compiler_are_told_or_what_is_missing_and_how_to_get_it() {
        let nvrtc = Ok(("12.8".to_owned(), "/lib/libnvrtc.so.12".to_owned()));
        let text = gpu(&Probe { device: Ok(card()), nvrtc: nvrtc.clone() });
        let expected = "\
gpu          A card, sm_90, driver 12.8
gpu memory   10.0 GB, 9.0 GB free
nvrtc        12.8, /lib/libnvrtc.so.12
";
        assert_eq!(text, expected);
        let missing = || CudaError::NoNvrtc { searched: "a, b".into() };
        let text = gpu(&Probe { device: Ok(card()), nvrtc: Err(missing()) });
        assert!(text.lines().nth(2).is_some_and(|line| line.contains("pip install nvidia-cuda-nvrtc-cu12")), "{text}");
        let text = gpu(&Probe { device: Err(CudaError::NoDriver), nvrtc: Err(missing()) });
        assert!(text.starts_with("gpu          not used: no NVIDIA driver"), "{text}");
        assert!(text.ends_with("not looked for without a GPU\n"), "{text}");
    }

    #[test]
    fn what_fits_is_told_for_each_mode_with_the_longest_context() {
        let folder = tempfile::tempdir().expect("a folder for a test");
        let path = folder.path().join("checkpoint");
        let dims = synthetic::Dims { max_positions: 100_000, ..synthetic::Dims::tiny() };
        synthetic::write(&synthetic::Options { folder: &path, dims: &dims, seed: 1, shard_bytes: 1 << 30 })
            .expect("room");
        let model = model::arch::load(&path).expect("it was just written");
        let needs = |positions| {
            Needs::of(&model, &CudaOptions::new(Numerics::Bf16, 128, 1, positions)).expect("it can be lowered").total()
        };
        let verdicts = |free| {
            let text = fits(&model, 100_000, 128, free);
            text.lines().map(|line| line.split(" (").next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(1 << 40), ["exact        fits", "bf16         fits", "fp8          fits"]);
        let some = verdicts(needs(40_000));
        let fits = some[1].strip_prefix("bf16         fits with --max-len ").expect("less than all fits");
        let fits: usize = fits.parse().expect("a number");
        assert!(fits <= 40_000 && fits + 64 > 40_000, "{fits}");
        let none = verdicts(1000);
        assert!(none.iter().all(|line| line.contains("does not fit: ")), "{none:?}");
    }
}
