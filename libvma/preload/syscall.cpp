// SPDX-License-Identifier: BSD-2-Clause
// syscall() with a number that may concern the library arrives here (see syscalls.def and
// trampolines_x86_64.S).
//
// A call that does not concern the library is made exactly as libc's syscall() would make it. The call is no
// cancellation point, and its arguments have the kernel's own form. So poll and select write the remaining
// time back, and signal sets have a size.
#if defined(__x86_64__)

#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>

#include <cstddef>

#include "libvma/iomux/iomux.h"
#include "libvma/iomux/set_numbers.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/preload/guard.h"
#include "libvma/runtime/clock.h"
#include "libvma/sockets/user_memory.h"

using namespace vma;
using namespace vma::preload;

namespace {

constexpr std::size_t kBits = 64;
struct Bitmap {
    unsigned long words[8];
    constexpr void set(unsigned n) { words[n / kBits] |= 1ul << (n % kBits); }
};

constexpr Bitmap decoded() {
    Bitmap map{};
#define VMA_SYSCALL(number, when, instead) map.set(number);
#include "libvma/preload/syscalls.def"
#undef VMA_SYSCALL
    map.set(SYS_vfork);
    return map;
}

int fd(long v) noexcept { return static_cast<int>(v); }
unsigned number(long v) noexcept { return static_cast<unsigned>(v); }
size_t size(long v) noexcept { return static_cast<size_t>(v); }
void* ptr(long v) noexcept { return reinterpret_cast<void*>(v); }
template <class T>
T* as(long v) noexcept {
    return reinterpret_cast<T*>(v);
}

bool is_ours(long v) noexcept { return maybe_ours(fd(v)) && !in_vfork_child(); }
long fresh_fd(long v) noexcept { return fresh(static_cast<int>(v)); }

long finish(long result) noexcept {
    if (result >= 0 || result < -4095) return result;
    errno = static_cast<int>(-result);
    return -1;
}
long kernel(long nr, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) noexcept {
    return finish(os::raw_syscall(nr, a, b, c, d, e, f));
}

// A signal set in the kernel's size, as libc's type.
class Mask {
  public:
    explicit Mask(long address) noexcept : given_(address != 0) {
        sigemptyset(&set_);
        if (given_) memcpy(&set_, as<const void>(address), kKernelBytes);
    }
    const sigset_t* get() const noexcept { return given_ ? &set_ : nullptr; }
    static constexpr size_t kKernelBytes = 8;

  private:
    bool given_;
    sigset_t set_;
};

// Runs `wait` with a copy of the timeout and writes the remaining time back.
template <class F>
long with_remaining_time(timespec* timeout, F&& wait) {
    if (timeout == nullptr) return wait(nullptr);
    timespec limit = *timeout;
    const clock::Time begin = clock::monotonic();
    long rc = wait(&limit);
    int saved = errno;
    if (rc >= 0 || saved == EINTR) {
        const timespec spent = clock::to_timespec(clock::monotonic() - begin);
        timespec left{limit.tv_sec - spent.tv_sec, limit.tv_nsec - spent.tv_nsec};
        if (left.tv_nsec < 0) left.tv_sec--, left.tv_nsec += 1'000'000'000;
        *timeout = left.tv_sec < 0 ? timespec{} : left;
    }
    errno = saved;
    return rc;
}

// The kernel gets unreadable arguments and answers EFAULT. A null pointer is always readable.
bool can_read(const void* at, size_t bytes) noexcept {
    return at == nullptr || sockets::UserMemory::readable(at, bytes);
}

bool any_number_ours(pollfd* fds, size_t count) noexcept {
    if (fds == nullptr) return false;
    for (size_t i = 0; i < count; i++)
        if (is_ours(fds[i].fd)) return true;
    return false;
}

long raw_ppoll(pollfd* fds, size_t count, timespec* timeout, const unsigned long* mask, size_t bytes) {
    if (!can_read(fds, count * sizeof *fds) || !can_read(timeout, sizeof *timeout) ||
        !can_read(mask, bytes) || !any_number_ours(fds, count) ||
        (mask != nullptr && bytes != Mask::kKernelBytes))
        return kernel(SYS_ppoll, (long)fds, (long)count, (long)timeout, (long)mask, (long)bytes);
    Mask copy((long)mask);
    return with_remaining_time(timeout,
                               [&](const timespec* limit) { return ppoll(fds, count, limit, copy.get()); });
}

struct SignalArgument {
    const unsigned long* mask;
    size_t bytes;
};

bool any_number_ours(int nfds, const fd_set* set) noexcept {
    return set != nullptr && iomux::any_number(set, nfds, [](int fd) { return is_ours(fd); });
}

long raw_pselect(int nfds, fd_set* r, fd_set* w, fd_set* e, timespec* timeout,
                 const SignalArgument* signals) {
    if (nfds > FD_SETSIZE) nfds = iomux::select_limit(nfds);
    const size_t set = nfds > 0 ? (static_cast<size_t>(nfds) + 7) / 8 : 0;
    if (!can_read(r, set) || !can_read(w, set) || !can_read(e, set) || !can_read(timeout, sizeof *timeout) ||
        !can_read(signals, sizeof *signals) ||
        (signals != nullptr && !can_read(signals->mask, signals->bytes)))
        return kernel(SYS_pselect6, nfds, (long)r, (long)w, (long)e, (long)timeout, (long)signals);
    bool odd_mask = signals != nullptr && signals->mask != nullptr && signals->bytes != Mask::kKernelBytes;
    if (odd_mask || !(any_number_ours(nfds, r) || any_number_ours(nfds, w) || any_number_ours(nfds, e)))
        return kernel(SYS_pselect6, nfds, (long)r, (long)w, (long)e, (long)timeout, (long)signals);
    Mask copy(signals == nullptr ? 0 : (long)signals->mask);
    return with_remaining_time(
        timeout, [&](const timespec* limit) { return pselect(nfds, r, w, e, limit, copy.get()); });
}

long with_fork_hooks(long nr, long a, long b, long c, long d, long e) noexcept {
    runtime::run_fork_prepare();
    long pid = os::raw_syscall(nr, a, b, c, d, e);
    if (pid == 0)
        runtime::run_fork_child();
    else
        runtime::run_fork_parent();
    return finish(pid);
}
long copy_process(long flags, long stack, long parent_tid, long child_tid, long tls) noexcept {
    return with_fork_hooks(SYS_clone, flags, stack, parent_tid, child_tid, tls);
}
long copy_process3(long args, long bytes) noexcept {
    return with_fork_hooks(SYS_clone3, args, bytes, 0, 0, 0);
}

}  // namespace

// One bit for each number below 512 that must come to vma_syscall_decode.
extern "C" {
extern const Bitmap vma_syscall_decoded __attribute__((visibility("hidden")));
constinit const Bitmap vma_syscall_decoded = decoded();
}

extern "C" __attribute__((visibility("hidden"))) long vma_syscall_decode(long nr, long a, long b, long c,
                                                                         long d, long e, long f) noexcept {
    NoCancel hold;
    switch (nr) {
#define VMA_SYSCALL(number, when, instead) \
    case number:                           \
        if (when) return instead;          \
        break;
#include "libvma/preload/syscalls.def"
#undef VMA_SYSCALL
        default:
            break;
    }
    return kernel(nr, a, b, c, d, e, f);
}

#endif
