//! Finding cards on the PCI buses and preparing them: power state, link power management, base address registers.
//!
//! Works on the 256 bytes of configuration space that the old ports reach. Nothing in it is trusted: every walk is bounded, so
//! that a broken device makes the search fail and never hang. Bus numbers and addresses are taken as the firmware left them;
//! resources are not assigned here.

use core::fmt;

use crate::mmio::Clock;

/// Access to PCI configuration space. Offsets are multiples of 4 below 256. Reads where there is no device give all ones.
pub trait ConfigSpace {
    /// Reads 32 bits.
    fn read32(&self, bdf: Bdf, offset: u8) -> u32;
    /// Writes 32 bits.
    fn write32(&self, bdf: Bdf, offset: u8, value: u32);
}

/// Where a function is: bus, device, function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bdf {
    /// 0 to 255.
    pub bus: u8,
    /// 0 to 31.
    pub device: u8,
    /// 0 to 7.
    pub function: u8,
}

impl fmt::Display for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}:{:02x}.{}", self.bus, self.device, self.function)
    }
}

/// What the first words of a function's configuration space say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Where it is.
    pub bdf: Bdf,
    /// Who made it.
    pub vendor: u16,
    /// What they call it.
    pub device: u16,
    /// The chip's revision.
    pub revision: u8,
    /// Base class and subclass; 02xx is a network card, 0604 a bridge.
    pub class: u16,
    /// The layout of the rest, without the flag of several functions: 0 a device, 1 a bridge.
    pub header: u8,
    /// Whether functions 1 to 7 may exist; meaningful in function 0.
    pub several: bool,
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:04x}:{:04x}", self.bdf, self.vendor, self.device)
    }
}

impl Function {
    fn read<C: ConfigSpace + ?Sized>(config: &C, bdf: Bdf) -> Option<Self> {
        let id = config.read32(bdf, 0);
        // All ones: nobody there. All zeros: some host bridges.
        if matches!(id as u16, 0xffff | 0) {
            return None;
        }
        let (class, header) = (config.read32(bdf, 8), (config.read32(bdf, 0xc) >> 16) as u8);
        Some(Self {
            bdf,
            vendor: id as u16,
            device: (id >> 16) as u16,
            revision: class as u8,
            class: (class >> 16) as u16,
            header: header & 0x7f,
            several: header & 0x80 != 0,
        })
    }

    /// Whether it is a network card.
    pub const fn is_network(&self) -> bool {
        self.class >> 8 == 2
    }

    const fn is_bridge(&self) -> bool {
        self.header == 1
    }
}

/// Every function on every bus, in order. All 256 buses are tried, whether a bridge leads there or not: 8192 reads, some 20 ms,
/// and no bridge can send the search in circles.
pub fn functions<C: ConfigSpace + ?Sized>(config: &C) -> impl Iterator<Item = Function> {
    (0..=255).flat_map(move |bus| {
        (0..32).flat_map(move |device| {
            let read = move |function| Function::read(config, Bdf { bus, device, function });
            let first = read(0);
            let last = if first.is_some_and(|first| first.several) { 8 } else { 1 };
            first.into_iter().chain((1..last).filter_map(read))
        })
    })
}

/// Calls `visit` for the bridges above a bus, nearest first.
pub fn bridges_above<C: ConfigSpace + ?Sized>(config: &C, bus: u8, mut visit: impl FnMut(Bdf)) {
    let mut below = bus;
    // A bridge's own bus has a smaller number than the one behind it, so the chain ends.
    while below > 0 {
        let above = functions(config)
            .take_while(|found| found.bdf.bus < below)
            .find(|found| found.is_bridge() && (config.read32(found.bdf, 0x18) >> 8) as u8 == below);
        let Some(bridge) = above else { return };
        visit(bridge.bdf);
        below = bridge.bdf.bus;
    }
}

/// The identifiers of capabilities that are used here.
mod id {
    pub const POWER: u8 = 1;
    pub const EXPRESS: u8 = 0x10;
}

/// The capabilities of a function: identifier and offset. At most 48 fit into configuration space, so a list that goes in
/// circles ends there.
pub fn capabilities<C: ConfigSpace + ?Sized>(config: &C, bdf: Bdf) -> impl Iterator<Item = (u8, u8)> {
    let has = config.read32(bdf, 4) & 1 << 20 != 0;
    let mut next = if has { config.read32(bdf, 0x34) as u8 & 0xfc } else { 0 };
    (0..48).map_while(move |_| {
        let at = next;
        if at < 0x40 {
            return None;
        }
        let header = config.read32(bdf, at);
        next = (header >> 8) as u8 & 0xfc;
        (header as u8 != 0xff).then_some((header as u8, at))
    })
}

fn capability<C: ConfigSpace + ?Sized>(config: &C, bdf: Bdf, wanted: u8) -> Option<u8> {
    capabilities(config, bdf).find(|&(id, _)| id == wanted).map(|(_, at)| at)
}

const COMMAND: u8 = 4;
const COMMAND_IO: u32 = 1;
const COMMAND_MEMORY: u32 = 2;
const COMMAND_MASTER: u32 = 4;
const COMMAND_NO_INTX: u32 = 1 << 10;

