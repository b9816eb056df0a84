//! Why a description is refused: the field, and what is wrong with it.

use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use crate::{PciAddress, Subnet};

/// A description that cannot be used. One line.
#[derive(Debug)]
pub struct PondError {
    path: Option<PathBuf>,
    field: String,
    problem: Problem,
}

/// What is wrong with a field, or with the text as a whole.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The file could not be read.
    #[error("cannot be read: {0}")]
    Read(io::Error),
    /// The file is far larger than any description.
    #[error("has more than the {limit} bytes that are read")]
    Large {
        /// The limit.
        limit: u64,
    },
    /// Neither TOML nor JSON.
    #[error("line {line} is no {language}: {reason}")]
    Syntax {
        /// Where.
        line: usize,
        /// As what it was read.
        language: &'static str,
        /// The parser's words.
        reason: String,
    },
    /// A value of another type or form than the field's.
    #[error("{0}")]
    Form(String),
    /// A field that is required.
    #[error("is missing")]
    Missing,
    /// A field that nobody knows.
    #[error("is no field; the fields here are {known}")]
    Unknown {
        /// Those that are.
        known: String,
    },
    /// A number out of its range.
    #[error("{found} is out of range, expected {least} to {most}")]
    Range {
        /// As written.
        found: u64,
        /// The least.
        least: u64,
        /// The greatest.
        most: u64,
    },
    /// A value that only one may have.
    #[error("{value} is already {first}")]
    Twice {
        /// The value.
        value: String,
        /// The field that has it.
        first: String,
    },
    /// A list that must have something in it.
    #[error("a pond needs at least one port")]
    NoPorts,
    /// A port without ducks.
    #[error("no duck is on port {port}; add one or remove the port")]
    NoDucks {
        /// Its name.
        port: String,
    },
    /// A duck on a port that is not described.
    #[error("there is no port {found}; the ports are {known}")]
    UnknownPort {
        /// As written.
        found: String,
        /// Those that are.
        known: String,
    },
    /// A port's thread where the kernel schedules others.
    #[error("processor {lcore} is not one of the isolated ones ({isolated})")]
    NotIsolated {
        /// As written.
        lcore: u16,
        /// Those that are.
        isolated: String,
    },
    /// Two places of one card.
    #[error("{pci} is not the card of the port's link, {link}")]
    OtherCard {
        /// The field's.
        pci: PciAddress,
        /// The link's.
        link: PciAddress,
    },
    /// Subnets with common addresses.
    #[error("{subnet} overlaps {first}, {other}")]
    Overlap {
        /// This one.
        subnet: Subnet,
        /// The field of the other.
        first: String,
        /// The other.
        other: Subnet,
    },
    /// An address where the port has no subnet.
    #[error("{address} is given, but port {port} has no subnet")]
    NoSubnet {
        /// The address.
        address: Ipv4Addr,
        /// The port.
        port: String,
    },
    /// An address of another subnet.
    #[error("{address} is not in the subnet {subnet} of port {port}")]
    Outside {
        /// The address.
        address: Ipv4Addr,
        /// The port's subnet.
        subnet: Subnet,
        /// The port.
        port: String,
    },
    /// An address that nobody may have.
    #[error("{address} is the {what} address of {subnet}")]
    Reserved {
        /// The address.
        address: Ipv4Addr,
        /// `network` or `broadcast`.
        what: &'static str,
        /// The subnet.
        subnet: Subnet,
    },
    /// The boot service knows a duck by its hardware address only.
    #[error("is missing, and without it the boot service cannot give the duck its address {address}")]
    AddressNeedsMac {
        /// The address.
        address: Ipv4Addr,
    },
    /// More ducks than can have a unit each.
    #[error("there are {found} ducks, but a layer of the model has {units} units; describe {units} ducks at most")]
    TooManyDucks {
        /// Ducks.
        found: usize,
        /// Units of a layer.
        units: u32,
    },
}

impl PondError {
    pub(crate) fn new(field: impl Into<String>, problem: Problem) -> PondError {
        PondError { path: None, field: field.into(), problem }
    }

    /// The same, of a description in a file.
    pub fn in_file(self, path: &Path) -> PondError {
        PondError { path: Some(path.into()), ..self }
    }

    /// The field at fault, as in `ducks[3].mac`; empty if it is the text as a whole.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// The description's file, if it came from one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// What is wrong.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }
}

impl fmt::Display for PondError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = String::new();
        if let Some(path) = &self.path {
            line = format!("{}: ", path.display());
        }
        if !self.field.is_empty() {
            line = format!("{line}{}: ", self.field);
        }
        f.write_str(&one_line(&format!("{line}{}", self.problem)))
    }
}

impl std::error::Error for PondError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // A reading error is in the message already.
        None
    }
}

/// Control characters escaped, and cut where no message is that long.
pub(crate) fn one_line(text: &str) -> String {
    const MOST: usize = 600;
    let mut line = String::new();
    for c in text.chars() {
        if line.len() > MOST {
            line.push('…');
            break;
        }
        if c.is_control() {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}
