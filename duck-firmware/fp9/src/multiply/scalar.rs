//! The reference: one row after another, by the definition in the README. Its only merit is being plain.

use crate::layout::{CHUNK, chunk_len, read_chunk, tile_len};
use crate::matrix::block_columns;
use crate::{Job, ROW_TILE, fma};

/// Runs a checked job.
pub(super) fn multiply(job: &Job<'_>, out: &mut [f32], out_stride: usize) {
    let matrix = job.matrix;
    let (format, k) = (matrix.format(), matrix.k());
    let tile_len = tile_len(format, k);
    for row in job.rows.clone() {
        let tile = &matrix.data()[row / ROW_TILE * tile_len..][..tile_len];
        for v in 0..job.inputs.count() {
            let x = job.inputs.vector(v, k);
            let target = &mut out[v * out_stride + row - job.rows.start];
            let mut total = if job.columns.start == 0 { 0.0 } else { *target };
            for block in job.blocks() {
                let mut sum = 0.0;
                for column in block_columns(block, k).step_by(CHUNK) {
                    let chunk = &tile[column / CHUNK * chunk_len(format)..];
                    let codes = read_chunk(format, chunk, row % ROW_TILE);
                    for (code, &x) in codes.into_iter().zip(&x[column..]) {
                        sum = fma(format.raw(code), x, sum);
                    }
                }
                total = fma(sum, matrix.fold_factor(row, block), total);
            }
            *target = match job.factors {
                Some(factors) => total * factors[v],
                None => total,
            };
        }
    }
}
