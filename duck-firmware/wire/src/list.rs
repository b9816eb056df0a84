//! The list of blocks that a session may use: 40 bytes for each, whose blake3 digest, the **root**, the host signs.
//!
//! A block is the weights of one unit in one layer, or a program. A duck holds a block only when its bytes have the digest that the list
//! states, so whoever has not the pond's key can plant nothing.

use core::fmt;
use core::ops::Range;

use kernels::tree::Node;

use crate::bits::Bits;
use crate::field::layout;
use crate::limits::Limits;

/// Most blocks in a list.
pub const MAX_BLOCKS: usize = 1 << 16;
/// The layer of the block that is the kernels' program.
pub const PROGRAM_LAYER: u16 = u16::MAX;
/// Stands for the list itself where a block's number is expected.
pub const LIST: u32 = u32::MAX;

/// Blocks that are held.
pub type Residents = Bits<{ MAX_BLOCKS / 64 }>;

layout! {
    /// One block.
    Entry[40] {
        /// Index of the layer's experts, or [`PROGRAM_LAYER`].
        layer: u16 = 0,
        /// Number of the unit's node in the canonical tree; 0 for the program.
        node: u16 = 2,
        /// Bytes.
        length: u32 = 4,
        /// blake3 of them.
        digest: [u8; 32] = 8,
    }
}

/// Why a list is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListError {
    /// Not a whole number of entries, or too many.
    Length {
        /// Bytes found.
        found: usize,
    },
    /// An entry that does not come after the one before it.
    Order {
        /// Its index.
        index: usize,
    },
    /// An entry that is no unit of the session's model, or is empty.
    Entry {
        /// Its index.
        index: usize,
    },
    /// The program has another digest than the session's, or the session's is missing.
    Program,
}

impl fmt::Display for ListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ListError::Length { found } => {
                write!(
                    f,
                    "list of blocks: expected up to {MAX_BLOCKS} entries of {} bytes, found {found} bytes",
                    Entry::LEN
                )
            }
            ListError::Order { index } => {
                write!(f, "list of blocks, entry {index}: expected a greater layer and node than the entry before")
            }
            ListError::Entry { index } => write!(f, "list of blocks, entry {index}: expected a unit of the model"),
            ListError::Program => write!(f, "list of blocks: expected the session's kernels as its program"),
        }
    }
}

impl core::error::Error for ListError {}

/// A list's bytes.
#[derive(Clone, Copy, Debug)]
pub struct List<'a>(pub &'a [u8]);

impl<'a> List<'a> {
    /// blake3 of all entries.
    pub fn root(&self) -> [u8; 32] {
        *blake3::hash(self.0).as_bytes()
    }

