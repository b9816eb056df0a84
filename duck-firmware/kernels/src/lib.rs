//! The experts' share of one step, for the units that one holder has.
//!
//! `no_std`, without allocation: the same code runs in the firmware, in `duckd` and in the host's own process.
#![no_std]

#[cfg(any(test, feature = "bench-support"))]
extern crate std;

pub mod abi;
#[cfg(all(feature = "bench-support", unix, target_arch = "x86_64"))]
pub mod bench;
mod plan;
pub mod program;
pub mod reference;
mod scratch;
mod session;
mod step;
pub mod tree;
pub mod unit;

pub use abi::{HeldNode, Limits, Mode, Refusal, StepBlock, UnitEntry};
pub use scratch::scratch_len;
pub use session::{Config, Holder, Running, Step};
pub use step::{Core, Hooks, NoHooks, begin, first_half, run, second_half};
