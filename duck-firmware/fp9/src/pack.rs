//! From a checkpoint's rows to the packed layout, into buffers that the caller provides.

use crate::format::{bf16, e4m3, s1e5m3};
use crate::layout::{self, CHUNK, chunk_len};
use crate::{Error, Format, Matrix, ROW_TILE, SCALE_BLOCK};

/// e4m3 codes of a slice: row `r` at `codes[r * stride..]`.
#[derive(Debug, Clone, Copy)]
pub struct E4m3Source<'a> {
    /// Starts at the slice's first code.
    pub codes: &'a [u8],
    /// Codes from one row to the next in the source.
    pub stride: usize,
}

/// bf16 codes of a slice: row `r` at `codes[r * stride..]`.
#[derive(Debug, Clone, Copy)]
pub struct Bf16Source<'a> {
    /// Starts at the slice's first code.
    pub codes: &'a [u16],
    /// Codes from one row to the next in the source.
    pub stride: usize,
}

/// What rounding to fp9 did to a matrix; sums, so that matrices can be [merged](Rounding::merge).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rounding {
    /// Weights converted.
    pub weights: u64,
    /// Weights whose value changed.
    pub changed: u64,
    /// Non-zero weights that became zero.
    pub flushed: u64,
    /// Largest |error| / |weight| among weights that did not become zero; 2^-4 at most while the scaled
    /// weight stays in fp9's normal range.
    pub max_relative: f64,
    /// Sum of squared errors.
    pub squared_error: f64,
    /// Sum of squared weights.
    pub squared_weight: f64,
}

impl Rounding {
    /// Adds another matrix's figures.
    pub fn merge(&mut self, other: &Rounding) {
        self.weights += other.weights;
        self.changed += other.changed;
        self.flushed += other.flushed;
        self.max_relative = self.max_relative.max(other.max_relative);
        self.squared_error += other.squared_error;
        self.squared_weight += other.squared_weight;
    }

    /// Squared error over squared weights (its square root is the relative RMS error); 0 for an all-zero matrix.
    pub fn relative_mean_square(&self) -> f64 {
        if self.squared_weight == 0.0 { 0.0 } else { self.squared_error / self.squared_weight }
    }

    fn add(&mut self, exact: f32, stored: f32) {
        let (exact, stored) = (f64::from(exact), f64::from(stored));
        let error = (stored - exact).abs();
        self.weights += 1;
        self.squared_weight += exact * exact;
        if error == 0.0 {
            return;
        }
        self.changed += 1;
        self.squared_error += error * error;
        if stored == 0.0 {
            self.flushed += 1;
        } else {
            self.max_relative = self.max_relative.max(error / exact.abs());
        }
    }
}

fn check_source(what: &'static str, len: usize, stride: usize, rows: usize, k: usize) -> Result<(), Error> {
    if rows > 1 && stride < k {
        return Err(Error::Length { what: "source stride", expected: k, found: stride });
    }
    let expected = match rows {
        0 => 0,
        rows => stride.saturating_mul(rows - 1).saturating_add(k),
    };
    if len < expected {
        return Err(Error::Length { what, expected, found: len });
    }
    Ok(())
}

fn check_out(format: Format, rows: usize, k: usize, found: usize) -> Result<(), Error> {
    let expected = layout::packed_len(format, rows, k)?;
    if found != expected {
        return Err(Error::Length { what: "packed data", expected, found });
    }
    Ok(())
}

/// Fills `out` chunk by chunk with `code(row, column)`.
fn pack_with(format: Format, rows: usize, k: usize, out: &mut [u8], mut code: impl FnMut(usize, usize) -> u16) {
    let tiles = out.chunks_exact_mut(layout::tile_len(format, k));
    for (first, tile) in (0..rows).step_by(ROW_TILE).zip(tiles) {
        for (column, chunk) in (0..k).step_by(CHUNK).zip(tile.chunks_exact_mut(chunk_len(format))) {
            for row in 0..ROW_TILE {
                let codes: [u16; CHUNK] = core::array::from_fn(|c| code(first + row, column + c));
                layout::write_chunk(format, chunk, row, &codes);
            }
        }
    }
}

