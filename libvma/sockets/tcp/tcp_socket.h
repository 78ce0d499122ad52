// SPDX-License-Identifier: BSD-2-Clause
// A TCP/IPv4 socket of the program: descriptor semantics on top of tcp::Connection and tcp::Listener.
//
// The kernel's socket behind the descriptor (the shadow) is never connected while we serve the connection. It
// holds the local port, knows the options, and answers what does not depend on the connection. So it is
// always in a state from which the kernel can take over: before connect() or listen() by simply going on,
// afterwards by tcp/handover.h. A listener's shadow listens for real, for the interfaces we do not serve.
//
// Phases: `fresh` (neither connected nor listening: everything is the kernel's), `listening`, `connecting`
// and `connected` (a Connection; connecting until connect() has told the program how it ended), `kernel` (for
// good).
//
// Locks: state_lock_ for changes of phase, taken before the stack's control lock; never held while waiting.
// Data calls take no lock here: they announce themselves (Use), and a Connection that has been replaced is
// released when no announced call can know it any more. waiters_lock_ is a leaf, taken inside the
// connection's lock.
//
// Split over files: tcp_control (life, connect, close), tcp_process (fork, exit), tcp_listen, tcp_options,
// tcp_receive, tcp_send, tcp_move (sendfile, splice), tcp_wait (readiness and blocking).
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/lock.h"
#include "libvma/sockets/drain_rate.h"
#include "libvma/sockets/fd_object.h"
#include "libvma/sockets/iov_cursor.h"
#include "libvma/sockets/observe/statistics.h"
#include "libvma/sockets/ready_hook.h"
#include "libvma/sockets/stack.h"
#include "libvma/sockets/tcp/inherited_options.h"
#include "libvma/sockets/waiter.h"
#include "libvma/tcp/connection.h"
#include "libvma/tcp/handshake/listener.h"

namespace vma::sockets {

class TcpSocket final : public Socket, public tcp::Owner, public Steered {
  public:
    // For the kernel socket `fd` just created with these type flags. Null when there is no memory.
    static TcpSocket* create(Stack& stack, int fd, int type) noexcept;

    int bind(int fd, const sockaddr* addr, socklen_t len) override;
    int connect(int fd, const sockaddr* addr, socklen_t len) override;
    int listen(int fd, int backlog) override;
    int accept4(int fd, sockaddr* addr, socklen_t* len, int flags) override;
    int shutdown(int fd, int how) override;
    int setsockopt(int fd, int level, int name, const void* value, socklen_t len) override;
    int getsockopt(int fd, int level, int name, void* value, socklen_t* len) override;
    int getsockname(int fd, sockaddr* addr, socklen_t* len) override;
    int getpeername(int fd, sockaddr* addr, socklen_t* len) override;
    int fcntl(int fd, int cmd, unsigned long arg) override;
    int ioctl(int fd, unsigned long request, void* arg) override;
    ssize_t recvfrom(int fd, void* buf, size_t len, int flags, sockaddr* addr, socklen_t* alen) override;
    ssize_t recvmsg(int fd, msghdr* msg, int flags) override;
    int recvmmsg(int fd, mmsghdr* msgs, unsigned count, int flags, timespec* timeout) override;
    ssize_t sendto(int fd, const void* buf, size_t len, int flags, const sockaddr* addr,
                   socklen_t alen) override;
    ssize_t sendmsg(int fd, const msghdr* msg, int flags) override;
    int sendmmsg(int fd, mmsghdr* msgs, unsigned count, int flags) override;
    ssize_t sendfile(int out, int in, off_t* offset, size_t count) override;
    ssize_t splice_in(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t len,
                      unsigned flags) override;
    ssize_t splice_out(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t len,
                       unsigned flags) override;
    void kernel_answered(int fd, stats::Way way, ssize_t result, int flags) noexcept override;
    void kernel_connected(int result) noexcept override;
    void leave_to_kernel(int fd, const char* why) noexcept override;
    void ring_failed(int fd, ring::Ring& ring) noexcept override;
    bool carries_state() const noexcept override {
        const Phase p = phase();
        return p != Phase::fresh && p != Phase::kernel;
    }
    const char* leaving() const noexcept override;
    bool lives_elsewhere() const noexcept override;
    void before_last_close(int fd) noexcept override;
    void before_fork(int fd) noexcept override;
    void before_process_end(int fd) noexcept override;

