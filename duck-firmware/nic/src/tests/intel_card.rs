//! A model of the Intel cards.

use super::bench::{Card, MAC, Memory, Registers};
use crate::intel::{ctrl, rctl, reg, status, tctl};

const RX: usize = reg::RX_QUEUE;
const TX: usize = reg::TX_QUEUE;
const HEAD: usize = 0x10;
const TAIL: usize = 0x18;
const CONTROL: usize = 0x28;
const ENABLE: u32 = 1 << 25;

pub(crate) struct IntelCard {
    pub igc: bool,
    pub memory: Memory,
    pub registers: Registers,
    pub phy: [u16; 32],
    /// Behind the PHY's window: device 7, register 0x20.
    pub offer_2500: u16,
    pub sent: Vec<Vec<u8>>,
    /// Whether sent frames are reported as done.
    pub reports: bool,
    pub missed: u32,
    pub stuck_in_reset: bool,
    pub never_enables: bool,
    pub master_never_idle: bool,
    pub firmware_keeps_phy: bool,
    pub gone: bool,
    resets: usize,
    master: bool,
}

impl IntelCard {
    pub(crate) fn new(igc: bool, memory: &Memory) -> Self {
        let mut registers = Registers::new(0x1_0000);
        // What the firmware may have left: receiving.
        registers.set(reg::RCTL, 4, rctl::ENABLE);
        registers.0[reg::ADDRESS..reg::ADDRESS + 6].copy_from_slice(&MAC);
        Self {
            igc,
            memory: memory.clone(),
            registers,
            phy: [0; 32],
            offer_2500: 0,
            sent: Vec::new(),
            reports: true,
            missed: 0,
            stuck_in_reset: false,
            never_enables: false,
            master_never_idle: false,
            firmware_keeps_phy: false,
            gone: false,
            resets: 0,
            master: false,
        }
    }

    fn count(&self, queue: usize) -> u32 {
        self.registers.get(queue + 8, 4) / 16
    }

    fn queue_runs(&self, queue: usize, control: usize, enable: u32) -> bool {
        let enabled = !self.igc || self.registers.get(queue + CONTROL, 4) & ENABLE != 0;
        enabled && self.registers.get(control, 4) & enable != 0
    }

    fn descriptor(&self, queue: usize) -> Option<u64> {
        assert!(self.master, "the card would reach memory without being allowed");
        let (head, tail) = (self.registers.get(queue + HEAD, 4), self.registers.get(queue + TAIL, 4));
        (head != tail).then(|| self.registers.get64(queue) + 16 * u64::from(head))
    }

    fn advance(&mut self, queue: usize) {
        let head = (self.registers.get(queue + HEAD, 4) + 1) % self.count(queue);
        self.registers.set(queue + HEAD, 4, head);
    }

    pub(crate) fn transmit(&mut self) {
        assert!(self.queue_runs(TX, reg::TCTL, tctl::ENABLE), "sent before sending was enabled");
        while let Some(at) = self.descriptor(TX) {
            let (command, rest) = (self.memory.read32(at + 8), self.memory.read32(at + 12));
            let len = command & 0xffff;
            if self.igc {
                // Data descriptor, extended, report, check sequence, end.
                assert_eq!(command >> 16, 0x2b30, "{command:#x}");
                assert_eq!(rest, len << 14);
            } else {
                assert_eq!((command >> 16, rest), (0x0b00, 0));
            }
            self.sent.push(self.memory.bytes(self.memory.read64(at), len as usize));
            self.advance(TX);
            if self.reports {
                self.memory.write(at + 12, &1u32.to_le_bytes());
            }
        }
    }

    /// Reports everything sent so far as done.
    pub(crate) fn report(&mut self, first: u64, count: u64) {
        for index in first..first + count {
            self.memory.write(self.registers.get64(TX) + 16 * index + 12, &1u32.to_le_bytes());
        }
    }

    /// A frame arrives from the wire.
    pub(crate) fn arrive(&mut self, frame: &[u8]) {
        self.deliver(frame, frame.len(), 3, 0);
    }

