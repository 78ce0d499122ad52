// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/extreme.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <new>

#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/ring/ring.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/sockets/extra_socket.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/sockets/stack.h"

namespace vma::sockets {
namespace {

constexpr std::uint32_t kHangUps = EPOLLRDHUP | EPOLLHUP | EPOLLERR;
constexpr std::uint32_t kOfKernel = EPOLLIN | EPOLLOUT | kHangUps;

struct Extreme {
    ExtremeList anywhere;  // members without a ring, or whose ring is to be found
    ExtremeList later;     // Next::later
    Lock lock;             // makes rings and the set
    std::array<std::atomic<ExtremeRing*>, 64> rings{};
    std::atomic<bool> watches{false};
    InternalFd kernel;  // an epoll set, edge-triggered; the data are the numbers
};
constinit Extreme g_extreme;

void renew_extreme() noexcept { new (&g_extreme) Extreme; }
VMA_RENEW_IN_CHILD(renew_extreme);

// Tells the members that have events on the kernel's side.
void look_at_kernel() noexcept {
    epoll_event events[32];
    const long n =
        os::raw_syscall(SYS_epoll_pwait, g_extreme.kernel.get(), events, std::size(events), 0, nullptr, 8);
    for (long i = 0; i < n; i++) {
        const Ref<FdObject> object = g_fds.hold(static_cast<int>(events[i].data.fd));
        if (!object || object->kind() != Kind::socket) continue;
        ExtraSocket* const socket = static_cast<Socket*>(object.get())->extra();
        if (ExtremeMember* member = socket != nullptr ? socket->extreme() : nullptr)
            member->kernel_woken(events[i].events);
    }
}

}  // namespace

// ---- lists ----

void ExtremeList::push(ExtremeMember& m) noexcept {
    const std::lock_guard guard(lock_);
    m.before_ = last_;
    m.next_ = nullptr;
    (last_ != nullptr ? last_->next_ : first_) = &m;
    last_ = &m;
    m.on_.store(this, std::memory_order_release);
    count_.store(count_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

void ExtremeList::unlink(ExtremeMember& m) noexcept {
    (m.before_ != nullptr ? m.before_->next_ : first_) = m.next_;
    (m.next_ != nullptr ? m.next_->before_ : last_) = m.before_;
    m.on_.store(nullptr, std::memory_order_release);
    count_.store(count_.load(std::memory_order_relaxed) - 1, std::memory_order_release);
}

ExtremeMember* ExtremeList::claim() noexcept {
    if (empty()) return nullptr;
    const std::lock_guard guard(lock_);
    while (ExtremeMember* m = first_) {
        // Its object may be about to end: the destructor waits for the lock as long as the member is listed.
        // Without a reference nothing of the member may be touched once it is not.
        const bool lives = m->socket_.try_ref();
        m->state_.store(ExtremeMember::State::claimed);
        unlink(*m);
        if (lives) return m;
    }
    return nullptr;
}

bool ExtremeList::remove(ExtremeMember& m) noexcept {
    const std::lock_guard guard(lock_);
    if (m.on_.load(std::memory_order_relaxed) != this) return false;
    unlink(m);
    return true;
}

// ---- members ----

ExtremeMember::~ExtremeMember() {
    while (ExtremeList* list = on_.load(std::memory_order_acquire))
        if (list->remove(*this)) break;
}

void ExtremeMember::list() noexcept {
    ExtremeRing* const ring = ring_.load(std::memory_order_relaxed);
    const bool known = ring != nullptr && (flags_.load(std::memory_order_relaxed) & kMoved) == 0;
    (known ? ring->list_ : g_extreme.anywhere).push(*this);
}

void ExtremeMember::wake(std::uint32_t events) noexcept {
    const std::uint32_t flags = events == 0 ? kMoved : events & EPOLLOUT;
    if (flags != 0) flags_.fetch_or(flags);
    State now = state_.load();
    for (;;) {
        if (now == State::listed || now == State::claimed_again) return;
        const State then = now == State::idle ? State::listed : State::claimed_again;
        if (!state_.compare_exchange_weak(now, then)) continue;
        if (then == State::listed) list();
        return;
    }
}

void ExtremeMember::kernel_woken(std::uint32_t events) noexcept {
    kernel_events_.fetch_or(events);
    wake(EPOLLIN);
}

void ExtremeMember::finished(Next next) noexcept {
    Socket& socket = socket_;
    State expected = State::claimed;
    if (next == Next::later) {
        state_.store(State::listed);
        g_extreme.later.push(*this);
    } else if (next == Next::more || !state_.compare_exchange_strong(expected, State::idle)) {
        state_.store(State::listed);
        list();
    }
    socket.unref();
}

std::uint32_t ExtremeMember::take_events(bool drained) noexcept {
    const std::uint32_t reportable = drained ? EPOLLOUT | kHangUps : static_cast<std::uint32_t>(EPOLLOUT);
    const bool ours = socket_.readiness() != Readiness::kernel;
    std::uint32_t now = ours ? socket_.ready_events() : 0u;
    // What has failed is told as a whole.
    if (!drained && (now & (EPOLLERR | EPOLLHUP)) != 0) return 0;
    now &= reportable;
    std::uint32_t again = flags_.load(std::memory_order_relaxed) & EPOLLOUT;
    if (again != 0) again = flags_.fetch_and(~static_cast<std::uint32_t>(EPOLLOUT)) & EPOLLOUT;
    const std::uint32_t fresh = now & (~told_ | again);
    told_ = now | (told_ & ~reportable);
    // As epoll tells the end of a stream: a receive call would say it, too.
    return (fresh & EPOLLRDHUP) != 0 ? fresh | EPOLLIN : fresh;
}

std::uint32_t ExtremeMember::take_kernel_events() noexcept {
    if (kernel_events_.load(std::memory_order_relaxed) == 0) return 0;
    const std::uint32_t events = kernel_events_.exchange(0);
    switch (socket_.readiness()) {
        case Readiness::both:  // a TCP socket's shadow is not connected: it may have a connection to accept
            return events & (socket_.extra()->stream() ? EPOLLIN : EPOLLIN | EPOLLERR);
        case Readiness::kernel:
            if (!served_) return 0;
            return events & (socket_.extra()->stream() ? kOfKernel : kOfKernel & ~EPOLLOUT);
        default:
            return 0;
    }
}

ExtremeRing* ExtremeMember::settle() noexcept {
    if ((flags_.load(std::memory_order_relaxed) & kMoved) != 0) {
        flags_.fetch_and(~kMoved);
        ring::Ring* ring = nullptr;
        const unsigned count = socket_.rings(&ring, 1);
        const bool one = count != 0 && count != Socket::kRingsUnknown && ring != nullptr;
        ring_.store(one ? ExtremeRing::of(*ring) : nullptr, std::memory_order_relaxed);
        const Readiness side = socket_.readiness();
        if (side != Readiness::kernel) served_ = true;
        watch(side == Readiness::both                ? EPOLLIN
              : side == Readiness::kernel && served_ ? EPOLLIN | EPOLLOUT | EPOLLRDHUP
                                                     : 0);
    }
    return ring_.load(std::memory_order_relaxed);
}

// Has the kernel's set watch the kernel's socket for these events; 0: for none.
void ExtremeMember::watch(std::uint32_t events) noexcept {
    // Another number may be left of it; then there is nothing to watch.
    if (events != 0 && (!socket_.has_fds() || g_fds.peek(fd_) != &socket_)) return;
    const std::uint32_t before = watched_.exchange(events);
    if (before == events) return;
    const std::lock_guard guard(g_extreme.lock);
    if (!g_extreme.kernel) {
        g_extreme.kernel = InternalFd(static_cast<int>(os::raw_syscall(SYS_epoll_create1, EPOLL_CLOEXEC)));
        g_extreme.watches = static_cast<bool>(g_extreme.kernel);
    }
    epoll_event event{};
    event.events = events | EPOLLET;
    event.data.fd = fd_;
    const int how = events == 0 ? EPOLL_CTL_DEL : before == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    os::raw_syscall(SYS_epoll_ctl, g_extreme.kernel.get(), how, fd_, &event);
}

// ---- rings ----

ExtremeRing* ExtremeRing::of_channel(int fd) noexcept {
    for (auto& known : g_extreme.rings) {
        ExtremeRing* const ring = known.load(std::memory_order_acquire);
        if (ring == nullptr) break;
        if (ring->ring_.channel_fd() == fd) return ring;
    }
    Stack* const stack = Stack::running();
    ring::Ring* const ring = stack != nullptr ? stack->ring_of_channel(fd) : nullptr;
    return ring != nullptr ? of(*ring) : nullptr;
}

ExtremeRing* ExtremeRing::of(ring::Ring& ring) noexcept {
    const std::lock_guard guard(g_extreme.lock);
    for (auto& known : g_extreme.rings) {
        if (known.load(std::memory_order_relaxed) == nullptr)
            known.store(new (std::nothrow) ExtremeRing(ring), std::memory_order_release);
        ExtremeRing* const made = known.load(std::memory_order_relaxed);
        if (made == nullptr || &made->ring_ == &ring) return made;
    }
    return nullptr;
}

void ExtremeRing::progress() noexcept {
    constexpr std::uint32_t kOtherwise = 1000;  // VMA_RX_UDP_POLL_OS_RATIO is 0
    ring_.poll();
    ring_.flush();
    const auto ratio = static_cast<std::uint32_t>(config::get().rx_udp_poll_os_ratio);
    const std::uint32_t polls = polls_.load(std::memory_order_relaxed) + 1;
    polls_.store(polls, std::memory_order_relaxed);
    if (polls % (ratio != 0 ? ratio : kOtherwise) != 0) return;
    if (g_extreme.watches.load(std::memory_order_relaxed)) look_at_kernel();
    while (ExtremeMember* member = g_extreme.later.claim()) {
        member->settle();
        member->finished(ExtremeMember::Next::more);
    }
}

ExtremeMember* ExtremeRing::claim() noexcept {
    for (;;) {
        ExtremeMember* member = list_.claim();
        if (member == nullptr) member = g_extreme.anywhere.claim();
        if (member == nullptr) return nullptr;
        if (ExtremeRing* home = member->settle(); home == this || home == nullptr) return member;
        member->finished(ExtremeMember::Next::more);
    }
}

}  // namespace vma::sockets
