// SPDX-License-Identifier: BSD-2-Clause
// What comes to a connection before anybody has its lock: the frames of a batch, and what waits for the
// lock's owner.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

#include "libvma/ring/ring.h"
#include "libvma/runtime/lock.h"

namespace vma::tcp {

// A list of frames that owns them.
class FrameList {
  public:
    FrameList() = default;
    ~FrameList() { release(); }
    FrameList(const FrameList&) = delete;
    FrameList& operator=(const FrameList&) = delete;

    ring::RxBuffer* first() const noexcept { return first_; }
    ring::RxBuffer* last() const noexcept { return last_; }
    // Appends a chain, which is the list's from now on.
    void append(ring::RxBuffer* first, ring::RxBuffer* last) noexcept {
        (last_ != nullptr ? last_->next : first_) = first;
        last_ = last;
    }
    // The whole chain, which is the caller's from now on; null: none.
    ring::RxBuffer* take() noexcept {
        last_ = nullptr;
        return std::exchange(first_, nullptr);
    }
    void release() noexcept {
        for (ring::RxBuffer* buffer = take(); buffer != nullptr;) {
            ring::RxBuffer* next = std::exchange(buffer->next, nullptr);
            buffer->release();
            buffer = next;
        }
    }

  private:
    ring::RxBuffer* first_ = nullptr;
    ring::RxBuffer* last_ = nullptr;
};

// The connection's part in the running batch of its ring. Under that ring's rx_lock.
struct Staging {
    FrameList frames;
    bool in_batch = false;  // the ring's list for batch_end() has the connection; a reference
    std::array<bool, 2> idle_asked{};

    // Has the ring been told of an ACK that waits for it?
    bool& asked(ring::Idle when) noexcept { return idle_asked[static_cast<unsigned>(when)]; }
};

// What waits for the owner of the connection's lock. Any thread adds to it, without that lock; who has added
// something then tries the lock, and if it is taken, its owner looks here before it lets go. All stores that
// announce something are sequentially consistent, for that look.
class Backlog {
  public:
    // ---- any thread ----
    void add_frames(ring::RxBuffer* first, ring::RxBuffer* last) noexcept {
        const std::lock_guard guard(lock_);
        frames_.append(first, last);
        any_frames_.store(true, std::memory_order_seq_cst);
    }
    void add_icmp(const ring::IcmpError& error) noexcept {
        lock_.lock();
        icmp_ = error;
        any_icmp_.store(true, std::memory_order_relaxed);
        lock_.unlock();
        ask_output();
    }
    // What may be sent shall be sent.
    void ask_output() noexcept { wish_.store(true, std::memory_order_seq_cst); }
    // The connection shall end without a word to the peer.
    void ask_abandon() noexcept {
        abandon_.store(true, std::memory_order_relaxed);
        ask_output();
    }
    void ask_close(bool reset) noexcept {
        close_.store(reset ? Close::reset : Close::orderly);
        ask_output();
    }
    bool any_frames() const noexcept { return any_frames_.load(std::memory_order_acquire); }
    bool empty() const noexcept {
        return !any_frames_.load(std::memory_order_relaxed) && !wish_.load(std::memory_order_relaxed);
    }
    // The ring's list of held senders has the connection: set, and said whether it was; or not any more.
    // Release and acquire: who took the connection off the list has done with its link before the next adds
    // it.
    bool hold() noexcept { return held() || held_.exchange(true, std::memory_order_acquire); }
    bool held() const noexcept { return held_.load(std::memory_order_relaxed); }
    void unhold() noexcept { held_.store(false, std::memory_order_release); }

    // ---- the owner of the connection's lock ----
    enum class Close : std::uint8_t { no, orderly, reset };
    ring::RxBuffer* take_frames() noexcept {
        const std::lock_guard guard(lock_);
        ring::RxBuffer* list = frames_.take();
        any_frames_.store(false, std::memory_order_relaxed);
        return list;
    }
    // Whether there is a wish: then the others below tell which.
    bool take_wish() noexcept {
        return wish_.load(std::memory_order_relaxed) && wish_.exchange(false, std::memory_order_seq_cst);
    }
    bool take_abandon() noexcept { return abandon_.exchange(false); }
    bool take_icmp(ring::IcmpError& out) noexcept {
        if (!any_icmp_.load(std::memory_order_relaxed)) return false;
        const std::lock_guard guard(lock_);
        out = icmp_;
        any_icmp_.store(false, std::memory_order_relaxed);
        return true;
    }
    Close take_close() noexcept { return close_.exchange(Close::no); }

  private:
    Lock lock_;  // a leaf; of frames_ and icmp_
    FrameList frames_;
    ring::IcmpError icmp_;  // the last one
    std::atomic<bool> any_frames_{false};
    std::atomic<bool> wish_{false};
    std::atomic<bool> abandon_{false};
    std::atomic<bool> any_icmp_{false};
    std::atomic<Close> close_{Close::no};
    std::atomic<bool> held_{false};
};

}  // namespace vma::tcp
