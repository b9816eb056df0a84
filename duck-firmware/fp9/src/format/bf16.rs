//! bf16: the top half of an f32.

/// The value of `code`.
#[inline]
pub fn decode(code: u16) -> f32 {
    f32::from_bits(u32::from(code) << 16)
}

/// Rounds to nearest even; NaN stays a (quiet) NaN.
#[inline]
pub fn encode(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) as u16
}

/// Position of the first NaN or infinity, if any.
pub fn find_not_finite(codes: &[u16]) -> Option<usize> {
    codes.iter().position(|code| code & 0x7F80 == 0x7F80)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_encodes_back() {
        for code in 0..=u16::MAX {
            let value = decode(code);
            if value.is_nan() {
                assert!(decode(encode(value)).is_nan());
            } else {
                assert_eq!(encode(value), code);
            }
        }
    }

    #[test]
    fn ties_round_to_even_and_the_largest_round_to_infinity() {
        assert_eq!(encode(f32::from_bits(0x3F80_8000)), 0x3F80);
        assert_eq!(encode(f32::from_bits(0x3F81_8000)), 0x3F82);
        assert_eq!(encode(f32::from_bits(0x3F80_8001)), 0x3F81);
        assert_eq!(encode(f32::MAX), 0x7F80);
    }

    #[test]
    fn the_scan_reports_the_first_infinity_or_nan() {
        assert_eq!(find_not_finite(&[0, 0x3F80, 0xFF80, 0x7FC0]), Some(2));
        assert_eq!(find_not_finite(&[0, 0x7F7F, 0xFF7F]), None);
    }
}
