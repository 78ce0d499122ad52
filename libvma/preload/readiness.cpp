// SPDX-License-Identifier: BSD-2-Clause
// select, poll and epoll. A call without the library's objects reaches the kernel with its arguments
// untouched, so timeouts keep their precision. Other calls go to iomux, which has one form of each call, with
// a timespec.
#include <algorithm>
#include <climits>

#include "libvma/iomux/iomux.h"
#include "libvma/iomux/scratch.h"
#include "libvma/iomux/set_numbers.h"
#include "libvma/preload/guard.h"
#include "libvma/sockets/user_memory.h"

using namespace vma;
using namespace vma::preload;

namespace {

constexpr nfds_t kMostPolled = 1u << 21;

bool any_ours(pollfd* fds, nfds_t count) noexcept {
    if (!g_fds.any() || in_vfork_child()) return false;
    // The kernel refuses arguments that cannot be an array of that size.
    if (count > kMostPolled || !sockets::UserMemory::writable(fds, count * sizeof *fds)) return false;
    for (nfds_t i = 0; i < count; i++)
        if (g_fds.peek(fds[i].fd) != nullptr) return true;
    return false;
}

bool can_write(fd_set* set, int nfds) noexcept {
    return set == nullptr || sockets::UserMemory::writable(set, static_cast<std::size_t>(nfds + 7) / 8);
}

bool any_ours(fd_set* set, int nfds) noexcept {
    return set != nullptr && nfds > 0 && can_write(set, nfds) &&
           iomux::any_number(set, nfds, [](int fd) { return g_fds.peek(fd) != nullptr; });
}

// Programs pass numbers far beyond their sets; see iomux::select_limit.
int limited(int nfds) noexcept { return nfds <= FD_SETSIZE ? nfds : iomux::select_limit(nfds); }

bool any_ours(int nfds, fd_set* r, fd_set* w, fd_set* e) noexcept {
    return g_fds.any() && !in_vfork_child() && (any_ours(r, nfds) || any_ours(w, nfds) || any_ours(e, nfds));
}

bool is_ours(int epfd) noexcept { return maybe_ours(epfd) && !in_vfork_child(); }

// The kernel refuses an invalid timespec, so it gets the call.
bool valid(const timespec* t) noexcept {
    return t == nullptr || (t->tv_sec >= 0 && t->tv_nsec >= 0 && t->tv_nsec < 1'000'000'000);
}

// A timeout in milliseconds as a timespec; null for an infinite one.
class Milliseconds {
  public:
    explicit Milliseconds(int count) noexcept
        : infinite_(count < 0), time_{count / 1000, static_cast<long>(count % 1000) * 1'000'000} {}
    const timespec* get() const noexcept { return infinite_ ? nullptr : &time_; }

  private:
    bool infinite_;
    timespec time_;
};

}  // namespace

// ---- poll ----
namespace {

bool sleeps(const timespec* timeout) noexcept {
    return timeout == nullptr || timeout->tv_sec != 0 || timeout->tv_nsec != 0;
}

// May a call that sleeps watch a set of the kernel, which can become an EpollSet meanwhile?
bool may_watch_sets(const timespec* timeout) noexcept {
    return iomux::set_numbers::any() && valid(timeout) && sleeps(timeout) && !in_vfork_child();
}

// poll() without a descriptor of the library. `kernel` is the program's own call.
template <class F>
int poll_the_kernels(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask, F&& kernel,
                     const char* name = __builtin_FUNCTION()) {
    if (!may_watch_sets(timeout) || count > kMostPolled ||
        !sockets::UserMemory::writable(fds, count * sizeof *fds))
        return kernel();
    const iomux::WatchedSets sets(fds, count);
    if (sets.empty()) return kernel();
    return iomux::kernel_poll(sets.numbers(), timeout, kernel, [&](const timespec* left) {
        return cancellation_point(
            static_cast<long>(count), [&] { return iomux::poll(fds, count, left, mask); }, name);
    });
}

}  // namespace

VMA_EXPORT int poll(pollfd* fds, nfds_t count, int timeout) {
    const Milliseconds limit(timeout);
    if (any_ours(fds, count))
        return cancellation_point(static_cast<long>(count),
                                  [&] { return iomux::poll(fds, count, limit.get(), nullptr); });
    return poll_the_kernels(fds, count, limit.get(), nullptr, [&] { return os::poll(fds, count, timeout); });
}
VMA_ALIAS(__poll, poll);

VMA_EXPORT int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
    if (any_ours(fds, count) && valid(timeout))
        return cancellation_point(static_cast<long>(count),
                                  [&] { return iomux::poll(fds, count, timeout, mask); });
    return poll_the_kernels(fds, count, timeout, mask, [&] { return os::ppoll(fds, count, timeout, mask); });
}

extern "C" [[noreturn]] void __chk_fail();

VMA_EXPORT int __poll_chk(pollfd* fds, nfds_t count, int timeout, size_t size) {
    if (size / sizeof(pollfd) < count) __chk_fail();
    return poll(fds, count, timeout);
}

VMA_EXPORT int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask,
                           size_t size) {
    if (size / sizeof(pollfd) < count) __chk_fail();
    return ppoll(fds, count, timeout, mask);
}

// ---- select ----
namespace {

// Keeps a copy of select()'s arguments, because the kernel overwrites them with its results.
class SelectArguments {
  public:
    SelectArguments(int nfds, fd_set* r, fd_set* w, fd_set* e)
        : words_(static_cast<std::size_t>(nfds + NFDBITS - 1) / NFDBITS), sets_{r, w, e} {
        kept_.resize(3 * words_);
        for (std::size_t s = 0; s < 3; s++)
            if (sets_[s] != nullptr) std::copy_n(sets_[s]->fds_bits, words_, kept_.data() + s * words_);
    }
    void restore() noexcept {
        for (std::size_t s = 0; s < 3; s++)
            if (sets_[s] != nullptr) std::copy_n(kept_.data() + s * words_, words_, sets_[s]->fds_bits);
    }

