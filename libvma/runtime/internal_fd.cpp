// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/runtime/internal_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/resource.h>

#include <algorithm>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/errno_kept.h"

namespace vma {
namespace {

// One slot for each descriptor; -1 is a free slot. Rings, netlink sockets and event descriptors need some
// dozen slots for each offloaded netdev. Each sleeping thread needs one more. Only the close family scans the
// used slots, and only for numbers as high as the library's.
constexpr int kSlots = static_cast<int>(InternalFd::kMost);
constexpr int kFree = -1;
std::atomic<int> g_lowest{INT_MAX};
std::atomic<int> g_slots[kSlots];
std::atomic<int*> g_mirrors[kSlots];
std::atomic<void (*)(int, int) noexcept> g_moved{nullptr};
std::atomic<int> g_used{0};  // high-water mark of slots
std::atomic<bool> g_ready{false};

void prepare() noexcept {
    bool expected = false;
    static std::atomic<bool> busy{false};
    if (g_ready.load(std::memory_order_acquire)) return;
    if (busy.compare_exchange_strong(expected, true)) {
        for (auto& slot : g_slots) slot.store(kFree, std::memory_order_relaxed);
        g_ready.store(true, std::memory_order_release);
    }
    while (!g_ready.load(std::memory_order_acquire)) {
    }
}

// The library's numbers begin here: above those that programs use (select() ends at 1024, shells use 255),
// and low enough for a small RLIMIT_NOFILE. They are not at the top, because the kernel's descriptor table
// grows with the highest number.
constexpr int kUsualBase = 1100;

int base_number() noexcept {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 3;
    auto cur = std::min<rlim_t>(limit.rlim_cur, 1 << 20);
    if (cur > 1536) return kUsualBase;
    return static_cast<int>(cur / 2);
}

void note_number(int fd) noexcept {
    int lowest = g_lowest.load();
    while (fd < lowest && !g_lowest.compare_exchange_weak(lowest, fd)) {
    }
}

// Raw calls, because neither function may be a cancellation point. As fcntl(2) and close(2).
int duplicate_from(int fd, int lowest) noexcept {
    const long copy = os::raw_syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, lowest);
    if (copy < 0) errno = static_cast<int>(-copy);
    return copy < 0 ? -1 : static_cast<int>(copy);
}

// A copy among the library's numbers. It asks for the limit only where the usual numbers have not worked.
int duplicate_high(int fd) noexcept {
    static constinit std::atomic<bool> usual{false};
    if (usual.load(std::memory_order_relaxed)) {
        const int copy = duplicate_from(fd, kUsualBase);
        if (copy >= 0) return copy;
    }
    const int base = base_number();
    usual.store(base == kUsualBase, std::memory_order_relaxed);
    return duplicate_from(fd, base);
}
void close_quietly(int fd) noexcept { os::raw_syscall(SYS_close, fd); }

int move_high(int fd) noexcept {
    const ErrnoKept kept;
    int high = duplicate_high(fd);
    if (high >= 0) {
        close_quietly(fd);
        fd = high;
    } else {
        os::raw_syscall(SYS_fcntl, fd, F_SETFD, FD_CLOEXEC);
    }
    return fd;
}

}  // namespace

std::atomic<unsigned> InternalFd::current_epoch_{0};

int InternalFd::number(int slot) noexcept { return g_slots[slot].load(std::memory_order_relaxed); }

InternalFd::InternalFd(int fd) noexcept {
    if (fd < 0) return;
    prepare();
    enter(move_high(fd));
}

InternalFd InternalFd::copy_of(int fd) noexcept {
    prepare();
    InternalFd copy;
    const int high = duplicate_high(fd);
    if (high >= 0) copy.enter(high);
    return copy;
}

void InternalFd::enter(int fd) noexcept {
    for (int i = 0; i < kSlots; i++) {
        int expected = kFree;
        if (g_slots[i].compare_exchange_strong(expected, fd)) {
            note_number(fd);
            slot_ = i;
            epoch_ = current_epoch_.load(std::memory_order_relaxed);
            int used = g_used.load();
            while (used < i + 1 && !g_used.compare_exchange_weak(used, i + 1)) {
            }
            return;
        }
    }
    close_quietly(fd);  // registry full: behave as if the call that made the descriptor had failed
    errno = EMFILE;
}

InternalFd::InternalFd(InternalFd&& other) noexcept : slot_(other.slot_), epoch_(other.epoch_) {
    other.slot_ = -1;
}

InternalFd& InternalFd::operator=(InternalFd&& other) noexcept {
    if (this != &other) {
        reset();
        slot_ = other.slot_;
        epoch_ = other.epoch_;
        other.slot_ = -1;
    }
    return *this;
}

void InternalFd::reset() noexcept {
    if (live()) {
        const ErrnoKept kept;
        g_mirrors[slot_].store(nullptr);
        int fd = g_slots[slot_].exchange(kFree);
        if (fd >= 0) close_quietly(fd);
    }
    slot_ = -1;
}

int InternalFd::release() noexcept {
    if (live()) g_mirrors[slot_].store(nullptr);
    const int fd = live() ? g_slots[slot_].exchange(kFree) : -1;
    slot_ = -1;
    return fd;
}

void InternalFd::mirror(int* number) noexcept {
    if (!live()) return;
    g_mirrors[slot_].store(number);
    std::atomic_ref(*number).store(get(), std::memory_order_relaxed);
}

void InternalFd::on_move(void (*moved)(int, int) noexcept) noexcept { g_moved.store(moved); }

bool InternalFd::is_internal(int fd) noexcept {
    if (fd < g_lowest.load(std::memory_order_acquire) || !g_ready.load(std::memory_order_acquire))
        return false;
    int used = g_used.load(std::memory_order_acquire);
    for (int i = 0; i < used; i++)
        if (g_slots[i].load(std::memory_order_relaxed) == fd) return true;
    return false;
}

bool InternalFd::relocate(int fd) noexcept {
    int used = g_used.load(std::memory_order_acquire);
    for (int i = 0; i < used; i++) {
        if (g_slots[i].load(std::memory_order_relaxed) != fd) continue;
        const int moved = duplicate_from(fd, std::max(fd + 1, base_number()));
        if (moved < 0) return false;
        int expected = fd;
        if (!g_slots[i].compare_exchange_strong(expected, moved)) {  // closed meanwhile by its owner
            close_quietly(moved);
            return true;
        }
        note_number(moved);
        if (int* number = g_mirrors[i].load())
            std::atomic_ref(*number).store(moved, std::memory_order_relaxed);
        if (auto* call = g_moved.load()) call(fd, moved);
        return true;
    }
    return true;
}

std::size_t InternalFd::list(int* out, std::size_t max) noexcept {
    if (!g_ready.load(std::memory_order_acquire)) return 0;
    std::size_t n = 0;
    int used = g_used.load(std::memory_order_acquire);
    for (int i = 0; i < used && n < max; i++) {
        int fd = g_slots[i].load(std::memory_order_relaxed);
        if (fd >= 0) out[n++] = fd;
    }
    std::sort(out, out + n);
    return n;
}

void InternalFd::close_all_in_child() noexcept {
    if (!g_ready.load(std::memory_order_acquire)) return;
    int used = g_used.load(std::memory_order_acquire);
    for (int i = 0; i < used; i++) {
        g_mirrors[i].store(nullptr);
        int fd = g_slots[i].exchange(kFree);
        if (fd >= 0) close_quietly(fd);
    }
    g_used.store(0);
    current_epoch_.fetch_add(1);
}

}  // namespace vma
