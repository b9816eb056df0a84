//! The local interrupt controller: a timer, and interrupts to other cores. By registers in memory, or as model-specific registers where the
//! firmware has switched to those.

use core::sync::atomic::{AtomicU64, Ordering};

use spin::Once;
use x86_64::registers::model_specific::Msr;

use super::clock;
use super::traps::{SPURIOUS, TIMER};

const BASE: u32 = 0x1b;
const X2APIC: u64 = 1 << 10;
const ENABLE: u64 = 1 << 11;

const ID: usize = 0x20;
const END: usize = 0xb0;
const SPURIOUS_VECTOR: usize = 0xf0;
const COMMAND: usize = 0x300;
const COMMAND_HIGH: usize = 0x310;
const TIMER_VECTOR: usize = 0x320;
const PRIORITY: usize = 0x80;
const IN_SERVICE: usize = 0x100;
const THERMAL: usize = 0x330;
const COUNTERS: usize = 0x340;
const ERROR: usize = 0x370;
const LINE_0: usize = 0x350;
const INITIAL: usize = 0x380;
const CURRENT: usize = 0x390;
const DIVIDE: usize = 0x3e0;
const BY_16: u32 = 3;
const MASKED: u32 = 1 << 16;

/// Where the registers are; 0 where they are model-specific ones.
static REGISTERS: AtomicU64 = AtomicU64::new(0);
/// Timer ticks of a second.
static HERTZ: Once<u64> = Once::new();

/// The calling core's own controller.
#[derive(Clone, Copy, Debug)]
pub struct Apic(());

impl Apic {
    /// Finds out how to reach it; `map` makes a page of registers accessible, and says where. Once, on the first core.
    pub fn find(map: impl FnOnce(u64) -> Option<u64>) -> Option<Apic> {
        // SAFETY: every x86-64 processor has this register.
        let base = unsafe { Msr::new(BASE).read() };
        if base & X2APIC == 0 {
            REGISTERS.store(map(base & 0x000f_ffff_ffff_f000)?, Ordering::Relaxed);
        }
        Some(Apic(()))
    }

    /// Switches the calling core's on.
    pub fn start(self) {
        let mut base = Msr::new(BASE);
        // SAFETY: the register exists; only the enabling bits change, as the first core has them.
        unsafe {
            let mode = if self.is_x2() { X2APIC } else { 0 };
            let value = base.read() | ENABLE;
            base.write(value);
            if value & X2APIC != mode {
                base.write(value | mode);
            }
        }
        self.write(SPURIOUS_VECTOR, 1 << 8 | u32::from(SPURIOUS));
        self.write(TIMER_VECTOR, MASKED);
        // Whatever firmware has left at work or unanswered: none of it may keep a tick or a wake-up from coming.
        self.write(PRIORITY, 0);
        [THERMAL, COUNTERS, ERROR].into_iter().for_each(|register| self.write(register, MASKED));
        for _ in 0..256 {
            if (0..8).all(|i| self.read(IN_SERVICE + 16 * i) == 0) {
                break;
            }
            self.end();
        }
        // The old controller's line: nothing of its may come between a tick and a core that sleeps until then.
        self.write(LINE_0, MASKED);
        self.write(DIVIDE, BY_16);
    }

    fn is_x2(self) -> bool {
        self.end_of_interrupt() == 0
    }

    /// Address of the register that ends an interrupt; 0 where it is a model-specific one.
    pub fn end_of_interrupt(self) -> u64 {
        match REGISTERS.load(Ordering::Relaxed) {
            0 => 0,
            base => base + END as u64,
        }
    }

    fn read(self, register: usize) -> u32 {
        // SAFETY: the controller is in the mode that was found, where this page, or this register, is the calling core's controller.
        unsafe {
            match REGISTERS.load(Ordering::Relaxed) {
                0 => Msr::new(0x800 + register as u32 / 16).read() as u32,
                base => ((base + register as u64) as *const u32).read_volatile(),
            }
        }
    }

    fn write(self, register: usize, value: u32) {
        // SAFETY: as in `read`; the values are this module's.
        unsafe {
            match REGISTERS.load(Ordering::Relaxed) {
                0 => Msr::new(0x800 + register as u32 / 16).write(value.into()),
                base => ((base + register as u64) as *mut u32).write_volatile(value),
            }
        }
    }

    /// Ends the interrupt that is being handled.
    pub fn end(self) {
        self.write(END, 0);
    }

    /// The calling core's identifier.
    pub fn id(self) -> u32 {
        if self.is_x2() { self.read(ID) } else { self.read(ID) >> 24 }
    }

    /// Sends an interrupt: `low` are the command's low 32 bits.
    pub fn send(self, to: u32, low: u32) {
        if self.is_x2() {
            // SAFETY: as in `write`; one register of 64 bits in this mode.
            unsafe { Msr::new(0x830).write(u64::from(to) << 32 | u64::from(low)) };
        } else {
            self.write(COMMAND_HIGH, to << 24);
            self.write(COMMAND, low);
            while self.read(COMMAND) & 1 << 12 != 0 {
                core::hint::spin_loop();
            }
        }
    }

    /// Measures the timer, unless the processor has told its frequency.
    pub fn calibrate(self, told: Option<u64>) {
        HERTZ.call_once(|| {
            told.map(|hertz| hertz / 16).filter(|&h| h > 0).unwrap_or_else(|| {
                self.write(INITIAL, u32::MAX);
                clock::delay(10_000);
                let ticks = u64::from(u32::MAX - self.read(CURRENT));
                self.write(INITIAL, 0);
                (ticks * 100).max(1_000)
            })
        });
    }

    /// Arms the timer once, in so many microseconds. A tick that an earlier arming has left behind is drained first: it must not be taken for
    /// this one's.
    pub fn arm(self, micros: u64) {
        self.disarm();
        let ticks = u128::from(micros) * u128::from(*HERTZ.get().unwrap_or(&1_000_000)) / 1_000_000;
        self.write(TIMER_VECTOR, TIMER.into());
        self.write(INITIAL, ticks.clamp(1, u32::MAX.into()) as u32);
    }

    /// Timer ticks of a millisecond.
    pub fn ticks_of_a_millisecond(self) -> u32 {
        (HERTZ.get().unwrap_or(&1_000_000) / 1_000).clamp(1, u32::MAX.into()) as u32
    }

    /// Whether identifiers have 32 bits; else 8.
    pub fn has_long_ids(self) -> bool {
        self.is_x2()
    }

    /// Stops the timer and lets a tick that has already happened pass.
    pub fn disarm(self) {
        self.write(INITIAL, 0);
        // SAFETY: in ring 0 only the timer and the wake-up can come, and they change nothing.
        unsafe { core::arch::asm!("sti", "nop", "nop", "cli", options(nomem)) };
    }
}

/// Masks all lines of an I/O interrupt controller, whose registers are at `base`.
///
/// # Safety
/// They are, mapped uncached, and nobody else's.
pub unsafe fn mask_lines(base: u64) {
    let (select, window) = (base as *mut u32, (base + 0x10) as *mut u32);
    // SAFETY: promised by the caller: an index register and a window to the one that it selects.
    unsafe {
        select.write_volatile(1);
        let last = window.read_volatile() >> 16 & 0xff;
        for line in 0..=last {
            select.write_volatile(0x10 + 2 * line);
            window.write_volatile(MASKED);
        }
    }
}
