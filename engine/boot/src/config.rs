//! What a service is told: who it is, whom it serves, and with what.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use link::Mac;

/// The client architecture (RFC 4578) of a PC's BIOS.
pub const BIOS: u16 = 0;
/// Those of 64-bit UEFI: the standard's number, and the one that most firmware gives.
pub const EFI_X64: [u16; 2] = [7, 9];

/// Bytes of a name at most, so that an answer fits the 576 bytes that every client can take.
pub(crate) const NAME_MOST: usize = 40;
/// Bytes of a duck's own text at most, for the same reason.
pub(crate) const TEXT_MOST: usize = 128;
/// Leases at most.
const LEASES_MOST: usize = 4096;
/// The smallest MTU that every host must take (RFC 791), and the largest that a frame's length can tell.
const MTU: RangeInclusive<usize> = 576..=9600;

/// Files by name.
pub type Files = BTreeMap<Arc<str>, Arc<[u8]>>;

/// A duck that has its own address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its hardware address.
    pub mac: Mac,
    /// The address that it is given.
    pub address: Ipv4Addr,
    /// Its name, which it is also told (option 12).
    pub name: Arc<str>,
    /// What it alone is told (option 224, for private use), such as a command line; empty: nothing.
    pub text: Arc<str>,
}

/// What clients of one architecture load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootFile {
    /// The client's architecture (RFC 4578).
    pub architecture: u16,
    /// The file's name.
    pub name: Arc<str>,
}

/// What a service is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// The link's hardware address.
    pub mac: Mac,
    /// Bytes that may follow an Ethernet header.
    pub mtu: usize,
    /// The service's address.
    pub address: Ipv4Addr,
    /// Bits that all addresses of the domain have in common, 8 to 30.
    pub prefix: u8,
    /// Ducks of the description.
    pub leases: Vec<Lease>,
    /// Addresses for ducks that are in no row. Without them nobody else is answered.
    pub adopt: Option<RangeInclusive<Ipv4Addr>>,
    /// What is there to fetch.
    pub files: Files,
    /// What is offered to which kind of machine; clients of another kind get an address only.
    pub boot_files: Vec<BootFile>,
}

/// Why a service cannot be made of a [`Config`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The MTU.
    #[error("the link's MTU: expected {} to {}, found {found}", MTU.start(), MTU.end())]
    Mtu {
        /// What it is.
        found: usize,
    },
    /// The prefix.
    #[error("the subnet's prefix: expected 8 to 30 bits, found {found}")]
    Prefix {
        /// What it is.
        found: u8,
    },
    /// An address that no device of the subnet can have.
    #[error("{who}: expected an address for a device in {subnet}/{prefix}, found {found}")]
    Address {
        /// Whose it is.
        who: String,
        /// The subnet's own address.
        subnet: Ipv4Addr,
        /// Its prefix.
        prefix: u8,
        /// The address.
        found: Ipv4Addr,
    },
    /// A hardware address of a group.
    #[error("{who}: expected a device's hardware address, found {found}")]
    Mac {
        /// Whose it is.
        who: String,
        /// The address.
        found: Mac,
    },
    /// Something that belongs to two.
    #[error("{one} and {other} have the same {what}")]
    Same {
        /// The first.
        one: String,
        /// The second.
        other: String,
        /// What they have.
        what: &'static str,
    },
    /// A text that does not fit an answer.
    #[error("{what} {name:?}: expected at most {most} bytes without control characters, found {found}")]
    Long {
        /// What it is.
        what: &'static str,
        /// The text.
        name: String,
        /// The bound.
        most: usize,
        /// Its bytes.
        found: usize,
    },
    /// Too many ducks.
    #[error("expected at most {most} leases, found {found}")]
    Leases {
        /// The bound.
        most: usize,
        /// How many there are.
        found: usize,
    },
    /// A file to boot that is not among the files.
    #[error("architecture {architecture} boots {name:?}, which is not among the files")]
    NoFile {
        /// The architecture.
        architecture: u16,
        /// The file's name.
        name: String,
    },
}

impl Config {
    pub(crate) fn mask(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(u32::MAX << (32 - u32::from(self.prefix)))
    }

    pub(crate) fn broadcast(&self) -> Ipv4Addr {
        self.address | !self.mask()
    }

    /// The first thing that is wrong.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if !MTU.contains(&self.mtu) {
            return Err(ConfigError::Mtu { found: self.mtu });
        }
        if !(8..=30).contains(&self.prefix) {
            return Err(ConfigError::Prefix { found: self.prefix });
        }
        check_mac("the service", self.mac)?;
        self.check_address("the service", self.address)?;
        self.check_leases()?;
        if let Some(range) = &self.adopt {
            self.check_address("the first address for adoption", *range.start())?;
            self.check_address("the last address for adoption", *range.end())?;
        }
        for name in self.files.keys() {
            check_text("the name of the file", name, NAME_MOST)?;
        }
        let lost = |file: &&BootFile| !self.files.contains_key(&file.name);
        match self.boot_files.iter().find(lost) {
            Some(file) => Err(ConfigError::NoFile { architecture: file.architecture, name: file.name.to_string() }),
            None => Ok(()),
        }
    }

    fn check_leases(&self) -> Result<(), ConfigError> {
        if self.leases.len() > LEASES_MOST {
            return Err(ConfigError::Leases { most: LEASES_MOST, found: self.leases.len() });
        }
        let mut macs = BTreeMap::from([(self.mac, "the service")]);
        let mut addresses = BTreeMap::from([(self.address, "the service")]);
        for lease in &self.leases {
            check_text("the name", &lease.name, NAME_MOST)?;
            check_text("the text", &lease.text, TEXT_MOST)?;
            check_mac(&lease.name, lease.mac)?;
            self.check_address(&lease.name, lease.address)?;
            let same = |other: &str, what| ConfigError::Same { one: other.into(), other: lease.name.to_string(), what };
            if let Some(other) = macs.insert(lease.mac, &lease.name) {
                return Err(same(other, "hardware address"));
            }
            if let Some(other) = addresses.insert(lease.address, &lease.name) {
                return Err(same(other, "address"));
            }
        }
        Ok(())
    }

    fn check_address(&self, who: &str, found: Ipv4Addr) -> Result<(), ConfigError> {
        let subnet = self.address & self.mask();
        if found & self.mask() == subnet && found != subnet && found != self.broadcast() {
            return Ok(());
        }
        Err(ConfigError::Address { who: who.into(), subnet, prefix: self.prefix, found })
    }
}

fn check_mac(who: &str, found: Mac) -> Result<(), ConfigError> {
    if found.is_multicast() || found == Mac::default() {
        return Err(ConfigError::Mac { who: who.into(), found });
    }
    Ok(())
}

fn check_text(what: &'static str, name: &str, most: usize) -> Result<(), ConfigError> {
    if name.len() > most || name.chars().any(char::is_control) {
        let found = name.len();
        return Err(ConfigError::Long { what, name: name.chars().take(100).collect(), most, found });
    }
    Ok(())
}
