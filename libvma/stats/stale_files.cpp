// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/stats/stale_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "libvma/os/proc_file.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/stats/layout.h"
#include "libvma/stats/stats_memory.h"

namespace vma::stats {
namespace {

constexpr std::string_view kPrefix = kFilePrefix;

bool is_gone(const Header& header) {
    if (os::raw_syscall(SYS_kill, header.pid, 0) == -ESRCH) return true;
    const std::uint64_t began = start_ticks_of(static_cast<long>(header.pid));
    return began != 0 && header.start_ticks != 0 && began != header.start_ticks;
}

// Is `name` in `directory` a statistics file to remove?
bool is_stale(int directory, const char* name, std::uint32_t mine) {
    std::uint32_t pid = 0;
    const char* end = name + std::strlen(name);
    if (auto [at, error] = std::from_chars(name + kPrefix.size(), end, pid);
        error != std::errc{} || at != end)
        return false;
    const long fd =
        os::raw_syscall(SYS_openat, directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0) return false;
    struct stat s {};
    Header header{};
    const bool whole =
        os::raw_syscall(SYS_fstat, fd, &s) == 0 && S_ISREG(s.st_mode) &&
        s.st_uid == static_cast<uid_t>(os::raw_syscall(SYS_geteuid)) &&
        os::raw_syscall(SYS_pread64, fd, &header, sizeof header, 0L) == static_cast<long>(sizeof header);
    os::raw_syscall(SYS_close, fd);
    return whole && std::memcmp(header.magic, kMagic, sizeof kMagic) == 0 && header.version == kVersion &&
           header.pid == pid && header.pid_namespace == mine && is_gone(header);
}

}  // namespace

std::uint32_t pid_namespace() noexcept {
    struct stat s {};
    if (os::raw_syscall(SYS_newfstatat, AT_FDCWD, "/proc/self/ns/pid", &s, 0) != 0) return 0;
    return static_cast<std::uint32_t>(s.st_ino);
}

void remove_stale_files(const std::string& directory) noexcept {
    const std::uint32_t mine = pid_namespace();
    if (mine == 0) return;
    const long fd = os::raw_syscall(SYS_openat, AT_FDCWD, directory.c_str(),
                                    O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0) return;
    const int dir = static_cast<int>(fd);
    try {
        alignas(dirent64) char entries[8192];
        long length;
        while ((length = os::raw_syscall(SYS_getdents64, dir, entries, sizeof entries)) > 0) {
            for (long at = 0; at < length;) {
                const auto* entry = reinterpret_cast<const dirent64*>(entries + at);
                at += entry->d_reclen;
                if (std::string_view(entry->d_name).starts_with(kPrefix) &&
                    is_stale(dir, entry->d_name, mine))
                    os::raw_syscall(SYS_unlinkat, dir, entry->d_name, 0);
            }
        }
    } catch (...) {
        // no memory: another time
    }
    os::raw_syscall(SYS_close, dir);
}

}  // namespace vma::stats
