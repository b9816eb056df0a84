//! Dot products of weight rows with activation rows, in the one order that all of the CPU stage uses.
//!
//! **The order**, for rows of length K: columns come in blocks of 128. Within a block eight lanes start at zero; column c of the
//! block goes to lane `c mod 8`, in ascending c, by fused multiply-add; a ragged end is padded with zeros. At the block's end
//! `total = fma(lane, scale, total)` lane by lane, the scale being the weights' block scale or 1. After the last block the eight
//! totals are added as `((0+4) + (2+6)) + ((1+5) + (3+7))`. Nothing else enters, so a row's result depends neither on the rows and
//! lanes computed beside it nor on threads.

#![allow(clippy::needless_range_loop)] // arrays of vectors are indexed by constants, which makes them registers

use super::simd::Simd;

/// Columns that share a scale, and the length of one chain of multiply-adds.
pub(crate) const BLOCK: usize = 128;

/// How eight weights are read.
pub(crate) trait Source: Copy {
    /// Bytes of one weight.
    const BYTES: usize;
    /// Eight weights.
    ///
    /// # Safety
    /// `8 · BYTES` readable bytes at `p`; the CPU has what `V` needs.
    unsafe fn load<V: Simd>(p: *const u8) -> V;
}

/// e4m3, finite.
#[derive(Clone, Copy)]
pub(crate) struct E4m3;
/// bf16, little-endian.
#[derive(Clone, Copy)]
pub(crate) struct Bf16;
/// f32, little-endian.
#[derive(Clone, Copy)]
pub(crate) struct F32;

impl Source for E4m3 {
    const BYTES: usize = 1;
    #[inline(always)]
    unsafe fn load<V: Simd>(p: *const u8) -> V {
        // SAFETY: the caller's.
        unsafe { V::e4m3(p) }
    }
}
impl Source for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<V: Simd>(p: *const u8) -> V {
        // SAFETY: the caller's.
        unsafe { V::bf16(p) }
    }
}
impl Source for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<V: Simd>(p: *const u8) -> V {
        // SAFETY: the caller's.
        unsafe { V::load(p.cast()) }
    }
}

/// Rows of one tile: pointers to the rows' first weight and, if scaled, to their first block scale.
pub(crate) struct Rows<const R: usize> {
    /// Each `k · BYTES` readable bytes.
    pub weights: [*const u8; R],
    /// Each `ceil(k / 128)` scales, or null for all ones.
    pub scales: [*const f32; R],
}

/// R × T dot products of length `k`; `out[r][t]`.
///
/// # Safety
/// Every row of `rows` is readable as stated there, every pointer of `x` for `k` f32, and the CPU has what `V` needs.
#[inline(always)]
pub(crate) unsafe fn tile<V: Simd, S: Source, const R: usize, const T: usize>(
    rows: &Rows<R>,
    x: [*const f32; T],
    k: usize,
) -> [[f32; T]; R] {
    // SAFETY: all offsets stay below k; the ragged end is copied to a padded buffer first.
    unsafe {
        let zero = V::splat(0.0);
        let mut total = [[zero; T]; R];
        let mut start = 0;
        while start < k {
            let len = (k - start).min(BLOCK);
            let mut lanes = [[zero; T]; R];
            let mut c = start;
            while c + 8 <= start + len {
                step::<V, S, R, T>(&mut lanes, &rows.weights, c * S::BYTES, &x, c);
                c += 8;
            }
            let rest = start + len - c;
            if rest > 0 {
                let (mut w, mut xs) = ([[0u8; 32]; R], [[0f32; 8]; T]);
                for r in 0..R {
                    std::ptr::copy_nonoverlapping(
                        rows.weights[r].add(c * S::BYTES),
                        w[r].as_mut_ptr(),
                        rest * S::BYTES,
                    );
                }
                for t in 0..T {
                    std::ptr::copy_nonoverlapping(x[t].add(c), xs[t].as_mut_ptr(), rest);
                }
                let (mut w_ptr, mut x_ptr) = (rows.weights, x);
                for r in 0..R {
                    w_ptr[r] = w[r].as_ptr();
                }
                for t in 0..T {
                    x_ptr[t] = xs[t].as_ptr();
                }
                step::<V, S, R, T>(&mut lanes, &w_ptr, 0, &x_ptr, 0);
            }
            for r in 0..R {
                let scale =
                    V::splat(if rows.scales[r].is_null() { 1.0 } else { rows.scales[r].add(start / BLOCK).read() });
                for t in 0..T {
                    total[r][t] = lanes[r][t].mul_add(scale, total[r][t]);
                }
            }
            start += len;
        }
        let mut out = [[0.0; T]; R];
        for r in 0..R {
            for t in 0..T {
                out[r][t] = total[r][t].sum();
            }
        }
        out
    }
}

/// Eight columns of a tile, `w_at` bytes behind the rows' pointers and `x_at` elements behind the inputs'.
///
/// # Safety
/// Eight weights and eight f32 readable there.
#[inline(always)]
unsafe fn step<V: Simd, S: Source, const R: usize, const T: usize>(
    lanes: &mut [[V; T]; R],
    weights: &[*const u8; R],
    w_at: usize,
    x: &[*const f32; T],
    x_at: usize,
) {
    // Plain loops: the closures of `array::map` are functions of their own, compiled without the caller's instruction set.
    // SAFETY: the caller's.
    unsafe {
        let mut xs = [V::splat(0.0); T];
        for t in 0..T {
            xs[t] = V::load(x[t].add(x_at));
        }
        for r in 0..R {
            let w = S::load::<V>(weights[r].add(w_at));
            for t in 0..T {
                lanes[r][t] = w.mul_add(xs[t], lanes[r][t]);
            }
        }
    }
}
