// SPDX-License-Identifier: BSD-2-Clause
// Rings over the rdma device: UDP between two of them.
#include <gmock/gmock.h>
#include <sys/uio.h>

#include <array>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "libvma/ring/ring.h"
#include "tests/verbs/sim_rdma/rdma_rig.h"

namespace rdma_rig {
namespace {

using namespace vma;
using testing::ElementsAre;

class RdmaRing : public RdmaPaths {};
INSTANTIATE_TEST_SUITE_P(Rdma, RdmaRing, testing::Bool(), path_name);

struct Sink final : ring::FrameSink {
    std::vector<std::string> payloads;
    bool deliver(ring::RxBuffer* buffer) noexcept override {
        std::string text(buffer->payload_length, '\0');
        iovec iov{text.data(), text.size()};
        EXPECT_EQ(buffer->copy_to(&iov, 1), text.size());
        payloads.push_back(text);
        buffer->release();
        return true;
    }
};

struct Host {
    Host(const RdmaConfig& config, const char* address) : address(address) {
        auto device = RdmaDevice::open(config);
        if (!device) throw std::runtime_error(device.error().what);
        auto made = ring::Ring::create(std::move(*device), {.huge_pages = false});
        if (!made) throw std::runtime_error(made.error().what);
        ring = std::move(*made);
    }
    void attach(std::uint16_t port, Sink& sink) {
        EXPECT_TRUE(
            ring->attach({IPPROTO_UDP, inet_addr(address), htons(port), 0, 0}, &sink, ring::Share::latest));
    }
    std::array<std::uint8_t, net::kUdpHeaders> headers(const Host& to, std::uint16_t port) const {
        std::array<std::uint8_t, net::kUdpHeaders> headers;
        net::build_udp_headers({.src_mac = ring->attr().mac,
                                .dst_mac = to.ring->attr().mac,
                                .src_addr = inet_addr(address),
                                .dst_addr = inet_addr(to.address),
                                .src_port = htons(1000),
                                .dst_port = htons(port)},
                               0, headers.data());
        return headers;
    }
    int send(const Host& to, std::uint16_t port, const std::string& payload) {
        iovec iov{const_cast<char*>(payload.data()), payload.size()};
        const int error = ring->send_udp(headers(to, port).data(), &iov, 1, payload.size());
        mlx5_sim::settle();
        return error;
    }
    unsigned send_many(const Host& to, std::uint16_t port, std::vector<std::string>& payloads) {
        std::vector<iovec> datagrams;
        for (std::string& p : payloads) datagrams.push_back({p.data(), p.size()});
        const unsigned sent = ring->send_udp_many(headers(to, port).data(), datagrams.data(),
                                                  static_cast<unsigned>(datagrams.size()));
        mlx5_sim::settle();
        return sent;
    }
    void poll() {
        for (int idle = 0; idle < 2;) idle = ring->poll() == 0 ? idle + 1 : 0;
        mlx5_sim::settle();
    }

