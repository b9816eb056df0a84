//! Where each weight lies in a packed matrix.
//!
//! A matrix is cut into *tiles* of 32 rows, one after the other; a tile into *chunks* of 32 columns; a chunk into
//! *planes* of 32 dwords, one dword for each row. A 256-bit load therefore holds the same columns of eight rows: rows
//! are lanes, so a row's sum is never spread over lanes and needs no horizontal reduction, x enters as a broadcast
//! that serves four loads, and a kernel reads memory strictly forwards. What a row's dwords hold depends on the format:
//!
//! * [`Format::E4m3`], 8 dwords for 32 columns: dword `i` holds columns `4i`, `4i + 2`, `4i + 1`, `4i + 3` from its
//!   most significant byte down. An arithmetic 16-bit shift by 4 puts two codes at once at the upper half of an f32.
//! * [`Format::Fp9`], 9 dwords for 32 columns. Each 16-bit half holds one code in its upper nine bits (the upper half
//!   column `4i`, the lower `4i + 1`; dwords 7 and 8: columns 28 to 31) and seven *spare* bits. The spare bits of
//!   dwords 0 to 6 are the upper seven bits of columns `4i + 2` (upper half) and `4i + 3`; the two missing bits of each
//!   come from the spare bits of dwords 7 and 8. They are joined by XOR without masking first: what the shifted
//!   neighbour brings along is known when packing and is cancelled there. That saves an instruction for each field.
//! * [`Format::Bf16`], 16 dwords for 32 columns: the even column in the upper half, the odd one in the lower.

use crate::{Error, format};

/// Rows of a tile: row counts and row ranges are multiples of it.
///
/// Four groups of eight lanes: one broadcast of x serves four vectors, and with one chain a row there are four
/// independent chains, which cover the FMA latency. With two inputs that makes eight accumulators, four x and a mask
/// in sixteen registers.
pub const ROW_TILE: usize = 32;
/// Columns come in multiples of this (one slice).
pub const COL_STEP: usize = 64;
/// A row's sum is folded, with its block scale, every so many columns counted from column 0.
pub const COL_BLOCK: usize = 128;
/// Rows and columns of the source that share a scale.
pub const SCALE_BLOCK: usize = 128;
/// Columns of a chunk.
pub(crate) const CHUNK: usize = 32;
/// Bytes of a plane: one dword for each row of a tile.
pub(crate) const PLANE: usize = ROW_TILE * 4;
/// Dwords a row can have in a chunk.
const MAX_DWORDS: usize = 16;

/// How a weight is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Eight bits, as published: see [`format::e4m3`].
    E4m3,
    /// Nine bits, five of them exponent: see [`format::s1e5m3`].
    Fp9,
    /// Sixteen bits, without scales: see [`format::bf16`].
    Bf16,
}

impl Format {
    /// Bits of a weight.
    pub const fn bits(self) -> usize {
        match self {
            Format::E4m3 => 8,
            Format::Fp9 => 9,
            Format::Bf16 => 16,
        }
    }

    /// Dwords of one row in a chunk, and so planes of a chunk.
    pub(crate) const fn planes(self) -> usize {
        self.bits() * CHUNK / 32
    }

    /// Power of two that x is multiplied with once ([`prepare`](crate::prepare)): decoded weights are 2^-120 (e4m3) or
    /// 2^-112 (fp9) of their value, and with 2^100 on the other side no product is denormal for any x of sense, none
    /// overflows for |x| < 2^27.
    pub const fn input_exponent(self) -> i32 {
        match self {
            Format::E4m3 | Format::Fp9 => 100,
            Format::Bf16 => 0,
        }
    }

    /// The rest of the factor, which the kernels fold into the block scale.
    pub(crate) const fn fold_exponent(self) -> i32 {
        match self {
            Format::E4m3 => 20,
            Format::Fp9 => 12,
            Format::Bf16 => 0,
        }
    }

    /// Whether matrices carry block scales.
    pub const fn has_scales(self) -> bool {
        !matches!(self, Format::Bf16)
    }

    /// A code's value, exact.
    pub fn decode(self, code: u16) -> f32 {
        match self {
            Format::E4m3 => format::e4m3::decode(code as u8),
            Format::Fp9 => format::s1e5m3::decode(code),
            Format::Bf16 => format::bf16::decode(code),
        }
    }

    /// A code's value times 2^-([`input_exponent`](Self::input_exponent) + fold exponent): what kernels multiply with.
    #[inline]
    pub(crate) fn raw(self, code: u16) -> f32 {
        match self {
            Format::E4m3 => format::e4m3::raw(code as u8),
            Format::Fp9 => format::s1e5m3::raw(code),
            Format::Bf16 => format::bf16::decode(code),
        }
    }
}

