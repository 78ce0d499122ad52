// SPDX-License-Identifier: BSD-2-Clause
// What others read of a connection without its lock: its state, its events, and how much it holds.
//
// The owner of the connection's lock changes it; any thread reads it. Readers alone set room_wanted_ and
// urgent_kept_.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libvma/tcp/state.h"

namespace vma::tcp {

struct Tcb;

class Published {
  public:
    explicit Published(Tcb& tcb) noexcept : tcb_(tcb) {}

    // ---- any thread ----
    State state() const noexcept { return state_.load(std::memory_order_acquire); }
    std::uint32_t events() const noexcept { return events_.load(std::memory_order_acquire); }
    // See Connection::events_asked().
    std::uint32_t events_asked() const noexcept {
        const std::uint32_t now = events();
        if ((now & EPOLLOUT) != 0) return now;
        if (!room_wanted_.load(std::memory_order_relaxed))
            room_wanted_.store(true, std::memory_order_seq_cst);
        return events_.load(std::memory_order_seq_cst);
    }
    // Wake-ups so far that concern any of the events in `interest`.
    std::uint32_t edges(std::uint32_t interest) const noexcept;
    // Bytes that the program can read.
    std::size_t readable() const noexcept { return readable_.load(std::memory_order_acquire); }
    // The same for FIONREAD: counted when all that their arrival tells has been told. The kernel's ioctl
    // waits for the socket's lock.
    std::size_t told() const noexcept { return told_.load(std::memory_order_acquire); }
    // The largest segment to send, in bytes of data.
    std::uint32_t mss() const noexcept { return mss_.load(std::memory_order_relaxed); }
    // The pending error; 0: none.
    int error() const noexcept { return error_.load(std::memory_order_acquire); }
    // Bytes not acknowledged, bytes not sent, and the most that may wait, as of the last update().
    std::uint32_t queued() const noexcept { return queued_.load(std::memory_order_acquire); }
    std::uint32_t unsent() const noexcept { return unsent_.load(std::memory_order_acquire); }
    std::uint32_t limit() const noexcept { return limit_.load(std::memory_order_acquire); }
    bool urgent_seen() const noexcept { return urgent_seen_.load(std::memory_order_relaxed); }
    bool bulk_seen() const noexcept { return bulk_.load(std::memory_order_relaxed) == Bulk::seen; }
    void keep_bulk() noexcept { bulk_.store(Bulk::kept, std::memory_order_relaxed); }
    bool urgent_kept() const noexcept { return urgent_kept_.load(std::memory_order_relaxed); }
    void keep_urgent() noexcept { urgent_kept_.store(true, std::memory_order_relaxed); }
    // Takes the pending error; 0: none.
    int take_error() noexcept { return error_.exchange(0, std::memory_order_acq_rel); }

    // ---- with the connection's lock ----
    void fail(int error) noexcept { error_.store(error, std::memory_order_release); }
    // As take_error(), without an atomic exchange where there is none.
    int take_error_locked() noexcept {
        const int error = error_.load(std::memory_order_relaxed);
        if (error != 0) error_.store(0, std::memory_order_relaxed);
        return error;
    }
    void set_state(State state) noexcept { state_.store(state, std::memory_order_release); }
    void set_readable(std::size_t bytes) noexcept { readable_.store(bytes, std::memory_order_release); }
    void set_mss(std::uint32_t bytes) noexcept { mss_.store(bytes, std::memory_order_relaxed); }
    void set_limit(std::uint32_t bytes) noexcept { limit_.store(bytes, std::memory_order_release); }
    void see_urgent() noexcept { urgent_seen_.store(true, std::memory_order_release); }
    // The kernel would move faster what is to come.
    void see_bulk() noexcept {
        if (bulk_.load(std::memory_order_relaxed) == Bulk::none)
            bulk_.store(Bulk::seen, std::memory_order_relaxed);
    }
    // A wake-up for readers, for writers, or for both, with the next update().
    void wake_readers() noexcept { in_wake_++; }
    void wake_writers() noexcept { out_wake_++; }
    void wake_all() noexcept { in_wake_++, out_wake_++; }
    // A send() was told that there is no room: it wants to hear when there is.
    void refuse_writer() noexcept { no_space_ = true; }
    // What waits to be acknowledged now: the count that stands if a segment ends the connection.
    void note_queued(std::uint32_t bytes) noexcept { queued_.store(bytes, std::memory_order_release); }
    // Shows what has changed, tells the owner, and arms the timer. The lock's owner calls it before it lets
    // go.
    void update() noexcept;

  private:
    [[gnu::cold]] void look_for_memory() noexcept;
    void tell() noexcept {
        told_.store(readable_.load(std::memory_order_relaxed), std::memory_order_release);
    }
    inline void publish(std::uint32_t now) noexcept;
    inline std::uint32_t compute_events(std::uint32_t used, std::uint32_t limit) const noexcept;

    enum class Bulk : std::uint8_t { none, seen, kept };

    Tcb& tcb_;
    std::atomic<State> state_{State::close};
    std::atomic<std::uint32_t> events_{0};
    std::atomic<std::uint32_t> in_edges_{0}, out_edges_{0};
    mutable std::atomic<bool> room_wanted_{false};  // events_asked() said that there is no room
    bool no_space_ = false;
    std::atomic<bool> urgent_seen_{false}, urgent_kept_{false};
    std::atomic<Bulk> bulk_{Bulk::none};
    std::atomic<std::size_t> readable_{0}, told_{0};
    std::atomic<std::uint32_t> mss_{536};
    std::atomic<int> error_{0};
    std::atomic<std::uint32_t> queued_{0}, unsent_{0}, limit_{0};
    std::uint32_t in_wake_ = 0, out_wake_ = 0;  // wake-ups to publish
};

}  // namespace vma::tcp
