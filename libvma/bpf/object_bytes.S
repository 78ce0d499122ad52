/* SPDX-License-Identifier: BSD-2-Clause */
/* The compiled programs, as clang wrote them; bpf::Object reads them. */
    .macro object name, file
    .balign 8
    .globl \name
    .hidden \name
\name:
    .incbin "\file"
    .byte 0
    .endm

    .section .rodata.vma_bpf_objects, "a"
    object vma_steer_object, STEER_OBJECT
    object vma_strays_object, STRAYS_OBJECT
    .section .note.GNU-stack, "", %progbits
