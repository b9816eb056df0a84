//! What the constructors and kernels refuse.

use core::fmt;

use crate::Format;

/// A shape, buffer or value that does not fit; nothing has been written when one is returned.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// Rows must come in multiples of [`ROW_TILE`](crate::ROW_TILE).
    Rows {
        /// What was asked for.
        found: usize,
    },
    /// Columns must come in multiples of [`COL_STEP`](crate::COL_STEP), at least one.
    Columns {
        /// What was asked for.
        found: usize,
    },
    /// A row or column range that is not aligned or not inside the matrix.
    Range {
        /// `rows` or `columns`.
        axis: &'static str,
        /// First index of the range.
        start: usize,
        /// One past its last.
        end: usize,
        /// What both ends must be a multiple of (or the matrix's end).
        step: usize,
        /// How many the matrix has.
        limit: usize,
    },
    /// A buffer of the wrong length.
    Length {
        /// Which buffer.
        what: &'static str,
        /// Elements it must have (at least, where it is an input).
        expected: usize,
        /// Elements it has.
        found: usize,
    },
    /// A slice whose edge would cut a scale block where the layout cannot keep both scales.
    Offset {
        /// `row` or `column`.
        axis: &'static str,
        /// The offset given.
        found: usize,
        /// What it must be a multiple of.
        step: usize,
    },
    /// A scale that is NaN, infinite, or too large to be folded with the format's factor.
    Scale {
        /// Its index in the matrix's scales.
        index: usize,
        /// Its value.
        found: f32,
    },
    /// A weight that is NaN or infinite.
    NotFinite {
        /// Row in the source.
        row: usize,
        /// Column in the source.
        column: usize,
        /// The code found there.
        code: u16,
    },
    /// A conversion that the format does not have.
    Conversion {
        /// The source format.
        from: &'static str,
        /// The packed format asked for.
        to: Format,
    },
    /// Sizes whose product does not fit the address space.
    TooLarge {
        /// Rows asked for.
        rows: usize,
        /// Columns asked for.
        k: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::Rows { found } => {
                write!(f, "rows: expected a multiple of {}, found {found}", crate::ROW_TILE)
            }
            Error::Columns { found } => {
                write!(f, "columns: expected a positive multiple of {}, found {found}", crate::COL_STEP)
            }
            Error::Range { axis, start, end, step, limit } => {
                write!(f, "range of {axis}: expected multiples of {step} within 0..{limit}, found {start}..{end}")
            }
            Error::Length { what, expected, found } => {
                write!(f, "length of {what}: expected {expected}, found {found}")
            }
            Error::Offset { axis, found, step } => {
                write!(f, "{axis} offset: expected a multiple of {step}, found {found}")
            }
            Error::Scale { index, found } => {
                write!(f, "scale {index}: expected a finite value of at most 2^100, found {found}")
            }
            Error::NotFinite { row, column, code } => {
                write!(f, "weight at row {row}, column {column}: expected a finite value, found code {code:#06x}")
            }
            Error::Conversion { from, to } => {
                write!(f, "conversion: expected a format that {from} packs into, found {to:?}")
            }
            Error::TooLarge { rows, k } => {
                write!(f, "matrix of {rows} rows and {k} columns: expected a size that fits memory")
            }
        }
    }
}

impl core::error::Error for Error {}
