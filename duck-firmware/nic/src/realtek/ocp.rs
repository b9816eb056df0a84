//! The RTL8125's two windows onto its inner buses, and the one onto its PCIe PHY.

use crate::error::StartError;
use crate::mmio::Mmio;
use crate::start::Platform;

const EPHY: usize = 0x80;
const MAC: usize = 0xb0;
const PHY: usize = 0xb8;
const CSI_DATA: usize = 0x64;
const CSI_ADDRESS: usize = 0x68;
/// Start a write; in the PHY's window also: a read is done, a write is not.
const FLAG: u32 = 1 << 31;

/// Reads a register of the MAC's inner bus. `address` is even.
pub(super) fn mac_read(registers: &impl Mmio, address: u16) -> u16 {
    registers.write32(MAC, u32::from(address / 2) << 16);
    registers.read32(MAC) as u16
}

/// Writes a register of the MAC's inner bus.
pub(super) fn mac_write(registers: &impl Mmio, address: u16, value: u16) {
    registers.write32(MAC, FLAG | u32::from(address / 2) << 16 | u32::from(value));
}

/// Clears, then sets bits.
pub(super) fn mac_change(registers: &impl Mmio, address: u16, clear: u16, set: u16) {
    mac_write(registers, address, mac_read(registers, address) & !clear | set);
}

/// Access to the PHY. A window that does not answer is noted once, and does not stop the start: so does the vendor's driver.
pub(super) struct Phy<'a, 'b, M> {
    pub registers: &'a M,
    pub platform: &'a mut Platform<'b>,
    pub silent: bool,
}

impl<M: Mmio> Phy<'_, '_, M> {
    fn settle(&mut self, step: (&'static str, usize), done: impl Fn(u32) -> bool) {
        // After one silence the others are waited for only briefly, else a dead PHY costs seconds.
        let tries = if self.silent { 10 } else { 20_000 };
        let result = self.platform.wait(step, (1, tries), || self.registers.read32(step.1), done);
        if !self.silent {
            self.silent = result.is_err();
            self.platform.tolerate(result);
        }
    }

    /// Reads a register of the PHY.
    pub(super) fn read(&mut self, address: u16) -> u16 {
        self.registers.write32(PHY, u32::from(address / 2) << 16);
        self.settle(("read PHY", PHY), |value| value & FLAG != 0);
        self.registers.read32(PHY) as u16
    }

    /// Writes a register of the PHY.
    pub(super) fn write(&mut self, address: u16, value: u16) {
        self.registers.write32(PHY, FLAG | u32::from(address / 2) << 16 | u32::from(value));
        self.settle(("write PHY", PHY), |value| value & FLAG == 0);
    }

    /// Clears, then sets bits.
    pub(super) fn change(&mut self, address: u16, clear: u16, set: u16) {
        let value = self.read(address) & !clear | set;
        self.write(address, value);
    }

    /// Writes a register of the PCIe PHY.
    pub(super) fn ephy_write(&mut self, register: u8, value: u16) {
        self.registers.write32(EPHY, FLAG | u32::from(register & 0x7f) << 16 | u32::from(value));
        self.settle(("write PCIe PHY", EPHY), |value| value & FLAG == 0);
        self.platform.delay_us(20);
    }
}

/// The address of register `index` of the MII's standard page.
pub(super) const fn mii(index: u16) -> u16 {
    ((0xa40 + index / 8) << 4) + (index % 8) * 2
}

/// Sets bits in the card's own PCI configuration space; `address` is a multiple of 4.
pub(super) fn config_set(
    registers: &impl Mmio,
    platform: &Platform,
    address: u32,
    bits: u32,
) -> Result<(), StartError> {
    const ALL_BYTES: u32 = 0xf << 12;
    let step = ("own configuration space", CSI_ADDRESS);
    let flag = || registers.read32(CSI_ADDRESS);
    registers.write32(CSI_ADDRESS, ALL_BYTES | address);
    platform.wait(step, (1, 20_000), flag, |value| value & FLAG != 0)?;
    platform.delay_us(20);
    let value = registers.read32(CSI_DATA);
    registers.write32(CSI_DATA, value | bits);
    registers.write32(CSI_ADDRESS, FLAG | ALL_BYTES | address);
    platform.wait(step, (1, 20_000), flag, |value| value & FLAG == 0)?;
    platform.delay_us(20);
    Ok(())
}
