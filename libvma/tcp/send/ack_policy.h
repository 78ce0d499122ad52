// SPDX-License-Identifier: BSD-2-Clause
// When an ACK is due: what has come since the last one, and what kind of traffic it is.
//
// Under the connection's lock.
#pragma once

#include <algorithm>
#include <cstdint>

#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

struct Tcb;

class AckPolicy {
  public:
    explicit AckPolicy(Tcb& tcb) noexcept;

    // `length` bytes of data have come that will be acknowledged; data has been sent.
    void data_received(std::uint32_t length) noexcept;
    void data_sent(Time now) noexcept { last_data_tx_ = now; }
    // The peer's FIN has come in sequence, and this end has not shut the connection. The ACK waits for data
    // or for this end's FIN, as the kernel's does (tcp_fin()), but for less long.
    void fin_received() noexcept;
    // The peer has answered this end's SYN. The ACK waits for the first data, where those of other
    // connections came at once.
    void opened(Time now) noexcept;
    // The program writes.
    void written(Time now) noexcept {
        if (__builtin_expect(opened_at_ != kNoTime, 0)) first_written(now);
    }
    // A poll of the ring has found nothing: an ACK that waits for that leaves.
    void idle() noexcept;
    // The connection is about to be another's: an ACK that ends the handshake leaves.
    void settle() noexcept;
    // From now on no ACK leaves but with data, and for what came behind a gap; or no longer so.
    void hold(bool on) noexcept { held_ = on; }
    // Sends an ACK if one is due and has not gone with data; else sees to its time.
    void acknowledge(Time now) noexcept;
    // A segment has left, and has acknowledged all there was.
    inline void sent() noexcept;
    // The peer has sent again what was there already, so perhaps it misses ACKs. They are not delayed for a
    // while, though the program answers (the kernel's tcp_enter_quickack_mode()).
    void duplicate_received() noexcept;
    // The handshake is done: all before `seq` is acknowledged.
    void start(std::uint32_t seq) noexcept { acked_upto_ = seq; }
    // TCP_QUICKACK. True: an ACK is to leave now.
    bool quick(bool on) noexcept;
    // The delayed ACK was due: delaying was right, or the program does not want to hear of it.
    void delay_over() noexcept;

    // RCV.NXT in the last segment sent.
    std::uint32_t acked_upto() const noexcept { return acked_upto_; }
    // Is the ring to remind the connection, when it is idle, of an ACK that is due soon?
    bool when_idle() const noexcept { return when_idle_; }
    // The program's data or FIN is about to take the ACK along. One that has many events at hand polls the
    // ring before it comes to this connection.
    bool waits_for_program() const noexcept { return open_due_ || fin_due_; }
    // What the window may be for what comes, bytes; UINT32_MAX: what the program's options allow.
    std::uint32_t window_limit() const noexcept;
    std::uint32_t largest_in() const noexcept { return largest_in_; }
    // When data came and left last; kNoTime: never.
    Time last_data_rx() const noexcept { return last_data_rx_; }
    Time last_data_tx() const noexcept { return last_data_tx_; }

  private:
    bool bulk() const noexcept { return bulk_bytes_ > kBulkSegments * std::max(largest_in_, 1u); }
    void note_bulk() noexcept;
    [[gnu::cold]] void resumed(Time now) noexcept;
    void first_written(Time now) noexcept;
    void judge_opening(bool in_time) noexcept;

    static constexpr std::uint32_t kQuickAcks = 16;
    static constexpr std::uint32_t kBulkSegments = 64;  // a stream, from here on

    Tcb& tcb_;
    std::uint32_t due_bytes_ = 0;  // received since the last ACK left
    std::uint32_t acked_upto_ = 0;
    std::uint32_t quick_acks_;       // to send without delay, as Linux does when a connection begins
    std::uint32_t largest_in_ = 0;   // the peer's segments, as seen
    std::uint32_t bulk_bytes_ = 0;   // received without a pause in which the program sent data
    std::uint32_t bulk_period_ = 0;  // in which the ring was told of it last
    bool held_ = false;
    bool when_idle_ = false;
    bool fin_due_ = false;   // the peer's FIN is part of it
    bool open_due_ = false;  // it ends the handshake
    bool pingpong_ = false;  // requests and answers alternate: an ACK can wait for the answer
    Time last_data_rx_, last_data_tx_;
    Time duplicate_at_ = kNoTime;
    Time opened_at_ = kNoTime;  // kNoTime: the program has written, or the peer opened the connection
};

}  // namespace vma::tcp
