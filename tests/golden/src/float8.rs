//! Rounding to e4m3 (sign, 4 exponent bits, 3 of fraction, no infinities) and block-quantised matrices.
//!
//! Written apart from the project's own fp8 code on purpose: fixtures must not be produced by what they test.

/// Side of the square that shares one scale.
const BLOCK: usize = 128;
/// The largest finite e4m3 value.
const E4M3_MAX: f64 = 448.0;

/// The e4m3 code nearest to `x`, ties to the even code; NaN (0x7f) where the nearest would lie beyond 448.
pub fn e4m3(x: f32) -> u8 {
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    let x = x.abs();
    if x.is_nan() {
        return sign | 0x7f;
    }
    // Below the smallest normal number, 2^-6, codes step by 2^-9; code 8 is that normal number itself.
    if x < 0.015_625 {
        return sign | (x * 512.0).round_ties_even() as u8;
    }
    // Keep 3 of float32's 23 fraction bits; a carry runs into the exponent as it should.
    let bits = x.to_bits();
    let nearest = (bits + 0x7_ffff + (bits >> 20 & 1)) >> 20;
    // The exponent biases differ by 127 - 7 = 120, above 3 fraction bits.
    sign | (nearest - (120 << 3)).min(0x7f) as u8
}

/// A matrix in e4m3 with one power-of-two scale for every 128 x 128 block; blocks at the edges are cut, not padded.
pub struct BlockMatrix {
    /// Codes, \[rows, columns\].
    pub codes: Vec<u8>,
    /// Scales, \[rows / 128, columns / 128\], both rounded up.
    pub scales: Vec<f32>,
    /// Shape of `scales`.
    pub scales_shape: [usize; 2],
}

impl BlockMatrix {
    /// Quantises `values`, \[rows, columns\]: each block's scale is the least power of two that leaves no value above 448.
    pub fn quantise(values: &[f32], [rows, columns]: [usize; 2]) -> Self {
        let scales_shape = [rows.div_ceil(BLOCK), columns.div_ceil(BLOCK)];
        let mut codes = vec![0; values.len()];
        let mut scales = Vec::with_capacity(scales_shape[0] * scales_shape[1]);
        for top in (0..rows).step_by(BLOCK) {
            for left in (0..columns).step_by(BLOCK) {
                let width = BLOCK.min(columns - left);
                let lines = || {
                    (top..rows.min(top + BLOCK)).map(|row| {
                        let start = row * columns + left;
                        start..start + width
                    })
                };
                let largest =
                    lines().flat_map(|line| &values[line]).fold(0f32, |largest, value| largest.max(value.abs()));
                let scale = power_of_two_at_least(f64::from(largest).max(1e-4) / E4M3_MAX) as f32;
                for line in lines() {
                    for (code, value) in codes[line.clone()].iter_mut().zip(&values[line]) {
                        *code = e4m3(value / scale);
                    }
                }
                scales.push(scale);
            }
        }
        Self { codes, scales, scales_shape }
    }
}

/// 2^⌈log₂ x⌉ for a normal positive `x`.
fn power_of_two_at_least(x: f64) -> f64 {
    const FRACTION: u64 = (1 << 52) - 1;
    let power = f64::from_bits(x.to_bits() & !FRACTION);
    if power == x { power } else { 2.0 * power }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops;

    #[test]
    fn rounding_agrees_with_torch_on_every_recorded_value() {
        let ops = ops();
        let (input, expected) = (ops.tensor("e4m3.round_in"), ops.bytes("e4m3.round_out"));
        assert_eq!(input.data.len(), 654);
        for (x, expected) in input.data.iter().zip(expected.data) {
            assert_eq!(e4m3(*x), expected, "{x}");
        }
    }

    #[test]
    fn every_code_rounds_to_itself() {
        let ops = ops();
        let values = ops.tensor("e4m3.values").data;
        for (code, value) in (0u8..=255).zip(values) {
            // 0xff is a NaN too; the sign of a NaN means nothing.
            let expected = if value.is_nan() { 0x7f } else { code };
            let found = if value.is_nan() { e4m3(value) & 0x7f } else { e4m3(value) };
            assert_eq!(found, expected, "{value}");
        }
    }

    #[test]
    fn beyond_the_largest_value_lies_nan() {
        assert_eq!(e4m3(464.0), 0x7e, "a tie goes to the even code, 448");
        assert_eq!(e4m3(464.1), 0x7f);
        assert_eq!(e4m3(f32::INFINITY), 0x7f);
        assert_eq!(e4m3(-1e9), 0xff);
    }

    #[test]
    fn block_scales_are_the_least_powers_of_two_that_fit() {
        assert_eq!(power_of_two_at_least(0.25), 0.25);
        assert_eq!(power_of_two_at_least(0.25f64.next_up()), 0.5);
        let mut values = vec![1.0; 130 * 129];
        values[0] = 448.0;
        let matrix = BlockMatrix::quantise(&values, [130, 129]);
        assert_eq!(matrix.scales_shape, [2, 2]);
        let unit = 1.0 / 256.0;
        assert_eq!(matrix.scales, [1.0, unit, unit, unit]);
        assert_eq!(matrix.codes[..2], [0x7e, 0x38]);
        assert_eq!(matrix.codes[128], 0x78, "256 in the block of the cut column");
    }
}