  private:
    std::size_t words_;
    fd_set* sets_[3];
    iomux::Scratch<fd_mask, 3 * FD_SETSIZE / NFDBITS> kept_;
};

// As poll_the_kernels(). A set can only be readable, so only the first fd_set can name a set that matters.
template <class K, class F>
int select_the_kernels(int nfds, fd_set* r, fd_set* w, fd_set* e, const timespec* timeout, K&& kernel,
                       F&& ours) {
    if (nfds <= 0 || r == nullptr || !may_watch_sets(timeout) || !can_write(r, nfds) || !can_write(w, nfds) ||
        !can_write(e, nfds))
        return kernel();
    const iomux::WatchedSets sets(r, nfds);
    if (sets.empty()) return kernel();
    return guarded([&] {
        SelectArguments arguments(nfds, r, w, e);
        return iomux::kernel_poll(sets.numbers(), timeout, kernel, [&](const timespec* left) {
            arguments.restore();
            return ours(left);
        });
    });
}

}  // namespace

VMA_EXPORT int select(int nfds, fd_set* r, fd_set* w, fd_set* e, timeval* timeout) {
    nfds = limited(nfds);
    if (timeout != nullptr && (timeout->tv_sec < 0 || timeout->tv_usec < 0))
        return os::select(nfds, r, w, e, timeout);
    timespec limit{};
    if (timeout != nullptr) {
        // The kernel allows more than a second of microseconds and carries them over.
        limit.tv_sec = timeout->tv_usec / 1'000'000 > LONG_MAX - timeout->tv_sec
                           ? LONG_MAX
                           : timeout->tv_sec + timeout->tv_usec / 1'000'000;
        limit.tv_nsec = timeout->tv_usec % 1'000'000 * 1000;
    }
    auto ours = [&](const timespec* time) {
        timespec remaining = time != nullptr ? *time : timespec{};
        int rc = cancellation_point(
            nfds, [&] { return iomux::select(nfds, r, w, e, time, nullptr, &remaining); }, "select");
        if (timeout != nullptr) *timeout = {remaining.tv_sec, remaining.tv_nsec / 1000};
        return rc;
    };
    const timespec* const time = timeout == nullptr ? nullptr : &limit;
    if (any_ours(nfds, r, w, e)) return ours(time);
    return select_the_kernels(
        nfds, r, w, e, time, [&] { return os::select(nfds, r, w, e, timeout); }, ours);
}
VMA_ALIAS(__select, select);

VMA_EXPORT int pselect(int nfds, fd_set* r, fd_set* w, fd_set* e, const timespec* timeout,
                       const sigset_t* mask) {
    nfds = limited(nfds);
    auto ours = [&](const timespec* time) {
        return cancellation_point(
            nfds, [&] { return iomux::select(nfds, r, w, e, time, mask, nullptr); }, "pselect");
    };
    if (any_ours(nfds, r, w, e) && valid(timeout)) return ours(timeout);
    return select_the_kernels(
        nfds, r, w, e, timeout, [&] { return os::pselect(nfds, r, w, e, timeout, mask); }, ours);
}

// ---- epoll ----

VMA_EXPORT int epoll_ctl(int epfd, int op, int fd, epoll_event* event) noexcept {
    if (is_ours(fd) || is_ours(epfd))
        return guarded_nocancel(epfd, [&] { return iomux::epoll_ctl(epfd, op, fd, event); });
    const int rc = os::epoll_ctl(epfd, op, fd, event);
    if (rc == 0 && !in_vfork_child() && !runtime::inert()) iomux::set_numbers::note(epfd);
    return rc;
}

namespace {

// Waits on a set: through iomux if it has offloaded members, else by `kernel`. In the latter case the call
// still notices when another thread adds the first offloaded member.
template <class F>
int wait_for_events(int epfd, epoll_event* events, int count, const timespec* timeout, const sigset_t* mask,
                    F&& kernel, const char* name = __builtin_FUNCTION()) {
    if (is_ours(epfd)) {
        const int before = errno;
        const int n = cancellation_point(
            epfd, [&] { return iomux::epoll_wait(epfd, events, count, timeout, mask); }, name);
        if (n >= 0 || errno != runtime::kAskKernel) return n;  // else the set has just lost its last number
        errno = before;
    }
    if (!sleeps(timeout) || in_vfork_child() || runtime::inert()) return kernel();
    iomux::set_numbers::note(epfd);
    return guarded([&] { return iomux::kernel_epoll_wait(epfd, events, count, timeout, mask, kernel); });
}

}  // namespace

VMA_EXPORT int epoll_wait(int epfd, epoll_event* events, int count, int timeout) {
    return wait_for_events(epfd, events, count, Milliseconds(timeout).get(), nullptr,
                           [&] { return os::epoll_wait(epfd, events, count, timeout); });
}

VMA_EXPORT int epoll_pwait(int epfd, epoll_event* events, int count, int timeout, const sigset_t* mask) {
    return wait_for_events(epfd, events, count, Milliseconds(timeout).get(), mask,
                           [&] { return os::epoll_pwait(epfd, events, count, timeout, mask); });
}

VMA_EXPORT int epoll_pwait2(int epfd, epoll_event* events, int count, const timespec* timeout,
                            const sigset_t* mask) {
    if (!valid(timeout)) return os::epoll_pwait2(epfd, events, count, timeout, mask);
    return wait_for_events(epfd, events, count, timeout, mask,
                           [&] { return os::epoll_pwait2(epfd, events, count, timeout, mask); });
}
