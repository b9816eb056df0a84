//! A pond's description: its ports and ducks, where its key lies, and what the host's kernel must set aside.
//!
//! There is one description, written as TOML by hand or as JSON by Nix, and everybody reads the same: engine, boot service, modules, tests.
//! [`Pond::load`] reads one and refuses an inconsistent one with the name of the field. [`key`] and [`signature`] hold the two kinds of file
//! beside it.
//!
//! Left out: opening links (a [`Link`] is a checked text here), which duck holds what (a plan says that), and how the program
//! behaves (its settings do).

#![forbid(unsafe_code)]

mod check;
mod error;
pub mod hex;
pub mod key;
mod nar;
mod read;
pub mod signature;
mod value;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use wire::key::{Key, PublicKey};

pub use error::{PondError, Problem};
pub use key::KeyError;
pub use nar::NarHash;
pub use value::{FormError, Link, LinkKind, Mac, PciAddress, Size, Subnet, VfioId};

/// Longest name of a duck or port: what an announcement has room for.
pub const MAX_NAME: usize = 16;
/// A duck's link in Mbit/s where nothing is said.
pub const DUCK_LINK: u32 = 2_500;

/// A pond. Fields that are absent and fields that are null are the same; unknown ones are refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pond {
    /// For people and logs.
    pub name: String,
    /// The converted model; relative to the description's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<PathBuf>,
    /// The file of the host's secret key; relative to the description's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// The kernels' program, for ducks without an operating system; its signature lies beside it. Relative to the description's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernels: Option<PathBuf>,
    /// The NAR hash of that file, `sha256-…` as `nix hash path` prints it; no other is sent to ducks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernels_hash: Option<NarHash>,
    /// The NAR hash of the firmware's ELF; `duckpond netboot` makes images of no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nest_hash: Option<NarHash>,
    /// The folder that `duckpond netboot` has filled, out of which ducks boot that are behind ports with a subnet. Relative to the
    /// description's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netboot: Option<PathBuf>,
    /// The key that ducks are told, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "public_key")]
    pub public_key: Option<PublicKey>,
    /// Processors that the host's kernel leaves alone; where given, ports run on these only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolated: Option<Vec<u16>>,
    /// Vendor and device of network cards that are kept from the kernel's own drivers when the host starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vfio_ids: Vec<VfioId>,
    /// Pages that the host's kernel sets aside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub huge_pages: Option<HugePages>,
    /// The host's ends of the broadcast domains.
    pub ports: Vec<Port>,
    /// The ducks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ducks: Vec<Duck>,
    /// Where the description lies.
    #[serde(skip)]
    folder: PathBuf,
}

/// Huge pages of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HugePages {
    /// Of one page: 2 MiB or 1 GiB.
    pub size: Size,
    /// How many.
    pub count: u32,
    /// Where their file system is mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<PathBuf>,
}

/// The host's end of one broadcast domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// What ducks name it by.
    pub name: String,
    /// What carries its frames.
    pub link: Link,
    /// The PCI address of its card, where the link does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<PciAddress>,
    /// The processor whose thread drives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lcore: Option<u16>,
    /// Addresses of the domain, for booting its ducks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet: Option<Subnet>,
    /// The host's address there; the first one of the subnet where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "value::address")]
    pub address: Option<Ipv4Addr>,
    /// Bytes that a frame may carry on this path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
}

/// A duck.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Duck {
    /// What it is called, and what a duck that knows its own name announces.
    pub name: String,
    /// The port that it is behind.
    pub port: String,
    /// Its hardware address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// The address that it is given, out of its port's subnet.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "value::address")]
    pub address: Option<Ipv4Addr>,
    /// Memory that it is expected to announce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    /// Mbit/s that its link is expected to have.
    #[serde(default = "duck_link", skip_serializing_if = "is_duck_link")]
    pub link: u32,
}

fn duck_link() -> u32 {
    DUCK_LINK
}

fn is_duck_link(link: &u32) -> bool {
    *link == DUCK_LINK
}

impl Port {
    /// A port of which only these are known.
    pub fn new(name: impl Into<String>, link: Link) -> Port {
        Port { name: name.into(), link, pci: None, lcore: None, subnet: None, address: None, mtu: None }
    }

    /// The PCI address of its card, from whichever field has it.
    pub fn pci_address(&self) -> Option<PciAddress> {
        self.pci.or_else(|| self.link.pci())
    }

    /// The host's address in the port's subnet.
    pub fn host_address(&self) -> Option<Ipv4Addr> {
        self.address.or_else(|| self.subnet.map(|subnet| subnet.first()))
    }
}

impl Duck {
    /// A duck of which only these are known.
    pub fn new(name: impl Into<String>, port: impl Into<String>) -> Duck {
        Duck { name: name.into(), port: port.into(), mac: None, address: None, memory: None, link: DUCK_LINK }
    }

