//! Starting an 82540 or 82574, after the reset.

use super::ring::{RxRing, TxRing, queue};
use super::{Kind, buffer_len, ctrl, rctl, reg, tctl};
use crate::mmio::Mmio;
use crate::nic::MAX_FRAME;
use crate::start::Platform;

const CTRL_EXT: usize = 0x18;
const TIPG: usize = 0x410;
/// Bit 15 would make the 82574 use another receive descriptor.
const RFCTL: usize = 0x5008;
const AUTO_SPEED: u32 = 1 << 5;

pub(super) fn run(registers: &impl Mmio, kind: Kind, platform: &Platform, rx: &RxRing, tx: &TxRing) {
    if kind == Kind::E1000e {
        // Bit 28: a driver is in charge, not the management firmware.
        registers.write32(CTRL_EXT, registers.read32(CTRL_EXT) | 1 << 28);
        registers.write32(RFCTL, registers.read32(RFCTL) & !(1 << 15));
    }
    let off = ctrl::FORCE_SPEED | ctrl::FORCE_DUPLEX | ctrl::MASTER_DISABLE;
    let on = ctrl::SET_LINK_UP | if kind == Kind::E1000 { AUTO_SPEED } else { 0 };
    registers.write32(reg::CTRL, registers.read32(reg::CTRL) & !off | on);
    rx.place(registers);
    tx.place(registers);
    if kind == Kind::E1000e {
        // Count in descriptors (24, and 22 by the data sheet's order), write back each one at once (16).
        registers.write32(reg::TX_QUEUE + queue::CONTROL, 1 << 24 | 1 << 22 | 1 << 16);
    }
    // Gaps between frames for copper: 8, 8, 6.
    registers.write32(TIPG, 8 | 8 << 10 | 6 << 20);
    // Retries 15, collisions within 64 bytes.
    registers.write32(reg::TCTL, tctl::ENABLE | tctl::PAD | 0xf << 4 | 0x40 << 12);
    registers
        .write32(reg::RCTL, rctl::ENABLE | rctl::BROADCAST | rctl::STRIP_CRC | size_bits(platform.options.max_frame));
    rx.open(registers);
}

/// How `reg::RCTL` names the buffers' size, and that long frames are welcome.
fn size_bits(max_frame: usize) -> u32 {
    const EXTENDED: u32 = 1 << 25;
    let size = match buffer_len(max_frame) {
        16384 => EXTENDED | 1 << 16,
        8192 => EXTENDED | 2 << 16,
        4096 => EXTENDED | 3 << 16,
        _ => 0,
    };
    size | if max_frame > MAX_FRAME { rctl::LONG } else { 0 }
}
