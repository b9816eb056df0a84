# The smallest firmware that a boot loader starts: says its command line on the serial line, and ends the machine by the exit port.
# Its header asks for multiboot2; the state is that of a 32-bit entry: ebx has the list of what the loader knows.

    .section .multiboot2, "a"
    .balign 8
header:
    .long 0xe85250d6, 0, header_end - header, -(0xe85250d6 + (header_end - header))
    .word 0, 0                      # no wishes
    .long 8
header_end:

    .text
    .code32
    .globl start
start:
    cli
    movl $0x3f9, %edx               # no interrupts from the UART
    xorl %eax, %eax
    outb %al, %dx
    movl $before, %edi
    call say
    leal 8(%ebx), %esi
tag:
    movl (%esi), %eax
    testl %eax, %eax
    jz done                         # the end of the list
    cmpl $1, %eax
    je command_line
    movl 4(%esi), %eax
    addl $7, %eax
    andl $-8, %eax
    addl %eax, %esi
    jmp tag
command_line:
    leal 8(%esi), %edi
    call say
done:
    movl $after, %edi
    call say
    movl $0xf4, %edx
    movl $0x10, %eax
    outl %eax, %dx
halt:
    hlt
    jmp halt

say:                                # the text at edi
    movb (%edi), %cl
    testb %cl, %cl
    jz said
busy:
    movl $0x3fd, %edx
    inb %dx, %al
    testb $0x20, %al
    jz busy
    movl $0x3f8, %edx
    movb %cl, %al
    outb %al, %dx
    incl %edi
    jmp say
said:
    ret

    .section .rodata
before:
    .asciz "\r\ncommand line: ["
after:
    .asciz "]\r\n"
    .section .note.GNU-stack, "", @progbits
