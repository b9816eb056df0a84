//! Stage 0 on an NVIDIA GPU.
//!
//! A program is lowered once ([`lower`], [`schedule`]): its operations become launches of a dozen kernels, as few as their dependencies allow. A pass
//! gets an [`area`] with buffers of its own; [`bind`] gives its launches addresses. Passes of few lanes are captured as one graph from the first
//! layer to the chosen token, in which the card waits for the ducks by itself ([`exchange`]); others are launched segment by segment. Weights stay
//! as they are stored. Nothing links against CUDA: driver and compiler are looked for at run time, the kernels are compiled for the card at hand
//! ([`compile`]) and kept on disk.
//!
//! Batch invariance is the kernels' promise; this side launches the same ones for a matrix whatever the number of lanes, but for the pair that share
//! one written order. What one lane computes depends on nothing but its own rows and caches.

mod abi;
mod area;
mod bind;
mod caches;
mod compile;
mod device;
mod error;
mod exchange;
mod kernels;
mod lower;
mod measure;
mod memory;
mod nvrtc;
mod pass;
mod run;
mod schedule;
mod stage;
mod stream;
mod task;
mod weights;

pub use compile::cache_folder;
pub use device::{Probe, Properties, device, probe};
pub use error::CudaError;
pub use kernels::Kernel;
pub use measure::{KernelTime, Measurement};
pub use nvrtc::{NVRTC_VARIABLE, Nvrtc};
pub use stage::{CudaOptions, CudaStage, Needs, Times};
