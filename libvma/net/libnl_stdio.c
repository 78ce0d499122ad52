// SPDX-License-Identifier: BSD-2-Clause
// What stderr, stdout and getenv are called inside our copy of libnl (see cmake/HiddenArchive.cmake). The
// streams stay NULL: libnl writes to them only from debugging calls, which the environment would switch on;
// it sees an empty one.
#include <stddef.h>
#include <stdio.h>

__attribute__((visibility("hidden"))) FILE* vma_nl_stderr;
__attribute__((visibility("hidden"))) FILE* vma_nl_stdout;

__attribute__((visibility("hidden"))) char* vma_nl_getenv(const char* name);
char* vma_nl_getenv(const char* name) {
    (void)name;
    return NULL;
}
