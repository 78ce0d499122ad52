// SPDX-License-Identifier: BSD-2-Clause
// The common waiting of select, poll and epoll_wait: look, spin, sleep; timeouts; signals.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "libvma/iomux/sources.h"
#include "libvma/os/libc_types.h"
#include "libvma/runtime/clock.h"
#include "libvma/stats/mux.h"

namespace vma::iomux {

// VMA_SELECT_*. Only tests set it at run time.
struct SpinPolicy {
    std::chrono::microseconds spin;  // how long to poll the rings before sleeping; -1 for ever
    std::int64_t os_ratio;           // look at the kernel once in this many rounds; 0: not while spinning
    std::int64_t skip_os = 1;        // see skip_kernel()
    bool yield = false;              // offer the core in each round
    bool interrupts = true;          // sleep until the rings notify; false: in slices
};
SpinPolicy spin_policy() noexcept;
void set_spin_policy(SpinPolicy policy) noexcept;

// When a call must end. Absolute, so that several sleeps do not prolong the call.
class Deadline {
  public:
    // null: never. False: invalid (the kernel's EINVAL).
    bool set(const timespec* timeout) noexcept;
    // Of a call that is made again: ends at `at`, unless that is Time{}.
    void resume(clock::Time at) noexcept {
        if (kind_ == timed_ && at != clock::Time{}) at_ = at;
    }
    bool infinite() const noexcept { return kind_ == infinite_; }
    bool zero() const noexcept { return kind_ == zero_; }
    // 0 after the deadline.
    clock::Nsec left() const noexcept;
    clock::Time at() const noexcept { return at_; }  // only if neither infinite nor zero

  private:
    enum { infinite_, zero_, timed_ } kind_ = infinite_;
    clock::Time at_;
};

// One select, poll or epoll_wait. Functions that return int return a count, or -errno.
class Wait {
  public:
    int run(const timespec* timeout, const sigset_t* mask);

  protected:
    ~Wait() = default;
    // Has the library an event to report? Makes no system call and marks no event as reported.
    virtual bool ready() noexcept = 0;
    // Asks the kernel with a zero timeout, adds the library's events, and fills in the results if there are
    // any. With `mask`, a signal that it lets through ends the call with -EINTR if the kernel has no event.
    // `mask` is null when the library has events, because events go before signals.
    virtual int look(const sigset_t* mask, bool first) = 0;
    // Sleeps until the kernel has an event on the program's descriptors or on `extra`, or a handler has run
    // (-EINTR).
    virtual int sleep(std::span<const int> extra, const timespec* limit, const sigset_t* mask) = 0;
    // Does the call watch only offloaded sockets, for reading? Then it asks the kernel less often while
    // polling.
    virtual bool only_shadows() noexcept = 0;

    WaitTargets sources_;
    // Statistics: the block in which the call counts (null: none), and how many descriptors of look()'s
    // result the library has made ready.
    stats::MuxBlock* counters_ = nullptr;
    unsigned offloaded_ready_ = 0;

  private:
    class Signals;
    int run_uncounted(const timespec* timeout, const sigset_t* mask);
    int look_once(const sigset_t* mask);
    static int ask_verdict(const Deadline& deadline) noexcept;
    int spin(const Deadline& deadline, const Signals& signals, const sigset_t* mask, bool& over);
    int sleep_once(const Deadline& deadline, Signals& signals);
    // Both take the rings' frames until the library has an event.
    bool poll_rings();
    bool empty_rings();

    stats::Arrived came_ = stats::Arrived::there;
    clock::Ticks polling_;  // only with VMA_CPU_USAGE_STATS
};

// A result in libc's form; `saved` is errno at entry, which a successful call leaves alone.
inline int finish(int result, int saved) noexcept {
    if (result < 0) {
        errno = -result;
        return -1;
    }
    errno = saved;
    return result;
}

// Is it a socket of which the kernel knows nothing?
inline bool is_ours(sockets::FdObject& object) noexcept {
    return object.kind() == sockets::Kind::socket &&
           static_cast<sockets::Socket&>(object).readiness() == sockets::Readiness::ours;
}

// Is every member an offloaded socket? The caller makes sure that all members are sockets.
template <class Members>
bool all_offloaded(const Members& members) noexcept {
    return std::all_of(members.begin(), members.end(), [](const auto& m) {
        return static_cast<sockets::Socket*>(m.object)->readiness() != sockets::Readiness::kernel;
    });
}

inline constexpr timespec kNow{0, 0};

// For a call that has found the library's events and watches only offloaded sockets, for reading: may it
// leave out the kernel this time (VMA_SELECT_SKIP_OS)? `asked`: this call has asked the kernel before, in
// vain. `skipped` counts calls in a row that did not ask.
bool skip_kernel(unsigned& skipped, bool asked) noexcept;
// The events that a reader asks of the kernel.
constexpr bool only_reads(std::uint32_t events) noexcept {
    return (events & 0xffff &
            ~static_cast<std::uint32_t>(EPOLLIN | EPOLLRDNORM | EPOLLRDBAND | EPOLLPRI | EPOLLRDHUP |
                                        EPOLLERR | EPOLLHUP)) == 0;
}

// The kernel's events, as POLL* bits, for a number that was an offloaded socket when the call began and is
// none now. POLLNVAL when the number is closed. The library forgets a socket before the kernel closes its
// number. In between, the number still means the shadow, an unconnected TCP socket, which gives no events.
short events_of_former(int fd, short events) noexcept;

}  // namespace vma::iomux
