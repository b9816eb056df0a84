//! fp9: one sign, five exponent bits (bias 15), three mantissa bits: the top nine bits of an IEEE fp16.
//!
//! Every finite e4m3 value is a *normal* of this format or zero, so fp8 checkpoints convert without loss. The encoder
//! emits exponent field 0 for zero only, and never field 31 (fp16's infinities): decoding is a shift.

use super::e4m3;

/// Largest value the encoder emits, fp16's largest exponent with a full mantissa.
pub const MAX: f32 = 61_440.0;
/// Smallest positive value.
pub const MIN_POSITIVE: f32 = 1.0 / 16_384.0;

/// The value of a nine-bit `code` (sign, exponent, mantissa).
///
/// Fields 0 (with a mantissa) and 31, which the encoder never emits, decode as the kernels decode them: as though the
/// exponent range went on (field 0: an f32 denormal's share, (mantissa / 8) · 2^-14).
#[inline]
pub fn decode(code: u16) -> f32 {
    (f64::from(raw(code)) * f64::from_bits((1023 + 112) << 52)) as f32
}

/// Sign, exponent and mantissa at f32's place: the value times 2^-112. What the kernels multiply with.
#[inline]
pub(crate) fn raw(code: u16) -> f32 {
    f32::from_bits((u32::from(code & 0x100) << 23) | (u32::from(code & 0xFF) << 20))
}

/// The same value, exactly; `None` for e4m3's two NaN codes.
#[inline]
pub fn from_e4m3(code: u8) -> Option<u16> {
    let sign = u16::from(code & 0x80) << 1;
    let magnitude = u16::from(code & 0x7F);
    if magnitude == 0x7F {
        return None;
    }
    if magnitude >= 8 {
        // Rebias the exponent: 15 - 7, at bit 3.
        return Some(sign | (magnitude + (8 << 3)));
    }
    if magnitude == 0 {
        return Some(sign);
    }
    // Subnormal, mantissa · 2^-9: the leading one's place gives the exponent.
    let shift = magnitude.leading_zeros() as u16 - 12;
    Some(sign | ((9 - shift) << 3) | ((magnitude << shift) & 7))
}

/// Rounds to nearest even. Beyond [`MAX`] saturates; below half of [`MIN_POSITIVE`] (and at the tie) gives zero.
/// NaN gives `None`.
pub fn encode(value: f32) -> Option<u16> {
    if value.is_nan() {
        return None;
    }
    let sign = ((value.to_bits() >> 23) & 0x100) as u16;
    let magnitude = f32::from_bits(value.to_bits() & 0x7FFF_FFFF);
    Some(sign | encode_magnitude(magnitude))
}

fn encode_magnitude(magnitude: f32) -> u16 {
    if magnitude >= MAX {
        return 30 << 3 | 7;
    }
    if magnitude < MIN_POSITIVE {
        return if magnitude <= MIN_POSITIVE / 2.0 { 0 } else { 1 << 3 };
    }
    let bits = magnitude.to_bits();
    let rounded = bits + 0x7_FFFF + ((bits >> 20) & 1);
    // Rounding up from below MAX may reach 65,536, which stays out.
    (((rounded >> 20) - ((127 - 15) << 3)) as u16).min(30 << 3 | 7)
}

/// Values are multiplied by 2^-exponent before encoding, so that the block's largest lands in the top binade. A power
/// of two keeps the multiplication exact; a scale that meets [`MAX`] exactly would gain nothing in a floating format.
///
/// Returns the scale to store: `decode(code) * scale` approximates the source.
pub fn block_scale(max_magnitude: f32) -> f32 {
    let exponent = (max_magnitude.to_bits() >> 23) as i32 & 0xFF;
    if exponent == 0 {
        return 1.0;
    }
    // Normal scales only, so that neither it nor its inverse is denormal.
    let field = (exponent - 15).clamp(2, 252);
    f32::from_bits((field as u32) << 23)
}

/// The exact value of [`e4m3::decode`], through this format: used by tests and converters as a cross-check.
pub fn decode_e4m3(code: u8) -> f32 {
    from_e4m3(code).map_or_else(|| e4m3::decode(code), decode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finite_e4m3_value_survives_exactly_as_a_normal_or_zero() {
        for code in 0..=255u8 {
            let Some(nine) = from_e4m3(code) else {
                assert_eq!(code & 0x7F, 0x7F);
                continue;
            };
            assert!(decode(nine) == e4m3::decode(code), "code {code:#04x}");
            assert_eq!(decode(nine).is_sign_negative(), code & 0x80 != 0);
            let field = (nine >> 3) & 31;
            assert!(if code & 0x7F == 0 { nine & 0xFF == 0 } else { (6..=23).contains(&field) });
            assert_eq!(encode(e4m3::decode(code)), Some(nine));
        }
    }

    #[test]
    fn every_emitted_code_encodes_back() {
        for code in 0..512u16 {
            let field = (code >> 3) & 31;
            if field == 31 || (field == 0 && code & 7 != 0) {
                continue;
            }
            assert_eq!(encode(decode(code)), Some(code), "code {code:#05x}");
        }
        assert_eq!(decode(30 << 3 | 7), MAX);
        assert_eq!(decode(1 << 3), MIN_POSITIVE);
    }

    #[test]
    fn encoding_rounds_ties_to_even() {
        for code in (1 << 3)..(30 << 3 | 7) {
            let middle = (decode(code) + decode(code + 1)) / 2.0;
            let even = if code & 1 == 0 { code } else { code + 1 };
            assert_eq!(encode(middle), Some(even));
            assert_eq!(encode(-middle), Some(even | 0x100));
            assert_eq!(encode(f32::from_bits(middle.to_bits() - 1)), Some(code));
            assert_eq!(encode(f32::from_bits(middle.to_bits() + 1)), Some(code + 1));
        }
        assert_eq!(encode(f32::INFINITY), Some(30 << 3 | 7));
        assert_eq!(encode(MIN_POSITIVE / 2.0), Some(0));
        assert_eq!(encode(MIN_POSITIVE * 0.51), Some(1 << 3));
        assert_eq!(encode(f32::NAN), None);
    }

    #[test]
    fn a_block_scale_puts_the_largest_value_in_the_top_binade() {
        for max in [1e-30f32, 0.003, 1.0, 1.99, 2.0, 448.0, 3e38] {
            let scaled = max / block_scale(max);
            assert!((32_768.0..65_536.0).contains(&scaled), "{max} gives {scaled}");
        }
        assert_eq!(block_scale(0.0), 1.0);
    }
}
