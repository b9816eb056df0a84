//! Expert weights in eight, nine or sixteen bits: the formats, the packed layout in memory, and the matrix-vector
//! kernels that read it.
//!
//! Everything here is `core` only: no allocation, threads, files or clocks, so that the same code runs in the
//! firmware, in `duckd` and under tests. What a row's sum means bit for bit is written once, in the crate's README;
//! [`multiply`](multiply()) has a scalar and an AVX2 implementation of it.
//!
//! ```
//! use fp9::{Format, Inputs, Isa, Job, Matrix, Scratch, E4m3Source};
//!
//! let (rows, k) = (32, 64);
//! let codes = [0x38u8; 32 * 64]; // 1.0 in e4m3
//! let mut data = vec![0; fp9::packed_len(Format::E4m3, rows, k).unwrap()];
//! fp9::pack_e4m3(Format::E4m3, E4m3Source { codes: &codes, stride: k }, rows, k, &mut data)?;
//! let matrix = Matrix::new(Format::E4m3, rows, k, &data, &[0.5], 0)?;
//!
//! let mut x = [2.0f32; 64];
//! fp9::prepare(Format::E4m3, &mut x);
//! let mut out = [0.0; 32];
//! let job = Job::new(&matrix, Inputs::one(&x));
//! fp9::multiply(Isa::detect(), &job, &mut out, rows, &mut Scratch::new())?;
//! assert_eq!(out, [64.0; 32]);
//! # Ok::<(), fp9::Error>(())
//! ```

#![no_std]

#[cfg(any(test, feature = "bench-support"))]
extern crate std;

#[cfg(feature = "bench-support")]
pub mod bench;
mod error;
mod exp;
mod fma;
pub mod format;
mod isa;
mod layout;
mod matrix;
mod multiply;
mod pack;

pub use error::Error;
pub use exp::{EXP_MAX_ULP, SILU_MAX_ULP, exp, silu, silu_mul};
pub use fma::fma;
pub use isa::{Avx2, Isa};
pub use layout::{COL_BLOCK, COL_STEP, Format, ROW_TILE, SCALE_BLOCK, packed_len, scales_len, tile_len};
pub use matrix::{Inputs, Job, Matrix, Prefetch, prepare};
pub use multiply::{Scratch, multiply};
pub use pack::{Bf16Source, E4m3Source, Rounding, gather_scales, pack_bf16, pack_e4m3, pack_fp9_from_bf16, unpack};
