/* SPDX-License-Identifier: BSD-2-Clause */
/* The compiled XDP program, as clang wrote it; steer_load.cpp reads it. */
    .section .rodata.vma_steer_object, "a"
    .balign 8
    .globl vma_steer_object
    .hidden vma_steer_object
    .globl vma_steer_object_end
    .hidden vma_steer_object_end
vma_steer_object:
    .incbin STEER_OBJECT
vma_steer_object_end:
    .byte 0
    .section .note.GNU-stack, "", %progbits
