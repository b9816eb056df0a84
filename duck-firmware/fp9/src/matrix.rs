//! Checked views: a packed matrix, its input vectors, and one piece of work on them.

use core::ops::Range;

use crate::layout::{self, pow2};
use crate::{COL_BLOCK, COL_STEP, Error, Format, ROW_TILE, SCALE_BLOCK};

/// A packed matrix of `rows` × `k` weights with its block scales.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    format: Format,
    rows: usize,
    k: usize,
    data: &'a [u8],
    scales: &'a [f32],
    row_phase: usize,
}

impl<'a> Matrix<'a> {
    /// Checks shapes and scales.
    ///
    /// `data`: [`packed_len`](crate::packed_len) bytes in the packed layout; any alignment (32 is fastest).
    /// `scales`: [`scales_len`](crate::scales_len) values, row-major over (row block, column block of 128).
    /// `row_phase`: where the first row lies in its 128-row scale block, a multiple of [`ROW_TILE`]; 0 for whole
    /// matrices and for scales made by this crate.
    pub fn new(
        format: Format,
        rows: usize,
        k: usize,
        data: &'a [u8],
        scales: &'a [f32],
        row_phase: usize,
    ) -> Result<Self, Error> {
        let expected = layout::packed_len(format, rows, k)?;
        if data.len() != expected {
            return Err(Error::Length { what: "packed data", expected, found: data.len() });
        }
        if row_phase >= SCALE_BLOCK || !row_phase.is_multiple_of(ROW_TILE) {
            return Err(Error::Offset { axis: "row", found: row_phase, step: ROW_TILE });
        }
        let expected = layout::scales_len(format, rows, k, row_phase);
        if scales.len() != expected {
            return Err(Error::Length { what: "scales", expected, found: scales.len() });
        }
        // Up to 2^100 the product with the fold factor is finite; the comparison is false for NaN.
        if let Some(index) = scales.iter().position(|s| !(-pow2(100)..=pow2(100)).contains(s)) {
            return Err(Error::Scale { index, found: scales[index] });
        }
        Ok(Matrix { format, rows, k, data, scales, row_phase })
    }

    /// The weights' format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Number of outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Length of an input.
    pub fn k(&self) -> usize {
        self.k
    }

    /// All packed bytes, for checksums and prefetching.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// The packed bytes of a row range, clamped to the matrix and widened to whole tiles.
    pub fn rows_data(&self, rows: Range<usize>) -> &'a [u8] {
        let tile = layout::tile_len(self.format, self.k);
        let end = rows.end.min(self.rows).div_ceil(ROW_TILE) * tile;
        let start = (rows.start / ROW_TILE).saturating_mul(tile).min(end);
        &self.data[start..end]
    }

    /// Factor of the fold at column block `block` for the tile that starts at `row`: the scale times what
    /// [`Format::input_exponent`] left over.
    #[inline]
    pub(crate) fn fold_factor(&self, row: usize, block: usize) -> f32 {
        if !self.format.has_scales() {
            return 1.0;
        }
        let scale = self.scales[(self.row_phase + row) / SCALE_BLOCK * self.k.div_ceil(SCALE_BLOCK) + block];
        scale * pow2(self.format.fold_exponent())
    }
}

/// Multiplies by the power of two that `format` wants on its inputs, in place: exact for |x| < 2^27 (and for every
/// x in [`Format::Bf16`]).
///
/// Once for each vector, whatever the number of matrices. e4m3 and fp9 take the same inputs.
pub fn prepare(format: Format, x: &mut [f32]) {
    let exponent = format.input_exponent();
    if exponent != 0 {
        let factor = pow2(exponent);
        x.iter_mut().for_each(|x| *x *= factor);
    }
}

/// One or more [prepared](prepare) input vectors.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    data: &'a [f32],
    stride: usize,
    count: usize,
}

impl<'a> Inputs<'a> {
    /// A single vector.
    pub fn one(x: &'a [f32]) -> Self {
        Inputs { data: x, stride: x.len(), count: 1 }
    }

    /// `count` vectors, vector `v` at `data[v * stride..]`.
    pub fn strided(data: &'a [f32], stride: usize, count: usize) -> Self {
        Inputs { data, stride, count }
    }

    /// Number of vectors.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Vector `v`'s first `k` elements; call only after [`Job::check`].
    #[inline]
    pub(crate) fn vector(&self, v: usize, k: usize) -> &'a [f32] {
        &self.data[v * self.stride..][..k]
    }
}

