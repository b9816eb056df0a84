//! The rings of 16-byte descriptors: who owns a buffer is one bit, which the card gives back by writing the descriptor.
//!
//! `opts1` u32, `opts2` u32, `address` u64. A side reads a descriptor only while it owns it, and writes `opts1` last.

use super::Kind;
use crate::dma::{self, DmaBuffer, Frames};
use crate::error::StartError;
use crate::nic::{CRC, HEADER};
use crate::start::Platform;

/// The card's.
const OWN: u32 = 1 << 31;
/// Last of the ring.
const END: u32 = 1 << 30;
/// First and last piece of a frame.
const WHOLE: u32 = 1 << 29 | 1 << 28;

const SIZE: usize = 16;
const OPTS2: usize = 4;
const ADDRESS: usize = 8;

const _: () = assert!(ADDRESS + size_of::<u64>() == SIZE, "a stride of anything but 16 makes the card read rubbish");

/// The descriptors of one ring.
#[derive(Debug)]
struct Ring {
    memory: DmaBuffer,
    count: usize,
    /// Whose turn is next.
    next: usize,
}

impl Ring {
    fn take(platform: &mut Platform, what: &'static str, count: usize) -> Result<Self, StartError> {
        Ok(Self { memory: DmaBuffer::take(platform.dma, what, count * SIZE, 256)?, count, next: 0 })
    }

    /// What the card gave back in the next descriptor, `None` while the card has it.
    fn returned(&self) -> Option<u32> {
        let opts1 = self.memory.read32(self.next * SIZE);
        if opts1 & OWN != 0 {
            return None;
        }
        dma::acquire();
        Some(opts1)
    }

    /// Gives descriptor `index` to the card.
    fn give(&mut self, index: usize, address: u64, opts1: u32) {
        let end = if index + 1 == self.count { END } else { 0 };
        self.memory.write32(index * SIZE + OPTS2, 0);
        self.memory.write64(index * SIZE + ADDRESS, address);
        // Address and options before ownership.
        dma::publish();
        self.memory.write32(index * SIZE, OWN | end | opts1);
    }

    fn advance(&mut self) {
        self.next = (self.next + 1) % self.count;
    }
}

/// What became of the next receive descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polled {
    Empty,
    Damaged,
    Frame,
}

#[derive(Debug)]
pub(super) struct RxRing {
    ring: Ring,
    frames: Frames,
    kind: Kind,
    buffer: u32,
}

impl RxRing {
    /// A ring that is the card's from end to end.
    pub(super) fn take(platform: &mut Platform, kind: Kind) -> Result<Self, StartError> {
        let count = platform.options.rx_ring.min(kind.descriptors());
        let longest = platform.options.max_frame + CRC;
        // A multiple of 8 is what the RTL8139C+ wants; and never the full mask, which some chips take for 0.
        let buffer = longest.next_multiple_of(64);
        let ring = Ring::take(platform, "receive ring", count)?;
        let frames = Frames::take(platform.dma, "receive buffers", count, buffer)?;
        let mut rx = Self { ring, frames, kind, buffer: buffer as u32 };
        (0..count).for_each(|index| rx.give(index));
        Ok(rx)
    }

    fn give(&mut self, index: usize) {
        self.ring.give(index, self.frames.physical(index), self.buffer);
    }

    pub(super) fn physical(&self) -> u64 {
        self.ring.memory.physical()
    }

    pub(super) fn count(&self) -> usize {
        self.ring.count
    }

    /// Looks at the next descriptor; `longest` is with the check sequence, which the card leaves on frames.
    pub(super) fn poll(&mut self, longest: usize, show: &mut dyn FnMut(&[u8])) -> Polled {
        let Some(opts1) = self.ring.returned() else { return Polled::Empty };
        let index = self.ring.next;
        let len = (opts1 & self.kind.length_mask()) as usize;
        let good =
            opts1 & WHOLE == WHOLE && opts1 & self.kind.rx_error() == 0 && (HEADER + CRC..=longest).contains(&len);
        if good {
            show(self.frames.bytes(index, 0, len - CRC));
        }
        self.give(index);
        self.ring.advance();
        if good { Polled::Frame } else { Polled::Damaged }
    }
}

#[derive(Debug)]
pub(super) struct TxRing {
    ring: Ring,
    frames: Frames,
}

impl TxRing {
    /// An empty ring.
    pub(super) fn take(platform: &mut Platform, kind: Kind) -> Result<Self, StartError> {
        let count = platform.options.tx_ring.min(kind.descriptors());
        let mut ring = Ring::take(platform, "send ring", count)?;
        ring.memory.write32((count - 1) * SIZE, END);
        let frames = Frames::take(platform.dma, "send buffers", count, platform.options.max_frame)?;
        Ok(Self { ring, frames })
    }

    pub(super) fn physical(&self) -> u64 {
        self.ring.memory.physical()
    }

    /// Queues a frame, padded; `false` if the card still has the next descriptor.
    pub(super) fn put(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        if self.ring.returned().is_none() {
            return false;
        }
        let index = self.ring.next;
        let padded = self.frames.put(index, 0, len, fill);
        self.ring.give(index, self.frames.physical(index), WHOLE | padded as u32);
        self.ring.advance();
        true
    }

    /// Whether the frame queued last is still to be sent.
    pub(super) fn waiting(&self) -> bool {
        let last = (self.ring.next + self.ring.count - 1) % self.ring.count;
        self.ring.memory.read32(last * SIZE) & OWN != 0
    }
}
