//! Where activations are rounded: the numeric mode that a whole pond computes in.

/// Where a numeric mode rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Numerics {
    /// f32 between operations.
    #[default]
    Exact,
    /// Rounded to bf16 where the model's official code rounds, except each expert's output: contributions and their sums stay f32.
    Bf16,
}

impl Numerics {
    /// An activation as this mode keeps it.
    #[inline]
    pub fn round(self, value: f32) -> f32 {
        match self {
            Numerics::Exact => value,
            Numerics::Bf16 => round_to_bf16(value),
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
    f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
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
}
