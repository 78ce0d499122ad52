// SPDX-License-Identifier: BSD-2-Clause
// What UDP and TCP sockets share: flow rules that follow the interfaces, a shadow of the kernel's, watchers.
//
// The kernel's socket behind the descriptor (the shadow) holds the port, answers what is asked about the
// socket, and takes over when the library cannot serve it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "libvma/runtime/clock.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/sockets/drain_rate.h"
#include "libvma/sockets/fd_object.h"
#include "libvma/sockets/flow_rules.h"
#include "libvma/sockets/ring_place.h"
#include "libvma/sockets/shadow_identity.h"
#include "libvma/sockets/stack.h"
#include "libvma/sockets/watchers.h"

namespace vma::sockets {

class ExtremeMember;

class SteeredSocket : public Socket, public Steered {
  public:
    bool lives_elsewhere() const noexcept final { return shared(); }
    bool add_waiter(Waiter* waiter) noexcept final { return watchers_.add(waiter); }
    void remove_waiter(Waiter* waiter) noexcept final { watchers_.remove(waiter); }
    bool subscribe(ReadyHook* hook) noexcept final { return watchers_.add(hook); }
    bool unsubscribe(ReadyHook* hook) noexcept final { return watchers_.remove(hook); }
    unsigned arm(int* fds, unsigned room) noexcept final;
    int fcntl(int fd, int cmd, unsigned long arg) override;
    int ioctl(int fd, unsigned long request, void* arg) override;

  protected:
    // `type`: of socket(2), with its flags.
    SteeredSocket(Stack& stack, int type) noexcept;
    ~SteeredSocket() override;

    // Of a program that polls rings. `accepted`: see ExtremeMember.
    void join_extreme(int fd, bool accepted) noexcept;
    // The last number is about to be closed.
    void leave_extreme() noexcept;
    // Is a process alive that may have inherited it (sharing::shared_since)?
    bool shared() const noexcept;
    // Of before_last_close(): what is shared with another process goes to the kernel.
    void leave_if_shared(int fd) noexcept;
    // Of last_fd_closed(), in a handler that interrupted the library: it must not wait for locks that its own
    // thread holds. The rules go with the next control operation (Steered::bury); what they match is dropped
    // until then.
    void bury_later() noexcept {
        if (try_ref()) stack_.add_dead(this);
    }
    // A copy of the shadow, for a port that stays taken when `fd`, the last number, goes. It would also keep
    // that number in the kernel's epoll sets, which then told of it for ever; so the number leaves them
    // first.
    InternalFd copy_shadow(int fd) noexcept;
    bool blocks(int flags) const noexcept {
        return !(flags & MSG_DONTWAIT) && !nonblock_.load(std::memory_order_relaxed);
    }
    bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }
    // Did a signal handler interrupt this thread while it held a lock that a call on this socket needs?
    bool interrupted_library_code() const noexcept {
        return watchers_.locked_by_me() || rules_.interrupted();
    }
    // Both directions go this way.
    void decided(const stats::Decision& decision) noexcept {
        socket_counters_.decided(stats::Direction::rx, decision);
        socket_counters_.decided(stats::Direction::tx, decision);
    }
    // The value of an option of type int; `otherwise`: there is none.
    static int int_option(int fd, int level, int name, int otherwise = 0) noexcept;
    // The value of SO_RCVTIMEO or SO_SNDTIMEO (`name`), in nanoseconds; 0: none.
    static clock::Nsec timeout_option(int fd, int name) noexcept;

    // Which ring of an interface is this socket's, from its first rule on (ring/lanes.h).
    unsigned lane() noexcept { return place_.lane(); }
    // Of an accepted socket: that of its listener.
    void join_lane(const SteeredSocket& listener) noexcept { place_.join(listener.place_); }
    // The same for frames to the local address.
    unsigned lane_at(const net::LocalAddress& at) noexcept {
        return stack_.rings().lanes().of(lane(), at.address);
    }

    // RingPlace::strayed(): moves the socket to the ring of the calling thread, unless locks are in the way:
    // then the next call tries again. No lock of the socket or of a ring held.
    [[gnu::cold, gnu::noinline]] void move_ring() noexcept;
    // The program chooses how its ring is found: 0 or -errno. Moves the socket if it has one.
    int choose_lane(const OwnRing& own) noexcept;
    // Under Stack::control(): flows and sends move to the ring of `lane`. False: nothing has changed, and
    // `why` tells. May throw std::bad_alloc.
    virtual bool move_to(unsigned lane, std::string& why) = 0;
    bool move_now() noexcept;

    Stack& stack_;
    const std::uint32_t born_;  // sharing::generation()
    std::atomic<bool> closed_{false}, nonblock_{false};
    RingPlace place_;
    std::atomic<int> pending_error_{0};  // for the next call that reports one
    std::atomic<clock::Nsec> receive_timeout_{};
    DrainRate drain_rate_;
    ShadowIdentity shadow_;
    FlowRules rules_;
    mutable Watchers watchers_;
    std::unique_ptr<ExtremeMember> extreme_;
};

}  // namespace vma::sockets
