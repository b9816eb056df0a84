//! What the supervisor can be wrong about without a machine to be wrong on: memory maps, page tables, programs, command lines,
//! clocks, letters. The program in `main.rs` puts it on one.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod areas;
pub mod boot_info;
pub mod clock;
pub mod command;
pub mod crc;
pub mod madt;
pub mod program;
pub mod screen;
pub mod tables;
