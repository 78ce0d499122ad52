// SPDX-License-Identifier: BSD-2-Clause
// A TCP socket that listens: its rules, and accept() from two queues.
//
// The shadow listens as well, for loopback and all interfaces that the library does not serve. Rules are in
// place before it does: a SYN that the kernel had answered in between would be a connection of the kernel's
// whose packets are steered to the library.
#pragma once

#include <atomic>
#include <vector>

#include "libvma/sockets/tcp/core.h"

namespace vma::sockets {

class TcpListening : public TcpCore {
  public:
    int listen(int fd, int backlog) override;
    int accept4(int fd, sockaddr* addr, socklen_t* len, int flags) override;
    void before_fork(int fd) noexcept override;
    std::uint32_t ready_events() const noexcept override;

    // Steered
    void refresh_rules() noexcept override;
    void bury() noexcept override;

  protected:
    using TcpCore::TcpCore;
    ~TcpListening() override = default;

    // state_lock_ held. The phase becomes fresh.
    void stop_listening() noexcept;
    // leave_to_kernel() of a listener: new connections come to the shadow.
    void suspend_for_good() noexcept;
    // What waits in the library's queue goes where every process that has the listener can accept it; see
    // placeholders.h. No lock held.
    void offer_waiting() noexcept;
    // Before the rules go: handshakes that are under way here end here.
    void let_handshakes_end() noexcept;
    // The program closes the last number, `fd`: the rules go, the port stays while connections need it.
    // False: not now, in a handler that interrupted the library; the stack buries it later.
    bool end_with_last_number(int fd) noexcept;
    // A number for a connection that the listener has accepted, or -1 with errno.
    int accept_ours(tcp::Listener& listener, sockaddr* addr, socklen_t* len, int flags);

  private:
    // ---- listen.cpp ----
    std::vector<FlowRules::Rule> wanted_rules(Why& why);  // why: if there are none. May throw bad_alloc
    void add_rules() noexcept;  // and follow the interfaces' addresses. Control lock
    void set_rules(std::vector<FlowRules::Rule> wanted, Why& why) noexcept;  // Stack::control()
    void drop_rules() noexcept;
    void end_listener() noexcept;
    void keep_listening_port(int fd) noexcept;
    void resume() noexcept;                                 // a suspended listener
    void follow(int fd, tcp::Listener& listener) noexcept;  // the system's settings

    // ---- accept.cpp ----
    int accept_from_kernel(int fd, sockaddr* addr, socklen_t* len, int flags);

    Lock kernel_accept_lock_;
    std::atomic<unsigned> accepts_{0};
    mutable std::atomic<bool> used_{false};  // this process has called accept() or asked for readiness
    std::atomic<bool> suspended_{false};     // the rules are gone until this process uses the listener
};

}  // namespace vma::sockets
