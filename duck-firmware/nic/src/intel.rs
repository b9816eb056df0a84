//! Intel cards with rings between a head and a tail register: e1000 (82540), e1000e (82574), igc (I225, I226).
//!
//! They share the register map but for details, and the [`ring`]s but for the descriptors' format. [`e1000`] and [`igc`] bring
//! them up. Facts come from the DPDK project's `drivers/net/intel/e1000` (BSD-3-Clause, Intel's own) and the data sheets.
//!
//! Left out: I210, I211, I219 and the 82576 (whose rings would fit), flow control, RSS, time stamps.

mod e1000;
mod igc;
mod ring;

use crate::error::StartError;
use crate::mmio::Mmio;
use crate::nic::{CRC, Counters, JUMBO_FRAME, MAX_FRAME, Mac, Nic, Proven, acceptable};
use crate::start::Platform;
use ring::{Format, Polled, RxRing, TxRing};

/// Registers that all have.
pub(crate) mod reg {
    pub const CTRL: usize = 0x0;
    pub const STATUS: usize = 0x8;
    pub const ICR: usize = 0xc0;
    pub const IMC: usize = 0xd8;
    pub const RCTL: usize = 0x100;
    pub const TCTL: usize = 0x400;
    /// The first receive queue; see [`ring::queue`].
    pub const RX_QUEUE: usize = 0x2800;
    /// The first send queue.
    pub const TX_QUEUE: usize = 0x3800;
    /// Frames missed for want of room; reading clears it.
    pub const MISSED: usize = 0x4010;
    pub const MULTICAST: usize = 0x5200;
    pub const ADDRESS: usize = 0x5400;
}

pub(crate) mod ctrl {
    /// No new requests to memory.
    pub const MASTER_DISABLE: u32 = 1 << 2;
    pub const SET_LINK_UP: u32 = 1 << 6;
    pub const FORCE_SPEED: u32 = 1 << 11;
    pub const FORCE_DUPLEX: u32 = 1 << 12;
    pub const RESET: u32 = 1 << 26;
}

pub(crate) mod status {
    pub const LINK: u32 = 1 << 1;
    /// Requests to memory are still under way.
    pub const MASTER: u32 = 1 << 19;
    pub const SPEED_2500: u32 = 1 << 22;
}

pub(crate) mod rctl {
    pub const ENABLE: u32 = 1 << 1;
    pub const LONG: u32 = 1 << 5;
    pub const BROADCAST: u32 = 1 << 15;
    pub const STRIP_CRC: u32 = 1 << 26;
}

pub(crate) mod tctl {
    pub const ENABLE: u32 = 1 << 1;
    pub const PAD: u32 = 1 << 3;
}

/// The address in `reg::ADDRESS` is valid.
const ADDRESS_VALID: u32 = 1 << 31;

/// The highest register of the largest map: windows must reach beyond it.
pub(crate) const REGISTERS: usize = 0x1_0000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// 82540: conventional PCI.
    E1000,
    /// 82574: PCI Express.
    E1000e,
    /// I225, I226.
    Igc,
}

/// A supported card.
#[derive(Debug)]
pub(crate) struct Model {
    pub name: &'static str,
    kind: Kind,
    max_frame: usize,
    proven: Proven,
}

static E1000: Model = Model { name: "e1000", kind: Kind::E1000, max_frame: JUMBO_FRAME, proven: Proven::Emulator };
static E1000E: Model = Model { name: "e1000e", kind: Kind::E1000e, max_frame: JUMBO_FRAME, proven: Proven::Emulator };
static E1000E_SHORT: Model = Model { max_frame: MAX_FRAME, ..E1000E };
static IGC: Model = Model { name: "igc", kind: Kind::Igc, max_frame: JUMBO_FRAME, proven: Proven::ModelOnly };

/// Which model a PCI function is.
pub(crate) fn model(vendor: u16, device: u16) -> Option<&'static Model> {
    match (vendor, device) {
        // 82540EM, 82545EM.
        (0x8086, 0x100e | 0x100f) => Some(&E1000),
        // 82574L, 82574LA.
        (0x8086, 0x10d3 | 0x10f6) => Some(&E1000E),
        // 82583V.
        (0x8086, 0x150c) => Some(&E1000E_SHORT),
        // I225-LM, -V, -IT, -I; I226-LM, -V, -IT.
        (0x8086, 0x15f2 | 0x15f3 | 0x0d9f | 0x15f8 | 0x125b | 0x125c | 0x125d) => Some(&IGC),
        _ => None,
    }
}

/// A running Intel card.
#[derive(Debug)]
pub struct Intel<M> {
    registers: M,
    model: &'static Model,
    mac: Mac,
    max_frame: usize,
    rx: RxRing,
    tx: TxRing,
    counters: Counters,
    /// Frames in a row without an empty poll between.
    burst: usize,
}

