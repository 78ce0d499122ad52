// SPDX-License-Identifier: BSD-2-Clause
// A descriptor that belongs to the library and that the program must neither see nor be able to close.
//
// Programs close descriptors they do not know (daemons close 3..1023) and expect the lowest free number from
// the next open(). So ours live at high numbers, are close-on-exec, and are kept in a registry that the close
// family of the preload layer consults: closing one answers EBADF as if it were not open, and dup2() onto one
// moves it away first.
#pragma once

#include <atomic>
#include <cstddef>

namespace vma {

class InternalFd {
  public:
    // As many at a time; beyond them the call that makes one fails.
    static constexpr std::size_t kMost = 4096;

    InternalFd() = default;
    // Takes over `fd` (may be -1): moves it to a high number, sets FD_CLOEXEC, registers it.
    explicit InternalFd(int fd) noexcept;
    // A second descriptor of what `fd`, which stays the program's, refers to. Empty on failure; errno says
    // why.
    static InternalFd copy_of(int fd) noexcept;
    InternalFd(InternalFd&& other) noexcept;
    InternalFd& operator=(InternalFd&& other) noexcept;
    ~InternalFd() { reset(); }

    // Whoever keeps the number beside this object has it changed when relocate() moves the descriptor: see
    // mirror(). Code that can, asks here each time.
    int get() const noexcept { return live() ? number(slot_) : -1; }
    explicit operator bool() const noexcept { return get() >= 0; }
    // From now on *number is get(), until the descriptor is closed or given up; then it stays as it is. One
    // at a time; the int must live as long. For numbers in structures of others (libibverbs); it is written
    // by any thread, atomically.
    void mirror(int* number) noexcept;
    void reset() noexcept;
    // Gives the descriptor up, still open: whoever closes it by its number (a library) finds that it may.
    // Returns the number, or -1.
    int release() noexcept;

    // Is `fd` one of ours? Lock-free; used by close(), dup2() and close_range().
    static bool is_internal(int fd) noexcept;
    // Moves our descriptor away from number `fd` so that the program can have it. False if it could not.
    static bool relocate(int fd) noexcept;
    // Called by relocate() while both numbers are open, for an epoll set that knows the descriptor by its
    // number. One for the process.
    static void on_move(void (*moved)(int from, int to) noexcept) noexcept;
    // Lowest and highest numbers in use by us (for close_range splitting); returns how many were written,
    // sorted.
    static std::size_t list(int* out, std::size_t max) noexcept;
    // In a forked child: closes every one of them without running destructors' protocol. Objects that held
    // one are empty afterwards, even when their slot is given to another descriptor. Async-signal-safe.
    static void close_all_in_child() noexcept;

  private:
    void enter(int fd) noexcept;
    static int number(int slot) noexcept;
    bool live() const noexcept {
        return slot_ >= 0 && epoch_ == current_epoch_.load(std::memory_order_relaxed);
    }
    static std::atomic<unsigned> current_epoch_;  // how often close_all_in_child() ran
    int slot_ = -1;                               // index into the registry
    unsigned epoch_ = 0;
};

}  // namespace vma
