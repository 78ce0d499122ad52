// SPDX-License-Identifier: BSD-2-Clause
// select and pselect.
//
// The kernel's select does the looking and sleeping, because poll's events do not match select's sets
// exactly. A hung-up descriptor that is only in the write set would wake poll at once, again and again. The
// library's descriptors are beyond FD_SETSIZE, so the sets are bit maps of a size of their own; the kernel
// has no limit there. Members of which the kernel knows nothing (Readiness::ours) are not in the kernel's
// sets. The library sorts their events into the three sets as the kernel does.
#include <fcntl.h>
#include <pthread.h>
#include <string.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <string_view>

#include "libvma/iomux/iomux.h"
#include "libvma/iomux/kernel_set.h"
#include "libvma/iomux/set_numbers.h"
#include "libvma/iomux/wait.h"
#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/internal_fd.h"

namespace vma::iomux {
namespace {

using sockets::FdObject;
using sockets::g_fds;
using sockets::Kind;
using sockets::Ref;

using Word = unsigned long;
constexpr std::size_t kBits = sizeof(Word) * CHAR_BIT;
constexpr std::size_t kInlineWords = FD_SETSIZE / kBits;

constexpr std::size_t words_for(int nfds) noexcept {
    return (static_cast<std::size_t>(nfds) + kBits - 1) / kBits;
}
bool test(const Word* set, int fd) noexcept {
    return (set[static_cast<std::size_t>(fd) / kBits] >> (static_cast<std::size_t>(fd) % kBits) & 1) != 0;
}
void add(Word* set, int fd) noexcept {
    set[static_cast<std::size_t>(fd) / kBits] |= Word{1} << (static_cast<std::size_t>(fd) % kBits);
}
void take_out(Word* set, int fd) noexcept {
    set[static_cast<std::size_t>(fd) / kBits] &= ~(Word{1} << (static_cast<std::size_t>(fd) % kBits));
}
// The events that make a descriptor ready in each set (POLLIN_SET, POLLOUT_SET and POLLEX_SET in the kernel).
constexpr std::uint32_t kSetBits[3] = {EPOLLIN | EPOLLRDNORM | EPOLLRDBAND | EPOLLHUP | EPOLLERR | POLLNVAL,
                                       EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND | EPOLLERR | POLLNVAL,
                                       EPOLLPRI | POLLNVAL};
fd_set* as_set(Word* words) noexcept { return reinterpret_cast<fd_set*>(words); }

constinit thread_local unsigned t_select_skipped = 0;

class SelectCall final : public Wait {
  public:
    SelectCall(int nfds, fd_set* r, fd_set* w, fd_set* e)
        : nfds_(nfds), words_(words_for(nfds)), user_{r, w, e} {
        in_.resize(3 * words_);
        out_.resize(3 * words_);
        for (int s = 0; s < 3; s++)
            if (user_[s] != nullptr) memcpy(in(s), user_[s], words_ * sizeof(Word));
        for (std::size_t i = 0; i < words_; i++) {
            Word any = in(0)[i] | in(1)[i] | in(2)[i];
            for (; any != 0; any &= any - 1) {
                int fd = static_cast<int>(i * kBits) + __builtin_ctzl(any);
                if (fd >= nfds) break;
                Ref<FdObject> object = g_fds.find(fd);
                if (!object) {
                    others_ = true;
                    kernel_sets_.look_at(fd);
                    continue;
                }
                if (object->kind() == Kind::epoll) sleepers::settle();
                members_.push_back({fd, object.get(), is_ours(*object)});
                readers_ &= object->kind() == Kind::socket && !test(in(1), fd);
                sources_.add(std::move(object));
            }
        }
    }

    // The epoll sets that were not EpollSets when the call began.
    std::span<const int> kernel_sets() const noexcept { return kernel_sets_.numbers(); }

    // Stores the result in the program's sets; not called when the call fails.
    void store() noexcept {
        for (int s = 0; s < 3; s++)
            if (user_[s] != nullptr) memcpy(user_[s], out(s), words_ * sizeof(Word));
    }

  private:
    struct Member {
        int fd;
        FdObject* object;  // kept alive by sources_
        bool was_ours;     // Readiness::ours when the call began
    };

    Word* in(int s) noexcept { return in_.data() + static_cast<std::size_t>(s) * words_; }
    Word* out(int s) noexcept { return out_.data() + static_cast<std::size_t>(s) * words_; }

