//! Starting an I225 or I226, after the reset.

use super::ring::{RxRing, TxRing, queue};
use super::{buffer_len, ctrl, rctl, reg, tctl};
use crate::error::StartError;
use crate::mmio::Mmio;
use crate::nic::{CRC, MAX_FRAME};
use crate::start::Platform;

pub(super) const EIMC: usize = 0x1528;
const EECD: usize = 0x10;
const CTRL_EXT: usize = 0x18;
const MDIC: usize = 0x20;
const EEER: usize = 0xe30;
const IPCNFG: usize = 0xe38;
const PHPM: usize = 0xe14;
const RX_BUFFER: usize = 0x2404;
const RX_SPLIT: usize = reg::RX_QUEUE + 0xc;
const TX_BUFFER: usize = 0x3404;
const RX_LONGEST: usize = 0x5004;
const SEMAPHORE: usize = 0x5b50;
const SHARED: usize = 0x5b5c;
const UNICAST: usize = 0xa000;
const RX_OFFLOAD: usize = 0xc038;
const QUEUE_ENABLE: u32 = 1 << 25;

pub(super) fn run(registers: &impl Mmio, platform: &mut Platform, rx: &RxRing, tx: &TxRing) -> Result<(), StartError> {
    let step = ("read own settings", EECD);
    let settings = platform.wait(step, (1000, 10), || registers.read32(EECD), |value| value & 1 << 9 != 0);
    platform.tolerate(settings);
    // How the packet memory is split survives a warm reset: back to what the card has when it powers on.
    registers.write32(RX_BUFFER, 0xa2);
    registers.write32(TX_BUFFER, 0x0400_0014);
    (0..128).for_each(|index| registers.write32(UNICAST + 4 * index, 0));
    // Bit 28: a driver is in charge, not the management firmware.
    registers.write32(CTRL_EXT, registers.read32(CTRL_EXT) | 1 << 28);
    let off = ctrl::FORCE_SPEED | ctrl::FORCE_DUPLEX | ctrl::MASTER_DISABLE;
    registers.write32(reg::CTRL, registers.read32(reg::CTRL) & !off | ctrl::SET_LINK_UP);
    // Off: link disconnect (5), gigabit disabled (6), 2.5 gigabit disabled (11).
    registers.write32(PHPM, registers.read32(PHPM) & !(1 << 5 | 1 << 6 | 1 << 11));
    let phy = start_phy(registers, platform);
    platform.tolerate(phy);
    no_eee(registers);
    start_tx(registers, platform, tx)?;
    start_rx(registers, platform, rx)
}

/// Energy-efficient Ethernet off: not offered, and no low power idle in either direction.
fn no_eee(registers: &impl Mmio) {
    registers.write32(IPCNFG, registers.read32(IPCNFG) & !(1 << 4 | 1 << 3 | 1 << 2));
    registers.write32(EEER, registers.read32(EEER) & !(1 << 16 | 1 << 17 | 1 << 18));
}

fn start_tx(registers: &impl Mmio, platform: &Platform, tx: &TxRing) -> Result<(), StartError> {
    const CONTROL: usize = reg::TX_QUEUE + queue::CONTROL;
    tx.place(registers);
    // Fetch thresholds of 8 and 1 descriptors, each written back at once.
    registers.write32(CONTROL, QUEUE_ENABLE | 1 << 16 | 1 << 8 | 8);
    enabled(registers, platform, ("enable send queue", CONTROL))?;
    registers.write32(reg::TCTL, tctl::ENABLE | tctl::PAD | 0xf << 4);
    Ok(())
}

fn start_rx(registers: &impl Mmio, platform: &Platform, rx: &RxRing) -> Result<(), StartError> {
    const CONTROL: usize = reg::RX_QUEUE + queue::CONTROL;
    let max_frame = platform.options.max_frame;
    rx.place(registers);
    registers.write32(RX_LONGEST, (max_frame + CRC) as u32);
    // One buffer a frame, in KiB.
    registers.write32(RX_SPLIT, 1 << 25 | (buffer_len(max_frame) / 1024) as u32);
    // The queue's own bit for taking the check sequence off; VLAN tags stay.
    registers.write32(RX_OFFLOAD, registers.read32(RX_OFFLOAD) & !(1 << 30) | 1 << 31);
    registers.write32(CONTROL, QUEUE_ENABLE | 1 << 16 | 8 << 8 | 8);
    enabled(registers, platform, ("enable receive queue", CONTROL))?;
    let long = if max_frame > MAX_FRAME { rctl::LONG } else { 0 };
    registers.write32(reg::RCTL, rctl::ENABLE | rctl::BROADCAST | rctl::STRIP_CRC | long);
    rx.open(registers);
    Ok(())
}

