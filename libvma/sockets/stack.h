// SPDX-License-Identifier: BSD-2-Clause
// What all sockets of the process share: the network view, the rings, the control lock. Started by the first
// socket that may be offloaded; what costs most waits for the first use of one (view()). Never destroyed
// (threads and atexit handlers may still send), forgotten in a forked child.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "libvma/net/view.h"
#include "libvma/ring/rings.h"
#include "libvma/runtime/lock.h"
#include "libvma/runtime/no_cancel.h"
#include "libvma/sockets/host_memberships.h"
#include "libvma/sockets/tcp/paths.h"
#include "libvma/sockets/udp/groups.h"

namespace vma::sockets {

struct Why;

// What has flow rules that follow the interfaces: sockets.
class Steered {
  public:
    // Rules for the addresses there are now. Under Stack::control().
    virtual void refresh_rules() noexcept = 0;
    // It was closed in a signal handler which could not withdraw the rules; now is the time. Gives back a
    // reference. Under Stack::control().
    virtual void bury() noexcept = 0;

  protected:
    ~Steered() = default;

  private:
    friend class Stack;
    Steered* next_dead_ = nullptr;
};

class Stack {
  public:
    // The running stack, started if need be; null when this process offloads nothing (the reason has been
    // logged). `fd` is a socket just made by the program: its network namespace is the stack's.
    static Stack* get(int fd) noexcept;
    // The running stack or null; never starts it.
    static Stack* running() noexcept;

    // The network view. The first call reads it, and starts what a process needs that uses its sockets: a
    // program that only makes one pays for none of it.
    net::KernelView& view() noexcept {
        if (__builtin_expect(!in_use_.load(std::memory_order_acquire), 0)) start_use();
        return *view_;
    }
    // The same as it is: it may know nothing yet.
    net::KernelView& present_view() noexcept { return *view_; }
    // As view() does: something comes for which the internal thread has to be there.
    void use() noexcept { (void)view(); }
    ring::Rings& rings() noexcept { return rings_; }
    // Serialises everything that changes steering: bind, connect, close, address changes.
    Lock& control() noexcept { return control_; }
    // Held while view() starts what a process needs that uses its sockets.
    Lock& use_lock() noexcept { return use_lock_; }
    // Holds control(), and afterwards does what signal handlers had to leave.
    struct Control {
        // Whoever has it is not cancelled: what happens under it is done as a whole.
        explicit Control(Stack& s) noexcept : stack(s), mine(!s.control().owned_by_me()) {
            if (mine) stack.control().lock();
        }
        ~Control() {
            if (!mine) return;
            stack.bury_dead();
            stack.control().unlock();
        }
        Control(const Control&) = delete;
        Control& operator=(const Control&) = delete;
        const runtime::NoCancel whole;
        Stack& stack;
        const bool mine;  // false: a signal handler inside a control operation; it may read, but must not
                          // change rules
    };
    std::uint64_t netns() const noexcept { return netns_; }
    tcp::PathSource& paths() noexcept { return paths_; }
    HostMemberships& memberships() noexcept { return memberships_; }
    // Multicast. Under control().
    Groups& groups() noexcept { return groups_; }
    // Is the calling thread in the network namespace of the first socket? Two system calls.
    bool in_my_namespace() const noexcept;

    // The interface's ring for `lane`, opened now if need be; then sockets bound to INADDR_ANY get their
    // rules there. Under control(). `why`: gets the reason where there is none.
    ring::Ring* open_ring(int ifindex, unsigned lane, std::string* why = nullptr) noexcept;
    // Can the library have the frames to the host's address `a`, for a socket bound to `wanted` (INADDR_ANY:
    // 0) and to the interface `oif` (0: any)? If the interface stands against it, and nothing else did before
    // (`why` says foreign_address), `why` tells.
    bool may_serve(const net::LocalAddress& a, const net::Address& wanted, int oif, Why& why);
    // The interface's ring for `lane` if open_ring() was called for it. Any thread, no lock.
    ring::Ring* ring(int ifindex, unsigned lane) const noexcept;
    // The ring whose channel is `fd`, or null. Any thread.
    ring::Ring* ring_of_channel(int fd) noexcept;
    // Ring::ending() and Ring::drain() of each.
    void ending(bool on) noexcept;
    void drain() noexcept;
    // The device of `ring` works no more: its sockets become the kernel's. Internal thread, no lock held.
    void ring_failed(ring::Ring& ring) noexcept;
    // TCP is to be offloaded: from now on its segments that reach the kernel come to the rings
    // (ring/strays). Any lock held but that of a ring; does something once.
    void take_strays() noexcept {
        if (__builtin_expect(!strays_asked_.load(std::memory_order_relaxed), 0)) open_strays();
    }
    // Takes in what has arrived on any of them: for answers that depend on connections without a running
    // call.
    void progress() noexcept;

    // Sends what lazy transmission holds back on all rings.
    void flush() noexcept;

    // Sockets whose rules follow the interfaces' addresses (bound to INADDR_ANY, listening), or wait for a
    // device that another process has. Under control().
    void add_wildcard(Steered* socket) { wildcards_.push_back(socket); }
    void remove_wildcard(Steered* socket) noexcept { std::erase(wildcards_, socket); }
    // Takes over a reference to a socket closed in a signal handler; see Steered::bury().
    void add_dead(Steered* socket) noexcept;
    void bury_dead() noexcept;

  private:
    explicit Stack(std::unique_ptr<net::KernelView> view)
        : view_(std::move(view)), rings_(*view_), paths_(*this), groups_(*this) {}
    void start_use() noexcept;
    void open_strays() noexcept;
    void listen();
    bool device_freed(int ifindex) noexcept;
    void refresh_wildcards() noexcept;
    void note_ring(int ifindex, unsigned lane, ring::Ring* ring) noexcept;
    static std::uint64_t place_of(int ifindex, unsigned lane) noexcept {
        return std::uint64_t{lane} << 32 | static_cast<std::uint32_t>(ifindex);
    }

    std::unique_ptr<net::KernelView> view_;
    std::atomic<bool> in_use_{false}, strays_asked_{false};
    Lock use_lock_;  // held while that is made true
    ring::Rings rings_;
    Lock control_;
    TcpPaths paths_;
    Groups groups_;
    std::vector<Steered*> wildcards_;
    std::atomic<Steered*> dead_{nullptr};
    struct OpenRing {
        std::atomic<std::uint64_t> place{0};  // place_of(); 0: free
        std::atomic<ring::Ring*> ring{nullptr};
    };
    template <class F>
    void for_each_open(F&& visit) noexcept;
    // Further ones are found by connections that find a free control lock.
    std::array<OpenRing, 4 * ring::Lanes::kMost> open_rings_{};
    std::uint64_t netns_ = 0;
    HostMemberships memberships_;
};

// At process exit: what the rings have counted goes to the log, at level debug.
void log_counters() noexcept;

// A socket's network namespace (SO_NETNS_COOKIE), 0 where the kernel does not tell.
std::uint64_t netns_of(int fd) noexcept;

}  // namespace vma::sockets
