//! A list with a fixed capacity, for reports that must not allocate.

use core::fmt;

/// Up to `N` values; what does not fit is only counted.
#[derive(Clone, Copy)]
pub struct List<T, const N: usize> {
    items: [Option<T>; N],
    len: usize,
}

impl<T: Copy, const N: usize> Default for List<T, N> {
    fn default() -> Self {
        Self { items: [None; N], len: 0 }
    }
}

impl<T: Copy, const N: usize> List<T, N> {
    /// Appends a value, or counts it if there is no room.
    pub fn push(&mut self, item: T) {
        if let Some(slot) = self.items.get_mut(self.len) {
            *slot = Some(item);
        }
        self.len = self.len.saturating_add(1);
    }

    /// The values that fitted, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter().flatten()
    }

    /// How many values were pushed, with those that did not fit.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was pushed.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<T: Copy + fmt::Debug, const N: usize> fmt::Debug for List<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Comma-separated, with `and n more` at the end if some did not fit.
impl<T: Copy + fmt::Display, const N: usize> fmt::Display for List<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, item) in self.iter().enumerate() {
            write!(f, "{}{item}", if index == 0 { "" } else { ", " })?;
        }
        match self.len.saturating_sub(N) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
