//! The kernels as a program of their own, which a bare-metal duck runs in ring 3.
//!
//! Its first instruction is [`program`], called on every core as [`kernels::program::Entry`]. It holds no system call and no state.
#![no_std]
#![no_main]
#![allow(unsafe_code)] // a program's entry

use core::panic::PanicInfo;

use bare as _;
use kernels::program::{Table, serve};

/// Where every core enters.
///
/// # Safety
/// Called once for each core by a loader that keeps the contract of [`serve`].
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.program")]
pub unsafe extern "C" fn program(table: *const Table, core: u32) -> ! {
    // SAFETY: the loader's contract.
    unsafe { serve(table, core) }
}

/// A panic is a mistake in the kernels. It becomes an invalid instruction, which the supervisor tells as a verdict with its address.
#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    // SAFETY: ends this core's part; nothing of the program goes on.
    unsafe { core::arch::asm!("ud2", options(noreturn, nomem, nostack)) }
}
