//! numpy's `Generator.standard_normal`: the ziggurat of Marsaglia and Tsang with 256 layers, in doubles.
//!
//! Source: G. Marsaglia and W. W. Tsang, "The Ziggurat Method for Generating Random Variables", J. Stat. Software 5 (2000).
//! The tables are computed rather than stored: the paper's recurrence, in doubles, gives numpy's own 768 entries exactly,
//! but for one rounding (see [`Ziggurat::new`]).

use crate::pcg64::Pcg64;

/// Number of layers; layer 0 is the base strip with the tail.
const LAYERS: usize = 256;
/// Where the tail begins.
const TAIL_START: f64 = 3.654_152_885_361_009;
/// The area of each layer, as numpy's tables have it (2 units of 1e-18 below the exact value).
const LAYER_AREA: f64 = 0.004_928_673_233_974_652;
/// 2^52: a draw's magnitude is a whole number below it.
const MAGNITUDES: f64 = (1u64 << 52) as f64;

/// The three tables of the method.
struct Ziggurat {
    /// Magnitudes below this one lie under the curve whatever the density says.
    accept_below: [u64; LAYERS],
    /// The width of a magnitude's unit: layer edge / 2^52.
    unit: [f64; LAYERS],
    /// exp(-x²/2) at the layer's edge.
    density: [f64; LAYERS],
}

impl Ziggurat {
    /// Builds the layers from the tail inwards: x' = f⁻¹(area / x + f(x)) with f(x) = exp(-x²/2).
    fn new() -> Self {
        let mut table = Self { accept_below: [0; LAYERS], unit: [0.0; LAYERS], density: [1.0; LAYERS] };
        let mut x = TAIL_START;
        let mut density = (-0.5 * x * x).exp();
        table.unit[LAYERS - 1] = x / MAGNITUDES;
        table.density[LAYERS - 1] = density;
        table.unit[0] = LAYER_AREA / density / MAGNITUDES;
        table.accept_below[0] = (x * density / LAYER_AREA * MAGNITUDES) as u64;
        for layer in (1..LAYERS - 1).rev() {
            let inner = (-2.0 * (LAYER_AREA / x + density).ln()).sqrt();
            table.accept_below[layer + 1] = (inner / x * MAGNITUDES).round_ties_even() as u64;
            x = inner;
            density = (-0.5 * x * x).exp();
            if layer == 38 {
                // numpy's constant is the next double above the correctly rounded one; all layers further in follow from it.
                density = density.next_up();
            }
            table.unit[layer] = x / MAGNITUDES;
            table.density[layer] = density;
        }
        table
    }
}

/// A stream of standard normal numbers; `Draw::new(seed)` is `default_rng(seed)`.
pub struct Draw {
    bits: Pcg64,
    ziggurat: Ziggurat,
}

impl Draw {
    pub fn new(seed: u64) -> Self {
        Self { bits: Pcg64::new(seed), ziggurat: Ziggurat::new() }
    }

    /// `Generator.permutation(n)`, from the same stream.
    pub fn permutation(&mut self, n: u32) -> Vec<u32> {
        self.bits.permutation(n)
    }

    /// `n` standard normal numbers, row-major where the caller thinks of a matrix.
    pub fn normals(&mut self, n: usize) -> Vec<f64> {
        (0..n).map(|_| self.normal()).collect()
    }

    fn normal(&mut self) -> f64 {
        loop {
            // From the lowest bit up: 8 bits of layer, 1 of sign, 52 of magnitude.
            let word = self.bits.next_u64();
            let layer = (word & 0xff) as usize;
            let magnitude = (word >> 9) & ((1 << 52) - 1);
            let x = magnitude as f64 * self.ziggurat.unit[layer];
            let x = if word >> 8 & 1 == 1 { -x } else { x };
            if magnitude < self.ziggurat.accept_below[layer] {
                return x;
            }
            if layer == 0 {
                return self.tail(magnitude);
            }
            let (lower, upper) = (self.ziggurat.density[layer], self.ziggurat.density[layer - 1]);
            if (upper - lower) * self.bits.next_f64() + lower < (-0.5 * x * x).exp() {
                return x;
            }
        }
    }

    /// A number beyond the last layer, by Marsaglia's exponential rejection; its sign is one of the magnitude's bits.
    fn tail(&mut self, magnitude: u64) -> f64 {
        const INVERSE_START: f64 = 0.273_661_237_329_758_3;
        loop {
            let beyond = -INVERSE_START * (-self.bits.next_f64()).ln_1p();
            let room = -(-self.bits.next_f64()).ln_1p();
            if room + room > beyond * beyond {
                let x = TAIL_START + beyond;
                return if magnitude >> 8 & 1 == 1 { -x } else { x };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! All expected values were printed by numpy 2.4.6.

    use super::*;
    use crate::sums;

    #[test]
    fn computed_tables_are_numpys_bit_for_bit() {
        let Ziggurat { accept_below, unit, density } = Ziggurat::new();
        assert_eq!(accept_below[..2], [0x000e_f33d_8025_ef6a, 0]);
        assert_eq!(unit[LAYERS - 1], 8.113_849_337_656_484e-16);
        let bits = |table: [f64; LAYERS]| table.map(f64::to_bits);
        let bytes: Vec<u8> =
            [accept_below, bits(unit), bits(density)].concat().into_iter().flat_map(u64::to_le_bytes).collect();
        let of_numpys_tables = "d46841a090f638a74c6bd112345fe681089be798d725b251129f062cad5521a3";
        assert_eq!(sums::sha256(&bytes), of_numpys_tables);
    }

    #[test]
    fn first_draws_of_seed_42_are_numpys() {
        let expected = [
            0.304_717_079_754_431_35,
            -1.039_984_106_240_495_5,
            0.750_451_195_806_457_2,
            0.940_564_716_391_213_9,
            -1.951_035_188_653_836_4,
            -1.302_179_506_862_318,
        ];
        assert_eq!(Draw::new(42).normals(6), expected);
    }

    #[test]
    fn tail_draws_come_where_numpy_has_them() {
        let draws = Draw::new(7).normals(20_000);
        let tail: Vec<(usize, f64)> = draws.iter().copied().enumerate().filter(|(_, x)| x.abs() > TAIL_START).collect();
        let expected = [
            (2311, -3.661_081_810_206_792),
            (4657, 4.061_606_310_651_89),
            (6694, 3.763_176_676_516_950_5),
            (10_479, 3.895_566_624_599_476),
        ];
        assert_eq!(tail.len(), expected.len());
        for ((at, x), (expected_at, expected_x)) in tail.into_iter().zip(expected) {
            assert_eq!(at, expected_at);
            assert!((x - expected_x).abs() < 1e-14, "draw {at} is {x}, expected {expected_x}");
        }
        assert_eq!(draws[19_999], -0.498_514_708_943_159_97, "the stream has shifted");
    }

    #[test]
    fn normals_after_a_permutation_skip_no_word_and_repeat_none() {
        let mut draw = Draw::new(42);
        draw.permutation(16);
        assert_eq!(draw.normals(1), [0.879_397_974_862_828_6]);
        let mut draw = Draw::new(42);
        draw.permutation(1000);
        assert_eq!(draw.normals(1), [1.212_518_836_831_600_4]);
    }
}
