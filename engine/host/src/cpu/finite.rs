//! Refuses weights that are no finite numbers before anything is computed with them.
//!
//! A NaN code would not stay a NaN: vector code decodes e4m3 by shifts, which makes 480 of it. So a damaged tensor has to be found here, by a
//! scan at memory speed. Vectors and block scales are checked where they are decoded, experts where they are packed.

use model::checkpoint::{DType, Matrix};
use rayon::prelude::*;

use crate::StageError;

/// Bytes of one task.
const CHUNK: usize = 1 << 20;

/// Checks all matrices.
pub(crate) fn check(matrices: &[Matrix]) -> Result<(), StageError> {
    matrices.par_iter().try_for_each(|matrix| match first_not_finite(matrix) {
        None => Ok(()),
        Some((at, code)) => Err(StageError::NotFinite {
            tensor: matrix.data.name().to_owned(),
            file: matrix.data.file().to_owned(),
            row: at / matrix.cols,
            column: at % matrix.cols,
            code,
        }),
    })
}

/// Index and bits of the first element that is NaN or infinite.
fn first_not_finite(matrix: &Matrix) -> Option<(usize, u32)> {
    let bytes = matrix.data.bytes();
    let size = matrix.dtype().size().unwrap_or(1);
    let bad = |chunk: &[u8]| match matrix.dtype() {
        DType::BF16 => chunk.as_chunks().0.iter().position(|&b| u16::from_le_bytes(b) & 0x7f80 == 0x7f80),
        DType::F32 => chunk.as_chunks().0.iter().position(|&b| u32::from_le_bytes(b) & 0x7f80_0000 == 0x7f80_0000),
        // Folding without a branch is what the compiler turns into vector code; the place is looked for only if there is one.
        _ if chunk.iter().fold(false, |any, &b| any | (b & 0x7f == 0x7f)) => {
            chunk.iter().position(|&b| b & 0x7f == 0x7f)
        }
        _ => None,
    };
    let at = bytes.par_chunks(CHUNK).enumerate().find_map_first(|(i, chunk)| Some(i * CHUNK / size + bad(chunk)?))?;
    let mut code = [0; 4];
    code[..size].copy_from_slice(&bytes[at * size..][..size]);
    Some((at, u32::from_le_bytes(code)))
}
