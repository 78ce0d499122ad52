// SPDX-License-Identifier: BSD-2-Clause
// A super-frame of datagrams becomes these datagrams again, however the device cuts it into buffers.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/ring/ring_hosts.h"

namespace vma::ring {
namespace {

using namespace ring_hosts;

constexpr std::uint16_t kType = 0x88b5;

Frame super_frame(const std::string& payload, std::uint16_t datagram) {
    Udp udp;
    udp.payload = payload;
    Frame frame = make(udp);
    put16(frame, 12, kType);
    std::memcpy(&frame[kUdp + 6], &datagram, sizeof datagram);
    return frame;
}

std::vector<Frame> pieces_of(const Frame& frame, std::size_t length) {
    std::vector<Frame> out;
    for (std::size_t at = 0; at < frame.size(); at += length)
        out.emplace_back(frame.begin() + static_cast<std::ptrdiff_t>(at),
                         frame.begin() + static_cast<std::ptrdiff_t>(std::min(at + length, frame.size())));
    return out;
}

std::vector<std::string> cut(const std::string& all, std::size_t length) {
    std::vector<std::string> out;
    for (std::size_t at = 0; at < all.size(); at += length) out.push_back(all.substr(at, length));
    return out;
}

class Datagrams : public testing::Test {
  protected:
    void receive(const std::string& payload, std::uint16_t datagram, std::size_t piece = 1792) {
        b.device->receive_pieces(pieces_of(super_frame(payload, datagram), piece));
        b.poll();
    }

    Wire wire;
    Host b{wire, kB, {.datagrams_type = kType}};
    Sink sink;
};

TEST_F(Datagrams, AnyLengthsInAnyPieces) {
    b.attach(2000, sink);
    std::size_t sent = 0;
    for (const std::size_t piece : {42u, 43u, 100u, 1000u, 1792u})
        for (const std::uint16_t datagram : {1, 2, 57, 58, 59, 999, 1000, 1472, 1750, 1751, 3000})
            for (const std::size_t total : {1u, 2u, 60u, 1000u, 2500u}) {
                if (total > 120u * datagram || total > 50 * piece) continue;
                sink.payloads.clear();
                receive(pattern(total), datagram, piece);
                EXPECT_EQ(sink.payloads, cut(pattern(total), datagram))
                    << piece << ' ' << datagram << ' ' << total;
                sent += sink.payloads.size();
                EXPECT_EQ(sink.last.src_port, htons(1000));
                EXPECT_EQ(sink.last.payload_length, sink.payloads.back().size());
                b.expect_no_leak();
            }
    EXPECT_EQ(b.ring->counters().rx_frames, sent);
}

// Headers of a datagram's own, for what passes a frame on.
TEST_F(Datagrams, EachIsAFrame) {
    Sink holds(Sink::hold);
    b.attach(2000, holds);
    receive(pattern(250), 100);
    ASSERT_EQ(holds.held.size(), 3u);
    for (std::size_t i = 0; i < 3; i++) {
        const RxBuffer& r = *holds.held[i];
        const Frame frame(r.frame, r.frame + r.length);
        const std::size_t length = i < 2 ? 100 : 50;
        EXPECT_EQ(frame.size(), kPayload + length);
        EXPECT_EQ(get16(frame, kIp + 2), 28 + length);
        EXPECT_EQ(get16(frame, kUdp + 4), 8 + length);
        EXPECT_EQ(slow_sum(&frame[kIp], 20), 0xffffu);
        EXPECT_EQ(get16(frame, kUdp + 6), 0u) << "no checksum (RFC 768): the whole one's was good";
    }
    b.expect_no_leak(3);
    holds.release_all();
    b.expect_no_leak();
}

TEST_F(Datagrams, BadOnesAreNone) {
    b.attach(2000, sink);
    Frame frame = super_frame(pattern(500), 100);
    put16(frame, kUdp + 4, 9000);
    b.device->receive_pieces({frame});
    frame = super_frame(pattern(500), 0);
    b.device->receive_pieces({frame});
    b.device->receive_pieces({Frame(frame.begin(), frame.begin() + 30)});
    b.poll();
    EXPECT_TRUE(sink.payloads.empty());
    EXPECT_EQ(b.bad(Drop::bad_l4_length), 1u);
    EXPECT_EQ(b.bad(Drop::bad_ethertype) + b.bad(Drop::short_frame), 2u);
    b.expect_no_leak();
    // Another device's frames of this type are none.
    Host other(wire, "198.18.0.3");
    Sink of_other;
    other.attach(2000, of_other);
    other.device->receive_pieces({super_frame(pattern(500), 100)});
    other.poll();
    EXPECT_TRUE(of_other.payloads.empty());
    EXPECT_EQ(other.bad(Drop::bad_ethertype), 1u);
}

// A peer says how long its datagrams are. Tiny ones must not take all buffers, nor this thread's time.
TEST_F(Datagrams, ManyTinyOnes) {
    Sink holds(Sink::hold);
    b.attach(2000, holds);
    receive(pattern(60000), 1);
    EXPECT_EQ(holds.payloads.size(), 128u);
    EXPECT_EQ(b.ring->counters().rx_no_buffer, 60000u - 128);
    for (int i = 0; i < 100; i++) receive(pattern(1280), 10);
    EXPECT_LT(holds.held.size(), b.ring->buffer_counts().rx_total);
    EXPECT_GE(b.device->receives_posted(), 16u) << "others receive";
    b.expect_no_leak(holds.held.size());
    holds.release_all();
    b.expect_no_leak();
    holds.payloads.clear();
    receive(pattern(1000), 100);
    EXPECT_EQ(holds.payloads, cut(pattern(1000), 100));
}

TEST_F(Datagrams, NobodyWantsThem) {
    receive(pattern(500), 100);
    EXPECT_EQ(b.ring->counters().rx_no_socket, 5u);
    Sink refuses(Sink::refuse);
    b.attach(2000, refuses);
    receive(pattern(500), 100);
    EXPECT_EQ(b.ring->counters().rx_refused, 5u);
    b.expect_no_leak();
}

}  // namespace
}  // namespace vma::ring
