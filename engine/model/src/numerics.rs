//! Where activations are rounded: the numeric mode that a whole pond computes in.

/// Where a numeric mode rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Numerics {
    /// f32 between operations.
    #[default]
    Exact,
    /// Rounded to bf16 where the model's official code rounds, except each expert's output: contributions and their sums stay f32.
    Bf16,
    /// As [`Numerics::Bf16`], and what 8-bit projections multiply goes through [`quantise`] first, as the official code has it. Not the experts'
    /// last projection: a slice of 64 columns cannot see a scale of 128.
    Fp8,
}

impl Numerics {
    /// As settings and reports write it.
    pub fn name(self) -> &'static str {
        match self {
            Numerics::Exact => "exact",
            Numerics::Bf16 => "bf16",
            Numerics::Fp8 => "fp8",
        }
    }

    /// An activation as this mode keeps it.
    #[inline]
    pub fn round(self, value: f32) -> f32 {
        match self {
            Numerics::Exact => value,
            Numerics::Bf16 | Numerics::Fp8 => round_to_bf16(value),
        }
    }
}

/// The nearest bf16, ties to even, as f32. Values that round past the largest bf16 become infinite; a NaN stays one.
#[inline]
pub fn round_to_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    if value.is_nan() {
        return f32::from_bits((bits | 0x0040_0000) & 0xffff_0000);
    }
    // Only a NaN could wrap; a check of that for each value would keep loops from being vectorised.
    f32::from_bits(bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
}

/// Columns that share a scale in [`quantise`].
pub const QUANTISED_BLOCK: usize = 128;

/// Takes a row through e4m3 and back, each block of 128 columns with a scale of its own: the power of two from `max(|x|, 1e-4) / 448` upwards
/// (DeepSeek-V3.2's inference code, `act_quant` with the scale format ue8m0). Every result is exact in bf16, since the scales are powers of two.
pub fn quantise(row: &mut [f32]) {
    for block in row.chunks_mut(QUANTISED_BLOCK) {
        let largest = block.iter().fold(1e-4f32, |largest, v| largest.max(v.abs()));
        let bits = (largest * (1.0 / 448.0)).to_bits();
        let exponent = (bits + 0x7f_ffff) >> 23;
        let (scale, inverse) = (f32::from_bits(exponent << 23), f32::from_bits((254 - exponent) << 23));
        block.iter_mut().for_each(|v| *v = round_to_e4m3((*v * inverse).clamp(-448.0, 448.0)) * scale);
    }
}

/// The nearest e4m3, ties to even; `value` lies within ±448.
fn round_to_e4m3(value: f32) -> f32 {
    // Below 2^-6 the steps are 2^-9.
    if value.abs() < 1.0 / 64.0 {
        return (value * 512.0).round_ties_even() / 512.0;
    }
    let bits = value.to_bits();
    f32::from_bits((bits + 0x7_ffff + ((bits >> 20) & 1)) & 0xfff0_0000)
}

/// The Walsh-Hadamard transform in Sylvester's order, times n^-1/2, of a row whose length n is a power of two: spreads outliers before
/// quantising.
pub fn hadamard(row: &mut [f32]) {
    let n = row.len();
    assert!(n.is_power_of_two(), "a row of {n} has no Hadamard matrix of Sylvester's kind");
    let mut step = 1;
    while step < n {
        for pair in row.chunks_mut(2 * step) {
            let (low, high) = pair.split_at_mut(step);
            low.iter_mut().zip(high).for_each(|(a, b)| (*a, *b) = (*a + *b, *a - *b));
        }
        step *= 2;
    }
    let factor = (n as f32).sqrt().recip();
    row.iter_mut().for_each(|v| *v *= factor);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_to_nearest_with_ties_to_even() {
        for (bits, rounded) in [
            (0x3f80_0000, 0x3f80_0000),
            (0x3f80_7fff, 0x3f80_0000),
            (0x3f80_8000, 0x3f80_0000),
            (0x3f80_8001, 0x3f81_0000),
            (0x3f81_8000, 0x3f82_0000),
            (0xbf81_8000, 0xbf82_0000),
            (0x8000_0000, 0x8000_0000),
            (0x7f7f_ffff, 0x7f80_0000),
            (0x7f80_0000, 0x7f80_0000),
            (0x0000_8001, 0x0001_0000),
        ] {
            assert_eq!(round_to_bf16(f32::from_bits(bits)).to_bits(), rounded, "{bits:#x}");
        }
        assert!(
            round_to_bf16(f32::from_bits(0x7f80_0001)).is_nan() && round_to_bf16(f32::from_bits(0xffff_ffff)).is_nan()
        );
    }

    #[test]
    fn exact_mode_changes_nothing() {
        assert_eq!(Numerics::Exact.round(1.000_001).to_bits(), 1.000_001f32.to_bits());
        assert_eq!(Numerics::Bf16.round(1.000_001), 1.0);
    }

    #[test]
    fn quantised_values_are_e4m3_times_a_power_of_two() {
        // Largest 448: scale 1, so that the codes' own values stay.
        let mut row = [448.0, 1.0, 1.0625, 1.1875, -17.0, 1.0 / 512.0, 1.0 / 1024.0, 3.0 / 1024.0, 0.0, -0.3];
        quantise(&mut row);
        assert_eq!(row, [448.0, 1.0, 1.0, 1.25, -16.0, 1.0 / 512.0, 0.0, 1.0 / 256.0, 0.0, -0.3125]);
        // Just above: scale 2. Zeros have the scale of 1e-4.
        let mut row = [449.0, 17.0, 1.0];
        quantise(&mut row);
        assert_eq!(row, [448.0, 16.0, 1.0]);
        let mut row = [0.0; 130];
        row[129] = 3e-7;
        quantise(&mut row);
        assert_eq!(row[..129], [0.0; 129]);
        assert!((row[129] - 3e-7).abs() < 2e-8 && round_to_bf16(row[129]) == row[129], "{}", row[129]);
    }

    #[test]
    fn the_hadamard_transform_is_its_own_inverse() {
        let mut row: Vec<f32> = (0..8).map(|v| v as f32).collect();
        hadamard(&mut row);
        assert!((row[0] - 28.0 / 8f32.sqrt()).abs() < 1e-5 && (row[1] + 4.0 / 8f32.sqrt()).abs() < 1e-5, "{row:?}");
        hadamard(&mut row);
        assert!(row.iter().enumerate().all(|(i, v)| (v - i as f32).abs() < 1e-5), "{row:?}");
    }
}
