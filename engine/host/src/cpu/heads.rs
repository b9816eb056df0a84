//! Products with one matrix per head: MLA's key half absorbed into the query, and its value half.

use std::marker::PhantomData;

use model::checkpoint::{DType, Matrix};
use model::program::HeadRows;
use rayon::prelude::*;

use super::buffers::{Strided, StridedMut};
use super::dot::{BLOCK, Bf16, E4m3, F32, Source};
use super::linear::{MatrixRows, SERIAL_WORK, product};
use super::simd::{Isa, Kernel, Simd, run};

/// Lanes that share a decoded weight.
const LANES: usize = 4;

fn rows_of<'a>(matrix: &'a Matrix, heads: &HeadRows, head: usize) -> MatrixRows<'a> {
    MatrixRows::some(matrix, head * heads.rows_per_head + heads.first_row, heads.rows)
}

/// `out[h] = x[h] · W_hᵀ` for each lane.
pub(crate) fn head_project(
    isa: Isa,
    matrix: &Matrix,
    heads: &HeadRows,
    x: Strided<'_>,
    mut out: StridedMut<'_>,
    scratch: &mut Vec<f32>,
) {
    let (k, lanes, rows) = (matrix.cols, x.lanes(), heads.rows);
    scratch.resize(heads.heads * rows * lanes, 0.0);
    let body = |(h, results): (usize, &mut [f32])| {
        product(isa, rows_of(matrix, heads, h), x.columns(h * k, k), results);
    };
    if heads.heads * rows * k * lanes < SERIAL_WORK {
        scratch.chunks_mut(rows * lanes).enumerate().for_each(body);
    } else {
        scratch.par_chunks_mut(rows * lanes).enumerate().for_each(body);
    }
    for t in 0..lanes {
        for (n, out) in out.row(t).iter_mut().enumerate() {
            *out = scratch[n * lanes + t];
        }
    }
}

/// `out[h] = x[h] · W_h` for each lane: rows of `W_h` are added in ascending order by fused multiply-add, the weight rounded after its block
/// scale.
pub(crate) fn head_mix(
    isa: Isa,
    matrix: &Matrix,
    heads: &HeadRows,
    x: Strided<'_>,
    x_stride: usize,
    mut out: StridedMut<'_>,
    scratch: &mut Vec<f32>,
) {
    let (k, lanes) = (matrix.cols, x.lanes());
    scratch.resize(heads.heads * lanes * k, 0.0);
    let body = |(h, out): (usize, &mut [f32])| {
        let rows = rows_of(matrix, heads, h);
        let x = x.columns(h * x_stride, heads.rows);
        match matrix.dtype() {
            DType::F8E4M3 => run(isa, Mix::<E4m3> { rows, x, out, source: PhantomData }),
            DType::BF16 => run(isa, Mix::<Bf16> { rows, x, out, source: PhantomData }),
            _ => run(isa, Mix::<F32> { rows, x, out, source: PhantomData }),
        }
    };
    if heads.heads * heads.rows * k * lanes < SERIAL_WORK {
        scratch.chunks_mut(lanes * k).enumerate().for_each(body);
    } else {
        scratch.par_chunks_mut(lanes * k).enumerate().for_each(body);
    }
    for t in 0..lanes {
        for (h, out) in out.row(t).chunks_mut(k).enumerate() {
            out.copy_from_slice(&scratch[(h * lanes + t) * k..][..k]);
        }
    }
}

/// One head: `out[t] = x[t] · rows`, `out` is `[lanes, k]`.
struct Mix<'a, S> {
    rows: MatrixRows<'a>,
    x: Strided<'a>,
    out: &'a mut [f32],
    source: PhantomData<S>,
}

impl<S: Source> Kernel for Mix<'_, S> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        let k = self.rows.matrix().cols;
        let mut t = 0;
        while t < self.x.lanes() {
            let left = self.x.lanes() - t;
            for c in (0..k).step_by(8) {
                // SAFETY: the CPU is the caller's duty.
                unsafe {
                    match left {
                        1 => store(self.columns::<V, 1>(t, c, k), self.out, t, c, k),
                        2 | 3 => store(self.columns::<V, 2>(t, c, k), self.out, t, c, k),
                        _ => store(self.columns::<V, LANES>(t, c, k), self.out, t, c, k),
                    }
                }
            }
            t += if left >= LANES { LANES } else { left.min(2) };
        }
    }
}

fn store<const L: usize>(columns: [[f32; 8]; L], out: &mut [f32], t: usize, c: usize, k: usize) {
    let n = (k - c).min(8);
    for (j, columns) in columns.iter().enumerate() {
        out[(t + j) * k + c..][..n].copy_from_slice(&columns[..n]);
    }
}

impl<S: Source> Mix<'_, S> {
    /// Columns `c .. c + 8` (fewer at the ragged end, the rest is then meaningless) of lanes `t .. t + L`.
    ///
    /// # Safety
    /// The CPU has what `V` needs.
    #[inline(always)]
    unsafe fn columns<V: Simd, const L: usize>(&self, t: usize, c: usize, k: usize) -> [[f32; 8]; L] {
        let mut x: [&[f32]; L] = [&[]; L];
        for (j, x) in x.iter_mut().enumerate() {
            *x = self.x.row(t + j);
        }
        let mut out = [[0.0; 8]; L];
        let n = (k - c).min(8);
        // SAFETY: weights are read from checked slices of n elements, through a padded copy where n < 8.
        unsafe {
            let mut acc = [V::splat(0.0); L];
            for i in 0..self.x.width() {
                let bytes = &self.rows.row(i)[c * S::BYTES..][..n * S::BYTES];
                let w = if n == 8 {
                    S::load::<V>(bytes.as_ptr())
                } else {
                    let mut padded = [0u8; 32];
                    padded[..bytes.len()].copy_from_slice(bytes);
                    S::load::<V>(padded.as_ptr())
                };
                let w = match self.rows.scales(i) {
                    Some(scales) => w.mul(V::splat(scales[c / BLOCK])),
                    None => w,
                };
                for (acc, x) in acc.iter_mut().zip(x) {
                    *acc = V::splat(x[i]).mul_add(w, *acc);
                }
            }
            for (out, acc) in out.iter_mut().zip(acc) {
                acc.store(out.as_mut_ptr());
            }
        }
        out
    }
}
