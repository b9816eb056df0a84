//! Drivers against models of their cards, and the search against a model of configuration space.
//!
//! A model holds what the driver may rely on and panics at what a real card would punish silently: a locked register written, a
//! ring used before it has an address, memory reached before bus mastering is allowed or outside what was allocated.

pub(crate) mod bench;
mod intel;
mod intel_card;
mod pci;
mod pci_space;
mod probe;
mod realtek;
mod realtek_card;
mod virtio;
mod virtio_card;