    // Another thread has closed the number, or given it to another file, meanwhile: the kernel answers for
    // it.
    static bool gone(const Member& m) noexcept { return g_fds.peek(m.fd) != m.object; }
    static bool hidden(const Member& m) noexcept { return gone(m) ? m.was_ours : is_ours(*m.object); }
    // The library's events of the member.
    static std::uint32_t events_of(const Member& m) noexcept {
        if (gone(m)) {
            constexpr short kAsked =
                POLLIN | POLLPRI | POLLOUT | POLLRDNORM | POLLRDBAND | POLLWRNORM | POLLWRBAND;
            return m.was_ours ? static_cast<std::uint16_t>(events_of_former(m.fd, kAsked)) : 0u;
        }
        if (m.object->kind() == Kind::epoll) return static_cast<EpollSet*>(m.object)->ready() ? EPOLLIN : 0u;
        auto* socket = static_cast<sockets::Socket*>(m.object);
        return socket->readiness() == sockets::Readiness::kernel ? 0 : socket->ready_events();
    }
    // Is the member in the program's set `s`, and do these events make it ready there?
    bool belongs(const Member& m, int s, std::uint32_t events) noexcept {
        return test(in(s), m.fd) && (events & kSetBits[s]) != 0;
    }

    bool only_shadows() noexcept override { return readers_ && !others_ && all_offloaded(members_); }

    bool ready() noexcept override {
        return std::any_of(members_.begin(), members_.end(), [&](const Member& m) {
            std::uint32_t events = events_of(m);
            return belongs(m, 0, events) || belongs(m, 1, events) || belongs(m, 2, events);
        });
    }

    // Asks the kernel about the members that are not hidden; makes no call if there are none.
    int ask_kernel(const sigset_t* mask, bool first) {
        std::copy(in_.begin(), in_.end(), out_.begin());
        bool any_hidden = false;
        const bool skip = readers_ && mask == nullptr && all_offloaded(members_) && ready() &&
                          skip_kernel(t_select_skipped, began_);
        for (const Member& m : members_) {
            if (!(skip && !gone(m)) && !hidden(m)) continue;
            any_hidden = true;
            for (int s = 0; s < 3; s++) take_out(out(s), m.fd);
        }
        if (any_hidden && mask == nullptr && nothing_asked()) {
            if (first) pthread_testcancel();  // select() is a cancellation point
            std::fill(out_.begin(), out_.end(), 0);
            return 0;
        }
        fd_set* sets[3];
        for (int s = 0; s < 3; s++) sets[s] = user_[s] != nullptr ? as_set(out(s)) : nullptr;
        int n = os::pselect(nfds_, sets[0], sets[1], sets[2], &kNow, mask);
        if (n < 0 && errno == EBADF && began_) {
            n = report_closed();
            if (n == 0) errno = EBADF, n = -1;
        }
        began_ = true;
        return n;
    }
    // A number that was open when the call began is not open now. The kernel would have noticed that on its
    // wake-up, and reports such a number as ready in each set.
    int report_closed() noexcept {
        std::fill(out_.begin(), out_.end(), 0);
        int n = 0;
        for (std::size_t i = 0; i < words_; i++) {
            Word any = in(0)[i] | in(1)[i] | in(2)[i];
            for (; any != 0; any &= any - 1) {
                int fd = static_cast<int>(i * kBits) + __builtin_ctzl(any);
                if (fd >= nfds_) break;
                if (os::raw_syscall(SYS_fcntl, fd, F_GETFD) != -EBADF) continue;
                for (int s = 0; s < 3; s++)
                    if (test(in(s), fd)) {
                        add(out(s), fd);
                        n++;
                    }
            }
        }
        return n;
    }
    // Is no bit below nfds set in out_?
    bool nothing_asked() noexcept {
        Word any = 0;
        std::size_t tail = static_cast<std::size_t>(nfds_) % kBits;
        for (std::size_t s = 0; s < 3; s++)
            for (std::size_t i = 0; i < words_; i++) {
                Word word = out_[s * words_ + i];
                any |= tail != 0 && i + 1 == words_ ? word & ((Word{1} << tail) - 1) : word;
            }
        return any == 0;
    }

    int look(const sigset_t* mask, bool first) override {
        int n = ask_kernel(mask, first);
        if (n < 0) {
            if (errno != EINTR || !ready()) return -errno;  // see poll.cpp
            std::fill(out_.begin(), out_.end(), 0);
            n = 0;
        }
        offloaded_ready_ = 0;
        for (const Member& m : members_) {
            std::uint32_t events = events_of(m);
            for (int s = 0; events != 0 && s < 3; s++) {
                if (!belongs(m, s, events)) continue;
                offloaded_ready_++;
                if (test(out(s), m.fd)) continue;
                add(out(s), m.fd);
                n++;
            }
        }
        return n;
    }

