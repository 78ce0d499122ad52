// SPDX-License-Identifier: BSD-2-Clause
// Sockets of a program that polls rings and not sockets (SocketXtreme, VMA_SOCKETXTREME).
//
// Each socket of such a program has an ExtremeMember, which is on the socket's list of hooks as the entry of
// an edge-triggered epoll set is. A change puts the member on the list of its ring. socketxtreme_poll()
// (libvma/api) polls the ring, claims members from its list, and asks each for data and events. So data takes
// the way that it takes without SocketXtreme, and receive calls work as always.
//
// A member belongs to the first ring of its socket. Where that is not known yet, or has changed, the member
// is on a list of the process, from which each poll claims and puts it in its place. Members without a ring
// stay there: what they have to say, any poll says.
//
// What only the kernel's sockets know is asked of a kernel's epoll set now and then.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>

#include "libvma/config/params.h"
#include "libvma/runtime/lock.h"
#include "libvma/sockets/fd_object.h"
#include "libvma/sockets/ready_hook.h"

namespace vma::sockets {

class ExtremeMember;
class ExtremeRing;

// Members that have something to say, oldest first. The lock is a leaf.
class ExtremeList {
  public:
    bool empty() const noexcept { return count_.load(std::memory_order_acquire) == 0; }
    void push(ExtremeMember& member) noexcept;
    // The first one whose socket lives, with a reference to the socket; it is the caller's until finished().
    ExtremeMember* claim() noexcept;
    // False: it is not here.
    bool remove(ExtremeMember& member) noexcept;

  private:
    void unlink(ExtremeMember& member) noexcept;

    Lock lock_;
    ExtremeMember* first_ = nullptr;
    ExtremeMember* last_ = nullptr;
    std::atomic<unsigned> count_{0};
};

class ExtremeMember final : public ReadyHook {
  public:
    // Of the socket that the program knows as `fd`. `accepted`: the program knows that it can send.
    ExtremeMember(Socket& socket, int fd, bool accepted) noexcept
        : socket_(socket),
          fd_(fd),
          user_data_(static_cast<std::uint64_t>(fd)),
          told_(accepted ? std::uint32_t{EPOLLOUT} : 0) {}
    ~ExtremeMember();

    // Does the program poll rings?
    static bool wanted() noexcept { return config::get().socketxtreme != 0; }

    Socket& socket() const noexcept { return socket_; }
    int fd() const noexcept { return fd_; }
    // SO_VMA_USER_DATA
    std::uint64_t user_data() const noexcept { return user_data_.load(std::memory_order_relaxed); }
    void set_user_data(std::uint64_t value) noexcept { user_data_.store(value, std::memory_order_relaxed); }

    void wake(std::uint32_t events) noexcept override;
    // The kernel's socket has these events.
    void kernel_woken(std::uint32_t events) noexcept;
    // The program closes its last number.
    void closing() noexcept { watch(0); }

    // ---- for whoever has claimed it ----
    // Events of the library's side that the program has not been told of; they count as told. `drained`: no
    // data is left. Before that only room is told.
    std::uint32_t take_events(bool drained) noexcept;
    // The same of the kernel's side.
    std::uint32_t take_kernel_events() noexcept;
    enum class Next {
        idle,   // until the next change
        more,   // there is more to say
        later,  // there is, but memory or descriptors are lacking
    };
    // Gives back the reference.
    void finished(Next next) noexcept;
    // The ring to which it belongs now; null: none.
    ExtremeRing* settle() noexcept;

  private:
    friend class ExtremeList;
    enum class State : std::uint8_t { idle, listed, claimed, claimed_again };
    static constexpr std::uint32_t kMoved = 1u << 31;  // its rings, or who serves it, may have changed

    void list() noexcept;
    void watch(std::uint32_t events) noexcept;

    Socket& socket_;
    const int fd_;
    std::atomic<State> state_{State::idle};
    bool served_ = false;  // by the library, once
    std::atomic<std::uint64_t> user_data_;
    std::atomic<std::uint32_t> flags_{kMoved}, kernel_events_{0};
    std::uint32_t told_;
    std::atomic<std::uint32_t> watched_{0};  // of the kernel's socket
    std::atomic<ExtremeRing*> ring_{nullptr};
    std::atomic<ExtremeList*> on_{nullptr};  // changes under the lock of the list
    ExtremeMember* before_ = nullptr;        // there
    ExtremeMember* next_ = nullptr;
};

// One ring that the program polls.
class ExtremeRing {
  public:
    explicit ExtremeRing(ring::Ring& ring) noexcept : ring_(ring) {}
    // The ring whose channel is `fd`; null: none has it.
    static ExtremeRing* of_channel(int fd) noexcept;
    // Null without memory.
    static ExtremeRing* of(ring::Ring& ring) noexcept;
    static void renew() noexcept;

    ring::Ring& ring() const noexcept { return ring_; }
    // Takes one batch of frames, and now and then looks at the kernel's sockets.
    void progress() noexcept;
    // A member that has something to say; null: none.
    ExtremeMember* claim() noexcept;

  private:
    friend class ExtremeMember;
    ring::Ring& ring_;
    ExtremeList list_;
    std::atomic<std::uint32_t> polls_{0};
};

}  // namespace vma::sockets
