// SPDX-License-Identifier: BSD-2-Clause
// The beginning of a connection when the other end is hostile: segment sizes that nobody can mean, and
// half-open connections that end while their frames are under way.
#include <gtest/gtest.h>

#include "tcp_wiretap.h"

namespace vma::tcp::test {
namespace {

// ---- the peer's segment size ----

// Writes `length` bytes and plays the receiver. Returns what came; `largest` is the longest segment.
std::string carry(World& w, Peer& peer, Connection* c, std::size_t length, std::size_t& largest) {
    std::string all(length, '\0'), got;
    for (std::size_t i = 0; i < length; i++) all[i] = stream_byte(i, 7);
    std::size_t sent = 0;
    const std::uint32_t base = peer.rcv;
    for (int i = 0; i < 2000 && got.size() < length; i++) {
        if (sent < length) {
            const ssize_t n = send(c, all.substr(sent));
            if (n > 0) sent += static_cast<std::size_t>(n);
        }
        const auto heard = peer.take();
        for (const Segment& s : heard) {
            largest = std::max(largest, s.payload.size());
            if (auto v = said(s).stamp) peer.echo = *v;
            if (s.seq == base + got.size()) got += s.payload;
        }
        peer.rcv = base + static_cast<std::uint32_t>(got.size());
        if (heard.empty())
            w.pass(100 * kMs);
        else
            peer.say(kAck);
    }
    EXPECT_TRUE(got == all);
    return got;
}

struct Size {
    std::uint16_t mss;
    bool stamps;
    std::size_t segment;  // what the kernel sends then, at most
};
class PeerMss : public testing::TestWithParam<Size> {
  protected:
    std::string options() const {
        return option::mss(GetParam().mss) + (GetParam().stamps ? option::stamps(100, 0) : std::string());
    }
};

TEST_P(PeerMss, OfASynIsBounded) {
    World w;
    w.listen();
    Peer peer(w, *w.a, 3000, *w.b, World::kPort);
    ASSERT_NO_FATAL_FAILURE(peer.connect(options()));
    Connection* s = w.accept();
    ASSERT_NE(s, nullptr);
    EXPECT_EQ(s->mss(), GetParam().segment);
    std::size_t largest = 0;
    carry(w, peer, s, 4000, largest);
    EXPECT_EQ(largest, std::min<std::size_t>(GetParam().segment, 4000));
}

TEST_P(PeerMss, OfASynAckIsBounded) {
    World w;
    Peer peer(w, *w.b, kTheirs, *w.a, kMine);
    Connection* c =
        Connection::create(*w.a, {{w.a->address, htons(kMine)}, {w.b->address, htons(kTheirs)}}, w.options);
    w.opened.push_back(c);
    ASSERT_EQ(c->connect(), 0);
    ASSERT_NO_FATAL_FAILURE(peer.answer(options()));
    ASSERT_EQ(c->state(), State::established);
    EXPECT_EQ(c->mss(), GetParam().segment);
    std::size_t largest = 0;
    carry(w, peer, c, 4000, largest);
    EXPECT_EQ(largest, std::min<std::size_t>(GetParam().segment, 4000));
}

// The kernel's floor of 48 bytes has room for our time stamps; 0 counts as not said.
INSTANTIATE_TEST_SUITE_P(TcpHandshake, PeerMss,
                         testing::Values(Size{1, true, 36}, Size{11, true, 36}, Size{12, true, 36},
                                         Size{13, true, 36}, Size{47, true, 36}, Size{49, true, 37},
                                         Size{0, true, 524}, Size{65535, true, 1448}, Size{1, false, 48},
                                         Size{0, false, 536}, Size{536, false, 536}),
                         [](const auto& info) {
                             return std::to_string(info.param.mss) + (info.param.stamps ? "WithStamps" : "");
                         });

// Segments of an established connection that repeat the options of a handshake change nothing.
TEST(TcpHandshake, OptionsOfASynCountInSynsOnly) {
    for (const bool stamps : {true, false}) {
        World w;
        w.listen();
        Peer peer(w, *w.a, 3000, *w.b, World::kPort);
        ASSERT_NO_FATAL_FAILURE(peer.connect(option::mss(1000) + option::scale(2) +
                                             (stamps ? option::stamps(100, 0) : std::string())));
        Connection* s = w.accept();
        ASSERT_NE(s, nullptr);
        const std::uint32_t mss = stamps ? 988 : 1000;
        ASSERT_EQ(s->mss(), mss);
        for (const std::uint16_t said : {1, 11, 100, 9000}) {
            Segment x = peer.segment(kAck | kPsh, "data");
            x.options += option::mss(said) + option::scale(14) + option::sack_allowed();
            peer.put(x);
            peer.snd = x.end();
            EXPECT_EQ(receive(s), "data");
            s->change([](Options&) {});  // has the size computed anew
            EXPECT_EQ(s->mss(), mss);
        }
        Info info;
        s->info(info);
        EXPECT_EQ(info.basic.tcpi_options & (TCPI_OPT_WSCALE | TCPI_OPT_SACK), TCPI_OPT_WSCALE);
        EXPECT_EQ(info.basic.tcpi_snd_wscale, 2u);
        (void)peer.hear();
        std::size_t largest = 0;
        carry(w, peer, s, 8000, largest);
        EXPECT_EQ(largest, mss);
    }
}

// ---- half-open connections and the batch ----

Segment syn_from(const World& w, std::uint32_t number) {
    Segment s;
    s.from = htonl(0xc6130000u + number);
    s.to = w.b->address;
    s.from_port = 1024;
    s.to_port = World::kPort;
    s.seq = 77'000 + number;
    s.flags = kSyn;
    return s;
}
void put_frame(World& w, const Segment& s) {
    w.a->device->kernel_send(build(s, w.a->device->attr().mac, w.b->device->attr().mac));
}

// The table is full, and one batch has a segment of its oldest member and the SYN that takes its place.
TEST(TcpHandshake, HalfOpenConnectionGoesWhileItsFramesAreStaged) {
    World w;
    w.listen(4);
    std::uint32_t number = 0;
    for (; number < 300; number++) {
        put_frame(w, syn_from(w, number));
        if (number % 8 == 0) w.poll();
    }
    w.poll();
    for (int round = 0; round < 400; round++, number++) {
        for (const std::uint32_t back : {256u, 255u}) {
            Segment again = syn_from(w, number - back);
            again.flags = kAck | kPsh;
            again.seq++;
            again.payload = "x";
            put_frame(w, again);
        }
        put_frame(w, syn_from(w, number));
        w.poll();
        (void)w.a->device->take_kernel_frames();
    }
    EXPECT_EQ(w.listener->pending(), 0u);
}

// Whoever connects first is accepted first: the answers leave in the order of the SYNs, however many one
// batch has.
TEST(TcpHandshake, SynsAreAnsweredInTheirOrder) {
    for (const std::uint32_t burst : {2u, 5u, 31u, 32u, 33u, 100u, 200u}) {
        World w;
        w.listen(256);
        for (std::uint32_t i = 0; i < burst; i++) put_frame(w, syn_from(w, i));
        w.poll();
        std::vector<std::uint32_t> order;
        for (const Frame& f : w.a->device->take_kernel_frames())
            if (auto s = parse(f); s && s->flags == (kSyn | kAck)) order.push_back(s->ack - 77'001);
        ASSERT_EQ(order.size(), burst);
        EXPECT_TRUE(std::ranges::is_sorted(order)) << burst;
    }
}

// A frame of another flow, behind the half-open connection's in the same batch, while whose delivery the
// connection ends.
TEST(TcpHandshake, HalfOpenConnectionExpiresWhileItsFramesAreStaged) {
    struct Meanwhile final : ring::FrameSink {
        std::function<void()> what;
        bool deliver(ring::RxBuffer*) noexcept override { return what(), false; }
    } other;
    World w;
    w.listen();
    const verbs::FlowSpec spec{IPPROTO_TCP, w.b->address, htons(81), 0, 0};
    ASSERT_TRUE(w.b->ring->attach(spec, &other, ring::Share::latest));
    unsigned calls = 0;
    other.what = [&] {
        calls++;
        // As the internal thread does it, between one frame and the next: all retries and their end.
        for (int i = 0; i < 200; i++) {
            g_epoch += Nsec(kSec);
            Background::instance().wheel().expire(wire_clock());
        }
    };
    Segment s = syn_from(w, 1);
    put_frame(w, s);
    w.poll();
    Segment ack = s;
    ack.flags = kAck;
    ack.seq++;
    ack.ack = 12345;
    put_frame(w, ack);
    Segment elsewhere = s;
    elsewhere.to_port = 81;
    put_frame(w, elsewhere);
    w.poll();
    EXPECT_EQ(calls, 1u);
    w.b->ring->detach(spec, &other);
}

}  // namespace
}  // namespace vma::tcp::test
