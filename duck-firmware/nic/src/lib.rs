//! Network card drivers for bare metal: polled, without interrupts, threads, allocation or an operating system.
//!
//! [`probe`] looks for a card on the PCI buses, starts the first whose driver works and hands back an [`AnyNic`], which sends
//! and receives Ethernet frames through the [`Nic`] trait. Everything the crate needs from the machine comes in through narrow
//! traits: [`ConfigSpace`] (PCI configuration), [`Mmio`] (the card's registers), [`Dma`] (memory that the card may read and
//! write) and [`Clock`] (delays while starting). So the same drivers run against registers that a test pretends to be.
//!
//! Left out: interrupts, checksum and segmentation offload, VLAN, multicast, more than one queue, wake-up on LAN, changing the
//! MAC address, and recovery from a card that disappears.
//!
//! `unsafe` lives in two modules: [`mmio`] (volatile access to registers) and [`dma`] (access to memory shared with the card).
//! A driver that told the card a wrong address could still overwrite anything: that part no type can check, the tests with
//! register models do.
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_code)]

pub mod dma;
mod error;
mod intel;
mod list;
pub mod mmio;
mod nic;
pub mod pci;
mod probe;
mod realtek;
mod start;
#[cfg(test)]
mod tests;
mod virtio;

pub use dma::{Dma, DmaBuffer};
pub use error::{Failure, NicError, StartError};
pub use intel::Intel;
pub use list::List;
pub use mmio::{Bar, Clock, Mmio};
pub use nic::{Counters, JUMBO_FRAME, MAX_FRAME, MIN_FRAME, Mac, Nic, Proven};
pub use pci::{Bdf, ConfigSpace, Function};
pub use probe::{AnyNic, Filter, Found, probe};
pub use realtek::Realtek;
pub use start::{Notes, Options};
pub use virtio::VirtioNet;
