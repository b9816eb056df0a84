//! The block of one unit: gate, up and down of one expert in one slice, ready for the kernels.
//!
//! ```text
//! gate    64 × hidden   packed by fp9
//! up      64 × hidden
//! down    hidden × 64
//! scales  f32, little-endian: gate's, up's, down's, each ceil(hidden / 128); none for bf16
//! zeros   up to a multiple of 64 bytes
//! ```
//!
//! Every part starts at a multiple of 64 bytes, so a block that does has aligned parts. A 64-wide slice never straddles a block of
//! 128 × 128, so each matrix needs one scale for each 128 of hidden: 0.004 bit a weight for DeepSeek-V3.2. Blocks follow
//! one another without more padding; files and pages have no part in this.

use core::fmt;
use core::ops::Range;

use fp9::{Format, Matrix};

mod pack;

pub use pack::{Expert, Source, Tensor, pack_unit};

/// Columns of an expert's intermediate dimension in a unit.
pub const SLICE: usize = 64;
/// Alignment of a block and of its parts, and what a block's length is a multiple of.
pub const ALIGN: usize = 64;
/// Largest hidden dimension: bounds what packing keeps on its stack.
pub const MAX_HIDDEN: usize = 1 << 16;

/// A matrix of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// `[64, hidden]`.
    Gate,
    /// `[64, hidden]`.
    Up,
    /// `[hidden, 64]`.
    Down,
}

impl Part {
    /// In the block's order.
    pub const ALL: [Part; 3] = [Part::Gate, Part::Up, Part::Down];

    /// For messages.
    pub fn name(self) -> &'static str {
        match self {
            Part::Gate => "gate",
            Part::Up => "up",
            Part::Down => "down",
        }
    }
}

/// Where the parts of a unit's block lie; the same for every unit of a format and hidden dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitLayout {
    format: Format,
    hidden: usize,
    matrix: usize,
    scales: usize,
}

impl UnitLayout {
    /// `hidden`: a multiple of 64, at most [`MAX_HIDDEN`].
    pub fn new(format: Format, hidden: usize) -> Result<UnitLayout, UnitError> {
        if hidden == 0 || !hidden.is_multiple_of(SLICE) || hidden > MAX_HIDDEN {
            return Err(UnitError::Hidden { found: hidden });
        }
        let matrix = SLICE * hidden * format.bits() / 8;
        Ok(UnitLayout { format, hidden, matrix, scales: fp9::scales_len(format, SLICE, hidden, 0) })
    }

    /// How the weights are stored.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The model's hidden dimension.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// Bytes of a block, a multiple of [`ALIGN`].
    pub fn len(&self) -> usize {
        (3 * self.matrix + 3 * self.scales * size_of::<f32>()).next_multiple_of(ALIGN)
    }

    /// Never: a block has weights.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Weights of a unit.
    pub fn weights(&self) -> usize {
        3 * SLICE * self.hidden
    }

    /// Rows and columns of a part.
    pub fn shape(&self, part: Part) -> (usize, usize) {
        match part {
            Part::Gate | Part::Up => (SLICE, self.hidden),
            Part::Down => (self.hidden, SLICE),
        }
    }

    /// A part's packed weights within the block.
    pub fn data(&self, part: Part) -> Range<usize> {
        let start = part as usize * self.matrix;
        start..start + self.matrix
    }

    /// A part's scales within the block, in bytes.
    pub fn scales(&self, part: Part) -> Range<usize> {
        let bytes = self.scales * size_of::<f32>();
        let start = 3 * self.matrix + part as usize * bytes;
        start..start + bytes
    }
}

/// A checked view of a unit's block.
#[derive(Clone, Copy, Debug)]
pub struct Unit<'a> {
    /// `[64, hidden]`.
    pub gate: Matrix<'a>,
    /// `[64, hidden]`.
    pub up: Matrix<'a>,
    /// `[hidden, 64]`.
    pub down: Matrix<'a>,
}

