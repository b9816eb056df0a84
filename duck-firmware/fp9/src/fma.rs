//! Fused multiply-add without libm.
//!
//! `core` has no stable `mul_add`. The product of two f32 is exact in f64, so only the sum rounds; rounding it first to
//! f64 and then to f32 would round twice. Rounding the f64 sum *to odd* keeps enough for the second rounding to be the
//! only one that counts (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008: valid because
//! 53 ≥ 24 + 2, and because no product of f32 leaves the normal range of f64).

/// `a * b + c`, rounded once to nearest even: the bits of an FMA instruction (NaN payloads excepted).
#[inline]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    let product = f64::from(a) * f64::from(b);
    let c = f64::from(c);
    let sum = product + c;
    if !sum.is_finite() {
        return sum as f32;
    }
    // Two-sum (Knuth): the exact error of `sum`.
    let part = sum - product;
    let error = (product - (sum - part)) + (c - part);
    if error == 0.0 || sum.to_bits() & 1 == 1 {
        return sum as f32;
    }
    // Inexact with an even last bit: the odd neighbour on the error's side. A step away from zero adds one to the
    // bits whatever the sign. `sum` is not zero here, since a zero sum is exact.
    let away = (error > 0.0) == (sum > 0.0);
    let bits = if away { sum.to_bits() + 1 } else { sum.to_bits() - 1 };
    f64::from_bits(bits) as f32
}

#[cfg(test)]
mod tests {
    use super::fma;
    use proptest::prelude::*;

    fn same(a: f32, b: f32, c: f32) {
        let (mine, theirs) = (fma(a, b, c), a.mul_add(b, c));
        assert!(
            mine.to_bits() == theirs.to_bits() || (mine.is_nan() && theirs.is_nan()),
            "fma({a:e}, {b:e}, {c:e}): expected {theirs:e}, found {mine:e}"
        );
    }

    #[test]
    fn a_tie_in_f64_is_not_rounded_twice() {
        // Exact: 1 + 2^-24 + 2^-78, just above the tie of f32. f64 would drop the last term and round to even.
        let (a, b) = (f32::from_bits(0x3380_0000), 1.0); // 2^-24
        same(a, b, 1.0);
        let tiny = f32::from_bits(0x1880_0000); // 2^-78
        let above = fma(tiny, 1.0 + f32::EPSILON, 1.0);
        assert_eq!(above, 1.0);
        // (1 + 2^-12)(1 + 2^-12 - 2^-23 ..) variants next to ties, over a dense set of last bits.
        for i in 0..4096u32 {
            for j in 0..64u32 {
                let a = f32::from_bits(0x3F80_0000 + i);
                let b = f32::from_bits(0x3380_0000 + j);
                same(a, b, 1.0);
                same(a, -b, 1.0);
                same(a, b, f32::from_bits(0x3F80_0001));
            }
        }
    }

    #[test]
    fn special_values_match_the_instruction() {
        let all = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            f32::MIN_POSITIVE,
            -f32::MIN_POSITIVE,
            f32::from_bits(1),
            -f32::from_bits(1),
            f32::MAX,
            f32::MIN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            f32::EPSILON,
            3.5,
        ];
        for a in all {
            for b in all {
                for c in all {
                    same(a, b, c);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200_000))]
        #[test]
        fn any_bits_match_the_instruction(a: u32, b: u32, c: u32) {
            same(f32::from_bits(a), f32::from_bits(b), f32::from_bits(c));
        }

        #[test]
        fn near_cancellation_matches_the_instruction(a: u32, b in 0u32..0x100, c in 0i32..8) {
            let a = f32::from_bits(0x3F80_0000 | (a & 0x007F_FFFF));
            let b = f32::from_bits(0x3F80_0000 | b);
            let near = f32::from_bits(((a * b).to_bits() as i32 + c - 4) as u32);
            same(a, b, -near);
        }

        #[test]
        fn denormal_results_match_the_instruction(a: u32, b: u32, c in 0u32..0x0200_0000) {
            let a = f32::from_bits((a & 0x807F_FFFF) | 0x1F80_0000);
            let b = f32::from_bits((b & 0x807F_FFFF) | 0x1F80_0000);
            same(a, b, f32::from_bits(c));
        }
    }
}
