// SPDX-License-Identifier: BSD-2-Clause
// The epoll calls. epoll_set.h describes an EpollSet.
#include <atomic>
#include <climits>
#include <new>
#include <utility>

#include "libvma/iomux/epoll_set.h"
#include "libvma/iomux/iomux.h"
#include "libvma/iomux/kernel_set.h"
#include "libvma/iomux/set_numbers.h"
#include "libvma/iomux/wait.h"
#include "libvma/os/calls.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/region.h"

namespace vma::iomux {
namespace {

using sockets::FdObject;
using sockets::g_fds;
using sockets::Ref;

class EpollCall final : public Wait {
  public:
    EpollCall(Ref<EpollSet>&& set, int epfd, epoll_event* events, int maxevents)
        : set_(*set), call_(set_, epfd), epfd_(epfd), events_(events), maxevents_(maxevents) {
        // sources_ keeps the set alive, and is destroyed after call_.
        counters_ = set_.counters();
        if (const unsigned members = set_.offloaded_members();
            counters_ != nullptr && stats::load(counters_->members) != members)
            stats::store(counters_->members, members);
        FdObject* object = set.get();
        if (object->try_ref()) sources_.add(Ref<FdObject>(object));
    }

  private:
    bool ready() noexcept override { return set_.ready(); }
    bool only_shadows() noexcept override { return set_.only_shadows(); }

    int look(const sigset_t* mask, bool first) override {
        sleepers::settle();
        int n =
            set_.collect(epfd_, events_, maxevents_, std::exchange(kernel_ready_, false), offloaded_ready_);
        // A call with a zero timeout ends with the first look, and there epoll_wait ignores signals.
        if (n != 0 || mask == nullptr || first) return n;
        pollfd self{call_.fd(), POLLIN, 0};
        return os::ppoll(&self, 1, &kNow, mask) < 0 ? -errno : 0;
    }

    int sleep(std::span<const int> extra, const timespec* limit, const sigset_t* mask) override {
        // The kernel's set is watched, not waited on: the next look calls epoll_wait and joins its events
        // with the library's.
        Scratch<pollfd, 32> all;
        all.reserve(extra.size() + 1);
        all.push_back({call_.fd(), POLLIN, 0});
        for (int fd : extra) all.push_back({fd, POLLIN, 0});
        if (os::ppoll(all.data(), all.size(), limit, mask) < 0) return -errno;
        kernel_ready_ = all[0].revents != 0;
        return 0;
    }

    EpollSet& set_;
    EpollSet::Call call_;
    int epfd_;
    epoll_event* events_;
    int maxevents_;
    bool kernel_ready_ = false;
};

// Rounds up, because a timeout never ends early.
int milliseconds(const timespec* timeout) noexcept {
    if (timeout == nullptr) return -1;
    if (timeout->tv_sec >= INT_MAX / 1000) return INT_MAX;
    return static_cast<int>(timeout->tv_sec * 1000 + (timeout->tv_nsec + 999'999) / 1'000'000);
}

}  // namespace

int epoll_ctl(int epfd, int op, int fd, epoll_event* event) {
    int saved = errno;
    if (Ref<EpollSet> set = EpollSet::find(epfd)) return finish(set->control(epfd, op, fd, event), saved);
    // The set first, then the member: a thread that sleeps in the kernel's set would see the shadow's events.
    if (op == EPOLL_CTL_ADD && g_fds.peek(fd) != nullptr && is_epoll(epfd)) {
        try {
            if (Ref<EpollSet> set = EpollSet::find_or_make(epfd))
                return finish(set->control(epfd, op, fd, event), saved);
        } catch (const std::bad_alloc&) {
            return finish(-ENOMEM, saved);
        }
    }
    int rc = os::epoll_ctl(epfd, op, fd, event);
    if (rc != 0 || op != EPOLL_CTL_ADD || g_fds.peek(fd) == nullptr) return rc;
    bool done = false;
    try {
        if (Ref<EpollSet> set = EpollSet::find_or_make(epfd)) {
            set->added(fd, *event);
            done = true;
        }
    } catch (const std::bad_alloc&) {
    }
    if (!done) {
        os::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, nullptr);
        return finish(-ENOMEM, saved);
    }
    errno = saved;
    return 0;
}

int epoll_wait(int epfd, epoll_event* events, int maxevents, const timespec* timeout, const sigset_t* mask) {
    int saved = errno;
    Ref<EpollSet> set = EpollSet::find(epfd);
    if (!set || set->busy_in_this_thread()) {
        Deadline deadline;
        if (!deadline.set(timeout)) return finish(-EINVAL, saved);
        auto kernel = [&] { return os::epoll_pwait(epfd, events, maxevents, milliseconds(timeout), mask); };
        if (runtime::in_region())
            return finish(-runtime::kAskKernel,
                          saved);  // the set has lost its last number, and the call may wait
        if (set) return kernel();
        return kernel_epoll_wait(epfd, events, maxevents, timeout, mask, kernel);
    }
    EpollCall call(std::move(set), epfd, events, maxevents);
    return finish(call.run(timeout, mask), saved);
}

void received(int fd) noexcept {
    if (g_fds.peek(fd) != nullptr || !is_epoll(fd)) return;
    set_numbers::note(fd);
    if (!EpollSet::any()) return;
    EpollSet* same = nullptr;
    g_fds.for_each(0, INT_MAX, [&](int number, FdObject* object) {
        if (same == nullptr && object->kind() == sockets::Kind::epoll && same_file(number, fd))
            same = static_cast<EpollSet*>(object);
    });
    if (same == nullptr || !same->try_ref()) return;
    Ref<EpollSet> set(same);
    g_fds.insert(fd, set.get());
}

// ---- threads that sleep in the kernel, on sets ----

KernelWait::KernelWait(std::span<const int> sets, const timespec* timeout) noexcept
    : sets_(sets), infinite_(timeout == nullptr) {
    if (sets.empty()) return;  // most calls; they need no clock
    Deadline deadline;
    if (!infinite_ && deadline.set(timeout)) {
        if (deadline.infinite()) {
            infinite_ = true;
        } else if (!deadline.zero()) {
            deadline_ = deadline.at();
        }
    }
    // A thread that does not sleep needs no wake-up.
    if (!infinite_ && deadline_ == clock::Time{}) return;
    runtime::Region region;
    ticket_ = sleepers::enter(sets);
}

KernelWait::~KernelWait() {
    if (ticket_ == 0) return;
    const ErrnoKept kept;
    runtime::Region region;
    sleepers::leave(ticket_);
}

bool KernelWait::superseded() const noexcept {
    for (int epfd : sets_)
        if (sleepers::superseded(epfd)) return true;
    return false;
}

int KernelWait::filter(epoll_event* events, int n) const noexcept {
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (!sleepers::is_kick(events[i].data.u64)) events[kept++] = events[i];
    return kept == 0 && n > 0 ? -1 : kept;
}

int without_kicked(int epfd, epoll_event* events, int n) noexcept {
    Ref<EpollSet> set = EpollSet::find(epfd);
    return set ? set->without_kicked(events, n) : n;
}

const timespec* KernelWait::remaining(timespec& left) const noexcept {
    if (infinite_) return nullptr;
    const clock::Time now = clock::monotonic();
    left = clock::to_timespec(deadline_ > now ? deadline_ - now : clock::Nsec::zero());
    return &left;
}

}  // namespace vma::iomux
