// SPDX-License-Identifier: BSD-2-Clause
// The send side of a ring: headers and payload become a frame in a registered buffer, which is posted, and
// buffers come back with completions.
//
// The device may hold a frame back within a burst (DeviceAttr::lazy_tx); flush() and the flusher thread send
// it on. TCP segments that follow one another may become one request (Tso).
//
// Locks: a lock of its own, which guards everything posted for sending; it is taken inside the receive lock
// and is never held while calling into a program or a sink. A thread that already has it, in a signal
// handler, is turned away. Errors: 0, or a positive errno value.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "libvma/ring/held_senders.h"
#include "libvma/ring/packet_memory.h"
#include "libvma/ring/receive_lock.h"
#include "libvma/ring/ring_config.h"
#include "libvma/ring/ring_counters.h"
#include "libvma/ring/tso.h"
#include "libvma/ring/tx_buffers.h"
#include "libvma/runtime/lock.h"
#include "libvma/verbs/device.h"

namespace vma::ring {

// What the flusher finds in the rings.
struct LookAtHeld {
    static constexpr std::uint64_t kGoesOn = 8;  // frames between two looks

    void at(std::uint64_t tick) noexcept { due = due == 0 ? tick : std::min(due, tick); }

    std::uint64_t due =
        0;              // the tick when the oldest held frame will be of the age asked for; 0: none is held
    bool left = false;  // there were frames that their sender had left
    bool goes_on = false;  // a sender has sent a good deal since the last look
};

class TxQueue {
  public:
    static constexpr unsigned kMaxPieces = 17;  // of a frame to be sent

    // Errors that completions tell of are noted with `rx_lock`, for Recovery.
    explicit TxQueue(ReceiveLock& rx_lock) noexcept : rx_lock_(rx_lock) {}

    // Takes the send chunks of `memory`. The device, `qp` and `cq` (send completions) outlive the queue.
    // Once. May throw std::bad_alloc.
    void open(verbs::Device& device, ibv_qp* qp, ibv_cq* cq, PacketMemory& memory, const RingConfig& config);

    // ---- as in Ring, any thread ----
    int send_udp(const std::uint8_t* headers, const iovec* iov, std::size_t count,
                 std::size_t length) noexcept;
    unsigned send_udp_many(const std::uint8_t* headers, const iovec* datagrams, unsigned count) noexcept;
    int lend(SendBuffer** out, unsigned count) noexcept;
    int end_loan(SendBuffer& buffer) noexcept;
    int send_lent_udp(const std::uint8_t* headers, SendBuffer& buffer, std::size_t length) noexcept;
    int send_tcp(const std::uint8_t* headers, std::size_t header_length, const iovec* iov, std::size_t count,
                 std::size_t length) noexcept;
    int send_long_tcp(const std::uint8_t* headers, std::size_t header_length, const iovec& payload,
                      std::uint32_t mss) noexcept;
    std::uint32_t max_udp_payload() const noexcept;
    void hold(HeldSender* sender) noexcept;
    void flush() noexcept {
        if (in_burst_.load(std::memory_order_relaxed)) flush_now();
    }
    void flush_older(std::uint64_t now, std::uint64_t age, LookAtHeld& look) noexcept;
    // One Gather object more (+1), one fewer (-1). False: there is nothing to gather.
    bool gather(int change, bool keeps) noexcept;
    void ending(bool on) noexcept;
    // Waits until the device has sent what was posted: some 20 ms at most.
    void drain() noexcept;
    // Sends all that is held back, then drains.
    void send_all() noexcept;
    // Once a second, one thread at a time: requests wait for a completion, and none came since the last call.
    bool stands() noexcept;
    bool owned_by_me() const noexcept { return lock_.owned_by_me(); }
    void note_retransmit() noexcept { retransmits_.fetch_add(1, std::memory_order_relaxed); }

    // ---- statistics, any thread ----
    void count(TxCounters& out) const noexcept;
    void count(BufferCounts& out) noexcept;
    // How often a thread found the lock taken.
    std::uint64_t lock_waits() const noexcept { return lock_waits_.load(std::memory_order_relaxed); }

    // ---- for Recovery, with the receive lock held, and not by a thread with this lock ----
    // Stops the device's QP: after this it reads no send buffer.
    void stop() noexcept;
    // Takes what completed, has the device bring the QP back if `recover`, and gives up what is left: its
    // buffers are free. False: the QP does not work.
    bool restart(bool recover) noexcept;

