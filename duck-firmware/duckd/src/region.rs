//! Memory from the system: one mapping that stays where it is, on large pages and locked if it can be.
//!
//! A [`Region`] hands out bytes by raw means; who may read or write which of them when is its owners' affair: `blocks` for the weights,
//! `results` for sums.
#![allow(unsafe_code)] // the mapping itself, and access to it

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous, munmap};

use crate::error::DuckError;
use crate::options::HugePages;

/// What transparent huge pages want memory to be aligned to.
const LARGE: usize = 2 << 20;
/// The other size of x86-64.
const HUGE: usize = 1 << 30;

/// A mapping, zeroed at first.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    len: usize,
    map: NonNull<c_void>,
    map_len: usize,
    /// Bytes of a page, when the system reserved large ones for it.
    huge: Option<usize>,
}

// SAFETY: plain memory; see the module's documentation for who may touch what.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// `len` bytes, or less where whole large pages are fewer.
    pub fn new(len: usize, pages: HugePages) -> Result<Region, DuckError> {
        let mut refused = io::Error::from(io::ErrorKind::OutOfMemory);
        for (page, flag) in [(HUGE, MapFlags::HUGE_1GB), (LARGE, MapFlags::HUGE_2MB)] {
            let whole = len / page * page;
            if pages == HugePages::Off || whole == 0 {
                continue;
            }
            match map(whole, MapFlags::PRIVATE | MapFlags::HUGETLB | flag) {
                Ok(map) => return Ok(Region { base: map.cast(), len: whole, map, map_len: whole, huge: Some(page) }),
                Err(error) => refused = error,
            }
        }
        if pages == HugePages::Require {
            return Err(DuckError::HugePages { bytes: len, cause: refused });
        }
        let map_len = len.saturating_add(LARGE);
        let map = map(map_len, MapFlags::PRIVATE).map_err(|cause| DuckError::Memory { bytes: len, cause })?;
        let skip = (map.as_ptr() as usize).wrapping_neg() % LARGE;
        // SAFETY: `skip` is below the `LARGE` bytes that were mapped beyond `len`.
        let base = unsafe { map.cast::<u8>().add(skip) };
        if pages != HugePages::Off {
            // SAFETY: inside the mapping. A system without transparent huge pages refuses, and small ones do.
            let _ = unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxHugepage) };
        }
        Ok(Region { base, len, map, map_len, huge: None })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of a page, when the system reserved large ones.
    pub fn huge(&self) -> Option<usize> {
        self.huge
    }

    /// Keeps it in memory, which also brings all of it there.
    pub fn lock(&self) -> io::Result<()> {
        // SAFETY: the mapping's own bytes.
        Ok(unsafe { mlock(self.base.as_ptr().cast(), self.len) }?)
    }

    /// The byte at `offset`, from which `len` bytes are inside.
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.len && len <= self.len - offset, "places lie inside the region");
        // SAFETY: just checked.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// # Safety
    /// Nobody writes these bytes as long as the slice is used.
    pub unsafe fn slice(&self, offset: usize, len: usize) -> &[u8] {
        // SAFETY: inside the mapping, which is initialised; the rest is promised.
        unsafe { std::slice::from_raw_parts(self.at(offset, len), len) }
    }

    /// # Safety
    /// Nobody else uses these bytes as long as the slice is used, but for reading floats that are not written any more.
    #[allow(clippy::mut_from_ref)] // the region's owners see to it that slices do not overlap
    pub unsafe fn floats_mut(&self, offset: usize, count: usize) -> &mut [f32] {
        assert!(offset.is_multiple_of(align_of::<f32>()), "floats are aligned");
        // SAFETY: inside the mapping and aligned, since its base is; any bits are floats; the rest is promised.
        unsafe { std::slice::from_raw_parts_mut(self.at(offset, count * size_of::<f32>()).cast(), count) }
    }

    /// # Safety
    /// Nobody else uses the `bytes.len()` bytes from `offset` on meanwhile.
    pub unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: inside the mapping; `bytes` is another's memory, since slices of this one are not written to.
        unsafe { self.at(offset, bytes.len()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// # Safety
    /// Nobody else writes the `out.len()` bytes from `offset` on meanwhile.
    pub unsafe fn read(&self, offset: usize, out: &mut [u8]) {
        // SAFETY: as in `write`.
        unsafe { self.at(offset, out.len()).copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) }
    }

    /// Moves bytes; the two places may overlap.
    ///
    /// # Safety
    /// Nobody else uses either place meanwhile.
    pub unsafe fn shift(&self, from: usize, to: usize, len: usize) {
        // SAFETY: both inside the mapping; the rest is promised.
        unsafe { self.at(from, len).copy_to(self.at(to, len), len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own; slices of it do not outlive it.
        let _ = unsafe { munmap(self.map.as_ptr(), self.map_len) };
    }
}

fn map(len: usize, flags: MapFlags) -> io::Result<NonNull<c_void>> {
    // SAFETY: a new anonymous mapping where the system likes.
    let map = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
    NonNull::new(map).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_aligned_zeroed_and_keeps_what_is_written() {
        for pages in [HugePages::Off, HugePages::Auto] {
            let region = Region::new(5 << 20, pages).expect("five megabytes");
            assert!((region.base.as_ptr() as usize).is_multiple_of(LARGE) && region.len() >= 4 << 20);
            // SAFETY: nobody else has this region.
            unsafe {
                region.write(64, b"quack");
                region.shift(64, 66, 5);
                assert_eq!(region.slice(62, 10), b"\0\0ququack\0");
                region.floats_mut(128, 1)[0] = 1.0;
                let mut out = [0; 4];
                region.read(128, &mut out);
                assert_eq!(out, 1f32.to_le_bytes());
            }
        }
    }

    #[test]
    #[should_panic(expected = "inside the region")]
    fn a_place_outside_is_our_own_mistake() {
        let region = Region::new(1 << 20, HugePages::Off).expect("a megabyte");
        // SAFETY: nobody else has this region.
        unsafe { region.write((1 << 20) - 2, b"long") };
    }
}
