//! A model of a virtio network device: three windows onto one card.

use super::bench::{Card, MAC, Memory, Registers};
use crate::virtio::{common, feature, status};

/// Offsets of the windows in the model's one address space.
pub(crate) const NOTIFY: usize = 0x1000;
pub(crate) const DEVICE: usize = 0x2000;
/// Bytes between doorbells.
pub(crate) const STEP: usize = 4;

#[derive(Clone, Copy, Default)]
struct Queue {
    size: u16,
    enabled: bool,
    addresses: [u64; 3],
    seen: u16,
    used: u16,
}

pub(crate) struct VirtioCard {
    pub memory: Memory,
    pub device: Registers,
    pub offered: u64,
    pub accepted: u64,
    pub refuses_features: bool,
    pub never_resets: bool,
    pub sent: Vec<Vec<u8>>,
    /// Whether the card handles send queues at a doorbell, or waits for [`VirtioCard::finish`].
    pub at_once: bool,
    /// Whether the card says that it needs no doorbells.
    pub looks_by_itself: bool,
    pub doorbells: [usize; 2],
    pub queue_size: u16,
    pub status: u8,
    queues: [Queue; 2],
    select: usize,
    feature_select: [u32; 2],
    master: bool,
    was_reset: bool,
}

impl VirtioCard {
    pub(crate) fn new(memory: &Memory) -> Self {
        let mut device = Registers::new(0x20);
        device.0[..6].copy_from_slice(&MAC);
        device.set(6, 2, 1);
        Self {
            memory: memory.clone(),
            device,
            // More than the driver wants: merged buffers, event index, and ring 34.
            offered: feature::WANTED | 1 << 15 | 1 << 29 | 1 << 34,
            accepted: 0,
            refuses_features: false,
            never_resets: false,
            sent: Vec::new(),
            at_once: true,
            looks_by_itself: false,
            doorbells: [0; 2],
            queue_size: 256,
            status: status::DRIVER_OK,
            queues: Default::default(),
            select: 0,
            feature_select: [0; 2],
            master: false,
            was_reset: false,
        }
    }

    /// The next descriptor that the driver offered in a queue.
    fn take(&mut self, number: usize) -> Option<u16> {
        let queue = &mut self.queues[number];
        assert!(self.master && queue.enabled && self.status & status::DRIVER_OK != 0, "not ready");
        let [_, available, _] = queue.addresses;
        if self.memory.read16(available + 2) == queue.seen {
            return None;
        }
        let slot = u64::from(queue.seen % queue.size);
        queue.seen = queue.seen.wrapping_add(1);
        Some(self.memory.read16(available + 4 + 2 * slot))
    }

    /// Address, length, flags of a descriptor.
    fn descriptor(&self, number: usize, index: u16) -> (u64, usize, u32) {
        let at = self.queues[number].addresses[0] + 16 * u64::from(index);
        (self.memory.read64(at), self.memory.read32(at + 8) as usize, self.memory.read32(at + 12))
    }

    /// Gives a descriptor back.
    pub(crate) fn give_back(&mut self, number: usize, index: u32, len: usize) {
        let queue = &mut self.queues[number];
        let used = queue.addresses[2];
        let at = used + 4 + 8 * u64::from(queue.used % queue.size);
        self.memory.write(at, &index.to_le_bytes());
        self.memory.write(at + 4, &(len as u32).to_le_bytes());
        queue.used = queue.used.wrapping_add(1);
        self.memory.write(used + 2, &queue.used.to_le_bytes());
    }

    /// A frame arrives from the wire; whether there was a buffer for it.
    pub(crate) fn arrive(&mut self, frame: &[u8]) -> bool {
        self.deliver(frame, 12 + frame.len())
    }