  private:
    // Has lock_, which the caller took, until it goes.
    struct Hold {
        explicit Hold(TxQueue& q) noexcept : queue(&q) {}
        ~Hold() {
            if (queue != nullptr) queue->let_go();
        }
        Hold(const Hold&) = delete;
        Hold& operator=(const Hold&) = delete;
        // If there is an error to recover from: unlocks here, and sees to it.
        void attend() noexcept {
            if (__builtin_expect(!queue->rx_lock_.error_noted(), 1)) return;
            TxQueue* q = queue;
            queue = nullptr;
            q->let_go();
            q->rx_lock_.attend();
        }
        TxQueue* queue;
    };
    // False: this thread has it already (a signal handler).
    bool lock() noexcept {
        if (lock_.try_lock()) return true;
        if (lock_.owned_by_me()) return false;
        lock_waits_.fetch_add(1, std::memory_order_relaxed);
        lock_.lock();
        return true;
    }
    // Unlocks, and then does what the device left to do without the lock.
    void let_go() noexcept {
        const bool kick = device_->take_kick();
        lock_.unlock();
        if (kick && !device_->kick(qp_)) kick_with_lock();
    }
    void kick_with_lock() noexcept;
    template <class Finish>
    int send_frame(const std::uint8_t* headers, std::size_t header_length, const iovec* iov,
                   std::size_t count, std::size_t length, Finish&& finish) noexcept;
    template <class Finish>
    int post_frame(const std::uint8_t* headers, std::size_t header_length, const iovec* iov,
                   std::size_t count, std::size_t length, Finish&& finish) noexcept;
    int post_built(ibv_sge* pieces, std::uint32_t count, std::size_t header_length, std::size_t frame_length,
                   bool offload, bool as_inline) noexcept;
    unsigned post_chain(const std::uint8_t* headers, const iovec* datagrams, unsigned count) noexcept;
    void gather_ended() noexcept;
    int post(ibv_send_wr& wr, std::uint32_t pieces) noexcept;
    int post_in_place(ibv_send_wr& wr) noexcept;
    bool post_again(ibv_send_wr& wr, std::uint32_t pieces, int error) noexcept;
    bool make_room(std::uint32_t pieces) noexcept { return make_room(pieces, pieces); }
    bool make_room(std::uint32_t buffers, std::uint32_t places) noexcept;
    bool reap() noexcept;
    bool gather_segment(const std::uint8_t* headers, std::size_t header_length, const iovec* iov,
                        std::size_t count, std::size_t length, int& error) noexcept;
    void send_gathered() noexcept;
    void flush_now() noexcept;

    // What a frame touches, in three cache lines: up to the first of counters_.
    alignas(64) Lock lock_;
    verbs::Device* device_ = nullptr;
    ibv_qp* qp_ = nullptr;
    ibv_cq* cq_ = nullptr;
    std::uint32_t offload_from_ = 0;  // bytes of payload from which on the device sums
    std::uint32_t max_inline_ = 0;    // bytes of a frame
    std::uint32_t unsignalled_ = 0;
    std::uint32_t signal_every_ = 1;          // send requests, one of which asks for a completion
    std::atomic<int> gathering_{0};           // Gather objects; changed with the lock held
    std::atomic<std::uint32_t> gatherer_{0};  // thread_number() of the first of them; its segments are kept
    std::atomic<bool> in_burst_{false};       // sent since the last flush()
    bool extras_ = false;                     // the device has inline requests or TSO
    bool lazy_ = false;                       // the device's attribute
    TxBuffers buffers_;
    TxCounters counters_;  // written with the lock, read without
    HeldSenders held_;     // any thread
    std::span<SendBuffer> sends_;
    ReceiveLock& rx_lock_;
    std::uint32_t signal_most_ = 1;  // signal_every_, but for the process's end
    Tso tso_;
    std::atomic<std::uint64_t> retransmits_{0};
    std::atomic<std::uint64_t> lock_waits_{0};
    std::uint64_t frames_looked_at_ = 0;  // the flusher's
    std::uint64_t done_ = 0;              // places in the queue, at the last stands()
};

}  // namespace vma::ring
