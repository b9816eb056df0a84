//! virtio-net over PCI: what emulators and hypervisors offer instead of a card.
//!
//! After the virtio specification 1.2, sections 2 and 4.1 (PCI), 5.1 (network): the modern interface with split queues. A
//! transitional device works too, if it has the modern interface besides the old.
//!
//! The transport is written out here and not taken from the `virtio-drivers` crate, which would otherwise be the choice: there a
//! machine's memory and mappings come from functions without `self`, so from statics; every frame notifies the device at once,
//! which costs an exit to the hypervisor each, where [`Nic::flush`] costs one for a batch; its waits have no limit; and tests
//! could not use the same register models as for the other cards.
//!
//! Left out: merged receive buffers, offloads, the control queue, several queue pairs, packed queues, the old interface.

mod queue;

use crate::dma::Frames;
use crate::error::StartError;
use crate::mmio::Mmio;
use crate::nic::{Counters, HEADER, JUMBO_FRAME, Mac, Nic, Proven, acceptable};
use crate::pci::{self, Bdf, ConfigSpace};
use crate::start::Platform;
use queue::Queue;

pub(crate) const NAME: &str = "virtio-net";

/// Whether a PCI function is a virtio network device: modern, or transitional.
pub(crate) fn drives(vendor: u16, device: u16) -> bool {
    vendor == 0x1af4 && matches!(device, 0x1041 | 0x1000)
}

/// The common configuration.
pub(crate) mod common {
    pub const DEVICE_SELECT: usize = 0x00;
    pub const DEVICE_FEATURES: usize = 0x04;
    pub const DRIVER_SELECT: usize = 0x08;
    pub const DRIVER_FEATURES: usize = 0x0c;
    pub const STATUS: usize = 0x14;
    pub const QUEUE_SELECT: usize = 0x16;
    pub const QUEUE_SIZE: usize = 0x18;
    pub const QUEUE_ENABLE: usize = 0x1c;
    pub const QUEUE_NOTIFY: usize = 0x1e;
    /// Descriptors, then what the driver writes, then what the device writes.
    pub const QUEUE_ADDRESSES: [usize; 3] = [0x20, 0x28, 0x30];
    pub const LEN: usize = 0x38;
}

/// The network device's own configuration.
pub(crate) mod device {
    pub const MAC: usize = 0;
    pub const STATUS: usize = 6;
    pub const SPEED: usize = 12;
    /// What every device has.
    pub const LEN: usize = 8;
    /// With the speed.
    pub const LONG_LEN: usize = 16;
}

pub(crate) mod status {
    pub const ACKNOWLEDGE: u8 = 1;
    pub const DRIVER: u8 = 2;
    pub const DRIVER_OK: u8 = 4;
    pub const FEATURES_OK: u8 = 8;
    pub const FAILED: u8 = 0x80;
}

pub(crate) mod feature {
    pub const MAC: u64 = 1 << 5;
    pub const STATUS: u64 = 1 << 16;
    pub const VERSION_1: u64 = 1 << 32;
    /// The device goes through the platform's address translation, which does nothing here.
    pub const ACCESS_PLATFORM: u64 = 1 << 33;
    pub const SPEED_DUPLEX: u64 = 1 << 63;
    pub const WANTED: u64 = MAC | STATUS | VERSION_1 | ACCESS_PLATFORM | SPEED_DUPLEX;
}

/// In front of every frame; zeros for a plain one.
const FRAME_HEADER: usize = 12;
/// What the speed is said to be when the device does not say.
const UNKNOWN_SPEED: u32 = 10_000;

/// The device's registers, wherever its capabilities say that they are.
#[derive(Debug)]
pub(crate) struct Windows<M> {
    pub common: M,
    pub notify: M,
    pub notify_len: usize,
    /// Bytes between the doorbells of neighbouring offsets.
    pub notify_step: usize,
    pub device: M,
    pub device_len: usize,
}

/// Where a capability says that a structure is.
#[derive(Clone, Copy)]
struct Place {
    address: u64,
    len: usize,
    /// Where the capability is.
    at: u8,
}

