//! Sets of small numbers, of fixed size.

/// A subset of `0 .. 64 · WORDS`. Numbers beyond are never in it, and putting them in does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits<const WORDS: usize>([u64; WORDS]);

impl<const WORDS: usize> Bits<WORDS> {
    pub const EMPTY: Bits<WORDS> = Bits([0; WORDS]);

    pub fn has(&self, i: usize) -> bool {
        self.0.get(i / 64).is_some_and(|w| w >> (i % 64) & 1 == 1)
    }

    /// Whether it was new.
    pub fn insert(&mut self, i: usize) -> bool {
        let Some(word) = self.0.get_mut(i / 64) else { return false };
        let new = *word >> (i % 64) & 1 == 0;
        *word |= 1 << (i % 64);
        new
    }

    pub fn remove(&mut self, i: usize) {
        if let Some(word) = self.0.get_mut(i / 64) {
            *word &= !(1 << (i % 64));
        }
    }

    pub fn clear(&mut self) {
        self.0.fill(0);
    }

    /// The set `0 .. n`.
    pub fn below(n: usize) -> Bits<WORDS> {
        Bits(core::array::from_fn(|w| match n.saturating_sub(64 * w) {
            0 => 0,
            rest if rest >= 64 => u64::MAX,
            rest => (1 << rest) - 1,
        }))
    }

    /// The least element that is at least `from`.
    pub fn next(&self, from: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut bits = self.0.get(word)? & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            bits = *self.0.get(word)?;
        }
        Some(64 * word + bits.trailing_zeros() as usize)
    }

    /// The least number below `end`, from `from` on, that is not in the set.
    pub fn next_absent(&self, from: usize, end: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut bits = !self.0.get(word)? & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            bits = !*self.0.get(word)?;
        }
        let found = 64 * word + bits.trailing_zeros() as usize;
        (found < end).then_some(found)
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&w| w == 0)
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(|w| w.count_ones() as usize).sum()
    }

    pub fn add(&mut self, other: &Bits<WORDS>) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
    }

    pub fn keep(&mut self, other: &Bits<WORDS>) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a &= b);
    }

    pub fn drop_all(&mut self, other: &Bits<WORDS>) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a &= !b);
    }

    /// Takes `n` off every number; those below `n` vanish.
    pub fn shift_down(&mut self, n: usize) {
        let (words, bits) = (n / 64, n % 64);
        for w in 0..WORDS {
            let at = |i: usize| self.0.get(i).copied().unwrap_or(0);
            let (low, high) = (at(w + words), at(w + words + 1));
            self.0[w] = if bits == 0 { low } else { low >> bits | high << (64 - bits) };
        }
    }

    /// Number `8 i + b` as bit b of byte i, for as many bytes as `out` has.
    pub fn write(&self, out: &mut [u8]) {
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = self.0.get(i / 8).map_or(0, |w| (w >> (8 * (i % 8))) as u8);
        }
    }

    /// The reverse of [`Bits::write`]; what does not fit is left out.
    pub fn read(bytes: &[u8]) -> Bits<WORDS> {
        let mut bits = Bits::EMPTY;
        for (i, &byte) in bytes.iter().enumerate().take(8 * WORDS) {
            bits.0[i / 8] |= u64::from(byte) << (8 * (i % 8));
        }
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    #[test]
    fn sets_behave_like_a_tree_of_numbers() {
        proptest::proptest!(|(a: Vec<u8>, b: Vec<u8>, from in 0usize..260, n in 0usize..260)| {
            let (a, b): (BTreeSet<usize>, BTreeSet<usize>) =
                (a.into_iter().map(usize::from).collect(), b.into_iter().map(usize::from).collect());
            let set = |t: &BTreeSet<usize>| { let mut s = Bits::<4>::EMPTY; t.iter().for_each(|&i| assert!(s.insert(i))); s };
            let tree = |s: &Bits<4>| (0..256).filter(|&i| s.has(i)).collect::<BTreeSet<usize>>();
            let (x, y) = (set(&a), set(&b));
            assert_eq!(tree(&x), a);
            assert_eq!(x.len(), a.len());
            assert_eq!(x.next(from), a.range(from..).next().copied());
            assert_eq!(x.next_absent(from, n), (from..n.min(256)).find(|i| !a.contains(i)));
            let mut bytes = [0; 32];
            x.write(&mut bytes);
            assert_eq!(Bits::read(&bytes), x);
            let mut z = x; z.shift_down(from);
            assert_eq!(tree(&z), a.iter().filter_map(|i| i.checked_sub(from)).collect());
            let mut z = x; z.add(&y);
            assert_eq!(tree(&z), a.union(&b).copied().collect());
            let mut z = x; z.keep(&y);
            assert_eq!(tree(&z), a.intersection(&b).copied().collect());
            let mut z = x; z.drop_all(&y);
            assert_eq!(tree(&z), a.difference(&b).copied().collect());
            assert_eq!(tree(&Bits::below(n)), (0..n.min(256)).collect());
            assert!(!x.has(256 + from));
        });
    }
}