impl<'a> Unit<'a> {
    /// Checks length, alignment and scales. The weights themselves need no check: every code is a finite number to the kernels.
    pub fn view(layout: &UnitLayout, block: &'a [u8]) -> Result<Unit<'a>, UnitError> {
        let part = |part| Unit::part(layout, block, part);
        Ok(Unit { gate: part(Part::Gate)?, up: part(Part::Up)?, down: part(Part::Down)? })
    }

    /// One matrix of [`Unit::view`]'s three.
    pub fn part(layout: &UnitLayout, block: &'a [u8], part: Part) -> Result<Matrix<'a>, UnitError> {
        if block.len() != layout.len() {
            return Err(UnitError::Length { expected: layout.len(), found: block.len() });
        }
        let (rows, k) = layout.shape(part);
        let scales = floats(&block[layout.scales(part)])?;
        Matrix::new(layout.format, rows, k, &block[layout.data(part)], scales, 0)
            .map_err(|cause| UnitError::Part { part, cause })
    }
}

/// The bytes as f32 values; they must be aligned for that.
fn floats(bytes: &[u8]) -> Result<&[f32], UnitError> {
    const { assert!(cfg!(target_endian = "little"), "blocks are little-endian and read in place") };
    // SAFETY: every bit pattern is an f32, and `align_to` keeps to the alignment.
    let (before, values, after) = unsafe { bytes.align_to::<f32>() };
    if !before.is_empty() || !after.is_empty() {
        return Err(UnitError::Alignment { expected: ALIGN, found: bytes.as_ptr() as usize % ALIGN });
    }
    Ok(values)
}

/// A block or a source that does not fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UnitError {
    /// A hidden dimension that units cannot have.
    Hidden {
        /// What was asked for.
        found: usize,
    },
    /// A block of the wrong length.
    Length {
        /// Bytes of a block of this layout.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A block whose scales cannot be read in place.
    Alignment {
        /// Multiple that a block must start at.
        expected: usize,
        /// Offset from the one before.
        found: usize,
    },
    /// A matrix that fp9 refuses, with its rows and columns counted from the unit's own first.
    Part {
        /// Which matrix.
        part: Part,
        /// Why.
        cause: fp9::Error,
    },
    /// A source tensor of the wrong size.
    Tensor {
        /// Which matrix.
        part: Part,
        /// Rows and columns it must have.
        expected: (usize, usize),
        /// Elements it has.
        found: usize,
    },
    /// A slice that the expert does not have.
    Slice {
        /// Slices of the expert.
        slices: usize,
        /// The slice asked for.
        found: usize,
    },
    /// A weight that is NaN or infinite, in the source tensor's own rows and columns.
    NotFinite {
        /// Which matrix.
        part: Part,
        /// Row of the source tensor.
        row: usize,
        /// Column of the source tensor.
        column: usize,
        /// The code found there.
        code: u16,
    },
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            UnitError::Hidden { found } => {
                write!(f, "hidden dimension: expected a multiple of {SLICE} up to {MAX_HIDDEN}, found {found}")
            }
            UnitError::Length { expected, found } => {
                write!(f, "length of a unit's block: expected {expected} bytes, found {found}")
            }
            UnitError::Alignment { expected, found } => {
                write!(f, "address of a unit's block: expected a multiple of {expected}, found one {found} bytes off")
            }
            UnitError::Part { part, .. } => write!(f, "{} does not fit its unit", part.name()),
            UnitError::Tensor { part, expected: (rows, columns), found } => {
                write!(f, "{}: expected {rows} x {columns} elements, found {found}", part.name())
            }
            UnitError::Slice { slices, found } => write!(f, "slice: expected one below {slices}, found {found}"),
            UnitError::NotFinite { part, row, column, code } => {
                let name = part.name();
                write!(f, "{name}, row {row}, column {column}: expected a finite weight, found code {code:#04x}")
            }
        }
    }
}

impl core::error::Error for UnitError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            UnitError::Part { cause, .. } => Some(cause),
            _ => None,
        }
    }
}
