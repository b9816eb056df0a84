//! A model of configuration space.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use crate::pci::{Bdf, ConfigSpace};

pub(crate) fn bdf(bus: u8, device: u8, function: u8) -> Bdf {
    Bdf { bus, device, function }
}

/// One function: its 256 bytes, and what the base address registers keep of what is written.
#[derive(Clone)]
pub(crate) struct Slot {
    pub words: [u32; 64],
    pub masks: [u32; 6],
}

impl Slot {
    pub(crate) fn new(vendor: u16, device: u16, class: u16) -> Self {
        let mut words = [0; 64];
        words[0] = u32::from(vendor) | u32::from(device) << 16;
        // Capabilities; and a status bit that clears when written as 1.
        words[1] = 1 << 20 | 1 << 29;
        words[2] = u32::from(class) << 16 | 0x20;
        Self { words, masks: [0; 6] }
    }

    /// A card as the firmware leaves it: memory on, bus master on, in D3, with link power management.
    pub(crate) fn card(vendor: u16, device: u16) -> Self {
        let mut slot = Self::new(vendor, device, 0x0200);
        slot.words[1] |= 0x0007;
        slot.add(0x34, 0x40);
        slot.add(0x40, 0x5001);
        slot.add(0x44, 0x8103);
        slot.add(0x50, 0x0010);
        slot.add(0x60, 0x4000_0143);
        slot
    }

    /// A bridge to `bus`.
    pub(crate) fn bridge(from: u8, bus: u8) -> Self {
        let mut slot = Self::new(0x8086, 0x54bc, 0x0604);
        slot.add(0xc, 0x0001_0000);
        slot.add(0x18, u32::from(bus) << 16 | u32::from(bus) << 8 | u32::from(from));
        slot.add(0x34, 0x40);
        slot.add(0x40, 0x0010);
        slot.add(0x50, 0x0042);
        slot
    }

    pub(crate) fn add(&mut self, offset: usize, bits: u32) {
        self.words[offset / 4] |= bits;
    }

    /// A base address register of `len` bytes at `address`, 64 bits wide.
    pub(crate) fn bar64(&mut self, index: usize, address: u64, len: u64) {
        self.words[4 + index] = address as u32 | 4;
        self.words[5 + index] = (address >> 32) as u32;
        self.masks[index] = !(len - 1) as u32 & !0xf;
        self.masks[index + 1] = (!(len - 1) >> 32) as u32;
    }

    /// The same, 32 bits wide.
    pub(crate) fn bar32(&mut self, index: usize, address: u32, len: u32) {
        self.words[4 + index] = address;
        self.masks[index] = !(len - 1) & !0xf;
    }
}

#[derive(Default)]
pub(crate) struct Space {
    pub slots: RefCell<BTreeMap<Bdf, Slot>>,
    /// Everything written.
    pub writes: RefCell<Vec<(Bdf, u8, u32)>>,
    pub reads: Cell<usize>,
}

impl Space {
    pub(crate) fn with(slots: impl IntoIterator<Item = (Bdf, Slot)>) -> Self {
        Self { slots: RefCell::new(slots.into_iter().collect()), ..Self::default() }
    }

    pub(crate) fn word(&self, at: Bdf, offset: u8) -> u32 {
        self.slots.borrow()[&at].words[usize::from(offset) / 4]
    }
}

impl ConfigSpace for Space {
    fn read32(&self, at: Bdf, offset: u8) -> u32 {
        assert!(offset.is_multiple_of(4));
        self.reads.set(self.reads.get() + 1);
        self.slots.borrow().get(&at).map_or(u32::MAX, |slot| slot.words[usize::from(offset) / 4])
    }

    fn write32(&self, at: Bdf, offset: u8, value: u32) {
        self.writes.borrow_mut().push((at, offset, value));
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.get_mut(&at) else { return };
        let word = usize::from(offset) / 4;
        let old = slot.words[word];
        slot.words[word] = match offset {
            // Status clears where ones are written; capabilities are fixed.
            4 => value & 0xffff | (old & 0xffff_0000 & !value) | old & 1 << 20,
            0x10..0x28 if slot.words[3] >> 16 & 0x7f == 0 => {
                assert!(slot.words[1] & 3 == 0 || value == old, "addresses changed while decoding");
                let mask = slot.masks[word - 4];
                let low = word == 4 || slot.words[word - 1] & 7 != 4 || slot.masks[word - 5] == 0;
                value & mask | if low { old & 0xf & !mask } else { 0 }
            }
            _ => value,
        };
    }
}
