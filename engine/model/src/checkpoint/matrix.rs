//! Tensors with a checked shape: matrices (possibly with block scales) and vectors.

use std::sync::Arc;

use super::tensor::{DType, Tensor, decode};

/// Side of the square blocks that share one scale.
pub const SCALE_BLOCK: usize = 128;

/// A weight of shape [rows, cols] that acts as `y = x Wᵀ`; rows are contiguous.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// rows × cols elements of type F8E4M3, BF16 or F32.
    pub data: Tensor,
    /// Present exactly when the elements are F8E4M3.
    pub scale: Option<BlockScales>,
}

impl Matrix {
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.cols * self.data.dtype().size().expect("a matrix is only built of sized types")
    }

    /// Row `row` decoded, scales applied.
    ///
    /// # Panics
    /// If there is no such row or `out` is not `cols` long.
    pub fn row_to_f32(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "output length for a row of {}", self.data.name());
        let bytes = &self.data.bytes()[row * self.row_bytes()..][..self.row_bytes()];
        let mut slots = out.iter_mut();
        decode(self.dtype(), bytes, |value| *slots.next().expect("one slot for each column") = value);
        if let Some(scale) = &self.scale {
            for (block, &factor) in out.chunks_mut(SCALE_BLOCK).zip(scale.row(row / SCALE_BLOCK)) {
                block.iter_mut().for_each(|value| *value *= factor);
            }
        }
    }

    /// All values, row after row, scales applied. Reads the whole matrix: for tests and small models.
    pub fn to_f32_vec(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.rows * self.cols];
        if self.cols > 0 {
            for (row, out) in values.chunks_mut(self.cols).enumerate() {
                self.row_to_f32(row, out);
            }
        }
        values
    }
}

/// One positive finite f32 for each 128 × 128 block of a matrix; the last row and column of blocks may be cut short.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockScales {
    cols: usize,
    values: Arc<[f32]>,
}

impl BlockScales {
    /// `values` has a whole number of rows of `cols` blocks.
    pub(super) fn new(cols: usize, values: Arc<[f32]>) -> BlockScales {
        BlockScales { cols, values }
    }

    /// Number of block rows: ceil(matrix rows / 128).
    pub fn rows(&self) -> usize {
        self.values.len().checked_div(self.cols).unwrap_or(0)
    }

    /// Number of block columns: ceil(matrix columns / 128).
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// All scales, block row after block row, aligned as f32.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The scales of matrix rows 128 × `block_row` onwards, one for each block column.
    pub fn row(&self, block_row: usize) -> &[f32] {
        &self.values[block_row * self.cols..][..self.cols]
    }

    /// The scale of one block.
    pub fn get(&self, block_row: usize, block_col: usize) -> f32 {
        self.row(block_row)[block_col]
    }
}

/// A short tensor decoded to finite f32 values; cheap to clone. Dereferences to `[f32]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Vector(pub(super) Arc<[f32]>);

impl Vector {
    /// A vector from values that come from elsewhere, such as a converted model or a test.
    pub fn from_values(values: impl Into<Arc<[f32]>>) -> Vector {
        Vector(values.into())
    }
}

impl std::ops::Deref for Vector {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.0
    }
}
