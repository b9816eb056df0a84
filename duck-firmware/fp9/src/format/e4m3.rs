//! OCP FP8 E4M3 ("fn"): one sign, four exponent bits (bias 7), three mantissa bits; no infinities, NaN only at 0x7F
//! and 0xFF. The published fp8 checkpoints' weight format.

/// Largest finite value.
pub const MAX: f32 = 448.0;

/// The value of `code`; NaN for 0x7F and 0xFF.
#[inline]
pub fn decode(code: u8) -> f32 {
    if code & 0x7F == 0x7F {
        return f32::NAN;
    }
    // Exponent and mantissa at f32's place are the value times 2^-120, subnormals included; f64 undoes that exactly
    // without a denormal product.
    (f64::from(raw(code)) * f64::from_bits((1023 + 120) << 52)) as f32
}

/// Sign, exponent and mantissa moved to f32's place: the value times 2^-120. What the kernels multiply with.
#[inline]
pub(crate) fn raw(code: u8) -> f32 {
    f32::from_bits((u32::from(code & 0x80) << 24) | (u32::from(code & 0x7F) << 20))
}

/// Rounds to nearest even; beyond [`MAX`] saturates (as the published quantiser does), NaN stays NaN.
pub fn encode(value: f32) -> u8 {
    let sign = ((value.to_bits() >> 24) & 0x80) as u8;
    if value.is_nan() {
        return sign | 0x7F;
    }
    let magnitude = f32::from_bits(value.to_bits() & 0x7FFF_FFFF);
    if magnitude >= MAX {
        return sign | 0x7E;
    }
    let code = if magnitude < f32::from_bits((127 - 6) << 23) {
        // Subnormal: a multiple of 2^-9. Adding 2^23 units of 2^-9 rounds to one of them, ties to even.
        const MAGIC: f32 = (1u32 << 14) as f32;
        ((magnitude + MAGIC).to_bits() - MAGIC.to_bits()) as u8
    } else {
        let bits = magnitude.to_bits();
        let rounded = bits + 0x7_FFFF + ((bits >> 20) & 1);
        ((rounded >> 20) - ((127 - 7) << 3)) as u8
    };
    sign | code
}

/// Position of the first NaN code, if any. Reads every byte once, 64 at a time without a branch per byte.
pub fn find_nan(codes: &[u8]) -> Option<usize> {
    let is_nan = |code: u8| code & 0x7F == 0x7F;
    for (index, block) in codes.chunks(64).enumerate() {
        if block.iter().fold(false, |any, &code| any | is_nan(code)) {
            return block.iter().position(|&code| is_nan(code)).map(|at| index * 64 + at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the definition, in f64.
    fn naive(code: u8) -> f64 {
        let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
        let (e, m) = (i32::from((code >> 3) & 15), f64::from(code & 7));
        sign * if e == 0 { m / 8.0 * 2f64.powi(-6) } else { (1.0 + m / 8.0) * 2f64.powi(e - 7) }
    }

    #[test]
    fn every_code_decodes_by_the_definition_and_encodes_back() {
        let mut finite = 0;
        for code in 0..=255u8 {
            if code & 0x7F == 0x7F {
                assert!(decode(code).is_nan());
                assert_eq!(encode(decode(code)) & 0x7F, 0x7F);
                continue;
            }
            finite += 1;
            assert_eq!(f64::from(decode(code)), naive(code), "code {code:#04x}");
            assert_eq!(f64::from(raw(code)) * 2f64.powi(120), naive(code), "code {code:#04x}");
            assert_eq!(encode(decode(code)), code);
        }
        assert_eq!(finite, 254);
    }

    #[test]
    fn encoding_rounds_ties_to_even_between_every_two_neighbours() {
        for code in 0..0x7Eu8 {
            let (low, high) = (decode(code), decode(code + 1));
            let middle = (low + high) / 2.0;
            let even = if code & 1 == 0 { code } else { code + 1 };
            assert_eq!(encode(middle), even, "between {low} and {high}");
            assert_eq!(encode(-middle), even | 0x80);
            assert_eq!(encode(f32::from_bits(middle.to_bits() - 1)), code);
            assert_eq!(encode(f32::from_bits(middle.to_bits() + 1)), code + 1);
        }
        assert_eq!(encode(1e9), 0x7E);
        assert_eq!(encode(f32::NEG_INFINITY), 0xFE);
    }

    #[test]
    fn the_scan_finds_the_first_nan_wherever_it_stands() {
        for length in [0, 1, 63, 64, 65, 200] {
            let clean: std::vec::Vec<u8> = (0..length).map(|i| [0u8, 0x7E, 0xFE, 0x80][i % 4]).collect();
            assert_eq!(find_nan(&clean), None);
            for at in 0..length {
                let mut dirty = clean.clone();
                dirty[at] = if at % 2 == 0 { 0x7F } else { 0xFF };
                dirty[length - 1] |= 0x7F;
                assert_eq!(find_nan(&dirty), Some(at), "length {length}");
            }
        }
    }
}