/// Packs e4m3 codes as [`Format::E4m3`] or, exactly as well, [`Format::Fp9`]. NaN codes are refused.
///
/// `out`: [`packed_len`](crate::packed_len) bytes. The scales go beside it: [`gather_scales`].
pub fn pack_e4m3(format: Format, src: E4m3Source<'_>, rows: usize, k: usize, out: &mut [u8]) -> Result<(), Error> {
    if format == Format::Bf16 {
        return Err(Error::Conversion { from: "e4m3", to: format });
    }
    check_out(format, rows, k, out.len())?;
    check_source("e4m3 source", src.codes.len(), src.stride, rows, k)?;
    for row in 0..rows {
        let codes = &src.codes[row * src.stride..][..k];
        if let Some(column) = e4m3::find_nan(codes) {
            return Err(Error::NotFinite { row, column, code: codes[column].into() });
        }
    }
    let code = |row: usize, column: usize| src.codes[row * src.stride + column];
    match format {
        Format::Fp9 => pack_with(format, rows, k, out, |row, column| {
            s1e5m3::from_e4m3(code(row, column)).expect("NaN codes were refused above")
        }),
        _ => pack_with(format, rows, k, out, |row, column| code(row, column).into()),
    }
    Ok(())
}

fn check_finite(src: Bf16Source<'_>, rows: usize, k: usize) -> Result<(), Error> {
    for row in 0..rows {
        let codes = &src.codes[row * src.stride..][..k];
        if let Some(column) = bf16::find_not_finite(codes) {
            return Err(Error::NotFinite { row, column, code: codes[column] });
        }
    }
    Ok(())
}

/// Packs bf16 codes as they are. NaN and infinities are refused.
pub fn pack_bf16(src: Bf16Source<'_>, rows: usize, k: usize, out: &mut [u8]) -> Result<(), Error> {
    check_out(Format::Bf16, rows, k, out.len())?;
    check_source("bf16 source", src.codes.len(), src.stride, rows, k)?;
    check_finite(src, rows, k)?;
    pack_with(Format::Bf16, rows, k, out, |row, column| src.codes[row * src.stride + column]);
    Ok(())
}

/// Rounds bf16 codes to fp9, nearest even, with a power-of-two scale for each 128 × 128 block counted from the slice's
/// own first row and column (so `row_phase` is 0), and reports the error.
///
/// `out`: [`packed_len`](crate::packed_len) bytes; `scales`: [`scales_len`](crate::scales_len) values.
pub fn pack_fp9_from_bf16(
    src: Bf16Source<'_>,
    rows: usize,
    k: usize,
    out: &mut [u8],
    scales: &mut [f32],
) -> Result<Rounding, Error> {
    check_out(Format::Fp9, rows, k, out.len())?;
    check_source("bf16 source", src.codes.len(), src.stride, rows, k)?;
    let expected = layout::scales_len(Format::Fp9, rows, k, 0);
    if scales.len() != expected {
        return Err(Error::Length { what: "scales", expected, found: scales.len() });
    }
    check_finite(src, rows, k)?;

    let value = |row: usize, column: usize| bf16::decode(src.codes[row * src.stride + column]);
    let blocks = k.div_ceil(SCALE_BLOCK);
    for (index, scale) in scales.iter_mut().enumerate() {
        let (row, column) = (index / blocks * SCALE_BLOCK, index % blocks * SCALE_BLOCK);
        let mut largest = 0f32;
        for r in row..(row + SCALE_BLOCK).min(rows) {
            for c in column..(column + SCALE_BLOCK).min(k) {
                largest = largest.max(f32::from_bits(value(r, c).to_bits() & 0x7FFF_FFFF));
            }
        }
        *scale = s1e5m3::block_scale(largest);
    }
    let mut report = Rounding::default();
    pack_with(Format::Fp9, rows, k, out, |row, column| {
        let scale = scales[row / SCALE_BLOCK * blocks + column / SCALE_BLOCK];
        let exact = value(row, column);
        let code = s1e5m3::encode(exact / scale).expect("NaN was refused above");
        report.add(exact, s1e5m3::decode(code) * scale);
        code
    });
    Ok(report)
}

