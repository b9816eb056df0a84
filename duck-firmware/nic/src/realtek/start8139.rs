//! Starting an RTL8139C+ in its "C+" mode, in which it uses descriptor rings.

use super::ring::{RxRing, TxRing};
use super::{ACCEPT, UNLOCK, command, reg};
use crate::error::StartError;
use crate::mmio::Mmio;
use crate::nic::{CRC, Mac};
use crate::start::Platform;

pub(super) const MASK: usize = 0x3c;
pub(super) const EVENTS: usize = 0x3e;
pub(super) const DOORBELL: usize = 0xd9;
/// The ring of high priority, which stays empty.
const TX_HIGH_RING: usize = 0x28;
/// How much of a frame must be in the card before it starts sending, in 32 bytes: with 192 it does not run dry.
const TX_THRESHOLD: usize = 0xec;

/// Resets the card and says its address.
pub(super) fn reset(registers: &impl Mmio, platform: &mut Platform) -> Result<Mac, StartError> {
    registers.write16(MASK, 0);
    registers.write8(reg::COMMAND, command::RESET);
    platform.wait(
        ("reset", reg::COMMAND),
        (100, 1000),
        || registers.read8(reg::COMMAND).into(),
        |value| value & u32::from(command::RESET) == 0,
    )?;
    registers.write16(MASK, 0);
    registers.write16(EVENTS, 0xffff);
    Ok(Mac::from_registers(registers.read32(reg::MAC_LOW), registers.read32(reg::MAC_HIGH)))
}

/// Rings, then sending and receiving. C+ mode comes before the ring addresses: switching it on may scribble over them.
pub(super) fn run(registers: &impl Mmio, platform: &mut Platform, rx: &RxRing, tx: &TxRing) {
    registers.write8(reg::LOCK, UNLOCK);
    // Bit 0: send, bit 1: receive by descriptors. No checksums (5), no VLAN (6).
    registers.write16(reg::CPLUS, 3);
    for (ring, address) in [(reg::TX_RING, tx.physical()), (TX_HIGH_RING, 0), (reg::RX_RING, rx.physical())] {
        registers.write32(ring, address as u32);
        registers.write32(ring + 4, (address >> 32) as u32);
    }
    registers.write16(reg::RX_MAX, (platform.options.max_frame + CRC) as u16);
    registers.write8(TX_THRESHOLD, 6);
    registers.write32(reg::MULTICAST, 0);
    registers.write32(reg::MULTICAST + 4, 0);
    registers.write8(reg::LOCK, 0);
    crate::dma::publish();
    registers.write8(reg::COMMAND, command::TX | command::RX);
    // Both are writable only now. Gap of 96 bit times, DMA bursts of 2048; no receive threshold, unlimited bursts.
    registers.write32(reg::TX_CONFIG, 3 << 24 | 7 << 8);
    registers.write32(reg::RX_CONFIG, 7 << 13 | 7 << 8 | ACCEPT);
}
