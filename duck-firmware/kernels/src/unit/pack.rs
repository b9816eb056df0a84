//! From a checkpoint's tensors to a unit's block.
//!
//! The source is a whole expert, as it lies in a mapped checkpoint; a unit's rows and columns and its part of the scale
//! grids follow from the slice alone. NaN and infinite weights are refused where they stand.

use fp9::{Bf16Source, E4m3Source, Format, Rounding, SCALE_BLOCK};

use super::{MAX_HIDDEN, Part, SLICE, UnitError, UnitLayout};

/// Room for one matrix's scales.
const MAX_SCALES: usize = MAX_HIDDEN / SCALE_BLOCK;

/// A whole tensor of an expert, row-major and without gaps. The scale of element (r, c) is
/// `scales[r / 128 * ceil(columns / 128) + c / 128]`; bf16 tensors have none.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a, T> {
    /// The codes.
    pub codes: &'a [T],
    /// `[ceil(rows / 128), ceil(columns / 128)]`.
    pub scales: &'a [f32],
}

/// An expert's three tensors: gate and up `[width, hidden]`, down `[hidden, width]`.
#[derive(Clone, Copy, Debug)]
pub struct Expert<'a, T> {
    /// `[width, hidden]`.
    pub gate: Tensor<'a, T>,
    /// `[width, hidden]`.
    pub up: Tensor<'a, T>,
    /// `[hidden, width]`.
    pub down: Tensor<'a, T>,
    /// The intermediate dimension, a multiple of 64.
    pub width: usize,
}

/// Where a unit's weights come from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// e4m3 codes with scales: for [`Format::E4m3`] and [`Format::Fp9`], both exact.
    E4m3(Expert<'a, u8>),
    /// bf16 codes: for [`Format::Bf16`], exact, and [`Format::Fp9`], rounded to nearest even.
    Bf16(Expert<'a, u16>),
}

impl<T> Expert<'_, T> {
    fn part(&self, part: Part) -> &Tensor<'_, T> {
        match part {
            Part::Gate => &self.gate,
            Part::Up => &self.up,
            Part::Down => &self.down,
        }
    }

    /// Rows and columns of a tensor, and the row and column where `slice` begins.
    fn place(&self, hidden: usize, part: Part, slice: usize) -> ((usize, usize), (usize, usize)) {
        match part {
            Part::Gate | Part::Up => ((self.width, hidden), (slice * SLICE, 0)),
            Part::Down => ((hidden, self.width), (0, slice * SLICE)),
        }
    }

    fn check(&self, hidden: usize, slice: usize) -> Result<(), UnitError> {
        if self.width.is_multiple_of(SLICE) {
            for part in Part::ALL {
                let (expected, _) = self.place(hidden, part, slice);
                let found = self.part(part).codes.len();
                if expected.0.checked_mul(expected.1) != Some(found) {
                    return Err(UnitError::Tensor { part, expected, found });
                }
            }
        }
        let slices = self.width / SLICE;
        if slice >= slices { Err(UnitError::Slice { slices, found: slice }) } else { Ok(()) }
    }
}

/// Packs the unit of `source` in `slice` into `block`, of [`UnitLayout::len`] bytes, whatever its alignment.
///
/// Returns what rounding did: all zeros but `weights` where the format holds every value of the source.
///
/// # Errors
/// Nothing of use is in `block` then.
pub fn pack_unit(
    layout: &UnitLayout,
    source: &Source<'_>,
    slice: usize,
    block: &mut [u8],
) -> Result<Rounding, UnitError> {
    if block.len() != layout.len() {
        return Err(UnitError::Length { expected: layout.len(), found: block.len() });
    }
    match source {
        Source::E4m3(expert) => expert.check(layout.hidden, slice)?,
        Source::Bf16(expert) => expert.check(layout.hidden, slice)?,
    }
    block[layout.scales(Part::Down).end..].fill(0);
    let mut report = Rounding::default();
    for part in Part::ALL {
        let mut scales = [0.0; MAX_SCALES];
        let scales = &mut scales[..layout.scales];
        let data = &mut block[layout.data(part)];
        let (rounding, offset) = match source {
            Source::E4m3(expert) => pack_e4m3(layout, expert, part, slice, data, scales),
            Source::Bf16(expert) => pack_bf16(layout, expert, part, slice, data, scales),
        };
        report.merge(&rounding.map_err(|cause| in_source(part, cause, offset))?);
        let out = block[layout.scales(part)].as_chunks_mut().0;
        out.iter_mut().zip(&*scales).for_each(|(out, scale)| *out = scale.to_le_bytes());
        check_scales(layout, part, &block[layout.data(part)], scales)?;
    }
    Ok(report)
}

type Packed = (Result<Rounding, fp9::Error>, (usize, usize));

fn pack_e4m3(
    layout: &UnitLayout,
    expert: &Expert<'_, u8>,
    part: Part,
    slice: usize,
    data: &mut [u8],
    scales: &mut [f32],
) -> Packed {
    let ((_, columns), offset) = expert.place(layout.hidden, part, slice);
    let (rows, k) = layout.shape(part);
    let tensor = expert.part(part);
    let source = E4m3Source { codes: &tensor.codes[offset.0 * columns + offset.1..], stride: columns };
    let packed = fp9::pack_e4m3(layout.format, source, rows, k, data).and_then(|()| {
        // A slice of 64 never straddles a row block, so its phase does not matter.
        let grid_columns = columns.div_ceil(SCALE_BLOCK);
        fp9::gather_scales(tensor.scales, grid_columns, offset, (rows, k), scales)?;
        Ok(Rounding { weights: (rows * k) as u64, ..Rounding::default() })
    });
    (packed, offset)
}

fn pack_bf16(
    layout: &UnitLayout,
    expert: &Expert<'_, u16>,
    part: Part,
    slice: usize,
    data: &mut [u8],
    scales: &mut [f32],
) -> Packed {
    let ((_, columns), offset) = expert.place(layout.hidden, part, slice);
    let (rows, k) = layout.shape(part);
    let codes = &expert.part(part).codes[offset.0 * columns + offset.1..];
    let source = Bf16Source { codes, stride: columns };
    let packed = match layout.format {
        Format::Bf16 => fp9::pack_bf16(source, rows, k, data)
            .map(|()| Rounding { weights: (rows * k) as u64, ..Rounding::default() }),
        Format::Fp9 => fp9::pack_fp9_from_bf16(source, rows, k, data, scales),
        to @ Format::E4m3 => Err(fp9::Error::Conversion { from: "bf16", to }),
    };
    (packed, offset)
}

/// The error in the source tensor's own rows and columns.
fn in_source(part: Part, cause: fp9::Error, offset: (usize, usize)) -> UnitError {
    match cause {
        fp9::Error::NotFinite { row, column, code } => {
            UnitError::NotFinite { part, row: offset.0 + row, column: offset.1 + column, code }
        }
        cause => UnitError::Part { part, cause },
    }
}

/// Refuses scales that [`Unit::view`](super::Unit::view) would refuse.
fn check_scales(layout: &UnitLayout, part: Part, data: &[u8], scales: &[f32]) -> Result<(), UnitError> {
    let (rows, k) = layout.shape(part);
    fp9::Matrix::new(layout.format, rows, k, data, scales, 0)
        .map(|_| ())
        .map_err(|cause| UnitError::Part { part, cause })
}
