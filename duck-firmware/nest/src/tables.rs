//! Page tables, as numbers in frames of physical memory.
//!
//! The layout of every address space, supervisor's and sessions' alike:
//!
//! | slot (512 GiB) | what | who |
//! |---|---|---|
//! | 0 | physical memory as it lies | supervisor |
//! | 1 | the kernels' program, its stacks, its table | ring 3, in sessions only |
//! | 2 | device registers, uncached | supervisor |
//! | 3 | memory for blocks, to be read | ring 3 |
//! | 4 | the same memory, to be written | supervisor |
//! | 5 | what kernels and supervisor share | ring 3 |
//!
//! Slots 3 and 4 lay physical memory out without gaps, in pages of 1 GiB where they can and 2 MiB elsewhere.

use crate::areas::{Area, HUGE, LARGE, SMALL};

/// Bytes of a slot.
pub const SLOT: u64 = 512 << 30;
/// Registers.
pub const DEVICES: u64 = 2 * SLOT;
/// Blocks as the kernels see them.
pub const BLOCKS: u64 = 3 * SLOT;
/// Blocks as the supervisor writes them.
pub const BLOCKS_WRITABLE: u64 = 4 * SLOT;
/// Memory of steps.
pub const SHARED: u64 = 5 * SLOT;

const _: () = assert!(kernels::program::PROGRAM_BASE == SLOT, "programs have slot 1");

const PRESENT: u64 = 1;
const WRITE: u64 = 2;
const USER: u64 = 4;
const UNCACHED: u64 = 1 << 3 | 1 << 4;
const BIG: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// What a page may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Supervisor: code.
    Code,
    /// Supervisor: constants.
    Constants,
    /// Supervisor: data.
    Data,
    /// Supervisor: registers.
    Registers,
    /// Ring 3: code.
    UserCode,
    /// Ring 3: constants.
    UserConstants,
    /// Ring 3: data.
    UserData,
}

impl Use {
    fn bits(self) -> u64 {
        PRESENT
            | match self {
                Use::Code => 0,
                Use::Constants => NO_EXECUTE,
                Use::Data => WRITE | NO_EXECUTE,
                Use::Registers => WRITE | NO_EXECUTE | UNCACHED,
                Use::UserCode => USER,
                Use::UserConstants => USER | NO_EXECUTE,
                Use::UserData => USER | WRITE | NO_EXECUTE,
            }
    }
}

/// Where tables live.
pub trait Frames {
    /// A zeroed frame of 4 KiB, by its physical address.
    fn allocate(&mut self) -> Option<u64>;
    /// An entry of the table in the frame at `frame`.
    fn entry(&mut self, frame: u64, index: usize) -> &mut u64;
}

/// No frames are left, or something is mapped there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// No frames.
    Full,
    /// In the way.
    Taken,
}

/// An address space, by the frame of its topmost table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space(pub u64);

impl Space {
    /// An empty one.
    pub fn new(frames: &mut impl Frames) -> Result<Space, MapError> {
        frames.allocate().map(Space).ok_or(MapError::Full)
    }

    /// Shares all of another's slots from `first` to before `end`.
    pub fn share(self, other: Space, slots: core::ops::Range<usize>, frames: &mut impl Frames) {
        for slot in slots {
            *frames.entry(self.0, slot) = *frames.entry(other.0, slot);
        }
    }

    /// Maps physical memory from the virtual address on, by the largest pages that fit. Both are multiples of [`SMALL`]. `huge`: the
    /// processor has pages of 1 GiB.
    ///
    /// # Errors
    /// No frames are left, or something is mapped there.
    pub fn map(self, at: u64, memory: Area, how: Use, huge: bool, frames: &mut impl Frames) -> Result<(), MapError> {
        let (mut at, mut physical) = (at, memory.start);
        while physical < memory.end {
            let fits =
                |page: u64| at.is_multiple_of(page) && physical.is_multiple_of(page) && memory.end - physical >= page;
            let (page, level) = match (huge && fits(HUGE), fits(LARGE)) {
                (true, _) => (HUGE, 2),
                (false, true) => (LARGE, 1),
                (false, false) => (SMALL, 0),
            };
            let mut frame = self.0;
            for above in (level + 1..4).rev() {
                frame = self.next(frame, index(at, above), frames)?;
            }
            let entry = frames.entry(frame, index(at, level));
            if *entry & PRESENT != 0 {
                return Err(MapError::Taken);
            }
            *entry = physical | how.bits() | if level > 0 { BIG } else { 0 };
            at += page;
            physical += page;
        }
        Ok(())
    }

    /// The table below an entry, made if there is none. What may be done with a page is decided at the page alone.
    fn next(self, frame: u64, index: usize, frames: &mut impl Frames) -> Result<u64, MapError> {
        let entry = *frames.entry(frame, index);
        if entry & PRESENT == 0 {
            let new = frames.allocate().ok_or(MapError::Full)?;
            *frames.entry(frame, index) = new | PRESENT | WRITE | USER;
            return Ok(new);
        }
        if entry & BIG != 0 { Err(MapError::Taken) } else { Ok(entry & ADDRESS) }
    }