    /// Blocks.
    pub fn len(&self) -> usize {
        self.0.len() / Entry::LEN
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Block `index`.
    pub fn get(&self, index: usize) -> Option<Entry> {
        Entry::parse(self.0.get(index.checked_mul(Entry::LEN)?..)?)
    }

    /// Whether it can be a list of such a session; `program` is the digest that its program must have, if it must have one.
    ///
    /// # Errors
    /// The first entry that is out of order or no unit.
    pub fn check(&self, limits: &Limits, program: Option<[u8; 32]>) -> Result<(), ListError> {
        if !self.0.len().is_multiple_of(Entry::LEN) || self.len() > MAX_BLOCKS {
            return Err(ListError::Length { found: self.0.len() });
        }
        let (shape, mut before, mut found) = (limits.shape(), None, None);
        for index in 0..self.len() {
            let entry = self.get(index).ok_or(ListError::Entry { index })?;
            let key = (entry.layer, entry.node);
            if before.is_some_and(|b| b >= key) {
                return Err(ListError::Order { index });
            }
            before = Some(key);
            let unit =
                || entry.layer < limits.layers && shape.node(entry.node).is_some_and(|n| n.unit_count(shape) == 1);
            if entry.layer == PROGRAM_LAYER && entry.node == 0 {
                found = Some(entry.digest);
            } else if !unit() {
                return Err(ListError::Entry { index });
            }
            if entry.length == 0 {
                return Err(ListError::Entry { index });
            }
        }
        if found.is_some() && found != program || program.is_some() && found.is_none() {
            return Err(ListError::Program);
        }
        Ok(())
    }

    /// The blocks of a layer.
    pub fn layer(&self, layer: u16) -> Range<usize> {
        let first = |layer: u32| {
            let (mut low, mut high) = (0, self.len());
            while low < high {
                let middle = low.midpoint(high);
                match self.get(middle) {
                    Some(e) if u32::from(e.layer) < layer => low = middle + 1,
                    _ => high = middle,
                }
            }
            low
        };
        first(layer.into())..first(u32::from(layer) + 1)
    }

    /// How many of the units below `node` are missing, in one layer.
    pub fn missing_in(&self, limits: &Limits, layer: u16, node: Node, residents: &Residents) -> u32 {
        let shape = limits.shape();
        let held = self.layer(layer).filter(|&i| {
            residents.has(i) && {
                let unit = self.get(i).and_then(|e| shape.node(e.node));
                unit.is_some_and(|u| node.covers(u))
            }
        });
        node.unit_count(shape).saturating_sub(held.count() as u32)
    }

    /// How many of the units below `node` are missing, in all layers.
    pub fn missing(&self, limits: &Limits, node: Node, residents: &Residents) -> u32 {
        (0..limits.layers).fold(0, |sum: u32, l| sum.saturating_add(self.missing_in(limits, l, node, residents)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Mode;
    use std::vec::Vec;

    fn limits() -> Limits {
        Limits {
            hidden: 64,
            layers: 3,
            slices: 2,
            experts: 4,
            chosen: 2,
            lanes: 4,
            nodes: 3,
            mode: Mode::Exact,
            format: 0,
            step_chunk: 64,
            load_chunk: 64,
        }
    }

    fn entries() -> Vec<Entry> {
        let shape = limits().shape();
        let mut all: Vec<Entry> = (0..3)
            .flat_map(|layer| (0..4).map(move |e| (layer, shape.unit(1, e).index(shape))))
            .map(|(layer, node)| Entry { layer, node, length: 10, digest: [node as u8; 32] })
            .collect();
        all.sort_by_key(|e| (e.layer, e.node));
        all.push(Entry { layer: PROGRAM_LAYER, node: 0, length: 5, digest: [9; 32] });
        all
    }

    fn bytes(entries: &[Entry]) -> Vec<u8> {
        entries.iter().flat_map(Entry::emit).collect()
    }

    #[test]
    fn a_list_is_in_order_of_units_and_ends_with_the_program() {
        let good = entries();
        let check = |entries: &[Entry], program| List(&bytes(entries)).check(&limits(), program);
        assert_eq!(check(&good, Some([9; 32])), Ok(()));
        assert_eq!(check(&good, Some([8; 32])), Err(ListError::Program));
        assert_eq!(check(&good, None), Err(ListError::Program));
        assert_eq!(check(&good[..12], None), Ok(()));
        assert_eq!(check(&good[..12], Some([9; 32])), Err(ListError::Program));
        assert_eq!(List(&bytes(&good)[..30]).check(&limits(), None), Err(ListError::Length { found: 30 }));
        let mut twice = good.clone();
        twice[1] = twice[0];
        assert_eq!(check(&twice, Some([9; 32])), Err(ListError::Order { index: 1 }));
        for wrong in [
            Entry { layer: 3, ..good[11] },
            Entry { node: 0, ..good[0] },
            Entry { node: 999, ..good[11] },
            Entry { length: 0, ..good[0] },
        ] {
            let mut list = good[..12].to_vec();
            let at = if wrong.layer == 3 || wrong.node == 999 { 11 } else { 0 };
            list[at] = wrong;
            assert_eq!(check(&list, None), Err(ListError::Entry { index: at }));
        }
    }

    #[test]
    fn missing_units_are_counted_below_a_node() {
        let (limits, bytes) = (limits(), bytes(&entries()));
        let (list, shape) = (List(&bytes), limits.shape());
        assert_eq!((list.layer(0), list.layer(2), list.layer(9)), (0..4, 8..12, 12..12));
        let right = Node { slice: 1, slices: 1, depth: 0, residue: 0 };
        let odd = Node { slice: 1, slices: 1, depth: 1, residue: 1 };
        let mut held = Residents::below(12);
        assert_eq!(list.missing(&limits, right, &held), 0);
        assert_eq!(list.missing(&limits, shape.root(), &held), 12, "the left slice is not in the list");
        held.remove(4);
        let lost = shape.node(list.get(4).expect("there").node).expect("a unit");
        assert_eq!(list.missing(&limits, right, &held), 1);
        assert_eq!(list.missing(&limits, odd, &held), u32::from(odd.covers(lost)));
        assert_eq!((list.missing_in(&limits, 1, right, &held), list.missing_in(&limits, 0, right, &held)), (1, 0));
    }
}