fn enabled(registers: &impl Mmio, platform: &Platform, step: (&'static str, usize)) -> Result<(), StartError> {
    platform.wait(step, (1000, 10), || registers.read32(step.1), |value| value & QUEUE_ENABLE != 0)
}

/// Wakes the PHY and negotiates anew, with 2.5 Gbit/s on offer and without pause frames. The firmware uses the PHY too, so this
/// happens under the semaphore.
fn start_phy(registers: &impl Mmio, platform: &Platform) -> Result<(), StartError> {
    /// Standard registers: control, what is on offer, the same for gigabit; a window onto the rest: select, then data.
    const CONTROL: u32 = 0;
    const OFFER: u32 = 4;
    const OFFER_1000: u32 = 9;
    const SELECT: u32 = 13;
    const DATA: u32 = 14;
    /// Through the window: device 7, register 0x20, of which bit 7 offers 2.5 Gbit/s.
    const DEVICE: u16 = 7;
    const OFFER_2500: u16 = 0x20;

    acquire(registers, platform)?;
    let read = |register| mdio(registers, platform, register, None);
    let write = |register, value| mdio(registers, platform, register, Some(value));
    let talk = || {
        write(OFFER, read(OFFER)? & !0x0c00 | 0x01e0)?;
        write(OFFER_1000, read(OFFER_1000)? & !0x0100 | 0x0200)?;
        write(SELECT, DEVICE)?;
        write(DATA, OFFER_2500)?;
        write(SELECT, 1 << 14 | DEVICE)?;
        write(DATA, read(DATA)? | 1 << 7)?;
        write(SELECT, 0)?;
        // Power on (bit 11 = 0), negotiate, anew.
        write(CONTROL, 1 << 12 | 1 << 9)
    };
    let result = talk();
    release(registers, platform)?;
    result.map(drop)
}

/// One transfer with the PHY: a write if there is a value. What the register holds after.
fn mdio(registers: &impl Mmio, platform: &Platform, register: u32, value: Option<u16>) -> Result<u16, StartError> {
    const WRITE: u32 = 1 << 26;
    const READ: u32 = 2 << 26;
    const READY: u32 = 1 << 28;
    const ERROR: u32 = 1 << 30;
    let command = value.map_or(READ, |value| WRITE | u32::from(value));
    registers.write32(MDIC, command | register << 16);
    platform.wait(("talk to PHY", MDIC), (50, 2000), || registers.read32(MDIC), |value| value & READY != 0)?;
    let value = registers.read32(MDIC);
    if value & ERROR != 0 {
        return Err(StartError::Unexpected {
            step: "talk to PHY",
            register: MDIC,
            value,
            expected: "no error (bit 30)",
        });
    }
    Ok(value as u16)
}

const PHY_OURS: u32 = 0x2;
const PHY_FIRMWARE: u32 = PHY_OURS << 16;

/// Takes the inner semaphore: first among drivers, then against the firmware.
fn semaphore(registers: &impl Mmio, platform: &Platform) -> Result<(), StartError> {
    let read = || registers.read32(SEMAPHORE);
    let among_drivers = platform.wait(("semaphore among drivers", SEMAPHORE), (50, 2000), read, |value| value & 1 == 0);
    if among_drivers.is_err() {
        // Whoever left it taken is gone: this is the only driver.
        registers.write32(SEMAPHORE, 0);
    }
    for _ in 0..2000 {
        registers.write32(SEMAPHORE, read() | 2);
        if read() & 2 != 0 {
            return Ok(());
        }
        platform.delay_us(50);
    }
    Err(StartError::TimedOut { step: "semaphore against firmware", register: SEMAPHORE, value: read() })
}

fn put_semaphore(registers: &impl Mmio) {
    registers.write32(SEMAPHORE, registers.read32(SEMAPHORE) & !3);
}

/// Takes the PHY.
fn acquire(registers: &impl Mmio, platform: &Platform) -> Result<(), StartError> {
    for _ in 0..200 {
        semaphore(registers, platform)?;
        let shared = registers.read32(SHARED);
        if shared & PHY_FIRMWARE == 0 {
            registers.write32(SHARED, shared | PHY_OURS);
            put_semaphore(registers);
            return Ok(());
        }
        put_semaphore(registers);
        platform.delay_us(5000);
    }
    Err(StartError::TimedOut { step: "take PHY from firmware", register: SHARED, value: registers.read32(SHARED) })
}

/// Gives the PHY back.
fn release(registers: &impl Mmio, platform: &Platform) -> Result<(), StartError> {
    semaphore(registers, platform)?;
    registers.write32(SHARED, registers.read32(SHARED) & !PHY_OURS);
    put_semaphore(registers);
    Ok(())
}
