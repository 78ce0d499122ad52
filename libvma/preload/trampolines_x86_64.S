// SPDX-License-Identifier: BSD-2-Clause
// vfork() and syscall(): functions that must not have a C frame.
//
// The child of vfork runs on its parent's stack and returns from vfork() first. So the return address cannot
// stay on the stack: the parent would find it overwritten. It stays in a register, which the kernel saves.
// syscall(2) can start a child too (SYS_clone with a new stack). So a call that does not concern the library
// is made without touching the stack. On other architectures these two functions are libc's own.
#if defined(__x86_64__)

#include <sys/syscall.h>

#define CLONE_VM 0x100
#define CLONE_FILES 0x400
#define CLONE3_STACK 40  // offsetof(struct clone_args, stack)

        .text

        .globl  vfork
        .type   vfork, @function
        .globl  __vfork
        .type   __vfork, @function
        .p2align 4
vfork:
__vfork:
.Lvfork:
        .cfi_startproc
        endbr64
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        call    vma_vfork_begin
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        .cfi_register %rip, %rdi
        movl    $SYS_vfork, %eax
        syscall
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset %rip, 0
        testq   %rax, %rax
        jnz     1f
        ret                             // the child
1:      movq    %rax, %rdi              // the parent, or a failure
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        call    vma_vfork_end
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        ret
        .cfi_endproc
        .size   vfork, .-vfork
        .size   __vfork, .-__vfork

        .globl  syscall
        .type   syscall, @function
        .p2align 4
syscall:
        .cfi_startproc
        endbr64
        cmpq    $512, %rdi
        jae     .Lkernel
        movl    %edi, %eax
        shrl    $6, %eax
        leaq    vma_syscall_decoded(%rip), %r11
        movq    (%r11,%rax,8), %rax
        btq     %rdi, %rax
        jc      .Ldecode
.Lkernel:
        movq    %rdi, %rax
        movq    %rsi, %rdi
        movq    %rdx, %rsi
        movq    %rcx, %rdx
        movq    %r8, %r10
        movq    %r9, %r8
        movq    8(%rsp), %r9
        syscall
        cmpq    $-4095, %rax
        jae     .Lfailed
        ret
.Lfailed:
        negl    %eax
        pushq   %rax
        .cfi_adjust_cfa_offset 8
        call    *__errno_location@GOTPCREL(%rip)
        popq    %rcx
        .cfi_adjust_cfa_offset -8
        movl    %ecx, (%rax)
        movq    $-1, %rax
        ret
.Ldecode:
        cmpl    $SYS_vfork, %edi
        je      .Lvfork
        cmpl    $SYS_clone, %edi
        je      .Lclone
        cmpl    $SYS_clone3, %edi
        je      .Lclone3
        jmp     vma_syscall_decode      // same arguments, same stack
.Lclone:                      // only a copy of the process on a copy of this stack can pass through C
        testl   $(CLONE_VM | CLONE_FILES), %esi
        jnz     .Lkernel
        testq   %rdx, %rdx
        jnz     .Lkernel
        jmp     vma_syscall_decode
.Lclone3:
        testq   %rsi, %rsi
        jz      .Lkernel
        testl   $(CLONE_VM | CLONE_FILES), (%rsi)
        jnz     .Lkernel
        cmpq    $0, CLONE3_STACK(%rsi)
        jne     .Lkernel
        jmp     vma_syscall_decode
        .cfi_endproc
        .size   syscall, .-syscall

        .hidden vma_vfork_begin
        .hidden vma_vfork_end
        .hidden vma_syscall_decoded
        .hidden vma_syscall_decode
#endif
        .section .note.GNU-stack, "", @progbits
