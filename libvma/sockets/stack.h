// SPDX-License-Identifier: BSD-2-Clause
// What all sockets of the process share: the network view, the rings, the control lock. Started by the first socket
// that may be offloaded, never destroyed (threads and atexit handlers may still send), forgotten in a forked child.
#pragma once

#include <cstdint>
#include <vector>

#include "libvma/net/view.h"
#include "libvma/ring/rings.h"
#include "libvma/runtime/lock.h"

namespace vma::sockets {

class UdpSocket;

class Stack {
  public:
    // The running stack, started if need be; null when this process offloads nothing (the reason has been logged).
    // `fd` is a socket just made by the program: its network namespace is the stack's.
    static Stack* get(int fd) noexcept;
    // The running stack or null; never starts it.
    static Stack* running() noexcept;

    net::View& view() noexcept { return *view_; }
    ring::Rings& rings() noexcept { return rings_; }
    // Serialises everything that changes steering: bind, connect, close, address changes.
    Lock& control() noexcept { return control_; }
    std::uint64_t netns() const noexcept { return netns_; }

    // The interface's ring, opened now if need be; then sockets bound to INADDR_ANY get their rules there. Under control().
    ring::Ring* open_ring(int ifindex) noexcept;

    // Sockets whose rules follow the interfaces' addresses (bound to INADDR_ANY). Under control().
    void add_wildcard(UdpSocket* socket) { wildcards_.push_back(socket); }
    void remove_wildcard(UdpSocket* socket) noexcept { std::erase(wildcards_, socket); }

  private:
    explicit Stack(std::unique_ptr<net::View> view) : view_(std::move(view)), rings_(*view_) {}
    void listen();

    std::unique_ptr<net::View> view_;
    ring::Rings rings_;
    Lock control_;
    std::vector<UdpSocket*> wildcards_;
    std::uint64_t netns_ = 0;
};

// At process exit: what the rings have counted goes to the log, at level debug.
void log_counters() noexcept;

// A socket's network namespace (SO_NETNS_COOKIE), 0 where the kernel does not tell.
std::uint64_t netns_of(int fd) noexcept;

}  // namespace vma::sockets
