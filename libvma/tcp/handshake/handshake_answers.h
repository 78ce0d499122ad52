// SPDX-License-Identifier: BSD-2-Clause
// What a listener sends itself: SYN-ACKs, ACKs and resets, without a connection. Answers to the segments of
// one batch wait for its end and share a kick. All functions may be called by any thread, without the
// listener's lock.
#pragma once

#include <array>
#include <atomic>

#include "libvma/runtime/lock.h"
#include "libvma/tcp/handshake/arrived_segment.h"
#include "libvma/tcp/handshake/half_open.h"
#include "libvma/tcp/handshake/syn.h"
#include "libvma/tcp/options.h"
#include "libvma/tcp/path.h"

namespace vma::tcp {

class Listener;

// The MSS to announce where frames have `mtu` bytes.
std::uint16_t announced_mss(std::uint32_t mtu, const Options& options) noexcept;

class HandshakeAnswers {
  public:
    HandshakeAnswers(Listener& listener, PathSource& paths) noexcept : listener_(listener), paths_(paths) {}

    bool find_way(const ArrivedSegment& segment, const Options& options, bool look_up,
                  ReturnPath& way) noexcept;
    // `asked`: the ring whose segment is answered, with whose batch the answer leaves. Null: now.
    void send_syn_ack(const Handshake& handshake, const ReturnPath& way, const Options& options, bool cookie,
                      ring::Ring* asked) noexcept;
    void send_ack(const Handshake& handshake, const ReturnPath& way, const Options& options,
                  ring::Ring* asked) noexcept;
    void send(const net::Endpoints& ends, const ReturnPath& way, const Options& options,
              const std::uint8_t* segment, std::size_t length, ring::Ring* asked) noexcept;
    // The batch of `asked` is over.
    void send_batch(ring::Ring& asked) noexcept;

  private:
    static constexpr std::size_t kFrameHeaders = sizeof(net::EthernetHeader) + sizeof(net::Ipv4Header);

    // An answer that waits for the end of its batch. `asked` is null where it has left.
    struct Answer {
        ring::Ring* asked = nullptr;
        ring::Ring* by = nullptr;
        std::size_t length = 0;
        std::array<std::uint8_t, kFrameHeaders + kMaxHandshakeBytes> bytes;
    };
    bool keep(const Answer& answer, bool& first) noexcept;
    bool take(const ring::Ring& asked, Answer& answer) noexcept;

    Listener& listener_;
    PathSource& paths_;
    Lock lock_;  // inside it no other is taken
    std::array<Answer, 32> list_;
    std::size_t count_ = 0;
    std::atomic<std::uint32_t> known_mtu_{0};  // of the last path that was looked up
};

}  // namespace vma::tcp
