//! The cores beside the first: starting them, giving them orders, and how they wait.

use core::sync::atomic::{AtomicU32, Ordering};

use arrayvec::ArrayVec;
use kernels::abi::MAX_CORES;
use nest::areas::Area;
use nest::tables::Space;
use spin::Once;

use super::apic::Apic;
use super::cpu::{CPUS, Cpu};
use super::judge::run_core;
use super::traps::{BLOCK, WAKE};
use super::{boot, clock, memory, power};

/// INIT, asserted; STARTUP at the trampoline's page; an ordinary interrupt.
const INIT: u32 = 0x4500;
const STARTUP: u32 = 0x4600 | (boot::TRAMPOLINE >> 12) as u32;
const ORDINARY: u32 = 0x4000 | WAKE as u32;
/// How long a core may take to start.
const PATIENCE: u64 = 500_000;
/// How long a core looks for orders before it sleeps: between two layers of one token, and much longer where nobody else wants the processor.
const LOOK_POLITE: u64 = 50;
const LOOK: u64 = 100_000;

static APIC: Once<(Apic, bool)> = Once::new();
static STARTED: AtomicU32 = AtomicU32::new(0);

/// Starts cores. `ids`: their controllers' identifiers, this core's own among them; `stacks`: a block for each.
///
/// # Safety
/// Once, on the first core, with its descriptor tables in use; `stacks` is nobody else's; the pages of the trampoline and its parameters are free.
pub unsafe fn start(ids: &[u32], stacks: Area, space: Space, apic: Apic, polite: bool) -> &'static [&'static Cpu] {
    APIC.call_once(|| (apic, polite));
    let own = apic.id();
    let mut cpus: ArrayVec<&'static Cpu, MAX_CORES> = ArrayVec::new();
    let blocks = (stacks.start..stacks.end).step_by(BLOCK);
    let reached = |id: &u32| *id != own && (apic.has_long_ids() || *id < 255);
    let ids = core::iter::once(own).chain(ids.iter().copied().filter(reached));
    for (block, id) in blocks.zip(ids).take(MAX_CORES) {
        // SAFETY: promised by the caller.
        let cpu = unsafe { Cpu::place(block, cpus.len() as u32, id, apic.end_of_interrupt()) };
        cpu.set_again(apic.ticks_of_a_millisecond());
        if cpus.is_empty() {
            // SAFETY: this is the first core.
            unsafe { cpu.start() };
        } else if let Err(why) = begin(cpu, space, apic) {
            log::warn!("core {id} {why}: going on without it");
            continue;
        }
        cpus.push(cpu);
    }
    CPUS.call_once(|| cpus)
}

fn begin(cpu: &'static Cpu, space: Space, apic: Apic) -> Result<(), &'static str> {
    let parameters = [space.0, cpu.stack(), core::ptr::from_ref(cpu) as u64, enter as *const () as u64];
    STARTED.store(0, Ordering::SeqCst);
    // SAFETY: the page is kept for this.
    unsafe { (boot::PARAMETERS as *mut [u64; 4]).write_volatile(parameters) };
    apic.send(cpu.apic, INIT);
    clock::delay(10_000);
    for _ in 0..2 {
        apic.send(cpu.apic, STARTUP);
        clock::delay(200);
    }
    let end = clock::now() + PATIENCE;
    while STARTED.load(Ordering::Acquire) == 0 {
        if clock::now() > end {
            // It must not come later, with what is meant for the next one.
            apic.send(cpu.apic, INIT);
            clock::delay(10_000);
            return Err("did not start");
        }
        core::hint::spin_loop();
    }
    Ok(())
}

/// Where a core's life in Rust begins.
extern "sysv64" fn enter(cpu: &'static Cpu) -> ! {
    // SAFETY: this is that core, once.
    unsafe { cpu.start() };
    let &(apic, polite) = APIC.get().expect("set before any core starts");
    apic.start();
    power::full_speed();
    STARTED.store(1, Ordering::Release);
    let mut at = None;
    loop {
        wait(cpu, apic, polite);
        let space = Space(cpu.space.load(Ordering::Relaxed));
        if at != Some(space) {
            // SAFETY: the order's tables map all of the supervisor's memory.
            unsafe { memory::switch(space) };
            at = Some(space);
        }
        if cpu.block.load(Ordering::Relaxed) != 0 {
            let left = run_core(cpu, apic, polite, &mut || ());
            cpu.ended.store(left as u32, Ordering::Release);
        }
        // Another program may come to lie at the same place: its tables must be read anew.
        if cpu.block.load(Ordering::Relaxed) == 0 {
            at = None;
        }
        cpu.done.store(cpu.order.load(Ordering::Relaxed), Ordering::Release);
    }
}

fn wait(cpu: &Cpu, apic: Apic, polite: bool) {
    let sleep = clock::now() + if polite { LOOK_POLITE } else { LOOK };
    let mut looks = 0u32;
    while cpu.is_idle() {
        looks += 1;
        // Without a pause where somebody emulates it by taking locks.
        if !polite {
            core::hint::spin_loop();
        }
        if looks.is_multiple_of(64) && clock::now() > sleep {
            cpu.asleep.store(1, Ordering::SeqCst);
            if cpu.is_idle() {
                halt();
            }
            cpu.asleep.store(0, Ordering::SeqCst);
        }
    }
    apic.disarm();
}

/// Sleeps until the next interrupt. The instruction after `sti` is still shielded, so none gets lost between the two.
pub fn halt() {
    // SAFETY: in ring 0 only the timer and the wake-up can come, and they change nothing.
    unsafe { core::arch::asm!("sti", "hlt", "cli", options(nomem)) };
}

/// Sleeps for a while.
pub fn nap(apic: Apic, micros: u64) {
    apic.arm(micros);
    halt();
    apic.disarm();
}

/// Tells a core that waits to run the program at its frame, with this block; 0: only to change its address space.
pub fn order(cpu: &Cpu, apic: Apic, space: Space, block: u64) {
    cpu.space.store(space.0, Ordering::Relaxed);
    cpu.block.store(block, Ordering::Relaxed);
    cpu.ended.store(0, Ordering::Relaxed);
    cpu.order.fetch_add(1, Ordering::SeqCst);
    if cpu.asleep.load(Ordering::SeqCst) != 0 {
        apic.send(cpu.apic, ORDINARY);
    }
}
