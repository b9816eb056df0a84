//! Norms and other element-wise operations on one lane's row.

use super::dot::{F32, Rows, tile};
use super::simd::{Isa, Kernel, Simd, run};

/// The dot product of two f32 rows in the stage's order.
pub(crate) fn dot(isa: Isa, a: &[f32], b: &[f32]) -> f32 {
    struct Dot<'a>(&'a [f32], &'a [f32]);
    impl Kernel for Dot<'_> {
        type Out = f32;
        #[inline(always)]
        unsafe fn run<V: Simd>(self) -> f32 {
            let rows = Rows { weights: [self.0.as_ptr().cast()], scales: [std::ptr::null()] };
            // SAFETY: both rows have the length checked below.
            let [[result]] = unsafe { tile::<V, F32, 1, 1>(&rows, [self.1.as_ptr()], self.0.len()) };
            result
        }
    }
    assert_eq!(a.len(), b.len(), "rows of one length");
    run(isa, Dot(a, b))
}

/// `out = x / sqrt(mean(x²) + eps) · weight`.
pub(crate) fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let root = 1.0 / (dot(isa, x, x) / x.len() as f32 + eps).sqrt();
    for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
        *out = x * root * w;
    }
}

/// `(x - mean) / sqrt(var + eps) · weight + bias` with the biased variance; sums in f64.
pub(crate) fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
    let n = x.len() as f64;
    let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let var = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
    let root = 1.0 / (var + f64::from(eps)).sqrt();
    for (((out, &x), w), b) in out.iter_mut().zip(x).zip(weight).zip(bias) {
        *out = ((f64::from(x) - mean) * root) as f32 * w + b;
    }
}

/// `out = silu(gate) · up`.
pub(crate) fn gated(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((out, &g), &u) in out.iter_mut().zip(gate).zip(up) {
        *out = g / (1.0 + (-g).exp()) * u;
    }
}
