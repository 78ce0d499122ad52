// SPDX-License-Identifier: BSD-2-Clause
// The offloaded part of one select, poll or epoll_wait: the sockets and sets of the call, the polling of
// their rings, and the thread's wake-up.
//
// Many sockets share few rings, so the call polls, flushes and arms each ring once, for all sockets. It polls
// a socket that does not tell its rings by itself. An epoll set knows its members' rings and wakes the
// threads that wait on it. So the call does not visit the set's members.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "libvma/iomux/epoll_set.h"
#include "libvma/iomux/scratch.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/sockets/ring_watch.h"
#include "libvma/sockets/waiter.h"

namespace vma::iomux {

class WaitTargets {
  public:
    // Keeps the object alive until the call ends.
    void add(sockets::Ref<sockets::FdObject> object);

    // Sets change while a call waits on them, and sockets get other rings. refresh() takes over the sets'
    // present members. It looks up the rings when a set has changed and when `rings` is true. It also does so
    // now and then, because a socket outside of sets does not report the change.
    bool stale() const noexcept;
    void refresh(bool rings = false);

    void flush() noexcept;
    // Takes one batch from each ring. Returns the number of frames; at 0, the rings are empty.
    unsigned progress() noexcept;
    // Does any socket take data past the kernel? If none does, spinning is useless.
    bool offloaded() const noexcept;

  private:
    friend class ArmedWait;
    struct View {
        EpollSet* set;  // kept alive by roots_ or by the members of the set around it
        std::shared_ptr<const EpollSet::Members> members;
    };
    void look_into(EpollSet* set, unsigned depth);
    void find_rings();
    void take_rings(sockets::Socket& socket);
    void take_ring(ring::Ring* ring);
    // Calls visit(Socket&) for each socket the call has to visit, until it returns false.
    template <class F>
    void each_socket(F&& visit) const;

    Scratch<sockets::Ref<sockets::Socket>, 64> sockets_;
    Scratch<sockets::Ref<EpollSet>, 4> roots_;
    Scratch<View, 4> views_;
    Scratch<ring::Ring*, 8> rings_;
    Scratch<sockets::Socket*, 64> own_rings_;  // sockets that the call polls themselves
    unsigned rounds_ = 0;                      // rounds since the rings were looked up; 0: not yet
};

// While it lives, the rings notify, and the thread's waiter is on every set, and on every socket outside of
// sets. After arm() the caller must look at its sources once more before it sleeps.
class ArmedWait {
  public:
    // interrupts: the rings shall notify; else complete() is false.
    ArmedWait(const WaitTargets& sources, sockets::Waiter* waiter, bool interrupts = true) noexcept
        : sources_(sources), waiter_(waiter), interrupts_(interrupts), complete_(interrupts) {}
    ~ArmedWait();
    ArmedWait(const ArmedWait&) = delete;
    ArmedWait& operator=(const ArmedWait&) = delete;

    void arm();
    // After a sleep that was not interrupted: takes the frames of the rings that the thread watches. True: it
    // was woken for others, so if it has no event it sleeps on; the rings are armed again.
    bool sleeps_on();
    // False: the thread may miss a change, so the caller sleeps in short slices.
    bool complete() const noexcept { return waiter_ != nullptr && complete_; }
    // The descriptors to watch for reading: the rings' channels, each once, and the waiter.
    std::span<const int> fds() const noexcept { return {fds_.data(), fds_.size()}; }

  private:
    void watch(int fd);
    void watch_rings();

    const WaitTargets& sources_;
    sockets::Waiter* waiter_;
    const bool interrupts_;
    bool complete_;
    std::size_t sets_ = 0, waiting_ = 0, armed_ = 0;  // how far arm() came
    unsigned vain_ = 0;  // wake-ups in a row for nothing that the library knows of
    std::optional<sockets::RingWatch> rings_;
    Scratch<int, 32> fds_;
};

}  // namespace vma::iomux
