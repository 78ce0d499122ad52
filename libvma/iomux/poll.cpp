// SPDX-License-Identifier: BSD-2-Clause
// poll and ppoll.
//
// The kernel's look works on the program's own array. So the kernel also decides about EFAULT, EINVAL and
// POLLNVAL, and fills in every revents; the library then adds its events. A copy of the array hides members
// of which the kernel knows nothing (Readiness::ours). With hidden members only, the call does not ask the
// kernel.
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>

#include "libvma/iomux/iomux.h"
#include "libvma/iomux/kernel_set.h"
#include "libvma/iomux/set_numbers.h"
#include "libvma/iomux/wait.h"
#include "libvma/os/calls.h"

namespace vma::iomux {
namespace {

using sockets::FdObject;
using sockets::g_fds;
using sockets::Kind;
using sockets::Ref;

constexpr short kEpollReadable = POLLIN | POLLRDNORM;
constexpr short kImplied = POLLERR | POLLHUP;
// Above this many descriptors the limit is checked before the array is read: the count may be garbage, and
// the kernel answers EINVAL.
constexpr nfds_t kPlausible = 1024;
// Up to this many, RLIMIT_NOFILE is assumed to be large enough without asking the kernel.
constexpr nfds_t kSurelyAllowed = 16;

constinit thread_local unsigned t_poll_skipped = 0;

class PollCall final : public Wait {
  public:
    PollCall(pollfd* fds, nfds_t count) : fds_(fds), count_(count) {
        for (nfds_t i = 0; i < count; i++) {
            if (fds[i].fd < 0) continue;
            asked_++;
            Ref<FdObject> object = g_fds.find(fds[i].fd);
            if (!object) {
                kernel_sets_.look_at(fds[i].fd);
                continue;
            }
            if (object->kind() == Kind::epoll) sleepers::settle();
            members_.push_back({i, fds[i].fd, fds[i].events, object.get(), is_ours(*object), false});
            readers_ &=
                object->kind() == Kind::socket && only_reads(static_cast<std::uint16_t>(fds[i].events));
            sources_.add(std::move(object));
        }
        counters_ = &stats::calls_of(stats::Mux::poll);
    }
    // The sets that were not EpollSets when the call began.
    std::span<const int> kernel_sets() const noexcept { return kernel_sets_.numbers(); }

  private:
    struct Member {
        nfds_t index;
        int fd;
        short events;
        FdObject* object;  // kept alive by sources_
        bool was_ours;     // Readiness::ours when the call began
        bool hidden;       // from the kernel, in the present look
    };

    // Another thread has closed the number, or given it to another file, meanwhile: the kernel answers for
    // it.
    static bool gone(const Member& m) noexcept { return g_fds.peek(m.fd) != m.object; }
    static bool hidden(const Member& m) noexcept { return gone(m) ? m.was_ours : is_ours(*m.object); }
    // The library's events of the member.
    static short events_of(const Member& m) noexcept {
        if (gone(m)) return m.was_ours ? events_of_former(m.fd, m.events) : short{0};
        if (m.object->kind() == Kind::epoll) {
            short wanted = m.events & kEpollReadable;
            return wanted != 0 && static_cast<EpollSet*>(m.object)->ready() ? wanted : 0;
        }
        auto* socket = static_cast<sockets::Socket*>(m.object);
        if (socket->readiness() == sockets::Readiness::kernel) return 0;
        return static_cast<short>(socket->ready_events() & static_cast<std::uint16_t>(m.events | kImplied));
    }