    bool offloaded() const noexcept override { return readiness() != Readiness::kernel; }
    Readiness readiness() const noexcept override;
    std::uint32_t ready_events() const noexcept override;
    std::uint32_t arrivals() const noexcept override { return edges(EPOLLIN); }
    std::uint32_t edges(std::uint32_t interest) const noexcept override;
    unsigned progress() noexcept override;
    void flush() noexcept override;
    unsigned arm(int* fds, unsigned room) noexcept override;
    bool add_waiter(Waiter* waiter) noexcept override;
    void remove_waiter(Waiter* waiter) noexcept override;
    bool subscribe(ReadyHook* hook) noexcept override;
    bool unsubscribe(ReadyHook* hook) noexcept override;
    unsigned rings(ring::Ring** out, unsigned room) const noexcept override;

    // tcp::Owner, with the connection's or the listener's lock held
    void changed() noexcept override;
    void publish() noexcept override;
    void zero_counters() noexcept override;
    // Steered
    void refresh_rules() noexcept override;
    void bury() noexcept override;

    // Moves the live connection into the shadow: from here on the kernel serves it. False: it could not be
    // moved (the log says why), and goes on as it was. A socket that has no connection is left to the kernel.
    bool handover(int fd, const char* why) noexcept;
    // The same for all connections that the program has closed and that are not done yet.
    static void hand_over_orphans() noexcept;
    // The connection behind `fd` now, with a reference for the caller; null without one.
    tcp::Connection* connection() noexcept;

  protected:
    void last_fd_closed() noexcept override { last_number_closed(-1); }
    void last_number_closed(int fd) noexcept override;
    void recycle() noexcept override;

  private:
    enum class Phase : std::uint8_t { fresh, listening, connecting, connected, kernel };
    static constexpr unsigned kMaxRings = 16;  // further interfaces of a listener stay with the kernel

    static void* take_memory() noexcept;
    static void give_memory(void* memory) noexcept;
    TcpSocket(Stack& stack, int type) noexcept;
    ~TcpSocket() override;

    // A data call that looks at connection or listener. While one is under way, neither is released.
    struct Use {
        explicit Use(const TcpSocket& s) noexcept : socket(s) {
            socket.users_.fetch_add(1, std::memory_order_seq_cst);
            connection = socket.connection_.load(std::memory_order_seq_cst);
            listener = socket.listener_.load(std::memory_order_seq_cst);
        }
        ~Use() {
            if (socket.users_.fetch_sub(1, std::memory_order_seq_cst) == 1 &&
                __builtin_expect(socket.close_pending_.load(std::memory_order_seq_cst), false))
                socket.finish_close();
        }
        Use(const Use&) = delete;
        Use& operator=(const Use&) = delete;
        // What the socket has now: nothing that it had since the constructor goes before the destructor.
        void look_again() noexcept {
            connection = socket.connection_.load(std::memory_order_acquire);
            listener = socket.listener_.load(std::memory_order_acquire);
        }
        const TcpSocket& socket;
        tcp::Connection* connection;
        tcp::Listener* listener;
    };

    Phase phase() const noexcept { return phase_.load(std::memory_order_acquire); }
    void set_phase(Phase phase) noexcept;  // and tells waiters
    int take_pending_error() noexcept;
    void tell_waiters() noexcept;
    // Has close() taken the last number away since this call looked it up? Then its answer is that of a call
    // that comes later.
    bool overtaken() const noexcept { return !has_fds(); }
    bool has_connection() const noexcept {
        return phase() == Phase::connecting || phase() == Phase::connected;
    }
    static bool still_connecting(const tcp::Connection& c) noexcept {
        return c.state() == tcp::State::syn_sent || c.state() == tcp::State::syn_recv;
    }
    // As the program sees it: in TIME_WAIT the kernel's socket is detached from the connection, and closed.
    static bool over(const tcp::Connection& c) noexcept {
        return c.state() == tcp::State::close || c.state() == tcp::State::time_wait;
    }

