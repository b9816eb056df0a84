//! Starting an RTL8125, in the order of its vendor's polling driver (DPDK's `drivers/net/r8169`).
//!
//! Undocumented registers are written by number: the MAC's and PHY's inner buses have no published names. Waits that the
//! vendor's driver ignores when they run out are kept as notes; only a reset that does not end, and a chip that is not known,
//! stop the start.

use super::ocp::{Phy, config_set, mac_change, mac_write, mii};
use super::ring::{RxRing, TxRing};
use super::{ACCEPT, UNLOCK, command, reg, tables};
use crate::error::StartError;
use crate::mmio::Mmio;
use crate::nic::{CRC, HEADER, Mac};
use crate::start::Platform;

const INTERRUPT_MAP: usize = 0x34;
const MASK: usize = 0x38;
pub(super) const EVENTS: usize = 0x3c;
const CONFIG1: usize = 0x52;
const CONFIG2: usize = 0x53;
const CONFIG5: usize = 0x56;
const TX_FETCH: usize = 0x57;
const TIMERS: [usize; 4] = [0x58, 0x5c, 0x8c, 0xf4];
const POWER: usize = 0x6f;
const INTERRUPT_MAP1: usize = 0x7a;
pub(super) const DOORBELL: usize = 0x90;
const DASH: usize = 0xd0;
const FIFO_READY: usize = 0xd2;
/// 0x80: the management firmware has the card; 0x20 and 0x10: send and receive FIFO empty.
const MCU: usize = 0xd3;
const RX_FORMAT: usize = 0xd8;
const IDLE_QUEUES: usize = 0xe2;
const CLOCK_REQUEST: usize = 0xf1;
/// Bit 3 keeps received frames out.
const GATE: usize = 0xf2;
const TCAM: usize = 0x382;
const MITIGATION: core::ops::Range<usize> = 0xa00..0xb00;
const UNNAMED_1880: usize = 0x1880;
const FACTORY_MAC: usize = 0x19e0;
const RSS: usize = 0x4500;
const QUEUES: usize = 0x4800;

/// The highest register: windows must reach beyond it.
pub(super) const REGISTERS: usize = QUEUES + 4;

/// Generations whose start differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    A,
    B,
    Bp,
    D,
    Cp,
}

#[derive(Clone, Copy, Debug)]
struct Chip {
    id: u32,
    family: Family,
}

impl Chip {
    fn read(registers: &impl Mmio) -> Result<Self, StartError> {
        let value = registers.read32(reg::TX_CONFIG);
        let id = (value & 0x7cf0_0000) >> 20;
        let family = match id {
            0x608 | 0x609 => Family::A,
            0x640 | 0x641 => Family::B,
            0x680 | 0x681 => Family::Bp,
            0x688..=0x68a => Family::D,
            0x708 => Family::Cp,
            _ => {
                let expected = "bits 30:20 of an RTL8125: 608, 609, 640, 641, 680, 681, 688, 689, 68a or 708";
                return Err(StartError::Unexpected {
                    step: "identify chip",
                    register: reg::TX_CONFIG,
                    value,
                    expected,
                });
            }
        };
        Ok(Self { id, family })
    }

    const fn is_a(self) -> bool {
        matches!(self.family, Family::A)
    }

    /// Chips that can use other receive descriptors than the plain ones.
    const fn has_rx_formats(self) -> bool {
        matches!(self.family, Family::Bp | Family::D | Family::Cp)
    }
}

fn change8(registers: &impl Mmio, offset: usize, clear: u8, set: u8) {
    registers.write8(offset, registers.read8(offset) & !clear | set);
}

fn change32(registers: &impl Mmio, offset: usize, clear: u32, set: u32) {
    registers.write32(offset, registers.read32(offset) & !clear | set);
}

/// The speed that the PHY status register says, in Mbit/s.
pub(super) const fn speed(status: u16) -> u32 {
    match status {
        status if status & 0x02 == 0 => 0,
        status if status & 0x400 != 0 => 2500,
        status if status & 0x10 != 0 => 1000,
        status if status & 0x08 != 0 => 100,
        _ => 10,
    }
}