    /// The same, but claims to have written `len` bytes.
    pub(crate) fn deliver(&mut self, frame: &[u8], len: usize) -> bool {
        let Some(index) = self.take(0) else { return false };
        let (address, room, flags) = self.descriptor(0, index);
        assert_eq!(flags, 2, "a buffer for the device to write");
        assert!(12 + frame.len() <= room, "the buffer is too short");
        // The header says one buffer.
        self.memory.write(address, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        self.memory.write(address + 12, frame);
        self.give_back(0, index.into(), len);
        true
    }

    /// Sends everything offered; gives the descriptors back in reverse, as a device may.
    pub(crate) fn finish(&mut self) {
        let taken: Vec<u16> = std::iter::from_fn(|| self.take(1)).collect();
        for &index in &taken {
            let (address, len, flags) = self.descriptor(1, index);
            let bytes = self.memory.bytes(address, len);
            assert_eq!((flags, &bytes[..12]), (0, &[0; 12][..]), "a plain frame in one piece");
            self.sent.push(bytes[12..].to_vec());
        }
        taken.iter().rev().for_each(|&index| self.give_back(1, index.into(), 0));
    }

    fn read_common(&self, offset: usize) -> u32 {
        let queue = &self.queues[self.select];
        match offset {
            common::DEVICE_FEATURES => (self.offered >> (32 * self.feature_select[0])) as u32,
            common::STATUS => self.status.into(),
            common::QUEUE_SIZE => if queue.size == 0 { self.queue_size } else { queue.size }.into(),
            common::QUEUE_NOTIFY => self.select as u32,
            _ => panic!("not read by a driver: {offset:#x}"),
        }
    }

    fn write_common(&mut self, offset: usize, value: u32) {
        let queue = &mut self.queues[self.select];
        match offset {
            common::DEVICE_SELECT => self.feature_select[0] = value,
            common::DRIVER_SELECT => self.feature_select[1] = value,
            common::DRIVER_FEATURES => {
                let shift = 32 * self.feature_select[1];
                self.accepted = self.accepted & !(0xffff_ffff << shift) | u64::from(value) << shift;
            }
            common::STATUS => self.set_status(value as u8),
            common::QUEUE_SELECT => self.select = value as usize,
            common::QUEUE_SIZE => queue.size = value as u16,
            common::QUEUE_ENABLE => {
                assert!(self.status & status::FEATURES_OK != 0 && queue.size.is_power_of_two());
                let [table, available, used] = queue.addresses;
                assert!(table.is_multiple_of(16) && available.is_multiple_of(2) && used.is_multiple_of(4));
                queue.enabled = true;
                if self.looks_by_itself {
                    self.memory.write(used, &1u16.to_le_bytes());
                }
            }
            0x20..0x38 => {
                let (which, high) = ((offset - 0x20) / 8, !offset.is_multiple_of(8));
                let shift = if high { 32 } else { 0 };
                queue.addresses[which] |= u64::from(value) << shift;
            }
            _ => panic!("not written by a driver: {offset:#x}"),
        }
    }

    fn set_status(&mut self, value: u8) {
        match value {
            0 => {
                (self.was_reset, self.queues) = (true, Default::default());
                self.status = if self.never_resets { self.status } else { 0 };
            }
            value => {
                assert!(self.was_reset, "not reset first");
                assert!(value == status::FAILED || value & self.status == self.status, "steps only add up");
                let drop = if self.refuses_features { status::FEATURES_OK } else { 0 };
                self.status = value & !drop;
            }
        }
    }
}

impl Card for VirtioCard {
    fn sent(&mut self) -> &mut Vec<Vec<u8>> {
        &mut self.sent
    }

    fn read(&mut self, offset: usize, width: usize) -> u32 {
        match offset {
            ..NOTIFY => self.read_common(offset),
            DEVICE.. => self.device.get(offset - DEVICE, width),
            _ => panic!("doorbells are not read"),
        }
    }

    fn write(&mut self, offset: usize, width: usize, value: u32) {
        match offset {
            ..NOTIFY => self.write_common(offset, value),
            DEVICE.. => panic!("the device's configuration is not written"),
            _ => {
                let number = (offset - NOTIFY) / STEP;
                assert_eq!((width, value as usize), (2, number));
                self.doorbells[number] += 1;
                if number == 1 && self.at_once {
                    self.finish();
                }
            }
        }
    }

    fn bus_master(&mut self) {
        assert!(self.was_reset, "bus mastering before the reset");
        self.master = true;
    }
}
