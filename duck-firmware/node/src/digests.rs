//! Digests of blocks, so that no look at the link waits for a whole one: a block takes half a millisecond.
//!
//! Blocks that have just arrived come first and are hashed at once. Held blocks that are checked again wait while a step is under way, which needs
//! the memory's speed. Where there are no threads, [`Sliced`] does a slice at a time.

use alloc::collections::VecDeque;

use crate::MOST_LENT;
use crate::blocks::Loan;

/// Bytes that are hashed between two looks at anything else: some 20 µs.
pub const SLICE: usize = 64 << 10;

/// Why a block is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// All of it has arrived.
    Filled {
        /// The session's.
        ticket: u32,
    },
    /// It is held, and checked again.
    Scrub,
}

/// A digest that is ready.
#[derive(Debug)]
pub struct Hashed {
    /// What was submitted.
    pub loan: Loan,
    /// As submitted.
    pub purpose: Purpose,
    /// blake3 of the block's bytes.
    pub digest: [u8; 32],
}

/// Hashes blocks. At most [`MOST_LENT`] are submitted at once, one of them a [`Purpose::Scrub`].
pub trait Digests {
    /// Takes a block to hash.
    fn submit(&mut self, loan: Loan, purpose: Purpose);

    /// A digest that is ready. May do a little work.
    fn poll(&mut self) -> Option<Hashed>;

    /// The next digest, whenever it is ready. Something was submitted.
    fn wait(&mut self) -> Hashed;

    /// Whether a step is under way.
    fn set_computing(&mut self, on: bool);

    /// Whether [`Digests::poll`] must be called soon for work to go on: the duck then does not sleep. `false` where a thread does the work and
    /// ends the carrier's wait.
    fn is_waiting(&self) -> bool {
        false
    }
}

/// A block, and how far it is hashed.
#[derive(Debug)]
struct Work {
    loan: Loan,
    purpose: Purpose,
    hasher: blake3::Hasher,
    done: usize,
}

impl Work {
    /// Hashes at most `most` bytes; whether that was the end.
    fn go_on(&mut self, most: usize) -> bool {
        let rest = &self.loan.bytes()[self.done..];
        let slice = &rest[..most.min(rest.len())];
        self.hasher.update(slice);
        self.done += slice.len();
        slice.len() == rest.len()
    }

    fn finish(self) -> Hashed {
        Hashed { loan: self.loan, purpose: self.purpose, digest: *self.hasher.finalize().as_bytes() }
    }
}

/// Hashes on the caller's own time, at most a slice in each [`Digests::poll`].
#[derive(Debug)]
pub struct Sliced {
    slice: usize,
    filled: VecDeque<Work>,
    scrub: Option<Work>,
    computing: bool,
}

impl Sliced {
    /// `slice`: bytes, such as [`SLICE`]; at least one.
    pub fn new(slice: usize) -> Sliced {
        let filled = VecDeque::with_capacity(MOST_LENT);
        Sliced { slice: slice.max(1), filled, scrub: None, computing: false }
    }
}

impl Digests for Sliced {
    fn submit(&mut self, loan: Loan, purpose: Purpose) {
        let work = Work { loan, purpose, hasher: blake3::Hasher::new(), done: 0 };
        match purpose {
            Purpose::Filled { .. } => self.filled.push_back(work),
            Purpose::Scrub => self.scrub = Some(work),
        }
    }

    fn poll(&mut self) -> Option<Hashed> {
        if let Some(first) = self.filled.front_mut() {
            let ended = first.go_on(self.slice);
            return if ended { self.filled.pop_front().map(Work::finish) } else { None };
        }
        let scrub = self.scrub.as_mut().filter(|_| !self.computing)?;
        let ended = scrub.go_on(self.slice);
        if ended { self.scrub.take().map(Work::finish) } else { None }
    }

    fn wait(&mut self) -> Hashed {
        let mut first = self.filled.pop_front().or_else(|| self.scrub.take()).expect("something was submitted");
        while !first.go_on(self.slice) {}
        first.finish()
    }

    fn set_computing(&mut self, on: bool) {
        self.computing = on;
    }

    fn is_waiting(&self) -> bool {
        !self.filled.is_empty() || self.scrub.is_some() && !self.computing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::Blocks;
    use crate::region::tests::heap;
    use alloc::sync::Arc;
    use wire::list::Entry;

    /// Two blocks, of 250 and 100 bytes, of which the second is not zeroes.
    fn blocks() -> Blocks {
        let mut blocks = Blocks::new(Arc::new(heap(1 << 12)));
        let entry = |node, length| Entry { layer: 0, node, length, digest: [0; 32] };
        blocks.arrange(&[entry(0, 250), entry(1, 100)]);
        blocks.write(1, 0, &[5; 100]);
        blocks
    }

    #[test]
    fn each_poll_hashes_a_slice_and_arrivals_go_before_checks() {
        let (mut blocks, mut digests) = (blocks(), Sliced::new(100));
        digests.submit(blocks.lend(0).expect("a place"), Purpose::Scrub);
        assert!(digests.poll().is_none(), "100 of 250");
        digests.submit(blocks.lend(1).expect("a place"), Purpose::Filled { ticket: 9 });
        let first = digests.poll().expect("one slice is all of it");
        assert_eq!((first.purpose, first.digest), (Purpose::Filled { ticket: 9 }, *blake3::hash(&[5; 100]).as_bytes()));
        assert!(digests.poll().is_none(), "200 of 250");
        let second = digests.poll().expect("its third slice");
        assert_eq!((second.purpose, second.digest), (Purpose::Scrub, *blake3::hash(&[0; 250]).as_bytes()));
        assert!(digests.poll().is_none() && !digests.is_waiting());
    }

    #[test]
    fn checks_wait_for_a_step_and_arrivals_do_not() {
        let (mut blocks, mut digests) = (blocks(), Sliced::new(1_000));
        digests.set_computing(true);
        digests.submit(blocks.lend(0).expect("a place"), Purpose::Scrub);
        assert!(!digests.is_waiting() && digests.poll().is_none());
        digests.submit(blocks.lend(1).expect("a place"), Purpose::Filled { ticket: 1 });
        assert!(digests.is_waiting() && digests.poll().is_some_and(|h| h.loan.block() == 1));
        digests.set_computing(false);
        assert!(digests.is_waiting() && digests.poll().is_some_and(|h| h.loan.block() == 0));
    }

    #[test]
    fn waiting_finishes_what_polls_have_begun() {
        let (mut blocks, mut digests) = (blocks(), Sliced::new(100));
        digests.submit(blocks.lend(0).expect("a place"), Purpose::Filled { ticket: 2 });
        assert!(digests.poll().is_none());
        let hashed = digests.wait();
        assert_eq!((hashed.loan.block(), hashed.digest), (0, *blake3::hash(&[0; 250]).as_bytes()));
    }
}
