//! Realtek cards with 16-byte descriptors: RTL8125 (2.5 Gbit/s), and its ancestor RTL8139C+, which emulators have.
//!
//! Both share the rings ([`ring`]) and half the register map; what differs is in a [`Kind`]. [`start8125`] and [`start8139`] bring
//! them up. Facts about the RTL8125 come from the DPDK project's `drivers/net/r8169` (BSD-3-Clause, Realtek's own).
//!
//! Left out on the RTL8125: patches of the PHY's memory and of the MAC's microcontroller, the PHY's tuning tables for other
//! chips than the usual 8125B (0x641), the hardware's "no-close" way of reporting sent frames, and the duplex fix of cut 0x608.

mod ocp;
mod ring;
mod start8125;
mod start8139;
mod tables;

use crate::error::StartError;
use crate::mmio::Mmio;
use crate::nic::{CRC, Counters, Mac, Nic, Proven, acceptable};
use crate::start::Platform;
use ring::{Polled, RxRing, TxRing};

/// Registers that both kinds have, and those of one kind that are needed after the start.
pub(crate) mod reg {
    pub const MAC_LOW: usize = 0x00;
    pub const MAC_HIGH: usize = 0x04;
    pub const MULTICAST: usize = 0x08;
    pub const TX_RING: usize = 0x20;
    pub const COMMAND: usize = 0x37;
    pub const TX_CONFIG: usize = 0x40;
    pub const RX_CONFIG: usize = 0x44;
    pub const LOCK: usize = 0x50;
    pub const RX_MAX: usize = 0xda;
    pub const CPLUS: usize = 0xe0;
    pub const RX_RING: usize = 0xe4;
    /// RTL8139C+: bit 2 = no link, bit 3 = 10 Mbit/s.
    pub const MEDIA_8139: usize = 0x58;
    pub const PHY_STATUS_8125: usize = 0x6c;
}

/// Bits of [`reg::COMMAND`].
pub(crate) mod command {
    pub const TX: u8 = 0x04;
    pub const RX: u8 = 0x08;
    pub const RESET: u8 = 0x10;
    pub const STOP: u8 = 0x80;
}

pub(crate) const UNLOCK: u8 = 0xc0;
/// Accept frames for the own address, and broadcasts.
pub(crate) const ACCEPT: u32 = 0x02 | 0x08;
/// Received, received with error, no descriptor left: 0x10 on both kinds.
pub(crate) const RX_EVENTS: u32 = 0x01 | 0x02 | NO_DESCRIPTOR;
pub(crate) const NO_DESCRIPTOR: u32 = 0x10;

/// Which of the two register maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Cplus8139,
    Rtl8125,
}

impl Kind {
    /// Frames end at this bit of a returned receive descriptor if they are damaged.
    const fn rx_error(self) -> u32 {
        match self {
            Self::Cplus8139 => 1 << 20,
            Self::Rtl8125 => 1 << 21,
        }
    }

    /// Most descriptors of a ring: the RTL8139C+ starts again after 64, whatever the last one says.
    const fn descriptors(self) -> usize {
        match self {
            Self::Cplus8139 => 64,
            Self::Rtl8125 => 4096,
        }
    }

    const fn length_mask(self) -> u32 {
        match self {
            Self::Cplus8139 => 0x1fff,
            Self::Rtl8125 => 0x3fff,
        }
    }
}

/// A supported card.
#[derive(Debug)]
pub(crate) struct Model {
    pub name: &'static str,
    pub kind: Kind,
    pub bar: u8,
    pub registers: usize,
    pub max_frame: usize,
    pub proven: Proven,
}

static RTL8139: Model = Model {
    name: "rtl8139c+",
    kind: Kind::Cplus8139,
    bar: 1,
    registers: 0x100,
    max_frame: crate::nic::MAX_FRAME,
    proven: Proven::Emulator,
};
static RTL8125: Model = Model {
    name: "rtl8125",
    kind: Kind::Rtl8125,
    bar: 2,
    registers: start8125::REGISTERS,
    max_frame: crate::nic::JUMBO_FRAME,
    proven: Proven::ModelOnly,
};

/// Which model a PCI function is.
pub(crate) fn model(vendor: u16, device: u16, revision: u8) -> Option<&'static Model> {
    match (vendor, device) {
        // Revisions below 0x20 are plain 8139s, without rings.
        (0x10ec, 0x8139) if revision >= 0x20 => Some(&RTL8139),
        (0x10ec, 0x8125 | 0x8162 | 0x3000) => Some(&RTL8125),
        _ => None,
    }
}

/// A running Realtek card.
#[derive(Debug)]
pub struct Realtek<M> {
    registers: M,
    model: &'static Model,
    mac: Mac,
    max_frame: usize,
    rx: RxRing,
    tx: TxRing,
    counters: Counters,
    /// Frames given back since the card was last told that receive descriptors are free.
    unacknowledged: usize,
    /// Frames queued since the last doorbell.
    unsent: bool,
    /// Empty polls in a row.
    idle: u32,
}

