//! Memory that stays where it is: weights, sums, and what else the kernels touch.
//!
//! A [`Region`] hands out bytes by raw means; who may read or write which of them when is its owners' affair: `blocks` for the weights,
//! `results` for sums, `shared` for the rest. Where the memory comes from is the surroundings' affair.
#![allow(unsafe_code)] // access to raw memory

use alloc::boxed::Box;
use core::any::Any;
use core::ptr::NonNull;

/// Initialised memory at a fixed place.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    /// Where the same memory is written; mostly the same place.
    writable: NonNull<u8>,
    len: usize,
    /// Gives the memory back when dropped.
    _owner: Option<Box<dyn Any + Send + Sync>>,
}

// SAFETY: plain memory; see the module's documentation for who may touch what.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// `len` bytes from `base` on. `owner` is dropped with the region, and may give the memory back.
    ///
    /// # Safety
    /// The bytes are mapped, initialised and readable and writable at this place until `owner` is dropped, for ever without one, and nobody
    /// else uses them. `base` is a multiple of 64, and `len` no more than `isize::MAX`.
    pub unsafe fn from_raw(base: NonNull<u8>, len: usize, owner: Option<Box<dyn Any + Send + Sync>>) -> Region {
        Region { base, writable: base, len, _owner: owner }
    }

    /// The same memory, written elsewhere: at `base` it may then be mapped to be read only, which is how the kernels see it.
    ///
    /// # Safety
    /// At `writable` the same bytes are mapped, readable and writable, as long as they are at [`Region::base`].
    pub unsafe fn with_writable(self, writable: NonNull<u8>) -> Region {
        Region { writable, ..self }
    }

    /// Where its first byte is written.
    pub fn writable(&self) -> NonNull<u8> {
        self.writable
    }

    /// Its first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The byte at `offset`, from which `len` bytes are inside.
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.len && len <= self.len - offset, "places lie inside the region");
        // SAFETY: just checked.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// The same byte, where it is written.
    fn writable_at(&self, offset: usize, len: usize) -> *mut u8 {
        let distance = self.at(offset, len) as usize - self.base.as_ptr() as usize;
        // SAFETY: inside the same memory at its other place.
        unsafe { self.writable.as_ptr().add(distance) }
    }

    /// # Safety
    /// Nobody writes these bytes as long as the slice is used.
    pub(crate) unsafe fn slice(&self, offset: usize, len: usize) -> &[u8] {
        // SAFETY: inside the memory, which is initialised; the rest is promised.
        unsafe { core::slice::from_raw_parts(self.at(offset, len), len) }
    }

    /// `count` values at `offset`.
    ///
    /// # Safety
    /// `T` may have any bits, or only values of it were written there. Nobody else uses these bytes as long as the slice is used, but for reading
    /// what is not written any more.
    #[allow(clippy::mut_from_ref)] // the region's owners see to it that slices do not overlap
    pub(crate) unsafe fn array<T>(&self, offset: usize, count: usize) -> &mut [T] {
        let at: *mut T = self.place(offset, count);
        // SAFETY: inside the memory and aligned; the rest is promised.
        unsafe { core::slice::from_raw_parts_mut(at, count) }
    }

    /// Where `count` values at `offset` lie.
    pub(crate) fn place<T>(&self, offset: usize, count: usize) -> *mut T {
        let len = count.checked_mul(size_of::<T>()).expect("a length in memory");
        let at: *mut T = self.at(offset, len).cast();
        assert!(at.is_aligned(), "values are aligned");
        at
    }

    /// # Safety
    /// Nobody else uses the `bytes.len()` bytes from `offset` on meanwhile.
    pub(crate) unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: `bytes` is another's memory, since slices of this one are not written to.
        unsafe { self.writable_at(offset, bytes.len()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// # Safety
    /// Nobody else writes the `out.len()` bytes from `offset` on meanwhile.
    pub(crate) unsafe fn read(&self, offset: usize, out: &mut [u8]) {
        // SAFETY: as in `write`.
        unsafe { self.at(offset, out.len()).copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) }
    }

    /// Moves bytes; the two places may overlap.
    ///
    /// # Safety
    /// Nobody else uses either place meanwhile.
    pub(crate) unsafe fn shift(&self, from: usize, to: usize, len: usize) {
        // SAFETY: both inside the memory; the rest is promised.
        unsafe { self.writable_at(from, len).copy_to(self.writable_at(to, len), len) }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use alloc::vec;

    /// Zeroes on the heap.
    pub(crate) fn heap(len: usize) -> Region {
        #[repr(C, align(64))]
        #[derive(Clone, Copy)]
        struct Line([u8; 64]);
        let mut lines = vec![Line([0; 64]); len.div_ceil(64)];
        let base = NonNull::from(&mut lines[..]).cast();
        // SAFETY: the owner keeps the lines, which hold at least `len` bytes; a vector's content does not move with it.
        unsafe { Region::from_raw(base, len, Some(Box::new(lines))) }
    }

    #[test]
    fn a_region_keeps_what_is_written() {
        let region = heap(1_000);
        // SAFETY: nobody else has this region.
        unsafe {
            region.write(64, b"quack");
            region.shift(64, 66, 5);
            assert_eq!(region.slice(62, 10), b"\0\0ququack\0");
            region.array::<f32>(128, 1)[0] = 1.0;
            let mut out = [0; 4];
            region.read(128, &mut out);
            assert_eq!(out, 1f32.to_le_bytes());
        }
    }

    #[test]
    fn the_owner_goes_with_the_region() {
        let owner = alloc::sync::Arc::new(());
        let mut bytes = [0u64; 8];
        let base = NonNull::from(&mut bytes).cast();
        // SAFETY: nothing is read or written.
        let region = unsafe { Region::from_raw(base, 64, Some(Box::new(owner.clone()))) };
        assert_eq!(alloc::sync::Arc::strong_count(&owner), 2);
        drop(region);
        assert_eq!(alloc::sync::Arc::strong_count(&owner), 1);
    }

    #[test]
    #[should_panic(expected = "inside the region")]
    fn a_place_outside_is_our_own_mistake() {
        // SAFETY: nobody else has this region.
        unsafe { heap(1_000).write(998, b"long") };
    }
}