/// Takes the card from whoever had it, resets it and says its address.
pub(super) fn reset(registers: &impl Mmio, platform: &mut Platform) -> Result<Mac, StartError> {
    registers.write32(MASK, 0);
    registers.write32(EVENTS, u32::MAX);
    let chip = Chip::read(registers)?;
    leave_management(registers, chip, platform)?;
    quiet(registers, chip, platform);
    nic_reset(registers, chip, platform)?;
    Ok(Mac::from_registers(registers.read32(FACTORY_MAC), registers.read16(FACTORY_MAC + 4).into()))
}

/// Everything after the reset: PHY, MAC, rings, link.
pub(super) fn run(
    registers: &impl Mmio,
    platform: &mut Platform,
    mac: Mac,
    rx: &RxRing,
    tx: &TxRing,
) -> Result<(), StartError> {
    let chip = Chip::read(registers)?;
    set_mac(registers, mac);
    start_phy(registers, chip, platform);
    configure(registers, chip, platform)?;
    start_tx(registers, chip, tx);
    start_rx(registers, chip, platform, rx);
    start_link(registers, platform);
    Ok(())
}

/// Stops the card and resets it: gate, stop requests, empty FIFOs, reset.
fn nic_reset(registers: &impl Mmio, chip: Chip, platform: &mut Platform) -> Result<(), StartError> {
    change32(registers, reg::RX_CONFIG, 0x3f, 0);
    change8(registers, GATE, 0, 0x08);
    change8(registers, reg::COMMAND, 0, command::STOP);
    let command = || u32::from(registers.read8(reg::COMMAND));
    if chip.is_a() {
        let stop = u32::from(command::STOP);
        platform.tolerate(platform.wait(("stop requests", reg::COMMAND), (10, 20), command, |value| value & stop == 0));
    } else {
        platform.delay_us(200);
    }
    let mcu = || u32::from(registers.read8(MCU));
    platform.tolerate(platform.wait(("wait for FIFO empty", MCU), (50, 3000), mcu, |value| value & 0x30 == 0x30));
    if !chip.is_a() {
        let idle = || u32::from(registers.read16(IDLE_QUEUES));
        let step = ("wait for queues idle", IDLE_QUEUES);
        platform.tolerate(platform.wait(step, (50, 3000), idle, |value| value & 0x103 == 0x103));
    }
    registers.write8(reg::COMMAND, registers.read8(reg::COMMAND) & (command::TX | command::RX));
    registers.write8(reg::COMMAND, command::RESET);
    platform.wait(("reset", reg::COMMAND), (100, 100), command, |value| value & u32::from(command::RESET) == 0)
}

/// Takes the card out of "out of band" mode, in which its firmware receives by itself.
fn leave_management(registers: &impl Mmio, chip: Chip, platform: &mut Platform) -> Result<(), StartError> {
    nic_reset(registers, chip, platform)?;
    change8(registers, MCU, 0x80, 0);
    mac_change(registers, 0xe8de, 1 << 14, 0);
    let ready = || u32::from(registers.read16(FIFO_READY));
    let step = ("wait for shared FIFO", FIFO_READY);
    platform.tolerate(platform.wait(step, (100, 10), ready, |value| value & 1 << 9 != 0));
    let mtu = platform.options.max_frame - HEADER;
    // From 9500 on the vendor writes 5ca; frames here are never that long.
    mac_write(registers, 0xc0a6, ((14215 + mtu) >> 4) as u16);
    mac_write(registers, 0xc0aa, 0x06be);
    mac_write(registers, 0xc01e, 0x5555);
    platform.tolerate(platform.wait(step, (100, 10), ready, |value| value & 1 << 9 != 0));
    Ok(())
}

