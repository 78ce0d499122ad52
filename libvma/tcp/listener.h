// SPDX-License-Identifier: BSD-2-Clause
// A listening port: answers SYNs, keeps the half-open connections and the established ones nobody has accepted yet.
//
// It is the sink of 3-tuple rules, which the layer above puts on the rings. A connection gets its own 5-tuple rule when the
// handshake is complete. Half-open connections are few and bounded: under a flood of SYNs the oldest goes when a new one
// comes, so a peer that answers within the time the table takes to turn over still gets through.
//
// As in the kernel, a queue that is full of connections to accept drops the handshake's last ACK; the peer's
// retransmission, or ours of the SYN-ACK, tries again.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <unordered_map>

#include "libvma/runtime/internal_fd.h"
#include "libvma/tcp/connection.h"

namespace vma::tcp {

class Listener final : public ring::FrameSink {
  public:
    struct Counters {
        std::uint64_t syns = 0, accepted = 0;      // SYNs seen, connections completed
        std::uint64_t evicted = 0;                 // half-open ones that made room
        std::uint64_t overflows = 0;               // handshakes held up by a full accept queue
        std::uint64_t limited = 0;                 // SYNs beyond VMA_TCP_MAX_SYN_RATE
        std::uint64_t resets_sent = 0, bad = 0;    // segments that belonged to nothing; malformed ones
    };

    // One reference, the caller's. `port` in network order. `backlog` as listen(2)'s, already clamped to somaxconn.
    static Listener* create(PathSource& paths, in_port_t port, const Options& options, unsigned backlog) noexcept;
    void ref() noexcept { refs_.fetch_add(1, std::memory_order_relaxed); }
    void unref() noexcept;

    void set_backlog(unsigned backlog) noexcept;   // listen() again
    void set_owner(Owner* owner) noexcept;         // changed(): something to accept
    // The oldest established connection, with a reference for the caller, or null. It has no owner yet.
    Connection* accept() noexcept;
    unsigned pending() const noexcept { return pending_.load(std::memory_order_acquire); }
    std::uint32_t arrivals() const noexcept { return arrivals_.load(std::memory_order_acquire); }
    // What new connections inherit.
    template <class F>
    void change(F&& edit) noexcept {
        lock_.lock();
        edit(options_);
        lock_.unlock();
    }
    // No more: pending and half-open connections are reset. The rules must be withdrawn by the caller.
    void close() noexcept;
    // A connection keeps its port busy also when the listener has gone. `socket`, a socket of the kernel's with the port,
    // is held until the last connection that came from here has ended; while all of these have SO_REUSEADDR, so has it.
    void hold_port(InternalFd socket) noexcept;
    bool has_connections() noexcept;
    Counters counters() noexcept;

    bool deliver(ring::RxBuffer* buffer) noexcept override;
    void batch_end(ring::Ring& ring) noexcept override;

  private:
    friend class Connection;
    friend struct ListenerCallbacks;
    struct Key {
        in_addr_t remote_addr, local_addr;
        in_port_t remote_port;
        friend bool operator==(const Key&, const Key&) = default;
    };
    struct KeyHash {
        std::size_t operator()(const Key& k) const noexcept {
            std::uint64_t h = (std::uint64_t{k.remote_addr} << 32 | k.local_addr) * 0x9e3779b97f4a7c15u;
            h = (h ^ h >> 29 ^ k.remote_port) * 0xff51afd7ed558ccdu;
            return static_cast<std::size_t>(h ^ h >> 32);
        }
    };
    struct HalfOpen {
        Connection* connection;       // a reference
        std::uint64_t serial;         // in order of arrival
    };

    Listener(PathSource& paths, in_port_t port, const Options& options, unsigned backlog) noexcept;
    ~Listener() override = default;
    bool full() const noexcept { return pending_.load(std::memory_order_relaxed) > backlog_; }
    void on_syn(ring::RxBuffer* buffer) noexcept;
    void answer_stray(ring::RxBuffer* buffer) noexcept;
    void make_room() noexcept;
    bool within_syn_rate() noexcept;
    // From connections: the handshake is done and the rule is in place; or the half-open one has ended.
    bool completed(Connection& connection) noexcept;
    void lost(Connection& connection) noexcept;
    // Is there no room for one more established connection? Then its last ACK does not count yet.
    bool hold_up() noexcept;
    // A connection has begun, or ended; `reuse`: with SO_REUSEADDR.
    void joined(bool reuse) noexcept;
    void left(bool reuse) noexcept;
    void set_reuse() noexcept;
    void reply(pbuf* p, in_addr_t from, in_addr_t to, in_port_t peer_port) noexcept;
    // Connections that the kernel has behind our port, where the device leaves their segments to us (attr().coarse_steering). A yes is
    // remembered for a second, so that a long-lived one does not cost a question for each segment; should the connection have ended
    // meanwhile, the kernel knows what to answer. Has a lock of its own.
    class KernelConnections {
      public:
        bool has(const ring::RxBuffer& segment) noexcept;

      private:
        struct Entry {
            Key key{};
            std::uint64_t until_ns = 0;
        };
        std::array<Entry, 256> known_{};
        Lock lock_;  // several rings have the listener's port
    };
    static Key key_of(const Connection& c) noexcept {
        return {c.endpoints().remote_addr, c.endpoints().local_addr, c.endpoints().remote_port};
    }

    PathSource& paths_;
    const in_port_t port_;
    std::atomic<std::uint32_t> refs_{1};
    std::atomic<unsigned> pending_{0};
    std::atomic<std::uint32_t> arrivals_{0};

    Lock lock_;                       // taken inside connections' locks; inside it nothing but the owner's
    Options options_;
    unsigned backlog_;
    bool closed_ = false;
    Owner* owner_ = nullptr;
    std::unordered_map<Key, HalfOpen, KeyHash> half_open_;
    std::map<std::uint64_t, Connection*> by_age_;
    std::uint64_t serial_ = 0;
    std::deque<Connection*> ready_;   // references
    std::size_t alive_ = 0, alive_strict_ = 0;  // connections from here; those without SO_REUSEADDR
    InternalFd held_port_;
    std::uint64_t syn_second_ = 0;    // when the second began in which syns_this_second_ were answered
    std::int64_t syns_this_second_ = 0;
    Counters counters_;
    KernelConnections kernels_;
};

}  // namespace vma::tcp
