//! The machine itself. What can be wrong without one is in the library `nest`.

pub mod apic;
pub mod boot;
pub mod clock;
pub mod cpu;
pub mod judge;
pub mod last_words;
pub mod memory;
pub mod network;
pub mod output;
pub mod power;
pub mod sensors;
pub mod smp;
pub mod traps;
