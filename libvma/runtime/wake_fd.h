// SPDX-License-Identifier: BSD-2-Clause
// An eventfd by which any thread wakes another that watches the descriptor. See eventfd(2).
#pragma once

#include <sys/eventfd.h>

#include <cstdint>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/internal_fd.h"

namespace vma {

class WakeFd {
  public:
    // Without a descriptor.
    WakeFd() = default;
    // A new descriptor, which does not block; `awake`: readable from the start. Without one if the process
    // has no more; errno then is undefined.
    static WakeFd make(bool awake = false) noexcept {
        const long fd = os::raw_syscall(SYS_eventfd2, awake ? 1 : 0, EFD_CLOEXEC | EFD_NONBLOCK);
        return WakeFd(fd < 0 ? -1 : static_cast<int>(fd));
    }

    int get() const noexcept { return fd_.get(); }
    explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
    void reset() noexcept { fd_.reset(); }

    // Makes the descriptor readable, or not. Raw system calls: any thread and any handler may call these,
    // errno stays, and neither is a cancellation point. False: there is no descriptor.
    // `count` is what the next reader of the descriptor finds more.
    bool wake() const noexcept { return wake(fd_.get()); }
    static bool wake(int fd, std::uint64_t count = 1) noexcept {
        return os::raw_syscall(SYS_write, fd, &count, sizeof count) == sizeof count;
    }
    void clear() const noexcept {
        std::uint64_t count;
        os::raw_syscall(SYS_read, fd_.get(), &count, sizeof count);
    }

  private:
    explicit WakeFd(int fd) noexcept : fd_(fd) {}

    InternalFd fd_;
};

}  // namespace vma
