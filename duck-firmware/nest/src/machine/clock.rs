//! The time stamp counter as a clock.

use core::arch::x86_64::{__cpuid, _rdtsc};

use nest::clock::{Scale, Told, told};
use spin::Once;
use x86_64::instructions::port::Port;

static SCALE: Once<Scale> = Once::new();
static ORIGIN: Once<u64> = Once::new();

/// The counter.
pub fn counter() -> u64 {
    // SAFETY: every x86-64 processor has it, and ring 0 may read it.
    unsafe { _rdtsc() }
}

/// Starts the clock at 0; says what the processor told of its frequencies.
pub fn start() -> Told {
    ORIGIN.call_once(counter);
    let known = match __cpuid(0).eax >= 0x15 {
        true => {
            let leaf = __cpuid(0x15);
            told(leaf.eax, leaf.ebx, leaf.ecx)
        }
        false => Told::default(),
    };
    SCALE.call_once(|| Scale::new(known.counter.unwrap_or_else(measured)));
    known
}

/// The counter's frequency by the old timer: the least of five, since anything that comes between makes it seem faster.
fn measured() -> u64 {
    /// Ticks of 10 ms at 1,193,182 Hz.
    const TICKS: u16 = 11_932;
    let (mut data, mut command) = (Port::<u8>::new(0x42), Port::<u8>::new(0x43));
    let mut gate = Port::<u8>::new(0x61);
    let once = || {
        // SAFETY: the ports of the old timer's channel 2, which every PC has and nobody else uses.
        unsafe {
            let old = gate.read();
            gate.write(old & !3 | 1);
            command.write(0xb0);
            data.write(TICKS as u8);
            data.write((TICKS >> 8) as u8);
            let (begun, mut looks) = (counter(), 0u32);
            while gate.read() & 0x20 == 0 && looks < 10_000_000 {
                looks += 1;
            }
            let ticks = counter().wrapping_sub(begun);
            gate.write(old);
            ticks * 100
        }
    };
    core::iter::repeat_with(once).take(5).min().unwrap_or(1_000_000_000)
}

/// The counter's scale.
pub fn scale() -> Scale {
    SCALE.get().copied().unwrap_or_else(|| Scale::new(1_000_000_000))
}

/// Microseconds since the start.
pub fn now() -> u64 {
    scale().micros(counter().wrapping_sub(*ORIGIN.get().unwrap_or(&0)))
}

/// The counter's value at a time of [`now`].
pub fn at(micros: u64) -> u64 {
    ORIGIN.get().unwrap_or(&0).saturating_add(scale().ticks(micros))
}

/// Waits.
pub fn delay(micros: u64) {
    let end = counter().saturating_add(scale().ticks(micros));
    while counter() < end {
        core::hint::spin_loop();
    }
}
