//! DeepSeek-V3.2 and models of the same architecture.

pub mod config;
pub mod program;
pub mod rope;
pub mod tensors;
