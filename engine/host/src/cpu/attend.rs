//! Attention in the latent space over selected positions.
//!
//! For each head: logits in the order of [`dot`](super::dot) (latent part, then rotary part, then their sum times the scale), the largest one subtracted,
//! exponentials, their sum in ascending position order in f64, and the weighted sum of latent vectors by fused multiply-add in ascending position order,
//! divided at the end. Keys are walked in blocks that stay in the second-level cache while all columns of four heads use them.

use rayon::prelude::*;

use super::buffers::{Strided, StridedMut};
use super::cache::Cache;
use super::dot::{F32, Rows, tile};
use super::simd::{Isa, Kernel, Simd, run};

/// Heads that share a key's loads.
const HEADS: usize = 4;
/// Keys of one block: 64 latent vectors of 512 are 128 KiB.
const KEYS: usize = 64;

/// What one attention op reads.
pub(crate) struct Attention<'a> {
    /// `[lanes, heads · latent]`.
    pub q_latent: Strided<'a>,
    /// `[lanes, heads · rope_stride]`.
    pub q_rope: Strided<'a>,
    /// Columns from one head's rotary part to the next.
    pub rope_stride: usize,
    /// First rotary column of a head.
    pub rope_offset: usize,
    /// Rotary width.
    pub rope_width: usize,
    /// Softmax scale.
    pub scale: f32,
}

/// A lane's keys: the caches of its sequence, and the positions to attend to.
pub(crate) struct Keys<'a> {
    /// Latent vectors.
    pub latent: &'a Cache,
    /// Rotated keys.
    pub rope: &'a Cache,
    /// Ascending, at least one.
    pub positions: &'a [u32],
}

/// Runs attention for all lanes and heads.
pub(crate) fn attend<'a>(isa: Isa, a: &Attention<'a>, keys: impl Fn(usize) -> Keys<'a> + Sync, out: StridedMut<'_>) {
    let latent = keys(0).latent.row(0).len();
    let work: usize = (0..a.q_latent.lanes()).map(|t| keys(t).positions.len()).sum::<usize>() * a.q_latent.width();
    let lane_out = |t: usize, out: &mut [f32]| {
        let keys = keys(t);
        let group = |(g, out): (usize, &mut [f32])| {
            let head = |j: usize| (g * HEADS + j).min(a.q_latent.width() / latent - 1);
            let (q, r) = (a.q_latent.row(t), a.q_rope.row(t));
            run(
                isa,
                Group {
                    q: std::array::from_fn(|j| &q[head(j) * latent..][..latent]),
                    r: std::array::from_fn(|j| &r[head(j) * a.rope_stride + a.rope_offset..][..a.rope_width]),
                    keys: &keys,
                    scale: a.scale,
                    out,
                },
            );
        };
        if work < super::linear::SERIAL_WORK {
            out.chunks_mut(HEADS * latent).enumerate().for_each(group);
        } else {
            out.par_chunks_mut(HEADS * latent).enumerate().for_each(group);
        }
    };
    if work < super::linear::SERIAL_WORK { out.each_row(lane_out) } else { out.par_each_row(lane_out) }
}

/// Up to four heads of one lane; a missing head repeats the last one and is not written.
struct Group<'a> {
    q: [&'a [f32]; HEADS],
    r: [&'a [f32]; HEADS],
    keys: &'a Keys<'a>,
    scale: f32,
    out: &'a mut [f32],
}

impl Kernel for Group<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        let n = self.keys.positions.len();
        let latent = self.q[0].len();
        let heads = self.out.len() / latent;
        // SAFETY: the CPU is the caller's duty.
        let mut weights = unsafe { self.logits::<V>() };
        let mut sums = [0.0; HEADS];
        for (weights, sum) in weights.chunks_mut(n).zip(&mut sums) {
            let max = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut total = 0.0f64;
            for w in weights.iter_mut() {
                *w = (*w - max).exp();
                total += f64::from(*w);
            }
            *sum = total as f32;
        }
        self.out.fill(0.0);
        for block in (0..n).step_by(KEYS) {
            let positions = &self.keys.positions[block..(block + KEYS).min(n)];
            for c in (0..latent).step_by(16) {
                // SAFETY: the CPU is the caller's duty.
                unsafe {
                    accumulate::<V>(self.out, heads, latent, c, self.keys.latent, positions, &weights[block..], n)
                };
            }
        }
        for (out, sum) in self.out.chunks_mut(latent).zip(sums) {
            out.iter_mut().for_each(|v| *v /= sum);
        }
    }
}

