//! Models of the RTL8125 and the RTL8139C+.

use std::collections::BTreeMap;

use super::bench::{Card, MAC, Memory, Registers};
use crate::realtek::{Kind, NO_DESCRIPTOR, UNLOCK, command, reg};

const OWN: u32 = 1 << 31;
const END: u32 = 1 << 30;
const WHOLE: u32 = 3 << 28;
const FLAG: u32 = 1 << 31;
const GATE: usize = 0xf2;
const DOORBELL: usize = 0x90;

pub(crate) struct RealtekCard {
    pub kind: Kind,
    pub memory: Memory,
    pub registers: Registers,
    /// Registers of the two inner buses.
    pub mac_bus: BTreeMap<u16, u16>,
    pub phy_bus: BTreeMap<u16, u16>,
    /// Bits 30:20 of the identification.
    pub chip: u32,
    pub sent: Vec<Vec<u8>>,
    /// Frames that the card sends per doorbell at most.
    pub budget: usize,
    pub stuck_in_reset: bool,
    pub fifo_never_empty: bool,
    pub dead_phy: bool,
    /// Frames without a descriptor.
    pub missed: usize,
    pub resets: usize,
    master: bool,
    events: u32,
    /// After running out of descriptors the card does not look again before that is acknowledged.
    halted: bool,
    tx_next: u64,
    rx_next: u64,
}

impl RealtekCard {
    pub(crate) fn new(kind: Kind, memory: &Memory) -> Self {
        let mut registers = Registers::new(0x4810);
        // What the firmware may have left: receiving, gate open, management in charge.
        registers.set(reg::COMMAND, 1, 0x0c);
        registers.set(0xd3, 1, 0x80);
        let mac_at = if kind == Kind::Rtl8125 { 0x19e0 } else { 0 };
        registers.0[mac_at..mac_at + 6].copy_from_slice(&MAC);
        Self {
            kind,
            memory: memory.clone(),
            registers,
            mac_bus: BTreeMap::from([(0xeb58, 0xffff), (0xe614, 0xffff)]),
            phy_bus: BTreeMap::from([(0xa420, 3), (0xa430, 0x8004), (0xb800, 0)]),
            chip: 0x641,
            sent: Vec::new(),
            budget: usize::MAX,
            stuck_in_reset: false,
            fifo_never_empty: false,
            dead_phy: false,
            missed: 0,
            resets: 0,
            master: false,
            events: 0,
            halted: false,
            tx_next: 0,
            rx_next: 0,
        }
    }

    fn enabled(&self, bit: u8) -> bool {
        self.registers.get(reg::COMMAND, 1) & u32::from(bit) != 0
    }

    /// Sends what the send ring holds.
    fn transmit(&mut self) {
        if !self.enabled(command::TX) {
            return;
        }
        assert!(self.master, "the card would reach memory without being allowed");
        for _ in 0..self.budget {
            let at = self.registers.get64(reg::TX_RING) + 16 * self.tx_next;
            let opts1 = self.memory.read32(at);
            if opts1 & OWN == 0 {
                return;
            }
            assert_eq!(opts1 & WHOLE, WHOLE, "a frame in pieces");
            self.sent.push(self.memory.bytes(self.memory.read64(at + 8), (opts1 & 0x3fff) as usize));
            self.memory.write(at, &(opts1 & END).to_le_bytes());
            self.tx_next = self.after(self.tx_next, opts1);
        }
    }

    /// The RTL8139C+ counts to 64 and starts again, whatever descriptors say.
    fn after(&self, index: u64, opts1: u32) -> u64 {
        let wraps = opts1 & END != 0 || self.kind == Kind::Cplus8139 && index == 63;
        if wraps { 0 } else { index + 1 }
    }

    /// A frame arrives from the wire.
    pub(crate) fn arrive(&mut self, frame: &[u8]) {
        let crc = [0xc, 0xc, 0xc, 0xc];
        self.deliver(&[frame, &crc].concat(), WHOLE | (frame.len() + 4) as u32);
    }

    /// Writes `bytes` and status `opts1` into the next receive descriptor.
    pub(crate) fn deliver(&mut self, bytes: &[u8], opts1: u32) {
        let gated = self.kind == Kind::Rtl8125 && self.registers.get(GATE, 1) & 8 != 0;
        let own = bytes[..6] == self.registers.0[..6] && self.registers.get(reg::RX_CONFIG, 4) & 2 != 0;
        let broadcast = bytes[..6] == [0xff; 6] && self.registers.get(reg::RX_CONFIG, 4) & 8 != 0;
        if !self.enabled(command::RX) || gated || !(own || broadcast) || self.halted {
            self.missed += 1;
            return;
        }
        assert!(self.master, "the card would reach memory without being allowed");
        let at = self.registers.get64(reg::RX_RING) + 16 * self.rx_next;
        let given = self.memory.read32(at);
        if given & OWN == 0 {
            self.events |= NO_DESCRIPTOR;
            self.halted = true;
            self.missed += 1;
            return;
        }
        assert!(bytes.len() <= (given & 0x3fff) as usize, "the buffer is too short");
        self.memory.write(self.memory.read64(at + 8), bytes);
        self.memory.write(at + 4, &[0xee; 4]);
        self.memory.write(at, &(opts1 | given & END).to_le_bytes());
        self.events |= 1;
        self.rx_next = self.after(self.rx_next, given);
    }

