// SPDX-License-Identifier: BSD-2-Clause
// poll and ppoll.
//
// The kernel's look works on the program's own array, so it also decides about EFAULT, EINVAL and POLLNVAL, and fills in
// every revents; ours are added to it afterwards.
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>

#include "libvma/iomux/iomux.h"
#include "libvma/iomux/wait.h"
#include "libvma/os/calls.h"

namespace vma::iomux {
namespace {

using sockets::FdObject;
using sockets::g_fds;
using sockets::Kind;
using sockets::Ref;

constexpr short kOurs = POLLIN | POLLRDNORM;
// Above this many descriptors the limit is checked before the array is read: the count may be garbage, which the kernel
// answers with EINVAL.
constexpr nfds_t kPlausible = 1024;

class PollCall final : public Wait {
  public:
    PollCall(pollfd* fds, nfds_t count) : fds_(fds), count_(count) {
        for (nfds_t i = 0; i < count; i++) {
            if (fds[i].fd < 0) continue;
            Ref<FdObject> object = g_fds.find(fds[i].fd);
            if (!object) continue;
            members_.push_back({i, fds[i].fd, fds[i].events, object.get()});
            sources_.add(std::move(object));
        }
    }

  private:
    struct Member {
        nfds_t index;
        int fd;
        short events;
        FdObject* object;  // kept by sources_
    };

    // What our side has for the member. Nothing once its number was closed, or given to another file, meanwhile.
    static short events_of(const Member& m) noexcept {
        short wanted = m.events & kOurs;
        if (wanted == 0 || g_fds.peek(m.fd) != m.object) return 0;
        if (m.object->kind() == Kind::socket)
            return static_cast<short>(static_cast<sockets::Socket*>(m.object)->ready_events()) & wanted;
        return static_cast<EpollSet*>(m.object)->ready() ? wanted : 0;
    }

    bool ready() noexcept override {
        return std::any_of(members_.begin(), members_.end(), [](const Member& m) { return events_of(m) != 0; });
    }

    int look(const sigset_t* mask, bool) override {
        int n = os::ppoll(fds_, count_, &kNow, mask);
        if (n < 0) {
            // Without a mask EINTR only says that a handler has just run; what we have is still to be reported. The
            // kernel has cleared every revents.
            if (errno != EINTR || !ready()) return -errno;
            n = 0;
        }
        for (const Member& m : members_) {
            short& revents = fds_[m.index].revents;
            if ((revents & POLLNVAL) != 0) continue;
            if ((revents & POLLERR) != 0 && m.object->kind() == Kind::socket)
                static_cast<sockets::Socket*>(m.object)->kernel_error_seen();
            short ours = events_of(m);
            if (ours == 0) continue;
            if (revents == 0) n++;
            revents |= ours;
        }
        return n;
    }

    int sleep(std::span<const int> extra, const timespec* limit, const sigset_t* mask) override {
        Scratch<pollfd, 96> all;
        all.reserve(count_ + extra.size());
        for (int fd : extra) all.push_back({fd, POLLIN, 0});
        for (nfds_t i = 0; i < count_; i++)
            if (fds_[i].fd >= 0) all.push_back({fds_[i].fd, fds_[i].events, 0});
        if (os::ppoll(all.data(), all.size(), limit, mask) >= 0) return 0;
        if (errno != EINVAL) return -errno;
        // With ours there are more than RLIMIT_NOFILE allows: sleep on ours in slices, between which the program's
        // descriptors are looked at.
        timespec slice{0, 1'000'000};
        if (limit != nullptr && limit->tv_sec == 0) slice.tv_nsec = std::min(slice.tv_nsec, limit->tv_nsec);
        all.resize(std::min(all.size(), extra.size()));
        return os::ppoll(all.data(), all.size(), &slice, mask) < 0 && errno != EINVAL ? -errno : 0;
    }

    pollfd* fds_;
    nfds_t count_;
    Scratch<Member, 64> members_;
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
    PollCall call(fds, count);
    return finish(call.run(timeout, mask), saved);
}

}  // namespace vma::iomux
