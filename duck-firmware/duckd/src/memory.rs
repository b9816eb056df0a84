//! Memory from the system: mappings that stay where they are, on large pages and locked if they can be.
#![allow(unsafe_code)] // the mappings themselves

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;

use node::Region;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous, munmap};

use crate::error::DuckError;
use crate::options::HugePages;

/// What transparent huge pages want memory to be aligned to.
const LARGE: usize = 2 << 20;
/// The other size of x86-64.
const HUGE: usize = 1 << 30;

/// A mapping, undone when dropped.
struct Mapping {
    at: NonNull<c_void>,
    len: usize,
}

// SAFETY: an address that is used only to undo the mapping.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and belongs to a region that is dropped with it.
        let _ = unsafe { munmap(self.at.as_ptr(), self.len) };
    }
}

/// Zeroes, and whether the system reserved large pages for them. `len` bytes, or less where whole large pages are fewer.
pub(crate) fn region(len: usize, pages: HugePages) -> Result<(Region, bool), DuckError> {
    let mut refused = io::Error::from(io::ErrorKind::OutOfMemory);
    for (page, flag) in [(HUGE, MapFlags::HUGE_1GB), (LARGE, MapFlags::HUGE_2MB)] {
        let whole = len / page * page;
        if pages == HugePages::Off || whole == 0 {
            continue;
        }
        match map(whole, MapFlags::PRIVATE | MapFlags::HUGETLB | flag) {
            // SAFETY: a new mapping, zeroed and aligned to its pages, that its owner undoes.
            Ok(map) => return Ok((unsafe { Region::from_raw(map.at.cast(), whole, Some(Box::new(map))) }, true)),
            Err(error) => refused = error,
        }
    }
    if pages == HugePages::Require {
        return Err(DuckError::HugePages { bytes: len, cause: refused });
    }
    let map =
        map(len.saturating_add(LARGE), MapFlags::PRIVATE).map_err(|cause| DuckError::Memory { bytes: len, cause })?;
    let skip = (map.at.as_ptr() as usize).wrapping_neg() % LARGE;
    // SAFETY: `skip` is below the `LARGE` bytes that were mapped beyond `len`.
    let base = unsafe { map.at.cast::<u8>().add(skip) };
    if pages != HugePages::Off {
        // SAFETY: inside the mapping. A system without transparent huge pages refuses, and small ones do.
        let _ = unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxHugepage) };
    }
    // SAFETY: inside a new mapping, zeroed, that its owner undoes.
    Ok((unsafe { Region::from_raw(base, len, Some(Box::new(map))) }, false))
}

/// Keeps a region in memory, which also brings all of it there.
pub(crate) fn lock(region: &Region) -> io::Result<()> {
    // SAFETY: the region's own bytes.
    Ok(unsafe { mlock(region.base().as_ptr().cast(), region.len()) }?)
}

fn map(len: usize, flags: MapFlags) -> io::Result<Mapping> {
    // SAFETY: a new anonymous mapping where the system likes.
    let map = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
    let at = NonNull::new(map).ok_or(io::ErrorKind::OutOfMemory)?;
    Ok(Mapping { at, len })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_aligned_zeroed_and_large_enough() {
        for pages in [HugePages::Off, HugePages::Auto] {
            let (region, _) = region(5 << 20, pages).expect("five megabytes");
            let base = region.base().as_ptr();
            assert!((base as usize).is_multiple_of(LARGE) && region.len() >= 4 << 20);
            for offset in [0, region.len() - 1] {
                // SAFETY: inside the region, which nobody else has.
                unsafe {
                    let byte = base.add(offset);
                    assert_eq!(byte.read(), 0);
                    byte.write(1);
                }
            }
        }
    }
}
