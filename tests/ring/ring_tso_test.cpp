// SPDX-License-Identifier: BSD-2-Clause
// Segments that become one TSO request: what is on the wire must be what it would be without.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "ring_hosts.h"
#include "tests/tcp/tcp_hosts.h"

namespace vma::ring {
namespace {

using namespace ring_hosts;

constexpr std::uint8_t kAck = 0x10, kPsh = 0x08, kFin = 0x01;

struct Segment {
    std::uint32_t seq = 1;
    std::size_t length = 1000;
    std::uint8_t flags = kAck;
    std::uint32_t ack = 77;
    std::uint16_t port = 5000;
    std::uint32_t stamp = 9;
};

// Sends the segments within one Gather, and returns the frames of the wire.
struct Sent {
    std::vector<Frame> frames;
    std::uint64_t requests = 0;
};
Sent send_all(const std::vector<Segment>& segments, WireConfig config, bool udp_between = false) {
    Wire wire(11);
    Sent sent;
    config.tx_checksum = TxChecksum::complete;
    Host a(wire, kA, config), b(wire, kB);
    wire.set_hook([&](const WireDevice&, std::vector<Frame>& frames) {
        sent.frames.insert(sent.frames.end(), frames.begin(), frames.end());
    });
    std::vector<std::string> payloads;  // stay where they are until the Gather ends
    payloads.reserve(segments.size());
    {
        Ring::Gather gather(a.ring.get());
        for (const Segment& s : segments) {
            std::uint8_t headers[34 + 32]{};
            net::UdpTemplate t;
            t.src_mac = a.device->attr().mac;
            t.dst_mac = b.device->attr().mac;
            t.src_addr = inet_addr(kA);
            t.dst_addr = inet_addr(kB);
            net::build_ip_headers(t, IPPROTO_TCP, headers);
            auto* h = reinterpret_cast<net::TcpHeader*>(headers + 34);
            h->src_port = htons(s.port);
            h->dst_port = htons(80);
            h->seq = htonl(s.seq);
            h->ack = htonl(s.ack);
            h->flags = s.flags;
            h->window = htons(1234);
            h->data_offset = 8 << 4;
            const std::uint32_t options[3]{htonl(0x0101080a), htonl(s.stamp), htonl(3)};
            std::memcpy(headers + 54, options, sizeof options);
            std::string& payload = payloads.emplace_back(s.length, '\0');
            for (std::size_t i = 0; i < payload.size(); i++) payload[i] = static_cast<char>((s.seq + i) * 7);
            // Two pieces, so that copying has seams.
            iovec iov[2]{{payload.data(), s.length / 3},
                         {payload.data() + s.length / 3, s.length - s.length / 3}};
            EXPECT_EQ(a.ring->send_tcp(headers, sizeof headers, iov, 2, s.length), 0);
            if (udp_between) {
                EXPECT_EQ(a.send(b, 2000, "between"), 0);
            }
        }
    }
    sent.requests = a.device->tso_requests();
    a.expect_no_leak();
    return sent;
}

// The same frames with and without TSO; returns the number of TSO requests.
std::uint64_t compare(const std::vector<Segment>& segments, WireConfig config = {},
                      bool udp_between = false) {
    const std::uint32_t max_tso = config.max_tso != 0 ? config.max_tso : 65000;
    config.max_tso = 0;
    const Sent plain = send_all(segments, config, udp_between);
    EXPECT_EQ(plain.requests, 0u);
    EXPECT_EQ(plain.frames.size(), segments.size() * (udp_between ? 2 : 1));
    config.max_tso = max_tso;
    const Sent tso = send_all(segments, config, udp_between);
    EXPECT_EQ(tso.frames.size(), plain.frames.size());
    EXPECT_TRUE(tso.frames == plain.frames);
    return tso.requests;
}

std::vector<Segment> stream(std::size_t count, std::size_t mss = 1000, std::size_t last = 1000,
                            std::uint8_t last_flags = kAck) {
    std::vector<Segment> list;
    for (std::size_t i = 0; i < count; i++) list.push_back({static_cast<std::uint32_t>(1 + i * mss), mss});
    list.back().length = last;
    list.back().flags = last_flags;
    return list;
}

TEST(RingTso, AStreamIsOneRequest) {
    EXPECT_EQ(compare(stream(12)), 1u);
    EXPECT_EQ(compare(stream(12, 1448, 1448, kAck | kPsh)), 1u);
    EXPECT_EQ(compare(stream(2)), 1u);
    EXPECT_EQ(compare(stream(9, 1000, 1, kAck | kPsh | kFin)), 1u);
}

TEST(RingTso, OneSegmentIsAnOrdinaryFrame) {
    EXPECT_EQ(compare(stream(1)), 0u);
    EXPECT_EQ(compare(stream(1, 1000, 5, kAck | kPsh), {.max_inline = 200}), 0u);
}

TEST(RingTso, WhatDiffersIsSentApart) {
    auto list = stream(4);
    list[2].ack = list[3].ack = 78;
    EXPECT_EQ(compare(list), 2u);
    list = stream(4);
    list[2].stamp = list[3].stamp = 10;
    EXPECT_EQ(compare(list), 2u);
    list = stream(4);
    list[2].port = list[3].port = 5001;
    EXPECT_EQ(compare(list), 2u);
    list = stream(4);
    list[2].seq += 5, list[3].seq += 5;  // a gap
    EXPECT_EQ(compare(list), 2u);
    list = stream(4);
    list[1].flags |= kPsh;
    EXPECT_EQ(compare(list), 2u);
    list = stream(4);
    list[1].length = 900, list[2].seq -= 100, list[3].seq -= 100;  // a short one in the middle
    EXPECT_EQ(compare(list), 2u);
    list = stream(3);
    list[1].length = 1100, list[2].seq += 100;  // a longer one
    EXPECT_EQ(compare(list), 1u);
}

TEST(RingTso, LimitsOfTheDevice) {
    EXPECT_EQ(compare(stream(20), {.max_tso = 5000}), 4u);
    EXPECT_EQ(compare(stream(40), {.max_send_sge = 4}),
              6u);  // 4 buffers of 1984 bytes hold the headers and 7 segments
}

// Payload that the device takes from where it is.
TEST(RingTso, InPlace) {
    const WireConfig config{.tso_copies = true};
    EXPECT_EQ(compare(stream(12), config), 1u);
    EXPECT_EQ(compare(stream(1), config), 0u);
    EXPECT_EQ(compare(stream(9, 1000, 1, kAck | kPsh | kFin), config), 1u);
    EXPECT_EQ(compare(stream(80), config), 3u) << "32 segments of two pieces each in a request";
    auto list = stream(4);
    list[2].port = list[3].port = 5001;
    EXPECT_EQ(compare(list, config), 2u);
    list = stream(5);
    list[1].flags |= kPsh;
    EXPECT_EQ(compare(list, config), 2u);
    EXPECT_EQ(compare(stream(5), config, true), 0u) << "lone segments are ordinary frames, in order";
    EXPECT_EQ(compare(stream(20), {.max_tso = 5000, .tso_copies = true}), 4u);
}

// Segments of one connection from a to b, each behind the one before.
class Successive {
  public:
    Successive(Host& a, Host& b, std::size_t length) : a_(a), payload_(length, 'x') {
        net::build_ip_headers({.src_mac = a.device->attr().mac, .dst_mac = b.device->attr().mac}, IPPROTO_TCP,
                              headers_);
        headers_[34 + 12] = 5 << 4;
    }
    int send() {
        const std::uint32_t seq = htonl(seq_);
        std::memcpy(headers_ + 38, &seq, 4);
        seq_ += static_cast<std::uint32_t>(payload_.size());
        const iovec iov{payload_.data(), payload_.size()};
        return a_.ring->send_tcp(headers_, sizeof headers_, &iov, 1, payload_.size());
    }

