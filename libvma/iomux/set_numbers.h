// SPDX-License-Identifier: BSD-2-Clause
// The descriptors of the program that may be epoll sets without an EpollSet.
//
// A thread may sleep in poll() or select() on an epoll set. It must wake up when another thread adds the
// set's first offloaded member (see KernelWait). Asking the kernel what each number is would cost more than
// the call itself. So the library notes a number where the program gets it, or uses it as a set. A wrongly
// noted number only costs two atomic additions for each call that watches it.
#pragma once

#include <poll.h>
#include <sys/select.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace vma::iomux {

// Is `wanted(fd)` true for one of the numbers below `nfds` in a set, which must be readable? Stops at the
// first such number.
template <class F>
bool any_number(const fd_set* set, int nfds, F&& wanted) {
    for (int base = 0; base < nfds; base += NFDBITS) {
        auto word = static_cast<unsigned long>(set->fds_bits[base / NFDBITS]);
        if (nfds - base < NFDBITS) word &= (1ul << (nfds - base)) - 1;
        for (; word != 0; word &= word - 1)
            if (wanted(base + __builtin_ctzl(word))) return true;
    }
    return false;
}

namespace set_numbers {

extern std::atomic<bool> g_any;
void note(int fd) noexcept;
void forget(int fd) noexcept;
bool noted(int fd) noexcept;

inline bool any() noexcept { return g_any.load(std::memory_order_relaxed); }
inline bool may_be_set(int fd) noexcept { return any() && noted(fd); }

}  // namespace set_numbers

// The noted numbers among the numbers of one call.
class WatchedSets {
  public:
    // Further sets do not wake the thread.
    static constexpr std::size_t kMost = 16;

    WatchedSets() = default;
    // The arrays must be readable.
    WatchedSets(const pollfd* fds, nfds_t count) noexcept;
    WatchedSets(const fd_set* set, int nfds) noexcept;

    void look_at(int fd) noexcept {
        if (set_numbers::may_be_set(fd) && count_ < kMost) fds_[count_++] = fd;
    }
    bool empty() const noexcept { return count_ == 0; }
    std::span<const int> numbers() const noexcept { return {fds_, count_}; }

  private:
    std::size_t count_ = 0;
    int fds_[kMost];
};

}  // namespace vma::iomux