    const char* address;
    std::unique_ptr<ring::Ring> ring;
};

TEST_P(RdmaRing, UdpBothWays) {
    Host a(config(kA), kIpA), b(config(kB), kIpB);
    Sink at_a, at_b;
    a.attach(3000, at_a);
    b.attach(2000, at_b);
    for (std::size_t i = 0; i < 500; i++) {
        const std::string payload = udp_frames::pattern(i * 37 % 1473, static_cast<unsigned>(i));
        ASSERT_EQ(a.send(b, 2000, payload), 0);
        b.poll();
        ASSERT_THAT(at_b.payloads, ElementsAre(payload));
        ASSERT_EQ(b.send(a, 3000, payload), 0);
        a.poll();
        ASSERT_THAT(at_a.payloads, ElementsAre(payload));
        at_a.payloads.clear();
        at_b.payloads.clear();
    }
}

TEST_P(RdmaRing, OnAVlan) {
    RdmaConfig first = config(kA), second = config(kB);
    first.vlan = second.vlan = 9;
    Host a(first, kIpA), b(second, kIpB);
    Sink sink;
    b.attach(2000, sink);
    std::vector<std::string> sent;
    for (std::size_t i = 0; i < 100; i++) {
        sent.push_back(udp_frames::pattern(i * 15 % 1473, static_cast<unsigned>(i)));
        ASSERT_EQ(a.send(b, 2000, sent.back()), 0);
        b.poll();
    }
    EXPECT_EQ(sink.payloads, sent);
}

// Short ones go inline, long ones from buffers, in one list.
TEST_P(RdmaRing, Lists) {
    for (const std::uint16_t vlan : {0, 9}) {
        RdmaConfig first = config(kA), second = config(kB);
        first.vlan = second.vlan = vlan;
        Host a(first, kIpA), b(second, kIpB);
        Sink sink;
        b.attach(2000, sink);
        EXPECT_GT(a.ring->attr().max_inline, net::kUdpHeaders);
        for (unsigned round = 0; round < 40; round++) {
            sink.payloads.clear();
            std::vector<std::string> payloads;
            for (std::size_t i = 0; i < 50; i++)
                payloads.push_back(udp_frames::pattern(i % 2 * 37 * i % 1473 + i % 5, round));
            ASSERT_EQ(a.send_many(b, 2000, payloads), payloads.size()) << vlan;
            b.poll();
            EXPECT_EQ(sink.payloads, payloads) << vlan;
        }
        EXPECT_EQ(a.ring->counters().tx_frames, 40u * 50u);
    }
}

// An adapter's rule without a VLAN matches frames with any tag. A priority tag says no VLAN.
TEST_P(RdmaRing, PriorityTagsAreUntagged) {
    Host b(config(kB), kIpB);
    Sink sink;
    b.attach(2000, sink);
    std::vector<std::string> sent;
    for (std::size_t length : {0, 1, 17, 18, 100, 1400, 1472}) {
        for (const std::uint8_t priority : {0, 1, 5, 7}) {
            sent.push_back(udp_frames::pattern(length, priority));
            udp_frames::Bytes frame = udp(sent.back());
            frame.insert(frame.begin() + 12, {0x81, 0, static_cast<std::uint8_t>(priority << 5), 0});
            ASSERT_TRUE(mlx5_sim::nic(kB).receive(frame));
            b.poll();
            for (const std::uint16_t id : {1, 100, 4095}) {  // of these, nobody is told
                frame[14] = static_cast<std::uint8_t>(priority << 5 | id >> 8);
                frame[15] = static_cast<std::uint8_t>(id);
                ASSERT_TRUE(mlx5_sim::nic(kB).receive(frame));
                b.poll();
            }
        }
    }
    EXPECT_EQ(sink.payloads, sent);
    // Two tags, a tag of a provider's bridge, and nothing behind the tag.
    for (const udp_frames::Bytes& tag :
         {udp_frames::Bytes{0x81, 0, 0, 0, 0x81, 0, 0, 0}, udp_frames::Bytes{0x88, 0xa8, 0, 0}}) {
        udp_frames::Bytes frame = udp("not for us");
        frame.insert(frame.begin() + 12, tag.begin(), tag.end());
        mlx5_sim::nic(kB).receive(frame);
        b.poll();
    }
    EXPECT_EQ(sink.payloads, sent);
}

// The specification lets an adapter stop a QP and say so by an event alone.
TEST_P(RdmaRing, QpThatFailsWithoutCompletionsComesBack) {
    for (const std::uint16_t vlan : {0, 9}) {
        RdmaConfig first = config(kA), second = config(kB);
        first.vlan = second.vlan = vlan;
        Host a(first, kIpA), b(second, kIpB);
        Sink at_a, at_b;
        a.attach(3000, at_a);
        b.attach(2000, at_b);
        for (std::uint64_t round = 1; round <= 3; round++) {
            for (Host* failing : {&a, &b}) {
                if (round == 2) a.send(b, 2000, "may get lost");
                mlx5_sim::silence_qps(failing == &a ? kA : kB);
                ASSERT_TRUE(eventually([&] { return failing->ring->counters().recoveries == round; }))
                    << round;
                a.poll();
                b.poll();
                at_a.payloads.clear();
                at_b.payloads.clear();
                for (int i = 0; i < 100; i++) {
                    ASSERT_EQ(a.send(b, 2000, "there"), 0);
                    b.poll();
                    ASSERT_EQ(b.send(a, 3000, "back"), 0);
                    a.poll();
                }
                EXPECT_EQ(at_b.payloads.size(), 100u);
                EXPECT_EQ(at_a.payloads.size(), 100u);
            }
        }
        EXPECT_FALSE(a.ring->failed());
        EXPECT_FALSE(b.ring->failed());
    }
}

// Completions and the event tell of one failure, which the ring mends once.
TEST_P(RdmaRing, QpThatFailsWithCompletionsIsMendedOnce) {
    Host a(config(kA), kIpA), b(config(kB), kIpB);
    Sink sink;
    b.attach(2000, sink);
    for (std::uint64_t round = 1; round <= 3; round++) {
        mlx5_sim::fail_qps(kB);
        mlx5_sim::settle();
        ASSERT_TRUE(eventually([&] {
            b.poll();
            return b.ring->counters().recoveries >= round;
        }));
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // a second recovery would come here
        b.poll();
        EXPECT_EQ(b.ring->counters().recoveries, round);
        sink.payloads.clear();
        ASSERT_EQ(a.send(b, 2000, "there"), 0);
        b.poll();
        EXPECT_THAT(sink.payloads, ElementsAre("there"));
    }
    EXPECT_FALSE(b.ring->failed());
}

}  // namespace
}  // namespace rdma_rig
