//! One core: its block of stacks, its descriptor tables, and the state that kernels rely on.
//!
//! | block offset | what |
//! |---|---|
//! | 0 | stack of faults, timer, wake-up (16 KiB) |
//! | 0x4000 | stack of non-maskable interrupts and machine checks |
//! | 0x6000 | stack of double faults |
//! | 0x8000 | stack of calls from ring 3 |
//! | 0xa000 | stack of a core beside the first one |
//! | 0xe000 | [`Cpu`], whose first field is the frame of [`traps`](super::traps) |

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arrayvec::ArrayVec;
use kernels::abi::MAX_CORES;
use spin::Once;
use x86_64::instructions::segmentation::{CS, DS, ES, SS, Segment};
use x86_64::instructions::tables::{lidt, load_tss};
use x86_64::registers::control::{Cr0, Cr0Flags, Cr4, Cr4Flags};
use x86_64::registers::model_specific::Msr;
use x86_64::registers::xcontrol::{XCr0, XCr0Flags};
use x86_64::structures::DescriptorTablePointer;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable, SegmentSelector};
use x86_64::structures::tss::TaskStateSegment;
use x86_64::{PrivilegeLevel, VirtAddr};

use super::traps::{self, BLOCK, CALL, FRAME, Frame};

/// What a core is told to do, and what came of it.
#[repr(C)]
#[derive(Debug)]
pub struct Cpu {
    /// Touched by the core itself, and by the first core while this one waits for orders.
    pub frame: UnsafeCell<Frame>,
    /// 0 the core that booted.
    pub index: u32,
    /// Its local interrupt controller.
    pub apic: u32,
    /// Counts orders; the core starts one when this differs from `done`.
    pub order: AtomicU32,
    /// The last order that has ended.
    pub done: AtomicU32,
    /// Table of pages of the present order.
    pub space: AtomicU64,
    /// Its step's block; 0 for an order without one.
    pub block: AtomicU64,
    /// Not 0: the program has not asked for its first step yet.
    pub fresh: AtomicU32,
    /// Not 0: the core sleeps and must be woken.
    pub asleep: AtomicU32,
    /// The last order's end: a `judge` code.
    pub ended: AtomicU32,
    /// What the program told by its last call.
    pub status: AtomicU32,
    tss: UnsafeCell<TaskStateSegment>,
    gdt: UnsafeCell<GlobalDescriptorTable>,
    selectors: UnsafeCell<[u16; 2]>,
}

const _: () = assert!(core::mem::offset_of!(Cpu, frame) == 0 && FRAME + size_of::<Cpu>() <= BLOCK);

// SAFETY: cells are used by the core that they belong to, or while it waits for orders; `order` and `done` hand them over.
unsafe impl Sync for Cpu {}

/// All cores that run, the first one first.
pub static CPUS: Once<ArrayVec<&'static Cpu, MAX_CORES>> = Once::new();

static IDT: Once<Idt> = Once::new();

#[repr(C, align(16))]
struct Idt([[u64; 2]; 256]);

/// Every gate is an interrupt gate: interrupts stay off until the handler has ended.
fn idt() -> &'static Idt {
    IDT.call_once(|| {
        let mut gates = [[0; 2]; 256];
        let others = (32..=255).map(|vector| (vector, traps::other()));
        for (vector, address) in others.chain(traps::stubs()) {
            let stack: u64 = match vector {
                CALL => 0,
                2 | 18 => 2,
                8 => 3,
                _ => 1,
            };
            let ring: u64 = if vector == CALL { 3 } else { 0 };
            let low =
                address & 0xffff | 8 << 16 | stack << 32 | 0x8e << 40 | ring << 45 | (address >> 16 & 0xffff) << 48;
            gates[usize::from(vector)] = [low, address >> 32];
        }
        Idt(gates)
    })
}

