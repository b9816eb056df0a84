//! Programs that do one thing that no kernels should do, to see what becomes of the duck.
//!
//! Each waits for its first step and misbehaves on one core; the other cores compute as they should.
#![no_std]
#![allow(unsafe_code)] // misbehaviour

use core::arch::asm;
use core::panic::PanicInfo;

use bare as _;
use kernels::StepBlock;
use kernels::program::{DONE, FRESH, Table, serve};

/// What is done.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// Reads at an address that nobody has.
    NullRead,
    /// Writes to its own code.
    OwnText,
    /// Writes to a weight.
    Weights,
    /// Jumps to where data lies.
    JumpToData,
    /// Turns interrupts off.
    Privileged,
    /// Never comes back.
    EndlessLoop,
    /// Asks for the next step without having done this one.
    EarlyExit,
    /// Claims to be new again, in the middle of a step.
    FreshTwice,
    /// Tries the other way into the supervisor.
    Syscall,
    /// Writes where the supervisor writes weights.
    WritableView,
    /// Uses more stack than it has.
    StackOverflow,
    /// Calls the supervisor by a number that there is not.
    BadCall,
}

/// A program's life: core `on` misbehaves in its first step.
///
/// # Safety
/// As [`serve`].
pub unsafe fn run(table: *const Table, core: u32, on: u32, fault: Fault) -> ! {
    // SAFETY: the loader's contract.
    unsafe {
        if core == on {
            let block = ((*table).next)(FRESH);
            misbehave(&*table, &*block, fault);
        }
        serve(table, core)
    }
}

unsafe fn misbehave(table: &Table, block: &StepBlock, fault: Fault) {
    // SAFETY: there is none; that is the point.
    unsafe {
        match fault {
            Fault::NullRead => asm!("mov rax, [0x10]", out("rax") _),
            Fault::OwnText => asm!("lea rax, [rip]", "mov byte ptr [rax], 0x90", out("rax") _),
            // The first field of an entry of the table of units is the block's address.
            Fault::Weights => asm!("mov byte ptr [{}], 1", in(reg) *block.session.unit_table.cast::<u64>()),
            Fault::JumpToData => asm!("jmp {}", in(reg) core::ptr::from_ref(block)),
            Fault::Privileged => asm!("cli"),
            Fault::EndlessLoop => asm!("2: jmp 2b"),
            Fault::EarlyExit => {
                (table.next)(DONE);
            }
            Fault::FreshTwice => {
                (table.next)(FRESH);
            }
            Fault::Syscall => asm!("syscall", out("rcx") _, out("r11") _),
            // A slot beyond the one in which blocks are to be read.
            Fault::WritableView => asm!("mov byte ptr [{}], 1", in(reg) 0x200_0000_0000u64),
            Fault::StackOverflow => asm!("2: push rax", "jmp 2b"),
            Fault::BadCall => asm!("mov eax, 99", "int 0x80", out("eax") _),
        }
    }
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

/// A program of one fault on one core.
#[macro_export]
macro_rules! program {
    ($on:literal, $fault:ident) => {
        /// Where every core enters.
        ///
        /// # Safety
        /// As [`kernels::program::serve`].
        #[unsafe(no_mangle)]
        #[unsafe(link_section = ".text.program")]
        pub unsafe extern "C" fn program(table: *const kernels::program::Table, core: u32) -> ! {
            // SAFETY: the loader's contract.
            unsafe { $crate::run(table, core, $on, $crate::Fault::$fault) }
        }
    };
}