    // Asks the kernel about all members but the hidden ones. members_ is in order of index.
    int ask_kernel(const sigset_t* mask, bool first) {
        nfds_t hiding = 0;
        const bool skip = mask == nullptr && only_shadows() && ready() && skip_kernel(t_poll_skipped, began_);
        for (Member& m : members_) {
            m.hidden = (skip && !gone(m)) || hidden(m);
            if (m.hidden) hiding++;
        }
        if (hiding == 0) {
            began_ = true;
            return os::ppoll(fds_, count_, &kNow, mask);
        }
        if (hiding == asked_ && mask == nullptr && count_ <= kSurelyAllowed) {
            if (first) pthread_testcancel();  // poll() is a cancellation point
            for (nfds_t i = 0; i < count_; i++) fds_[i].revents = 0;
            return 0;
        }
        copy_.clear();
        copy_.reserve(count_);
        for (nfds_t i = 0; i < count_; i++) copy_.push_back(fds_[i]);
        for (const Member& m : members_)
            if (m.hidden) copy_[m.index].fd = -1;
        int n = os::ppoll(copy_.data(), count_, &kNow, mask);
        if (n >= 0 || errno == EINTR)
            for (nfds_t i = 0; i < count_; i++) fds_[i].revents = copy_[i].revents;
        return n;
    }

    bool only_shadows() noexcept override {
        return readers_ && members_.size() == asked_ && all_offloaded(members_);
    }

    bool ready() noexcept override {
        return std::any_of(members_.begin(), members_.end(),
                           [](const Member& m) { return events_of(m) != 0; });
    }

    int look(const sigset_t* mask, bool first) override {
        int n = ask_kernel(mask, first);
        if (n < 0) {
            // Without a mask EINTR only says that a handler has just run; the library's events must still be
            // reported. The kernel has cleared every revents.
            if (errno != EINTR || !ready()) return -errno;
            n = 0;
        }
        offloaded_ready_ = 0;
        for (const Member& m : members_) {
            short& revents = fds_[m.index].revents;
            if ((revents & POLLNVAL) != 0) continue;
            if (!m.hidden && (revents & POLLERR) != 0 && m.object->kind() == Kind::socket)
                static_cast<sockets::Socket*>(m.object)->kernel_error_seen();
            short ours = events_of(m);
            if (ours == 0) continue;
            offloaded_ready_++;
            if (revents == 0) n++;
            revents |= ours;
        }
        return n;
    }

    int sleep(std::span<const int> extra, const timespec* limit, const sigset_t* mask) override {
        Scratch<pollfd, 96> all;
        all.reserve(count_ + extra.size());
        for (int fd : extra) all.push_back({fd, POLLIN, 0});
        const Member* m = members_.begin();
        for (nfds_t i = 0; i < count_; i++) {
            bool ours = m != members_.end() && m->index == i && hidden(*m++);
            if (fds_[i].fd >= 0 && !ours) all.push_back({fds_[i].fd, fds_[i].events, 0});
        }
        if (os::ppoll(all.data(), all.size(), limit, mask) >= 0) return 0;
        if (errno != EINVAL) return -errno;
        // With the library's descriptors there are more than RLIMIT_NOFILE allows. So the call sleeps on the
        // library's descriptors in slices, and looks at the program's in between.
        timespec slice{0, 1'000'000};
        if (limit != nullptr && limit->tv_sec == 0) slice.tv_nsec = std::min(slice.tv_nsec, limit->tv_nsec);
        all.resize(std::min(all.size(), extra.size()));
        return os::ppoll(all.data(), all.size(), &slice, mask) < 0 && errno != EINVAL ? -errno : 0;
    }

    WatchedSets kernel_sets_;
    pollfd* fds_;
    nfds_t count_;
    bool readers_ = true;  // members_ are sockets, watched for reading
    bool began_ = false;   // the kernel has been asked about all members
    nfds_t asked_ = 0;     // how many numbers are not negative
    Scratch<Member, 64> members_;
    Scratch<pollfd, 64> copy_;
};

}  // namespace

int poll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
    int saved = errno;
    if (fds == nullptr) return os::ppoll(fds, count, timeout, mask);
    if (count > kPlausible) {
        rlimit limit{};
        if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && count > limit.rlim_cur)
            return os::ppoll(fds, count, timeout, mask);
    }
    for (timespec left;;) {
        PollCall call(fds, count);
        KernelWait watch(call.kernel_sets(), timeout);
        const int n = watch.superseded() ? 0 : call.run(timeout, mask);
        if (n < 0 || !watch.superseded()) return finish(n, saved);
        timeout = watch.remaining(left);
    }
}

}  // namespace vma::iomux
