//! exp and SiLU in f32 without libm, as one definition with two implementations that give the same bits.
//!
//! exp(x) = 2^n · e^r with n = round(x / ln 2) and |r| ≤ ln 2 / 2; ln 2 is subtracted in two parts, the first short
//! enough that n times it is exact. e^r is Cephes' degree-seven polynomial (`expf`). 2^n enters as two factors, so that
//! results below the smallest normal round once and gradually.

use crate::{Error, Isa, fma};

/// Largest error of [`exp`] in units of the last place, over every f32 (the test sweeps them densely).
pub const EXP_MAX_ULP: f64 = 1.1;
/// Largest error of [`silu`] in units of the last place, where the result is normal.
pub const SILU_MAX_ULP: f64 = 3.25;

/// exp rounds to infinity above this.
const HIGH: f32 = 89.0;
/// exp rounds to zero below this.
const LOW: f32 = -104.0;
/// 1.5 · 2^23: adding it rounds to an integer, which then stands in the low bits.
const ROUND: f32 = 12_582_912.0;
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Of (e^r - 1 - r) / r², highest power first.
const POLYNOMIAL: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

/// e^x. Infinity and NaN as usual.
pub fn exp(x: f32) -> f32 {
    // Comparisons, not `clamp`: NaN must pass, as it does through the vector minimum.
    let x = if x > HIGH { HIGH } else { x };
    let x = if x < LOW { LOW } else { x };
    let shifted = fma(x, core::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x));
    let mut p = POLYNOMIAL[0];
    for c in &POLYNOMIAL[1..] {
        p = fma(p, r, *c);
    }
    let y = fma(p, r * r, r) + 1.0;
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let half = n >> 1;
    let pow2 = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
    y * pow2(half) * pow2(n.wrapping_sub(half))
}

/// x · sigmoid(x), through e^-|x| so that nothing overflows and small results stay accurate.
pub fn silu(x: f32) -> f32 {
    let e = exp(-f32::from_bits(x.to_bits() & 0x7FFF_FFFF));
    let numerator = if x >= 0.0 { x } else { x * e };
    numerator / (1.0 + e)
}

