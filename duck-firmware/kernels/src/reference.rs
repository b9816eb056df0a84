//! The definition of a step, word for word, one weight at a time: slow, and the same bits as the kernels.
//!
//! It knows nothing of packed layouts, cores or batches. Weights are asked for one by one, so a test can answer from the
//! checkpoint that a unit was packed from.

use crate::abi::Mode;
use crate::tree::{Node, Shape};
use crate::unit::{Part, SLICE};

/// Every unit's weights as numbers.
pub trait Weights {
    /// Element (row, column) of a unit's matrix before its scale.
    fn weight(&self, slice: u16, expert: u16, part: Part, row: usize, column: usize) -> f32;

    /// Its scale; 1 where there are none.
    fn scale(&self, slice: u16, expert: u16, part: Part, row: usize, column: usize) -> f32;
}

/// One lane of a step.
#[derive(Clone, Copy, Debug)]
pub struct Lane<'a> {
    /// The model's slices and experts.
    pub shape: Shape,
    /// Where activations are rounded.
    pub mode: Mode,
    /// `[hidden]`.
    pub x: &'a [f32],
    /// The chosen experts.
    pub ids: &'a [u16],
    /// Their router weights.
    pub weights: &'a [f32],
}

/// `row · x`: chains of fused multiply-adds over blocks of 128 columns, folded with the block's scale.
fn dot(x: &[f32], weight: impl Fn(usize) -> f32, scale: impl Fn(usize) -> f32) -> f32 {
    let mut total = 0.0;
    for block in (0..x.len()).step_by(128) {
        let mut sum = 0.0;
        for (column, &x) in x.iter().enumerate().skip(block).take(128) {
            sum = fp9::fma(weight(column), x, sum);
        }
        total = fp9::fma(sum, scale(block), total);
    }
    total
}

impl Lane<'_> {
    /// A unit's contribution to every output.
    fn contribution(&self, weights: &impl Weights, slice: u16, expert: u16, router: f32, out: &mut [f32]) {
        let mut h = [0.0; SLICE];
        for (row, h) in h.iter_mut().enumerate() {
            let [g, u] = [Part::Gate, Part::Up].map(|part| {
                let weight = |column| weights.weight(slice, expert, part, row, column);
                self.mode.round(dot(self.x, weight, |column| weights.scale(slice, expert, part, row, column)))
            });
            *h = self.mode.round(fp9::silu(g) * u);
        }
        for (row, out) in out.iter_mut().enumerate() {
            let weight = |column| weights.weight(slice, expert, Part::Down, row, column);
            *out = dot(&h, weight, |column| weights.scale(slice, expert, Part::Down, row, column)) * router;
        }
    }

    /// The sum below `node` into `out` (`[hidden]`), or false if the lane has no unit there.
    ///
    /// `spare`: hidden values for every level of the tree below the node.
    ///
    /// # Panics
    /// If `spare` is too short.
    pub fn sum(&self, weights: &impl Weights, node: Node, out: &mut [f32], spare: &mut [f32]) -> bool {
        let Some((left, right)) = node.children(self.shape) else {
            let chosen = self.ids.iter().position(|&id| id == node.expert());
            if let Some(choice) = chosen {
                self.contribution(weights, node.slice, node.expert(), self.weights[choice], out);
            }
            return chosen.is_some();
        };
        if !self.sum(weights, left, out, spare) {
            return self.sum(weights, right, out, spare);
        }
        let (other, spare) = spare.split_at_mut(out.len());
        if self.sum(weights, right, other, spare) {
            out.iter_mut().zip(other).for_each(|(left, right)| *left += *right);
        }
        true
    }
}