/// Power saving of the card's own off, old microcode patches out.
fn quiet(registers: &impl Mmio, chip: Chip, platform: &mut Platform) {
    change8(registers, CLOCK_REQUEST, 0x80, 0);
    registers.write8(reg::LOCK, UNLOCK);
    no_aspm(registers, chip);
    registers.write8(reg::LOCK, 0);
    mac_change(registers, 0xd40a, 1 << 4, 0);
    // Microcode break points: first the switch, then their addresses, then the base once the microcontroller is out of them.
    mac_write(registers, 0xfc48, 0);
    (0xfc28..0xfc48).step_by(2).for_each(|address| mac_write(registers, address, 0));
    platform.delay_us(3000);
    mac_write(registers, 0xfc26, 0);
    // Masks an uncorrectable error that the card reports about itself.
    platform.tolerate(config_set(registers, platform, 0x108, 1 << 20));
}

/// The card's side of link power management. Configuration registers must be unlocked.
fn no_aspm(registers: &impl Mmio, chip: Chip) {
    match chip.family {
        Family::Cp => change8(registers, INTERRUPT_MAP, 1 << 3, 0),
        _ => change8(registers, CONFIG2, 0x80, 0),
    }
    change8(registers, CONFIG5, 1, 0);
}

fn set_mac(registers: &impl Mmio, mac: Mac) {
    let (low, high) = mac.registers();
    registers.write8(reg::LOCK, UNLOCK);
    registers.write32(reg::MAC_HIGH, high);
    registers.write32(reg::MAC_LOW, low);
    registers.write8(reg::LOCK, 0);
}

const BMCR: u16 = mii(0);
const ADVERTISE: u16 = mii(4);
const ADVERTISE_1000: u16 = mii(9);
const ADVERTISE_2500: u16 = 0xa5d4;
const AUTONEGOTIATE: u16 = 1 << 12;

/// Wakes and resets the PHY, and switches its power saving off.
fn start_phy(registers: &impl Mmio, chip: Chip, platform: &mut Platform) {
    change8(registers, POWER, 0, 0xc0);
    let mut phy = Phy { registers, platform, silent: false };
    phy.write(BMCR, AUTONEGOTIATE);
    phy_wait(&mut phy, ("wake PHY (register a420)", 0xa420), 100, |value| value & 7 == 3);
    if chip.id == 0x641 {
        tables::EPHY_8125B.iter().for_each(|&(register, value)| phy.ephy_write(register, value));
    }
    // Nothing to offer while it resets.
    phy.change(ADVERTISE, 0x01e0, 0);
    phy.change(ADVERTISE_1000, 0x0300, 0);
    phy.change(ADVERTISE_2500, 0x0080, 0);
    phy.write(BMCR, 1 << 15 | AUTONEGOTIATE);
    phy_wait(&mut phy, ("reset PHY (register a400)", BMCR), 2500, |value| value & 1 << 15 == 0);
    if chip.id == 0x641 {
        tables::PHY_8125B.iter().for_each(|&(address, clear, set)| phy.change(address, clear, set));
        phy.read(0xb906);
        phy.change(0xa424, 0, 0x0008);
    }
    // ALDPS, a power saving without link.
    phy.change(0xa430, 1 << 2, 0);
    phy.change(0xa5b4, 1 << 15, 0);
    no_eee(&mut phy, chip);
}

