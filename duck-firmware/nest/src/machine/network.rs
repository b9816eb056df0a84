//! The duck's frames and time, on a network card that is polled.

use alloc::boxed::Box;
use alloc::vec;

use nic::{AnyNic, Bar, Bdf, ConfigSpace, Nic};
use node::Carrier;
use wire::Micros;
use x86_64::instructions::port::Port;

use super::apic::Apic;
use super::{clock, smp};

/// Frames handed over before the next look at what is to be done.
const BATCH: usize = 64;
/// How long a duck sleeps between two looks at its card where the processor may be shared, and where it may not but nothing has come for a while:
/// what a first frame after a pause waits at most.
pub const TICK_POLITE: Micros = 500;
/// The same.
pub const TICK: Micros = 200;
/// How long nothing must have come before a processor that is the duck's own sleeps.
const AWAKE: Micros = 100_000;

/// The card, and the way to sleep between looks at it.
#[derive(Debug)]
pub struct Network {
    nic: AnyNic<Bar>,
    apic: Apic,
    polite: bool,
    heard: Micros,
    /// A frame that found no room in the card's queue, and its length; 0 for none.
    held: Box<[u8]>,
    held_len: usize,
}

impl Network {
    /// `polite`: the processor may be shared with others.
    pub fn new(nic: AnyNic<Bar>, apic: Apic, polite: bool) -> Network {
        let held = vec![0; nic.max_frame()].into();
        Network { nic, apic, polite, heard: 0, held, held_len: 0 }
    }
}

impl Carrier for Network {
    fn mac(&self) -> [u8; 6] {
        self.nic.mac()
    }

    fn now(&self) -> Micros {
        clock::now()
    }

    fn rx(&mut self, each: &mut dyn FnMut(&[u8])) -> usize {
        let mut came = 0;
        while came < BATCH && self.nic.rx(each) {
            came += 1;
        }
        if came > 0 {
            self.heard = clock::now();
        }
        came
    }

    fn tx(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        // The card's queue wants the length first, so a frame is written here and then copied.
        let Network { nic, held, held_len, .. } = self;
        let mut queue = |held: &[u8], len: usize| nic.tx(len, &mut |buffer| buffer.copy_from_slice(&held[..len]));
        if *held_len > 0 {
            if !queue(held, *held_len) {
                return false;
            }
            *held_len = 0;
        }
        let len = fill(held).min(held.len());
        if len > 0 && !queue(held, len) {
            *held_len = len;
        }
        len > 0
    }

    fn flush(&mut self) {
        self.nic.flush();
    }

    fn wait(&mut self, micros: Micros) {
        if self.polite {
            smp::nap(self.apic, micros.min(TICK_POLITE));
        } else if clock::now() < self.heard + AWAKE {
            core::hint::spin_loop();
        } else {
            smp::nap(self.apic, micros.min(TICK));
        }
    }

    fn pause(&mut self, _: u32) {
        // Without a pause where somebody emulates it by taking locks.
        if !self.polite {
            core::hint::spin_loop();
        }
    }
}

/// PCI configuration by the old ports.
#[derive(Debug)]
pub struct Ports;

impl Ports {
    fn select(bdf: Bdf, offset: u8) {
        let address = 1 << 31 | u32::from(bdf.bus) << 16 | u32::from(bdf.device) << 11 | u32::from(bdf.function) << 8;
        // SAFETY: the configuration address port; only the first core uses it.
        unsafe { Port::new(0xcf8).write(address | u32::from(offset & !3)) };
    }
}

impl ConfigSpace for Ports {
    fn read32(&self, bdf: Bdf, offset: u8) -> u32 {
        Ports::select(bdf, offset);
        // SAFETY: the configuration data port, for the address just selected.
        unsafe { Port::new(0xcfc).read() }
    }

    fn write32(&self, bdf: Bdf, offset: u8, value: u32) {
        Ports::select(bdf, offset);
        // SAFETY: as above; drivers write to their own devices.
        unsafe { Port::new(0xcfc).write(value) };
    }
}