    fn set_command(&mut self, value: u32) {
        if value & u32::from(command::RESET) != 0 {
            self.resets += 1;
            (self.tx_next, self.rx_next, self.halted, self.events) = (0, 0, false, 0);
            let after = if self.stuck_in_reset { u32::from(command::RESET) } else { 0 };
            return self.registers.set(reg::COMMAND, 1, after);
        }
        for (bit, ring) in [(command::TX, reg::TX_RING), (command::RX, reg::RX_RING)] {
            let rises = value & u32::from(bit) != 0 && !self.enabled(bit);
            assert!(!rises || self.registers.get64(ring) != 0, "started without the ring at {ring:#x}");
            assert!(!rises || self.master, "started before bus mastering");
        }
        if self.kind == Kind::Rtl8125 {
            let rises = value & u32::from(command::RX) != 0 && !self.enabled(command::RX);
            assert!(!rises || self.registers.get(GATE, 1) & 8 == 0, "receiving started behind a closed gate");
            let sends = value & u32::from(command::TX) != 0 && !self.enabled(command::TX);
            assert!(!sends || self.mac_bus[&0xeb58] & 1 == 0, "sending started with descriptors of 32 bytes");
        }
        self.registers.set(reg::COMMAND, 1, value);
    }

    /// A write to the window onto an inner bus: which register, and its new value if it is a write.
    fn window(value: u32) -> (u16, Option<u16>) {
        ((value >> 16 & 0x7fff) as u16 * 2, (value & FLAG != 0).then_some(value as u16))
    }

    fn write_8125(&mut self, offset: usize, width: usize, value: u32) {
        match offset {
            0x3c => self.acknowledge(value),
            0xb0 => {
                let (address, new) = Self::window(value);
                if let Some(new) = new {
                    self.mac_bus.insert(address, new);
                }
                let now = self.mac_bus.get(&address).copied().unwrap_or(0);
                self.registers.set(offset, 4, now.into());
            }
            0xb8 => {
                let (address, new) = Self::window(value);
                if let Some(new) = new {
                    // Resets end at once, and the PHY holds still when it is asked to.
                    let new = if address == 0xa400 { new & 0x7fff } else { new };
                    self.phy_bus.insert(address, new);
                    self.phy_bus.insert(0xb800, self.phy_bus.get(&0xb820).map_or(0, |request| (request >> 4 & 1) << 6));
                }
                let now = u32::from(self.phy_bus.get(&address).copied().unwrap_or(0));
                let done = if new.is_none() != self.dead_phy { FLAG } else { 0 };
                self.registers.set(offset, 4, done | now);
            }
            // The PCIe PHY is done at once; the own configuration space toggles the flag.
            0x80 => self.registers.set(offset, 4, value & !FLAG),
            0x68 => self.registers.set(offset, 4, value ^ FLAG),
            DOORBELL => {
                assert_eq!((width, value), (2, 1), "the doorbell is bit 0 of 16");
                self.transmit();
            }
            _ => self.registers.set(offset, width, value),
        }
    }

    fn write_8139(&mut self, offset: usize, width: usize, value: u32) {
        match offset {
            0x3e => self.acknowledge(value),
            0xd9 => {
                assert_eq!((width, value), (1, 0x40));
                self.transmit();
            }
            reg::TX_CONFIG | reg::RX_CONFIG => {
                assert!(self.enabled(command::TX | command::RX), "writable only once enabled");
                self.registers.set(offset, width, value);
            }
            reg::CPLUS => {
                // Switching the mode on scribbles over the rings.
                [reg::TX_RING, reg::RX_RING].iter().for_each(|&ring| self.registers.set(ring, 4, 0xdead_0000));
                self.registers.set(offset, width, value);
            }
            _ => self.registers.set(offset, width, value),
        }
    }

    fn acknowledge(&mut self, bits: u32) {
        self.events &= !bits;
        if bits & NO_DESCRIPTOR != 0 {
            self.halted = false;
        }
    }
}

impl Card for RealtekCard {
    fn sent(&mut self) -> &mut Vec<Vec<u8>> {
        &mut self.sent
    }

    fn read(&mut self, offset: usize, width: usize) -> u32 {
        match (self.kind, offset) {
            (Kind::Rtl8125, 0x3c) | (Kind::Cplus8139, 0x3e) => self.events,
            (Kind::Rtl8125, reg::TX_CONFIG) => self.registers.get(offset, 4) & !0x7cf0_0000 | self.chip << 20,
            (Kind::Rtl8125, 0xd3) => self.registers.get(offset, 1) | if self.fifo_never_empty { 0 } else { 0x30 },
            (Kind::Rtl8125, 0xd2) => self.registers.get(offset, width) | 1 << 9,
            (Kind::Rtl8125, 0xe2) => 0x103,
            _ => self.registers.get(offset, width),
        }
    }

    fn write(&mut self, offset: usize, width: usize, value: u32) {
        let unlocked = self.registers.get(reg::LOCK, 1) == u32::from(UNLOCK);
        let guarded = matches!(offset, 0x00..0x08 | 0x51..0x57);
        assert!(unlocked || !guarded, "register {offset:#x} written while locked");
        match (offset, self.kind) {
            (reg::COMMAND, _) => self.set_command(value),
            (_, Kind::Rtl8125) => self.write_8125(offset, width, value),
            (_, Kind::Cplus8139) => self.write_8139(offset, width, value),
        }
    }

    fn bus_master(&mut self) {
        assert!(self.resets > 0, "bus mastering before the reset");
        self.master = true;
    }
}
