//! Stage 0: a layer's half on the host.
//!
//! [`stage`] is the seam that `decode` uses; [`cpu`] the implementation for any x86-64 machine, [`cuda`] the one for NVIDIA GPUs, which is found at
//! run time. The ops come from [`model::program`]; nothing here knows an architecture, a socket or a duck.

mod check;
mod choose;
pub mod cpu;
pub mod cuda;
mod error;
mod exchanges;
pub mod observe;
mod purpose;
pub mod stage;

pub use error::StageError;