impl<M: Mmio> Windows<M> {
    pub(crate) fn find(
        config: &impl ConfigSpace,
        bdf: Bdf,
        map: &mut impl FnMut(u64, usize) -> Option<M>,
    ) -> Result<Self, StartError> {
        const COMMON: u8 = 1;
        const NOTIFY: u8 = 2;
        const DEVICE: u8 = 4;
        let common = place(config, bdf, COMMON, common::LEN)?;
        let notify = place(config, bdf, NOTIFY, 2)?;
        let device = place(config, bdf, DEVICE, device::LEN)?;
        // Behind the capability's 16 bytes; `place` saw to it that they are there.
        let notify_step = config.read32(bdf, notify.at + 16) as usize;
        let mut map = |place: Place| {
            map(place.address, place.len).ok_or(StartError::NotMapped { address: place.address, len: place.len })
        };
        let (notify_len, device_len) = (notify.len, device.len);
        Ok(Self {
            common: map(common)?,
            notify: map(notify)?,
            notify_len,
            notify_step,
            device: map(device)?,
            device_len,
        })
    }
}

/// The first capability of a type that makes sense.
fn place(config: &impl ConfigSpace, bdf: Bdf, kind: u8, least: usize) -> Result<Place, StartError> {
    const VENDOR: u8 = 9;
    /// Longer than any structure used here.
    const MOST: u32 = 0x1_0000;
    let wanted = |&(id, at): &(u8, u8)| {
        // 20 bytes, the longest capability used, must fit.
        id == VENDOR && at <= 0xec && (config.read32(bdf, at) >> 24) as u8 == kind
    };
    pci::capabilities(config, bdf)
        .filter(wanted)
        .find_map(|(_, at)| {
            let bar = pci::bar(config, bdf, config.read32(bdf, at + 4) as u8).filter(|bar| bar.address != 0)?;
            let (offset, len) = (config.read32(bdf, at + 8), config.read32(bdf, at + 12));
            let inside = u64::from(offset) + u64::from(len) <= bar.len && offset.is_multiple_of(4);
            let len = len.min(MOST) as usize;
            (inside && len >= least).then_some(Place { address: bar.address + u64::from(offset), len, at })
        })
        .ok_or(StartError::NoCapability(kind))
}

/// A running virtio network device.
#[derive(Debug)]
pub struct VirtioNet<M> {
    windows: Windows<M>,
    features: u64,
    mac: Mac,
    max_frame: usize,
    rx: Queue,
    rx_frames: Frames,
    tx: Queue,
    tx_frames: Frames,
    counters: Counters,
}

impl<M: Mmio> VirtioNet<M> {
    pub(crate) fn start(windows: Windows<M>, platform: &mut Platform) -> Result<Self, StartError> {
        platform.options.check(JUMBO_FRAME)?;
        let max_frame = platform.options.max_frame;
        let registers = &windows.common;
        let features = negotiate(registers, platform)?;
        let mac =
            Mac::from_registers(windows.device.read32(device::MAC), windows.device.read16(device::MAC + 4).into());
        platform.admit(mac, device::MAC)?;

        let mut rx = Queue::take(&windows, 0, platform.options.rx_ring, platform)?;
        let tx = Queue::take(&windows, 1, platform.options.tx_ring, platform)?;
        let rx_frames = Frames::take(platform.dma, "receive buffers", rx.count(), FRAME_HEADER + max_frame)?;
        let mut tx_frames = Frames::take(platform.dma, "send buffers", tx.count(), FRAME_HEADER + max_frame)?;
        for index in 0..rx.count() {
            rx.describe(index, rx_frames.physical(index), FRAME_HEADER + max_frame, true);
            rx.offer(index);
        }
        for index in 0..tx.count() {
            tx_frames.bytes_mut(index, 0, FRAME_HEADER).fill(0);
        }
        (platform.bus_master)();
        for (index, queue) in [&rx, &tx].into_iter().enumerate() {
            queue.enable(registers, index as u16);
        }
        registers.write8(common::STATUS, registers.read8(common::STATUS) | status::DRIVER_OK);
        rx.publish();
        rx.notify(&windows.notify);
        let counters = Counters::default();
        Ok(Self { windows, features, mac, max_frame, rx, rx_frames, tx, tx_frames, counters })
    }

