//! From a pond's description to a flock: lock, key, links, ducks, loading.

use std::fs;

use flock::Flock;
use flock::remote::{DuckSpec, DuckState, Options, Port};
use model::Numerics;
use model::program::Model;
use pond::Pond;
use wire::key::Key;

use super::DucksError;
use super::bars::Bars;
use super::control::Control;
use super::lock::Lock;
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

/// Opens a description's links.
///
/// # Errors
/// A link that cannot be opened, by its port's name.
pub fn links(description: &Pond) -> Result<Vec<Port>, DucksError> {
    let open = |port: &pond::Port| {
        let failed = |reason: &dyn std::error::Error| DucksError::Link {
            port: port.name.clone(),
            link: port.link.to_string(),
            reason: crate::error::chain(reason),
        };
        let spec: link::Spec = port.link.as_str().parse().map_err(|error: link::SpecError| failed(&error))?;
        let mtu = port.mtu.map(|mtu| mtu as usize);
        let link = spec.open(wire::ETHERTYPE, mtu).map_err(|error| failed(&error))?;
        Ok(Port { name: port.name.clone(), link })
    };
    description.ports.iter().map(open).collect()
}

/// Takes the pond, finds its ducks, and loads them. Ducks that are not there are computed for by the host, with a warning.
///
/// # Errors
/// A pond that another engine holds, links that cannot be opened, ducks without enough memory.
pub fn open(
    description: &Pond,
    key: Key,
    model: &Model,
    numerics: Numerics,
    chunk: usize,
) -> Result<(Flock, Held), crate::error::Error> {
    let lock = Lock::take(&key.public())?;
    let ports = links(description)?;
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
    let options = Options { max_lanes: chunk, ..Options::new(ports, ducks, key, host_id()) };
    let mut flock = Flock::remote(model, numerics, options).map_err(decode::EngineError::from)?;
    let remote = flock.as_remote().expect("made with ducks behind links");
    let control = Control::start(lock.socket(), remote.handle())?;
    let mut bars = Bars::begin();
    let interruptible = Interruptible::begin();
    let waited = remote.wait_ready(&mut |status| {
        bars.update(status);
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
