//! From the boot loader's 32-bit entry to 64-bit Rust, and the same for the other cores.
//!
//! Two loaders enter: GRUB by multiboot2 at the ELF's entry point, `qemu -kernel` by PVH at the address in a note. Both come in 32-bit
//! protected mode, without paging. The tables made here map 4 GiB by 2 MiB pages until [`memory`](super::memory) makes better ones.

use core::arch::global_asm;

/// Bytes of the first core's stack.
pub const STACK: usize = 256 << 10;
/// Where other cores start: they begin in real mode, below 1 MiB, at the start of a page.
pub const TRAMPOLINE: u64 = 0x8000;
/// What a starting core reads: table of pages, stack, argument, entry, each 64 bits.
pub const PARAMETERS: u64 = 0x9000;

/// How the information is to be read.
pub const BY_PVH: u32 = 1;
/// The same.
pub const BY_MULTIBOOT2: u32 = 2;

global_asm!(
    // Architecture 0 is i386; one tag asks for a screen if there is one, 1024 x 768 in 32 bits.
    ".section .multiboot2, \"a\"",
    ".balign 8",
    "mb2_header:",
    ".long 0xe85250d6, 0, mb2_end - mb2_header, -(0xe85250d6 + (mb2_end - mb2_header))",
    ".balign 8",
    ".short 5, 1",
    ".long 20, 1024, 768, 32",
    ".balign 8",
    ".short 0, 0",
    ".long 8",
    "mb2_end:",
    // Xen's note 18: the 32-bit entry for PVH. Aligned to 4, or QEMU reads it at the wrong place.
    ".section .note.pvh, \"a\", @note",
    ".balign 4",
    ".long 4, 8, 18",
    ".asciz \"Xen\"",
    ".quad pvh_entry",
    ".section .boot, \"ax\"",
    ".code32",
    ".global pvh_entry",
    "pvh_entry:",
    "mov esi, {pvh}",
    "jmp 2f",
    ".global mb2_entry",
    "mb2_entry:",
    "mov esi, {multiboot2}",
    "2:",
    "cli",
    "cld",
    "mov edi, ebx",
    "mov esp, offset boot_stack_end",
    // Level 4 and 3, then four directories of 2 MiB pages.
    "mov eax, offset boot_tables",
    "lea ecx, [eax + 0x1003]",
    "mov [eax], ecx",
    "lea edx, [eax + 0x1000]",
    "lea ecx, [eax + 0x2003]",
    "mov ebx, 4",
    "3:",
    "mov [edx], ecx",
    "add edx, 8",
    "add ecx, 0x1000",
    "dec ebx",
    "jnz 3b",
    "lea edx, [eax + 0x2000]",
    "mov ecx, 0x83",
    "mov ebx, 2048",
    "4:",
    "mov [edx], ecx",
    "add edx, 8",
    "add ecx, 0x200000",
    "dec ebx",
    "jnz 4b",
    "mov cr3, eax",
    // PAE, OSFXSR, OSXMMEXCPT.
    "mov eax, 0x620",
    "mov cr4, eax",
    // EFER: long mode, no-execute.
    "mov ecx, 0xc0000080",
    "mov eax, 0x900",
    "xor edx, edx",
    "wrmsr",
    // Paging, write protection, protected mode; no emulation of the FPU.
    "mov eax, 0x80010033",
    "mov cr0, eax",
    "lgdt [boot_gdt_pointer]",
    "push 8",
    "mov eax, offset boot_long",
    "push eax",
    "retf",
    ".code64",
    "boot_long:",
    "mov eax, 16",
    "mov ds, eax",
    "mov es, eax",
    "mov ss, eax",
    "xor eax, eax",
    "mov fs, eax",
    "mov gs, eax",
    "mov edi, edi",
    "mov rsp, offset boot_stack_end",
    "xor ebp, ebp",
    "call {start}",
    "ud2",
    // Other cores, in real mode with cs = 0x800: copied to TRAMPOLINE.
    ".section .rodata.trampoline, \"a\"",
    ".global trampoline",
    ".global trampoline_end",
    ".code16",
    "trampoline:",
    "cli",
    "cld",
    "xor ax, ax",
    "mov ds, ax",
    ".byte 0x66, 0x0f, 0x01, 0x16",
    ".short {place} + trampoline_gdt_pointer - trampoline",
    "mov eax, cr0",
    "or eax, 1",
    "mov cr0, eax",
    ".byte 0x66, 0xea",
    ".long {place} + trampoline_32 - trampoline",
    ".short 24",
    ".code32",
    "trampoline_32:",
    "mov eax, 16",
    "mov ds, eax",
    "mov ss, eax",
    "mov eax, 0x620",
    "mov cr4, eax",
    "mov eax, [{parameters}]",
    "mov cr3, eax",
    "mov ecx, 0xc0000080",
    "mov eax, 0x900",
    "xor edx, edx",
    "wrmsr",
    "mov eax, 0x80010033",
    "mov cr0, eax",
    ".byte 0xea",
    ".long {place} + trampoline_64 - trampoline",
    ".short 8",
    ".code64",
    "trampoline_64:",
    "mov eax, 16",
    "mov es, eax",
    "mov ss, eax",
    "mov rsp, [{parameters} + 8]",
    "mov rdi, [{parameters} + 16]",
    "mov rax, [{parameters} + 24]",
    "xor ebp, ebp",
    "call rax",
    "ud2",
    ".balign 8",
    "trampoline_gdt:",
    ".quad 0, 0x00af9b000000ffff, 0x00cf93000000ffff, 0x00cf9b000000ffff",
    "trampoline_gdt_pointer:",
    ".short 31",
    ".long {place} + trampoline_gdt - trampoline",
    "trampoline_end:",
    ".section .rodata.boot_gdt, \"a\"",
    ".balign 8",
    "boot_gdt:",
    ".quad 0, 0x00af9b000000ffff, 0x00cf93000000ffff",
    "boot_gdt_pointer:",
    ".short 23",
    ".quad boot_gdt",
    ".section .bss.boot, \"aw\", @nobits",
    ".balign 4096",
    "boot_tables:",
    ".skip 6 * 4096",
    // The page below the stack is left unmapped.
    ".global boot_stack_guard",
    "boot_stack_guard:",
    ".skip 4096",
    ".global boot_stack",
    "boot_stack:",
    ".skip {stack}",
    ".global boot_stack_end",
    "boot_stack_end:",
    ".section .text",
    pvh = const BY_PVH,
    multiboot2 = const BY_MULTIBOOT2,
    place = const TRAMPOLINE,
    parameters = const PARAMETERS,
    stack = const STACK,
    start = sym crate::start,
);

/// Addresses that the linker and the code above define.
macro_rules! addresses {
    ($($(#[$doc:meta])* $name:ident = $symbol:ident;)*) => {
        unsafe extern "C" {
            $(static $symbol: u8;)*
        }
        $(
            $(#[$doc])*
            pub fn $name() -> u64 {
                // Only the address is taken.
                (&raw const $symbol) as u64
            }
        )*
    };
}

addresses! {
    /// First byte of the image.
    image_start = __image_start;
    /// End of its code.
    text_end = __text_end;
    /// Constants.
    rodata_start = __rodata_start;
    /// Their end.
    rodata_end = __rodata_end;
    /// Variables.
    data_start = __data_start;
    /// End of the image in memory.
    image_end = __image_end;
    /// A page that nobody may touch: what is above it is the first core's stack.
    stack_guard = boot_stack_guard;
    /// Code for other cores.
    trampoline_start = trampoline;
    /// Its end.
    trampoline_stop = trampoline_end;
}
