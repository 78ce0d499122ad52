// SPDX-License-Identifier: BSD-2-Clause
// Reads small files of /proc without libc, whose descriptors and streams the program may watch or replace.
#pragma once

#include <errno.h>
#include <fcntl.h>

#include <string>

#include "libvma/os/raw_syscall.h"

namespace vma::os {

// At most `most` bytes; empty if the file cannot be read.
inline std::string read_proc_file(const char* name, std::size_t most) {
    std::string text;
    const long fd = raw_syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return text;
    char block[4096];
    while (text.size() < most) {
        const long size = raw_syscall(SYS_read, fd, static_cast<char*>(block), sizeof block);
        if (size == -EINTR) continue;
        if (size <= 0) break;
        text.append(block, static_cast<std::size_t>(size));
    }
    raw_syscall(SYS_close, fd);
    if (text.size() > most) text.resize(most);
    return text;
}

}  // namespace vma::os
