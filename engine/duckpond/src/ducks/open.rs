//! From a pond's description to a flock: lock, key, links, ducks, loading.

use std::fs;

use boot::Files;
use flock::Flock;
use flock::remote::{DuckSpec, DuckState, DuckStatus, Options, Port, Program};
use model::Numerics;
use model::program::Model;
use pond::Pond;
use wire::key::Key;

use super::DucksError;
use super::bars::Bars;
use super::control::Control;
use super::lock::Lock;
use crate::netboot::service::{images, service};
use crate::output::say;
use crate::signals::Interruptible;

/// What an engine holds as long as it has a pond. Fields are dropped in order.
pub struct Held {
    _control: Control,
    _lock: Lock,
}

/// The description in a file, and the pond's secret key.
///
/// # Errors
/// A faulty description, or no usable key.
pub fn read(file: &std::path::Path) -> Result<(Pond, Key), crate::error::Error> {
    let description = Pond::load(file)?;
    let key = description.secret_key()?.ok_or_else(|| DucksError::NoKey { path: file.into() })?;
    Ok((description, key))
}

/// What machines that boot send, beside the pond's own frames.
const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;

/// Opens a description's links; with `images`, machines that boot behind them are answered, and `strangers` those that are in no row, too.
///
/// # Errors
/// A link that cannot be opened, by its port's name; addresses that do not fit each other.
pub fn links(description: &Pond, images: Option<&Files>, strangers: bool) -> Result<Vec<Port>, DucksError> {
    let open = |port: &pond::Port| {
        let types: &[u16] = if images.is_some() { &[wire::ETHERTYPE, IPV4, ARP] } else { &[wire::ETHERTYPE] };
        let link = open_port(port, types)?;
        let boot = match images {
            Some(files) => service(description, port, &*link, files, strangers)?,
            None => None,
        };
        Ok(Port { name: port.name.clone(), link, boot })
    };
    description.ports.iter().map(open).collect()
}

fn open_port(port: &pond::Port, types: &[u16]) -> Result<Box<dyn link::Link>, DucksError> {
    let failed = |reason: &dyn std::error::Error| DucksError::Link {
        port: port.name.clone(),
        link: port.link.to_string(),
        reason: crate::error::chain(reason),
    };
    let spec: link::Spec = port.link.as_str().parse().map_err(|error: link::SpecError| failed(&error))?;
    spec.open_for(types, port.mtu.map(|mtu| mtu as usize)).map_err(|error| failed(&error))
}

/// Opens the link of one port, for frames that nobody answers.
///
/// # Errors
/// As [`links`].
pub fn link(description: &Pond, port: &str) -> Result<Box<dyn link::Link>, DucksError> {
    let port = description.port(port).expect("a checked description has the ports that its ducks name");
    open_port(port, &[wire::ETHERTYPE])
}

/// Takes the pond, finds its ducks, and loads them. Ducks that are not there are computed for by the host, with a warning. `progress` is told
/// which part of the ducks' weights is where it belongs, 0 to 1; `url` is where this engine answers, for whoever finds the pond taken.
///
/// # Errors
/// A pond that another engine holds, links that cannot be opened, ducks without enough memory.
pub fn open(
    description: &Pond,
    key: Key,
    model: &Model,
    numerics: Numerics,
    chunk: usize,
    progress: &dyn Fn(f32),
    url: Option<&str>,
) -> Result<(Flock, Held), crate::error::Error> {
    let lock = Lock::take(&key.public(), url)?;
    let images = images(description).map_err(DucksError::from)?;
    let ports = links(description, images.as_ref(), false)?;
    let ducks = description
        .ducks
        .iter()
        .map(|duck| DuckSpec {
            name: duck.name.clone(),
            port: description.ports.iter().position(|port| port.name == duck.port).unwrap_or(0),
            mac: duck.mac.map(|mac| link::Mac(mac.0)),
            memory: duck.memory.map(|size| size.0),
            speed: 1.0,
        })
        .collect();
    let program = description.program(&key.public())?.map(|(bytes, signature)| Program::new(bytes, signature));
    let options = Options { max_lanes: chunk, program, ..Options::new(ports, ducks, key, host_id()) };
    let mut flock = Flock::remote(model, numerics, options).map_err(decode::EngineError::from)?;
    let remote = flock.as_remote().expect("made with ducks behind links");
    let control = Control::start(lock.socket(), remote.handle())?;
    let mut bars = Bars::begin();
    let interruptible = Interruptible::begin();
    let waited = remote.wait_ready(&mut |status| {
        bars.update(status);
        progress(loaded(status));
        !interruptible.is_raised()
    });
    drop(bars);
    waited.map_err(decode::EngineError::from)?;
    if interruptible.is_raised() {
        return Err(crate::error::Error::Interrupted);
    }
    drop(interruptible);
    warn_of_missing(&remote.status());
    Ok((flock, Held { _control: control, _lock: lock }))
}

/// The part of the weights that ducks hold of those that they are to hold. Those of ducks that are not there do not count.
fn loaded(status: &flock::remote::PondStatus) -> f32 {
    let sum = |blocks: fn(&DuckStatus) -> u32| status.ducks.iter().map(|duck| f64::from(blocks(duck))).sum::<f64>();
    match sum(|duck| duck.blocks) {
        0.0 => 0.0,
        blocks => (sum(|duck| duck.resident) / blocks) as f32,
    }
}

/// One line for ducks that take no part, and what that means.
fn warn_of_missing(status: &flock::remote::PondStatus) {
    let missing: Vec<String> = status
        .ducks
        .iter()
        .filter(|duck| duck.state != DuckState::Ready)
        .map(|duck| match duck.note.as_str() {
            "" => format!("{} ({})", duck.name, duck.state.name()),
            note => format!("{} ({note})", duck.name),
        })
        .collect();
    if !missing.is_empty() {
        let helpers = if status.host_units > 0 { "the host computes for them" } else { "others compute for them" };
        say(format_args!(
            "duckpond: {} of {} ducks are not there, {helpers}: {}",
            missing.len(),
            status.ducks.len(),
            missing.join(", ")
        ));
    }
}

/// The same across restarts, another on another machine.
fn host_id() -> [u8; 16] {
    let machine = fs::read("/etc/machine-id").or_else(|_| fs::read("/proc/sys/kernel/hostname")).unwrap_or_default();
    let digest = blake3::derive_key("duckpond host id 1", machine.trim_ascii());
    *digest.first_chunk().expect("a digest has 32 bytes")
}

#[cfg(test)]
mod tests {
    use flock::remote::PondStatus;

    use super::*;

    #[test]
    fn progress_is_the_part_of_all_blocks() {
        let duck = |resident, blocks| DuckStatus { resident, blocks, ..DuckStatus::default() };
        let status = |ducks: &[DuckStatus]| PondStatus { ducks: ducks.to_vec(), ..PondStatus::default() };
        assert_eq!(loaded(&status(&[])), 0.0);
        assert_eq!(loaded(&status(&[duck(0, 0), duck(0, 30)])), 0.0);
        assert_eq!(loaded(&status(&[duck(10, 10), duck(5, 30), duck(0, 0)])), 0.375);
        assert_eq!(loaded(&status(&[duck(10, 10), duck(30, 30)])), 1.0);
    }
}