/// 2^exponent, for the few exponents that [`Format`] names.
pub(crate) const fn pow2(exponent: i32) -> f32 {
    f32::from_bits(((127 + exponent) as u32) << 23)
}

/// Bytes of a packed matrix of `rows` × `k`: rows · k · bits / 8, without padding.
pub fn packed_len(format: Format, rows: usize, k: usize) -> Result<usize, Error> {
    if !rows.is_multiple_of(ROW_TILE) {
        return Err(Error::Rows { found: rows });
    }
    if k == 0 || !k.is_multiple_of(COL_STEP) {
        return Err(Error::Columns { found: k });
    }
    rows.checked_mul(k)
        .and_then(|n| n.checked_mul(format.bits()))
        .map(|bits| bits / 8)
        .ok_or(Error::TooLarge { rows, k })
}

/// Bytes of one tile of [`ROW_TILE`] rows: rows `r..s` of a matrix are bytes `r / ROW_TILE * tile_len ..`.
pub const fn tile_len(format: Format, k: usize) -> usize {
    k / CHUNK * chunk_len(format)
}

/// Bytes of one chunk.
pub(crate) const fn chunk_len(format: Format) -> usize {
    format.planes() * PLANE
}

/// Scales of a matrix of `rows` × `k` whose first row is row `row_phase` (0..128) of its scale block: row blocks
/// touched × column blocks. 0 for [`Format::Bf16`].
pub const fn scales_len(format: Format, rows: usize, k: usize, row_phase: usize) -> usize {
    if !format.has_scales() {
        return 0;
    }
    // Saturating: sizes may come from anywhere, and a length that nothing has is then refused by whoever compares it.
    row_phase.saturating_add(rows).div_ceil(SCALE_BLOCK).saturating_mul(k.div_ceil(SCALE_BLOCK))
}

/// Spare bits of an fp9 half-word.
const SPARE: u16 = 0x7F;

/// What dwords 7 and 8 (one half of each) bring to the low bits of the field that dword `i` begins.
fn fp9_tail(i: usize, d7: u16, d8: u16) -> u16 {
    match i {
        0..=2 => d7 << (2 + 2 * i),
        3..=5 => d8 << (2 + 2 * (i - 3)),
        _ => (d7 << 8) ^ (d8 << 7),
    }
}

/// Nine half-words of one row from sixteen codes: nine direct ones, then the seven that are spread.
fn fp9_encode_half(direct: [u16; 9], spread: [u16; 7]) -> [u16; 9] {
    let mut words = direct.map(|code| code << 7);
    let pair = |field: usize| spread[field] & 3;
    words[8] |= pair(3) << 5 | pair(4) << 3 | pair(5) << 1 | (spread[6] & 1);
    // Bit 8 of field 6 is d7's bit 0 with d8's bit 1 on top of it.
    words[7] |= pair(0) << 5 | pair(1) << 3 | pair(2) << 1 | ((spread[6] >> 1 ^ words[8] >> 1) & 1);
    for (i, code) in spread.into_iter().enumerate() {
        words[i] |= ((code >> 2) ^ (fp9_tail(i, words[7], words[8]) >> 9)) & SPARE;
    }
    words
}

/// Inverse of [`fp9_encode_half`], by the kernels' own steps.
fn fp9_decode_half(words: [u16; 9]) -> ([u16; 9], [u16; 7]) {
    let spread = core::array::from_fn(|i| ((words[i] << 9) ^ fp9_tail(i, words[7], words[8])) >> 7);
    (words.map(|word| word >> 7), spread)
}

/// One row's dwords of a chunk from its 32 codes; unused ones stay zero.
pub(crate) fn encode_chunk(format: Format, codes: &[u16; CHUNK]) -> [u32; MAX_DWORDS] {
    let mut dwords = [0; MAX_DWORDS];
    let c = |column: usize| u32::from(codes[column]);
    match format {
        Format::E4m3 => {
            for (i, dword) in dwords[..8].iter_mut().enumerate() {
                *dword = c(4 * i) << 24 | c(4 * i + 2) << 16 | c(4 * i + 1) << 8 | c(4 * i + 3);
            }
        }
        Format::Fp9 => {
            let half = |lower: usize| {
                let direct = core::array::from_fn(|i| codes[if i < 8 { 4 * i } else { 30 } + lower]);
                fp9_encode_half(direct, core::array::from_fn(|i| codes[4 * i + 2 + lower]))
            };
            let (high, low) = (half(0), half(1));
            for i in 0..9 {
                dwords[i] = u32::from(high[i]) << 16 | u32::from(low[i]);
            }
        }
        Format::Bf16 => {
            for (i, dword) in dwords.iter_mut().enumerate() {
                *dword = c(2 * i) << 16 | c(2 * i + 1);
            }
        }
    }
    dwords
}

