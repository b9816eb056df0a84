//! `duckpond netboot`: everything that a bare machine needs to become a duck, out of the firmware and the pond's description.
//!
//! GRUB carries the firmware: over the network for UEFI and for a PC's BIOS, on a disc or stick for both. Which duck a machine is, it is told
//! on the command line by the hardware address that it booted over; a machine that is in no row, or booted from a stick, is told the key only
//! and goes by its hardware address. Everything is made beside its place and moved there when all of it is whole.
//!
//! [`service`] makes what answers the machines, behind the engine's own ports; for those that stay with the kernel a configuration of dnsmasq is
//! written. Left out: Secure Boot.

mod dnsmasq;
mod firmware;
mod grub;
mod readme;
pub mod service;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pond::Pond;
use wire::key::PublicKey;

use crate::cli::NetbootArgs;
use crate::ducks::DucksError;
use crate::error::Error;
use crate::signals::temporary;

/// What UEFI loads over the network.
pub const EFI: &str = "duck.efi";
/// What a PC's BIOS loads over the network.
pub const BIOS: &str = "duck.0";
/// The image for discs and sticks.
pub const ISO: &str = "duck.iso";
/// For ports that stay with the kernel.
pub const DNSMASQ: &str = "dnsmasq.conf";
/// What to do with all this.
pub const README: &str = "README.txt";

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum NetbootError {
    /// Ducks obey nobody whose key they don't know.
    #[error("{} names no key for the ducks to trust: make one by `duckpond key new FILE` and add key = \"FILE\", or give its public_key", path.display())]
    NoKey {
        /// The description.
        path: PathBuf,
    },
    /// What was given as firmware.
    #[error("{} is no firmware: {reason}", path.display())]
    Firmware {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file or folder.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// Of what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A description that names a folder without images.
    #[error("cannot read the boot image {}: make it by `duckpond netboot {} --firmware ELF`", path.display(), path.parent().unwrap_or(Path::new(".")).display())]
    Image {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A port whose ducks cannot be given addresses.
    #[error("ducks cannot boot behind port {port}")]
    Service {
        /// Its name.
        port: String,
        /// Why.
        source: boot::ConfigError,
    },
    /// Programs that others make.
    #[error("{} not found: install the Debian packages {}", programs.join(", "), grub::PACKAGES)]
    Missing {
        /// Their names.
        programs: Vec<&'static str>,
    },
    /// One of them failed.
    #[error("{program} failed: {said}; it needs the Debian packages {}", grub::PACKAGES)]
    Program {
        /// Its name.
        program: &'static str,
        /// The end of what it said.
        said: String,
    },
}

/// Runs the command.
///
/// # Errors
/// No pond, a faulty one, or [`NetbootError`].
pub fn run(args: &NetbootArgs, pond: Option<&Path>) -> Result<(), Error> {
    let path = pond.ok_or(DucksError::NoPond)?;
    let description = Pond::load_unfinished(path)?;
    let key = match description.public_key {
        Some(key) => key,
        None => description.secret_key()?.ok_or_else(|| NetbootError::NoKey { path: path.into() })?.public(),
    };
    description.check_nest(&args.firmware)?;
    write(&args.out, &args.firmware, &description, &key)?;
    crate::output::print(&format!("{}\n", args.out.join(README).display())).map_err(Error::Output)
}

/// Writes all files into the folder `out`, which is made if need be. Files of these names that are there already are replaced, others are left
/// alone.
///
/// # Errors
/// Firmware that is none, programs that are missing or fail, files that cannot be written. Then what was there before is still there.
pub fn write(out: &Path, firmware: &Path, pond: &Pond, key: &PublicKey) -> Result<(), NetbootError> {
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| NetbootError::File { action, path, source }
    };
    let image = firmware::read(firmware)?;
    grub::check_programs()?;
    fs::create_dir_all(out).map_err(failed("make the folder", out))?;
    let make = || {
        let folder = tempfile::Builder::new().prefix(".duckpond-netboot-").tempdir_in(out)?;
        let path = folder.path().to_owned();
        Ok((folder, path))
    };
    let (folder, _cleared) = temporary(make).map_err(failed("make a folder in", out))?;
    let at = |name: &str| folder.path().join(name);
    let put = |name: &str, bytes: &[u8]| fs::write(at(name), bytes).map_err(failed("write", &at(name)));

    let key = pond::hex::encode(&key.0);
    let place = fs::canonicalize(out).map_err(failed("find", out))?;
    let dnsmasq = dnsmasq::text(pond, &place);
    put(README, readme::text(pond, dnsmasq.is_some()).as_bytes())?;
    if let Some(text) = &dnsmasq {
        put(DNSMASQ, text.as_bytes())?;
    }
    grub::make(folder.path(), &image, &grub::network_menu(pond, &key), &grub::disc_menu(&key))?;

    let mut names = vec![EFI, BIOS, ISO];
    names.extend(dnsmasq.is_some().then_some(DNSMASQ));
    names.push(README);
    for name in &names {
        fs::File::open(at(name)).and_then(|file| file.sync_all()).map_err(failed("save", &at(name)))?;
    }
    for name in &names {
        fs::rename(at(name), out.join(name)).map_err(failed("replace", &out.join(name)))?;
    }
    if dnsmasq.is_none() {
        // One of another description would lead astray.
        match fs::remove_file(out.join(DNSMASQ)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &out.join(DNSMASQ))(error));
            }
            _ => {}
        }
    }
    fs::File::open(out).and_then(|folder| folder.sync_all()).map_err(failed("save", out))
}
