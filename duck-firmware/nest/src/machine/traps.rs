//! In and out of ring 3, and what happens when something traps.
//!
//! [`enter`] puts a core into ring 3 with the registers in its [`Frame`] and returns when anything traps there, with the registers back
//! in the frame. In ring 0 nothing may trap but the local timer and the wake-up, which are acknowledged without touching any register; all else
//! ends in a report. So the red zone and vector registers of whoever is interrupted stay as they are: every gate that can interrupt ring 0 has
//! a stack of its own, and no handler that returns there is compiled code.
//!
//! A core finds its frame from the stack that it traps on: stacks and frame share one aligned block, see [`cpu`](super::cpu).

use core::arch::{global_asm, naked_asm};
use core::mem::offset_of;

/// Bytes and alignment of a core's block of trap stacks.
pub const BLOCK: usize = 64 << 10;
/// Where the frame lies in it.
pub const FRAME: usize = 0xe000;

/// The local timer.
pub const TIMER: u8 = 0x40;
/// Wakes a core that has halted.
pub const WAKE: u8 = 0x41;
/// What programs call the supervisor by.
pub const CALL: u8 = 0x80;
/// What the local interrupt controller sends for nothing.
pub const SPURIOUS: u8 = 0xff;

/// A core's registers in ring 3, and what the assembly needs beside them.
#[repr(C)]
#[derive(Debug)]
pub struct Frame {
    kernel_stack: u64,
    /// General registers.
    pub rax: u64,
    rbx: u64,
    rcx: u64,
    rdx: u64,
    /// Second argument.
    pub rsi: u64,
    /// First argument.
    pub rdi: u64,
    rbp: u64,
    r8: u64,
    r9: u64,
    r10: u64,
    r11: u64,
    r12: u64,
    r13: u64,
    r14: u64,
    r15: u64,
    /// Instruction pointer.
    pub rip: u64,
    /// Its selector.
    pub cs: u64,
    /// Flags.
    pub flags: u64,
    /// Stack pointer.
    pub rsp: u64,
    /// Its selector.
    pub ss: u64,
    /// What trapped.
    pub vector: u64,
    /// The trap's error code, or zero.
    pub error: u64,
    /// The address that a page fault was about.
    pub address: u64,
    /// The counter's value before which the timer in ring 3 is a stale one and means nothing.
    pub deadline: u64,
    /// Address of the register that ends an interrupt, or zero where that is a model-specific register.
    pub end_of_interrupt: u64,
    /// Ticks of the timer after which it looks again, if it fires before the deadline.
    pub again: u64,
}

impl Frame {
    /// Registers at a program's start.
    pub fn set(&mut self, entry: u64, stack: u64, arguments: [u64; 2], code: u16, data: u16) {
        *self = Frame {
            kernel_stack: 0,
            rax: 0,
            rbx: 0,
            rcx: 0,
            rdx: 0,
            rsi: arguments[1],
            rdi: arguments[0],
            rbp: 0,
            r8: 0,
            r9: 0,
            r10: 0,
            r11: 0,
            r12: 0,
            r13: 0,
            r14: 0,
            r15: 0,
            rip: entry,
            cs: code.into(),
            // Interrupts on, and the bit that is always set.
            flags: 0x202,
            rsp: stack,
            ss: data.into(),
            vector: 0,
            error: 0,
            address: 0,
            ..*self
        };
    }
}

/// Enters ring 3; returns when something traps there.
///
/// # Safety
/// The frame is this core's own, in its block of stacks, and holds what [`Frame::set`] wrote or what the last trap left, in an address space
/// where the program is mapped and nothing of the supervisor's is open to ring 3. Interrupts are off.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn enter(frame: *mut Frame) {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi + {kernel}], rsp",
        "mov rax, rdi",
        "jmp trap_resume",
        kernel = const offset_of!(Frame, kernel_stack),
    )
}

