// SPDX-License-Identifier: BSD-2-Clause
// The ring on the test wire: what it delivers and to whom, what it drops and how it says so, and where its
// buffers go. The device is strict (see wire_device.h), so every test ends with the question whether it saw a
// violation.
#include "libvma/ring/ring.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "libvma/verbs/lazy_kick.h"
#include "tests/ring/ring_hosts.h"
#include "tests/support/wire/wire_device.h"

namespace vma::ring {
namespace {

using namespace ring_hosts;

class RingTest : public testing::Test {
  protected:
    Wire wire{42};
};

Udp datagram(const Host& to, std::string payload) {
    Udp u;
    u.dst_mac = to.device->attr().mac;
    u.dst = to.address;
    u.payload = std::move(payload);
    return u;
}

// ---- both directions ----

TEST_F(RingTest, DatagramArrivesWithAllThatIsKnownOfIt) {
    Host a(wire, kA), b(wire, kB);
    Sink sink;
    b.attach(2000, sink);
    EXPECT_EQ(a.send(b, 2000, "hello"), 0);
    EXPECT_EQ(b.ring->poll(), 1u);
    EXPECT_EQ(sink.payloads, std::vector<std::string>{"hello"});
    EXPECT_EQ(sink.last.src_addr, inet_addr(kA));
    EXPECT_EQ(sink.last.dst_addr, inet_addr(kB));
    EXPECT_EQ(sink.last.src_port, htons(1000));
    EXPECT_EQ(sink.last.dst_port, htons(2000));
    EXPECT_EQ(sink.last.tos, 0x10);
    EXPECT_EQ(sink.last.ttl, 33);
    EXPECT_EQ(sink.last.arrived, clock::WallTime());
    EXPECT_EQ(b.ring->poll(), 0u);
    EXPECT_EQ(b.device->kernel_frames(), 0u);
}

TEST_F(RingTest, TimestampsWhileSomebodyWantsThem) {
    Host a(wire, kA), b(wire, kB);
    Sink sink;
    b.attach(2000, sink);
    Ring::want_timestamps(true);
    a.send(b, 2000, "x");
    b.poll();
    Ring::want_timestamps(false);
    EXPECT_GT(sink.last.arrived, clock::WallTime(std::chrono::seconds(1'600'000'000)));
    a.send(b, 2000, "x");
    b.poll();
    EXPECT_EQ(sink.last.arrived, clock::WallTime());
}

TEST_F(RingTest, UnmatchedFramesStayWithTheKernel) {
    Host a(wire, kA), b(wire, kB);
    Sink sink;
    b.attach(2000, sink);
    a.send(b, 2001, "for the kernel");
    b.poll();
    EXPECT_TRUE(sink.payloads.empty());
    auto kernel = b.device->take_kernel_frames();
    ASSERT_EQ(kernel.size(), 1u);
    EXPECT_EQ(payload_of(kernel[0]), "for the kernel");
}

// Sizes around every boundary, in every cut into iovecs, with and without checksum offload: the peer's kernel
// must accept the frame, and a ring must give the same bytes.
void sizes_and_vectors(Wire& wire, TxChecksum checksum, std::uint32_t mtu) {
    const WireConfig config{.mtu = mtu, .tx_checksum = checksum};
    Host a(wire, kA, config), b(wire, kB, config);
    Sink sink;
    b.attach(2000, sink);
    const std::size_t room = config.chunk_size - config.tx_headroom;
    std::set<std::size_t> sizes = {0, 1, 2, 3, 17, 18, 19, 255, 256, 257, 1000, 1001, 1471, 1472};
    for (std::size_t k = 1; k * room < mtu; k++)
        for (std::size_t d : {0u, 1u, 2u, 41u, 42u, 43u}) sizes.insert({k * room - d, k * room + d});
    sizes.insert({mtu - 28, mtu - 29});
    std::erase_if(sizes, [&](std::size_t s) { return s > a.ring->max_udp_payload(); });
    EXPECT_EQ(a.ring->max_udp_payload(), mtu - 28);
    unsigned seed = 0;
    for (std::size_t size : sizes) {
        std::string text = pattern(size, seed++);
        for (std::size_t parts : {1u, 2u, 3u, 7u}) {
            std::vector<iovec> iov;
            std::size_t at = 0;
            for (std::size_t p = 0; p < parts; p++) {
                // Odd lengths, and empty ones in between.
                std::size_t n = p + 1 == parts ? size - at : std::min(size - at, size / parts | 1);
                iov.push_back({text.data() + at, n});
                iov.push_back({nullptr, 0});
                at += n;
            }
            bool right = false;
            wire.set_hook([&](const WireDevice& from, std::vector<Frame>& frames) {
                if (&from != a.device) return;
                const Frame& f = frames[0];
                right = f.size() == 42 + size && slow_sum(&f[kIp], 20) == 0xffff &&
                        (udp_sum_right(f) ||
                         (checksum == TxChecksum::partial && get16(f, kUdp + 6) == pseudo_sum(f)));
            });
            ASSERT_EQ(a.ring->send_udp(a.headers(b, 1000, 2000).data(), iov.data(), iov.size(), size), 0);
            EXPECT_TRUE(right) << size;
            b.poll();
            ASSERT_EQ(sink.payloads.size(), 1u) << size << " in " << parts;
            EXPECT_TRUE(sink.payloads[0] == text) << size << " in " << parts;
            sink.payloads.clear();
        }
    }
    wire.set_hook({});
    a.expect_no_leak();
    b.expect_no_leak();
    EXPECT_EQ(a.device->tx_invalid(), 0u);
}

TEST_F(RingTest, SizesAndVectors) { sizes_and_vectors(wire, TxChecksum::none, 1500); }
TEST_F(RingTest, SizesAndVectorsWithChecksumOffload) { sizes_and_vectors(wire, TxChecksum::complete, 1500); }
TEST_F(RingTest, SizesAndVectorsWithPartialChecksums) { sizes_and_vectors(wire, TxChecksum::partial, 1500); }
TEST_F(RingTest, JumboFrames) { sizes_and_vectors(wire, TxChecksum::none, 9000); }
TEST_F(RingTest, JumboFramesWithChecksumOffload) { sizes_and_vectors(wire, TxChecksum::complete, 9000); }
TEST_F(RingTest, JumboFramesWithPartialChecksums) { sizes_and_vectors(wire, TxChecksum::partial, 9000); }

TEST_F(RingTest, ChecksumOfAllOnesIsNotSentAsNone) {
    Host a(wire, kA), b(wire, kB);
    Sink sink;
    b.attach(2000, sink);
    Bytes seen;
    wire.set_hook([&](const WireDevice&, std::vector<Frame>& frames) { seen = frames[0]; });
    std::string text(2, '\0');
    a.send(b, 2000, text);
    text[0] = static_cast<char>(seen[kUdp + 6]);
    text[1] = static_cast<char>(seen[kUdp + 7]);
    a.send(b, 2000, text);
    EXPECT_EQ(get16(seen, kUdp + 6), 0xffffu);
    b.poll();
    EXPECT_EQ(sink.payloads.size(), 2u);
}

TEST_F(RingTest, CopyFromAnywhereIntoAnything) {
    Host a(wire, kA, {.mtu = 9000}), b(wire, kB, {.mtu = 9000});
    Sink sink(Sink::hold);
    b.attach(2000, sink);
    const std::string text = pattern(6000);
    a.send(b, 2000, text);
    b.poll();
    ASSERT_EQ(sink.held.size(), 1u);
    const RxBuffer& buffer = *sink.held[0];
    EXPECT_NE(buffer.more, nullptr);
    for (std::size_t from : {0, 1, 1749, 1750, 1751, 3541, 3542, 3543, 5999, 6000, 6001, 9999})
        for (std::size_t room : {0, 1, 100, 1750, 5000, 8000}) {
            std::string first(room / 3, '?'), second(room - room / 3, '?');
            iovec iov[3] = {{first.data(), first.size()}, {nullptr, 0}, {second.data(), second.size()}};
            const std::size_t n = buffer.copy_to(iov, 3, from);
            const std::string expected = from < text.size() ? text.substr(from, room) : "";
            EXPECT_EQ(n, expected.size());
            EXPECT_TRUE((first + second).substr(0, n) == expected) << from << " " << room;
            EXPECT_EQ((first + second).find_first_not_of('?', n), std::string::npos) << "nothing beyond";
        }
}

// ---- what the ring does not accept ----

TEST_F(RingTest, EachReasonToDropHasItsCounterAndNothingElseIsLost) {
    Host b(wire, kB);
    Sink sink;
    b.attach(2000, sink);
    const Bytes good = make(datagram(b, pattern(100)));
    struct Case {
        Drop expected;
        const char* what;
        std::function<void(Bytes&)> change;
    };
    const Case cases[] = {
        {Drop::short_frame, "empty", [](Bytes& f) { f.clear(); }},
        {Drop::short_frame, "half an Ethernet header", [](Bytes& f) { f.resize(7); }},
        {Drop::short_frame, "half an IP header", [](Bytes& f) { f.resize(kIp + 10); }},
        {Drop::short_frame, "one byte less than IP says", [](Bytes& f) { f.pop_back(); }},
        {Drop::short_frame, "IP claims 65535", [](Bytes& f) { put16(f, kIp + 2, 65535), seal_ip(f); }},
        {Drop::bad_ethertype, "IPv6", [](Bytes& f) { put16(f, 12, 0x86dd); }},
        {Drop::bad_ip_header, "version 6", [](Bytes& f) { f[kIp] = 0x65, seal_ip(f); }},
        {Drop::bad_ip_header, "options", [](Bytes& f) { f[kIp] = 0x46, seal_ip(f); }},
        {Drop::bad_ip_header, "IP claims 19", [](Bytes& f) { put16(f, kIp + 2, 19), seal_ip(f); }},
        {Drop::bad_ip_checksum, "changed address", [](Bytes& f) { f[kIp + 13] ^= 1; }},
        {Drop::fragment, "first fragment", [](Bytes& f) { put16(f, kIp + 6, 0x2000), seal_ip(f); }},
        {Drop::fragment, "last fragment", [](Bytes& f) { put16(f, kIp + 6, 0x0010), seal_ip(f); }},
        {Drop::bad_protocol, "ICMP", [](Bytes& f) { f[kIp + 9] = 1, seal_ip(f); }},
        {Drop::bad_l4_length, "UDP claims more than IP", [](Bytes& f) { put16(f, kUdp + 4, 109); }},
        {Drop::bad_l4_length, "UDP claims 7", [](Bytes& f) { put16(f, kUdp + 4, 7); }},
        {Drop::bad_l4_length, "IP ends in the UDP header",
         [](Bytes& f) { put16(f, kIp + 2, 27), seal_ip(f); }},
        {Drop::bad_l4_checksum, "changed payload", [](Bytes& f) { f.back() ^= 1; }},
        {Drop::bad_l4_checksum, "changed port", [](Bytes& f) { f[kUdp] ^= 1; }},
    };
    std::map<Drop, std::uint64_t> expected;
    std::size_t delivered = 0;
    for (const Case& c : cases) {
        Bytes frame = good;
        c.change(frame);
        b.device->receive_unsteered(good);
        b.device->receive_unsteered(frame);
        b.device->receive_unsteered(good);
        b.poll();
        expected[c.expected]++;
        delivered += 2;
        EXPECT_EQ(b.bad(c.expected), expected[c.expected]) << c.what;
        EXPECT_EQ(sink.payloads.size(), delivered) << c.what;
    }
    std::uint64_t all = 0;
    const RingCounters counters = b.ring->counters();
    for (std::uint64_t n : counters.rx_bad) all += n;
    EXPECT_EQ(all, std::size(cases));
    EXPECT_EQ(expected.size(), static_cast<std::size_t>(Drop::count_) - 1) << "a reason without a case";
    EXPECT_EQ(counters.rx_frames, 3 * std::size(cases));
    EXPECT_TRUE(std::ranges::all_of(sink.payloads, [](auto& p) { return p == pattern(100); }));
    b.expect_no_leak();
}

TEST_F(RingTest, OddButRightFramesAreAccepted) {
    Host b(wire, kB);
    Sink sink;
    b.attach(2000, sink);
    const Bytes good = make(datagram(b, "abc"));
    auto accepted = [&](Bytes frame) {
        sink.payloads.clear();
        b.device->receive_unsteered(std::move(frame));
        b.poll();
        return sink.payloads == std::vector<std::string>{"abc"};
    };
    Bytes frame = good;
    frame.resize(60);
    EXPECT_TRUE(accepted(frame)) << "Ethernet padding";
    frame.resize(60, 0xff);
    EXPECT_TRUE(accepted(frame));
    frame = good;
    put16(frame, kUdp + 6, 0);
    EXPECT_TRUE(accepted(frame)) << "no checksum";
    put16(frame, kUdp + 6, pseudo_sum(frame));
    EXPECT_TRUE(accepted(frame)) << "partial checksum of a frame from this host";
    frame = good;
    frame.push_back('d');
    put16(frame, kIp + 2, 20 + 8 + 4);
    seal_ip(frame);
    EXPECT_TRUE(accepted(frame)) << "UDP shorter than IP";
}

// A sum of the pseudo header alone is this host's own, which comes by virtual interfaces only.
TEST_F(RingTest, PartialSumsComeByVirtualInterfacesOnly) {
    Host b(wire, kB, {.partial_sums = false});
    Sink sink;
    b.attach(2000, sink);
    Bytes frame = make(datagram(b, "abc"));
    b.device->receive_unsteered(frame);
    put16(frame, kUdp + 6, pseudo_sum(frame));
    b.device->receive_unsteered(frame);
    b.poll();
    EXPECT_EQ(sink.payloads.size(), 1u);
    EXPECT_EQ(b.bad(Drop::bad_l4_checksum), 1u);
    b.expect_no_leak();
}

TEST_F(RingTest, MalformedFramesInSeveralPieces) {
    Host b(wire, kB, {.mtu = 9000});
    Sink sink;
    b.attach(2000, sink);
    Bytes frame = make(datagram(b, pattern(5001)));
    b.device->receive_unsteered(frame);
    frame.back() ^= 0x80;
    b.device->receive_unsteered(frame);
    frame.back() ^= 0x80;
    frame.pop_back();
    b.device->receive_unsteered(frame);
    b.device->receive_unsteered(make(datagram(b, "after")));
    b.poll();
    EXPECT_EQ(sink.payloads, (std::vector<std::string>{pattern(5001), "after"}));
    EXPECT_EQ(b.bad(Drop::bad_l4_checksum), 1u);
    EXPECT_EQ(b.bad(Drop::short_frame), 1u);
    b.expect_no_leak();
}

TEST_F(RingTest, FrameInMorePiecesThanAnyoneSends) {
    Host b(wire, kB, {.max_recv_wr = 256});
    Sink sink;
    b.attach(2000, sink);
    b.device->receive_unsteered(Bytes(100 * 1792));
    b.device->receive_unsteered(make(datagram(b, "after")));
    b.poll();
    EXPECT_EQ(sink.payloads, std::vector<std::string>{"after"});
    b.expect_no_leak();
}

TEST_F(RingTest, FrameForASocketThatJustWent) {
    Host b(wire, kB);
    b.device->receive_unsteered(make(datagram(b, "late")));
    b.poll();
    EXPECT_EQ(b.ring->counters().rx_no_socket, 1u);
    b.expect_no_leak();
}

TEST_F(RingTest, RefusedFramesComeBack) {
    Host a(wire, kA), b(wire, kB);
    Sink sink(Sink::refuse);
    b.attach(2000, sink);
    for (int i = 0; i < 3000; i++) {
        a.send(b, 2000, pattern(10));
        if (i % 100 == 0) b.poll();
    }
    b.poll();
    EXPECT_EQ(b.ring->counters().rx_refused, 3000u);
    b.expect_no_leak();
}

TEST_F(RingTest, CountersCountFramesAndBytes) {
    Host a(wire, kA), b(wire, kB, {.mtu = 9000});
    Sink sink;
    b.attach(2000, sink);
    for (std::size_t length : {0u, 10u, 1472u}) a.send(b, 2000, pattern(length));
    wire.set_hook({});
    b.device->receive_unsteered(make(datagram(b, pattern(4000))));
    b.poll();
    const RingCounters tx = a.ring->counters(), rx = b.ring->counters();
    EXPECT_EQ(tx.tx_frames, 3u);
    EXPECT_EQ(tx.tx_bytes, 3 * 42 + 1482u);
    EXPECT_EQ(rx.rx_frames, 4u);
    EXPECT_EQ(rx.rx_bytes, 4 * 42 + 1482 + 4000u);
    EXPECT_EQ(rx.tx_frames, 0u);
    EXPECT_EQ(tx.tx_no_buffer, 0u);
    EXPECT_EQ(rx.rx_no_buffer, 0u);
}

// Hardware's rules do not look at sources, so the ring does, where no connection vouches for the peer.
TEST_F(RingTest, SourcesThatTheKernelRefusesAreNotDelivered) {
    Host a(wire, kA), b(wire, kB, {.coarse_steering = true});
    Sink any, connected;
    b.attach(2000, any);
    ASSERT_TRUE(b.ring->attach(b.flow(3000, kA, 1000), &connected, Share::latest));
    b.ring->set_sources(net::SourceFilter({{0, 0, true}, {inet_addr(kB), 32, false}}));
    unsigned refused = 0;
    for (const char* source :
         {"198.18.0.9", "127.0.0.1", kB, "0.0.0.0", "239.1.1.1", "255.255.255.255", "198.18.0.10"}) {
        Udp u = datagram(b, source);
        u.src = source;
        b.device->receive_unsteered(make(u));
    }
    b.poll();
    EXPECT_EQ(any.payloads, (std::vector<std::string>{"198.18.0.9", "198.18.0.10"}));
    EXPECT_EQ(b.ring->counters().rx_bad_source, refused += 5);
    // A table with this interface's routes only.
    b.ring->set_sources(net::SourceFilter({{inet_addr("198.19.0.0"), 16, true}}));
    a.send(b, 2000, "no way back");
    a.send(b, 3000, "a connection's peer");
    b.poll();
    EXPECT_EQ(any.payloads.size(), 2u);
    EXPECT_EQ(connected.payloads.size(), 1u);
    EXPECT_EQ(b.ring->counters().rx_bad_source, refused + 1);
    b.expect_no_leak();
}

// ---- who gets a frame ----

TEST_F(RingTest, FiveTupleWinsOverThreeTuple) {
    Host a(wire, kA), b(wire, kB);
    Sink any, connected;
    b.attach(2000, any);
    ASSERT_TRUE(b.ring->attach(b.flow(2000, kA, 1000), &connected, Share::latest));
    a.send(b, 2000, "connected", 1000);
    a.send(b, 2000, "any", 1001);
    a.send(b, 2000, "connected", 1000);
    b.poll();
    EXPECT_EQ(any.payloads, std::vector<std::string>{"any"});
    EXPECT_EQ(connected.payloads, (std::vector<std::string>{"connected", "connected"}));
    b.ring->detach(b.flow(2000, kA, 1000), &connected);
    a.send(b, 2000, "any", 1000);
    b.poll();
    EXPECT_EQ(any.payloads.size(), 2u);
    ASSERT_TRUE(b.ring->attach(b.flow(2000, kA, 1000), &connected, Share::latest));
    a.send(b, 2000, "connected", 1000);
    b.poll();
    EXPECT_EQ(connected.payloads.size(), 3u)
        << "the flow of the frame before is remembered, but not for too long";
    b.ring->detach(b.flow(2000), &any);
    a.send(b, 2000, "connected", 1000);
    a.send(b, 2000, "nobody", 1001);
    b.poll();
    EXPECT_EQ(connected.payloads.size(), 4u);
    EXPECT_EQ(any.payloads.size(), 2u);
    EXPECT_EQ(b.device->kernel_frames(), 1u);
}

TEST_F(RingTest, LatestOfSeveralSocketsGetsTheFrames) {
    Host a(wire, kA), b(wire, kB);
    Sink first, second, third;
    b.attach(2000, first);
    b.attach(2000, second);
    b.attach(2000, third);
    EXPECT_EQ(b.device->rules(), 1u);
    auto next = [&] {
        a.send(b, 2000, "x");
        b.poll();
        return std::array{first.payloads.size(), second.payloads.size(), third.payloads.size()};
    };
    EXPECT_EQ(next(), (std::array<std::size_t, 3>{0, 0, 1}));
    b.ring->detach(b.flow(2000), &second);
    EXPECT_EQ(next(), (std::array<std::size_t, 3>{0, 0, 2}));
    b.ring->detach(b.flow(2000), &third);
    EXPECT_EQ(next(), (std::array<std::size_t, 3>{1, 0, 2}));
    b.ring->detach(b.flow(2000), &third);  // not attached: nothing happens
    EXPECT_EQ(next(), (std::array<std::size_t, 3>{2, 0, 2}));
    EXPECT_EQ(b.device->rules(), 1u);
    b.ring->detach(b.flow(2000), &first);
    EXPECT_EQ(b.device->rules(), 0u);
    EXPECT_EQ(next(), (std::array<std::size_t, 3>{2, 0, 2}));
}

TEST_F(RingTest, GroupSpreadsPeersAndKeepsEachWithOneMember) {
    Host a(wire, kA), b(wire, kB);
    Sink members[4];
    for (Sink& m : members) b.attach(2000, m, Share::spread);
    for (int round = 0; round < 3; round++) {
        for (std::uint16_t port = 1000; port < 1200; port++) a.send(b, 2000, std::to_string(port), port);
        b.poll();
    }
    std::size_t peers = 0, frames = 0;
    for (Sink& m : members) {
        EXPECT_GT(m.peers.size(), 20u) << "of 200 peers on four members";
        EXPECT_EQ(m.payloads.size(), 3 * m.peers.size());
        peers += m.peers.size();
        frames += m.payloads.size();
    }
    EXPECT_EQ(peers, 200u) << "no peer with two members";
    EXPECT_EQ(frames, 600u);
    b.ring->detach(b.flow(2000), &members[1]);
    for (std::uint16_t port = 1000; port < 1200; port++) a.send(b, 2000, std::to_string(port), port);
    b.poll();
    EXPECT_EQ(members[0].payloads.size() + members[2].payloads.size() + members[3].payloads.size(),
              600 - 3 * members[1].peers.size() + 200);
}

TEST_F(RingTest, FramesAlreadyInTheRingReachTheSocketBeforeDetachReturns) {
    Host a(wire, kA), b(wire, kB);
    Sink sink;
    b.attach(2000, sink);
    for (int i = 0; i < 200; i++) a.send(b, 2000, pattern(20));
    b.ring->detach(b.flow(2000), &sink);
    EXPECT_EQ(sink.payloads.size(), 200u);
    a.send(b, 2000, "for the kernel");
    b.poll();
    EXPECT_EQ(sink.payloads.size(), 200u);
    EXPECT_EQ(b.device->kernel_frames(), 1u);
    b.expect_no_leak();
}

// As a connection does whose last frames make it owe an ACK.
TEST_F(RingTest, WhoAsksForIdleWhileItIsDetachedIsNotCalledLater) {
    constexpr std::chrono::milliseconds kIdle{5};
    Host a(wire, kA), b(wire, kB, {}, {.idle = kIdle, .huge_pages = false});
    struct Asking final : FrameSink {
        bool deliver(RxBuffer* buffer) noexcept override {
            buffer->ring->when_idle(this, Idle::soon);
            buffer->release();
            return true;
        }
        void idle(Ring&, Idle) noexcept override { called++; }
        int called = 0;
    } sink, other;
    b.attach(2000, sink);
    b.attach(2001, other);
    a.send(b, 2000, "in the queue");
    a.send(b, 2001, "in the queue");
    b.ring->detach(b.flow(2000), &sink);
    const int until_then = sink.called;  // by a slow machine
    std::this_thread::sleep_for(2 * kIdle);
    b.poll();
    EXPECT_EQ(sink.called, until_then);
    EXPECT_EQ(other.called, 1);
    b.ring->detach(b.flow(2001), &other);
}

TEST_F(RingTest, DetachWhileAnotherThreadSendsAndPolls) {
    Host a(wire, kA), b(wire, kB);
    std::atomic<bool> stop{false};
    // deliver() after detach() returned is what this looks for.
    struct Gate final : FrameSink {
        std::atomic<bool> open{false};
        std::atomic<std::uint64_t> delivered{0}, late{0};
        bool deliver(RxBuffer* b) noexcept override {
            (open ? delivered : late)++;
            b->release();
            return true;
        }
    } gate;
    std::thread sender([&] {
        while (!stop) a.send(b, 2000, pattern(20));
    });
    std::thread poller([&] {
        while (!stop) b.ring->poll();
    });
    for (int i = 0; i < 60; i++) {
        const std::uint64_t before = gate.delivered;
        gate.open = true;
        b.attach(2000, gate);
        while (gate.delivered == before) std::this_thread::yield();
        b.ring->detach(b.flow(2000), &gate);
        gate.open = false;
    }
    stop = true;
    sender.join();
    poller.join();
    EXPECT_EQ(gate.late, 0u);
    b.poll();
    b.expect_no_leak();
}

TEST_F(RingTest, AttachFailsWhenTheDeviceRefusesTheRule) {
    Host b(wire, kB);
    Sink sink;
    verbs::Flow* own = b.device->create_flow(nullptr, b.flow(2000)).value();
    auto attached = b.ring->attach(b.flow(2000), &sink, Share::latest);
    ASSERT_FALSE(attached);
    EXPECT_EQ(attached.error().code, EEXIST);
    b.device->destroy_flow(own);
    EXPECT_TRUE(b.ring->attach(b.flow(2000), &sink, Share::latest));
}

TEST_F(RingTest, ChannelWakesASleeper) {
    Host a(wire, kA), b(wire, kB);
    Sink sink;
    b.attach(2000, sink);
    auto readable = [&](int msec) {
        pollfd p{b.ring->channel_fd(), POLLIN, 0};
        return ::poll(&p, 1, msec) == 1;
    };
    b.ring->arm();
    EXPECT_EQ(b.ring->poll(), 0u);
    EXPECT_FALSE(readable(0));
    std::thread sender([&] { a.send(b, 2000, "wake up"); });
    EXPECT_TRUE(readable(-1));
    sender.join();
    b.poll();
    EXPECT_FALSE(readable(0));
    EXPECT_EQ(sink.payloads.size(), 1u);
}

// ---- buffers ----

// One socket never reads. Whatever the sizes, others go on, and all is as before once it does read.
void starve(Wire& wire, WireConfig config, RingConfig ring_config) {
    SCOPED_TRACE(testing::Message() << config.max_recv_wr << " posted at most, in batches of "
                                    << ring_config.post_batch);
    Host a(wire, kA, config), b(wire, kB, config, ring_config);
    Sink hoarder(Sink::hold), reader;
    b.attach(2000, hoarder);
    b.attach(3000, reader);
    for (int round = 0; round < 3; round++) {
        reader.payloads.clear();
        const std::uint64_t dropped_before = b.ring->counters().rx_no_buffer;
        std::size_t wanted = 0;
        for (std::uint32_t i = 0; i < 4 * config.max_recv_wr; i++) {
            ASSERT_EQ(a.send(b, 2000, pattern(50, i)), 0);
            b.ring->poll();
        }
        b.poll();
        EXPECT_GT(b.ring->counters().rx_no_buffer, dropped_before);
        EXPECT_LT(hoarder.held.size(), 2 * config.max_recv_wr);
        EXPECT_GT(b.device->receives_posted(), 0u) << "somebody's next frame must find a buffer";
        b.expect_no_leak(hoarder.held.size());

        hoarder.release_all();
        b.poll();
        for (std::uint32_t i = 0; i < 4 * config.max_recv_wr; i++, wanted++) {
            ASSERT_EQ(a.send(b, 3000, pattern(50, i)), 0);
            b.ring->poll();
        }
        b.poll();
        EXPECT_EQ(reader.payloads.size(), wanted) << "all recovers";
        b.expect_no_leak();
    }
    EXPECT_EQ(b.device->rx_device_drops(), 0u);
}

TEST_F(RingTest, SocketThatNeverReads) {
    for (std::uint32_t posted : {64u, 100u, 256u, 1024u})
        for (std::uint32_t batch : {1u, 16u, 64u, 1000u})
            starve(wire, {.max_recv_wr = posted}, {.post_batch = batch, .huge_pages = false});
    starve(wire, {.max_recv_wr = 256}, {.max_rx_buffers = 1, .huge_pages = false});
}

TEST_F(RingTest, FewSendBuffers) {
    Host a(wire, kA, {.max_send_wr = 1024}, {.max_tx_buffers = 100, .huge_pages = false}), b(wire, kB);
    EXPECT_EQ(a.ring->buffer_counts().tx_total, 100u);
    Sink sink;
    b.attach(2000, sink);
    for (int i = 0; i < 500; i++) {
        EXPECT_EQ(a.send(b, 2000, "x"), 0);
        b.poll();
    }
    EXPECT_EQ(sink.payloads.size(), 500u);
    // One datagram in many pieces must fit, whatever the bound.
    Host least(wire, "198.18.0.3", {.max_send_wr = 1024}, {.max_tx_buffers = 1, .huge_pages = false});
    EXPECT_GE(least.ring->buffer_counts().tx_total, 17u);
}

TEST_F(RingTest, CompletionsAreShared) {
    for (std::uint32_t every : {1u, 4u, 32u}) {
        Host a(wire, kA, {}, {.signal_every = every, .huge_pages = false}), b(wire, kB);
        Sink sink;
        b.attach(2000, sink);
        for (int i = 0; i < 7; i++) a.send(b, 2000, "x");
        b.poll();
        const BufferCounts c = a.ring->buffer_counts();
        EXPECT_EQ(c.tx_total - c.tx_free, 7 % every) << every;
    }
}

TEST_F(RingTest, OthersReceiveWhileOneNeverReads) {
    Host a(wire, kA), b(wire, kB, {.max_recv_wr = 256});
    struct Bounded final : FrameSink {  // a socket with a receive buffer limit, as all have
        std::vector<RxBuffer*> held;
        bool deliver(RxBuffer* buffer) noexcept override {
            if (held.size() == 100) return false;
            held.push_back(buffer);
            return true;
        }
    } slow;
    Sink reader;
    b.attach(2000, slow);
    b.attach(3000, reader);
    for (int i = 0; i < 2000; i++) {
        a.send(b, 2000, "for the slow one");
        a.send(b, 3000, std::to_string(i));
        b.ring->poll();
    }
    b.poll();
    EXPECT_EQ(reader.payloads.size(), 2000u);
    EXPECT_EQ(reader.payloads.back(), "1999");
    EXPECT_EQ(b.ring->counters().rx_refused, 1900u);
    EXPECT_EQ(b.ring->counters().rx_no_buffer, 0u);
    for (RxBuffer* held : slow.held) held->release();
    b.expect_no_leak();
}

// A segment with the numbers of `to`'s connection with port 1000 of kA.
Bytes tcp_segment(const Host& to, const std::string& payload) {
    Udp u =
        datagram(to, std::string(12, '\0') +
                         payload);  // TCP's header is 12 bytes longer, and its ports lie in the same place
    u.src = kA;
    u.dst_port = 80;
    Bytes frame = make(u);
    frame[kIp + 9] = IPPROTO_TCP;
    seal_ip(frame);
    for (std::size_t i = 4; i < 20; i++) frame[kUdp + i] = 0;
    frame[kUdp + 12] = 5 << 4;
    frame[kUdp + 13] = 0x10;
    const std::size_t length = frame.size() - kUdp;
    const auto pseudo = slow_sum(&frame[kIp + 12], 8, static_cast<std::uint32_t>(IPPROTO_TCP + length));
    put16(frame, kUdp + 16, 0xffff & ~slow_sum(&frame[kUdp], length, pseudo));
    return frame;
}

// Sockets that copy when asked to: however many datagrams they leave unread, TCP and others lose nothing.
struct CopyingSink final : FrameSink {
    std::vector<RxBuffer*> held;
    std::uint64_t bytes = 0, refused = 0;
    bool deliver(RxBuffer* buffer) noexcept override {
        if (buffer->ring->should_copy(static_cast<std::uint32_t>(held.size()))) {
            buffer = buffer->ring->swap_for_copy(buffer, bytes);
            if (buffer == nullptr) return refused++, false;
        }
        bytes += buffer->payload_length;
        held.push_back(buffer);
        return true;
    }
    void release_all() {
        for (RxBuffer* b : held) b->release();
        held.clear();
        bytes = 0;
    }
};

TEST_F(RingTest, UnreadDatagramsLeaveTheBuffersToOthers) {
    Host a(wire, kA), b(wire, kB, {.max_recv_wr = 256});
    CopyingSink slow[60];
    Sink tcp;
    for (unsigned i = 0; i < 60; i++) b.attach(static_cast<std::uint16_t>(2000 + i), slow[i]);
    const FlowSpec connection{IPPROTO_TCP, inet_addr(kB), htons(80), inet_addr(kA), htons(1000)};
    ASSERT_TRUE(b.ring->attach(connection, &tcp, Share::only));
    unsigned segments = 0;
    for (unsigned i = 0; i < 200; i++)
        for (unsigned s = 0; s < 60; s++) {
            ASSERT_EQ(a.send(b, static_cast<std::uint16_t>(2000 + s), pattern(64, i)), 0);
            if (s % 10 == 0) b.device->receive_unsteered(tcp_segment(b, "segment")), segments++;
            b.ring->poll();
        }
    b.poll();
    EXPECT_EQ(tcp.payloads.size(), segments);
    EXPECT_EQ(b.ring->counters().rx_no_buffer, 0u);
    EXPECT_GT(b.ring->counters().rx_copied, 11000u);
    EXPECT_GT(b.ring->buffer_counts().rx_posted + b.ring->buffer_counts().rx_free, 200u);
    for (CopyingSink& s : slow) {
        ASSERT_EQ(s.held.size(), 200u);
        for (unsigned i = 0; i < 200; i++) EXPECT_TRUE(Sink::read_payload(*s.held[i]) == pattern(64, i));
        s.release_all();
    }
    EXPECT_EQ(b.ring->copied_bytes(), 0u);
    b.expect_no_leak();
}

// One socket alone does not get the common half, and copies have a limit, at which the fullest loses.
TEST_F(RingTest, CopiesHaveALimitAndTheFullestLoses) {
    constexpr std::uint64_t kLimit = 1 << 20;
    Host a(wire, kA), b(wire, kB, {.max_recv_wr = 256}, {.max_copied = kLimit, .huge_pages = false});
    CopyingSink flooded, quiet;
    b.attach(2000, flooded);
    b.attach(3000, quiet);
    auto send = [&](std::uint16_t port, unsigned times) {
        for (unsigned i = 0; i < times; i++) {
            ASSERT_EQ(a.send(b, port, pattern(1000, i)), 0);
            b.ring->poll();
        }
    };
    send(2000, 100);
    EXPECT_GT(b.ring->counters().rx_copied, 30u) << "64 buffers of 512 are one socket's share";
    send(2000, 5000);
    EXPECT_LE(b.ring->copied_bytes(), kLimit);
    EXPECT_GT(b.ring->copied_bytes(), kLimit / 2);
    EXPECT_GT(flooded.refused, 3000u);
    send(3000, 300);
    EXPECT_EQ(quiet.held.size(), 300u) << "below its share it loses nothing";
    EXPECT_LE(b.ring->copied_bytes(), 2 * kLimit);
    EXPECT_EQ(b.ring->counters().rx_no_buffer, 0u);
    flooded.release_all();
    quiet.release_all();
    EXPECT_EQ(b.ring->copied_bytes(), 0u);
    b.expect_no_leak();
}

// A connection that receives in bulk, and whose program sleeps: what fits the window finds a buffer, as in
// the kernel.
TEST_F(RingTest, BurstToAConnectionWhoseProgramSleeps) {
    Host b(wire, kB, {.max_recv_wr = 8192, .recv_wr_hint = 128});
    Sink tcp;
    const FlowSpec connection{IPPROTO_TCP, inet_addr(kB), htons(80), inet_addr(kA), htons(1000)};
    ASSERT_TRUE(b.ring->attach(connection, &tcp, Share::only));
    b.ring->expect_stream(true);
    b.device->receive_unsteered(tcp_segment(b, pattern(1448)));
    b.poll();
    EXPECT_LT(b.ring->buffer_counts().rx_posted, 256u) << "not before";
    b.ring->expect_bulk(2 << 20);
    b.device->receive_unsteered(tcp_segment(b, pattern(1448)));
    b.poll();
    tcp.payloads.clear();
    for (int i = 0; i < 1700; i++) b.device->receive_unsteered(tcp_segment(b, pattern(1448)));
    EXPECT_EQ(b.device->rx_device_drops(), 0u);
    b.poll();
    EXPECT_EQ(tcp.payloads.size(), 1700u);
}

TEST_F(RingTest, DeviceWithoutBuffersDropsAndRecovers) {
    Host a(wire, kA), b(wire, kB, {.max_recv_wr = 64});
    Sink sink;
    b.attach(2000, sink);
    for (int i = 0; i < 100; i++) a.send(b, 2000, std::to_string(i));  // nobody polls
    EXPECT_EQ(b.device->rx_device_drops(), 36u);
    b.poll();
    EXPECT_EQ(sink.payloads.size(), 64u);
    EXPECT_EQ(sink.payloads.back(), "63");
    a.send(b, 2000, "again");
    b.poll();
    EXPECT_EQ(sink.payloads.back(), "again");
    b.expect_no_leak();
}

TEST_F(RingTest, HeldBuffersAreNotOverwritten) {
    Host a(wire, kA, {.mtu = 9000}), b(wire, kB, {.mtu = 9000, .max_recv_wr = 256});
    Sink hoarder(Sink::hold), reader;
    b.attach(2000, hoarder);
    b.attach(3000, reader);
    for (unsigned i = 0; i < 40; i++) {
        a.send(b, 2000, pattern(1 + i * 200, i));
        b.ring->poll();
    }
    for (unsigned i = 0; i < 2000; i++) {
        a.send(b, 3000, pattern(300, 1000 + i));
        b.ring->poll();
    }
    b.poll();
    ASSERT_EQ(hoarder.held.size(), 40u);
    for (unsigned i = 0; i < 40; i++)
        EXPECT_TRUE(Sink::read_payload(*hoarder.held[i]) == pattern(1 + i * 200, i)) << i;
    EXPECT_EQ(reader.payloads.size(), 2000u);
}

TEST_F(RingTest, BuffersReleasedByOtherThreads) {
    Host a(wire, kA, {.mtu = 4000}), b(wire, kB, {.mtu = 4000, .max_recv_wr = 256});
    // A stack between the polling thread and those that release.
    struct Handover final : FrameSink {
        std::mutex mutex;
        std::vector<RxBuffer*> waiting;
        std::uint64_t delivered = 0;
        bool deliver(RxBuffer* buffer) noexcept override {
            std::lock_guard guard(mutex);
            waiting.push_back(buffer);
            delivered++;
            return true;
        }
        RxBuffer* take() {
            std::lock_guard guard(mutex);
            if (waiting.empty()) return nullptr;
            RxBuffer* buffer = waiting.back();
            waiting.pop_back();
            return buffer;
        }
    } sink;
    b.attach(2000, sink);
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> wrong{0}, released{0};
    auto consumer = [&] {
        for (;;) {
            const bool last = stop;
            RxBuffer* buffer = sink.take();
            if (buffer == nullptr) {
                if (last) return;
                std::this_thread::yield();
                continue;
            }
            const std::string text = Sink::read_payload(*buffer);
            if (text != std::string(text.size(), text.empty() ? ' ' : text[0])) wrong++;
            buffer->release();
            released++;
        }
    };
    std::thread one(consumer), two(consumer);
    for (int i = 0; i < 20000; i++) {
        a.send(b, 2000,
               std::string(static_cast<std::size_t>(i * 37 % 3900), static_cast<char>('a' + i % 26)));
        b.ring->poll();
    }
    b.poll();
    stop = true;
    one.join();
    two.join();
    EXPECT_EQ(wrong, 0u);
    EXPECT_EQ(released, sink.delivered);
    EXPECT_EQ(sink.delivered + b.ring->counters().rx_no_buffer + b.device->rx_device_drops(), 20000u);
    b.expect_no_leak();
    // And all of them serve again.
    const std::uint64_t before = sink.delivered;
    for (int i = 0; i < 1000; i++) {
        a.send(b, 2000, "x");
        b.ring->poll();
        while (RxBuffer* buffer = sink.take()) buffer->release();
    }
    b.poll();
    while (RxBuffer* buffer = sink.take()) buffer->release();
    EXPECT_EQ(sink.delivered - before, 1000u);
}

TEST_F(RingTest, SendBuffersRunOutAndComeBack) {
    Host a(wire, kA, {.max_send_wr = 64}), b(wire, kB);
    Sink sink;
    b.attach(2000, sink);
    for (int round = 0; round < 5; round++) {
        a.device->hold_completions(true);
        int sent = 0, error = 0;
        while ((error = a.send(b, 2000, "x")) == 0) ASSERT_LE(++sent, 64);
        EXPECT_EQ(error, ENOBUFS);
        EXPECT_GE(sent, 64 - 15) << "but for those whose completion was not asked for";
        EXPECT_EQ(a.send(b, 2000, "x"), ENOBUFS);
        EXPECT_EQ(a.ring->counters().tx_no_buffer, 2u * static_cast<unsigned>(round + 1));
        a.device->hold_completions(false);
        for (int i = 0; i < 200; i++) ASSERT_EQ(a.send(b, 2000, "y"), 0) << i;
        b.poll();
        EXPECT_EQ(sink.payloads.size(), static_cast<std::size_t>(sent + 200));
        sink.payloads.clear();
    }
    a.expect_no_leak();
}

TEST_F(RingTest, RefusedSendsLeakNothing) {
    Host a(wire, kA, {.mtu = 9000, .max_send_wr = 64}), b(wire, kB, {.mtu = 9000});
    Sink sink;
    b.attach(2000, sink);
    std::size_t sent = 0;
    // Refused just when a completion would be asked for, among other times.
    for (int i = 0; i < 5000; i++) {
        a.device->refuse_sends(i % 16 == 15 || i % 7 == 3);
        const int error = a.send(b, 2000, pattern(i % 5 == 0 ? 5000 : 10));
        ASSERT_EQ(error, i % 16 == 15 || i % 7 == 3 ? ENOBUFS : 0) << i;
        sent += error == 0;
        b.ring->poll();
    }
    b.poll();
    EXPECT_EQ(sink.payloads.size(), sent);
    EXPECT_EQ(a.ring->counters().tx_no_buffer, 5000 - sent);
    EXPECT_EQ(a.ring->counters().tx_frames, sent);
    a.expect_no_leak();
}

TEST_F(RingTest, SmallSendQueueSendsLongFrames) {
    Host a(wire, kA, {.mtu = 9000, .max_send_wr = 32}), b(wire, kB, {.mtu = 9000});
    Sink sink;
    b.attach(2000, sink);
    for (unsigned i = 0; i < 500; i++) {
        ASSERT_EQ(a.send(b, 2000, pattern(8972, i)), 0) << i;
        b.poll();
        ASSERT_TRUE(sink.payloads.back() == pattern(8972, i));
    }
    a.expect_no_leak();
}

TEST_F(RingTest, ManySendersShareARing) {
    Host a(wire, kA), b(wire, kB);
    Sink sink;
    b.attach(2000, sink);
    std::atomic<int> running{4};
    std::vector<std::thread> senders;
    for (int t = 0; t < 4; t++)
        senders.emplace_back([&, t] {
            for (int i = 0; i < 2000; i++)
                while (a.send(b, 2000, std::string(200, static_cast<char>('a' + t)),
                              static_cast<std::uint16_t>(1000 + t)) != 0)
                    std::this_thread::yield();
            running--;
        });
    while (running != 0) b.ring->poll();
    for (auto& s : senders) s.join();
    b.poll();
    EXPECT_EQ(sink.payloads.size() + b.device->rx_device_drops(), 8000u);
    EXPECT_TRUE(std::ranges::all_of(sink.payloads, [](auto& p) { return p == std::string(200, p[0]); }));
    EXPECT_EQ(a.ring->counters().tx_frames, 8000u);
    a.expect_no_leak();
}

// A kick takes longer than all else that a sender does. The second thread would wait for ever.
TEST_F(RingTest, KickHoldsUpNoOtherSender) {
    Host a(wire, kA, {.lazy_tx = LazyTx::fake_clock}), b(wire, kB);
    Sink sink;
    b.attach(2000, sink);
    std::atomic<int> kicks{0};
    std::atomic<bool> in_kick{false}, second_sent{false};
    a.device->leave_kicks_to([&] {
        if (kicks++ != 0) return true;
        in_kick = true;
        for (int i = 0; i < 10'000 && !second_sent; i++)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return true;
    });
    std::thread first([&] { EXPECT_EQ(a.send(b, 2000, "first"), 0); });
    while (!in_kick) std::this_thread::yield();
    wire.advance(2 * verbs::LazyKick::kBurstGapNs);  // it is no burst
    EXPECT_EQ(a.send(b, 2000, "second"), 0);
    second_sent = true;
    first.join();
    b.poll();
    EXPECT_EQ(sink.payloads, (std::vector<std::string>{"first", "second"}));
    EXPECT_EQ(kicks, 2);
    a.expect_no_leak();
}

TEST_F(RingTest, FailedKickIsMadeAgainWithTheLock) {
    Host a(wire, kA, {.lazy_tx = LazyTx::fake_clock}), b(wire, kB);
    Sink sink;
    b.attach(2000, sink);
    int kicks = 0;
    a.device->leave_kicks_to([&] { return ++kicks % 2 == 0; });
    for (int i = 0; i < 4; i++) {
        EXPECT_EQ(a.send(b, 2000, std::to_string(i)), 0);
        b.poll();
        EXPECT_EQ(sink.payloads.size(), static_cast<std::size_t>(i) + 1);
        a.ring->flush();  // the next one is a lone one, too
    }
    EXPECT_EQ(kicks, 4);
    a.expect_no_leak();
}

TEST_F(RingTest, HundredThousandFramesOverABadWire) {
    const WireConfig config{.mtu = 4000, .max_send_wr = 256, .max_recv_wr = 512};
    Host a(wire, kA, config), b(wire, kB, config);
    const verbs::wire::Faults faults{.loss = 0.05,
                                     .duplicate = 0.05,
                                     .corrupt = 0.05,
                                     .corrupt_bits = 3,
                                     .reorder = 0.1,
                                     .reorder_ns = 2000,
                                     .delay_ns = 500,
                                     .jitter_ns = 100};
    wire.set_faults(*a.device, faults);
    wire.set_faults(*b.device, faults);
    Sink at_a, at_b;
    a.attach(2000, at_a);
    b.attach(2000, at_b);
    Sink hoarder(Sink::hold);
    b.attach(3000, hoarder);
    std::uint64_t sent = 0;
    for (int i = 0; i < 100000; i++) {
        const std::string text(static_cast<std::size_t>(i % 50 == 0 ? 3500 : i % 90), static_cast<char>(i));
        if (i % 3 == 0)
            sent += b.send(a, 2000, text) == 0;
        else
            sent += a.send(b, i % 10 == 0 ? 3000 : 2000, text) == 0;
        wire.advance(100);
        if (i % 7 == 0) a.ring->poll();
        if (i % 9 == 0) b.ring->poll();
        if (i % 1000 == 999) hoarder.release_all();
        if (i % 5000 == 4999) {
            std::size_t held = 0;
            for (RxBuffer* h : hoarder.held)
                for (RxBuffer* piece = h; piece != nullptr; piece = piece->more) held++;
            b.expect_no_leak(held);
        }
        at_a.payloads.clear();
        at_b.payloads.clear();
        hoarder.payloads.clear();
    }
    EXPECT_EQ(sent, 100000u);
    wire.run_until_idle();
    a.poll();
    b.poll();
    hoarder.release_all();
    a.expect_no_leak();
    b.expect_no_leak();
    // Every frame is accounted for, on both hosts.
    for (auto [from, to] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
        const auto w = wire.counters(*from->device);
        EXPECT_EQ(w.sent, from->ring->counters().tx_frames);
        EXPECT_EQ(w.delivered, w.sent - w.lost + w.duplicated);
        EXPECT_EQ(
            to->ring->counters().rx_frames + to->device->kernel_frames() + to->device->rx_device_drops(),
            w.delivered);
        EXPECT_GT(to->bad(Drop::bad_l4_checksum), 0u);
        EXPECT_GT(to->bad(Drop::bad_ip_checksum), 0u);
    }
}

TEST_F(RingTest, SameSeedSameHistory) {
    auto history = [](std::uint64_t seed) {
        Wire wire(seed);
        Host a(wire, kA), b(wire, kB);
        wire.set_faults(*a.device,
                        {.loss = 0.1, .duplicate = 0.1, .corrupt = 0.1, .reorder = 0.2, .reorder_ns = 500});
        Sink sink;
        b.attach(2000, sink);
        for (int i = 0; i < 2000; i++) {
            a.send(b, 2000, std::to_string(i));
            wire.advance(100);
            b.ring->poll();
        }
        wire.run_until_idle();
        b.poll();
        return sink.payloads;
    };
    const auto first = history(5);
    EXPECT_EQ(history(5), first);
    EXPECT_NE(history(6), first);
}

// ---- lazy transmission ----

TEST_F(RingTest, ReceivingSendsWhatIsHeldBack) {
    Host a(wire, kA, {.lazy_tx = LazyTx::fake_clock}), b(wire, kB);
    Sink sink;
    b.attach(2000, sink);
    a.send(b, 2000, "first");
    EXPECT_EQ(a.device->held(), 0u);
    a.send(b, 2000, "second");
    a.send(b, 2000, "third");
    EXPECT_EQ(a.device->held(), 2u);
    a.ring->flush();
    EXPECT_EQ(a.device->held(), 0u);
    a.send(b, 2000, "fourth");
    EXPECT_EQ(a.device->held(), 0u) << "the burst ended";
    b.poll();
    EXPECT_EQ(sink.payloads, (std::vector<std::string>{"first", "second", "third", "fourth"}));
}

// What sinks send when a batch of frames is over, as connections send ACKs, leaves together.
TEST_F(RingTest, AnswersOfOneBatchShareAKick) {
    Host a(wire, kA), b(wire, kB, {.lazy_tx = LazyTx::fake_clock});
    struct Answering final : FrameSink {
        Answering(Host& from, const Host& to) : from(from), to(to) {}
        bool deliver(RxBuffer* buffer) noexcept override {
            from.ring->at_batch_end(this);
            buffer->release();
            return true;
        }
        void batch_end(Ring&) noexcept override {
            EXPECT_EQ(from.send(to, 1000, "answer"), 0);
            held = from.device->held();
        }
        Host& from;
        const Host& to;
        unsigned held = 0;
    } first(b, a), second(b, a);
    Sink home;
    a.attach(1000, home);
    b.attach(2000, first);
    b.attach(2001, second);
    a.send(b, 2000, "alone");
    b.ring->poll();
    EXPECT_EQ(first.held, 0u);
    b.ring->flush();
    a.send(b, 2000, "one");
    a.send(b, 2001, "another");
    b.ring->poll();
    EXPECT_EQ(first.held, 1u);
    EXPECT_EQ(second.held, 2u);
    EXPECT_EQ(b.device->held(), 0u);
    a.poll();
    EXPECT_EQ(home.payloads.size(), 3u);
}

TEST_F(RingTest, BurstLongerThanTheSendQueue) {
    Host a(wire, kA, {.max_send_wr = 16, .lazy_tx = LazyTx::fake_clock}), b(wire, kB);
    Sink sink;
    b.attach(2000, sink);
    for (int i = 0; i < 500; i++) ASSERT_EQ(a.send(b, 2000, std::to_string(i)), 0) << i;
    wire.run_until_idle();
    b.poll();
    EXPECT_EQ(sink.payloads.size(), 500u);
    EXPECT_EQ(sink.payloads.back(), "499");
}

// With so long a gap the second frame of a round is always held back, and only the flusher can send it.
const WireConfig kRealLazy{.lazy_tx = LazyTx::real_clock, .burst_gap_ns = 3'600'000'000'000};

TEST_F(RingTest, FlusherSendsHeldFramesWithoutAnyFurtherCall) {
    Host a(wire, kA, kRealLazy), b(wire, kB);
    std::uint64_t sent = 0;
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 2 + round % 5; i++, sent++) ASSERT_EQ(a.send(b, 2000, "x"), 0);
        // No call into the sending ring from here on.
        while (b.device->kernel_frames() != sent) std::this_thread::yield();
        // Long enough at times for the flusher to fall asleep.
        if (round % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
}

TEST_F(RingTest, FlusherServesSeveralRingsAndForgetsThemInTime) {
    for (int round = 0; round < 20; round++) {
        Host a(wire, kA, kRealLazy), c(wire, "198.18.0.3", kRealLazy);
        Host b(wire, kB);
        for (int i = 0; i < 10; i++) {
            a.send(b, 2000, "x");
            c.send(b, 2000, "x");
        }
        if (round % 2 == 0)
            while (b.device->kernel_frames() != 20) std::this_thread::yield();
        // Else the rings go away with held frames, which leave with them.
        a.close();
        c.close();
        EXPECT_EQ(b.device->kernel_frames(), 20u);
    }
}

}  // namespace
}  // namespace vma::ring
