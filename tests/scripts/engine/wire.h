// SPDX-License-Identifier: BSD-2-Clause
// The peer's end of the wire: a packet socket on host a's interface, for any number of scripts at once. Each
// script has an address that host a's kernel does not own, so that nobody else answers.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/attacker/segment.h"
#include "tests/support/hosts/two_hosts.h"

namespace scripts {

using WallTime = std::chrono::time_point<std::chrono::system_clock, std::chrono::nanoseconds>;
WallTime now();

struct Heard {
    WallTime when;  // as the interface of the peer received it
    attacker::Segment segment;
    std::uint8_t ecn = 0;  // of the IP header
};
struct Recorded {
    WallTime when;
    attacker::Frame frame;
};

// What came for one address, in order, and all frames from and to it.
class Mailbox {
  public:
    void put(Heard heard);
    void record(WallTime when, std::span<const std::uint8_t> frame);
    // Waits until `limit`; the next segment stays if it is peeked at only.
    std::optional<Heard> next(WallTime limit, bool peek = false);
    std::vector<Recorded> record() const;

  private:
    mutable std::mutex lock_;
    std::condition_variable come_;
    std::deque<Heard> heard_;
    std::vector<Recorded> record_;
};

class RawWire {
  public:
    explicit RawWire(const testing_support::TwoHosts& hosts);
    ~RawWire();
    RawWire(const RawWire&) = delete;
    RawWire& operator=(const RawWire&) = delete;

    void know(in_addr_t address, Mailbox& mailbox);
    void forget(in_addr_t address);
    // From the address, whose mailbox records it too. Returns when it left.
    WallTime send(in_addr_t from, const attacker::Frame& frame);

    static constexpr attacker::Mac kMine{2, 0, 0x5e, 0x10, 0x66, 0x66}, kTheirs{2, 0, 0x5e, 0x10, 1, 2};

  private:
    void listen();
    void take(std::span<const std::uint8_t> frame, WallTime when);

    testing_support::Fd socket_, stop_;
    std::mutex lock_;
    std::map<in_addr_t, Mailbox*> mailboxes_;
    std::thread listener_;
};

// Writes frames as a capture that tcpdump and Wireshark read.
void write_capture(const std::string& path, const std::vector<Recorded>& frames);

}  // namespace scripts