global_asm!(
    ".section .text.traps, \"ax\"",
    ".macro stub vector, error",
    ".balign 16",
    "trap_\\vector:",
    ".if \\error == 0",
    "push 0",
    ".endif",
    "push \\vector",
    "jmp trap_common",
    ".endm",
    ".irp vector, 0, 1, 2, 3, 4, 5, 6, 7, 9, 15, 16, 18, 19, 20, 22, 23, 24, 25, 26, 27, 28, 31, 64, 65, 128, 255",
    "stub \\vector, 0",
    ".endr",
    ".irp vector, 8, 10, 11, 12, 13, 14, 17, 21, 29, 30",
    "stub \\vector, 1",
    ".endr",
    "trap_common:",
    "test byte ptr [rsp + 24], 3",
    "jz trap_inside",
    "push rax",
    "mov rax, rsp",
    "and rax, -{block}",
    "add rax, {frame}",
    "mov [rax + {rbx}], rbx",
    "mov [rax + {rcx}], rcx",
    "mov [rax + {rdx}], rdx",
    "mov [rax + {rsi}], rsi",
    "mov [rax + {rdi}], rdi",
    "mov [rax + {rbp}], rbp",
    "mov [rax + {r8}], r8",
    "mov [rax + {r9}], r9",
    "mov [rax + {r10}], r10",
    "mov [rax + {r11}], r11",
    "mov [rax + {r12}], r12",
    "mov [rax + {r13}], r13",
    "mov [rax + {r14}], r14",
    "mov [rax + {r15}], r15",
    "pop qword ptr [rax + {rax}]",
    "pop qword ptr [rax + {vector}]",
    "pop qword ptr [rax + {error}]",
    "pop qword ptr [rax + {rip}]",
    "pop qword ptr [rax + {cs}]",
    "pop qword ptr [rax + {flags}]",
    "pop qword ptr [rax + {rsp}]",
    "pop qword ptr [rax + {ss}]",
    "mov rbx, cr2",
    "mov [rax + {address}], rbx",
    "cld",
    "cmp qword ptr [rax + {vector}], {wake}",
    "je 2f",
    "cmp qword ptr [rax + {vector}], {spurious}",
    "je trap_resume",
    "cmp qword ptr [rax + {vector}], {timer}",
    "jne 3f",
    "mov rbx, rax",
    "rdtsc",
    "shl rdx, 32",
    "or rdx, rax",
    "mov rax, rbx",
    "cmp rdx, [rax + {deadline}]",
    "jae 3f",
    // Before the deadline: a stale tick, or a timer that is faster than was thought. Nothing that the program should know of: it goes on, and the
    // timer looks again soon.
    "mov rcx, [rax + {end}]",
    "mov edx, [rax + {again}]",
    "test rcx, rcx",
    "jz 9f",
    "mov dword ptr [rcx + {initial}], edx",
    "jmp 2f",
    "9:",
    "mov rbx, rax",
    "mov ecx, 0x838",
    "mov eax, edx",
    "xor edx, edx",
    "wrmsr",
    "mov rax, rbx",
    "2:",
    "mov rbx, rax",
    "mov rcx, [rax + {end}]",
    "test rcx, rcx",
    "jz 4f",
    "mov dword ptr [rcx], 0",
    "jmp trap_resume",
    "4:",
    "mov ecx, 0x80b",
    "xor eax, eax",
    "xor edx, edx",
    "wrmsr",
    "mov rax, rbx",
    "jmp trap_resume",
    // Back to whoever entered.
    "3:",
    "mov rsp, [rax + {kernel}]",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    // Into ring 3, by the frame at rax.
    "trap_resume:",
    "push qword ptr [rax + {ss}]",
    "push qword ptr [rax + {rsp}]",
    "push qword ptr [rax + {flags}]",
    "push qword ptr [rax + {cs}]",
    "push qword ptr [rax + {rip}]",
    "mov rbx, [rax + {rbx}]",
    "mov rcx, [rax + {rcx}]",
    "mov rdx, [rax + {rdx}]",
    "mov rsi, [rax + {rsi}]",
    "mov rdi, [rax + {rdi}]",
    "mov rbp, [rax + {rbp}]",
    "mov r8, [rax + {r8}]",
    "mov r9, [rax + {r9}]",
    "mov r10, [rax + {r10}]",
    "mov r11, [rax + {r11}]",
    "mov r12, [rax + {r12}]",
    "mov r13, [rax + {r13}]",
    "mov r14, [rax + {r14}]",
    "mov r15, [rax + {r15}]",
    "mov rax, [rax + {rax}]",
    "iretq",
    // From ring 0: the timer and the wake-up are acknowledged; a spurious interrupt must not be.
    "trap_inside:",
    "cmp qword ptr [rsp], {spurious}",
    "je 5f",
    "cmp qword ptr [rsp], {timer}",
    "je 6f",
    "cmp qword ptr [rsp], {wake}",
    "je 6f",
    "mov rdi, rsp",
    "mov rsi, cr2",
    "and rsp, -16",
    "cld",
    "call {fatal}",
    // Interrupts that nobody has asked for, from whatever ring: firmware may have left some device at work.
    ".global trap_other",
    "trap_other:",
    "push 0",
    "push 0",
    "6:",
    "push rax",
    "push rcx",
    "push rdx",
    "mov rax, rsp",
    "and rax, -{block}",
    "mov rcx, [rax + {frame} + {end}]",
    "test rcx, rcx",
    "jz 7f",
    "mov dword ptr [rcx], 0",
    "jmp 8f",
    "7:",
    "mov ecx, 0x80b",
    "xor eax, eax",
    "xor edx, edx",
    "wrmsr",
    "8:",
    "pop rdx",
    "pop rcx",
    "pop rax",
    "5:",
    "add rsp, 16",
    "iretq",
    ".section .rodata.traps, \"a\"",
    ".balign 8",
    ".global trap_vectors",
    "trap_vectors:",
    ".irp vector, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31",
    ".quad trap_\\vector",
    ".endr",
    ".quad trap_64, trap_65, trap_128, trap_255",
    // What ring 3 calls, on a page of its own: see kernels::program::Table.
    ".balign 4096",
    ".global call_stubs",
    "call_stubs:",
    "xor eax, eax",
    "int {call}",
    "ret",
    ".balign 16",
    "mov eax, 1",
    "int {call}",
    "ret",
    ".balign 16",
    "mov eax, 2",
    "int {call}",
    "ret",
    ".balign 4096",
    ".section .text",
    block = const BLOCK,
    frame = const FRAME,
    timer = const TIMER,
    wake = const WAKE,
    spurious = const SPURIOUS,
    call = const CALL,
    kernel = const offset_of!(Frame, kernel_stack),
    rax = const offset_of!(Frame, rax),
    rbx = const offset_of!(Frame, rbx),
    rcx = const offset_of!(Frame, rcx),
    rdx = const offset_of!(Frame, rdx),
    rsi = const offset_of!(Frame, rsi),
    rdi = const offset_of!(Frame, rdi),
    rbp = const offset_of!(Frame, rbp),
    r8 = const offset_of!(Frame, r8),
    r9 = const offset_of!(Frame, r9),
    r10 = const offset_of!(Frame, r10),
    r11 = const offset_of!(Frame, r11),
    r12 = const offset_of!(Frame, r12),
    r13 = const offset_of!(Frame, r13),
    r14 = const offset_of!(Frame, r14),
    r15 = const offset_of!(Frame, r15),
    rip = const offset_of!(Frame, rip),
    cs = const offset_of!(Frame, cs),
    flags = const offset_of!(Frame, flags),
    rsp = const offset_of!(Frame, rsp),
    ss = const offset_of!(Frame, ss),
    vector = const offset_of!(Frame, vector),
    error = const offset_of!(Frame, error),
    address = const offset_of!(Frame, address),
    deadline = const offset_of!(Frame, deadline),
    end = const offset_of!(Frame, end_of_interrupt),
    again = const offset_of!(Frame, again),
    // From the register that ends an interrupt to the timer's initial count.
    initial = const 0x380 - 0xb0,
    fatal = sym fatal,
);

