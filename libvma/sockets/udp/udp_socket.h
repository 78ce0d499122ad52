// SPDX-License-Identifier: BSD-2-Clause
// A UDP/IPv4 socket of the program.
//
// The kernel's socket (the shadow) stays bound and connected as this object is: it reserves the port, answers
// everything that is asked about the socket, receives what no flow rule catches (fragments, multicast,
// loopback, foreign interfaces), collects ICMP errors, and sends what the library does not: datagrams that
// need fragmenting or special options, and the first one to a neighbour that is not resolved yet. So an
// answer that this class does not know is always one system call away, and "leave it to the kernel" means to
// withdraw the flow rules and stop.
//
// State changes (bind, connect, close, options) hold the stack's control lock. The receive queue has the lock
// of the watchers, and sending has its own. The state lies in the parts: UdpSteering, ReceiveQueue, SendPath,
// KernelSide, ReceiveControl.
#pragma once

#include <atomic>
#include <optional>

#include "libvma/runtime/internal_fd.h"
#include "libvma/sockets/udp/extra.h"
#include "libvma/sockets/wait_loop.h"

namespace vma::sockets {

class UdpSocket final : public UdpExtra {
  public:
    // For the kernel socket `fd` just created with these type flags. Null when there is no memory.
    static UdpSocket* create(Stack& stack, int fd, int type) noexcept;

    int bind(int fd, const sockaddr* addr, socklen_t len) override;
    int connect(int fd, const sockaddr* addr, socklen_t len) override;
    int shutdown(int fd, int how) override;
    int setsockopt(int fd, int level, int name, const void* value, socklen_t len) override;
    int ioctl(int fd, unsigned long request, void* arg) override;
    ssize_t recvfrom(int fd, void* buf, size_t len, int flags, sockaddr* addr, socklen_t* alen) override;
    ssize_t recvmsg(int fd, msghdr* msg, int flags) override;
    int recvmmsg(int fd, mmsghdr* msgs, unsigned count, int flags, timespec* timeout) override;
    ssize_t sendto(int fd, const void* buf, size_t len, int flags, const sockaddr* addr,
                   socklen_t alen) override;
    ssize_t sendmsg(int fd, const msghdr* msg, int flags) override;
    int sendmmsg(int fd, mmsghdr* msgs, unsigned count, int flags) override;
    void kernel_answered(int fd, stats::TrafficPath way, ssize_t result, int flags) noexcept override;
    void leave_to_kernel(int fd, LeaveCause why) noexcept override;
    void before_exec(int fd) noexcept override;
    bool kernel_may_send() const noexcept override { return true; }
    void before_last_close(int fd) noexcept override;
    void before_process_end(int fd) noexcept override;

    bool offloaded() const noexcept override { return rules_.any() || queue_.size() != 0; }
    std::uint32_t ready_events() const noexcept override {
        return queue_.size() != 0 ? EPOLLIN | EPOLLRDNORM : 0u;
    }
    std::uint32_t arrivals() const noexcept override { return queue_.arrivals(); }
    std::uint32_t edges(std::uint32_t events) const noexcept override {
        return arrivals() + ((events & kWakeOut) != 0 ? send_.departures() : 0);
    }
    unsigned progress() noexcept override {
        return rules_.poll_until([this] { return queue_.size() != 0 || Verdicts::due(); });
    }
    void flush() noexcept override { rules_.flush(); }
    void kernel_error_seen() noexcept override { kernel_side_.note_event(); }
    void watch_room(int members) noexcept override { send_.watch_room(members); }
    void ring_failed(int fd, ring::Ring& ring) noexcept override;

    ssize_t receive_held(HeldReceive& receive) override;
    int send_pieces(int fd, const iovec* data, unsigned count, int flags, const sockaddr* to,
                    socklen_t length) override;
    bool send_lent(int fd, ring::SendBuffer& buffer, std::size_t length, int flags, const sockaddr* to,
                   socklen_t to_length) override;
    ssize_t take_ready(Held& out, unsigned pieces, std::size_t bytes) noexcept override;

    // An error event of the shadow (internal thread): the next call must ask the kernel.
    static void on_shadow_error(std::uint64_t token) noexcept;

    void publish() noexcept override;
    void zero_counters() noexcept override;

