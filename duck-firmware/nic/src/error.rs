//! Why there is no network card. The machine may have nothing but a screen, so every message names the step and the values.

use core::fmt;

use thiserror::Error;

use crate::list::List;
use crate::nic::Mac;
use crate::pci::{Bdf, Function};

/// Why one driver did not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StartError {
    /// The card did not do in time what the step waits for.
    #[error("step '{step}' timed out, register {register:#04x} = {value:#x}")]
    TimedOut {
        /// What the driver was doing.
        step: &'static str,
        /// The register it watched: an offset.
        register: usize,
        /// What was in it at last.
        value: u32,
    },
    /// The card answers in a way that the driver cannot work with.
    #[error("step '{step}': found {value:#x} in register {register:#04x}, expected {expected}")]
    Unexpected {
        /// What the driver was doing.
        step: &'static str,
        /// Where it looked: an offset.
        register: usize,
        /// What it found.
        value: u32,
        /// What it can work with.
        expected: &'static str,
    },
    /// The firmware gave the registers no address, or they are of a kind or size that the driver cannot use.
    #[error(
        "base address register {bar} is at {address:#x} with {len:#x} bytes, expected {expected:#x} bytes of memory somewhere"
    )]
    Bar {
        /// Which of the six.
        bar: u8,
        /// Where it is, 0 for nowhere.
        address: u64,
        /// How long it is.
        len: u64,
        /// How long the driver needs it.
        expected: usize,
    },
    /// The caller could not map the registers.
    #[error("cannot map {len:#x} bytes of registers at {address:#x}")]
    NotMapped {
        /// Physical address.
        address: u64,
        /// Bytes.
        len: usize,
    },
    /// The caller has no memory left, or not so aligned.
    #[error("no memory for {what}: {len} bytes aligned to {align}")]
    NoMemory {
        /// What for.
        what: &'static str,
        /// Bytes.
        len: usize,
        /// Bytes.
        align: usize,
    },
    /// The capability by which a virtio card says where its registers are is missing or wrong.
    #[error("no usable virtio capability of type {0}: is the card a legacy one?")]
    NoCapability(u8),
    /// The filter asks for another card.
    #[error("its address is {found}, expected {expected}")]
    OtherMac {
        /// The card's.
        found: Mac,
        /// The filter's.
        expected: Mac,
    },
    /// The card cannot carry frames as long as the options ask for.
    #[error("frames of {asked} bytes asked for, the card carries up to {most}")]
    FrameTooLong {
        /// What the options ask for.
        asked: usize,
        /// What the card can do.
        most: usize,
    },
    /// The options ask for a ring that no driver can make.
    #[error("a ring of {0} descriptors asked for, expected a power of two from 8 to 4096")]
    RingSize(usize),
}

/// One card whose driver did not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Where it is.
    pub at: Bdf,
    /// Which driver tried.
    pub driver: &'static str,
    /// What went wrong.
    pub error: StartError,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.at, self.driver, self.error)
    }
}

/// No card could be started: what was there, and what went wrong with those that have a driver.
#[derive(Clone, Copy, Debug, Default)]
pub struct NicError {
    /// Every function of class 02 (network) that the buses showed, in bus order.
    pub seen: List<Function, 16>,
    /// Every driver that tried, in the same order.
    pub failures: List<Failure, 8>,
}

impl fmt::Display for NicError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.seen.is_empty() {
            return f.write_str("no network card on any PCI bus");
        }
        write!(f, "no network card could be started; seen: {}", self.seen)?;
        if self.failures.is_empty() {
            f.write_str("; none with a driver that the filter admits")
        } else {
            write!(f, "; {}", self.failures)
        }
    }
}

impl core::error::Error for NicError {}
