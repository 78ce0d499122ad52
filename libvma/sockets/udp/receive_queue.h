// SPDX-License-Identifier: BSD-2-Clause
// The datagrams of a UDP socket that wait for a receive call, oldest first, bounded as by SO_RCVBUF.
//
// The socket's Watchers::lock() guards the queue. size(), arrivals(), limit() and given_back() need no lock.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "libvma/ring/ring.h"
#include "libvma/stats/socket_counters.h"

namespace vma::sockets {

class ReceiveQueue {
  public:
    std::uint32_t size() const noexcept { return size_.load(std::memory_order_acquire); }
    // Datagrams that have ever been queued.
    std::uint32_t arrivals() const noexcept { return arrivals_.load(std::memory_order_acquire); }
    // Bytes, as SO_RCVBUF counts them.
    std::uint64_t limit() const noexcept { return limit_.load(std::memory_order_relaxed); }
    void set_limit(std::uint64_t bytes) noexcept { limit_.store(bytes); }

    // ---- with the lock held ----
    ring::RxBuffer* first() const noexcept { return head_; }
    // Bytes of the datagrams, without what is charged for each.
    std::uint64_t payload() const noexcept { return bytes_ - lent_ - std::uint64_t{count()} * kDatagramCost; }
    // What the program keeps takes up all room.
    bool lent_out() noexcept {
        if (__builtin_expect(lent_ < limit(), 1)) return false;
        take_back();
        return lent_ >= limit();
    }
    // What the program keeps.
    struct Lent {
        std::uint64_t packets, bytes;  // with kDatagramCost for each
    };
    Lent lent() noexcept {
        take_back();
        return {lent_packets_, lent_};
    }
    // Takes over the buffer. False: the queue is full, or no memory; counted as dropped, the buffer stays the
    // caller's.
    [[gnu::always_inline]] bool push(ring::RxBuffer* b, stats::SocketCounters& tally) noexcept {
        const std::uint64_t cost = cost_of(*b);
        if (__builtin_expect(bytes_ + cost > limit(), 0) && !has_room(cost)) return drop(*b, tally);
        // What is unread for long must not keep the ring's buffers: others receive into them.
        if (b->ring->should_copy(count())) {
            ring::RxBuffer* copy = b->ring->swap_for_copy(b, bytes_);
            if (copy == nullptr) return drop(*b, tally);
            b = copy;
        }
        append(b, tally);
        return true;
    }
    // The same whatever the limit is, without the ring's receive lock.
    void append(ring::RxBuffer* b, stats::SocketCounters& tally) noexcept {
        b->drops_before = drops_;
        b->next = nullptr;
        (tail_ != nullptr ? tail_->next : head_) = b;
        tail_ = b;
        bytes_ += cost_of(*b);
        size_.store(count() + 1, std::memory_order_release);
        arrivals_.store(arrivals_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
        tally.queued(count(), payload());
    }
    // The program keeps a datagram of this cost, which leaves less room for others.
    void charge(std::uint64_t cost) noexcept {
        bytes_ += cost;
        note_lent(cost);
    }
    // It has given the datagram back. The room is there when the queue needs it.
    void given_back(std::uint64_t cost) noexcept {
        given_back_.fetch_add(kPacket + cost, std::memory_order_release);
    }
    static std::uint64_t cost_of(const ring::RxBuffer& b) noexcept {
        return b.payload_length + kDatagramCost;
    }
    bool drop(const ring::RxBuffer& b, stats::SocketCounters& tally) noexcept {
        drops_++;
        tally.dropped(b.payload_length);
        return false;
    }
    // The oldest one, the caller's from here on; null: there is none.
    ring::RxBuffer* pop() noexcept {
        ring::RxBuffer* b = take();
        if (b != nullptr) bytes_ -= cost_of(*b);
        return b;
    }
    // The same for the program to keep: it is charged for at once.
    ring::RxBuffer* pop_lent() noexcept {
        ring::RxBuffer* b = take();
        if (b != nullptr) note_lent(cost_of(*b));
        return b;
    }
    // Undoes pop().
    void put_back(ring::RxBuffer* b) noexcept {
        b->next = head_;
        head_ = b;
        if (tail_ == nullptr) tail_ = b;
        bytes_ += cost_of(*b);
        size_.store(count() + 1, std::memory_order_release);
    }

  private:
    // What one queued datagram costs beside its payload. The kernel charges its buffers (768 bytes and more
    // for a small datagram); a ring's are larger still, but SO_RCVBUF is meant in the kernel's currency.
    static constexpr std::uint64_t kDatagramCost = 256;

    // In given_back_, a packet; below it bytes, of which a socket lends less.
    static constexpr std::uint64_t kPacket = std::uint64_t{1} << 40;

    std::uint32_t count() const noexcept { return size_.load(std::memory_order_relaxed); }
    ring::RxBuffer* take() noexcept {
        ring::RxBuffer* b = head_;
        if (b == nullptr) return nullptr;
        head_ = b->next;
        if (head_ == nullptr) tail_ = nullptr;
        b->next = nullptr;
        size_.store(count() - 1, std::memory_order_release);
        return b;
    }
    void note_lent(std::uint64_t cost) noexcept {
        lent_ += cost;
        lent_packets_++;
        // Else the count of packets would not fit.
        if (__builtin_expect(lent_packets_ >> 20 != 0, 0)) take_back();
    }
    void take_back() noexcept {
        if (given_back_.load(std::memory_order_relaxed) == 0) return;
        const std::uint64_t back = given_back_.exchange(0, std::memory_order_acquire);
        bytes_ -= back & (kPacket - 1);
        lent_ -= back & (kPacket - 1);
        lent_packets_ -= back / kPacket;
    }
    bool has_room(std::uint64_t cost) noexcept {
        take_back();
        return bytes_ + cost <= limit() || bytes_ == 0;
    }

    ring::RxBuffer* head_ = nullptr;
    ring::RxBuffer* tail_ = nullptr;
    std::atomic<std::uint32_t> size_{0};
    std::atomic<std::uint32_t> arrivals_{0};
    std::uint64_t bytes_ = 0;  // with kDatagramCost for each, and lent_
    // Of what the program keeps (the extra API), and of what it has given back since take_back().
    std::uint64_t lent_ = 0, lent_packets_ = 0;
    std::atomic<std::uint64_t> given_back_{0};
    std::atomic<std::uint64_t> limit_{212992};
    std::uint32_t drops_ = 0;
};

}  // namespace vma::sockets