  protected:
    void last_fd_closed() noexcept override;
    void recycle() noexcept override;

  private:
    UdpSocket(Stack& stack, int fd, int type) noexcept;
    ~UdpSocket() override;

    // ---- control.cpp ----
    void after_autobind(int fd) noexcept;
    void watch_errors(int fd) noexcept;
    // In the statistics:
    void show_multicast(int fd) noexcept;
    void show_kernel_sends() noexcept;

    // ---- receive.cpp ----
    struct Receive {
        iovec* iov;
        std::size_t count;
        int flags;
        msghdr* msg;                  // name, control and flags of the result go here
        HeldReceive* held = nullptr;  // keep it rather than copy
    };
    // Tells a sleeping call of changes of the shadow alone, which has no data but an error. An unread
    // error queue keeps POLLERR set for ever: a plain poll() would end at once, again and again, where
    // the kernel's recv() waits.
    class ShadowEdges {
      public:
        // What is true already counts as taken: look at the shadow after this.
        explicit ShadowEdges(int shadow) noexcept;
        int fd() const noexcept {
            return set_.get();
        }  // readable after a change; -1: there was no descriptor
        void take() noexcept;

      private:
        InternalFd set_;
    };
    ssize_t receive(int fd, Receive& r);
    // By ReceiveQueue::pop or pop_lent. count: as received.
    template <ring::RxBuffer* (ReceiveQueue::*kTake)()>
    ring::RxBuffer* pop(bool count) noexcept;
    // Hands a lent datagram out; back into the queue, and false, when there is no memory.
    bool keep(ring::RxBuffer* b, Held& out) noexcept;
    ssize_t finish_held(ring::RxBuffer* b, Receive& r) noexcept;
    bool refuses_copy(int fd, const Receive& r) noexcept;
    void give_queue_to_kernel() noexcept;
    // The kernel's answer to a receive call, as it is, counted.
    ssize_t count_kernel_receive(ssize_t result, int flags) noexcept;
    int count_kernel_receive(int result, const mmsghdr* msgs, int flags) noexcept;
    ssize_t finish(ring::RxBuffer* b, Receive& r) noexcept;
    // Sleeps with signal mask `mask` until something may have come. True: look again; false: errno is set.
    bool sleep(int fd, clock::Time deadline, const sigset_t* mask, std::optional<ShadowEdges>& edges);
    int would_block() noexcept;                      // -1, EAGAIN, counted
    bool kernel_receives(int flags) const noexcept;  // the call can go to the kernel as it is

    // ---- send.cpp ----
    // May a ring send to `name` (null: the peer), and which peer is it? `info`: of the call, or null.
    bool may_send_fast(int fd, int flags, const sockaddr* name, socklen_t name_length, const PacketInfo* info,
                       in_addr_t& addr, in_port_t& port);
    // Sends over a ring if all is well. False: the kernel has to send (nothing was done).
    bool send_fast(int fd, const iovec* iov, std::size_t count, std::size_t length, int flags,
                   const sockaddr* name, socklen_t name_length, const PacketInfo* info, ssize_t& result);
    // Calls post(Destination&) with send_.lock() held, if neither the socket, the call nor the peer has
    // anything out of the ordinary. Its result, or 0.
    template <class Post>
    unsigned send_ordinary(int fd, int flags, const sockaddr* name, socklen_t name_length, Post&& post);
    // Sends datagrams over a ring, while each of them is an ordinary one; returns how many.
    unsigned send_run(int fd, const iovec* datagrams, unsigned count, int flags, const sockaddr* name,
                      socklen_t name_length);
    void sent_fast(const Destination& d, unsigned datagrams, std::size_t bytes) noexcept;
    void tell_of_room() noexcept;
    bool still_mine(int fd) noexcept;  // asked now and then: libc can close a number unseen
    int dont_wait_here(int flags) const noexcept;
    void note_kernel_send(int fd, int flags, ssize_t result) noexcept;
    bool kernel_sends(stats::Reason reason, std::string_view detail, std::string_view rule = {}) noexcept {
        socket_counters_.decided(stats::Direction::tx, {stats::Path::kernel, reason, detail, rule});
        return false;
    }

    bool errors_watched_ = false;  // Stack::control()
    std::atomic<bool> rx_shut_{false};
};

}  // namespace vma::sockets
