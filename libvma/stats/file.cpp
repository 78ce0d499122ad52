// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/stats/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <utility>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/clock.h"

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif

namespace vma::stats {
namespace {

class Descriptor {
  public:
    explicit Descriptor(long fd) noexcept : fd_(static_cast<int>(fd)) {}
    ~Descriptor() {
        if (fd_ >= 0) os::raw_syscall(SYS_close, fd_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int get() const noexcept { return fd_; }
    bool good() const noexcept { return fd_ >= 0; }
    int error() const noexcept { return -fd_; }

  private:
    int fd_;
};

uid_t my_user() noexcept { return static_cast<uid_t>(os::raw_syscall(SYS_geteuid)); }

// 0 or -errno.
int status(int directory, const char* name, struct stat& out) noexcept {
    return static_cast<int>(os::raw_syscall(SYS_newfstatat, directory, name, &out, AT_SYMLINK_NOFOLLOW));
}

Result<int> open_directory(const std::string& directory) {
    auto refused = [&](int error, std::string_view what) {
        return fail(error, fmt::format("the statistics directory {} {}", directory, what));
    };
    const long fd = os::raw_syscall(SYS_openat, AT_FDCWD, directory.c_str(),
                                    O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0)
        return refused(static_cast<int>(-fd),
                       fmt::format("cannot be opened ({})", strerrordesc_np(static_cast<int>(-fd))));
    struct stat s {};
    std::string_view objection;
    if (os::raw_syscall(SYS_fstat, fd, &s) != 0)
        objection = "cannot be looked at";
    else if (s.st_uid != 0 && s.st_uid != my_user())
        objection = "belongs to another user";
    else if ((s.st_mode & (S_IWGRP | S_IWOTH)) != 0 && (s.st_mode & S_ISVTX) == 0)
        objection = "can be written by other users and is not sticky";
    if (objection.empty()) return static_cast<int>(fd);
    os::raw_syscall(SYS_close, fd);
    return refused(EACCES, objection);
}

// Renames the finished file to `name`. Returns 0 or -errno.
int give_name(int directory, const char* temporary, const char* name) noexcept {
    constexpr int kTries = 3;  // another process may make or remove a file of the name meanwhile
    int error = -EEXIST;
    for (int i = 0; i < kTries && error == -EEXIST; i++) {
        error = static_cast<int>(
            os::raw_syscall(SYS_renameat2, directory, temporary, directory, name, RENAME_NOREPLACE));
        const bool unknown = error == -EINVAL || error == -ENOSYS;  // a file system without the flag
        if (error != -EEXIST && !unknown) return error;
        struct stat there {};
        const int missing = status(directory, name, there);
        if (missing == -ENOENT && !unknown) continue;
        if (missing == 0 && (there.st_uid != my_user() || S_ISDIR(there.st_mode))) return -EEXIST;
        error = static_cast<int>(os::raw_syscall(SYS_renameat2, directory, temporary, directory, name, 0));
    }
    return error;
}

}  // namespace

Result<void*> make_file(const std::string& directory, const std::string& name, std::size_t size, void* at,
                        const std::function<void(void*)>& fill) {
    // A file that grows beyond the limit is a signal (SIGXFSZ), which ends the program.
    rlimit limit{};
    if (os::raw_syscall(SYS_prlimit64, 0, RLIMIT_FSIZE, nullptr, &limit) == 0 && size > limit.rlim_cur)
        return fail(EFBIG, fmt::format("{}/{} needs {} KiB, more than a file may have (ulimit -f)", directory,
                                       name, size / 1024));
    auto opened = open_directory(directory);
    if (!opened) return std::unexpected(opened.error());
    const Descriptor dir(*opened);
    const std::string temporary =
        fmt::format(".{}.{:x}", name, clock::monotonic().time_since_epoch().count());
    auto refused = [&](int error, std::string_view what) {
        return fail(error, fmt::format("{}/{} {} ({})", directory, name, what, strerrordesc_np(error)));
    };
    const Descriptor file(os::raw_syscall(SYS_openat, dir.get(), temporary.c_str(),
                                          O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK,
                                          0600));
    if (!file.good()) return refused(file.error(), "cannot be made");
    struct Unlink {
        int directory;
        const char* name;
        ~Unlink() {
            if (name != nullptr) os::raw_syscall(SYS_unlinkat, directory, name, 0);
        }
    } unlink{dir.get(), temporary.c_str()};
    // The umask may have removed permissions that this process needs.
    os::raw_syscall(SYS_fchmod, file.get(), 0600);
    // Allocates all pages now: a missing page would later be a SIGBUS.
    long error = os::raw_syscall(SYS_ftruncate, file.get(), size);
    if (error == 0) error = os::raw_syscall(SYS_fallocate, file.get(), 0, 0L, size);
    if (error != 0) return refused(static_cast<int>(-error), "gets no memory");
    const long mapped =
        os::raw_syscall(SYS_mmap, nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0L);
    if (mapped < 0 && mapped > -4096) return refused(static_cast<int>(-mapped), "cannot be mapped");
    // Removes the file and the mapping after any failure before the rename.
    struct Unmap {
        long at;
        std::size_t size;
        ~Unmap() {
            if (at != 0) os::raw_syscall(SYS_munmap, at, size);
        }
    } unmap{mapped, size};
    fill(reinterpret_cast<void*>(mapped));
    if (const int named = give_name(dir.get(), temporary.c_str(), name.c_str()); named != 0) {
        if (named == -EEXIST)
            return fail(EEXIST, fmt::format("{}/{} belongs to another user or is no file", directory, name));
        return refused(-named, "cannot get its name");
    }
    unlink.name = nullptr;
    unmap.at = 0;
    if (at == nullptr) return reinterpret_cast<void*>(mapped);
    const long moved = os::raw_syscall(SYS_mremap, mapped, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, at);
    if (moved < 0 && moved > -4096) {
        unmap.at = mapped;
        os::raw_syscall(SYS_unlinkat, dir.get(), name.c_str(), 0);
        return refused(static_cast<int>(-moved), "cannot be mapped");
    }
    return at;
}

void remove_file(const std::string& directory, const std::string& name) noexcept {
    const Descriptor dir(
        os::raw_syscall(SYS_openat, AT_FDCWD, directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0));
    struct stat there {};
    if (dir.good() && status(dir.get(), name.c_str(), there) == 0 && S_ISREG(there.st_mode) &&
        there.st_uid == my_user())
        os::raw_syscall(SYS_unlinkat, dir.get(), name.c_str(), 0);
}

}  // namespace vma::stats