unsafe extern "C" {
    static trap_vectors: [u64; 36];
    static call_stubs: u8;
    static trap_other: u8;
}

/// The stub of all vectors that have none of their own.
pub fn other() -> u64 {
    // Only the address is taken.
    (&raw const trap_other) as u64
}

/// Addresses of the stubs, by vector.
pub fn stubs() -> impl Iterator<Item = (u8, u64)> {
    // SAFETY: a constant table, defined above.
    let table = unsafe { &trap_vectors };
    (0..32).chain([TIMER, WAKE, CALL, SPURIOUS]).zip(table.iter().copied())
}

/// Physical and virtual address of the page that ring 3 calls.
pub fn call_page() -> u64 {
    // Only the address is taken.
    (&raw const call_stubs) as u64
}

/// Offsets in that page: next, boundary, idle.
pub const CALLS: [u64; 3] = [0, 16, 32];

/// A trap in ring 0 is a mistake in the supervisor.
///
/// `stack`: vector, error code, rip, cs, flags, rsp, ss.
extern "sysv64" fn fatal(stack: *const [u64; 7], address: u64) -> ! {
    // SAFETY: the assembly passes the stack that the processor has just filled.
    let [vector, error, rip, _, _, rsp, _] = unsafe { *stack };
    panic!("trap {vector} in the supervisor, error {error:#x}, at {rip:#x}, address {address:#x}, stack {rsp:#x}");
}
