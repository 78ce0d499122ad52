// SPDX-License-Identifier: BSD-2-Clause
// A UDP/IPv4 socket of the program.
//
// The kernel's socket (the shadow) stays bound and connected like ours: it reserves the port, answers
// everything that is asked about the socket, receives what no flow rule catches (fragments, multicast,
// loopback, foreign interfaces), collects ICMP errors, and sends what we do not: datagrams that need
// fragmenting or special options, and the first one to a neighbour that is not resolved yet. So an answer
// that this class does not know is always one system call away, and "leave it to the kernel" means to
// withdraw the flow rules and stop.
//
// State changes (bind, connect, close, options) hold the stack's control lock. The receive queue has its own
// lock, and so has sending. Split over files: udp_control, udp_options, udp_receive, udp_send.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "libvma/ring/ring.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/lock.h"
#include "libvma/sockets/destination.h"
#include "libvma/sockets/drain_rate.h"
#include "libvma/sockets/fd_object.h"
#include "libvma/sockets/observe/statistics.h"
#include "libvma/sockets/ready_hook.h"
#include "libvma/sockets/stack.h"
#include "libvma/sockets/waiter.h"

namespace vma::sockets {

class UdpSocket final : public Socket, public ring::FrameSink, public Steered {
  public:
    // For the kernel socket `fd` just created with these type flags. Null when there is no memory.
    static UdpSocket* create(Stack& stack, int fd, int type) noexcept;

    int bind(int fd, const sockaddr* addr, socklen_t len) override;
    int connect(int fd, const sockaddr* addr, socklen_t len) override;
    int shutdown(int fd, int how) override;
    int setsockopt(int fd, int level, int name, const void* value, socklen_t len) override;
    int getsockopt(int fd, int level, int name, void* value, socklen_t* len) override;
    int fcntl(int fd, int cmd, unsigned long arg) override;
    int ioctl(int fd, unsigned long request, void* arg) override;
    ssize_t recvfrom(int fd, void* buf, size_t len, int flags, sockaddr* addr, socklen_t* alen) override;
    ssize_t recvmsg(int fd, msghdr* msg, int flags) override;
    int recvmmsg(int fd, mmsghdr* msgs, unsigned count, int flags, timespec* timeout) override;
    ssize_t sendto(int fd, const void* buf, size_t len, int flags, const sockaddr* addr,
                   socklen_t alen) override;
    ssize_t sendmsg(int fd, const msghdr* msg, int flags) override;
    int sendmmsg(int fd, mmsghdr* msgs, unsigned count, int flags) override;
    void kernel_answered(int fd, stats::Way way, ssize_t result, int flags) noexcept override;
    void leave_to_kernel(int fd, const char* why) noexcept override;
    void before_exec(int fd) noexcept override;
    // Any that has rules, or may get some from another call of ours.
    bool carries_state() const noexcept override { return !left_ && !closed_; }
    bool kernel_may_send() const noexcept override { return true; }
    bool lives_elsewhere() const noexcept override;
    void before_last_close(int fd) noexcept override;
    void before_process_end(int fd) noexcept override;

    bool offloaded() const noexcept override {
        return ring_count_.load(std::memory_order_acquire) != 0 || queued() != 0;
    }
    std::uint32_t ready_events() const noexcept override {
        return queued() != 0 ? EPOLLIN | EPOLLRDNORM : 0u;
    }
    std::uint32_t arrivals() const noexcept override { return arrivals_.load(std::memory_order_acquire); }
    std::uint32_t edges(std::uint32_t events) const noexcept override {
        return arrivals() + ((events & kWakeOut) != 0 ? departures_.load(std::memory_order_acquire) : 0);
    }
    unsigned progress() noexcept override;
    void flush() noexcept override;
    unsigned arm(int* fds, unsigned room) noexcept override;
    void kernel_error_seen() noexcept override { shadow_event_.store(true, std::memory_order_release); }
    bool add_waiter(Waiter* waiter) noexcept override;
    void remove_waiter(Waiter* waiter) noexcept override;
    bool subscribe(ReadyHook* hook) noexcept override;
    bool unsubscribe(ReadyHook* hook) noexcept override;
    void watch_room(int members) noexcept override {
        room_watched_.fetch_add(members, std::memory_order_relaxed);
    }
    unsigned rings(ring::Ring** out, unsigned room) const noexcept override;
    void ring_failed(int fd, ring::Ring& ring) noexcept override;

