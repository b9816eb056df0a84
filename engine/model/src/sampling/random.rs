//! Random numbers by name instead of by turn.
//!
//! A number depends on the seed, the choice (of several answers to one request), the position in the text and its purpose, and on
//! nothing else: not on how many were drawn before, nor on which lanes share a step or whether a draft was tried. That is what makes
//! a seeded answer repeatable. A counter-based generator does it without state: Philox4x32-10, J. Salmon, M. Moraes, R. Dror,
//! D. Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", 2011. Twenty lines, so no library.

/// What a random number is for. Two purposes at one position get independent numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Purpose {
    /// Choosing a token from the main model's distribution.
    Token = 0,
    /// Choosing a draft from the draft model's distribution.
    Draft = 1,
    /// Accepting or rejecting a draft.
    Accept = 2,
    /// Choosing the token in place of a rejected draft.
    Residual = 3,
}

/// A uniform number in [0, 1), a multiple of 2⁻⁵³.
///
/// `choice` counts the answers to one request; `position` is the token's place in the whole text, prompt included.
#[must_use]
pub fn uniform(seed: u64, choice: u32, position: u64, purpose: Purpose) -> f64 {
    let [a, b, ..] = philox([low(position), high(position), choice, purpose as u32], [low(seed), high(seed)]);
    let bits = u64::from(a) << 32 | u64::from(b);
    // 53 bits: every multiple of 2⁻⁵³ below 1 is an f64, so nothing rounds up to 1.
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

const ROUNDS: u32 = 10;

/// One block of the generator: a function of counter and key, bijective in the counter.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..ROUNDS {
        if round > 0 {
            key[0] = key[0].wrapping_add(0x9e37_79b9);
            key[1] = key[1].wrapping_add(0xbb67_ae85);
        }
        let first = 0xd251_1f53 * u64::from(counter[0]);
        let second = 0xcd9e_8d57 * u64::from(counter[2]);
        counter = [high(second) ^ counter[1] ^ key[0], low(second), high(first) ^ counter[3] ^ key[1], low(first)];
    }
    counter
}

const fn low(value: u64) -> u32 {
    value as u32
}

const fn high(value: u64) -> u32 {
    (value >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const PURPOSES: [Purpose; 4] = [Purpose::Token, Purpose::Draft, Purpose::Accept, Purpose::Residual];

    /// The known answers published with the authors' Random123 library.
    #[test]
    fn philox_gives_the_published_answers() {
        for (counter, key, answer) in [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ] {
            assert_eq!(philox(counter, key), answer);
        }
    }

    #[test]
    fn each_part_of_the_name_changes_the_number() {
        let base = uniform(1, 2, 3, Purpose::Token);
        for other in [
            uniform(2, 2, 3, Purpose::Token),
            uniform(1 << 32 | 1, 2, 3, Purpose::Token),
            uniform(1, 3, 3, Purpose::Token),
            uniform(1, 2, 4, Purpose::Token),
            uniform(1, 2, 1 << 32 | 3, Purpose::Token),
            uniform(1, 2, 3, Purpose::Accept),
        ] {
            assert_ne!(base, other);
        }
        assert_eq!(base, uniform(1, 2, 3, Purpose::Token));
    }

    #[test]
    fn numbers_fill_the_unit_interval_evenly() {
        const CELLS: usize = 64;
        const COUNT: u64 = 64_000;
        let mut cells = [0u32; CELLS];
        for position in 0..COUNT {
            let u = uniform(7, 0, position, Purpose::Token);
            assert!((0.0..1.0).contains(&u));
            cells[(u * CELLS as f64) as usize] += 1;
        }
        let expected = COUNT as f64 / CELLS as f64;
        let chi2: f64 = cells.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
        // 63 degrees of freedom: above 113 once in ten thousand seeds.
        assert!(chi2 < 113.0, "{chi2}");
    }

    #[test]
    fn purposes_positions_choices_and_seeds_are_uncorrelated() {
        const COUNT: u64 = 40_000;
        let correlation = |a: &dyn Fn(u64) -> f64, b: &dyn Fn(u64) -> f64| {
            let sum: f64 = (0..COUNT).map(|i| (a(i) - 0.5) * (b(i) - 0.5)).sum();
            sum * 12.0 / COUNT as f64
        };
        // The standard deviation is 1/√COUNT = 0.005.
        let limit = 0.02;
        for (i, &a) in PURPOSES.iter().enumerate() {
            for &b in &PURPOSES[i + 1..] {
                let r = correlation(&|p| uniform(9, 0, p, a), &|p| uniform(9, 0, p, b));
                assert!(r.abs() < limit, "{a:?} {b:?}: {r}");
            }
            let neighbours = correlation(&|p| uniform(9, 0, p, a), &|p| uniform(9, 0, p + 1, a));
            let choices = correlation(&|p| uniform(9, 0, p, a), &|p| uniform(9, 1, p, a));
            let seeds = correlation(&|p| uniform(9, 0, p, a), &|p| uniform(10, 0, p, a));
            for r in [neighbours, choices, seeds] {
                assert!(r.abs() < limit, "{a:?}: {r}");
            }
        }
    }
}
