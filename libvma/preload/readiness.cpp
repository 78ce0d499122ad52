// SPDX-License-Identifier: BSD-2-Clause
// select, poll and epoll. A call that concerns no object of ours reaches the kernel with its arguments untouched, so
// timeouts keep their precision; else it goes to iomux, which knows one form of each call, with a timespec.
#include <algorithm>
#include <climits>

#include "libvma/iomux/iomux.h"
#include "libvma/preload/guard.h"
#include "libvma/sockets/user_memory.h"

using namespace vma;
using namespace vma::preload;

namespace {

bool any_ours(pollfd* fds, nfds_t count) noexcept {
    if (!g_fds.any() || in_vfork_child()) return false;
    // What cannot be an array of that size goes to the kernel, to be refused.
    if (count > (1u << 21) || !sockets::UserMemory::writable(fds, count * sizeof *fds)) return false;
    for (nfds_t i = 0; i < count; i++)
        if (g_fds.peek(fds[i].fd) != nullptr) return true;
    return false;
}

bool any_ours(const fd_set* set, int nfds) noexcept {
    if (set == nullptr || nfds <= 0) return false;
    if (!sockets::UserMemory::writable(const_cast<fd_set*>(set), static_cast<std::size_t>(nfds + 7) / 8)) return false;
    constexpr int kBits = NFDBITS;
    for (int base = 0; base < nfds; base += kBits) {
        auto word = static_cast<unsigned long>(set->fds_bits[base / kBits]);
        if (nfds - base < kBits) word &= (1ul << (nfds - base)) - 1;
        for (; word != 0; word &= word - 1)
            if (g_fds.peek(base + __builtin_ctzl(word)) != nullptr) return true;
    }
    return false;
}

// Programs pass numbers far beyond their sets; see iomux::select_limit.
int limited(int nfds) noexcept { return nfds <= FD_SETSIZE ? nfds : iomux::select_limit(nfds); }

bool any_ours(int nfds, const fd_set* r, const fd_set* w, const fd_set* e) noexcept {
    return g_fds.any() && !in_vfork_child() && (any_ours(r, nfds) || any_ours(w, nfds) || any_ours(e, nfds));
}

bool is_ours(int epfd) noexcept { return maybe_ours(epfd) && !in_vfork_child(); }

// A timespec the kernel refuses goes to the kernel, to be refused.
bool valid(const timespec* t) noexcept {
    return t == nullptr || (t->tv_sec >= 0 && t->tv_nsec >= 0 && t->tv_nsec < 1'000'000'000);
}

// A timeout in milliseconds as a timespec; null for "for ever".
class Milliseconds {
  public:
    explicit Milliseconds(int msec) noexcept
        : infinite_(msec < 0), time_{msec / 1000, static_cast<long>(msec % 1000) * 1'000'000} {}
    const timespec* get() const noexcept { return infinite_ ? nullptr : &time_; }

  private:
    bool infinite_;
    timespec time_;
};

}  // namespace

// ---- poll ----

VMA_EXPORT int poll(pollfd* fds, nfds_t count, int timeout) {
    if (any_ours(fds, count))
        return cancellation_point([&] { return iomux::poll(fds, count, Milliseconds(timeout).get(), nullptr); });
    return os::poll(fds, count, timeout);
}
VMA_ALIAS(__poll, poll);

VMA_EXPORT int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
    if (any_ours(fds, count) && valid(timeout))
        return cancellation_point([&] { return iomux::poll(fds, count, timeout, mask); });
    return os::ppoll(fds, count, timeout, mask);
}

extern "C" [[noreturn]] void __chk_fail();

VMA_EXPORT int __poll_chk(pollfd* fds, nfds_t count, int timeout, size_t size) {
    if (size / sizeof(pollfd) < count) __chk_fail();
    return poll(fds, count, timeout);
}

VMA_EXPORT int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask, size_t size) {
    if (size / sizeof(pollfd) < count) __chk_fail();
    return ppoll(fds, count, timeout, mask);
}

// ---- select ----

VMA_EXPORT int select(int nfds, fd_set* r, fd_set* w, fd_set* e, timeval* timeout) {
    nfds = limited(nfds);
    if (!any_ours(nfds, r, w, e) || (timeout != nullptr && (timeout->tv_sec < 0 || timeout->tv_usec < 0)))
        return os::select(nfds, r, w, e, timeout);
    timespec limit{}, remaining{};
    if (timeout != nullptr) {
        // More than a second of microseconds is allowed and carried over.
        limit.tv_sec = timeout->tv_usec / 1'000'000 > LONG_MAX - timeout->tv_sec
                           ? LONG_MAX
                           : timeout->tv_sec + timeout->tv_usec / 1'000'000;
        limit.tv_nsec = timeout->tv_usec % 1'000'000 * 1000;
        remaining = limit;
    }
    int rc = cancellation_point(
        [&] { return iomux::select(nfds, r, w, e, timeout == nullptr ? nullptr : &limit, nullptr, &remaining); });
    if (timeout != nullptr) *timeout = {remaining.tv_sec, remaining.tv_nsec / 1000};
    return rc;
}
VMA_ALIAS(__select, select);

VMA_EXPORT int pselect(int nfds, fd_set* r, fd_set* w, fd_set* e, const timespec* timeout, const sigset_t* mask) {
    nfds = limited(nfds);
    if (any_ours(nfds, r, w, e) && valid(timeout))
        return cancellation_point([&] { return iomux::select(nfds, r, w, e, timeout, mask, nullptr); });
    return os::pselect(nfds, r, w, e, timeout, mask);
}

// ---- epoll ----

VMA_EXPORT int epoll_ctl(int epfd, int op, int fd, epoll_event* event) noexcept {
    if (is_ours(fd) || is_ours(epfd)) return guarded_nocancel([&] { return iomux::epoll_ctl(epfd, op, fd, event); });
    return os::epoll_ctl(epfd, op, fd, event);
}

namespace {

// Waits on a set: through iomux if it has offloaded members, else as `kernel` does, but so that the first such member,
// added by another thread meanwhile, is noticed.
template <class F>
int wait_for_events(int epfd, epoll_event* events, int count, const timespec* timeout, const sigset_t* mask,
                    F&& kernel) {
    if (is_ours(epfd))
        return cancellation_point([&] { return iomux::epoll_wait(epfd, events, count, timeout, mask); });
    bool sleeps = timeout == nullptr || timeout->tv_sec != 0 || timeout->tv_nsec != 0;
    if (!sleeps || in_vfork_child() || runtime::inert()) return kernel();
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

VMA_EXPORT int epoll_pwait2(int epfd, epoll_event* events, int count, const timespec* timeout, const sigset_t* mask) {
    if (!valid(timeout)) return os::epoll_pwait2(epfd, events, count, timeout, mask);
    return wait_for_events(epfd, events, count, timeout, mask,
                           [&] { return os::epoll_pwait2(epfd, events, count, timeout, mask); });
}
