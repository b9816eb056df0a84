//! Access to a card's registers, and the delays that its start needs.
#![allow(unsafe_code)]

use core::ptr::NonNull;

/// A window of memory-mapped registers. Offsets are in bytes and aligned to the width; values are little-endian in the card and
/// native here. Reads may have side effects in the card, so nothing reads more often than the driver says.
pub trait Mmio {
    /// Reads one byte.
    fn read8(&self, offset: usize) -> u8;
    /// Reads 16 bits.
    fn read16(&self, offset: usize) -> u16;
    /// Reads 32 bits.
    fn read32(&self, offset: usize) -> u32;
    /// Writes one byte.
    fn write8(&self, offset: usize, value: u8);
    /// Writes 16 bits.
    fn write16(&self, offset: usize, value: u16);
    /// Writes 32 bits.
    fn write32(&self, offset: usize, value: u32);
}

/// Waits. Only [`probe`](crate::probe()) and what it calls wait; sending and receiving never do.
pub trait Clock {
    /// Returns after at least `us` microseconds.
    fn delay_us(&self, us: u32);
}

impl<F: Fn(u32)> Clock for F {
    fn delay_us(&self, us: u32) {
        self(us);
    }
}

/// A mapped base address register: registers in the address space of this processor.
#[derive(Debug)]
pub struct Bar {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the window belongs to this value alone (see `Bar::new`), and any core may touch the registers behind it.
unsafe impl Send for Bar {}

impl Bar {
    /// The window of `len` bytes that starts at `base`.
    ///
    /// # Safety
    /// For as long as the value lives, `base .. base + len` is mapped to registers of one device, readable, writable and
    /// uncached, `base` is aligned to 4 bytes, and nobody else accesses those registers.
    pub const unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len }
    }

    fn at<T>(&self, offset: usize) -> *mut T {
        let size = size_of::<T>();
        assert!(
            offset.is_multiple_of(size) && offset.checked_add(size).is_some_and(|end| end <= self.len),
            "drivers ask for a window that holds all their registers"
        );
        // SAFETY: the assertion above keeps the pointer and `size` bytes after it inside the window.
        unsafe { self.base.as_ptr().add(offset).cast() }
    }
}

macro_rules! access {
    ($read:ident, $write:ident, $type:ty) => {
        fn $read(&self, offset: usize) -> $type {
            // SAFETY: `at` checked bounds and alignment; `new`'s caller promises that the window is mapped and ours.
            unsafe { self.at::<$type>(offset).read_volatile() }
        }
        fn $write(&self, offset: usize, value: $type) {
            // SAFETY: as for reading.
            unsafe { self.at::<$type>(offset).write_volatile(value) }
        }
    };
}

impl Mmio for Bar {
    access!(read8, write8, u8);
    access!(read16, write16, u16);
    access!(read32, write32, u32);
}
