//! The models that Duckpond runs: checkpoints and configurations, architectures stated as programs of operations.
//!
//! Nothing here multiplies a matrix: stage 0 (crate `host`) and the kernels do.

pub mod arch;
pub mod chat;
pub mod checkpoint;
pub mod converted;
pub mod detokenise;
pub mod numerics;
pub mod program;
pub mod sampling;
pub mod step;
pub mod stop;
pub mod synthetic;
pub mod tokenizer;

pub use numerics::Numerics;