    /// Its name as an announcement carries it: the bytes, then zeros. A name that is too long is cut.
    pub fn id(&self) -> [u8; MAX_NAME] {
        let mut id = [0; MAX_NAME];
        id.iter_mut().zip(self.name.bytes()).for_each(|(byte, name)| *byte = name);
        id
    }
}

impl Pond {
    /// A pond without ports.
    pub fn new(name: impl Into<String>) -> Pond {
        Pond {
            name: name.into(),
            model: None,
            key: None,
            kernels: None,
            kernels_hash: None,
            nest_hash: None,
            netboot: None,
            public_key: None,
            isolated: None,
            vfio_ids: Vec::new(),
            huge_pages: None,
            ports: Vec::new(),
            ducks: Vec::new(),
            folder: PathBuf::new(),
        }
    }

    /// The folder that relative paths start from; empty, the current one, for a description that was not read from a file.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file of the secret key.
    pub fn key_file(&self) -> Option<PathBuf> {
        self.key.as_ref().map(|path| self.folder.join(path))
    }

    /// The folder of the converted model.
    pub fn model_folder(&self) -> Option<PathBuf> {
        self.model.as_ref().map(|path| self.folder.join(path))
    }

    /// The folder that ducks boot out of.
    pub fn netboot_folder(&self) -> Option<PathBuf> {
        self.netboot.as_ref().map(|path| self.folder.join(path))
    }

    /// The host's secret key, `None` where the description names no file.
    ///
    /// # Errors
    /// As [`key::load`]; and if it is not the key of [`Pond::public_key`], which the ducks trust.
    pub fn secret_key(&self) -> Result<Option<Key>, KeyError> {
        let Some(path) = self.key_file() else { return Ok(None) };
        let key = key::load(&path)?;
        match self.public_key {
            Some(expected) if expected != key.public() => {
                Err(KeyError::Other { path, expected: hex::encode(&expected.0), found: hex::encode(&key.public().0) })
            }
            _ => Ok(Some(key)),
        }
    }

    /// The file of the kernels' program.
    pub fn kernels_file(&self) -> Option<PathBuf> {
        self.kernels.as_ref().map(|path| self.folder.join(path))
    }

    /// The kernels' program and its signature, `None` where the description names no file.
    ///
    /// # Errors
    /// Files that cannot be read; a program that is not the one of [`Pond::kernels_hash`]; a signature that is not `key`'s or not of this
    /// program.
    pub fn program(&self, key: &PublicKey) -> Result<Option<signature::Signed>, KeyError> {
        let Some(path) = self.kernels_file() else { return Ok(None) };
        let program = signature::Program::read(&path)?;
        check_hash(&path, "kernels_hash", self.kernels_hash, program.hash())?;
        program.signed_by(key).map(Some)
    }

    /// Whether the firmware's ELF in a file is the one of [`Pond::nest_hash`].
    ///
    /// # Errors
    /// A file that cannot be read, or another one.
    pub fn check_nest(&self, file: &Path) -> Result<(), KeyError> {
        if self.nest_hash.is_none() {
            return Ok(());
        }
        check_hash(file, "nest_hash", self.nest_hash, signature::Program::read(file)?.hash())
    }

    /// The port of that name.
    pub fn port(&self, name: &str) -> Option<&Port> {
        self.ports.iter().find(|port| port.name == name)
    }

    /// The ducks behind a port.
    pub fn ducks_of(&self, port: &str) -> impl Iterator<Item = &Duck> {
        self.ducks.iter().filter(move |duck| duck.port == port)
    }

    /// The duck that announces itself like this: the one whose name is `id`, else the one with that hardware address. It may be described
    /// behind another port than the one that it was heard on.
    pub fn find(&self, id: &[u8; MAX_NAME], mac: Mac) -> Option<&Duck> {
        let named = self.ducks.iter().find(|duck| duck.id() == *id);
        named.or_else(|| self.ducks.iter().find(|duck| duck.mac == Some(mac)))
    }
}

fn check_hash(file: &Path, field: &'static str, expected: Option<NarHash>, found: NarHash) -> Result<(), KeyError> {
    match expected {
        Some(expected) if expected != found => {
            Err(KeyError::OtherProgram { path: file.into(), field, expected, found })
        }
        _ => Ok(()),
    }
}

/// A public key as text.
mod public_key {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use wire::key::PublicKey;

    use crate::hex;

    pub fn serialize<S: Serializer>(key: &Option<PublicKey>, serializer: S) -> Result<S::Ok, S::Error> {
        match key {
            Some(key) => serializer.serialize_str(&hex::encode(&key.0)),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PublicKey>, D::Error> {
        let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
        let form =
            || crate::FormError::new(&text, "a public key, 64 hexadecimal digits as `duckpond key public` prints them");
        Ok(Some(PublicKey(hex::decode(&text).ok_or_else(form).map_err(D::Error::custom)?)))
    }
}
