// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/os/sysctl.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libvma/os/raw_syscall.h"

namespace vma::os {

int read_sysctl(const char* name, long (&values)[3]) noexcept {
    char path[96] = "/proc/sys/net/", text[128];
    strncat(path, name, sizeof path - strlen(path) - 1);
    int fd = static_cast<int>(os::raw_syscall(SYS_openat, AT_FDCWD, &path[0], O_RDONLY | O_CLOEXEC, 0));
    if (fd < 0) return 0;
    ssize_t n = os::raw_syscall(SYS_read, fd, &text[0], sizeof text - 1);
    os::raw_syscall(SYS_close, fd);
    if (n <= 0) return 0;
    text[n] = 0;
    int count = 0;
    for (char* p = text; count < 3; count++) {
        char* end;
        values[count] = strtol(p, &end, 10);
        if (end == p) break;
        p = end;
    }
    return count;
}

long sysctl(const char* name, long otherwise) noexcept {
    long values[3];
    return read_sysctl(name, values) > 0 ? values[0] : otherwise;
}

}  // namespace vma::os