/// Copies the scales that a slice needs out of the source's grid (`weight_scale_inv`, row-major, `grid_columns` wide)
/// and returns the `row_phase` for [`Matrix::new`].
///
/// The slice is rows `row_offset..row_offset + rows`, columns `col_offset..col_offset + k` of the source. Its row
/// offset must be a multiple of 32; its column offset a multiple of 128, or of 64 if the slice stays in one block.
pub fn gather_scales(
    grid: &[f32],
    grid_columns: usize,
    (row_offset, col_offset): (usize, usize),
    (rows, k): (usize, usize),
    out: &mut [f32],
) -> Result<usize, Error> {
    let (row_phase, col_phase) = (row_offset % SCALE_BLOCK, col_offset % SCALE_BLOCK);
    if !row_phase.is_multiple_of(ROW_TILE) {
        return Err(Error::Offset { axis: "row", found: row_offset, step: ROW_TILE });
    }
    if col_phase != 0 && (col_phase != crate::COL_STEP || k > SCALE_BLOCK - col_phase) {
        return Err(Error::Offset { axis: "column", found: col_offset, step: SCALE_BLOCK });
    }
    let columns = k.div_ceil(SCALE_BLOCK);
    let expected = layout::scales_len(Format::E4m3, rows, k, row_phase);
    if out.len() != expected {
        return Err(Error::Length { what: "scales", expected, found: out.len() });
    }
    let (first_row, first_column) = (row_offset / SCALE_BLOCK, col_offset / SCALE_BLOCK);
    if first_column + columns > grid_columns {
        return Err(Error::Length { what: "scale grid row", expected: first_column + columns, found: grid_columns });
    }
    let grid_rows = expected.checked_div(columns).unwrap_or(0);
    let needed = (first_row + grid_rows).saturating_mul(grid_columns);
    if grid.len() < needed {
        return Err(Error::Length { what: "scale grid", expected: needed, found: grid.len() });
    }
    for (r, row) in out.chunks_exact_mut(columns.max(1)).enumerate() {
        row.copy_from_slice(&grid[(first_row + r) * grid_columns + first_column..][..columns]);
    }
    Ok(row_phase)
}

/// Every weight as the kernels see it, scale applied (one rounding), row-major into `out` of rows · k values.
pub fn unpack(matrix: &Matrix<'_>, out: &mut [f32]) -> Result<(), Error> {
    let (format, rows, k) = (matrix.format(), matrix.rows(), matrix.k());
    if out.len() != rows * k {
        return Err(Error::Length { what: "unpacked weights", expected: rows * k, found: out.len() });
    }
    let factor = layout::pow2(-format.fold_exponent());
    let tiles = matrix.data().chunks_exact(layout::tile_len(format, k));
    for (first, tile) in (0..rows).step_by(ROW_TILE).zip(tiles) {
        for (column, chunk) in (0..k).step_by(CHUNK).zip(tile.chunks_exact(chunk_len(format))) {
            let scale = matrix.fold_factor(first, column / SCALE_BLOCK) * factor;
            for row in 0..ROW_TILE {
                let codes = layout::read_chunk(format, chunk, row);
                let target = &mut out[(first + row) * k + column..][..CHUNK];
                for (target, code) in target.iter_mut().zip(codes) {
                    *target = format.decode(code) * scale;
                }
            }
        }
    }
    Ok(())
}
