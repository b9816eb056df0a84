//! Memory that the card reads and writes by itself.
//!
//! Descriptors are accessed by volatile reads and writes of whole words, since the card changes them at any time. Frame buffers
//! are lent as slices: whose turn it is to touch a buffer is what the descriptors say, and a card that writes into a buffer it
//! gave back is broken beyond what a driver can defend against.
#![allow(unsafe_code)]

use core::ptr::NonNull;

use crate::error::StartError;

/// Where drivers get memory from. They ask while they start and never give anything back, so a bump allocator will do.
pub trait Dma {
    /// `len` bytes whose virtual and physical start are multiples of `align` (a power of two); physically contiguous, and
    /// used by nobody else. `None` if there is no more.
    fn alloc(&mut self, len: usize, align: usize) -> Option<DmaBuffer>;
}

/// A piece of memory shared with the card.
#[derive(Debug)]
pub struct DmaBuffer {
    pointer: NonNull<u8>,
    physical: u64,
    len: usize,
}

// SAFETY: the memory belongs to this value and its card alone (see `DmaBuffer::new`).
unsafe impl Send for DmaBuffer {}

impl DmaBuffer {
    /// `len` bytes at `pointer`, which the card sees at `physical`.
    ///
    /// # Safety
    /// The bytes are valid to read and write, initialised, cached coherently with the card, physically contiguous from
    /// `physical` on, and until the machine restarts nobody but the value's owner and its card touches them.
    pub const unsafe fn new(pointer: NonNull<u8>, physical: u64, len: usize) -> Self {
        Self { pointer, physical, len }
    }

    /// The address by which the card knows the memory.
    pub const fn physical(&self) -> u64 {
        self.physical
    }

    /// How many bytes there are.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Asks for zeroed memory; `what` goes into the error.
    pub(crate) fn take(dma: &mut dyn Dma, what: &'static str, len: usize, align: usize) -> Result<Self, StartError> {
        let none = StartError::NoMemory { what, len, align };
        let mut buffer = dma.alloc(len, align).ok_or(none)?;
        let aligned =
            (buffer.pointer.as_ptr() as usize).is_multiple_of(align) && buffer.physical.is_multiple_of(align as u64);
        if buffer.len < len || !aligned {
            return Err(none);
        }
        buffer.bytes_mut(0, len).fill(0);
        Ok(buffer)
    }

    fn at<T>(&self, offset: usize) -> *mut T {
        self.check(offset, size_of::<T>());
        let pointer = self.pointer.as_ptr().wrapping_add(offset).cast::<T>();
        assert!(pointer.is_aligned(), "rings are aligned and so are their fields");
        pointer
    }

    fn check(&self, offset: usize, len: usize) {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "drivers take enough memory for what they put there");
    }

    /// The bytes of a buffer that is the driver's at the moment.
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        self.check(offset, len);
        // SAFETY: inside the memory by the check; initialised and ours by `new`'s contract; the card does not write it because
        // the driver holds its descriptor.
        unsafe { core::slice::from_raw_parts(self.pointer.as_ptr().add(offset), len) }
    }

    /// The bytes of a buffer that is the driver's at the moment, to fill.
    pub(crate) fn bytes_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        self.check(offset, len);
        // SAFETY: as for `bytes`; `&mut self` keeps other slices of the same memory away.
        unsafe { core::slice::from_raw_parts_mut(self.pointer.as_ptr().add(offset), len) }
    }
}

macro_rules! access {
    ($read:ident, $write:ident, $type:ty) => {
        impl DmaBuffer {
            #[allow(dead_code, reason = "one pair per width; not every driver's fields have every width")]
            pub(crate) fn $read(&self, offset: usize) -> $type {
                // SAFETY: `at` checked bounds and alignment; the memory is valid and initialised by `new`'s contract.
                <$type>::from_le(unsafe { self.at::<$type>(offset).read_volatile() })
            }
            #[allow(dead_code, reason = "as above")]
            pub(crate) fn $write(&mut self, offset: usize, value: $type) {
                #[cfg(test)]
                crate::tests::bench::wrote(self.physical + offset as u64);
                // SAFETY: as for reading.
                unsafe { self.at::<$type>(offset).write_volatile(value.to_le()) }
            }
        }
    };
}

access!(read8, write8, u8);
access!(read16, write16, u16);
access!(read32, write32, u32);
access!(read64, write64, u64);

/// Equal buffers for frames, one behind the other in one piece of memory.
#[derive(Debug)]
pub(crate) struct Frames {
    memory: DmaBuffer,
    each: usize,
}

impl Frames {
    /// `count` buffers of at least `each` bytes, each starting at a multiple of 64.
    pub(crate) fn take(dma: &mut dyn Dma, what: &'static str, count: usize, each: usize) -> Result<Self, StartError> {
        let each = each.next_multiple_of(64);
        Ok(Self { memory: DmaBuffer::take(dma, what, count * each, 4096)?, each })
    }

    /// Where the card finds buffer `index`.
    pub(crate) fn physical(&self, index: usize) -> u64 {
        self.memory.physical() + (index * self.each) as u64
    }

    /// `len` bytes of buffer `index` from `offset` on.
    pub(crate) fn bytes(&self, index: usize, offset: usize, len: usize) -> &[u8] {
        assert!(offset + len <= self.each, "lengths from the card are checked before they are used");
        self.memory.bytes(index * self.each + offset, len)
    }

    /// `len` bytes of buffer `index` from `offset` on, to fill.
    pub(crate) fn bytes_mut(&mut self, index: usize, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset + len <= self.each, "lengths from the caller are checked before they are used");
        self.memory.bytes_mut(index * self.each + offset, len)
    }

    /// Fills buffer `index` from `offset` on with a frame of `len` bytes, padded with zeros to the shortest that Ethernet
    /// allows, and says how long it became.
    pub(crate) fn put(&mut self, index: usize, offset: usize, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> usize {
        let padded = len.max(crate::nic::MIN_FRAME);
        let (frame, padding) = self.bytes_mut(index, offset, padded).split_at_mut(len);
        padding.fill(0);
        fill(frame);
        padded
    }
}

/// Orders what was written to shared memory before what is written to it, or to a register, next.
pub(crate) fn publish() {
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
}

/// Orders reading a flag in shared memory before reading what the flag guards.
pub(crate) fn acquire() {
    core::sync::atomic::fence(core::sync::atomic::Ordering::Acquire);
}