/// Inverse of [`encode_chunk`].
#[inline]
pub(crate) fn decode_chunk(format: Format, dwords: &[u32; MAX_DWORDS]) -> [u16; CHUNK] {
    let mut codes = [0u16; CHUNK];
    match format {
        Format::E4m3 => {
            for (i, d) in dwords[..8].iter().enumerate() {
                let [d3, d1, d2, d0] = d.to_le_bytes();
                (codes[4 * i], codes[4 * i + 1]) = (d0.into(), d1.into());
                (codes[4 * i + 2], codes[4 * i + 3]) = (d2.into(), d3.into());
            }
        }
        Format::Fp9 => {
            for (lower, shift) in [(0, 16), (1, 0)] {
                let (direct, spread) = fp9_decode_half(core::array::from_fn(|i| (dwords[i] >> shift) as u16));
                for (i, code) in direct.into_iter().enumerate() {
                    codes[if i < 8 { 4 * i } else { 30 } + lower] = code;
                }
                for (i, code) in spread.into_iter().enumerate() {
                    codes[4 * i + 2 + lower] = code;
                }
            }
        }
        Format::Bf16 => {
            for (i, d) in dwords.iter().enumerate() {
                (codes[2 * i], codes[2 * i + 1]) = ((d >> 16) as u16, *d as u16);
            }
        }
    }
    codes
}

/// Reads row `row` (within its tile) of the chunk that `bytes` begins with.
#[inline]
pub(crate) fn read_chunk(format: Format, bytes: &[u8], row: usize) -> [u16; CHUNK] {
    let mut dwords = [0; MAX_DWORDS];
    for (i, dword) in dwords[..format.planes()].iter_mut().enumerate() {
        let at = i * PLANE + row * 4;
        *dword = u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    }
    decode_chunk(format, &dwords)
}

/// Writes row `row` (within its tile) of the chunk that `bytes` begins with.
pub(crate) fn write_chunk(format: Format, bytes: &mut [u8], row: usize, codes: &[u16; CHUNK]) {
    let dwords = encode_chunk(format, codes);
    for (i, dword) in dwords[..format.planes()].iter().enumerate() {
        let at = i * PLANE + row * 4;
        bytes[at..at + 4].copy_from_slice(&dword.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn chunks_decode_to_what_was_encoded(codes: [u16; CHUNK], which in 0usize..3) {
            let format = [Format::E4m3, Format::Fp9, Format::Bf16][which];
            let mask = ((1u32 << format.bits()) - 1) as u16;
            let codes = codes.map(|code| code & mask);
            let dwords = encode_chunk(format, &codes);
            prop_assert!(dwords[format.planes()..].iter().all(|&d| d == 0));
            prop_assert_eq!(decode_chunk(format, &dwords), codes);
        }
    }

    #[test]
    fn lengths_have_no_padding_and_bad_shapes_are_refused() {
        assert_eq!(packed_len(Format::E4m3, 64, 7168), Ok(64 * 7168));
        assert_eq!(packed_len(Format::Fp9, 7168, 64), Ok(7168 * 64 * 9 / 8));
        assert_eq!(packed_len(Format::Bf16, 32, 192), Ok(32 * 192 * 2));
        assert_eq!(packed_len(Format::E4m3, 48, 64), Err(Error::Rows { found: 48 }));
        assert_eq!(packed_len(Format::E4m3, 32, 96), Err(Error::Columns { found: 96 }));
        assert_eq!(packed_len(Format::E4m3, 32, 0), Err(Error::Columns { found: 0 }));
        let rows = usize::MAX / 64 * 32;
        assert_eq!(packed_len(Format::E4m3, rows, 64), Err(Error::TooLarge { rows, k: 64 }));
    }

    #[test]
    fn scales_stay_below_a_fourteenth_of_a_bit() {
        for (rows, k) in [(64, 7168), (7168, 64), (64, 2048), (2048, 64), (64, 256)] {
            let bits = scales_len(Format::E4m3, rows, k, 0) * 32;
            assert!((bits as f64) < 0.07 * (rows * k) as f64, "{rows} x {k}: {bits} bits");
        }
        assert_eq!(scales_len(Format::Fp9, 64, 256, 64), 2);
        assert_eq!(scales_len(Format::Fp9, 128, 64, 64), 2);
        assert_eq!(scales_len(Format::Bf16, 64, 256, 0), 0);
    }
}
