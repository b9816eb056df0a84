//! What tests of firmware share: machines under QEMU, networks of the kernel's to plug them into, and the boot service on such a network.
#![deny(unsafe_code)]

pub mod firmware;
pub mod native;
pub mod net;
pub mod qemu;
pub mod serving;
pub mod tiny;