/// How far ahead of its loads a kernel prefetches. Never changes a result.
#[derive(Debug, Clone, Copy)]
pub struct Prefetch<'a> {
    /// Bytes ahead; with 0 the prefetches fall on what is being read and do nothing. The hardware prefetcher stops at page ends, and the out-of-order window covers about a
    /// tile: without this, computing and waiting add up. docs/measurements/kernels.md has the curve.
    pub distance: usize,
    /// What is read after this job, so that the distance is kept across matrices; may be empty.
    pub next: &'a [u8],
}

impl Default for Prefetch<'_> {
    fn default() -> Self {
        Prefetch { distance: 4096, next: &[] }
    }
}

/// One piece of work for [`multiply`](crate::multiply()): `rows` of `matrix` times every vector of `inputs`.
#[derive(Debug, Clone)]
pub struct Job<'a> {
    /// The weights.
    pub matrix: &'a Matrix<'a>,
    /// [Prepared](prepare) vectors of at least `k` elements.
    pub inputs: Inputs<'a>,
    /// Rows to compute: both ends multiples of [`ROW_TILE`].
    pub rows: Range<usize>,
    /// Columns to add: both ends multiples of [`COL_BLOCK`], or the end `k`. A range that does not start at 0 goes on
    /// from what an earlier call left in `out`, with the same bits as one call over all columns; so a long tile can
    /// be interrupted.
    pub columns: Range<usize>,
    /// One factor for each vector (router weights): each finished sum is multiplied by it and rounded, never fused
    /// into anything. Only with a range that ends at `k`.
    pub factors: Option<&'a [f32]>,
    /// Prefetching.
    pub prefetch: Prefetch<'a>,
}

impl<'a> Job<'a> {
    /// All rows and columns, no factors, default prefetching.
    pub fn new(matrix: &'a Matrix<'a>, inputs: Inputs<'a>) -> Self {
        Job { matrix, inputs, rows: 0..matrix.rows, columns: 0..matrix.k, factors: None, prefetch: Prefetch::default() }
    }

    /// Whether the ranges and every buffer fit; the kernels' bounds rest on this alone.
    pub(crate) fn check(&self, out: usize, out_stride: usize) -> Result<(), Error> {
        let (rows, k) = (self.matrix.rows, self.matrix.k);
        let range = |axis, range: &Range<usize>, step: usize, limit: usize| {
            let aligned = |end: usize| end.is_multiple_of(step) || end == limit;
            if range.start <= range.end && range.end <= limit && aligned(range.start) && aligned(range.end) {
                return Ok(());
            }
            Err(Error::Range { axis, start: range.start, end: range.end, step, limit })
        };
        range("rows", &self.rows, ROW_TILE, rows)?;
        range("columns", &self.columns, COL_BLOCK, k)?;
        // Vectors at a stride: (count - 1) · stride + length elements.
        let strided = |stride: usize, length: usize| match self.inputs.count {
            0 => 0,
            count => stride.saturating_mul(count - 1).saturating_add(length),
        };
        let at_least = |what, expected: usize, found: usize| {
            if found < expected { Err(Error::Length { what, expected, found }) } else { Ok(()) }
        };
        at_least("inputs", strided(self.inputs.stride, k), self.inputs.data.len())?;
        if self.inputs.count > 1 {
            at_least("output stride", self.rows.len(), out_stride)?;
        }
        at_least("output", strided(out_stride, self.rows.len()), out)?;
        if let Some(factors) = self.factors {
            if factors.len() != self.inputs.count {
                return Err(Error::Length { what: "factors", expected: self.inputs.count, found: factors.len() });
            }
            if self.columns.end != k {
                let Range { start, end } = self.columns;
                return Err(Error::Range { axis: "columns before factors", start, end, step: k, limit: k });
            }
        }
        Ok(())
    }

    /// The fold blocks that the column range covers.
    pub(crate) fn blocks(&self) -> Range<usize> {
        self.columns.start.div_ceil(COL_BLOCK)..self.columns.end.div_ceil(COL_BLOCK)
    }
}

/// Columns of block `block` in a matrix of `k`: 128, or 64 in the last when `k` is an odd multiple of 64.
#[inline]
pub(crate) fn block_columns(block: usize, k: usize) -> Range<usize> {
    const { assert!(COL_BLOCK == 2 * COL_STEP) };
    block * COL_BLOCK..((block + 1) * COL_BLOCK).min(k)
}
