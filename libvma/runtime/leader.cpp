// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/runtime/leader.h"

#include <fcntl.h>

#include <charconv>
#include <string_view>

#include "libvma/os/raw_syscall.h"

namespace vma::runtime::leader {

InternalFd open_stat() noexcept {
    long fd = os::raw_syscall(SYS_openat, AT_FDCWD, static_cast<const char*>("/proc/self/stat"),
                              O_RDONLY | O_CLOEXEC);
    return InternalFd(fd < 0 ? -1 : static_cast<int>(fd));
}

Threads look(const InternalFd& file) noexcept {
    // proc(5): "pid (name) state ppid ..."; the name may hold blanks and parentheses. Field 3 is the state of
    // the main thread. Field 20 is the number of threads, a main thread that has exited included.
    if (!file) return Threads::many;
    char text[1024];
    long size = os::raw_syscall(SYS_pread64, file.get(), static_cast<char*>(text), sizeof text, 0);
    if (size <= 0) return Threads::many;
    std::string_view stat(text, static_cast<std::size_t>(size));
    std::size_t at = stat.rfind(") ");
    if (at == std::string_view::npos) return Threads::many;
    stat.remove_prefix(at + 2);
    if (stat.empty() || stat[0] != 'Z') return Threads::many;
    for (int field = 3; field < 20; field++) {
        at = stat.find(' ');
        if (at == std::string_view::npos) return Threads::many;
        stat.remove_prefix(at + 1);
    }
    int threads = 0;
    std::from_chars(stat.data(), stat.data() + stat.size(), threads);
    return threads == 1 + own_threads.load() ? Threads::only_own : Threads::without_main;
}

}  // namespace vma::runtime::leader
