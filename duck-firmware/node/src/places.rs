//! Where blocks lie in memory: pure arithmetic.
//!
//! Blocks that are kept stay where they are and new ones fill the gaps, first fit. A model's blocks have one length, so gaps are whole
//! places and this never fails; for a list of mixed lengths kept blocks are moved together when a new one finds no gap.

use alloc::vec;
use alloc::vec::Vec;

/// What places start at a multiple of: the kernels read blocks in place.
pub(crate) const ALIGN: usize = kernels::unit::ALIGN;
/// Gaps that are tried for a block before kept ones are moved together.
const TRIES: usize = 16;

/// Some bytes of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub offset: usize,
    pub len: usize,
}

impl Place {
    fn end(&self) -> usize {
        self.offset + room(self.len)
    }
}

/// Bytes that a block takes, up to where another may start.
fn room(len: usize) -> usize {
    len.next_multiple_of(ALIGN)
}

/// How a list's blocks come to lie.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Arrangement {
    /// By block; `None` where there is no room.
    pub places: Vec<Option<Place>>,
    /// From, to: in this order, each towards the start.
    pub moves: Vec<(Place, usize)>,
}

/// Finds places in `capacity` bytes for blocks of `lens` bytes; `kept` is a block's present place, if it has one. Kept places do not overlap.
pub(crate) fn arrange(capacity: usize, lens: &[usize], kept: &[Option<Place>]) -> Arrangement {
    let mut order: Vec<(usize, Place)> = kept.iter().enumerate().filter_map(|(i, k)| Some((i, (*k)?))).collect();
    order.sort_unstable_by_key(|(_, place)| place.offset);
    if let Some(places) = fill_gaps(capacity, lens, kept, &order) {
        return Arrangement { places, moves: Vec::new() };
    }
    let (mut places, mut moves, mut end) = (vec![None; lens.len()], Vec::new(), 0);
    for (index, place) in order {
        if place.offset != end {
            moves.push((place, end));
        }
        let place = Place { offset: end, ..place };
        places[index] = Some(place);
        end = place.end();
    }
    for (place, &len) in places.iter_mut().zip(lens).filter(|(p, _)| p.is_none()) {
        if room(len) <= capacity.saturating_sub(end) {
            *place = Some(Place { offset: end, len });
            end += room(len);
        }
    }
    Arrangement { places, moves }
}

/// Places that leave every kept block where it is; `None` when some new one finds no gap.
fn fill_gaps(
    capacity: usize,
    lens: &[usize],
    kept: &[Option<Place>],
    order: &[(usize, Place)],
) -> Option<Vec<Option<Place>>> {
    let ends = order.iter().map(|(_, p)| p.end()).chain([capacity]);
    let starts = order.iter().map(|(_, p)| p.offset).chain([capacity]);
    let mut gaps: Vec<(usize, usize)> =
        core::iter::once(0).chain(ends).zip(starts).filter(|(start, end)| start < end).collect();
    let (mut places, mut first) = (kept.to_vec(), 0);
    for (place, &len) in places.iter_mut().zip(lens).filter(|(p, _)| p.is_none()) {
        while gaps.get(first).is_some_and(|(start, end)| start >= end) {
            first += 1;
        }
        let gap = gaps[first..].iter_mut().take(TRIES).find(|(start, end)| room(len) <= end.saturating_sub(*start))?;
        *place = Some(Place { offset: gap.0, len });
        gap.0 += room(len);
    }
    Some(places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(offset: usize, len: usize) -> Option<Place> {
        Some(Place { offset, len })
    }

    #[test]
    fn new_blocks_of_one_length_fill_the_gaps_and_nothing_moves() {
        let kept = [None, place(128, 128), None, place(512, 128), None];
        let found = arrange(640, &[128; 5], &kept);
        assert_eq!(found.moves, []);
        assert_eq!(found.places, [place(0, 128), place(128, 128), place(256, 128), place(512, 128), place(384, 128)]);
    }

    #[test]
    fn kept_blocks_move_together_when_a_new_one_finds_no_gap() {
        let found = arrange(384, &[64, 64, 200], &[place(64, 64), place(320, 64), None]);
        assert_eq!(found.moves, [(Place { offset: 64, len: 64 }, 0), (Place { offset: 320, len: 64 }, 64)]);
        assert_eq!(found.places, [place(0, 64), place(64, 64), place(128, 200)]);
        assert_eq!(arrange(128, &[64, 100], &[place(0, 64), None]).places, [place(0, 64), None], "too much");
    }

    proptest! {
        #[test]
        fn places_never_overlap_and_all_blocks_fit_that_can(
            lens in prop::collection::vec((1usize..2_000, any::<bool>(), 0usize..300), 0..60),
            spare in 0usize..500,
        ) {
            // A first arrangement with holes, of which some blocks are kept.
            let mut at = 0;
            let mut kept = Vec::new();
            for &(len, keep, hole) in &lens {
                kept.push(keep.then_some(Place { offset: at, len }));
                at += room(len) + hole / ALIGN * ALIGN;
            }
            let lens: Vec<usize> = lens.iter().map(|l| l.0).collect();
            let capacity = at + spare;
            let found = arrange(capacity, &lens, &kept);
            let mut taken: Vec<Place> = found.places.iter().map(|p| p.expect("there is room")).collect();
            for ((place, &len), was) in taken.iter().zip(&lens).zip(&kept) {
                prop_assert_eq!(place.len, len);
                prop_assert!(place.offset.is_multiple_of(ALIGN) && place.offset + len <= capacity);
                let moved = found.moves.iter().any(|(from, to)| Some(*from) == *was && *to == place.offset);
                prop_assert!(was.is_none_or(|was| was == *place || moved));
            }
            taken.sort_by_key(|p| p.offset);
            prop_assert!(taken.windows(2).all(|w| w[0].end() <= w[1].offset));
            prop_assert!(found.moves.iter().all(|(from, to)| *to < from.offset));
            prop_assert!(found.moves.windows(2).all(|w| w[0].0.end() <= w[1].0.offset));
        }
    }
}
