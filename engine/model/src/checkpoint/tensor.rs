//! A named array in a mapped file, as bytes. Values are decoded elsewhere, except small vectors.

use std::fmt::{self, Display};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::mapped::MappedFile;

/// Type of a tensor's elements, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// 8 bits: sign, 4 exponent bits (bias 7), 3 mantissa bits; 0x7F and 0xFF are NaN, there is no infinity; largest 448.
    F8E4M3,
    /// The upper half of an f32.
    BF16,
    /// IEEE single precision.
    F32,
    /// A type that no model here uses, by its safetensors name.
    Other(&'static str),
}

impl DType {
    /// Bytes of one element, where the type is one that is used.
    pub fn size(self) -> Option<usize> {
        match self {
            DType::F8E4M3 => Some(1),
            DType::BF16 => Some(2),
            DType::F32 => Some(4),
            DType::Other(_) => None,
        }
    }
}

impl Display for DType {
    /// The safetensors name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F8E4M3 => "F8_E4M3",
            DType::BF16 => "BF16",
            DType::F32 => "F32",
            DType::Other(name) => name,
        })
    }
}

/// A tensor of a checkpoint: cheap to clone, keeps its file mapped.
///
/// Its bytes start wherever the file put them: no alignment is promised, so read wider elements bytewise or unaligned.
#[derive(Clone)]
pub struct Tensor {
    name: Arc<str>,
    dtype: DType,
    shape: Arc<[usize]>,
    file: Arc<MappedFile>,
    range: Range<usize>,
}

impl Tensor {
    /// `range` must lie in the file and have the size of `shape` × `dtype`; `shard` has that checked.
    pub(super) fn new(
        name: Arc<str>,
        dtype: DType,
        shape: Arc<[usize]>,
        file: Arc<MappedFile>,
        range: Range<usize>,
    ) -> Tensor {
        debug_assert!(range.end <= file.bytes().len());
        Tensor { name, dtype, shape, file, range }
    }

    /// Name in the checkpoint.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes, outermost first; rows are contiguous.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The raw little-endian elements. Unaligned. The first touch of a page reads it from disk.
    pub fn bytes(&self) -> &[u8] {
        &self.file.bytes()[self.range.clone()]
    }

    /// The file that holds it.
    pub fn file(&self) -> &Path {
        self.file.path()
    }

    /// Where the elements start in the file, for those who read it without the mapping.
    pub(crate) fn offset(&self) -> u64 {
        self.range.start as u64
    }

    /// All values as f32, for vectors and tests; `None` for a type that is not used here. An e4m3 tensor is decoded
    /// without its scales.
    pub fn to_f32_vec(&self) -> Option<Vec<f32>> {
        self.dtype.size()?;
        let mut values = Vec::new();
        decode(self.dtype, self.bytes(), |value| values.push(value));
        Some(values)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {} {:?} in {})", self.name, self.dtype, self.shape, self.file().display())
    }
}

/// Calls `each` with every element in turn; with none for a type that is not used.
pub(super) fn decode(dtype: DType, bytes: &[u8], each: impl FnMut(f32)) {
    match dtype {
        DType::F8E4M3 => bytes.iter().map(|&code| e4m3_to_f32(code)).for_each(each),
        DType::BF16 => bytes.as_chunks().0.iter().map(|&b| bf16_to_f32(u16::from_le_bytes(b))).for_each(each),
        DType::F32 => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).for_each(each),
        DType::Other(_) => {}
    }
}

/// The exact value of a bf16.
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The exact value of an e4m3 code (the "fn" variant: NaN at 0x7F and 0xFF, no infinity).
pub fn e4m3_to_f32(code: u8) -> f32 {
    const TABLE: [f32; 256] = e4m3_table();
    TABLE[usize::from(code)]
}

const fn e4m3_table() -> [f32; 256] {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let sign = (code as u32 & 0x80) << 24;
        let exponent = (code as u32 >> 3) & 0xF;
        let mantissa = code as u32 & 7;
        table[code] = if exponent == 15 && mantissa == 7 {
            f32::NAN
        } else if exponent == 0 {
            // Subnormal: mantissa × 2^-9.
            let magnitude = mantissa as f32 / 512.0;
            f32::from_bits(magnitude.to_bits() | sign)
        } else {
            f32::from_bits(sign | (exponent + 120) << 23 | mantissa << 20)
        };
        code += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e4m3_codes_have_their_textbook_values() {
        for (code, value) in [(0x00, 0.0), (0x01, 2f32.powi(-9)), (0x07, 7.0 / 512.0), (0x08, 2f32.powi(-6))] {
            assert_eq!(e4m3_to_f32(code), value, "{code:#x}");
            assert_eq!(e4m3_to_f32(code | 0x80).to_bits(), (-value).to_bits(), "{code:#x}");
        }
        for (code, value) in [(0x38, 1.0), (0x3C, 1.5), (0x77, 240.0), (0x78, 256.0), (0x7E, 448.0), (0xFE, -448.0)] {
            assert_eq!(e4m3_to_f32(code), value, "{code:#x}");
        }
        assert!(e4m3_to_f32(0x7F).is_nan() && e4m3_to_f32(0xFF).is_nan());
        assert_eq!((0..=255u8).filter(|&c| e4m3_to_f32(c).is_nan()).count(), 2);
    }

    #[test]
    fn e4m3_codes_are_ordered() {
        for code in 0..0x7Eu8 {
            assert!(e4m3_to_f32(code) < e4m3_to_f32(code + 1), "{code:#x}");
        }
    }
}
