//! Coverage marks: a recovery branch says `mark!("name")`, and its directed test proves that it came there.
//!
//! In other builds a mark is nothing.

/// Notes that this branch was taken.
macro_rules! mark {
    ($name:literal) => {
        #[cfg(test)]
        $crate::mark::hit($name)
    };
}
pub(crate) use mark;

#[cfg(test)]
pub(crate) use counted::{count, hit};

#[cfg(test)]
mod counted {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    std::thread_local! {
        static HITS: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
    }

    pub(crate) fn hit(name: &'static str) {
        HITS.with_borrow_mut(|hits| *hits.entry(name).or_default() += 1);
    }

    /// How often this thread, so this test, came by the mark.
    pub(crate) fn count(name: &str) -> u64 {
        HITS.with_borrow(|hits| hits.get(name).copied().unwrap_or(0))
    }
}
