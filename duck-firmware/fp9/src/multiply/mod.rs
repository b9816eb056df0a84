//! Matrix times vectors: checks, and the choice of an implementation.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod scalar;

use crate::{COL_BLOCK, Error, Isa, Job, ROW_TILE};

/// Room for one tile's decoded column block, 16 KiB: batches decode weights once and use them for every vector.
#[repr(C, align(64))]
pub struct Scratch([f32; COL_BLOCK * ROW_TILE]);

impl Scratch {
    /// Zeroed; `const`, so it can be a static of each core.
    pub const fn new() -> Self {
        Scratch([0.0; COL_BLOCK * ROW_TILE])
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

/// Computes `job`: output `v`, row `r` goes to `out[v * out_stride + r - job.rows.start]`.
///
/// A row's bits depend on the matrix and its vector alone: not on `isa`, the row or column ranges, the batch, or
/// prefetching.
pub fn multiply(
    isa: Isa,
    job: &Job<'_>,
    out: &mut [f32],
    out_stride: usize,
    scratch: &mut Scratch,
) -> Result<(), Error> {
    job.check(out.len(), out_stride)?;
    match isa {
        Isa::Scalar => scalar::multiply(job, out, out_stride),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(token) => avx2::multiply(token, job, out, out_stride, &mut scratch.0),
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2(_) => scalar::multiply(job, out, out_stride),
    }
    Ok(())
}
