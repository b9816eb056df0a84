//! Every operation once more, in f64 and as plainly as its documentation states it: no order of sums, no tiles, no instruction sets.
//!
//! Inputs are what a stage showed, so nothing here rounds but what an operation itself sends through 8 bits before it computes; that is left to
//! [`model::numerics`], whose values the golden operations prove.

use model::program::{HeadRows, PairLayout, Routing};

/// A decoded weight matrix: `rows` rows of `cols`.
#[derive(Clone, Copy)]
pub struct Weights<'a> {
    /// Row after row.
    pub values: &'a [f32],
    /// Inputs.
    pub cols: usize,
}

impl<'a> Weights<'a> {
    fn row(self, row: usize) -> &'a [f32] {
        &self.values[row * self.cols..][..self.cols]
    }

    fn rows(self) -> usize {
        self.values.len() / self.cols
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// `x / sqrt(mean(x²) + eps) · weight`.
pub fn rms_norm(x: &[f64], weight: &[f32], eps: f32) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let root = (mean + f64::from(eps)).sqrt();
    x.iter().zip(weight).map(|(v, &w)| v / root * f64::from(w)).collect()
}

/// `(x - mean) / sqrt(var + eps) · weight + bias` with the biased variance.
pub fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let var = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
    let root = (var + f64::from(eps)).sqrt();
    let each = |((&v, &w), &b): ((&f32, &f32), &f32)| (f64::from(v) - mean) / root * f64::from(w) + f64::from(b);
    x.iter().zip(weight).zip(bias).map(each).collect()
}

/// `x · weightᵀ`.
pub fn project(x: &[f32], weight: Weights<'_>) -> Vec<f64> {
    (0..weight.rows()).map(|row| dot(x, weight.row(row))).collect()
}

/// What rounding in [`project`] is relative to where its sums happen to be small: the root of a sum's squared products, the largest of all rows.
pub fn project_size(x: &[f32], weight: Weights<'_>) -> f64 {
    let squares = |row: &[f32]| x.iter().zip(row).map(|(&a, &b)| (f64::from(a) * f64::from(b)).powi(2)).sum::<f64>();
    (0..weight.rows()).map(|row| squares(weight.row(row))).fold(0.0, f64::max).sqrt()
}

/// For each head, `x[h] · W_h`.
pub fn head_mix(x: &[f32], x_stride: usize, weight: Weights<'_>, heads: &HeadRows) -> Vec<f64> {
    let mut out = vec![0.0; heads.heads * weight.cols];
    for (h, out) in out.chunks_mut(weight.cols).enumerate() {
        for i in 0..heads.rows {
            let v = f64::from(x[h * x_stride + i]);
            let row = weight.row(h * heads.rows_per_head + heads.first_row + i);
            out.iter_mut().zip(row).for_each(|(out, &w)| *out += v * f64::from(w));
        }
    }
    out
}

/// For each head, `x[h] · W_hᵀ`.
pub fn head_project(x: &[f32], weight: Weights<'_>, heads: &HeadRows) -> Vec<f64> {
    let mut out = Vec::with_capacity(heads.heads * heads.rows);
    for (h, x) in x.chunks(weight.cols).enumerate() {
        let first = h * heads.rows_per_head + heads.first_row;
        out.extend((first..first + heads.rows).map(|row| dot(x, weight.row(row))));
    }
    out
}

/// Each head's pairs from column `offset` on, turned by the position's angles; `angle = position · frequency` is an f32 product.
pub fn rotate(
    x: &[f32],
    position: usize,
    frequencies: &[f32],
    [stride, offset]: [usize; 2],
    layout: PairLayout,
) -> Vec<f64> {
    let mut out: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
    for head in out.chunks_mut(stride) {
        for (pair, frequency) in frequencies.iter().enumerate() {
            let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
            let (i, j) = match layout {
                PairLayout::Interleaved => (offset + 2 * pair, offset + 2 * pair + 1),
                PairLayout::Halves => (offset + pair, offset + pair + frequencies.len()),
            };
            let (a, b) = (head[i], head[j]);
            (head[i], head[j]) = (a * cos - b * sin, b * cos + a * sin);
        }
    }
    out
}

/// An indexer's score of one key.
pub struct Score {
    /// `Σ_h weights[h] · head_scale · max(0, q_h · key · key_scale)`.
    pub value: f64,
    /// The same with every head's part positive: what rounding is relative to.
    pub size: f64,
    /// The largest single product of a query's and the key's element, as it enters the score.
    pub largest: f64,
}

/// Scores one key; `q` is `[heads · dim]`.
pub fn score(q: &[f32], weights: &[f32], key: &[f32], [head_scale, key_scale]: [f32; 2]) -> Score {
    let mut score = Score { value: 0.0, size: 0.0, largest: 0.0 };
    for (q, &w) in q.chunks(key.len()).zip(weights) {
        let factor = f64::from(w) * f64::from(head_scale) * f64::from(key_scale);
        let dot = dot(q, key);
        score.value += factor * dot.max(0.0);
        score.size += (factor * dot).abs();
        let largest = q.iter().zip(key).fold(0.0f32, |largest, (a, b)| largest.max((a * b).abs()));
        score.largest = score.largest.max(factor.abs() * f64::from(largest));
    }
    score
}

/// The `keep` largest, ascending; of equals the lower index.
pub fn best<T: PartialOrd>(values: &[T], keep: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..values.len() as u32).collect();
    order.sort_by(|&a, &b| {
        let (a, b) = (&values[a as usize], &values[b as usize]);
        b.partial_cmp(a).expect("values are numbers")
    });
    order.truncate(keep);
    order.sort_unstable();
    order
}

