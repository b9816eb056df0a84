//! The sequences' caches on the card: pools of pages that all caches number alike, a table of pages for each sequence, and the states that the
//! MTP layer reads.

use std::collections::HashMap;
use std::sync::Arc;

use model::program::{CacheId, Model};

use super::abi::{Cache, PAGE};
use super::device::Device;
use super::error::CudaError;
use super::memory::Memory;
use crate::stage::SequenceId;

/// What an open sequence has.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// Its row of the table.
    pub(crate) row: usize,
    pages: Vec<u32>,
    /// Positions that the main layers have written.
    pub(crate) len: usize,
    /// Positions that the MTP layer has written.
    pub(crate) mtp_len: usize,
    /// Positions allowed.
    pub(crate) max_len: usize,
    kept_first: usize,
    kept: usize,
}

impl Sequence {
    /// Forgets positions from `len` on, the MTP layer's from `mtp_len` on.
    pub(crate) fn truncate(&mut self, len: usize, mtp_len: usize) {
        self.len = self.len.min(len);
        self.mtp_len = self.mtp_len.min(mtp_len).min(len);
        self.kept = self.kept.min(self.len.saturating_sub(self.kept_first));
    }

    /// A pass keeps states for `count` positions from `first` on. What was kept before goes, but for the last one, which the MTP layer still
    /// needs when a prompt is read in several passes.
    pub(crate) fn keep(&mut self, first: usize, count: usize) {
        let end = self.kept_first + self.kept;
        (self.kept_first, self.kept) =
            if self.kept > 0 && end == first { (end - 1, count + 1) } else { (first, count) };
    }

    /// Whether the state of a position is kept.
    pub(crate) fn has_kept(&self, position: usize) -> bool {
        (self.kept_first..self.kept_first + self.kept).contains(&position)
    }
}

/// Room for caches, by page.
pub(crate) struct Caches {
    pools: Vec<(Memory, usize)>,
    table: Memory,
    /// Pages of a row of the table.
    stride: usize,
    kept: Memory,
    /// States kept for each sequence.
    ring: usize,
    free_pages: Vec<u32>,
    free_rows: Vec<usize>,
    open: HashMap<SequenceId, Sequence>,
}

/// Sizes of [`Caches`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Positions of one sequence at most.
    pub(crate) max_positions: usize,
    /// Positions of all sequences together.
    pub(crate) positions: usize,
    /// Sequences at most.
    pub(crate) sequences: usize,
    /// Lanes of a pass at most.
    pub(crate) max_lanes: usize,
    /// Bytes of a cached value.
    pub(crate) value_bytes: usize,
}

impl Room {
    fn pages(&self) -> usize {
        self.positions.div_ceil(PAGE).max(self.sequences)
    }

    /// Bytes of all of it.
    pub(crate) fn bytes(&self, model: &Model) -> usize {
        let row: usize = model.caches.iter().map(|cache| cache.width * self.value_bytes).sum();
        let kept = self.sequences * (self.max_lanes + 1) * model.dims.hidden * 4;
        self.pages() * PAGE * row + kept + self.sequences * self.max_positions.div_ceil(PAGE) * 4
    }
}

impl Caches {
    pub(crate) fn new(device: &Arc<Device>, model: &Model, room: Room) -> Result<Caches, CudaError> {
        let pages = room.pages();
        let stride = room.max_positions.div_ceil(PAGE).max(1);
        let pool = |cache: &model::program::CacheSpec| {
            let bytes = pages * PAGE * cache.width * room.value_bytes;
            Memory::new(device, &format!("the cache {}", cache.name), bytes).map(|memory| (memory, cache.width))
        };
        let ring = room.max_lanes + 1;
        let table = Memory::new(device, "the table of pages", room.sequences * stride * 4)?;
        table.write(0, &vec![0u32; room.sequences * stride])?;
        Ok(Caches {
            pools: model.caches.iter().map(pool).collect::<Result<_, _>>()?,
            table,
            stride,
            kept: Memory::new(device, "kept states", room.sequences * ring * model.dims.hidden * 4)?,
            ring,
            // Taken from the end: the first page first.
            free_pages: (0..pages as u32).rev().collect(),
            free_rows: (0..room.sequences).rev().collect(),
            open: HashMap::new(),
        })
    }

    /// Reserves pages for `max_len` positions.
    pub(crate) fn open(&mut self, id: SequenceId, max_len: usize) -> Result<(), CudaError> {
        let count = max_len.div_ceil(PAGE);
        let Some(&row) = self.free_rows.last() else {
            return Err(CudaError::Sequences { found: self.open.len() });
        };
        if count > self.free_pages.len() || count > self.stride {
            return Err(CudaError::CachePositions { needed: max_len, free: self.free_pages.len() * PAGE });
        }
        let pages: Vec<u32> = self.free_pages.iter().rev().take(count).copied().collect();
        self.table.write(row * self.stride * 4, &pages)?;
        self.free_rows.pop();
        self.free_pages.truncate(self.free_pages.len() - count);
        self.open.insert(id, Sequence { row, pages, len: 0, mtp_len: 0, max_len, kept_first: 0, kept: 0 });
        Ok(())
    }

    /// Gives pages back.
    pub(crate) fn close(&mut self, id: SequenceId) {
        if let Some(sequence) = self.open.remove(&id) {
            self.free_pages.extend(sequence.pages.into_iter().rev());
            self.free_rows.push(sequence.row);
        }
    }

    pub(crate) fn get(&self, id: SequenceId) -> Option<&Sequence> {
        self.open.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: SequenceId) -> Option<&mut Sequence> {
        self.open.get_mut(&id)
    }

    /// One cache, for kernels.
    pub(crate) fn cache(&self, id: CacheId) -> Cache {
        let (memory, width) = &self.pools[usize::from(id.0)];
        Cache { pool: memory.address(), width: *width as u32, _pad: 0 }
    }

    /// The table of pages and its stride.
    pub(crate) fn pages(&self) -> (u64, u32) {
        (self.table.address(), self.stride as u32)
    }

    /// Kept states `[sequences, ring, hidden]`, and the ring's length.
    pub(crate) fn kept(&self) -> (u64, usize) {
        (self.kept.address(), self.ring)
    }

    /// Addresses and bytes of all pools.
    pub(crate) fn regions(&self) -> impl Iterator<Item = (u64, usize)> {
        self.pools.iter().map(|(memory, _)| (memory.address(), memory.bytes()))
    }

    /// Bytes on the card.
    pub(crate) fn bytes(&self) -> usize {
        self.pools.iter().map(|(memory, _)| memory.bytes()).sum::<usize>() + self.table.bytes() + self.kept.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence() -> Sequence {
        Sequence { row: 0, pages: Vec::new(), len: 0, mtp_len: 0, max_len: 100, kept_first: 0, kept: 0 }
    }

    #[test]
    fn a_pass_keeps_its_states_and_the_last_one_before() {
        let mut s = sequence();
        s.keep(0, 10);
        assert!((0..10).all(|p| s.has_kept(p)) && !s.has_kept(10));
        s.keep(10, 5);
        assert!((9..15).all(|p| s.has_kept(p)) && !s.has_kept(8) && !s.has_kept(15));
        s.len = 15;
        s.truncate(12, 3);
        assert_eq!((s.len, s.mtp_len), (12, 0));
        assert!(s.has_kept(11) && !s.has_kept(12));
        s.keep(14, 1);
        assert!(s.has_kept(14) && !s.has_kept(11), "a gap drops everything");
    }
}
