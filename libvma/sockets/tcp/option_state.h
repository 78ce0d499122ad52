// SPDX-License-Identifier: BSD-2-Clause
// The options of a TCP socket, as far as the library has to know them; the shadow has all.
//
// next() and the lists are guarded by the socket's state lock. What data calls read is atomic.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "libvma/runtime/clock.h"
#include "libvma/sockets/tcp/inherited_options.h"
#include "libvma/tcp/connection.h"

namespace vma::sockets {

class TcpOptionState {
  public:
    // For the next connection, or what the listener accepts.
    tcp::Options& next() noexcept { return next_; }
    const tcp::Options& next() const noexcept { return next_; }

    // ---- what an accepted socket inherits ----
    // setsockopt() succeeded: accepted sockets get it, too. False: no memory.
    bool note(int level, int name, const void* value, socklen_t len) noexcept;
    // Of a socket that was just accepted, and is in no table yet. `listener`'s state lock is held, unless
    // `with_list` is false: then only what data calls read is inherited.
    void inherit(const TcpOptionState& listener, bool with_list) noexcept;
    // Sets on the shadow what it inherits, before the shadow is asked or changed for the first time.
    void settle(int fd) noexcept {
        if (has_inherited_.load(std::memory_order_acquire)) settle_now(fd);
    }

    // ---- any thread ----
    clock::Nsec send_timeout() const noexcept { return send_timeout_.load(std::memory_order_relaxed); }
    void set_send_timeout(clock::Nsec timeout) noexcept { send_timeout_.store(timeout); }
    std::uint32_t receive_lowat() const noexcept { return receive_lowat_.load(std::memory_order_relaxed); }
    void set_receive_lowat(std::uint32_t bytes) noexcept { receive_lowat_.store(bytes); }
    // SO_LINGER; negative: off.
    std::chrono::seconds linger() const noexcept { return linger_.load(std::memory_order_relaxed); }
    void set_linger(std::chrono::seconds time) noexcept { linger_.store(time); }
    bool report_inq() const noexcept { return report_inq_.load(std::memory_order_relaxed); }  // TCP_INQ
    void set_report_inq(bool on) noexcept { report_inq_.store(on); }
    // What TCP_MAXSEG still tells after a connection; 0: nothing.
    std::uint32_t past_mss() const noexcept { return past_mss_.load(std::memory_order_relaxed); }
    void set_past_mss(std::uint32_t mss) noexcept { past_mss_.store(mss, std::memory_order_relaxed); }
    bool reuseport() const noexcept { return reuseport_; }
    void set_reuseport(bool on) noexcept { reuseport_ = on; }

  private:
    void settle_now(int fd) noexcept;

    tcp::Options next_;
    std::shared_ptr<OptionLog> set_;              // before listen() or while listening
    std::shared_ptr<const OptionLog> inherited_;  // of an accepted socket, not on the shadow yet
    std::atomic<bool> has_inherited_{false};
    std::atomic<bool> report_inq_{false};
    bool reuseport_ = false;
    std::atomic<std::chrono::seconds> linger_{std::chrono::seconds(-1)};
    std::atomic<clock::Nsec> send_timeout_{};
    std::atomic<std::uint32_t> receive_lowat_{1};
    std::atomic<std::uint32_t> past_mss_{0};
};

}  // namespace vma::sockets