    // ---- tcp_control.cpp ----
    struct Plan {
        tcp::Endpoints ends;
        bool autobind = false;  // ends.local_port is to be found yet
        Why why;                // where it is not to be ours
    };
    bool plan_connect(int fd, const sockaddr_in& to, Plan& plan) noexcept;
    int start_connect(int fd, const sockaddr* addr, socklen_t len, bool& ours, Why& why);
    int bind_shadow(int fd, Plan& plan) noexcept;  // 0 or errno
    void unbind_shadow(int fd) noexcept;
    // After -EREMOTE of the connection: waits for the handover that is under way, or does it. True: the
    // kernel answers now; false: it is ours still, so try again. `error`: neither, in a signal handler that
    // interrupted the handover.
    bool moved_away(int fd, int& error) noexcept;
    int await_connect(int fd, int under_way);
    int disconnect(int fd) noexcept;
    void let_go(int fd, bool reset) noexcept;  // of the connection; the phase becomes fresh. state_lock_ held
    int bind_again(int fd, const sockaddr* addr, socklen_t len) noexcept;
    void retire(tcp::Connection* connection, tcp::Listener* listener) noexcept;
    void release_retired(unsigned own_uses) noexcept;
    void learn_cookie(int fd) noexcept;
    bool is_shadow(int fd) const noexcept;  // does the number still mean our socket? A system call
    bool still_mine(int fd) noexcept;       // the same, asked now and then
    void linger() noexcept;
    bool linger_later() noexcept;  // false: this thread does not close later
    friend class LateLinger;
    void finish_close() const noexcept;  // what close() left to the last call that was under way
    bool interrupted_own_code() const noexcept;

    // ---- tcp_listen.cpp ----
    struct Rule {
        ring::Ring* ring;
        verbs::FlowSpec spec;
    };
    std::vector<Rule> wanted_rules(Why& why);  // why: if there are none. May throw bad_alloc
    void add_rules() noexcept;                 // and follow the interfaces' addresses. Control lock
    void set_rules(std::vector<Rule> wanted, Why& why) noexcept;  // under the stack's control lock
    void drop_rules() noexcept;
    void end_listener() noexcept;
    void keep_listening_port(int fd) noexcept;
    InternalFd keep_shadow(int fd) noexcept;  // before the last number goes
    void stop_listening() noexcept;           // state_lock_ held
    int accept_ours(tcp::Listener& listener, sockaddr* addr, socklen_t* len, int flags);
    int accept_from_kernel(int fd, sockaddr* addr, socklen_t* len, int flags);
    bool kernel_has_connection(int fd) noexcept;
    void offer_waiting() noexcept;  // see placeholders.h; no lock held
    void resume() noexcept;         // a suspended listener

    // ---- tcp_options.cpp ----
    void apply(int fd, int level, int name) noexcept;  // takes over what the shadow now has
    void settle_options(int fd) noexcept;  // sets on the shadow what it inherits from the listener
    template <class F>
    void edit_options(F&& edit) noexcept;
    int get_from_connection(int fd, int level, int name, void* value, socklen_t* len, bool& known);

    // ---- tcp_receive.cpp, tcp_send.cpp: bytes or -errno ----
    ssize_t receive(int fd, IovCursor& at, int flags);
    ssize_t receive_urgent(int fd, void* buf, size_t len, int flags, sockaddr* addr, socklen_t* alen);
    ssize_t take(tcp::Connection& c, IovCursor& at, std::size_t left, unsigned flags,
                 std::size_t skip) noexcept;
    ssize_t transmit(int fd, IovCursor& at, int flags);
    ssize_t may_send(int fd, int flags);
    // What is left of a call that waits, when the connection was handed over in the middle of it: bytes.
    static std::size_t rest_from_kernel(int fd, IovCursor& at, int flags);
    static std::size_t rest_to_kernel(int fd, IovCursor& at, int flags);
    ssize_t receive_ours(int fd, IovCursor& at, int flags);
    ssize_t transmit_ours(int fd, IovCursor& at, int flags);
    // Statistics: of a call's result, ours (bytes or -errno) or the kernel's (bytes, or -1 with errno), which
    // is returned.
    ssize_t count(stats::Way way, ssize_t result) noexcept;
    ssize_t count_kernel(stats::Way way, ssize_t result, int flags = 0) noexcept;
    int count_kernel(stats::Way way, int result, const mmsghdr* msgs, int flags) noexcept;
    void decided(const stats::Decision& decision) noexcept;  // both directions
    void describe() noexcept;                                // names and ring, without asking the kernel
    // For the program: -1 with errno, and SIGPIPE where the kernel raises it.
    static ssize_t finish(ssize_t result, int flags) noexcept;
    static ssize_t finish_send(ssize_t result, int flags) noexcept;
    bool blocks(int flags) const noexcept {
        return !(flags & MSG_DONTWAIT) && !nonblock_.load(std::memory_order_relaxed);
    }