    fn nothing_received(&mut self) {
        if self.rx.publish() {
            self.rx.notify(&self.windows.notify);
        }
    }
}

/// Resets the device and agrees on features.
fn negotiate(registers: &impl Mmio, platform: &Platform) -> Result<u64, StartError> {
    registers.write8(common::STATUS, 0);
    let read = || u32::from(registers.read8(common::STATUS));
    platform.wait(("reset", common::STATUS), (100, 10_000), read, |value| value == 0)?;
    registers.write8(common::STATUS, status::ACKNOWLEDGE);
    registers.write8(common::STATUS, status::ACKNOWLEDGE | status::DRIVER);
    let half = |select| {
        registers.write32(common::DEVICE_SELECT, select);
        u64::from(registers.read32(common::DEVICE_FEATURES))
    };
    let offered = half(0) | half(1) << 32;
    let missing = |bit: u64, expected| {
        let value = if bit == feature::VERSION_1 { (offered >> 32) as u32 } else { offered as u32 };
        registers.write8(common::STATUS, status::FAILED);
        StartError::Unexpected { step: "read features", register: common::DEVICE_FEATURES, value, expected }
    };
    if offered & feature::VERSION_1 == 0 {
        return Err(missing(feature::VERSION_1, "a modern device (bit 32)"));
    }
    if offered & feature::MAC == 0 {
        return Err(missing(feature::MAC, "a device with an address of its own (bit 5)"));
    }
    let accepted = offered & feature::WANTED;
    for (select, half) in [(0, accepted as u32), (1, (accepted >> 32) as u32)] {
        registers.write32(common::DRIVER_SELECT, select);
        registers.write32(common::DRIVER_FEATURES, half);
    }
    registers.write8(common::STATUS, status::ACKNOWLEDGE | status::DRIVER | status::FEATURES_OK);
    let value = registers.read8(common::STATUS);
    if value & status::FEATURES_OK == 0 {
        let (step, expected) = ("agree on features", "bit 3: the device accepts our choice");
        return Err(StartError::Unexpected { step, register: common::STATUS, value: value.into(), expected });
    }
    Ok(accepted)
}

impl<M: Mmio> Nic for VirtioNet<M> {
    fn mac(&self) -> [u8; 6] {
        self.mac.0
    }

    /// 10000 if the device does not say.
    fn link_mbps(&mut self) -> u32 {
        let device = &self.windows.device;
        if self.features & feature::STATUS != 0 && device.read16(device::STATUS) & 1 == 0 {
            return 0;
        }
        let says = self.features & feature::SPEED_DUPLEX != 0 && self.windows.device_len >= device::LONG_LEN;
        match if says { device.read32(device::SPEED) } else { 0 } {
            0 | 0x8000_0000.. => UNKNOWN_SPEED,
            speed => speed,
        }
    }

    fn rx(&mut self, frame: &mut dyn FnMut(&[u8])) -> bool {
        for _ in 0..self.rx.count() {
            let Some((index, len)) = self.rx.used() else {
                self.nothing_received();
                return false;
            };
            let good = (FRAME_HEADER + HEADER..=FRAME_HEADER + self.max_frame).contains(&len);
            if let Some(index) = index {
                if good {
                    frame(self.rx_frames.bytes(index, FRAME_HEADER, len - FRAME_HEADER));
                }
                self.rx.offer(index);
            }
            if self.rx.unpublished() >= self.rx.count() / 4 {
                self.nothing_received();
            }
            if good && index.is_some() {
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
        let Some(index) = self.tx.free() else {
            self.counters.tx_full += 1;
            return false;
        };
        let padded = self.tx_frames.put(index, FRAME_HEADER, len, fill);
        self.tx.describe(index, self.tx_frames.physical(index), FRAME_HEADER + padded, false);
        self.tx.offer(index);
        self.counters.tx_frames += 1;
        true
    }

    fn flush(&mut self) {
        if self.tx.publish() {
            self.tx.notify(&self.windows.notify);
        }
    }

    fn max_frame(&self) -> usize {
        self.max_frame
    }

    fn name(&self) -> &'static str {
        NAME
    }

    fn proven(&self) -> Proven {
        Proven::Emulator
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