  private:
    Host& a_;
    std::string payload_;
    std::uint8_t headers_[54]{};
    std::uint32_t seq_ = 0;
};

// What another thread sends meanwhile is not kept: its payload would be gone.
TEST(RingTso, InPlaceKeepsTheGatherersSegmentsOnly) {
    Wire wire(13);
    Host a(wire, kA, {.tx_checksum = TxChecksum::complete, .max_tso = 60000, .tso_copies = true}),
        b(wire, kB);
    std::size_t frames_seen = 0;
    wire.set_hook([&](const WireDevice&, std::vector<Frame>& frames) { frames_seen += frames.size(); });
    Successive segments(a, b, 1000);
    Ring::Gather gather(a.ring.get());
    std::thread([&] { EXPECT_EQ(segments.send(), 0); }).join();
    a.ring->flush();
    EXPECT_EQ(frames_seen, 1u);
}

// A device without room for a while: the request is lost, and counted.
TEST(RingTso, InPlaceWithoutRoomIsLost) {
    Wire wire(14);
    Host a(wire, kA, {.tx_checksum = TxChecksum::complete, .max_tso = 60000, .tso_copies = true}),
        b(wire, kB);
    Successive segments(a, b, 1000);
    a.device->refuse_sends(true);
    {
        Ring::Gather gather(a.ring.get());
        for (int i = 0; i < 3; i++) EXPECT_EQ(segments.send(), 0);
    }
    a.device->refuse_sends(false);
    EXPECT_EQ(a.ring->counters().tx_lost, 3u);
    a.expect_no_leak();
}

TEST(RingTso, OthersComeInBetweenInOrder) { EXPECT_EQ(compare(stream(5), {}, true), 0u); }

TEST(RingTso, MoreThanTheQueueHolds) {
    Wire wire(12);
    Host a(wire, kA, {.max_send_wr = 128, .tx_checksum = TxChecksum::complete, .max_tso = 60000}),
        b(wire, kB);
    a.device->hold_completions(true);
    Successive segments(a, b, 1400);
    int error = 0;
    {
        Ring::Gather gather(a.ring.get());
        for (int i = 0; i < 500 && error == 0; i++) error = segments.send();
    }
    EXPECT_EQ(error, ENOBUFS);
    a.device->hold_completions(false);
    a.expect_no_leak();
}

}  // namespace
}  // namespace vma::ring

