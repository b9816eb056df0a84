//! The kernels as a program of their own: what its loader passes to it, and its life.
//!
//! The program is entered once per core and never returns. It asks for a step by [`Table::next`], computes it, and asks again with
//! what came of it. The table's functions belong to whoever loaded it: on bare metal they enter the supervisor by an interrupt, in a
//! Linux process they are ordinary functions. So the program holds no instruction that only one of them understands.

use fp9::Isa;

use crate::abi::{ABI_VERSION, Refusal, StepBlock};
use crate::step::{self, Core, Hooks};

/// Changes whenever the meaning or place of a field does.
pub const PROGRAM_VERSION: u32 = 1;
/// Where the program lies, in the supervisor's sessions and in a Linux process alike: the second 512 GiB.
pub const PROGRAM_BASE: u64 = 0x80_0000_0000;
/// Most bytes from [`PROGRAM_BASE`] that its segments may take.
pub const PROGRAM_LEN: u64 = 1 << 30;

/// What [`Table::next`] is told when a core has not computed yet.
pub const FRESH: u32 = 0;
/// What [`Table::next`] is told after a step that went well; a [`Refusal`]'s number plus this one after one that was refused.
pub const DONE: u32 = 1;

/// What the loader passes to every core.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// [`PROGRAM_VERSION`].
    pub version: u32,
    /// Bytes of this table.
    pub size: u32,
    /// 0: plain code, 1: AVX2 and FMA. Asked of the processor once, by the loader.
    pub isa: u32,
    /// Not 0: cores that wait should give the processor away, since it may be shared.
    pub polite: u32,
    /// Says what came of the last step ([`FRESH`], [`DONE`] and on) and returns when there is another one in this block.
    pub next: extern "C" fn(status: u32) -> *const StepBlock,
    /// For core 0: the time to look at the network.
    pub boundary: extern "C" fn(),
    /// For a core that waits for others.
    pub idle: extern "C" fn(),
}

const _: () = {
    assert!(size_of::<Table>() == 40);
    assert!(core::mem::offset_of!(Table, next) == 16);
    assert!(core::mem::offset_of!(Table, boundary) == 24);
    assert!(core::mem::offset_of!(Table, idle) == 32);
};

/// A program's first instruction, as its loader calls it on every core.
pub type Entry = extern "C" fn(table: *const Table, core: u32) -> !;

struct Loader<'t>(&'t Table);

impl Hooks for Loader<'_> {
    fn boundary(&mut self) {
        (self.0.boundary)();
    }

    fn idle(&mut self) {
        if self.0.polite != 0 {
            (self.0.idle)();
        }
    }
}

/// A core's life.
///
/// # Safety
/// `table` is this version's, constant and never freed. What its `next` returns is a block as [`step::run`] wants it, with this
/// core in it.
pub unsafe fn serve(table: *const Table, core: u32) -> ! {
    // SAFETY: promised by the caller.
    let table = unsafe { &*table };
    let isa = match table.isa {
        1 => Isa::detect(),
        _ => Isa::Scalar,
    };
    let mut status = FRESH;
    loop {
        let block = (table.next)(status);
        status = match table.version == PROGRAM_VERSION && !block.is_null() {
            // SAFETY: promised by the caller.
            true => match unsafe { step::run(&*block, Core { index: core as usize, isa }, &mut Loader(table)) } {
                Ok(()) => DONE,
                Err(refusal) => DONE + refusal as u32,
            },
            false => DONE + Refusal::Version as u32,
        };
    }
}

/// Why a core refused, from what it told [`Table::next`]; `None` if it did not.
pub fn refusal(status: u32) -> Option<Refusal> {
    Refusal::of(status.checked_sub(DONE)?)
}

const _: () = assert!(ABI_VERSION == 1, "a new step block is a new program: raise PROGRAM_VERSION");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_core_tells_is_understood() {
        assert_eq!(refusal(FRESH), None);
        assert_eq!(refusal(DONE), None);
        assert_eq!(refusal(DONE + Refusal::Version as u32), Some(Refusal::Version));
        assert_eq!(refusal(DONE + Refusal::Aborted as u32), Some(Refusal::Aborted));
        assert_eq!(refusal(u32::MAX), None);
    }
}