    /// Where a virtual address leads: physical address, and whether ring 3 may read, write and execute it.
    pub fn look(self, at: u64, frames: &mut impl Frames) -> Option<(u64, [bool; 3])> {
        let mut frame = self.0;
        for level in (0..4).rev() {
            let entry = *frames.entry(frame, index(at, level));
            if entry & PRESENT == 0 {
                return None;
            }
            let page = SMALL << (9 * level);
            if level == 0 || entry & BIG != 0 {
                let user = entry & USER != 0;
                let rights = [user, user && entry & WRITE != 0, user && entry & NO_EXECUTE == 0];
                return Some(((entry & ADDRESS & !(page - 1)) | at & (page - 1), rights));
            }
            frame = entry & ADDRESS;
        }
        None
    }
}

fn index(at: u64, level: u32) -> usize {
    (at >> (12 + 9 * level)) as usize & 511
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::areas::Areas;
    use kernels::program::PROGRAM_BASE as PROGRAM;

    struct Model {
        frames: Vec<[u64; 512]>,
        most: usize,
    }

    impl Frames for Model {
        fn allocate(&mut self) -> Option<u64> {
            if self.frames.len() == self.most {
                return None;
            }
            self.frames.push([0; 512]);
            Some(self.frames.len() as u64 * SMALL)
        }

        fn entry(&mut self, frame: u64, index: usize) -> &mut u64 {
            &mut self.frames[(frame / SMALL) as usize - 1][index]
        }
    }

    fn model() -> Model {
        Model { frames: Vec::new(), most: 64 }
    }

    #[test]
    fn memory_with_holes_is_laid_out_without_and_by_large_pages() {
        let list = [
            (Area { start: 3 * LARGE + 5, end: 2 * HUGE + LARGE }, true),
            (Area { start: 4 * HUGE, end: 6 * HUGE }, true),
        ];
        let areas = Areas::new(list.into_iter());
        let frames = &mut model();
        let space = Space::new(frames).expect("there is room");
        let mut at = BLOCKS;
        for area in areas.pages() {
            space.map(at, area, Use::UserConstants, true, frames).expect("there is room");
            at += area.len();
        }
        assert_eq!(at - BLOCKS, areas.iter().map(|a| a.inside(LARGE).len()).sum::<u64>());
        let mut look = |offset: u64| space.look(BLOCKS + offset, frames).map(|(physical, _)| physical);
        assert_eq!(look(0), Some(HUGE), "huge pages first");
        assert_eq!((look(HUGE), look(3 * HUGE - 1)), (Some(4 * HUGE), Some(6 * HUGE - 1)));
        assert_eq!(look(3 * HUGE + 7), Some(4 * LARGE + 7));
        assert_eq!(look(at - BLOCKS), None);
        assert_eq!(
            frames.frames.len(),
            1 + 1 + 1,
            "three huge pages need no tables of their own, and the rest shares one"
        );
    }

    #[test]
    fn rights_are_those_asked_for_and_nothing_is_mapped_twice() {
        let frames = &mut model();
        let space = Space::new(frames).expect("there is room");
        let page = |n: u64| Area::new(n * SMALL, SMALL);
        for (n, how) in [Use::Data, Use::UserCode, Use::UserConstants, Use::UserData].into_iter().enumerate() {
            space.map(PROGRAM + n as u64 * SMALL, page(n as u64), how, true, frames).expect("there is room");
        }
        let rights: Vec<_> =
            (0..4).filter_map(|n| space.look(PROGRAM + n * SMALL + 1, frames)).map(|(_, r)| r).collect();
        assert_eq!(rights, [[false; 3], [true, false, true], [true, false, false], [true, true, false]]);
        assert_eq!(space.map(PROGRAM, page(9), Use::Code, true, frames), Err(MapError::Taken));
        frames.most = frames.frames.len();
        assert_eq!(space.map(SHARED, page(9), Use::Code, true, frames), Err(MapError::Full));
        let other = Space(frames.frames.len() as u64 * SMALL);
        assert_ne!(other, space);
    }

    #[test]
    fn a_session_shares_slots_and_keeps_its_own() {
        let frames = &mut model();
        let own = Space::new(frames).expect("there is room");
        own.map(BLOCKS, Area::new(HUGE, HUGE), Use::UserConstants, false, frames).expect("there is room");
        let session = Space::new(frames).expect("there is room");
        session.share(own, 2..6, frames);
        session.map(PROGRAM, Area::new(0, SMALL), Use::UserCode, true, frames).expect("there is room");
        assert_eq!(session.look(BLOCKS + 5, frames), Some((HUGE + 5, [true, false, false])));
        assert_eq!(own.look(PROGRAM, frames), None);
    }
}
