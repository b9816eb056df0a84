//! A sequence's caches: one row for each position, in pages, so that a growing text moves nothing.

use model::program::{CacheId, CacheSpec};

/// Positions of one page.
const PAGE: usize = 128;

/// One cache: row `u` belongs to position `u`.
#[derive(Debug)]
pub(crate) struct Cache {
    width: usize,
    pages: Vec<Box<[f32]>>,
}

impl Cache {
    fn new(width: usize) -> Self {
        Cache { width, pages: Vec::new() }
    }

    /// The row of a position that was written.
    #[inline(always)]
    pub(crate) fn row(&self, position: usize) -> &[f32] {
        &self.pages[position / PAGE][position % PAGE * self.width..][..self.width]
    }

    /// Writes a position's row.
    pub(crate) fn write(&mut self, position: usize, row: &[f32]) {
        while self.pages.len() <= position / PAGE {
            self.pages.push(vec![0.0; PAGE * self.width].into());
        }
        self.pages[position / PAGE][position % PAGE * self.width..][..self.width].copy_from_slice(row);
    }
}

/// The caches of one request, and the states that the MTP layer reads.
#[derive(Debug)]
pub(crate) struct Sequence {
    caches: Vec<Cache>,
    /// Positions that the main layers have written.
    pub(crate) len: usize,
    /// Positions that the MTP layer has written; at most `len`.
    pub(crate) mtp_len: usize,
    /// Positions allowed.
    pub(crate) max_len: usize,
    kept_first: usize,
    kept: Vec<f32>,
    hidden: usize,
}

impl Sequence {
    pub(crate) fn new(specs: &[CacheSpec], hidden: usize, max_len: usize) -> Self {
        Sequence {
            caches: specs.iter().map(|s| Cache::new(s.width)).collect(),
            len: 0,
            mtp_len: 0,
            max_len,
            kept_first: 0,
            kept: Vec::new(),
            hidden,
        }
    }

    /// Reads a cache.
    pub(crate) fn cache(&self, id: CacheId) -> &Cache {
        &self.caches[usize::from(id.0)]
    }

    /// Writes a cache.
    pub(crate) fn cache_mut(&mut self, id: CacheId) -> &mut Cache {
        &mut self.caches[usize::from(id.0)]
    }

    /// Forgets positions from `len` on, the MTP layer's from `mtp_len` on. Rows stay allocated and are written again.
    pub(crate) fn truncate(&mut self, len: usize, mtp_len: usize) {
        self.len = self.len.min(len);
        self.mtp_len = self.mtp_len.min(mtp_len).min(len);
        let keep = self.len.saturating_sub(self.kept_first);
        self.kept.truncate(keep * self.hidden);
    }

    /// Keeps a state for the MTP layer. The first row of a pass (`fresh`) drops all kept rows but the last, which the MTP layer
    /// still needs when a prompt is read in several passes.
    pub(crate) fn keep(&mut self, position: usize, row: &[f32], fresh: bool) {
        let end = self.kept_first + self.kept.len() / self.hidden;
        if fresh && end == position && end > self.kept_first {
            self.kept.drain(..(end - 1 - self.kept_first) * self.hidden);
            self.kept_first = end - 1;
        } else if end != position {
            self.kept.clear();
        }
        if self.kept.is_empty() {
            self.kept_first = position;
        }
        self.kept.extend_from_slice(row);
    }

    /// The state kept for a position.
    pub(crate) fn kept(&self, position: usize) -> Option<&[f32]> {
        let at = position.checked_sub(self.kept_first)? * self.hidden;
        self.kept.get(at..at + self.hidden)
    }
}