/// Changes bits of the command register. The upper half is status, whose bits clear when written as 1: so it is written as 0.
fn command<C: ConfigSpace + ?Sized>(config: &C, bdf: Bdf, clear: u32, set: u32) {
    let value = config.read32(bdf, COMMAND) & 0xffff & !clear | set;
    config.write32(bdf, COMMAND, value);
}

/// Lets a function read and write memory. Only after its reset: the firmware may have left it receiving.
pub fn enable_bus_master<C: ConfigSpace + ?Sized>(config: &C, bdf: Bdf) {
    command(config, bdf, 0, COMMAND_MASTER);
}

/// Stops a function reading and writing memory.
pub fn disable_bus_master<C: ConfigSpace + ?Sized>(config: &C, bdf: Bdf) {
    command(config, bdf, COMMAND_MASTER, 0);
}

/// Prepares a function for its driver: bus master and interrupts off, power state D0, memory on, link power management off on
/// the whole way up, bridges forwarding.
pub fn prepare<C: ConfigSpace + ?Sized>(config: &C, bdf: Bdf, clock: &dyn Clock) {
    command(config, bdf, COMMAND_MASTER, COMMAND_NO_INTX);
    power_up(config, bdf, clock);
    command(config, bdf, COMMAND_MASTER, COMMAND_MEMORY | COMMAND_NO_INTX);
    // Of a link's two ends the lower is to stop first.
    calm_link(config, bdf);
    bridges_above(config, bdf.bus, |bridge| {
        calm_link(config, bridge);
        command(config, bridge, 0, COMMAND_MEMORY | COMMAND_MASTER);
    });
}

/// Power state D0. A card that slept may have forgotten its addresses: they are put back.
fn power_up<C: ConfigSpace + ?Sized>(config: &C, bdf: Bdf, clock: &dyn Clock) {
    let Some(at) = capability(config, bdf, id::POWER).and_then(|at| at.checked_add(4)) else { return };
    let state = config.read32(bdf, at);
    if state & 3 == 0 {
        return;
    }
    let bars: [u32; 6] = core::array::from_fn(|index| config.read32(bdf, bar_offset(index as u8)));
    // State bits 1:0; wake-up enable bit 8 off; bit 15 clears when written as 1: left alone.
    config.write32(bdf, at, state & 0x7efc);
    clock.delay_us(10_000);
    for (index, &bar) in bars.iter().enumerate() {
        let offset = bar_offset(index as u8);
        if config.read32(bdf, offset) != bar {
            config.write32(bdf, offset, bar);
        }
    }
}

/// Switches off ASPM (L0s, L1) and clock power management in Link Control. They cost latency, and make RTL8125 and I225 hang.
fn calm_link<C: ConfigSpace + ?Sized>(config: &C, bdf: Bdf) {
    let Some(at) = capability(config, bdf, id::EXPRESS).and_then(|at| at.checked_add(0x10)) else { return };
    // The upper half is Link Status, with bits that clear when written as 1.
    let control = config.read32(bdf, at) & 0xffff;
    if control & 0x103 != 0 {
        config.write32(bdf, at, control & !0x103);
    }
}

/// A base address register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarInfo {
    /// Which of the six.
    pub index: u8,
    /// Physical address, 0 if the firmware assigned none.
    pub address: u64,
    /// Bytes.
    pub len: u64,
}

const fn bar_offset(index: u8) -> u8 {
    0x10 + 4 * index
}

/// The memory behind a base address register. `None` if there is none, if it is of ports, or if it makes no sense. Its size is
/// found by writing ones, with the function's decoding off meanwhile.
pub fn bar<C: ConfigSpace + ?Sized>(config: &C, bdf: Bdf, index: u8) -> Option<BarInfo> {
    if index > 5 {
        return None;
    }
    let low = config.read32(bdf, bar_offset(index));
    let wide = low & 6 == 4;
    if low & 1 != 0 || wide && index == 5 {
        return None;
    }
    let before = config.read32(bdf, COMMAND) & 0xffff;
    config.write32(bdf, COMMAND, before & !(COMMAND_IO | COMMAND_MEMORY));
    let (low, low_mask) = probe_bar(config, bdf, index);
    let (high, high_mask) = if wide { probe_bar(config, bdf, index + 1) } else { (0, u32::MAX) };
    config.write32(bdf, COMMAND, before);

    let mask = u64::from(high_mask) << 32 | u64::from(low_mask & !0xf);
    let len = (!mask).wrapping_add(1);
    let address = u64::from(high) << 32 | u64::from(low & !0xf);
    let sensible = low_mask & !0xf != 0 && len.is_power_of_two() && address.is_multiple_of(len);
    sensible.then_some(BarInfo { index, address, len })
}

/// One register's value, and what stays of all ones in it.
fn probe_bar<C: ConfigSpace + ?Sized>(config: &C, bdf: Bdf, index: u8) -> (u32, u32) {
    let offset = bar_offset(index);
    let value = config.read32(bdf, offset);
    config.write32(bdf, offset, u32::MAX);
    let mask = config.read32(bdf, offset);
    config.write32(bdf, offset, value);
    (value, mask)
}
