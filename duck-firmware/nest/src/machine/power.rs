//! Full speed, power off, and starting afresh.

use core::arch::x86_64::__cpuid;

use arrayvec::ArrayVec;
use spin::Once;
use x86_64::instructions::port::Port;
use x86_64::registers::model_specific::Msr;

/// The reset register that the firmware's tables name: space (0 memory, 1 ports), where it was mapped or its port, value.
pub static RESET: Once<(u8, u64, u8)> = Once::new();

/// Ports that power the machine off, and what to write to them.
pub static OFF: Once<ArrayVec<(u16, u16), 2>> = Once::new();

/// Powers off; starts afresh where that does not work, since a duck that hangs helps nobody.
pub fn off() -> ! {
    for &(port, value) in OFF.get().into_iter().flatten() {
        // SAFETY: the power registers that the firmware's tables name.
        unsafe { Port::new(port).write(value) };
    }
    super::clock::delay(1_000_000);
    log::error!("the machine did not power off: starting afresh");
    reset()
}

/// Lets the processor run as fast as it may (Intel SDM, hardware-controlled performance states): all of its range, performance before
/// saving. On each core.
pub fn full_speed() {
    const ENABLE: u32 = 0x770;
    const CAPABILITIES: u32 = 0x771;
    const REQUEST: u32 = 0x774;
    if __cpuid(0).eax < 6 || __cpuid(6).eax & 1 << 7 == 0 {
        return;
    }
    // SAFETY: the processor has these registers; the request lies within what it says it can do.
    unsafe {
        Msr::new(ENABLE).write(1);
        let highest = Msr::new(CAPABILITIES).read() & 0xff;
        Msr::new(REQUEST).write(highest << 8 | highest);
    }
}

/// Starts afresh, by whatever works.
pub fn reset() -> ! {
    // SAFETY: all of these end this run: the register of the firmware's tables, the chipset's reset register, the keyboard controller, and a
    // trap without a handler.
    unsafe {
        match RESET.get() {
            Some(&(1, port, value)) => Port::new(port as u16).write(value),
            Some(&(0, address @ 1.., value)) => (address as *mut u8).write_volatile(value),
            _ => {}
        }
        super::clock::delay(50_000);
        let mut chipset = Port::<u8>::new(0xcf9);
        chipset.write(2);
        chipset.write(6);
        super::clock::delay(50_000);
        Port::<u8>::new(0x64).write(0xfe);
        super::clock::delay(50_000);
        let nothing = x86_64::structures::DescriptorTablePointer { limit: 0, base: x86_64::VirtAddr::zero() };
        x86_64::instructions::tables::lidt(&nothing);
        core::arch::asm!("ud2", options(noreturn));
    }
}
