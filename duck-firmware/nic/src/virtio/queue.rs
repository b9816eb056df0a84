//! A split virtqueue whose frames take one descriptor each, so descriptor `i` always means buffer `i`.
//!
//! The device may give descriptors back in any order; each is the driver's, the caller's or the device's, and that is kept in
//! memory that the device cannot write.

use super::{Windows, common};
use crate::dma::{self, DmaBuffer};
use crate::error::StartError;
use crate::mmio::Mmio;
use crate::start::Platform;

/// The most descriptors of a queue: what QEMU has.
const MOST: usize = 256;
const DEVICE_WRITES: u16 = 2;
/// In the driver's flags: no interrupts; in the device's: no notifications.
const QUIET: u16 = 1;

#[derive(Debug)]
pub(super) struct Queue {
    memory: DmaBuffer,
    count: usize,
    number: u16,
    /// The doorbell, within the notification window.
    doorbell: usize,
    /// Offers so far, and how many of them the device was told.
    offered: u16,
    published: u16,
    /// Returns seen so far.
    seen: u16,
    /// Whether the device has a descriptor.
    theirs: [bool; MOST],
    /// Descriptors that nobody has; used for sending only.
    free: [u16; MOST],
    free_len: usize,
}

impl Queue {
    /// Asks the device how large queue `number` may be and takes memory for at most `wanted` descriptors.
    pub(super) fn take<M: Mmio>(
        windows: &Windows<M>,
        number: u16,
        wanted: usize,
        platform: &mut Platform,
    ) -> Result<Self, StartError> {
        let registers = &windows.common;
        registers.write16(common::QUEUE_SELECT, number);
        let size = registers.read16(common::QUEUE_SIZE);
        if size < 8 || !size.is_power_of_two() {
            let (register, expected) = (common::QUEUE_SIZE, "a power of two from 8 on");
            return Err(StartError::Unexpected { step: "size queue", register, value: size.into(), expected });
        }
        let count = wanted.min(MOST).min(size.into());
        let offset = registers.read16(common::QUEUE_NOTIFY);
        let doorbell = usize::from(offset).saturating_mul(windows.notify_step);
        if !doorbell.is_multiple_of(2) || doorbell > windows.notify_len - 2 {
            let (register, expected) = (common::QUEUE_NOTIFY, "a doorbell inside the notification window");
            return Err(StartError::Unexpected { step: "find doorbell", register, value: offset.into(), expected });
        }
        let mut memory = DmaBuffer::take(platform.dma, "virtqueue", used_at(count) + 6 + 8 * count, 4096)?;
        memory.write16(avail_at(count), QUIET);
        let free = core::array::from_fn(|index| index as u16);
        let theirs = [false; MOST];
        Ok(Self { memory, count, number, doorbell, offered: 0, published: 0, seen: 0, theirs, free, free_len: count })
    }

    /// Tells the device where the queue is and lets it use it.
    pub(super) fn enable(&self, registers: &impl Mmio, number: u16) {
        registers.write16(common::QUEUE_SELECT, number);
        registers.write16(common::QUEUE_SIZE, self.count as u16);
        let offsets = [0, avail_at(self.count), used_at(self.count)];
        for (register, offset) in common::QUEUE_ADDRESSES.into_iter().zip(offsets) {
            let address = self.memory.physical() + offset as u64;
            registers.write32(register, address as u32);
            registers.write32(register + 4, (address >> 32) as u32);
        }
        registers.write16(common::QUEUE_ENABLE, 1);
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn unpublished(&self) -> usize {
        self.offered.wrapping_sub(self.published).into()
    }

    /// Writes descriptor `index`.
    pub(super) fn describe(&mut self, index: usize, address: u64, len: usize, device_writes: bool) {
        let flags = if device_writes { DEVICE_WRITES } else { 0 };
        self.memory.write64(index * 16, address);
        self.memory.write32(index * 16 + 8, len as u32);
        self.memory.write32(index * 16 + 12, flags.into());
    }

    /// Puts descriptor `index` into the device's list, which it does not see before [`publish`](Self::publish).
    pub(super) fn offer(&mut self, index: usize) {
        let slot = usize::from(self.offered) % self.count;
        self.memory.write16(avail_at(self.count) + 4 + 2 * slot, index as u16);
        self.offered = self.offered.wrapping_add(1);
        self.theirs[index] = true;
    }

    /// Shows the device what was offered; `false` if there is nothing new.
    pub(super) fn publish(&mut self) -> bool {
        if self.offered == self.published {
            return false;
        }
        // Descriptors and list before the count.
        dma::publish();
        self.memory.write16(avail_at(self.count) + 2, self.offered);
        self.published = self.offered;
        true
    }

    /// Rings the doorbell, unless the device said that it looks by itself.
    pub(super) fn notify(&self, window: &impl Mmio) {
        // The count before reading the device's wish: else both sides could wait for each other.
        dma::publish();
        if self.memory.read16(used_at(self.count)) & QUIET == 0 {
            window.write16(self.doorbell, self.number);
        }
    }

    /// What the device gave back next: the descriptor, if it was the device's to give, and how many bytes it wrote.
    pub(super) fn used(&mut self) -> Option<(Option<usize>, usize)> {
        if self.memory.read16(used_at(self.count) + 2) == self.seen {
            return None;
        }
        dma::acquire();
        let at = used_at(self.count) + 4 + 8 * (usize::from(self.seen) % self.count);
        let (index, len) = (self.memory.read32(at) as usize, self.memory.read32(at + 4) as usize);
        self.seen = self.seen.wrapping_add(1);
        let valid = index < self.count && core::mem::take(&mut self.theirs[index]);
        Some((valid.then_some(index), len))
    }

    /// A descriptor that nobody has.
    pub(super) fn free(&mut self) -> Option<usize> {
        if self.free_len == 0 {
            // As many returns as there can be; a device that counts wildly must not keep us here.
            for _ in 0..self.count {
                match self.used() {
                    Some((Some(index), _)) => {
                        self.free[self.free_len] = index as u16;
                        self.free_len += 1;
                    }
                    Some((None, _)) => {}
                    None => break,
                }
            }
        }
        self.free_len = self.free_len.checked_sub(1)?;
        Some(self.free[self.free_len].into())
    }
}

const fn avail_at(count: usize) -> usize {
    16 * count
}

const fn used_at(count: usize) -> usize {
    (avail_at(count) + 6 + 2 * count).next_multiple_of(64)
}