/// Empty polls after which a frame that is still waiting gets another doorbell: the cards can lose one that comes at a bad time.
const IDLE_POLLS: u32 = 4096;

impl<M: Mmio> Realtek<M> {
    pub(crate) fn start(registers: M, model: &'static Model, platform: &mut Platform) -> Result<Self, StartError> {
        platform.options.check(model.max_frame)?;
        let mac = match model.kind {
            Kind::Cplus8139 => start8139::reset(&registers, platform)?,
            Kind::Rtl8125 => start8125::reset(&registers, platform)?,
        };
        platform.admit(mac, reg::MAC_LOW)?;
        let options = platform.options;
        let (rx, tx) = (RxRing::take(platform, model.kind)?, TxRing::take(platform, model.kind)?);
        (platform.bus_master)();
        match model.kind {
            Kind::Cplus8139 => start8139::run(&registers, platform, &rx, &tx),
            Kind::Rtl8125 => start8125::run(&registers, platform, mac, &rx, &tx)?,
        }
        let (counters, max_frame) = (Counters::default(), options.max_frame);
        Ok(Self { registers, model, mac, max_frame, rx, tx, counters, unacknowledged: 0, unsent: false, idle: 0 })
    }

    /// Acknowledges receive events, after the descriptors were given back: only then does a card that had run out go on.
    fn acknowledge(&mut self) {
        // Only after a whole ring of frames can the card have run out; else reading the register would be a waste.
        let ran_out = self.unacknowledged >= self.rx.count() && self.events() & NO_DESCRIPTOR != 0;
        self.counters.rx_overruns += u64::from(ran_out);
        match self.model.kind {
            Kind::Cplus8139 => self.registers.write16(start8139::EVENTS, RX_EVENTS as u16),
            Kind::Rtl8125 => self.registers.write32(start8125::EVENTS, RX_EVENTS),
        }
        self.unacknowledged = 0;
    }

    fn events(&self) -> u32 {
        match self.model.kind {
            Kind::Cplus8139 => self.registers.read16(start8139::EVENTS).into(),
            Kind::Rtl8125 => self.registers.read32(start8125::EVENTS),
        }
    }

    fn doorbell(&mut self) {
        crate::dma::publish();
        match self.model.kind {
            Kind::Cplus8139 => self.registers.write8(start8139::DOORBELL, 0x40),
            Kind::Rtl8125 => self.registers.write16(start8125::DOORBELL, 1),
        }
        self.unsent = false;
    }

    fn nothing_received(&mut self) {
        if self.unacknowledged > 0 {
            self.acknowledge();
        }
        self.idle += 1;
        if self.idle >= IDLE_POLLS {
            self.idle = 0;
            // A card that ran out of descriptors while nobody looked, or missed a doorbell, goes on now.
            self.acknowledge();
            if self.tx.waiting() {
                self.doorbell();
            }
        }
    }
}

impl<M: Mmio> Nic for Realtek<M> {
    fn mac(&self) -> [u8; 6] {
        self.mac.0
    }

    fn link_mbps(&mut self) -> u32 {
        match self.model.kind {
            Kind::Cplus8139 => match self.registers.read8(reg::MEDIA_8139) {
                media if media & 4 != 0 => 0,
                media if media & 8 != 0 => 10,
                _ => 100,
            },
            Kind::Rtl8125 => start8125::speed(self.registers.read16(reg::PHY_STATUS_8125)),
        }
    }

    fn rx(&mut self, frame: &mut dyn FnMut(&[u8])) -> bool {
        for _ in 0..self.rx.count() {
            let polled = self.rx.poll(self.max_frame + CRC, frame);
            if polled == Polled::Empty {
                self.nothing_received();
                return false;
            }
            self.idle = 0;
            self.unacknowledged += 1;
            if self.unacknowledged >= self.rx.count() {
                self.acknowledge();
            }
            if polled == Polled::Frame {
                self.counters.rx_frames += 1;
                return true;
            }
            self.counters.rx_errors += 1;
        }
        false
    }

    fn tx(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        if !acceptable(len, self.max_frame, &mut self.counters) {
            return true;
        }
        if !self.tx.put(len, fill) {
            self.counters.tx_full += 1;
            return false;
        }
        self.counters.tx_frames += 1;
        self.unsent = true;
        true
    }

    fn flush(&mut self) {
        if self.unsent {
            self.doorbell();
        }
    }

    fn max_frame(&self) -> usize {
        self.max_frame
    }

    fn name(&self) -> &'static str {
        self.model.name
    }

    fn proven(&self) -> Proven {
        self.model.proven
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