    // ring::FrameSink, with the ring's lock held
    bool deliver(ring::RxBuffer* buffer) noexcept override;

    // Steered
    void refresh_rules() noexcept override;
    void bury() noexcept override;
    // An error event of the shadow (internal thread): the next call must ask the kernel.
    static void on_shadow_error(std::uint64_t token) noexcept;

    void publish() noexcept override;
    void zero_counters() noexcept override;

    // What to report with a received datagram.
    enum Control : unsigned {
        pktinfo = 1,
        recvttl = 2,
        recvtos = 4,
        timestamp = 8,
        timestampns = 16,
        timestamping = 32,
        rxq_ovfl = 64,
        origdst = 128,
        timestamping_device = 256
    };
    // Reasons for the kernel to do all sending.
    enum KernelTx : unsigned {
        cork = 1,
        segment = 2,
        pacing = 4,
        txtime = 8,
        ip_options = 16,
        source = 32,
        no_check = 64,
        shut = 128,
        dontroute = 256,
        tx_timestamps = 512,
        more = 1024,
        unicast_if = 2048
    };

  protected:
    void last_fd_closed() noexcept override;
    void recycle() noexcept override;

  private:
    static constexpr unsigned kMaxRings = 16;  // further interfaces of a wildcard socket stay with the kernel
    static constexpr std::size_t kMaxDestinations = 1024;

    UdpSocket(Stack& stack, int fd, int type) noexcept;
    ~UdpSocket() override;

    // ---- control (udp_control.cpp), under the stack's control lock ----
    struct Rule {
        ring::Ring* ring;
        verbs::FlowSpec spec;
    };
    void read_names(int fd) noexcept;       // local and peer address from the shadow
    void read_attributes(int fd) noexcept;  // options that matter to us, from the shadow
    void update_rules(bool only_route) noexcept;
    void set_rules(std::vector<Rule> wanted, Why& why) noexcept;
    void drop_rules() noexcept;
    std::vector<Rule> wanted_rules(bool only_route, Why& why);  // why: if there are none. May throw bad_alloc
    void decide_receive(const Why& why) noexcept;
    void after_autobind(int fd) noexcept;
    void watch_errors(int fd) noexcept;
    void wake_waiters() noexcept;
    void announce_queue() noexcept;  // tells the rings how much this socket may hold
    std::int64_t announced_ = 0;
    ring::Share share() const noexcept { return reuseport_ ? ring::Share::spread : ring::Share::latest; }

    // ---- receive (udp_receive.cpp) ----
    struct Receive {
        iovec* iov;
        std::size_t count;
        int flags;
        msghdr* msg;  // name, control and flags of the result go here
    };
    // Tells a sleeping call of changes of the shadow alone, which has no data but an error. An error queue
    // that nobody reads keeps POLLERR set for ever: a plain poll() would end at once, again and again, where
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
    ring::RxBuffer* pop(bool count = true) noexcept;
    void give_queue_to_kernel() noexcept;
    // The kernel's answer to a receive call, as it is, counted.
    ssize_t count_kernel_receive(ssize_t result, int flags) noexcept;
    int count_kernel_receive(int result, const mmsghdr* msgs, int flags) noexcept;
    ssize_t finish(ring::RxBuffer* b, Receive& r) noexcept;
    void put_control(const ring::RxBuffer& b, msghdr& msg) noexcept;
    // Sleeps with signal mask `mask` until something may have come. True: look again; false: errno is set.
    bool sleep(int fd, std::uint64_t deadline_ns, const sigset_t* mask, std::optional<ShadowEdges>& edges);
    bool kernel_side_due() noexcept;
    void drain() noexcept;
    std::uint64_t queued_payload() const noexcept;
    bool interrupted_library_code() const noexcept;
    bool kernel_receives(int flags) const noexcept;  // the call can go to the kernel as it is
    std::uint32_t queued() const noexcept { return queued_.load(std::memory_order_acquire); }
    void update_control_wanted() noexcept;
    // In the statistics:
    void show_multicast(int fd) noexcept;
    void show_kernel_tx() noexcept;

