//! numpy's `default_rng(seed)`: a `SeedSequence` feeding PCG64 (XSL-RR, 128 bits of state, 64 of output).
//!
//! Only what the checkpoint generator draws from: 64-bit words, doubles in [0, 1) and `permutation`. The stream is fixed by
//! numpy's compatibility policy. Sources: M. E. O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good
//! Algorithms for Random Number Generation" (2014), and "Developing a seed_seq Alternative" (2015) for the seeding.

/// The pool size of a `SeedSequence`, in words.
const POOL: usize = 4;

/// The multiplier of the 128-bit linear congruential generator under PCG64.
const LCG_MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

/// A hash whose multiplier moves on with every word, so that equal words hash differently.
struct RollingHash {
    state: u32,
    multiplier: u32,
}

impl RollingHash {
    fn absorbing() -> Self {
        Self { state: 0x43b0_d7e5, multiplier: 0x931e_8875 }
    }

    fn emitting() -> Self {
        Self { state: 0x8b51_f9dd, multiplier: 0x58f3_8ded }
    }

    fn hash(&mut self, word: u32) -> u32 {
        let keyed = word ^ self.state;
        self.state = self.state.wrapping_mul(self.multiplier);
        let mixed = keyed.wrapping_mul(self.state);
        mixed ^ (mixed >> 16)
    }
}

/// Folds the word `y` into the pool word `x`.
fn mix(x: u32, y: u32) -> u32 {
    let mixed = x.wrapping_mul(0xca01_f9dd).wrapping_sub(y.wrapping_mul(0x4973_f715));
    mixed ^ (mixed >> 16)
}

/// `numpy.random.SeedSequence(seed).generate_state(4, uint64)` for a seed below 2^64.
fn seed_words(seed: u64) -> [u64; 4] {
    let mut hash = RollingHash::absorbing();
    // Words beyond the seed are zero, whether the seed has one word or two.
    let mut pool = [seed as u32, (seed >> 32) as u32, 0, 0].map(|word| hash.hash(word));
    for source in 0..POOL {
        for target in (0..POOL).filter(|&target| target != source) {
            pool[target] = mix(pool[target], hash.hash(pool[source]));
        }
    }
    let mut emit = RollingHash::emitting();
    let mut words = pool.iter().cycle().map(|&word| u64::from(emit.hash(word)));
    std::array::from_fn(|_| {
        let low = words.next().expect("the pool repeats for ever");
        let high = words.next().expect("the pool repeats for ever");
        low | high << 32
    })
}

/// The generator behind `numpy.random.default_rng`.
pub struct Pcg64 {
    state: u128,
    increment: u128,
    /// The upper half of a word whose lower half `next_u32` has given away.
    spare: Option<u32>,
}

impl Pcg64 {
    /// `numpy.random.default_rng(seed)`.
    pub fn new(seed: u64) -> Self {
        let [state_high, state_low, stream_high, stream_low] = seed_words(seed);
        let join = |high, low| u128::from(high) << 64 | u128::from(low);
        let increment: u128 = join(stream_high, stream_low) << 1 | 1;
        let mut generator = Self { state: increment, increment, spare: None };
        generator.state = generator.state.wrapping_add(join(state_high, state_low));
        generator.step();
        generator
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(LCG_MULTIPLIER).wrapping_add(self.increment);
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    /// The next 32 random bits: the lower half of a word first, then its upper half.
    fn next_u32(&mut self) -> u32 {
        self.spare.take().unwrap_or_else(|| {
            let word = self.next_u64();
            self.spare = Some((word >> 32) as u32);
            word as u32
        })
    }

    /// A double in [0, 1) with 53 random bits.
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (-53f64).exp2()
    }

    /// A whole number in 0..=`last`: as many low bits as `last` has, drawn again while they exceed it.
    fn up_to(&mut self, last: u32) -> u32 {
        let mask = u32::MAX.checked_shr(last.leading_zeros()).unwrap_or(0);
        loop {
            let candidate = self.next_u32() & mask;
            if candidate <= last {
                return candidate;
            }
        }
    }

    /// `Generator.permutation(n)`: Fisher and Yates from the last place down.
    pub fn permutation(&mut self, n: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..n).collect();
        for last in (1..n).rev() {
            let chosen = self.up_to(last);
            order.swap(last as usize, chosen as usize);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    //! All expected values were printed by numpy 2.4.6.

    use super::*;

    #[test]
    fn seeds_of_one_and_two_words_expand_as_in_numpy() {
        assert_eq!(
            seed_words(20_261_129),
            [0x2ecd_785f_8254_956a, 0x6742_cd7f_5d2f_ddd5, 0x21d8_ed3a_804c_db02, 0x0e9c_faa1_0278_cc32]
        );
        assert_eq!(seed_words((1 << 40) + 7)[..2], [0x0d86_72e1_0e3d_1a15, 0x9aef_4ada_4ecf_a161]);
    }

    #[test]
    fn state_and_first_words_of_seed_42_are_numpys() {
        let mut generator = Pcg64::new(42);
        assert_eq!(generator.state, 0xcea4_4f67_9879_8f2a_acbc_7c9d_6886_0ac8);
        assert_eq!(generator.increment, 0xfa50_5436_c9a8_416e_66ca_f2e2_8d25_abff);
        let words: [u64; 4] = std::array::from_fn(|_| generator.next_u64());
        assert_eq!(words, [0xc621_fbcd_16d9_2688, 0x705a_5661_a791_ffc1, 0xdbcd_12c2_6eda_1624, 0xb286_b60e_1600_888d]);
    }

    #[test]
    fn permutations_are_numpys() {
        let order = Pcg64::new(42).permutation(16);
        assert_eq!(order, [6, 15, 11, 10, 9, 3, 0, 7, 12, 5, 2, 4, 14, 1, 13, 8]);
        let order = Pcg64::new(42).permutation(1000);
        assert_eq!(order[..5], [978, 933, 859, 916, 127]);
        assert_eq!(order[995..], [548, 609, 961, 973, 648]);
    }
}
