//! `duckpond host-setup --check`: whether this machine is set up for a pond, what is missing, why that matters, and what to do about it.
//!
//! It reads and changes nothing: what is to be done is printed, or done by the NixOS module. What a pond needs follows from its description;
//! without one, what a host with ports on DPDK would need is noted. Left out: whatever needs the engine to run, such as whether ducks answer.

mod cards;
mod links;
pub(crate) mod machine;
mod memory;
mod processors;
mod report;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use model::converted::{HOST_FILE, Manifest};
use pond::{LinkKind, PciAddress, Pond, Port};

use machine::Machine;
use report::{Report, State};

use crate::cli::HostSetupArgs;
use crate::error::Error;
use crate::model_folder;
use crate::output;
use crate::settings::Settings;

/// Runs the command.
///
/// # Errors
/// A faulty description; after everything was shown, [`Error::HostSetup`] if something is missing that the pond needs.
pub fn run(args: &HostSetupArgs, settings: &Settings) -> Result<(), Error> {
    let report = look(settings)?;
    let text = match args.json {
        true => report.json(),
        false => report.text(),
    };
    output::print(&text).map_err(Error::Output)?;
    match report.missing() {
        0 => Ok(()),
        missing => Err(Error::HostSetup { missing }),
    }
}

/// The findings as text, for [`crate::doctor`].
///
/// # Errors
/// A faulty description.
pub fn findings(settings: &Settings) -> Result<String, Error> {
    Ok(look(settings)?.text())
}

fn look(settings: &Settings) -> Result<Report, Error> {
    let pond = settings.pond.as_deref().map(Pond::load).transpose()?;
    let stated = settings.model.clone().or_else(|| pond.as_ref().and_then(Pond::model_folder));
    let weights = model_folder::find(stated.as_deref()).ok().and_then(|folder| weights(&folder));
    Ok(check(&Machine::below("/"), pond.as_ref(), weights))
}

/// What the host itself reads of a model over and over; `None` where that is not known.
struct Weights {
    folder: PathBuf,
    bytes: u64,
}

fn weights(folder: &Path) -> Option<Weights> {
    let bytes = match Manifest::read(folder) {
        Ok(manifest) => manifest.file(HOST_FILE)?.size,
        // Experts are packed in memory, so that all of it is needed.
        Err(_) => {
            let entries = std::fs::read_dir(folder).ok()?.flatten();
            let shards = entries.filter(|entry| entry.path().extension().is_some_and(|kind| kind == "safetensors"));
            shards.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
        }
    };
    Some(Weights { folder: folder.into(), bytes })
}

/// What is looked for.
struct Wanted<'a> {
    pond: Option<&'a Pond>,
    weights: Option<Weights>,
}

/// Everything there is to say of a machine.
fn check(machine: &Machine, pond: Option<&Pond>, weights: Option<Weights>) -> Report {
    let wanted = Wanted { pond, weights };
    let mut findings = Vec::new();
    processors::check(machine, &wanted, &mut findings);
    memory::check(machine, &wanted, &mut findings);
    cards::check(machine, &wanted, &mut findings);
    links::check(machine, &wanted, &mut findings);
    Report::new(findings, pond.map(|pond| pond.name.clone()), machine.is_nixos())
}

impl Wanted<'_> {
    fn ports(&self) -> &[Port] {
        self.pond.map_or(&[], |pond| &pond.ports)
    }

    /// Cards that DPDK is to drive, with their ports.
    fn dpdk_cards(&self) -> impl Iterator<Item = (&Port, PciAddress)> {
        self.ports().iter().filter_map(|port| Some((port, port.link.pci()?)))
    }

    /// What it means if something is not there that DPDK needs; `None` where nobody needs it.
    fn for_dpdk(&self) -> Option<State> {
        match self.pond {
            None => Some(State::Note),
            Some(_) if self.dpdk_cards().next().is_some() => Some(State::Missing),
            Some(_) => None,
        }
    }

    fn has(&self, kind: LinkKind) -> bool {
        self.ports().iter().any(|port| port.link.kind() == kind)
    }
}
