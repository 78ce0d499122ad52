// SPDX-License-Identifier: BSD-2-Clause
// The bound of the memory of all connections: peers that never read, peers that send what nobody reads, and
// connections that their program has closed.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libvma/tcp/memory_bound.h"
#include "tcp_scripted.h"

namespace vma::tcp::test {
namespace {

constexpr std::size_t kMiB = 1u << 20;

// Memory that others use.
class Others {
  public:
    explicit Others(std::size_t bytes) : bytes_(static_cast<std::int64_t>(bytes)) {
        lwip::count_used(bytes_);
    }
    ~Others() { lwip::count_used(-bytes_); }
    Others(const Others&) = delete;
    Others& operator=(const Others&) = delete;

  private:
    const std::int64_t bytes_;
};

// Bounds above what is used at the beginning.
class TcpMemory : public testing::Test {
  protected:
    TcpMemory() { bounds(2 * kMiB, 3 * kMiB, 4 * kMiB); }
    ~TcpMemory() override {
        lwip::set_bounds(kNone, kNone, kNone);
        memory_bound::set_max_orphans(1u << 20);
    }
    void bounds(std::size_t low, std::size_t pressure, std::size_t high) {
        lwip::flush_thread_cache();
        const std::size_t now = lwip::memory_use().used;
        lwip::set_bounds(now + low, now + pressure, now + high);
    }
    // Writes until there is no room: bytes.
    static std::size_t fill(Connection* c) {
        const std::string text(32 << 10, 'x');
        std::size_t all = 0;
        for (ssize_t n; (n = send(c, text)) > 0;) all += static_cast<std::size_t>(n);
        return all;
    }
    static bool writable(const Connection* c) { return (c->events() & EPOLLOUT) != 0; }

    static constexpr std::size_t kNone = SIZE_MAX / 2;
};

TEST_F(TcpMemory, PeersThatNeverRead) {
    World w;
    w.options.receive_window = 16 << 10;
    w.listen(4096);
    lwip::flush_thread_cache();
    const auto before = lwip::memory_use().used;
    std::vector<Connection*> clients;
    for (int i = 0; i < 100; i++) {
        Connection *c, *s;
        ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
        clients.push_back(c);
    }
    for (int round = 0; round < 3; round++)
        for (Connection* c : clients) {
            (void)fill(c);
            w.settle();
        }
    // A hundred peers would take 25 MiB and more.
    EXPECT_LE(lwip::memory_use().used - before, 4 * kMiB + 100 * (8u << 10));
    // Each of them still has what makes progress possible, and one that reads gets all.
    for (Connection* c : clients) EXPECT_GT(c->unacked_bytes(), 4000u);
}

TEST_F(TcpMemory, WritesAndPollAgreeAndGoOnWhenThereIsMemory) {
    World w;
    Connection *c, *s;
    w.options.receive_window = 16 << 10;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    auto others = std::make_unique<Others>(5 * kMiB);
    ASSERT_TRUE(memory_bound::over());
    const std::size_t written = fill(c);
    EXPECT_GT(written, 0u) << "some is always taken";
    EXPECT_LE(written, 16u << 10);
    w.settle();
    (void)fill(c);
    EXPECT_FALSE(writable(c));
    EXPECT_EQ(send(c, "x"), -EAGAIN);
    others.reset();
    ASSERT_FALSE(memory_bound::scarce());
    // Nothing comes from the peer, whose window is closed.
    EXPECT_TRUE(w.until([&] { return writable(c); }, kSec));
    EXPECT_GT(fill(c), 100u << 10);
}

TEST_F(TcpMemory, PressureShrinksSendBuffersToAShareAndEndsAtTheLowBound) {
    World w;
    Connection *c, *s;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    const std::uint32_t limit = c->send_buffer();
    EXPECT_GE(limit, 256u << 10);
    std::vector<Connection*> more;
    for (int i = 0; i < 50; i++) {
        Connection *other, *server;
        ASSERT_NO_FATAL_FAILURE(w.pair(other, server));
        more.push_back(other);
    }
    {
        const Others others(3 * kMiB + kMiB / 2);
        ASSERT_EQ(lwip::memory_level(), lwip::MemoryLevel::pressure);
        ASSERT_EQ(send(c, "x"), 1);
        EXPECT_LT(c->send_buffer(), limit / 2);
        EXPECT_GE(c->send_buffer(), 16u << 10);
    }
    {
        const Others others(2 * kMiB + kMiB / 2);
        ASSERT_EQ(lwip::memory_level(), lwip::MemoryLevel::none) << "below the bound where pressure begins";
    }
    auto fewer = std::make_unique<Others>(3 * kMiB + kMiB / 2);
    const Others rest(2 * kMiB + kMiB / 2);
    fewer.reset();
    EXPECT_EQ(lwip::memory_level(), lwip::MemoryLevel::pressure) << "above the bound where it ends";
}

TEST_F(TcpMemory, SendBufferOfTheProgramIsBoundedToo) {
    World w;
    w.options.send_buffer = 8 << 20;
    w.options.receive_window = 16 << 10;
    Connection *c, *s;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    (void)fill(c);
    EXPECT_LE(c->unacked_bytes(), 4 * kMiB + (64u << 10));
}

// ---- received data ----

struct Starved : TcpMemory {
    void establish() { ASSERT_NO_FATAL_FAILURE(t.establish()); }
    std::uint32_t window() {
        const auto heard = t.peer.take();
        return heard.empty() ? ~0u : heard.back().window;
    }

