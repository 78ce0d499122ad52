// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/runtime/leader.h"

#include <fcntl.h>
#include <string.h>

#include <charconv>
#include <string_view>

#include "libvma/os/raw_syscall.h"

namespace vma::runtime::leader {
namespace {

constexpr unsigned kPidfdThread = O_EXCL;  // PIDFD_THREAD of linux/pidfd.h

}  // namespace

int exit_fd() noexcept {
    long fd = os::raw_syscall(SYS_pidfd_open, os::raw_syscall(SYS_getpid), kPidfdThread);
    return fd < 0 ? -1 : static_cast<int>(fd);
}

bool only_caller_left() noexcept {
    // proc(5): "pid (name) state ppid ..."; the name may hold blanks and parentheses. Field 3 is the state of the main
    // thread, field 20 the number of threads, in which a main thread that has exited is still counted.
    long fd = os::raw_syscall(SYS_openat, AT_FDCWD, static_cast<const char*>("/proc/self/stat"), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    char text[1024];
    long size = os::raw_syscall(SYS_read, fd, static_cast<char*>(text), sizeof text);
    os::raw_syscall(SYS_close, fd);
    if (size <= 0) return false;
    std::string_view stat(text, static_cast<std::size_t>(size));
    std::size_t at = stat.rfind(") ");
    if (at == std::string_view::npos) return false;
    stat.remove_prefix(at + 2);
    if (stat.empty() || stat[0] != 'Z') return false;
    for (int field = 3; field < 20; field++) {
        at = stat.find(' ');
        if (at == std::string_view::npos) return false;
        stat.remove_prefix(at + 1);
    }
    int threads = 0;
    std::from_chars(stat.data(), stat.data() + stat.size(), threads);
    return threads == 2;
}

}  // namespace vma::runtime::leader
