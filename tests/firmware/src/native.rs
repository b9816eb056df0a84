//! The kernels' program inside a Linux process: the same ELF that a bare-metal duck runs in ring 3, at the processor's own speed.
//!
//! Its segments are mapped where it was linked, and a thread enters it for each core. What it calls are functions of this module's, so it cannot
//! tell where it runs. Threads stay in it: it never returns.
#![allow(unsafe_code)] // a program is mapped and entered

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use kernels::program::{DONE, Entry, FRESH, PROGRAM_VERSION, Table};
use kernels::{Running, StepBlock};
use nest::program::{Program, check};
use nest::tables::Use;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

/// Most cores of a native program: what callbacks can tell apart.
pub const CORES: usize = 8;

/// A core's order and what came of it.
struct Core {
    block: AtomicPtr<StepBlock>,
    status: AtomicU32,
    asked: AtomicU32,
    given: AtomicU32,
}

static ALL: [Core; CORES] = [const {
    Core {
        block: AtomicPtr::new(ptr::null_mut()),
        status: AtomicU32::new(FRESH),
        asked: AtomicU32::new(0),
        given: AtomicU32::new(0),
    }
}; CORES];

thread_local! {
    static INDEX: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

extern "C" fn next(status: u32) -> *const StepBlock {
    let core = &ALL[INDEX.get()];
    core.status.store(status, Ordering::Relaxed);
    core.asked.fetch_add(1, Ordering::Release);
    let mut looks = 0u32;
    // As many steps were asked for as given: this one is still to come.
    while core.given.load(Ordering::Acquire) != core.asked.load(Ordering::Relaxed) {
        looks += 1;
        if looks > 1_000 { std::thread::yield_now() } else { std::hint::spin_loop() }
    }
    core.block.load(Ordering::Relaxed)
}

extern "C" fn nothing() {}

extern "C" fn idle() {
    std::thread::yield_now();
}

/// The program, entered by its cores.
pub struct Native {
    cores: usize,
}

impl Native {
    /// Maps an ELF and enters it. Once in a process: its place is fixed, and its threads never leave it.
    ///
    /// # Errors
    /// Whatever a bare-metal duck would refuse it for, or the system's refusal of its place.
    pub fn start(file: &[u8], cores: usize) -> Result<Native, String> {
        assert!((1..=CORES).contains(&cores), "a possible number of cores");
        let program = check(file)?;
        map(&program, file).map_err(|error| format!("the program's place in memory: {error}"))?;
        let table: &'static Table = Box::leak(Box::new(Table {
            version: PROGRAM_VERSION,
            size: size_of::<Table>() as u32,
            isa: (fp9::Isa::detect() != fp9::Isa::Scalar).into(),
            polite: 1,
            next,
            boundary: nothing,
            idle,
        }));
        // SAFETY: the program's first instruction, mapped to be executed, with this type by the kernels' contract.
        let entry = unsafe { std::mem::transmute::<*const c_void, Entry>(program.entry as *const c_void) };
        for index in 0..cores {
            let enter = move || -> () {
                INDEX.set(index);
                entry(table, index as u32)
            };
            std::thread::Builder::new().name(format!("native-{index}")).spawn(enter).map_err(|e| e.to_string())?;
        }
        let native = Native { cores };
        native.wait();
        Ok(native)
    }

    /// Until every core asks for a step.
    fn wait(&self) {
        for core in &ALL[..self.cores] {
            while core.asked.load(Ordering::Acquire) == core.given.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        }
    }

    /// Runs a step on all cores; whether all of them have done their part.
    pub fn run(&mut self, step: Running<'_>) -> bool {
        let block = ptr::from_ref(step.block()).cast_mut();
        for core in &ALL[..self.cores] {
            core.block.store(block, Ordering::Relaxed);
            core.given.fetch_add(1, Ordering::Release);
        }
        self.wait();
        ALL[..self.cores].iter().all(|core| core.status.load(Ordering::Acquire) == DONE)
    }
}

fn map(program: &Program, file: &[u8]) -> rustix::io::Result<()> {
    for segment in &program.segments {
        let (start, len) = segment.pages();
        let (flags, both) = (MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping where nothing is, or an error; then the segment's bytes, whose place and length `check` has bounded; then the
        // rights that it asks for.
        unsafe {
            let at: *mut u8 = mmap_anonymous(start as *mut c_void, len as usize, both, flags)?.cast();
            let bytes = &file[segment.offset..][..segment.len];
            at.add((segment.address - start) as usize).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            let rights = match segment.how {
                Use::UserCode => MprotectFlags::READ | MprotectFlags::EXEC,
                Use::UserData => MprotectFlags::READ | MprotectFlags::WRITE,
                _ => MprotectFlags::READ,
            };
            mprotect(at.cast(), len as usize, rights)?;
        }
    }
    Ok(())
}