impl<M: Mmio> Intel<M> {
    pub(crate) fn start(registers: M, model: &'static Model, platform: &mut Platform) -> Result<Self, StartError> {
        platform.options.check(model.max_frame)?;
        reset(&registers, model.kind, platform)?;
        let mac = read_mac(&registers, platform)?;
        let format = if model.kind == Kind::Igc { Format::Advanced } else { Format::Legacy };
        let (rx, tx) = (RxRing::take(platform, format)?, TxRing::take(platform, format)?);
        (platform.bus_master)();
        filter(&registers, mac);
        match model.kind {
            Kind::E1000 | Kind::E1000e => e1000::run(&registers, model.kind, platform, &rx, &tx),
            Kind::Igc => igc::run(&registers, platform, &rx, &tx)?,
        }
        let (counters, max_frame) = (Counters::default(), platform.options.max_frame);
        Ok(Self { registers, model, mac, max_frame, rx, tx, counters, burst: 0 })
    }

    fn nothing_received(&mut self) {
        self.rx.publish(&self.registers);
        // Only after a whole ring of frames can the card have missed some; else reading the register would be a waste.
        if self.burst >= self.rx.count() {
            self.look_for_overrun();
        }
        self.burst = 0;
    }

    fn look_for_overrun(&mut self) {
        self.counters.rx_overruns += u64::from(self.registers.read32(reg::MISSED) != 0);
        self.burst = 0;
    }
}

/// Stops the card's traffic with memory and resets it.
fn reset(registers: &impl Mmio, kind: Kind, platform: &mut Platform) -> Result<(), StartError> {
    let status = registers.read32(reg::STATUS);
    if status == u32::MAX {
        let expected = "anything but all ones: the card does not answer";
        return Err(StartError::Unexpected { step: "read status", register: reg::STATUS, value: status, expected });
    }
    if kind != Kind::E1000 {
        registers.write32(reg::CTRL, registers.read32(reg::CTRL) | ctrl::MASTER_DISABLE);
        let idle = platform.wait(
            ("stop requests to memory", reg::STATUS),
            (100, 800),
            || registers.read32(reg::STATUS),
            |value| value & status::MASTER == 0,
        );
        platform.tolerate(idle);
    }
    mask_interrupts(registers, kind);
    registers.write32(reg::RCTL, 0);
    registers.write32(reg::TCTL, tctl::PAD);
    platform.delay_us(10_000);
    registers.write32(reg::CTRL, registers.read32(reg::CTRL) | ctrl::RESET);
    // The card must not be touched for at least 3 ms; it also reads its settings anew.
    platform.delay_us(20_000);
    let step = ("reset", reg::CTRL);
    let done = |value| value != u32::MAX && value & ctrl::RESET == 0;
    platform.wait(step, (1000, 100), || registers.read32(reg::CTRL), done)?;
    mask_interrupts(registers, kind);
    registers.read32(reg::ICR);
    Ok(())
}

fn mask_interrupts(registers: &impl Mmio, kind: Kind) {
    registers.write32(reg::IMC, u32::MAX);
    if kind == Kind::Igc {
        registers.write32(igc::EIMC, u32::MAX);
    }
}

/// The address that the card read from its own memory while it was reset.
fn read_mac(registers: &impl Mmio, platform: &Platform) -> Result<Mac, StartError> {
    let (low, high) = (registers.read32(reg::ADDRESS), registers.read32(reg::ADDRESS + 4));
    let mac = Mac::from_registers(low, high);
    platform.admit(mac, reg::ADDRESS)?;
    Ok(mac)
}

/// Own address and nothing else; broadcasts come by a bit in `reg::RCTL`.
fn filter(registers: &impl Mmio, mac: Mac) {
    let (low, high) = mac.registers();
    registers.write32(reg::ADDRESS, low);
    registers.write32(reg::ADDRESS + 4, high | ADDRESS_VALID);
    (0..128).for_each(|index| registers.write32(reg::MULTICAST + 4 * index, 0));
}

impl<M: Mmio> Nic for Intel<M> {
    fn mac(&self) -> [u8; 6] {
        self.mac.0
    }

    fn link_mbps(&mut self) -> u32 {
        let status = self.registers.read32(reg::STATUS);
        match status >> 6 & 3 {
            // All ones: the card is gone.
            _ if status & status::LINK == 0 || status == u32::MAX => 0,
            0 => 10,
            1 => 100,
            _ if self.model.kind == Kind::Igc && status & status::SPEED_2500 != 0 => 2500,
            _ => 1000,
        }
    }

    fn rx(&mut self, frame: &mut dyn FnMut(&[u8])) -> bool {
        for _ in 0..self.rx.count() {
            let polled = self.rx.poll(self.max_frame, frame);
            if polled == Polled::Empty {
                self.nothing_received();
                return false;
            }
            self.burst += 1;
            if self.rx.publish_some(&self.registers) && self.burst >= 2 * self.rx.count() {
                self.look_for_overrun();
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
        true
    }

    fn flush(&mut self) {
        self.tx.publish(&self.registers);
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

/// Receive buffers with room for a frame and its check sequence, in a size that every kind can be told.
fn buffer_len(max_frame: usize) -> usize {
    [2048, 4096, 8192].into_iter().find(|&len| max_frame + CRC <= len).unwrap_or(16384)
}
