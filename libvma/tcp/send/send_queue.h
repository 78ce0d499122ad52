// SPDX-License-Identifier: BSD-2-Clause
// The send queue: what the program has written, from the first byte that is not acknowledged on.
//
// The segments are in lwIP's lists, unacked and unsent, since lwIP frees them when they are acknowledged.
// Here are the ends of those lists, and all that makes, fills, cuts and moves segments. Under the
// connection's lock.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "libvma/tcp/lwip/types.h"

namespace vma::tcp {

struct Tcb;

class SendQueue {
  public:
    explicit SendQueue(Tcb& tcb) noexcept : tcb_(tcb) {}

    // Bytes that wait to be acknowledged, sent or not; bytes that were not sent; and the most that may wait.
    inline std::uint32_t queued() const noexcept;
    inline std::uint32_t unsent() const noexcept;
    inline std::uint32_t limit() const noexcept;
    inline std::uint32_t full_limit() const noexcept;  // the same while memory is not scarce
    // Sequence number behind the last byte written.
    std::uint32_t data_end() const noexcept { return data_end_; }

    // The handshake is done: the first byte gets the number `seq`.
    void start(std::uint32_t seq) noexcept { data_end_ = seq; }
    // The SYN-ACK that lwIP has queued is under way already.
    void adopt_syn_ack() noexcept;
    // A write from here on, in bytes, gets long segments, and is no piece of a burst.
    static constexpr std::size_t kLongWrite = 8u << 10;
    // From here on a write gets blocks of the large kind. So a block is not more than twice what is written,
    // but for the last one of such a write, which waits for the next.
    static constexpr std::size_t kVeryLongWrite = 32u << 10;

    // Appends up to `length` bytes. `whole`: segments have room for what follows soon. `longest`: bytes that
    // may leave as one super-frame; 0: there are none. Returns how many.
    std::size_t append(const iovec* iov, std::size_t length, bool whole, std::uint32_t longest) noexcept;
    // What follows gets a segment of its own.
    void end_record() noexcept { tail_room_ = 0; }
    // Cuts a segment behind `length` bytes. False: no memory.
    bool split(lwip::Segment* segment, std::uint32_t length) noexcept;
    // Cuts what has become too long for the path; what of it is under way is lost for certain.
    void resegment() noexcept;
    // Cuts what has left as super-frames into frames again: the peer reports frames.
    void cut_sent() noexcept;
    // Has the last unsent segment room for another frame?
    bool tail_takes_more() const noexcept;

    // The first unsent segment has been sent.
    inline void first_sent() noexcept;
    lwip::Segment* last_sent() const noexcept { return unacked_last_; }
    // lwIP has freed segments; all of them, in forget().
    inline void freed() noexcept;
    void forget() noexcept {
        tail_ = unacked_last_ = first_long_ = nullptr;
        tail_room_ = 0;
    }

  private:
    bool add_segment(std::uint32_t size) noexcept;
    bool add_long_segment(bool large, std::uint32_t longest) noexcept;
    void add(lwip::Segment* segment, std::uint32_t room) noexcept;
    bool cut_from(lwip::Segment* segment, std::uint32_t mss) noexcept;

    Tcb& tcb_;
    lwip::Segment* tail_ = nullptr;  // the last unsent segment if data may be appended to it
    lwip::Segment* unacked_last_ = nullptr;
    std::uint32_t tail_room_ = 0;
    std::uint32_t data_end_ = 0;
    // Of those under way none before it is longer than a frame, and it began with this number. So a peer that
    // makes the sender cut after each super-frame does not make it walk through all that is under way.
    lwip::Segment* first_long_ = nullptr;
    std::uint32_t long_seq_ = 0;
};

}  // namespace vma::tcp
