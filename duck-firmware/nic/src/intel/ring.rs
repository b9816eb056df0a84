//! Rings between a head, which the card moves, and a tail, which the driver moves: the card owns the descriptors from head up to
//! but not including tail. A full ring would look empty, so one descriptor always stays with the driver.
//!
//! A descriptor is done when the card has set a bit in it; the driver never reads the head.

use super::{buffer_len, reg};
use crate::dma::{self, DmaBuffer, Frames};
use crate::error::StartError;
use crate::mmio::Mmio;
use crate::nic::HEADER;
use crate::start::Platform;

/// Offsets within a queue's registers.
pub(super) mod queue {
    pub const BASE: usize = 0x0;
    pub const LEN: usize = 0x8;
    pub const HEAD: usize = 0x10;
    pub const TAIL: usize = 0x18;
    pub const CONTROL: usize = 0x28;
}

/// How descriptors are laid out. What the driver writes for reception is the same in both: address, then zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Received: length u16 at 8, status u8 at 12, errors u8 at 13.
    Legacy,
    /// Received: status and errors u32 at 8, length u16 at 12.
    Advanced,
}

const SIZE: usize = 16;
const DONE: u32 = 1;
const END: u32 = 2;

impl Format {
    /// Status and error bits (errors in bits 31:24), and length.
    fn received(self, ring: &DmaBuffer, at: usize) -> Option<(u32, usize)> {
        let status_at = if self == Self::Legacy { 12 } else { 8 };
        let status = ring.read32(at + status_at);
        if status & DONE == 0 {
            return None;
        }
        // The rest of the descriptor, and the frame, after the flag.
        dma::acquire();
        Some(match self {
            Self::Legacy => (status & 0xff | (status & 0xff00) << 16, ring.read16(at + 8).into()),
            Self::Advanced => (status, ring.read16(at + 12).into()),
        })
    }

    /// Errors of the frame itself, not of checksums inside: they stand in the top byte.
    const fn damaged(self) -> u32 {
        match self {
            // Check sequence, symbol, sequence, carrier extension, receive.
            Self::Legacy => 0x9700_0000,
            Self::Advanced => 1 << 31,
        }
    }

    /// The second half of a send descriptor: whole frame, append check sequence, report when done.
    const fn send(self, len: usize) -> (u32, u32) {
        let len = len as u32;
        match self {
            Self::Legacy => (len | (0x01 | 0x02 | 0x08) << 24, 0),
            Self::Advanced => (len | 3 << 20 | 1 << 29 | 1 << 27 | 1 << 25 | 1 << 24, len << 14),
        }
    }
}

/// What became of the next receive descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polled {
    Empty,
    Damaged,
    Frame,
}

/// Tells the card where a queue's descriptors are.
fn place(registers: &impl Mmio, queue: usize, ring: &DmaBuffer, count: usize) {
    registers.write32(queue + queue::BASE, ring.physical() as u32);
    registers.write32(queue + queue::BASE + 4, (ring.physical() >> 32) as u32);
    registers.write32(queue + queue::LEN, (count * SIZE) as u32);
    registers.write32(queue + queue::HEAD, 0);
    registers.write32(queue + queue::TAIL, 0);
}

#[derive(Debug)]
pub(super) struct RxRing {
    ring: DmaBuffer,
    frames: Frames,
    format: Format,
    count: usize,
    next: usize,
    /// Descriptors refilled since the tail was last written.
    unpublished: usize,
}

impl RxRing {
    pub(super) fn take(platform: &mut Platform, format: Format) -> Result<Self, StartError> {
        let (count, each) = (platform.options.rx_ring, buffer_len(platform.options.max_frame));
        let ring = DmaBuffer::take(platform.dma, "receive ring", count * SIZE, 128)?;
        let frames = Frames::take(platform.dma, "receive buffers", count, each)?;
        let mut rx = Self { ring, frames, format, count, next: 0, unpublished: 0 };
        (0..count).for_each(|index| rx.give(index));
        Ok(rx)
    }

