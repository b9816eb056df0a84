//! The weights: the blocks of a session's list, where they lie, and who may touch them.
//!
//! Every block is in one of these states, and only this module changes them:
//!
//! - *arriving*: [`Blocks::write`] puts chunks into it.
//! - *lent* to be hashed, as a [`Loan`], from [`Blocks::lend`] to [`Blocks::take_back`]: nobody writes it. A chunk that arrives meanwhile is
//!   dropped; the block then has the wrong digest and starts again.
//! - *whole*: its digest was right. Never written again; the kernels read it. [`Blocks::damaged`] makes it arriving again, never while a step
//!   is under way ([`Blocks::begin_step`] to [`Blocks::end_step`]).
//!
//! Places change in [`Blocks::arrange`] alone, when nothing is lent and no step is under way. A duck with a step or a hash under way therefore
//! finishes that first.
#![allow(unsafe_code)] // the states above are what makes it sound

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use kernels::UnitEntry;
use wire::list::{Entry, MAX_BLOCKS};

use crate::places::{self, Place};
use crate::region::Region;

#[derive(Clone, Copy, Debug)]
struct Block {
    digest: [u8; 32],
    place: Option<Place>,
    whole: bool,
    lent: bool,
}

/// The blocks of one list.
#[derive(Debug)]
pub(crate) struct Blocks {
    region: Arc<Region>,
    blocks: Vec<Block>,
    lent: usize,
    computing: bool,
    /// Changes whenever a block stops being whole or a place changes.
    generation: u64,
}

/// A block that nobody writes until it is given back.
#[derive(Debug)]
pub struct Loan {
    region: Arc<Region>,
    block: u32,
    place: Place,
}

impl Loan {
    /// All of a region as block `block`, for those who test how they hash.
    pub fn whole(region: Region, block: u32) -> Loan {
        let place = Place { offset: 0, len: region.len() };
        Loan { region: Arc::new(region), block, place }
    }

    /// Its index in the list.
    pub fn block(&self) -> u32 {
        self.block
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `Blocks` writes no block that is lent, and moves none while any is; nor does anybody write a region that is a loan of its own.
        unsafe { self.region.slice(self.place.offset, self.place.len) }
    }
}

/// A kernels' table of units in the memory of [`Blocks`].
#[derive(Debug)]
pub(crate) struct Table {
    blocks: Vec<u32>,
    entries: Vec<UnitEntry<'static>>,
    generation: u64,
    id: u64,
    /// The entries point into it.
    _region: Arc<Region>,
}

impl Table {
    /// The units, to be read by cores between [`Blocks::begin_step`] and [`Blocks::end_step`].
    pub fn entries(&self) -> &[UnitEntry<'_>] {
        &self.entries
    }

    /// Another whenever the entries are, and never another table's of the same session.
    pub fn version(&self) -> (u64, u64) {
        (self.id, self.generation)
    }
}

impl Blocks {
    pub fn new(region: Arc<Region>) -> Blocks {
        let blocks = Vec::with_capacity(MAX_BLOCKS);
        Blocks { region, blocks, lent: 0, computing: false, generation: 1 }
    }

    /// Takes part of a block that is arriving.
    pub fn write(&mut self, block: u32, offset: u32, bytes: &[u8]) {
        let Some(&Block { place: Some(place), whole: false, lent: false, .. }) = self.blocks.get(block as usize) else {
            return;
        };
        let offset = offset as usize;
        if offset <= place.len && bytes.len() <= place.len - offset {
            // SAFETY: the block is neither lent nor whole, so nobody reads it, and writing goes through `&mut self`.
            unsafe { self.region.write(place.offset + offset, bytes) };
        }
    }

    /// Whether anybody reads an arriving block.
    pub fn any_lent(&self) -> bool {
        self.lent > 0
    }

    /// Lends a block out to be hashed; `None` if it has no place or is lent already.
    pub fn lend(&mut self, block: u32) -> Option<Loan> {
        let entry = self.blocks.get_mut(block as usize).filter(|b| !b.lent)?;
        let place = entry.place?;
        entry.lent = true;
        self.lent += 1;
        Some(Loan { region: Arc::clone(&self.region), block, place })
    }

    pub fn take_back(&mut self, loan: Loan) {
        self.blocks[loan.block as usize].lent = false;
        self.lent -= 1;
    }

    /// A block's digest was found right.
    pub fn set_whole(&mut self, block: u32) {
        if let Some(block) = self.blocks.get_mut(block as usize) {
            block.whole = true;
        }
    }