/// One head's attention.
pub struct Attended {
    /// The weighted sum.
    pub values: Vec<f64>,
    /// The largest sum of a logit's products, all taken as positive: rounding of a logit is relative to it, and a weight turns that into a factor.
    pub largest: f64,
}

/// One head's attention over some keys: `softmax(scale · (q · c_u + r · r_u)) · c_u`.
pub fn attend<'a>(
    q: &[f32],
    r: &[f32],
    scale: f32,
    keys: impl Iterator<Item = (&'a [f32], &'a [f32])> + Clone,
) -> Attended {
    let scale = f64::from(scale);
    let logits: Vec<f64> = keys.clone().map(|(c, k)| scale * (dot(q, c) + dot(r, k))).collect();
    let size = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from((a * b).abs())).sum::<f64>();
    let sizes = keys.clone().map(|(c, k)| scale.abs() * (size(q, c) + size(r, k)));
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|l| (l - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut values = vec![0.0; q.len()];
    for (weight, (c, _)) in weights.iter().zip(keys.clone()) {
        values.iter_mut().zip(c).for_each(|(out, &c)| *out += weight / total * f64::from(c));
    }
    Attended { values, largest: sizes.fold(0.0, f64::max) }
}

/// `silu(gate) · up`.
pub fn gated(gate: &[f32], up: &[f32]) -> Vec<f64> {
    let each = |(&g, &u): (&f32, &f32)| f64::from(g) / (1.0 + (-f64::from(g)).exp()) * f64::from(u);
    gate.iter().zip(up).map(each).collect()
}

/// A router's choice.
pub struct Routed {
    /// Ascending.
    pub experts: Vec<u32>,
    /// In their order.
    pub weights: Vec<f64>,
    /// Room in the choice: of groups, and of experts in them.
    pub margin: f64,
}

/// The rule of [`Routing`] on one lane's logits.
pub fn route(logits: &[f32], bias: &[f32], routing: &Routing) -> Routed {
    let scores: Vec<f64> = logits.iter().map(|&l| 1.0 / (1.0 + (-f64::from(l)).exp())).collect();
    let biased: Vec<f64> = scores.iter().zip(bias).map(|(s, &b)| s + f64::from(b)).collect();
    let size = routing.experts / routing.groups;
    let groups: Vec<f64> = biased
        .chunks(size)
        .map(|group| {
            let mut group = group.to_vec();
            group.sort_by(|a, b| b.total_cmp(a));
            group.iter().take(2).sum()
        })
        .collect();
    let kept = best(&groups, routing.kept_groups);
    let eligible: Vec<f64> = (0..routing.experts)
        .map(|e| if kept.contains(&((e / size) as u32)) { biased[e] } else { f64::NEG_INFINITY })
        .collect();
    let experts = best(&eligible, routing.chosen);
    let chosen = || experts.iter().map(|&e| scores[e as usize]);
    let sum = if routing.normalise { chosen().sum::<f64>() + 1e-20 } else { 1.0 };
    let weights = chosen().map(|s| s / sum * f64::from(routing.scale)).collect();
    let margin = room(&groups, routing.kept_groups).min(room(&eligible, routing.chosen));
    Routed { experts, weights, margin }
}

/// How far the lowest of the `keep` largest lies above the highest of the others.
fn room(values: &[f64], keep: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    match (keep.checked_sub(1).and_then(|last| sorted.get(last)), sorted.get(keep)) {
        (Some(kept), Some(dropped)) => kept - dropped,
        _ => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_gives_what_a_pencil_gives() {
        assert_eq!(rms_norm(&[3.0, 4.0], &[1.0, 2.0], 0.0), [3.0 / 12.5f64.sqrt(), 8.0 / 12.5f64.sqrt()]);
        assert_eq!(layer_norm(&[1.0, 3.0], &[2.0, 2.0], &[0.5, 0.0], 0.0), [-1.5, 2.0]);
        let weight = Weights { values: &[1.0, 2.0, 3.0, 4.0], cols: 2 };
        assert_eq!(project(&[1.0, -1.0], weight), [-1.0, -1.0]);
        let heads = HeadRows { matrix: model::program::MatrixId(0), heads: 1, rows_per_head: 2, first_row: 1, rows: 1 };
        assert_eq!(head_mix(&[2.0], 1, weight, &heads), [6.0, 8.0]);
        assert_eq!(head_project(&[2.0, 1.0], weight, &heads), [10.0]);
        let turned = rotate(&[9.0, 1.0, 0.0], 2, &[0.25], [3, 1], PairLayout::Halves);
        assert_eq!(turned, [9.0, 0.5f64.cos(), 0.5f64.sin()]);
        let score = score(&[1.0, 1.0, -1.0, 0.0], &[2.0, 3.0], &[4.0, 1.0], [0.5, 1.0]);
        assert_eq!((score.value, score.size, score.largest), (5.0, 11.0, 6.0));
        let keys = [([2.0f32].as_slice(), [0.0f32].as_slice()), (&[4.0], &[0.0])];
        let attended = attend(&[0.0], &[7.0], 1.0, keys.into_iter());
        assert_eq!((attended.values, attended.largest), (vec![3.0], 0.0));
        assert_eq!(gated(&[0.0, 1.0], &[5.0, 2.0])[0], 0.0);
        assert_eq!(best(&[1.0, 3.0, 3.0, 2.0], 2), [1, 2]);
    }
}
