//! Arithmetic of physical memory: what is free, what the supervisor takes, how the rest is cut into large pages.

use arrayvec::ArrayVec;

/// Bytes of a page of each size.
pub const SMALL: u64 = 4 << 10;
/// A page-directory entry's.
pub const LARGE: u64 = 2 << 20;
/// A page-directory-pointer entry's.
pub const HUGE: u64 = 1 << 30;
/// Most areas that are kept; a machine has a few dozen at most, and what is beyond is left unused.
pub const MOST: usize = 128;

/// Physical addresses `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// First byte.
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

impl Area {
    /// `len` bytes from `start`, cut at the end of the address space.
    pub fn new(start: u64, len: u64) -> Area {
        Area { start, end: start.saturating_add(len) }
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.end <= self.start
    }

    /// The part that starts and ends at multiples of `page`.
    pub fn inside(&self, page: u64) -> Area {
        let start = self.start.checked_next_multiple_of(page).unwrap_or(u64::MAX);
        Area { start, end: (self.end / page * page).max(start) }
    }
}

/// Free memory: areas in order that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Areas(ArrayVec<Area, MOST>);

impl Areas {
    /// What a memory map calls usable, less what it calls anything else: maps may overlap.
    pub fn new(map: impl Iterator<Item = (Area, bool)> + Clone) -> Areas {
        let mut areas = Areas::default();
        map.clone().filter(|(_, usable)| *usable).for_each(|(area, _)| areas.add(area));
        map.filter(|(_, usable)| !*usable).for_each(|(area, _)| areas.remove(area));
        areas
    }

    /// The areas.
    pub fn iter(&self) -> impl Iterator<Item = Area> + '_ {
        self.0.iter().copied()
    }

    /// Bytes in all.
    pub fn len(&self) -> u64 {
        self.iter().map(|a| a.len()).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, area: Area) {
        if area.is_empty() {
            return;
        }
        let mut merged = area;
        self.0.retain(|a| {
            let touches = a.start <= merged.end && merged.start <= a.end;
            if touches {
                merged = Area { start: merged.start.min(a.start), end: merged.end.max(a.end) };
            }
            !touches
        });
        let at = self.0.iter().position(|a| a.start > merged.start).unwrap_or(self.0.len());
        // What finds no place is lost memory, not an error.
        let _ = self.0.try_insert(at, merged);
    }

    /// Takes an area out, wherever it is.
    pub fn remove(&mut self, area: Area) {
        if area.is_empty() {
            return;
        }
        let old = core::mem::take(&mut self.0);
        for a in old {
            let (before, after) =
                (Area { end: a.end.min(area.start), ..a }, Area { start: a.start.max(area.end), ..a });
            for part in [before, after] {
                if !part.is_empty() {
                    let _ = self.0.try_push(part);
                }
            }
        }
    }

    /// Takes `len` bytes at a multiple of `align` below `limit`, the lowest there are.
    pub fn take(&mut self, len: u64, align: u64, limit: u64) -> Option<Area> {
        let found = self.iter().find_map(|a| {
            let start = a.start.checked_next_multiple_of(align)?;
            let end = start.checked_add(len)?;
            (end <= a.end.min(limit)).then_some(Area { start, end })
        })?;
        self.remove(found);
        Some(found)
    }

    /// The same memory as whole pages of [`LARGE`], those that make up whole pages of [`HUGE`] first, so that laid one after the other
    /// from a multiple of [`HUGE`] on they can be mapped by those.
    pub fn pages(&self) -> impl Iterator<Item = Area> + '_ {
        let huge = self.iter().map(|a| a.inside(HUGE)).filter(|a| !a.is_empty());
        let rest = self.iter().flat_map(|a| {
            let (whole, huge) = (a.inside(LARGE), a.inside(HUGE));
            match huge.is_empty() {
                true => [whole, Area { start: 0, end: 0 }],
                false => [Area { end: huge.start, ..whole }, Area { start: huge.end, ..whole }],
            }
        });
        huge.chain(rest.filter(|a| !a.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn areas(list: &[(u64, u64, bool)]) -> Areas {
        Areas::new(list.iter().map(|&(start, end, usable)| (Area { start, end }, usable)))
    }

    #[test]
    fn what_overlaps_a_reserved_area_is_not_free() {
        let found = areas(&[(0, 100, true), (50, 200, true), (80, 120, false), (200, 300, true), (7, 7, true)]);
        let found: Vec<_> = found.iter().map(|a| (a.start, a.end)).collect();
        assert_eq!(found, [(0, 80), (120, 300)]);
    }

    #[test]
    fn memory_is_taken_from_the_lowest_place_that_fits() {
        let mut free = areas(&[(100, 200, true), (1_000, 5_000, true)]);
        assert_eq!(free.take(150, 64, u64::MAX), Some(Area { start: 1_024, end: 1_174 }));
        assert_eq!(free.take(64, 64, u64::MAX), Some(Area { start: 128, end: 192 }));
        assert_eq!(free.take(64, 64, 1_100), None, "no room below the limit");
        assert_eq!(free.len(), 100 - 64 + 4_000 - 150);
    }

    #[test]
    fn huge_pages_come_first() {
        let free = areas(&[(LARGE / 2, 3 * LARGE, true), (HUGE - LARGE, 3 * HUGE + LARGE + 5, true)]);
        let pages: Vec<_> = free.pages().map(|a| (a.start, a.end)).collect();
        let rest = [(LARGE, 3 * LARGE), (HUGE - LARGE, HUGE), (3 * HUGE, 3 * HUGE + LARGE)];
        assert_eq!(pages, [&[(HUGE, 3 * HUGE)], &rest[..]].concat());
    }

    proptest! {
        #[test]
        fn areas_never_touch_and_pages_cover_nothing_twice(
            list in prop::collection::vec((0u64..1 << 34, 0u64..1 << 32, any::<bool>()), 0..40),
        ) {
            let free = Areas::new(list.iter().map(|&(start, len, usable)| (Area::new(start, len), usable)));
            let all: Vec<_> = free.iter().collect();
            prop_assert!(all.iter().all(|a| !a.is_empty()) && all.windows(2).all(|w| w[0].end < w[1].start));
            for &(start, len, usable) in &list {
                prop_assert!(usable || all.iter().all(|a| a.end <= start || a.start >= start + len || len == 0));
            }
            let mut pages: Vec<_> = free.pages().collect();
            pages.sort_by_key(|a| a.start);
            prop_assert!(pages.windows(2).all(|w| w[0].end <= w[1].start));
            prop_assert!(pages.iter().all(|p| p.start % LARGE == 0 && p.end % LARGE == 0
                && all.iter().any(|a| a.start <= p.start && p.end <= a.end)));
            prop_assert_eq!(pages.iter().map(Area::len).sum::<u64>(), all.iter().map(|a| a.inside(LARGE).len()).sum::<u64>());
        }
    }
}