    /// A whole block's digest was found wrong.
    pub fn damaged(&mut self, block: u32) {
        assert!(!self.computing, "damage is noted between steps");
        if let Some(block) = self.blocks.get_mut(block as usize) {
            block.whole = false;
            self.generation += 1;
        }
    }

    /// What a whole block's digest must be.
    pub fn digest(&self, block: u32) -> Option<&[u8; 32]> {
        self.blocks.get(block as usize).filter(|b| b.whole).map(|b| &b.digest)
    }

    /// A whole block's bytes.
    pub fn whole(&self, block: u32) -> Option<&[u8]> {
        let place = self.blocks.get(block as usize).filter(|b| b.whole)?.place?;
        // SAFETY: whole blocks are not written, and cease to be whole, or move, through `&mut self` alone.
        Some(unsafe { self.region.slice(place.offset, place.len) })
    }

    /// The first whole block from `first` on, counting round.
    pub fn next_whole(&self, first: u32) -> Option<u32> {
        let first = (first as usize).min(self.blocks.len());
        let all = (first..self.blocks.len()).chain(0..first);
        all.into_iter().find(|&i| self.blocks[i].whole).map(|i| i as u32)
    }

    /// Makes room for another list; returns which of its blocks are whole already.
    pub fn arrange(&mut self, list: &[Entry]) -> Vec<u32> {
        assert!(!self.computing && self.lent == 0, "blocks move only when nobody reads them");
        let mut held: BTreeMap<([u8; 32], usize), Vec<Place>> = BTreeMap::new();
        for block in self.blocks.iter().filter(|b| b.whole) {
            if let Some(place) = block.place {
                held.entry((block.digest, place.len)).or_default().push(place);
            }
        }
        let lens: Vec<usize> = list.iter().map(|e| e.length as usize).collect();
        // Blocks that stay where they are in the list come first, so that two of one digest do not swap.
        let same = |i: usize, e: &Entry| {
            self.blocks.get(i).filter(|b| b.whole && b.digest == e.digest)?.place.filter(|p| p.len == e.length as usize)
        };
        let mut kept: Vec<Option<Place>> = list.iter().enumerate().map(|(i, e)| same(i, e)).collect();
        for (entry, place) in list.iter().zip(&kept) {
            if let (Some(place), Some(all)) = (place, held.get_mut(&(entry.digest, entry.length as usize))) {
                all.retain(|p| p != place);
            }
        }
        for (entry, place) in list.iter().zip(&mut kept).filter(|(_, p)| p.is_none()) {
            *place = held.get_mut(&(entry.digest, entry.length as usize)).and_then(Vec::pop);
        }
        let found = places::arrange(self.region.len(), &lens, &kept);
        for (from, to) in found.moves {
            // SAFETY: nothing is lent, no step reads, and `&mut self` is the only writer.
            unsafe { self.region.shift(from.offset, to, from.len) };
        }
        self.generation += 1;
        self.blocks.clear();
        self.blocks.extend(list.iter().zip(found.places).zip(&kept).map(|((entry, place), kept)| Block {
            digest: entry.digest,
            place,
            whole: kept.is_some(),
            lent: false,
        }));
        (0..list.len() as u32).filter(|&i| self.blocks[i as usize].whole).collect()
    }

    /// Blocks that found no room.
    pub fn homeless(&self) -> usize {
        self.blocks.iter().filter(|b| b.place.is_none()).count()
    }

    /// A table of these blocks, in this order; `id` is no other table's.
    pub fn table(&self, id: u64, blocks: Vec<u32>) -> Table {
        let entries = vec![UnitEntry::ABSENT; blocks.len()];
        Table { blocks, entries, generation: 0, id, _region: Arc::clone(&self.region) }
    }

