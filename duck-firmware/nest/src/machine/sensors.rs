//! How warm the processor is, whether it was slowed down for that, and what its machine-check banks hold.

use core::arch::x86_64::__cpuid;
use core::fmt::Write;

use arrayvec::ArrayString;
use node::Gauges;
use x86_64::registers::model_specific::Msr;

const THERMAL_STATUS: u32 = 0x19c;
const TEMPERATURE_TARGET: u32 = 0x1a2;
const BANKS: u32 = 0x179;
const BANK_STATUS: u32 = 0x401;

/// What this processor can tell (Intel SDM: CPUID leaf 6, machine-check banks).
#[derive(Debug)]
pub struct Sensors {
    digital: bool,
    banks: u32,
    throttled: u64,
    was: bool,
}

impl Sensors {
    /// Finds out.
    pub fn new() -> Sensors {
        let digital = __cpuid(0).eax >= 6 && __cpuid(6).eax & 1 != 0;
        let checks = __cpuid(1).edx & (1 << 7 | 1 << 14) == 1 << 7 | 1 << 14;
        // SAFETY: the processor has machine-check banks, so it can say how many.
        let banks = if checks { unsafe { Msr::new(BANKS).read() as u32 & 0xff } } else { 0 };
        Sensors { digital, banks: banks.min(32), throttled: 0, was: false }
    }

    /// Tells what a bank has recorded, and clears it.
    fn banks(&self) {
        for bank in 0..self.banks {
            let mut status = Msr::new(BANK_STATUS + 4 * bank);
            // SAFETY: one of the banks that there are.
            let value = unsafe { status.read() };
            if value >> 63 != 0 {
                log::error!("machine check: bank {bank} says {value:#x}: look at this duck's memory and cooling");
                // SAFETY: as above; zero clears it.
                unsafe { status.write(0) };
            }
        }
    }
}

/// What a machine check or a non-maskable interrupt leaves to be told. The next one of the kind is not lost for it.
pub fn unwell(vector: u64) -> ArrayString<160> {
    const GLOBAL: u32 = 0x17a;
    let mut text = ArrayString::new();
    let sensors = Sensors::new();
    if vector != 18 || sensors.banks == 0 {
        let _ = write!(text, "a non-maskable interrupt (trap {vector}): look at this machine's memory");
        return text;
    }
    // SAFETY: the processor has machine-check banks; zero says that this check was handled.
    unsafe {
        let _ = write!(text, "machine check {:#x}:", Msr::new(GLOBAL).read());
        for bank in 0..sensors.banks {
            let status = Msr::new(BANK_STATUS + 4 * bank).read();
            if status >> 63 != 0 {
                // What does not fit is left out.
                let _ = write!(text, " bank {bank} {status:#x}");
            }
        }
        Msr::new(GLOBAL).write(0);
    }
    text
}

impl Gauges for Sensors {
    fn temperature(&mut self) -> u64 {
        self.banks();
        if !self.digital {
            return 0;
        }
        // SAFETY: the processor has a digital sensor, and with it both registers.
        let (status, target) = unsafe { (Msr::new(THERMAL_STATUS).read(), Msr::new(TEMPERATURE_TARGET).read()) };
        // Bit 4: the processor is hot right now.
        let hot = status & 1 << 4 != 0;
        self.throttled += u64::from(hot && !self.was);
        self.was = hot;
        // The reading counts down from the target.
        (target >> 16 & 0xff).saturating_sub(status >> 16 & 0x7f) * 1_000
    }

    fn throttled(&mut self) -> u64 {
        self.throttled
    }
}
