//! The lightning indexer: scores of cached keys, and the choice of those that attention may see.

use super::cache::Cache;
use super::dot::{F32, Rows, tile};
use super::simd::{Isa, Kernel, Simd, run};
use rayon::prelude::*;

/// Keys scored by one task.
const KEYS: usize = 256;
/// Index heads of one tile.
const HEADS: usize = 4;

/// One lane's query.
#[derive(Clone, Copy)]
pub(crate) struct Query<'a> {
    /// `[heads · dim]`.
    pub q: &'a [f32],
    /// `[heads]`, not yet times `head_scale`.
    pub weights: &'a [f32],
    /// Factor on the weights.
    pub head_scale: f32,
    /// Factor on each dot product.
    pub key_scale: f32,
}

/// Scores `I(u)` of positions `0 .. count`: heads are added in ascending order.
pub(crate) fn scores(isa: Isa, query: Query<'_>, keys: &Cache, count: usize) -> Vec<f32> {
    let mut scores = vec![0.0; count];
    let body = |(i, out): (usize, &mut [f32])| run(isa, Scores { query, keys, first: i * KEYS, out });
    if count * query.q.len() < super::linear::SERIAL_WORK {
        scores.chunks_mut(KEYS).enumerate().for_each(body);
    } else {
        scores.par_chunks_mut(KEYS).enumerate().for_each(body);
    }
    scores
}

struct Scores<'a> {
    query: Query<'a>,
    keys: &'a Cache,
    first: usize,
    out: &'a mut [f32],
}

impl Kernel for Scores<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        let heads = self.query.weights.len();
        let dim = self.query.q.len() / heads;
        let n = self.out.len();
        self.out.fill(0.0);
        for u in (0..n).step_by(3) {
            let mut keys = [std::ptr::null(); 3];
            for (i, key) in keys.iter_mut().enumerate() {
                *key = self.keys.row(self.first + (u + i).min(n - 1))[..dim].as_ptr();
            }
            for h in (0..heads).step_by(HEADS) {
                let mut rows = Rows { weights: [std::ptr::null(); HEADS], scales: [std::ptr::null(); HEADS] };
                for (j, row) in rows.weights.iter_mut().enumerate() {
                    *row = self.query.q[(h + j).min(heads - 1) * dim..][..dim].as_ptr().cast();
                }
                // SAFETY: queries and keys are `dim` long, which slices prove; the CPU is the caller's duty.
                let dots = unsafe { tile::<V, F32, HEADS, 3>(&rows, keys, dim) };
                for (dots, w) in dots.iter().zip(&self.query.weights[h..]) {
                    let w = w * self.query.head_scale;
                    for (out, dot) in self.out[u..].iter_mut().zip(dots) {
                        *out += w * (dot * self.query.key_scale).max(0.0);
                    }
                }
            }
        }
    }
}

/// The `keep` positions with the largest scores, ascending; of equal scores the lower position wins.
pub(crate) fn best(scores: &[f32], keep: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    if scores.len() > keep {
        let better = |&a: &u32, &b: &u32| scores[b as usize].total_cmp(&scores[a as usize]).then(a.cmp(&b));
        order.select_nth_unstable_by(keep, better);
        order.truncate(keep);
        order.sort_unstable();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::best;

    #[test]
    fn best_prefers_large_scores_then_low_positions() {
        assert_eq!(best(&[1.0, 3.0, 3.0, -1.0, 3.0], 2), [1, 2]);
        assert_eq!(best(&[0.0, 0.0, -0.5, 0.0], 2), [0, 1]);
        assert_eq!(best(&[5.0, 1.0], 2), [0, 1]);
        assert_eq!(best(&[-2.0, -1.0, -3.0], 1), [1]);
    }
}