    /// Brings a table up to date and forbids changes to whole blocks until [`Blocks::end_step`].
    ///
    /// # Errors
    /// So many of its blocks are not whole.
    pub fn begin_step(&mut self, table: &mut Table) -> Result<(), u32> {
        if table.generation != self.generation {
            let mut missing = 0;
            for (entry, &block) in table.entries.iter_mut().zip(&table.blocks) {
                match self.blocks.get(block as usize) {
                    Some(&Block { place: Some(place), whole: true, .. }) => {
                        // SAFETY: whole blocks are not written, and do not move, as long as a step is under way; the table is read
                        // during a step only, and keeps the region alive.
                        let bytes: &'static [u8] = unsafe {
                            let bytes = self.region.slice(place.offset, place.len);
                            core::slice::from_raw_parts(bytes.as_ptr(), bytes.len())
                        };
                        *entry = UnitEntry::new(bytes);
                    }
                    _ => {
                        *entry = UnitEntry::ABSENT;
                        missing += 1;
                    }
                }
            }
            if missing > 0 {
                return Err(missing);
            }
            table.generation = self.generation;
        }
        self.computing = true;
        Ok(())
    }

    /// No core reads blocks any more.
    pub fn end_step(&mut self) {
        self.computing = false;
    }

    /// Changes a byte, for tests of what finds it.
    pub fn flip(&mut self, block: u32, offset: usize) {
        assert!(!self.computing && self.lent == 0, "bytes change only when nobody reads them");
        if let Some(place) = self.blocks.get(block as usize).and_then(|b| b.place).filter(|p| offset < p.len) {
            // SAFETY: nothing is lent, no step reads.
            unsafe {
                let byte = self.region.slice(place.offset + offset, 1)[0];
                self.region.write(place.offset + offset, &[byte ^ 1]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::tests::heap;

    fn blocks() -> Blocks {
        Blocks::new(Arc::new(heap(1 << 16)))
    }

    fn entry(node: u16, byte: u8) -> Entry {
        Entry { layer: 0, node, length: 100, digest: [byte; 32] }
    }

    fn fill(blocks: &mut Blocks, block: u32, byte: u8) {
        blocks.write(block, 0, &[byte; 100]);
        blocks.set_whole(block);
    }

    fn bytes(blocks: &mut Blocks, block: u32) -> Vec<u8> {
        let loan = blocks.lend(block).expect("it has a place");
        let bytes = loan.bytes().to_vec();
        blocks.take_back(loan);
        bytes
    }

    #[test]
    fn whole_and_lent_blocks_are_not_written() {
        let mut blocks = blocks();
        assert_eq!(blocks.arrange(&[entry(0, 1), entry(1, 2)]), []);
        fill(&mut blocks, 0, 7);
        blocks.write(0, 0, &[9; 100]);
        assert_eq!(bytes(&mut blocks, 0), [7; 100]);
        let loan = blocks.lend(1).expect("it has a place");
        assert!(blocks.lend(1).is_none(), "lent once");
        blocks.write(1, 0, &[9; 100]);
        assert_eq!(loan.bytes(), [0; 100]);
        blocks.take_back(loan);
        blocks.write(1, 90, &[9; 11]);
        blocks.write(2, 0, &[9]);
        assert_eq!(bytes(&mut blocks, 1), [0; 100], "beyond the end of a block, or of the list");
        blocks.write(1, 90, &[9; 10]);
        assert_eq!(bytes(&mut blocks, 1)[90..], [9; 10]);
    }

    #[test]
    fn another_list_keeps_whole_blocks_wherever_they_stand_in_it() {
        let mut blocks = blocks();
        blocks.arrange(&[entry(0, 1), entry(1, 2), entry(2, 2), entry(3, 4)]);
        for (block, byte) in [(0, 11), (1, 12), (2, 12)] {
            fill(&mut blocks, block, byte);
        }
        let list = [entry(0, 9), entry(1, 2), entry(2, 4), entry(3, 1), entry(4, 2), entry(5, 2)];
        assert_eq!(blocks.arrange(&list), [1, 3, 4], "two of one digest are two; what had not arrived is not kept");
        for (block, byte) in [(1, 12), (3, 11), (4, 12)] {
            assert_eq!(bytes(&mut blocks, block), [byte; 100]);
        }
        assert_eq!(blocks.arrange(&list), [1, 3, 4], "the same list changes nothing");
        assert_eq!(blocks.homeless(), 0);
    }

    #[test]
    fn a_table_serves_steps_until_one_of_its_blocks_is_damaged() {
        let mut blocks = blocks();
        blocks.arrange(&[entry(0, 1), entry(1, 2)]);
        fill(&mut blocks, 0, 1);
        let mut table = blocks.table(1, vec![0, 1]);
        assert_eq!(blocks.begin_step(&mut table), Err(1));
        assert_eq!((blocks.whole(0), blocks.whole(1)), (Some(&[1; 100][..]), None));
        fill(&mut blocks, 1, 2);
        assert_eq!(blocks.begin_step(&mut table), Ok(()));
        let version = table.version();
        blocks.end_step();
        blocks.damaged(0);
        assert_eq!(blocks.begin_step(&mut table), Err(1));
        assert_eq!((blocks.digest(0), blocks.digest(1)), (None, Some(&[2; 32])));
        blocks.set_whole(0);
        assert_eq!(blocks.begin_step(&mut table), Ok(()));
        assert_ne!(table.version(), version, "entries were made anew");
        blocks.end_step();
        blocks.damaged(0);
        assert_eq!((blocks.next_whole(0), blocks.next_whole(2)), (Some(1), Some(1)));
    }
}
