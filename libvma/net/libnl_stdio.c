// SPDX-License-Identifier: BSD-2-Clause
// The library's copy of libnl has these names for stderr, stdout and getenv (see cmake/HiddenArchive.cmake).
// The streams stay NULL: libnl writes to them only from debugging calls, which the environment would switch
// on, and libnl sees an empty environment.
#include <stddef.h>
#include <stdio.h>

__attribute__((visibility("hidden"))) FILE* vma_nl_stderr;
__attribute__((visibility("hidden"))) FILE* vma_nl_stdout;

__attribute__((visibility("hidden"))) char* vma_nl_getenv(const char* name);
char* vma_nl_getenv(const char* name) {
    (void)name;
    return NULL;
}
