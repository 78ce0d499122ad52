// SPDX-License-Identifier: BSD-2-Clause
// Datagrams that a ring posts as one list: what the device takes, and what it refuses.
#include <errno.h>
#include <gtest/gtest.h>
#include <sys/uio.h>

#include <climits>
#include <cstdint>
#include <string>
#include <vector>

#include "ring_hosts.h"

namespace vma::ring {
namespace {

using namespace ring_hosts;

constexpr unsigned kDatagrams = 80;  // two full lists and a part of one
constexpr std::uint32_t kInline = 100;

// Numbers of datagrams around the ends of lists.
constexpr unsigned kNumbers[] = {0, 1, 7, 31, 32, 33, 79};

// A sender on a device, and a receiver.
struct Pair {
    explicit Pair(const WireConfig& config) : a(wire, kA, config) { b.attach(2000, sink); }

    Wire wire{7};
    Host a, b{wire, kB};
    Sink sink;
};

class UdpChains : public testing::Test {
  protected:
    // Short and long ones in turn, some empty, each with its number.
    UdpChains() {
        for (unsigned i = 0; i < kDatagrams; i++)
            texts.push_back(i % 16 == 15 ? "" : std::to_string(i) + std::string(i % 3 * 100, 'x'));
        for (std::string& text : texts) datagrams.push_back({text.data(), text.size()});
    }
    // Sends from number `from` on. Returns how many the ring took.
    unsigned send(Host& a, Host& b, unsigned from = 0) {
        const unsigned sent = a.ring->send_udp_many(a.headers(b, 1000, 2000).data(), datagrams.data() + from,
                                                    kDatagrams - from);
        a.ring->flush();
        b.poll();
        return sent;
    }
    std::vector<std::string> first(unsigned count) const { return {texts.begin(), texts.begin() + count}; }
    std::uint64_t bytes(unsigned count) const {
        std::uint64_t sum = 0;
        for (unsigned i = 0; i < count; i++) sum += net::kUdpHeaders + texts[i].size();
        return sum;
    }
    // What the first `count` leave behind, however often the ring was asked.
    void expect_sent(Host& a, const Sink& sink, unsigned count) {
        EXPECT_EQ(sink.payloads, first(count));
        EXPECT_EQ(a.ring->counters().tx_frames, count);
        EXPECT_EQ(a.ring->counters().tx_bytes, bytes(count));
        EXPECT_EQ(a.ring->counters().tx_lost, 0u);
        a.expect_no_leak();
    }
    // Devices with and without inline requests and lazy transmission.
    static std::vector<WireConfig> devices() {
        return {{.max_send_wr = 128},
                {.max_send_wr = 128, .max_inline = kInline},
                {.max_send_wr = 128, .lazy_tx = LazyTx::fake_clock},
                {.max_send_wr = 128, .lazy_tx = LazyTx::fake_clock, .max_inline = kInline}};
    }

    std::vector<std::string> texts;
    std::vector<iovec> datagrams;
};

TEST_F(UdpChains, ShortOnesGoInlineAndKeepNoBuffer) {
    Pair pair({.max_send_wr = 128, .max_inline = kInline});
    auto& [wire, a, b, sink] = pair;
    unsigned fits = 0;
    for (const std::string& text : texts) fits += net::kUdpHeaders + text.size() <= kInline;
    ASSERT_GT(fits, 0u);
    ASSERT_LT(fits, kDatagrams);
    for (unsigned round = 1; round <= 50; round++) {
        sink.payloads.clear();
        ASSERT_EQ(send(a, b), kDatagrams);
        EXPECT_EQ(sink.payloads, texts);
        EXPECT_EQ(a.device->inline_requests(), round * fits);
    }
    a.expect_no_leak();
}

// The call says how many went. These arrive once and in order, and a further call sends the others.
TEST_F(UdpChains, ADeviceThatRefusesTheRest) {
    for (const int error : {ENOMEM, EAGAIN})
        for (const WireConfig& config : devices())
            for (const unsigned n : kNumbers) {
                SCOPED_TRACE(std::to_string(error) + ", " + std::to_string(n));
                Pair pair(config);
                auto& [wire, a, b, sink] = pair;
                a.device->refuse_some_sends(n, UINT_MAX, error);
                EXPECT_EQ(send(a, b), n);
                expect_sent(a, sink, n);
                EXPECT_EQ(a.ring->counters().tx_no_buffer, 1u);
                EXPECT_EQ(send(a, b, n), 0u);
                expect_sent(a, sink, n);
                a.device->refuse_some_sends(0, 0, 0);
                EXPECT_EQ(send(a, b, n), kDatagrams - n);
                expect_sent(a, sink, kDatagrams);
            }
}

// The rest of a list is posted anew, and then its first datagram alone. Where the device said that its queue
// is full (ENOMEM), that one is tried again and again.
TEST_F(UdpChains, ADeviceThatRefusesForAMoment) {
    for (const int error : {ENOMEM, EAGAIN})
        for (const WireConfig& config : devices())
            for (const unsigned times : {1u, error == ENOMEM ? 5u : 1u})
                for (const unsigned n : kNumbers) {
                    SCOPED_TRACE(std::to_string(error) + ", " + std::to_string(n));
                    Pair pair(config);
                    auto& [wire, a, b, sink] = pair;
                    a.device->refuse_some_sends(n, times, error);
                    EXPECT_EQ(send(a, b), kDatagrams);
                    expect_sent(a, sink, kDatagrams);
                    EXPECT_EQ(a.ring->counters().tx_no_buffer, 0u);
                }
}

// The queue is full in the midst of a list, and the device has no completions to make room with.
TEST_F(UdpChains, AFullQueue) {
    for (const std::uint32_t max_inline : {0u, kInline}) {
        Pair pair({.max_send_wr = 64, .max_inline = max_inline});
        auto& [wire, a, b, sink] = pair;
        a.device->hold_completions(true);
        const unsigned sent = send(a, b);
        EXPECT_GT(sent, 0u);
        EXPECT_LE(sent, 64u);
        EXPECT_EQ(sink.payloads, first(sent));
        a.device->hold_completions(false);
        EXPECT_EQ(send(a, b, sent), kDatagrams - sent);
        expect_sent(a, sink, kDatagrams);
    }
}

}  // namespace
}  // namespace vma::ring
