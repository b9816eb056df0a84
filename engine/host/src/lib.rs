//! Stage 0: a layer's half on the host.
//!
//! [`stage`] is the seam that `decode` uses; [`cpu`] the implementation for any x86-64 machine. The ops come from
//! [`model::program`]; nothing here knows an architecture, a socket or a duck.

pub mod cpu;
mod error;
pub mod stage;

pub use error::StageError;
