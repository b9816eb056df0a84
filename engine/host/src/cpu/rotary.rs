//! Rotary positions: angles of the pass's lanes, and the rotation of pairs.

use model::program::PairLayout;

/// Cosine and sine of each pair for each lane: `[lanes, pairs]`.
#[derive(Debug, Default)]
pub(crate) struct Angles {
    pairs: usize,
    cos_sin: Vec<(f32, f32)>,
}

impl Angles {
    /// Angles of these positions. The product `position · frequency` is an f32 one, as the reference has it: at position 160,000 its rounding
    /// is about 0.01 rad in the fast pairs, and the model was trained with it.
    pub(crate) fn set(&mut self, frequencies: &[f32], positions: impl Iterator<Item = usize>) {
        self.pairs = frequencies.len();
        self.cos_sin.clear();
        for position in positions {
            self.cos_sin.extend(frequencies.iter().map(|f| {
                let (sin, cos) = f64::from(position as f32 * f).sin_cos();
                (cos as f32, sin as f32)
            }));
        }
    }

    /// Rotates `row`'s heads in place: in each, the pairs of the columns from `offset` on.
    pub(crate) fn rotate(&self, lane: usize, row: &mut [f32], stride: usize, offset: usize, layout: PairLayout) {
        let angles = &self.cos_sin[lane * self.pairs..][..self.pairs];
        for head in row.chunks_mut(stride) {
            let part = &mut head[offset..offset + 2 * self.pairs];
            for (i, &(cos, sin)) in angles.iter().enumerate() {
                let (i, j) = match layout {
                    PairLayout::Interleaved => (2 * i, 2 * i + 1),
                    PairLayout::Halves => (i, i + self.pairs),
                };
                let (a, b) = (part[i], part[j]);
                part[i] = a * cos - b * sin;
                part[j] = b * cos + a * sin;
            }
        }
    }
}