    Scripted t;
};

TEST_F(Starved, DataBehindUnreadDataIsDroppedAndTheWindowClosed) {
    ASSERT_NO_FATAL_FAILURE(establish());
    t.peer.say(kAck | kPsh, "first");
    (void)t.peer.take();
    const auto drops = memory_bound::counts().dropped_segments;
    auto others = std::make_unique<Others>(5 * kMiB);
    const std::uint32_t seq = t.peer.snd;
    t.peer.say(kAck | kPsh, "second");
    EXPECT_EQ(window(), 0u);
    EXPECT_EQ(t.c->readable(), 5u);
    EXPECT_EQ(memory_bound::counts().dropped_segments, drops + 1);
    t.peer.snd = seq;
    t.peer.say(kAck | kPsh, "second");  // again
    EXPECT_EQ(window(), 0u);
    others.reset();
    // A probe of the closed window learns that it is open.
    t.peer.snd = seq - 1;
    t.peer.put(t.peer.segment(kAck));
    EXPECT_GT(window(), 0u);
    t.peer.snd = seq;
    t.peer.say(kAck | kPsh, "second");
    EXPECT_EQ(receive(t.c), "firstsecond");
    ASSERT_NO_FATAL_FAILURE(t.expect_alive());
}

TEST_F(Starved, ConnectionThatReadsGetsItsData) {
    ASSERT_NO_FATAL_FAILURE(establish());
    const Others others(5 * kMiB);
    for (int i = 0; i < 20; i++) {
        t.peer.say(kAck | kPsh, "data");
        ASSERT_EQ(receive(t.c), "data") << i;
    }
    t.peer.say(kAck | kPsh, "kept");
    const std::uint32_t seq = t.peer.snd;
    t.peer.say(kAck | kPsh, "dropped");
    (void)t.peer.take();
    EXPECT_EQ(receive(t.c), "kept");
    EXPECT_GT(window(), 0u) << "the peer hears that there is room";
    t.peer.snd = seq;
    t.peer.say(kAck | kPsh, "taken");
    EXPECT_EQ(receive(t.c), "taken");
}

TEST_F(Starved, DataOutOfSequenceGoesFirst) {
    ASSERT_NO_FATAL_FAILURE(establish());
    const std::uint32_t seq = t.peer.snd;
    t.peer.snd += 1000;
    t.peer.say(kAck | kPsh, std::string(1000, 'b'));
    EXPECT_GT(t.c->held().memory, 0u);
    {
        const Others others(5 * kMiB);
        t.peer.snd = seq + 3000;
        t.peer.say(kAck | kPsh, std::string(1000, 'd'));
        EXPECT_EQ(t.c->held().memory, 0u);
    }
    (void)t.peer.take();
    // No byte is lost: the peer repeats what is not acknowledged.
    t.peer.snd = seq;
    t.peer.say(kAck | kPsh, std::string(1000, 'a'));
    t.peer.say(kAck | kPsh, std::string(1000, 'b'));
    EXPECT_EQ(receive(t.c), std::string(1000, 'a') + std::string(1000, 'b'));
}

TEST_F(Starved, FinNeedsNoMemory) {
    ASSERT_NO_FATAL_FAILURE(establish());
    t.peer.say(kAck | kPsh, "last");
    const Others others(5 * kMiB);
    t.peer.say(kFin | kAck);
    EXPECT_EQ(t.c->state(), State::close_wait);
    EXPECT_EQ(receive(t.c), "last");
    EXPECT_EQ(receive_result(t.c), 0);
}

TEST_F(Starved, AcksInDroppedSegmentsCount) {
    ASSERT_NO_FATAL_FAILURE(establish());
    t.peer.say(kAck | kPsh, "unread");
    ASSERT_EQ(send(t.c, "mine"), 4);
    const Others others(5 * kMiB);
    (void)t.peer.hear();
    t.peer.say(kAck | kPsh, "dropped");
    EXPECT_EQ(t.c->unacked_bytes(), 0u);
    EXPECT_EQ(t.c->readable(), 6u);
}

// ---- closed connections ----

TEST_F(TcpMemory, OrphansBeyondTheirNumberAreReset) {
    World w;
    w.listen(64);
    memory_bound::set_max_orphans(3);
    const auto resets = memory_bound::counts().reset_orphans;
    std::vector<Connection*> clients, servers;
    for (int i = 0; i < 5; i++) {
        Connection *c, *s;
        ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
        clients.push_back(c);
        servers.push_back(s);
    }
    // Nothing reaches the peers, so closing does not end.
    w.wire.set_hook([&](const verbs::wire::WireDevice& from, std::vector<verbs::wire::Frame>& frames) {
        if (&from == w.b->device) frames.clear();
    });
    for (Connection* c : clients) w.close(c);
    w.settle();
    EXPECT_EQ(memory_bound::counts().reset_orphans, resets + 2);
    int reset = 0;
    for (const Connection* s : servers) reset += s->peek_error() != 0;
    EXPECT_EQ(reset, 2);
    w.wire.set_hook({});
}

TEST_F(TcpMemory, OrphansThatHoldMemoryAreResetWhenItIsOut) {
    World w;
    w.options.receive_window = 16 << 10;
    Connection *c, *s, *d, *e;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    ASSERT_NO_FATAL_FAILURE(w.pair(d, e));
    (void)fill(c);
    w.settle();
    const Others others(5 * kMiB);
    w.close(d);  // holds nothing
    w.settle();
    EXPECT_EQ(e->peek_error(), 0);
    w.close(c);
    w.settle();
    EXPECT_EQ(s->peek_error(), ECONNRESET);
}

TEST_F(TcpMemory, OrphanIsResetWhenMemoryRunsOutLater) {
    World w;
    w.options.receive_window = 16 << 10;
    Connection *c, *s;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    (void)fill(c);
    w.settle();
    w.close(c);
    w.pass(kSec / 10);
    EXPECT_EQ(s->peek_error(), 0);
    const Others others(5 * kMiB);
    // Its probes of the closed window go on for minutes otherwise.
    EXPECT_TRUE(w.until([&] { return s->peek_error() == ECONNRESET; }, 20 * kSec));
}

TEST_F(TcpMemory, OrphanRetriesAreTheSystems) {
    std::map<unsigned, std::uint64_t> ended;
    for (const unsigned retries : {2u, 0u}) {
        Scripted t;
        t.w.options.orphan_retries = retries;
        ASSERT_NO_FATAL_FAILURE(t.establish());
        ASSERT_EQ(send(t.c, "never acknowledged"), 18);
        const std::uint64_t begun = t.w.wire.now();
        t.w.close(t.c);
        EXPECT_TRUE(t.w.until([] { return Connection::count() == 0; }, 900 * kSec));
        ended[retries] = t.w.wire.now() - begun;
    }
    EXPECT_LT(ended[2], 5 * kSec);
    EXPECT_GT(ended[0], 50 * kSec) << "0 is 8";
}

}  // namespace
}  // namespace vma::tcp::test