namespace vma::tcp::test {
namespace {

using verbs::wire::Frame;

// What a segment is, but for where its connection began to count.
struct Shape {
    std::uint32_t seq = 0;
    std::size_t payload = 0;
    std::uint8_t flags = 0;
    bool from_client = false;
    friend bool operator==(const Shape&, const Shape&) = default;
};

// A whole transfer over a wire that loses frames: the same segments in the same order, with TSO and without.
// The writes are short enough not to become long segments, which leave by rules of their own.
TEST(TcpTso, ATransferIsTheSameOnTheWire) {
    std::vector<Shape> seen[3];
    for (int tso = 0; tso < 3; tso++) {
        verbs::wire::WireConfig config;
        config.tx_checksum = verbs::wire::TxChecksum::complete;
        config.max_tso = tso != 0 ? 64000 : 0;
        config.tso_copies = tso == 2;
        World world(99, config);
        std::uint32_t first[2] = {};
        bool known[2] = {};
        world.wire.set_hook([&](const verbs::wire::WireDevice& from, std::vector<Frame>& frames) {
            net::ParsedFrame f;
            ASSERT_EQ(net::parse(frames[0], false, f), net::Drop::none);
            const auto& h = *reinterpret_cast<const net::TcpHeader*>(frames[0].data() + f.l4_offset);
            const bool client = &from == world.a->device;
            if (!known[client]) first[client] = ntohl(h.seq), known[client] = true;
            seen[tso].push_back({ntohl(h.seq) - first[client], f.payload_length, h.flags, client});
        });
        Connection *client, *server;
        world.pair(client, server);
        world.wire.set_faults(*world.a->device, {.loss = 0.02, .delay_ns = 1'000'000});
        std::string data(400'000, '\0');
        for (std::size_t i = 0; i < data.size(); i++) data[i] = static_cast<char>(i * 31 >> 3);
        std::string got;
        std::size_t sent = 0;
        EXPECT_TRUE(world.until([&] {
            if (sent < data.size())
                if (const ssize_t n = send(client, data.substr(sent, 8'000)); n > 0)
                    sent += static_cast<std::size_t>(n);
            got += receive(server);
            return got.size() == data.size();
        }));
        EXPECT_TRUE(got == data);
        if (tso != 0) {
            EXPECT_GT(world.a->device->tso_requests(), 5u);
        }
        world.wire.set_hook(nullptr);
    }
    EXPECT_TRUE(seen[0] == seen[1]);
    EXPECT_TRUE(seen[0] == seen[2]);
}

}  // namespace
}  // namespace vma::tcp::test