impl Cpu {
    /// A core whose block of [`BLOCK`] bytes starts at `block`.
    ///
    /// # Safety
    /// The block is mapped, aligned to its size, and nobody else's, for ever.
    pub unsafe fn place(block: u64, index: u32, apic: u32, end_of_interrupt: u64) -> &'static Cpu {
        let at = (block + FRAME as u64) as *mut Cpu;
        let mut tss = TaskStateSegment::new();
        let stack = |end: u64| VirtAddr::new(block + end);
        tss.interrupt_stack_table[0] = stack(0x4000);
        tss.interrupt_stack_table[1] = stack(0x6000);
        tss.interrupt_stack_table[2] = stack(0x8000);
        tss.privilege_stack_table[0] = stack(0xa000);
        // SAFETY: a frame of plain numbers may be zero.
        let mut frame: Frame = unsafe { core::mem::zeroed() };
        frame.end_of_interrupt = end_of_interrupt;
        let cpu = Cpu {
            frame: UnsafeCell::new(frame),
            index,
            apic,
            order: AtomicU32::new(0),
            done: AtomicU32::new(0),
            space: AtomicU64::new(0),
            block: AtomicU64::new(0),
            fresh: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            status: AtomicU32::new(0),
            tss: UnsafeCell::new(tss),
            gdt: UnsafeCell::new(GlobalDescriptorTable::new()),
            selectors: UnsafeCell::new([0; 2]),
        };
        // SAFETY: the caller gives the block; the offset is aligned for all that is in it.
        unsafe {
            at.write(cpu);
            &*at
        }
    }

    /// The end of the stack on which a core beside the first runs.
    pub fn stack(&self) -> u64 {
        core::ptr::from_ref(self) as u64 - FRAME as u64 + 0xe000
    }

    /// Selectors of ring 3's code and data.
    pub fn selectors(&self) -> [u16; 2] {
        // SAFETY: written by `start`, before anybody asks.
        unsafe { *self.selectors.get() }
    }

    /// Makes the calling core this one: descriptor tables, vector registers, rounding.
    ///
    /// # Safety
    /// Called once, by that core.
    pub unsafe fn start(&'static self) {
        // SAFETY: nobody else uses a core's tables, and they are not changed after this.
        let (gdt, tss) = unsafe { (&mut *self.gdt.get(), &*self.tss.get()) };
        let code = gdt.append(Descriptor::kernel_code_segment());
        let data = gdt.append(Descriptor::kernel_data_segment());
        let user_data = gdt.append(Descriptor::user_data_segment());
        let user_code = gdt.append(Descriptor::user_code_segment());
        let task = gdt.append(Descriptor::tss_segment(tss));
        let ring3 = |s: SegmentSelector| SegmentSelector::new(s.index(), PrivilegeLevel::Ring3).0;
        // SAFETY: as above; the tables live for ever.
        unsafe {
            *self.selectors.get() = [ring3(user_code), ring3(user_data)];
            (*self.gdt.get()).load();
            CS::set_reg(code);
            DS::set_reg(data);
            ES::set_reg(data);
            SS::set_reg(data);
            load_tss(task);
            lidt(&DescriptorTablePointer { limit: 4095, base: VirtAddr::from_ptr(idt()) });
        }
        features();
    }

    /// Ticks after which a timer that was early looks again.
    pub fn set_again(&self, ticks: u32) {
        // SAFETY: called by the core itself, or before it runs.
        unsafe { (*self.frame.get()).again = ticks.into() };
    }

    /// Whether the core has nothing to do.
    pub fn is_idle(&self) -> bool {
        self.order.load(Ordering::Acquire) == self.done.load(Ordering::Acquire)
    }
}

/// Turns on what kernels need, and what protects the supervisor from them.
fn features() {
    let leaf = |n| core::arch::x86_64::__cpuid(n);
    let (ecx, extended) = (leaf(1).ecx, if leaf(0).eax >= 7 { core::arch::x86_64::__cpuid_count(7, 0).ebx } else { 0 });
    let mut cr4 = Cr4::read() | Cr4Flags::OSFXSR | Cr4Flags::OSXMMEXCPT_ENABLE;
    cr4.set(Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION, extended & 1 << 7 != 0);
    cr4.set(Cr4Flags::MACHINE_CHECK_EXCEPTION, leaf(1).edx & 1 << 7 != 0);
    // Ring 3 has no use for the time.
    cr4.insert(Cr4Flags::TIMESTAMP_DISABLE);
    cr4.set(Cr4Flags::OSXSAVE, ecx & 1 << 26 != 0);
    // SAFETY: bits that the processor says it has; nothing that Rust relies on changes.
    unsafe {
        Cr4::write(cr4);
        if cr4.contains(Cr4Flags::OSXSAVE) && ecx & 1 << 28 != 0 {
            XCr0::write(XCr0Flags::X87 | XCr0Flags::SSE | XCr0Flags::AVX);
        }
        Cr0::write(Cr0::read() | Cr0Flags::WRITE_PROTECT | Cr0Flags::NUMERIC_ERROR);
        // What firmware may have left: ways into ring 0, a table of descriptors, breakpoints.
        const SYSENTER_CS: u32 = 0x174;
        Msr::new(SYSENTER_CS).write(0);
        core::arch::asm!("lldt {0:x}", "mov dr7, {1}", in(reg) 0u16, in(reg) 0x400u64, options(nostack));
    }
    round();
}

/// Rounding, exceptions and denormals as every holder has them: MXCSR 0x1f80. Again after ring 3, which may change it.
pub fn round() {
    let value = 0x1f80u32;
    // SAFETY: the value that the processor starts with, and that Rust expects.
    unsafe { core::arch::asm!("ldmxcsr [{}]", in(reg) &raw const value, options(readonly, nostack)) };
}