    /// Writes `bytes` into the next buffer and says that they are `len`, with a status and error byte.
    pub(crate) fn deliver(&mut self, bytes: &[u8], len: usize, state: u8, errors: u8) {
        let address = bytes[..6] == self.registers.0[reg::ADDRESS..reg::ADDRESS + 6];
        let accepted = address || bytes[..6] == [0xff; 6] && self.registers.get(reg::RCTL, 4) & rctl::BROADCAST != 0;
        if !self.queue_runs(RX, reg::RCTL, rctl::ENABLE) || !accepted {
            return;
        }
        let Some(at) = self.descriptor(RX) else {
            self.missed += 1;
            return;
        };
        let room = if self.igc { (self.registers.get(RX + 0xc, 4) & 0x7f) * 1024 } else { self.legacy_room() };
        assert!(bytes.len() <= room as usize, "{} bytes in a buffer of {room}", bytes.len());
        self.memory.write(self.memory.read64(at), bytes);
        let [low, high] = (len as u16).to_le_bytes();
        let written = match self.igc {
            true => [state, 0, 0, errors, low, high, 0, 0],
            false => [low, high, 0, 0, state, errors, 0, 0],
        };
        self.memory.write(at + 8, &written);
        self.advance(RX);
    }

    fn legacy_room(&self) -> u32 {
        let control = self.registers.get(reg::RCTL, 4);
        match (control >> 16 & 3, control & 1 << 25 != 0) {
            (size, false) => 2048 >> size,
            (size, true) => 32768 >> size,
        }
    }

    fn mdio(&mut self, value: u32) -> u32 {
        let register = (value >> 16 & 0x1f) as usize;
        let window = register == 14 && self.phy[13] == 0x4007 && self.phy[12] == 0x20;
        match (value >> 26 & 3, window) {
            (1, true) => self.offer_2500 = value as u16,
            (2, true) => return 1 << 28 | u32::from(self.offer_2500),
            // What the window reaches is kept in a register of its own.
            (1, false) if register == 14 => self.phy[12] = value as u16,
            (1, false) => self.phy[register] = value as u16,
            _ => {}
        }
        1 << 28 | u32::from(self.phy[register])
    }

    fn write_control(&mut self, value: u32) {
        if value & ctrl::RESET == 0 {
            return self.registers.set(reg::CTRL, 4, value);
        }
        assert!(!self.igc || value & ctrl::MASTER_DISABLE != 0, "reset in the middle of a transfer");
        self.resets += 1;
        self.registers.set(reg::RCTL, 4, 0);
        self.registers.set(reg::CTRL, 4, if self.stuck_in_reset { ctrl::RESET } else { 0 });
    }
}

impl Card for IntelCard {
    fn sent(&mut self) -> &mut Vec<Vec<u8>> {
        &mut self.sent
    }

    fn read(&mut self, offset: usize, width: usize) -> u32 {
        assert_eq!(width, 4, "all registers are of 32 bits");
        match offset {
            _ if self.gone => u32::MAX,
            reg::STATUS => self.registers.get(offset, 4) | if self.master_never_idle { status::MASTER } else { 0 },
            reg::MISSED => std::mem::take(&mut self.missed),
            // Own settings read.
            0x10 => 1 << 9,
            0x5b5c if self.firmware_keeps_phy => 2 << 16,
            _ => self.registers.get(offset, 4),
        }
    }

    fn write(&mut self, offset: usize, width: usize, value: u32) {
        assert_eq!(width, 4, "all registers are of 32 bits");
        match offset {
            reg::CTRL => self.write_control(value),
            0x20 if self.igc => {
                assert_eq!(self.registers.get(0x5b5c, 4) & 2, 2, "the PHY used without its semaphore");
                let result = self.mdio(value);
                self.registers.set(offset, 4, result);
            }
            _ if self.igc && offset == RX + TAIL && value != 0 => {
                assert!(self.queue_runs(RX, reg::RCTL, rctl::ENABLE), "descriptors given before the queue is enabled");
                self.registers.set(offset, 4, value);
            }
            _ if (offset == RX + CONTROL || offset == TX + CONTROL) && self.never_enables => {
                self.registers.set(offset, 4, value & !ENABLE);
            }
            _ if offset == RX + TAIL || offset == TX + TAIL => {
                assert!(value < self.count(offset - TAIL) || value == 0, "tail outside the ring");
                self.registers.set(offset, 4, value);
                if offset == TX + TAIL && (value != 0 || self.queue_runs(TX, reg::TCTL, tctl::ENABLE)) {
                    self.transmit();
                }
            }
            _ => self.registers.set(offset, 4, value),
        }
    }

    fn bus_master(&mut self) {
        assert!(self.resets > 0, "bus mastering before the reset");
        self.master = true;
    }
}