    int sleep(std::span<const int> extra, const timespec* limit, const sigset_t* mask) override {
        int top = nfds_;
        for (int fd : extra) top = std::max(top, fd + 1);
        std::size_t words = words_for(top);
        Scratch<Word, 3 * 2 * kInlineWords> sets;
        sets.resize(3 * words);
        fd_set* set[3];
        for (std::size_t s = 0; s < 3; s++) {
            Word* target = sets.data() + s * words;
            std::copy_n(in(static_cast<int>(s)), words_, target);
            set[s] = user_[s] != nullptr || s == 0 ? as_set(target) : nullptr;
        }
        // The last word may have bits beyond nfds, which the kernel would not have read.
        if (std::size_t tail = static_cast<std::size_t>(nfds_) % kBits; tail != 0)
            for (std::size_t s = 0; s < 3; s++) sets[s * words + words_ - 1] &= (Word{1} << tail) - 1;
        for (const Member& m : members_)
            if (hidden(m))
                for (std::size_t i = 0; i < 3; i++) take_out(sets.data() + i * words, m.fd);
        for (int fd : extra) add(sets.data(), fd);
        if (os::pselect(top, set[0], set[1], set[2], limit, mask) >= 0) return 0;
        return errno == EBADF
                   ? 0
                   : -errno;  // the next look reports EBADF, if a descriptor of the program is the cause
    }

    WatchedSets kernel_sets_;
    int nfds_;
    std::size_t words_;
    fd_set* user_[3];
    Scratch<Word, 3 * kInlineWords> in_, out_;
    Scratch<Member, 64> members_;
    bool readers_ = true;  // members_ are sockets, watched for reading
    bool others_ = false;  // there are other members
    bool began_ = false;   // the kernel has been asked
};

// FDSize of /proc/self/status: the kernel cuts nfds to this size. INT_MAX when unknown.
int descriptor_table_size() noexcept {
    int result = INT_MAX;
    long fd = os::raw_syscall(SYS_openat, AT_FDCWD, "/proc/self/status", O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return result;
    char text[2048];
    long n = os::raw_syscall(SYS_read, fd, text, sizeof text);
    os::raw_syscall(SYS_close, fd);
    if (n <= 0) return result;
    std::string_view status(text, static_cast<std::size_t>(n));
    constexpr std::string_view kKey = "\nFDSize:\t";
    if (std::size_t at = status.find(kKey); at != status.npos)
        std::from_chars(text + at + kKey.size(), text + n, result);
    return result;
}

// Is a descriptor of the program open in [first, end)?
bool program_has_any(int first, int end) noexcept {
    constexpr int kBatch = 256;
    for (; first < end; first += kBatch) {
        pollfd fds[kBatch];
        int n = std::min(kBatch, end - first);
        for (int i = 0; i < n; i++) fds[i] = {InternalFd::is_internal(first + i) ? -1 : first + i, 0, 0};
        timespec now{0, 0};
        os::raw_syscall(SYS_ppoll, fds, n, &now, nullptr, 8);
        for (int i = 0; i < n; i++)
            if (fds[i].fd >= 0 && (fds[i].revents & POLLNVAL) == 0) return true;
    }
    return false;
}

}  // namespace

int select_limit(int nfds) noexcept {
    if (nfds <= FD_SETSIZE) return nfds;
    int table = std::min(nfds, descriptor_table_size());
    // The library's descriptors start above FD_SETSIZE. A table beyond some thousands comes from the program
    // itself.
    constexpr int kOurRange = 4096;
    if (table > FD_SETSIZE && table <= kOurRange && !program_has_any(FD_SETSIZE, table)) return FD_SETSIZE;
    return table;
}

int select(int nfds, fd_set* r, fd_set* w, fd_set* e, const timespec* timeout, const sigset_t* mask,
           timespec* remaining) {
    int saved = errno;
    Deadline deadline;
    if (!deadline.set(timeout)) return finish(-EINVAL, saved);
    int n;
    if (nfds < 0) {
        n = -EINVAL;
    } else {
        const timespec* limit = timeout;
        bool again = false;
        timespec left;
        do {
            SelectCall call(select_limit(nfds), r, w, e);
            KernelWait watch(call.kernel_sets(), limit);
            n = watch.superseded() ? 0 : call.run(limit, mask);
            again = n >= 0 && watch.superseded();
            if (again)
                limit = watch.remaining(left);
            else if (n >= 0)
                call.store();
        } while (again);
    }
    if (timeout != nullptr && remaining != nullptr) {
        if (deadline.infinite())
            *remaining = *timeout;
        else
            *remaining = clock::to_timespec(deadline.left());
    }
    return finish(n, saved);
}

}  // namespace vma::iomux