    // ---- tcp_wait.cpp ----
    struct Waiting {
        explicit Waiting(std::uint64_t timeout_ns) noexcept;  // 0: for ever
        bool interrupted() const noexcept;
        int error() const noexcept;  // of a call that is interrupted
        std::uint64_t deadline = 0;  // CLOCK_MONOTONIC, ns
        std::uint32_t interruptions, restarts;
        std::uint64_t spins = 0;
        bool slept = false;
    };
    class Sleep;
    unsigned progress(const Use& use) const noexcept;
    void flush(const Use& use) const noexcept;
    unsigned rings(const Use& use, ring::Ring** out, unsigned room) const noexcept;
    // Polls, then sleeps, until ready() (0), or an errno: EAGAIN at the deadline, EINTR, EBADF when closed
    // meanwhile.
    template <class F>
    int wait(int fd, Waiting& w, F&& ready);
    // Did a signal handler interrupt this thread inside the connection's code? Then it will not become ready.
    static bool inside(const tcp::Connection& c) noexcept;
    struct Inside {
        explicit Inside(const tcp::Connection& c) noexcept;
        ~Inside();
        const tcp::Connection* before;
    };
    friend struct Inside;

    Stack& stack_;
    std::atomic<Phase> phase_{Phase::fresh};
    std::atomic<bool> closed_{false}, nonblock_{false};
    const std::uint32_t born_;  // handing::generation()
    bool bound_ = false, autobound_ = false, accepted_ = false, listed_ = false, reuseport_ = false;
    std::atomic<bool> trying_kernel_{
        false};                       // connect() gave the socket to the kernel, which may refuse at once
    std::atomic<bool> stuck_{false};  // a handover failed: not tried again and again
    bool closing_ = false;            // the number is about to go: no handover any more. state_lock_
    std::atomic<tcp::Connection*> connection_{nullptr};
    std::atomic<tcp::Listener*> listener_{nullptr};
    mutable std::atomic<unsigned> users_{0};
    mutable std::atomic<bool> close_pending_{false};
    mutable Lock state_lock_;
    std::atomic<std::uint64_t> cookie_{0};       // SO_COOKIE of the shadow; 0: not asked yet
    std::atomic<std::uint64_t> verified_at_{0};  // ticks
    std::atomic<int> pending_error_{0};          // SO_ERROR after a disconnect; EFAULT of a recvmmsg
    // What getsockname() still tells after a connection: the kernel gives the port back, but does not forget
    // its number.
    std::atomic<in_addr_t> last_addr_{0};
    std::atomic<in_port_t> last_port_{0};
    std::atomic<std::uint32_t> past_mss_{0};  // the same for TCP_MAXSEG
    std::atomic<bool> rebound_{false};        // bind() after the connection's end: the name is the shadow's

    struct Retired {
        tcp::Connection* connection;
        tcp::Listener* listener;
    };
    std::vector<Retired> retired_;  // state_lock_

    // options
    tcp::Options options_;                        // for the next connection; state_lock_
    std::shared_ptr<OptionLog> set_options_;      // set before listen() or while listening; state_lock_
    std::shared_ptr<const OptionLog> inherited_;  // of an accepted socket, not on the shadow yet; state_lock_
    std::atomic<bool> has_inherited_{false};
    std::atomic<std::uint64_t> rcvtimeo_ns_{0}, sndtimeo_ns_{0};
    std::atomic<std::uint32_t> receive_lowat_{1};
    DrainRate drain_rate_;
    std::atomic<int> linger_s_{-1};  // SO_LINGER; -1: off
    struct Lingering {
        std::uint64_t ns = 0;
        InternalFd port;            // a copy of the shadow
        TcpSocket* next = nullptr;  // of a LateLinger
    };
    Lingering lingering_;                  // the thread that closes
    std::atomic<bool> report_inq_{false};  // TCP_INQ
    bool bind_no_port_ = false;            // IP_BIND_ADDRESS_NO_PORT

    // readiness
    mutable Lock waiters_lock_;
    WaiterList waiters_;
    ReadyHooks hooks_;
    std::uint32_t in_edges_told_ = 0, out_edges_told_ = 0;  // waiters_lock_

    // listener; of an accepted socket: what its listener was bound to
    in_addr_t listen_addr_ = 0;
    in_port_t listen_port_ = 0;
    std::vector<Rule> rules_;  // the stack's control lock
    std::atomic<unsigned> ring_count_{0};
    std::array<std::atomic<ring::Ring*>, kMaxRings> rings_{};
    Lock kernel_accept_lock_;
    std::atomic<unsigned> accepts_{0};
    mutable std::atomic<bool> used_{false};  // this process has called accept() or asked for readiness
    std::atomic<bool> suspended_{false};     // the rules are gone until this process uses the listener
};

}  // namespace vma::sockets