impl Group<'_> {
    /// `[HEADS, n]`, scaled.
    ///
    /// # Safety
    /// The CPU has what `V` needs.
    #[inline(always)]
    unsafe fn logits<V: Simd>(&self) -> Vec<f32> {
        let n = self.keys.positions.len();
        let rows = |parts: [&[f32]; HEADS]| Rows {
            weights: parts.map(|p| p.as_ptr().cast()),
            scales: [std::ptr::null(); HEADS],
        };
        let (q, r) = (rows(self.q), rows(self.r));
        let mut logits = vec![0.0; HEADS * n];
        for u in (0..n).step_by(3) {
            let (mut latent, mut rope) = ([std::ptr::null(); 3], [std::ptr::null(); 3]);
            for i in 0..3 {
                let position = self.keys.positions[(u + i).min(n - 1)] as usize;
                latent[i] = self.keys.latent.row(position)[..self.q[0].len()].as_ptr();
                rope[i] = self.keys.rope.row(position)[..self.r[0].len()].as_ptr();
            }
            // SAFETY: query parts and cache rows have the same lengths, which slices prove.
            let (a, b) = unsafe {
                (
                    tile::<V, F32, HEADS, 3>(&q, latent, self.q[0].len()),
                    tile::<V, F32, HEADS, 3>(&r, rope, self.r[0].len()),
                )
            };
            for j in 0..HEADS {
                for i in 0..(n - u).min(3) {
                    logits[j * n + u + i] = self.scale * (a[j][i] + b[j][i]);
                }
            }
        }
        logits
    }
}

/// Adds `weight · latent` of some keys to columns `c .. c + 16` of each head; key u of head j has `weights[j · stride + u]`.
///
/// # Safety
/// The CPU has what `V` needs.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // a loop body of its own, so that it is compiled with the caller's instruction set
unsafe fn accumulate<V: Simd>(
    out: &mut [f32],
    heads: usize,
    latent: usize,
    c: usize,
    cache: &Cache,
    positions: &[u32],
    weights: &[f32],
    stride: usize,
) {
    if c + 16 > latent {
        for (u, &p) in positions.iter().enumerate() {
            let key = cache.row(p as usize);
            for j in 0..heads {
                for c in c..latent {
                    out[j * latent + c] = weights[j * stride + u].mul_add(key[c], out[j * latent + c]);
                }
            }
        }
        return;
    }
    // SAFETY: sixteen columns lie within each row, which the slices check.
    unsafe {
        let mut acc = [[V::splat(0.0); 2]; HEADS];
        for (j, acc) in acc.iter_mut().enumerate() {
            let at = out[j.min(heads - 1) * latent + c..][..16].as_ptr();
            *acc = [V::load(at), V::load(at.add(8))];
        }
        for (u, &p) in positions.iter().enumerate() {
            let key = cache.row(p as usize)[c..][..16].as_ptr();
            let key = [V::load(key), V::load(key.add(8))];
            for (j, acc) in acc.iter_mut().enumerate() {
                let w = V::splat(weights[j * stride + u]);
                *acc = [w.mul_add(key[0], acc[0]), w.mul_add(key[1], acc[1])];
            }
        }
        for (j, acc) in acc.into_iter().enumerate().take(heads) {
            let at = out[j * latent + c..][..16].as_mut_ptr();
            acc[0].store(at);
            acc[1].store(at.add(8));
        }
    }
}