    // ---- send (udp_send.cpp) ----
    // Sends over a ring if all is well. False: the kernel has to send (nothing was done).
    bool send_fast(int fd, const iovec* iov, std::size_t count, std::size_t length, int flags,
                   const sockaddr* name, socklen_t name_length, ssize_t& result);
    void tell_of_room() noexcept;
    Destination* destination(in_addr_t addr, in_port_t port) noexcept;
    bool still_mine(int fd) noexcept;  // checks now and then that libc has not closed the fd behind our back
    int dont_wait_here(int flags) const noexcept;
    void note_kernel_send(int fd, int flags, ssize_t result) noexcept;
    bool kernel_sends(stats::Reason reason, std::string_view detail, std::string_view rule = {}) noexcept {
        tally_.decided(stats::Direction::tx, {stats::Path::kernel, reason, detail, rule});
        return false;
    }

    void set_kernel_tx(unsigned bit, bool on) noexcept {
        if (on)
            kernel_tx_.fetch_or(bit, std::memory_order_relaxed);
        else
            kernel_tx_.fetch_and(~bit, std::memory_order_relaxed);
    }

    Stack& stack_;
    const std::uint32_t born_;                    // handing::generation()
    std::uint64_t cookie_ = 0;                    // SO_COOKIE of the shadow: identity beyond the fd number
    std::atomic<std::uint64_t> verified_at_{0};   // ticks
    std::atomic<std::uint64_t> refreshed_at_{0};  // ticks: destinations were looked up again
    std::uint64_t token_ = 0;                     // for error events

    // control state
    std::atomic<bool> left_{false};  // left to the kernel for good
    std::atomic<bool> closed_{false};
    bool wildcard_listed_ = false, errors_watched_ = false;
    bool waits_for_device_ = false;  // another process has it
    bool reuseport_ = false, bound_explicitly_ = false;
    std::atomic<bool> member_{false};  // has joined a multicast group at some time
    std::vector<Rule> rules_;
    std::atomic<unsigned> ring_count_{0};
    std::array<std::atomic<ring::Ring*>, kMaxRings> rings_{};
    in_addr_t local_addr_ = 0, peer_addr_ = 0;
    in_port_t local_port_ = 0, peer_port_ = 0;
    std::atomic<bool> nonblock_{false};
    std::atomic<bool> shadow_event_{false};  // the shadow has an error or is shut down: ask it first
    std::atomic<bool> rx_shut_{false};
    std::atomic<int> pending_error_{0};  // of a receive call that had something to return first

    // receive state
    Lock queue_lock_;
    ring::RxBuffer* head_ = nullptr;
    ring::RxBuffer* tail_ = nullptr;
    std::atomic<std::uint32_t> queued_{0};
    std::uint64_t queued_bytes_ = 0;
    std::atomic<std::uint64_t> queue_limit_{212992};
    std::atomic<std::uint32_t> arrivals_{0};
    std::uint32_t drops_ = 0;
    WaiterList waiters_;
    ReadyHooks hooks_;
    std::atomic<std::uint64_t> rcvtimeo_ns_{0};
    std::atomic<unsigned> control_wanted_{0};  // Control
    bool counts_timestamps_ = false;
    std::atomic<std::uint32_t> os_polls_left_{0};
    std::atomic<std::uint32_t> kernel_sends_seen_{0};
    std::atomic<std::uint64_t> os_polled_at_{0};  // ticks of the last look at the kernel side
    DrainRate drain_rate_;

    // send state
    Lock send_lock_;
    std::atomic<unsigned> kernel_tx_{0};        // KernelTx
    std::atomic<int> room_watched_{0};          // edge-triggered members that ask for room
    std::atomic<std::uint32_t> departures_{0};  // datagrams sent meanwhile
    std::atomic<std::uint32_t> attributes_version_{1};
    SendAttributes attributes_;  // written under control and send lock
    Destination* last_destination_ = nullptr;
    std::unordered_map<std::uint64_t, std::unique_ptr<Destination>> destinations_;
};

// Sockets that got a send through the kernel in this process: receive calls look at the kernel side soon
// after.
extern std::atomic<std::uint32_t> g_kernel_sends;

}  // namespace vma::sockets