    /// Tells the card where the descriptors are, all of them still the driver's.
    pub(super) fn place(&self, registers: &impl Mmio) {
        place(registers, reg::RX_QUEUE, &self.ring, self.count);
    }

    /// Gives the card all descriptors but one. Only once the queue is enabled: before, some cards lose it.
    pub(super) fn open(&self, registers: &impl Mmio) {
        dma::publish();
        registers.write32(reg::RX_QUEUE + queue::TAIL, (self.count - 1) as u32);
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    fn give(&mut self, index: usize) {
        self.ring.write64(index * SIZE + 8, 0);
        self.ring.write64(index * SIZE, self.frames.physical(index));
    }

    pub(super) fn poll(&mut self, longest: usize, show: &mut dyn FnMut(&[u8])) -> Polled {
        let Some((status, len)) = self.format.received(&self.ring, self.next * SIZE) else { return Polled::Empty };
        let good = status & END != 0 && status & self.format.damaged() == 0 && (HEADER..=longest).contains(&len);
        if good {
            show(self.frames.bytes(self.next, 0, len));
        }
        self.give(self.next);
        self.next = (self.next + 1) % self.count;
        self.unpublished += 1;
        if good { Polled::Frame } else { Polled::Damaged }
    }

    /// Gives the card what was refilled, if anything.
    pub(super) fn publish(&mut self, registers: &impl Mmio) {
        if self.unpublished > 0 {
            self.unpublished = 0;
            dma::publish();
            registers.write32(reg::RX_QUEUE + queue::TAIL, ((self.next + self.count - 1) % self.count) as u32);
        }
    }

    /// The same, but only once a quarter of the ring was refilled: a register write for every frame would be a waste.
    pub(super) fn publish_some(&mut self, registers: &impl Mmio) -> bool {
        let due = self.unpublished >= self.count / 4;
        if due {
            self.publish(registers);
        }
        due
    }
}

#[derive(Debug)]
pub(super) struct TxRing {
    ring: DmaBuffer,
    frames: Frames,
    format: Format,
    count: usize,
    next: usize,
    /// Descriptors that are the card's, or about to be: those before `next`.
    busy: usize,
    unpublished: bool,
}

impl TxRing {
    pub(super) fn take(platform: &mut Platform, format: Format) -> Result<Self, StartError> {
        let count = platform.options.tx_ring;
        let ring = DmaBuffer::take(platform.dma, "send ring", count * SIZE, 128)?;
        let frames = Frames::take(platform.dma, "send buffers", count, platform.options.max_frame)?;
        Ok(Self { ring, frames, format, count, next: 0, busy: 0, unpublished: false })
    }

    /// Tells the card where the descriptors are, none of them to be sent.
    pub(super) fn place(&self, registers: &impl Mmio) {
        place(registers, reg::TX_QUEUE, &self.ring, self.count);
    }

    fn reclaim(&mut self) {
        while self.busy > 0 {
            let oldest = (self.next + self.count - self.busy) % self.count;
            if self.ring.read32(oldest * SIZE + 12) & DONE == 0 {
                break;
            }
            self.busy -= 1;
        }
    }

    pub(super) fn put(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        if self.busy == self.count - 1 {
            self.reclaim();
            if self.busy == self.count - 1 {
                return false;
            }
        }
        let padded = self.frames.put(self.next, 0, len, fill);
        let at = self.next * SIZE;
        let (command, rest) = self.format.send(padded);
        self.ring.write64(at, self.frames.physical(self.next));
        self.ring.write32(at + 8, command);
        self.ring.write32(at + 12, rest);
        self.next = (self.next + 1) % self.count;
        self.busy += 1;
        self.unpublished = true;
        true
    }

    pub(super) fn publish(&mut self, registers: &impl Mmio) {
        if self.unpublished {
            self.unpublished = false;
            dma::publish();
            registers.write32(reg::TX_QUEUE + queue::TAIL, self.next as u32);
        }
    }
}