fn phy_wait<M: Mmio>(phy: &mut Phy<'_, '_, M>, step: (&'static str, u16), ms: u32, done: impl Fn(u16) -> bool) {
    let mut value = 0;
    for _ in 0..if phy.silent { 1 } else { ms } {
        value = phy.read(step.1);
        if done(value) {
            return;
        }
        phy.platform.delay_us(1000);
    }
    let (step, register) = (step.0, step.1.into());
    phy.platform.tolerate(Err(StartError::TimedOut { step, register, value: value.into() }));
}

/// Energy-efficient Ethernet off: waking from it takes tens of microseconds.
fn no_eee<M: Mmio>(phy: &mut Phy<'_, '_, M>, chip: Chip) {
    mac_change(phy.registers, 0xe040, 0x0003, 0);
    if chip.is_a() {
        mac_change(phy.registers, 0xeb62, 0x0006, 0);
        phy.change(0xa432, 1 << 4, 0);
    } else {
        phy.change(0xa432, 0, 1 << 4);
    }
    phy.change(0xa5d0, 0x0006, 0);
    phy.change(0xa6d4, 0x0001, 0);
    phy.change(0xa6d8, 1 << 4, 0);
    phy.change(0xa428, 1 << 7, 0);
    phy.change(0xa4a2, 1 << 9, 0);
    // The vendor's own extension of it. While it runs, the PHY must be asked to hold still.
    let locked = phy.read(0xa430) & 1 << 15 != 0;
    if locked {
        phy.change(0xb820, 0, 1 << 4);
        phy_wait(phy, ("hold PHY (register b800)", 0xb800), 100, |value| value & 1 << 6 != 0);
    }
    mac_change(phy.registers, 0xe052, 1, 0);
    phy.change(0xa442, 0x3000, 0);
    phy.change(0xa430, 1 << 15, 0);
    if locked {
        phy.change(0xb820, 1 << 4, 0);
        phy_wait(phy, ("release PHY (register b800)", 0xb800), 100, |value| value & 1 << 6 == 0);
    }
}

/// The MAC's settings, behind a second reset since the PHY's may have disturbed it.
fn configure(registers: &impl Mmio, chip: Chip, platform: &mut Platform) -> Result<(), StartError> {
    nic_reset(registers, chip, platform)?;
    registers.write8(reg::LOCK, UNLOCK);
    change8(registers, CLOCK_REQUEST, 0x80, 0);
    no_aspm(registers, chip);
    // Magic packets off.
    mac_write(registers, 0xc0b6, 0);
    // Unlimited bursts, the usual gap between frames; bit 6 = 0: the card gives send descriptors back.
    registers.write32(reg::TX_CONFIG, 7 << 8 | 3 << 24);
    if matches!(chip.family, Family::A | Family::B) {
        registers.write16(TCAM, 0x221b);
    }
    change8(registers, CONFIG1, 0x10, 0);
    mac_write(registers, 0xc140, 0xffff);
    mac_write(registers, 0xc142, 0xffff);
    // Send descriptors of 16 bytes, not 32.
    mac_change(registers, 0xeb58, 1, 0);
    if chip.has_rx_formats() {
        // Plain receive descriptors (bit 1); and the check sequence stays on frames (bit 0), as on the older chips.
        change8(registers, RX_FORMAT, 0x01 | 0x02, 0);
    }
    if chip.family == Family::Cp {
        mac_change(registers, 0xe00c, 1 << 12, 0);
        mac_change(registers, 0xc0c2, 1 << 6, 0);
    }
    mac_change(registers, 0xe63e, 0x0030, 0x0020);
    mac_change(registers, 0xc0b4, 0x0001, 0);
    mac_change(registers, 0xc0b4, 0, 0x0001);
    mac_change(registers, 0xc0b4, 0, 0x000c);
    mac_change(registers, 0xeb6a, 0x00ff, 0x0033);
    mac_change(registers, 0xeb50, 0x03e0, 0x0040);
    mac_change(registers, 0xe056, 0x00f0, 0);
    mac_change(registers, 0xe040, 1 << 12, 0);
    mac_change(registers, 0xea1c, 0x0003, 0x0001);
    mac_write(registers, 0xe0c0, if chip.family == Family::D { 0x4403 } else { 0x4000 });
    mac_change(registers, 0xe052, 0, 0x0060);
    mac_change(registers, 0xe052, 0x0088, 0);
    mac_change(registers, 0xc0ac, 0, 0x1f80);
    mac_change(registers, 0xd430, 0x0fff, 0x045f);
    change8(registers, DASH, 0, 0x40);
    change8(registers, GATE, 0, 0x40);
    change8(registers, DASH, 0, 0x80);
    if chip.is_a() {
        change8(registers, MCU, 0, 0x01);
    }
    mac_change(registers, 0xe080, 1 << 1, 0);
    mac_change(registers, 0xea1c, 1 << 2, 0);
    // Empties the table of address filters.
    mac_change(registers, 0xeb54, 0, 1);
    platform.delay_us(1);
    mac_change(registers, 0xeb54, 1, 0);
    registers.write16(UNNAMED_1880, registers.read16(UNNAMED_1880) & !0x0030);
    no_interrupts(registers, chip);
    mac_write(registers, 0xe098, 0xc302);
    // The old arrangement of the interrupt registers: that of `EVENTS`.
    change8(registers, INTERRUPT_MAP, 0x01, 0);
    registers.write8(reg::LOCK, 0);
    platform.delay_us(10);
    Ok(())
}

/// Timers and the holding back of interrupts off.
fn no_interrupts(registers: &impl Mmio, chip: Chip) {
    TIMERS.iter().for_each(|&timer| registers.write32(timer, 0));
    if chip.is_a() {
        MITIGATION.step_by(4).for_each(|offset| registers.write32(offset, 0));
    } else {
        MITIGATION.take(0x80).step_by(4).for_each(|offset| registers.write32(offset, 0));
        change8(registers, INTERRUPT_MAP, 0x06, 0);
        registers.write16(INTERRUPT_MAP1, 0);
    }
}

fn ring(registers: &impl Mmio, offset: usize, address: u64) {
    registers.write32(offset, address as u32);
    registers.write32(offset + 4, (address >> 32) as u32);
}

fn start_tx(registers: &impl Mmio, chip: Chip, tx: &TxRing) {
    ring(registers, reg::TX_RING, tx.physical());
    registers.write8(reg::LOCK, UNLOCK);
    mac_change(registers, 0xe614, 0x0700, if chip.family == Family::B { 2 } else { 3 } << 8);
    registers.write8(TX_FETCH, 0x10);
    registers.write8(reg::LOCK, 0);
    // One queue.
    mac_change(registers, 0xe63e, 0x0c00, 0);
    crate::dma::publish();
    change8(registers, reg::COMMAND, 0, command::TX);
}

fn start_rx(registers: &impl Mmio, chip: Chip, platform: &Platform, rx: &RxRing) {
    ring(registers, reg::RX_RING, rx.physical());
    registers.write16(reg::RX_MAX, (platform.options.max_frame + CRC) as u16);
    registers.write8(reg::LOCK, UNLOCK);
    // One queue, no spreading by hashes, no checksums.
    registers.write32(RSS, 0);
    change32(registers, QUEUES, 7 << 2, 0);
    registers.write16(reg::CPLUS, registers.read16(reg::CPLUS) & !(1 << 5));
    // No multicast.
    registers.write32(reg::MULTICAST, 0);
    registers.write32(reg::MULTICAST + 4, 0);
    change8(registers, GATE, 0x08, 0);
    // Fetch 8 descriptors; give several back at once; pause slot; bursts of 256.
    let by_family = match chip.family {
        Family::A => 0,
        Family::B => 1 << 11,
        Family::Bp | Family::D | Family::Cp => 1 << 21 | 1 << 11,
    };
    registers.write32(reg::RX_CONFIG, 1 << 30 | by_family | 4 << 8 | ACCEPT);
    registers.write8(reg::LOCK, 0);
    change8(registers, reg::COMMAND, 0, command::RX);
}

/// Negotiates anew with everything to offer: up to 2500 Mbit/s, full duplex only above 100.
fn start_link(registers: &impl Mmio, platform: &mut Platform) {
    let mut phy = Phy { registers, platform, silent: false };
    // "Giga lite", a slower gigabit over bad cables.
    phy.change(0xa428, 1 << 9, 0);
    phy.change(0xa5ea, 1, 0);
    // 10 and 100 Mbit/s, both duplexes; no pause frames: they can stall sending, and the host paces itself.
    phy.change(ADVERTISE, 0x0c00, 0x01e0);
    phy.change(ADVERTISE_1000, 0x0100, 0x0200);
    phy.change(ADVERTISE_2500, 0, 0x0080);
    phy.write(BMCR, AUTONEGOTIATE | 1 << 9);
}
