// SPDX-License-Identifier: BSD-2-Clause
// A descriptor that belongs to the library and that the program must neither see nor be able to close.
//
// Programs close descriptors they do not know (daemons close 3..1023) and expect the lowest free number from
// the next open(). So the library's descriptors live at high numbers, are close-on-exec, and stand in a
// registry. The preload layer's close family asks that registry. Closing an internal descriptor answers
// EBADF, as if the number were not open; dup2() onto one moves the internal descriptor away first.
#pragma once

#include <atomic>
#include <cstddef>

namespace vma {

class InternalFd {
  public:
    // Descriptors at a time. When all are in use, the call that makes another one fails.
    static constexpr std::size_t kMost = 4096;

    InternalFd() = default;
    // Takes ownership of `fd` (may be -1): moves it to a high number, sets FD_CLOEXEC, registers it.
    explicit InternalFd(int fd) noexcept;
    // A second descriptor for the file of `fd`; `fd` stays the program's. Empty on failure, with errno.
    static InternalFd copy_of(int fd) noexcept;
    InternalFd(InternalFd&& other) noexcept;
    InternalFd& operator=(InternalFd&& other) noexcept;
    ~InternalFd() { reset(); }

    // relocate() can change the number. So callers ask for it each time, or have their copy updated by
    // mirror().
    int get() const noexcept { return live() ? number(slot_) : -1; }
    explicit operator bool() const noexcept { return get() >= 0; }
    // Keeps *number equal to get() until the descriptor is closed or released; then *number keeps its last
    // value. One mirror at a time; the int must live as long as the descriptor. Any thread may write the int,
    // atomically. For numbers in structures of other libraries (libibverbs).
    void mirror(int* number) noexcept;
    void reset() noexcept;
    // Gives up ownership of the still open descriptor, so that another library may close it by its number.
    // Returns the number, or -1.
    int release() noexcept;

    // Does `fd` belong to the library? Lock-free; used by close(), dup2() and close_range().
    static bool is_internal(int fd) noexcept;
    // Moves the library's descriptor away from number `fd` so that the program can have the number. False on
    // failure.
    static bool relocate(int fd) noexcept;
    // Sets a function that relocate() calls while both numbers are open, for an epoll set that knows the
    // descriptor by its number. One function for the process.
    static void on_move(void (*moved)(int from, int to) noexcept) noexcept;
    // Writes the numbers that the library uses to `out`, sorted (close_range() splits its range there).
    // Returns how many it wrote.
    static std::size_t list(int* out, std::size_t max) noexcept;
    // In a forked child: closes all internal descriptors without running destructors. Their objects are empty
    // afterwards, even when another descriptor gets their slot. Async-signal-safe.
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