/// `out[i] = silu(gate[i]) * up[i]`, two roundings after SiLU's own; the same bits on every `isa`.
pub fn silu_mul(isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) -> Result<(), Error> {
    for (what, found) in [("up", up.len()), ("silu output", out.len())] {
        if found != gate.len() {
            return Err(Error::Length { what, expected: gate.len(), found });
        }
    }
    let done = match isa {
        Isa::Scalar => 0,
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves AVX2 and FMA.
        Isa::Avx2(_) => unsafe { avx2::silu_mul(gate, up, out) },
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2(_) => 0,
    };
    for i in done..gate.len() {
        out[i] = silu(gate[i]) * up[i];
    }
    Ok(())
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{HIGH, LN2_HIGH, LN2_LOW, LOW, POLYNOMIAL, ROUND};
    use core::arch::x86_64::*;

    /// [`exp`](super::exp) in eight lanes, operation for operation.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn exp(x: __m256) -> __m256 {
        let set = _mm256_set1_ps;
        // With a NaN in either operand these return the second.
        let x = _mm256_max_ps(set(LOW), _mm256_min_ps(set(HIGH), x));
        let shifted = _mm256_fmadd_ps(x, set(core::f32::consts::LOG2_E), set(ROUND));
        let n = _mm256_sub_ps(shifted, set(ROUND));
        let r = _mm256_fmadd_ps(n, set(-LN2_LOW), _mm256_fmadd_ps(n, set(-LN2_HIGH), x));
        let mut p = set(POLYNOMIAL[0]);
        for c in &POLYNOMIAL[1..] {
            p = _mm256_fmadd_ps(p, r, set(*c));
        }
        let y = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), set(1.0));
        let n = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(set(ROUND)));
        let half = _mm256_srai_epi32::<1>(n);
        let pow2 = |n| _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127))));
        _mm256_mul_ps(_mm256_mul_ps(y, pow2(half)), pow2(_mm256_sub_epi32(n, half)))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn silu(x: __m256) -> __m256 {
        let sign = _mm256_set1_ps(-0.0);
        let e = exp(_mm256_or_ps(x, sign));
        let positive = _mm256_cmp_ps::<_CMP_GE_OQ>(x, _mm256_setzero_ps());
        let numerator = _mm256_blendv_ps(_mm256_mul_ps(x, e), x, positive);
        _mm256_div_ps(numerator, _mm256_add_ps(_mm256_set1_ps(1.0), e))
    }

    /// Whole vectors of eight; returns how many elements that was. The three slices have one length.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) -> usize {
        let mut done = 0;
        for ((g, u), o) in gate.chunks_exact(8).zip(up.chunks_exact(8)).zip(out.chunks_exact_mut(8)) {
            // SAFETY: each chunk has eight elements; unaligned loads and stores.
            unsafe {
                let y = _mm256_mul_ps(silu(_mm256_loadu_ps(g.as_ptr())), _mm256_loadu_ps(u.as_ptr()));
                _mm256_storeu_ps(o.as_mut_ptr(), y);
            }
            done += 8;
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Distance in units of the last place of `exact` rounded to f32.
    fn ulp_error(found: f32, exact: f64) -> f64 {
        let magnitude = exact.abs().max(f64::from(f32::MIN_POSITIVE));
        let ulp = 2f64.powi(magnitude.log2().floor() as i32 - 23);
        (f64::from(found) - exact).abs() / ulp
    }

    /// Every 97th f32 of both signs, 44 million.
    fn sweep() -> impl Iterator<Item = f32> {
        (0..=u32::MAX).step_by(97).map(f32::from_bits)
    }

    #[test]
    fn exp_stays_within_its_bound() {
        let mut worst = (0.0, 0.0);
        for x in sweep().filter(|x| (-104.0..=88.722_83).contains(x)) {
            let error = ulp_error(exp(x), f64::from(x).exp());
            if error > worst.0 {
                worst = (error, x);
            }
        }
        assert!(worst.0 <= EXP_MAX_ULP, "{} ulp at {:e}", worst.0, worst.1);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(88.8), f32::INFINITY);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-103.9), 1e-45);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn silu_stays_within_its_bound() {
        let mut worst = (0.0, 0.0);
        for x in sweep().filter(|x| (-85.0..=3e38).contains(x) && x.abs() >= 1e-37) {
            let wide = f64::from(x);
            let error = ulp_error(silu(x), wide / (1.0 + (-wide).exp()));
            if error > worst.0 {
                worst = (error, x);
            }
        }
        assert!(worst.0 <= SILU_MAX_ULP, "{} ulp at {:e}", worst.0, worst.1);
        // -infinity times e^-infinity has no value; no finite input gets there.
        assert!(silu(f32::NEG_INFINITY).is_nan());
        assert_eq!(silu(f32::INFINITY), f32::INFINITY);
        assert_eq!(silu(-1e30), 0.0);
        assert!(silu(f32::NAN).is_nan());
    }

    #[test]
    fn vector_and_scalar_give_the_same_bits() {
        let isa = Isa::detect();
        let mut batch: Vec<f32> = Vec::new();
        let check = |batch: &mut Vec<f32>| {
            let up: Vec<f32> = (0..batch.len()).map(|i| 1.0 + i as f32 / 64.0).collect();
            let (mut a, mut b) = (std::vec![0.0; batch.len()], std::vec![0.0; batch.len()]);
            silu_mul(isa, batch, &up, &mut a).unwrap();
            silu_mul(Isa::Scalar, batch, &up, &mut b).unwrap();
            for ((a, b), x) in a.iter().zip(&b).zip(&*batch) {
                assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()), "at {x:e}: {a:e} and {b:e}");
            }
            batch.clear();
        };
        for x in sweep() {
            batch.push(x);
            if batch.len() == 1003 {
                check(&mut batch);
            }
        }
        check(&mut batch);
    }

    #[test]
    fn lengths_must_agree() {
        let error = silu_mul(Isa::Scalar, &[1.0; 3], &[1.0; 4], &mut [0.0; 3]);
        assert_eq!(error, Err(Error::Length { what: "up", expected: 3, found: 4 }));
    }
}
