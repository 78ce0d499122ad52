// SPDX-License-Identifier: BSD-2-Clause
// A listener before there is a connection: half-open ones and their time, SYN cookies, floods, and what
// becomes of segments that nobody knows.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "libvma/net/kernel_tcp.h"
#include "libvma/tcp/handshake/syn_cookie.h"
#include "libvma/tcp/lwip/memory.h"
#include "tcp_wiretap.h"

namespace vma::tcp::test {
namespace {

// A SYN from anybody.
void put_syn(World& w, verbs::wire::Random& random) {
    Segment s;
    s.from = htonl(0xc6130000u | static_cast<std::uint32_t>(random.below(65536)));
    s.to = w.b->address;
    s.from_port = static_cast<std::uint16_t>(1024 + random.below(60000));
    s.to_port = World::kPort;
    s.seq = static_cast<std::uint32_t>(random.next());
    s.flags = kSyn;
    s.options = option::mss(1460) + option::sack_allowed() + option::scale(7) + option::stamps(5, 0);
    w.a->device->kernel_send(build(s, w.a->device->attr().mac, w.b->device->attr().mac));
}

// Fills the listener's table.
void fill(World& w, std::size_t count = Listener::kMinHalfOpen) {
    verbs::wire::Random random(7);
    for (int i = 0; w.listener->half_open() < count && i < 100'000; i++) {
        put_syn(w, random);
        if (i % 8 == 7) w.poll();
    }
    (void)w.a->device->take_kernel_frames();
    ASSERT_EQ(w.listener->half_open(), count);
}

void expect_streams(World& w, Connection* c, Connection* s, std::uint64_t bytes = 300'000) {
    Stream up{.from = c, .to = s, .total = bytes, .seed = 1},
        down{.from = s, .to = c, .total = bytes, .seed = 2};
    EXPECT_TRUE(w.until(
        [&] {
            for (Stream* x : {&up, &down}) x->send_some(), x->receive_some();
            return (up.done() && down.done()) || up.failed() || down.failed();
        },
        100 * kSec));
    EXPECT_FALSE(up.failed() || down.failed());
}

unsigned options_of(Connection* c) {
    Info info;
    c->info(info);
    return info.basic.tcpi_options;
}

// ---- floods ----

struct Flood {
    const char* name;
    std::uint64_t every_ns, for_ns;
};
class SynFlood : public testing::TestWithParam<Flood> {};

TEST_P(SynFlood, LetsAPeerInThatIsFiveMillisecondsAway) {
    World w;
    w.listen(128);
    w.wire.set_faults(*w.a->device, {.delay_ns = 2'500 * kUs});
    w.wire.set_faults(*w.b->device, {.delay_ns = 2'500 * kUs});
    verbs::wire::Random random(5);
    lwip::flush_thread_cache();
    const auto before = lwip::memory_use();
    Connection *c = nullptr, *s = nullptr;
    const std::uint64_t from = w.wire.now(), middle = from + GetParam().for_ns / 2;
    std::uint64_t frames = 0, syns = 0;
    const unsigned finds = w.b->finds;
    while (w.wire.now() < from + GetParam().for_ns) {
        put_syn(w, random);
        syns++;
        w.wire.advance(GetParam().every_ns);
        if (syns % 16 == 0) w.settle();
        if (syns % 64 == 0) frames += w.a->device->take_kernel_frames().size();
        if (c == nullptr && w.wire.now() >= middle) c = w.connect();
        if (s == nullptr) s = w.accept();
        ASSERT_LE(Connection::count(), 2u);
        ASSERT_LE(w.listener->half_open(), Listener::kMinHalfOpen);
    }
    ASSERT_NE(c, nullptr);
    EXPECT_EQ(c->state(), State::established);
    ASSERT_NE(s, nullptr) << "while the flood lasted";
    // All SYNs were answered, by a few look-ups a second, and take no more memory than the table's.
    EXPECT_GT(frames, syns / 2);
    EXPECT_LE(w.b->finds - finds, 600 * (1 + GetParam().for_ns / kSec));
    lwip::flush_thread_cache();
    EXPECT_LT(lwip::memory_use().used - before.used, 1u << 20);
    w.wire.set_faults(*w.a->device, {});
    w.wire.set_faults(*w.b->device, {});
    expect_streams(w, c, s);
    // The flood is forgotten by itself.
    w.close_all();
    w.pass(100 * kSec);
}

INSTANTIATE_TEST_SUITE_P(TcpListener, SynFlood,
                         testing::Values(Flood{"TenThousandASecond", 100 * kUs, 2 * kSec},
                                         Flood{"AMillionASecond", 1 * kUs, 30 * kMs}),
                         [](const auto& info) { return info.param.name; });

TEST(TcpListener, HalfOpenConnectionsGoByThemselves) {
    World w;
    w.listen();
    Tap tap(w);
    Peer peer(w, *w.a, 3000, *w.b, World::kPort);
    const std::uint64_t start = w.wire.now();
    peer.put(peer.segment(kSyn));
    w.pass(100 * kSec);
    std::vector<std::uint64_t> seconds;
    for (const auto& s : tap.take())
        if (!s.from_a && s.flags == (kSyn | kAck)) seconds.push_back((s.at - start) / kSec);
    EXPECT_EQ(seconds, (std::vector<std::uint64_t>{0, 1, 3, 7, 15, 31}));  // as the kernel's
    EXPECT_EQ(w.listener->half_open(), 0u);
    // Afterwards its ACK is a stranger's.
    peer.rcv = 1;
    peer.put(peer.segment(kAck));
    EXPECT_EQ(w.listener->pending(), 0u);
}

TEST(TcpListener, AFullTableRepeatsLess) {
    World w;
    w.listen(128);
    ASSERT_NO_FATAL_FAILURE(fill(w));
    w.pass(10 * kSec);  // 1 + 2 + 4
    EXPECT_LT(w.listener->half_open(), Listener::kMinHalfOpen);
    w.pass(60 * kSec);
    EXPECT_EQ(w.listener->half_open(), 0u);
}

// ---- cookies ----

TEST(TcpCookie, HoldsWhatItWasMadeOf) {
    const net::Endpoints ends{{inet_addr("198.18.0.2"), htons(80)}, {inet_addr("198.18.0.1"), htons(1000)}};
    const Time now(Nsec(1000 * kSec));
    struct {
        std::uint16_t mss, kept;
    } cases[] = {{0, 536},     {1, 536},     {536, 536},   {1219, 536},  {1220, 1220},
                 {1399, 1220}, {1400, 1400}, {1460, 1460}, {65535, 1460}};
    for (const auto& x : cases) {
        const std::uint32_t cookie = make_cookie(ends, 77, x.mss, now);
        EXPECT_EQ(read_cookie(ends, 77, cookie, now), x.kept);
        EXPECT_EQ(read_cookie(ends, 77, cookie, now + kCookieTime), x.kept);
        EXPECT_FALSE(read_cookie(ends, 77, cookie, now + 2 * kCookieTime));
        EXPECT_FALSE(read_cookie(ends, 77, cookie, now - kCookieTime));
        for (int bit = 0; bit < 32; bit++) {
            EXPECT_FALSE(read_cookie(ends, 77, cookie ^ 1u << bit, now)) << bit;
            EXPECT_FALSE(read_cookie(ends, 77 ^ 1u << bit, cookie, now)) << bit;
            net::Endpoints other = ends;
            other.remote.address = net::Address(ends.remote.address.v4() ^ 1u << bit);
            EXPECT_FALSE(read_cookie(other, 77, cookie, now)) << bit;
        }
        net::Endpoints other = ends;
        other.remote.port++;
        EXPECT_FALSE(read_cookie(other, 77, cookie, now));
    }
    const auto at = [](std::uint64_t ms) { return Time(Nsec(ms * kMs)); };
    for (const bool sack : {false, true})
        for (int scale = -1; scale <= 14; scale++)
            for (const std::uint64_t ms : {0u, 1u, 63u, 64u, 100'000u, ~0u}) {
                SynOptions said, got;
                said.sack = sack;
                said.has_scale = scale >= 0;
                said.scale = static_cast<std::uint8_t>(std::max(scale, 0));
                const std::uint32_t stamp = make_cookie_stamp(said, at(ms));
                EXPECT_LT(static_cast<std::uint32_t>(ms) - stamp, 64u) << "never from the future";
                ASSERT_TRUE(read_cookie_stamp(stamp, at(ms + 1000), got));
                EXPECT_EQ(got.sack, said.sack);
                EXPECT_EQ(got.has_scale, said.has_scale);
                EXPECT_EQ(got.scale, said.scale);
                EXPECT_FALSE(read_cookie_stamp(stamp, at(ms + 200'000), got));
                EXPECT_FALSE(read_cookie_stamp(stamp + 2000, at(ms + 1000), got));
            }
}

struct Kind {
    const char* name;
    bool stamps;
    unsigned mode;  // net.ipv4.tcp_syncookies
};
class Cookies : public testing::TestWithParam<Kind> {};

TEST_P(Cookies, MakeAConnectionThatWorks) {
    World w;
    w.options.syncookies = GetParam().mode;
    w.listen(128);
    if (GetParam().mode == 1) {
        ASSERT_NO_FATAL_FAILURE(fill(w));
    }
    w.options.timestamps = GetParam().stamps;
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    EXPECT_GE(w.listener->counters().cookies_sent, 1u);
    EXPECT_EQ(w.listener->counters().cookies_accepted, 1u);
    const unsigned all = TCPI_OPT_TIMESTAMPS | TCPI_OPT_SACK | TCPI_OPT_WSCALE;
    EXPECT_EQ(options_of(c) & all, GetParam().stamps ? all : 0u);
    EXPECT_EQ(options_of(s) & all, GetParam().stamps ? all : 0u);
    EXPECT_EQ(s->mss(), GetParam().stamps ? 1448u : 1460u);
    Info info;
    s->info(info);
    Info other;
    c->info(other);
    EXPECT_EQ(info.basic.tcpi_snd_wscale, other.basic.tcpi_rcv_wscale);
    EXPECT_EQ(info.basic.tcpi_rcv_wscale, other.basic.tcpi_snd_wscale);
    expect_streams(w, c, s, 3'000'000);
}

INSTANTIATE_TEST_SUITE_P(TcpListener, Cookies,
                         testing::Values(Kind{"WithStamps", true, 1}, Kind{"WithoutStamps", false, 1},
                                         Kind{"Always", true, 2}),
                         [](const auto& info) { return info.param.name; });

// The scale that was announced counts, whatever the program has set in the meantime.
TEST(TcpListener, TheAnnouncedScaleStays) {
    for (const bool cookie : {false, true}) {
        World w;
        w.options.syncookies = cookie ? 2 : 0;
        w.listen(128);
        Peer peer(w, *w.a, 3000, *w.b, World::kPort);
        Segment s = peer.segment(kSyn);
        s.options = option::mss(1460) + option::scale(7) + option::stamps(100, 0);
        peer.put(s);
        peer.snd = s.end();
        const auto answers = peer.hear();
        ASSERT_EQ(answers.size(), 1u);
        const unsigned scale = *said(answers[0]).scale;
        EXPECT_EQ(scale, 5u);
        w.listener->change([](Options& o) { o.receive_window = 8 << 20; });
        peer.stamps = true;
        peer.put(peer.segment(kAck));
        Connection* c = w.accept();
        ASSERT_NE(c, nullptr);
        Info info;
        c->info(info);
        EXPECT_EQ(info.basic.tcpi_rcv_wscale, scale);
        EXPECT_EQ(info.basic.tcpi_snd_wscale, 7u);
    }
}

TEST(TcpListener, ForgedCookiesAreReset) {
    World w;
    w.listen(128);
    ASSERT_NO_FATAL_FAILURE(fill(w));
    Peer peer(w, *w.a, 3000, *w.b, World::kPort);
    Segment syn = peer.segment(kSyn);
    syn.options = option::mss(1460);
    peer.put(syn);
    const auto answers = peer.take();
    ASSERT_EQ(answers.size(), 1u);
    ASSERT_EQ(answers[0].flags, kSyn | kAck);
    const std::uint32_t iss = answers[0].seq;
    auto reset = [&](const Segment& s) {
        peer.put(s);
        const auto heard = peer.take();
        return heard.size() == 1 && heard[0].flags == kRst && heard[0].seq == s.ack;
    };
    Segment ack = peer.segment(kAck);
    ack.seq = syn.end();
    ack.ack = iss + 1;
    for (const int off : {-1, 1, 1 << 24, 1 << 26}) {
        Segment s = ack;
        s.ack += static_cast<std::uint32_t>(off);
        EXPECT_TRUE(reset(s)) << off;
        s = ack;
        s.seq += static_cast<std::uint32_t>(off);
        EXPECT_TRUE(reset(s)) << off;
    }
    verbs::wire::Random random(3);
    for (int i = 0; i < 10'000; i++) {
        ack.ack = static_cast<std::uint32_t>(random.next());
        ASSERT_TRUE(reset(ack));
    }
    // A time stamp that is not ours, where there was none.
    ack.ack = iss + 1;
    Segment stamped = ack;
    stamped.options = option::stamps(1, 0x12345678);
    EXPECT_TRUE(reset(stamped));
    // Other segments with the right numbers.
    for (const int flags : {kAck | kRst, kSyn | kAck, int{kSyn}, int{kFin}}) {
        Segment s = ack;
        s.flags = static_cast<std::uint8_t>(flags);
        peer.put(s);
        (void)peer.take();
        EXPECT_EQ(w.listener->pending(), 0u);
    }
    EXPECT_EQ(w.listener->counters().cookies_accepted, 0u);
    // With its first data.
    ack.flags |= kPsh;
    ack.payload = "hello";
    peer.put(ack);
    Connection* s = w.accept();
    ASSERT_NE(s, nullptr);
    EXPECT_EQ(receive(s), "hello");
    peer.snd = ack.end();
    peer.rcv = iss + 1;
    EXPECT_EQ(send(s, "you"), 3);
    std::string got;
    for (const Segment& x : peer.hear()) got += x.payload;
    EXPECT_EQ(got, "you");
    EXPECT_EQ(w.listener->counters().cookies_accepted, 1u);
}

TEST(TcpListener, OldCookiesAreReset) {
    World w;
    w.options.syncookies = 2;
    w.listen(128);
    Peer peer(w, *w.a, 3000, *w.b, World::kPort);
    peer.put(peer.segment(kSyn));
    const auto answers = peer.take();
    ASSERT_EQ(answers.size(), 1u);
    peer.snd++;
    peer.rcv = answers[0].seq + 1;
    w.pass((2 * kCookieTime).count() + kSec);
    peer.put(peer.segment(kAck));
    const auto heard = peer.take();
    ASSERT_EQ(heard.size(), 1u);
    EXPECT_EQ(heard[0].flags, kRst);
    EXPECT_EQ(w.listener->pending(), 0u);
}

TEST(TcpListener, WithoutCookiesAFullTableDropsSyns) {
    World w;
    w.options.syncookies = 0;
    w.listen(128);
    ASSERT_NO_FATAL_FAILURE(fill(w));
    Peer peer(w, *w.a, 3000, *w.b, World::kPort);
    peer.put(peer.segment(kSyn));
    EXPECT_TRUE(peer.take().empty());
    EXPECT_GE(w.listener->counters().refused, 1u);
    EXPECT_EQ(w.listener->counters().cookies_sent, 0u);
    // There is room again some seconds later.
    Connection* c = w.connect();
    EXPECT_TRUE(w.until([&] { return c->state() == State::established; }, 100 * kSec));
}

TEST(TcpListener, AFullAcceptQueueHoldsCookiesUp) {
    World w;
    w.options.syncookies = 2;
    w.listen(1);
    std::vector<Peer> peers;
    for (std::uint16_t i = 0; i < 3; i++) {
        Peer& peer = peers.emplace_back(w, *w.a, static_cast<std::uint16_t>(3000 + i), *w.b, World::kPort);
        peer.put(peer.segment(kSyn));
        const auto answers = peer.take();
        ASSERT_EQ(answers.size(), 1u);
        peer.snd++;
        peer.rcv = answers[0].seq + 1;
    }
    for (Peer& peer : peers) peer.put(peer.segment(kAck));
    EXPECT_EQ(w.listener->pending(), 2u);
    EXPECT_GE(w.listener->counters().overflows, 1u);
    EXPECT_TRUE(peers[2].take().empty()) << "dropped, not refused";
    ASSERT_NE(w.accept(), nullptr);
    peers[2].put(peers[2].segment(kAck | kPsh, "late"));
    EXPECT_EQ(w.listener->pending(), 2u);
    ASSERT_NE(w.accept(), nullptr);
    Connection* s = w.accept();
    ASSERT_NE(s, nullptr);
    EXPECT_EQ(receive(s), "late");
}

// ---- half-open connections and their segments ----

struct Half {
    World w;
    Peer peer{w, *w.a, 3000, *w.b, World::kPort};
    void start() {
        w.listen();
        Segment s = peer.segment(kSyn);
        s.options = option::mss(1460) + option::stamps(100, 0);
        peer.put(s);
        peer.snd = s.end();
        ASSERT_EQ(peer.hear().size(), 1u);
        peer.stamps = true;
        ASSERT_EQ(w.listener->half_open(), 1u);
    }
};

TEST(TcpListener, GuessesDoNotEndAHalfOpenConnection) {
    struct {
        const char* what;
        std::uint8_t flags;
        std::uint32_t seq_off, ack_off;
        std::uint8_t answer;  // 0: none
    } const cases[] = {{"RST in the window", kRst, 1000, 0, kAck},
                       {"RST outside", kRst, 5u << 20, 0, 0},
                       {"SYN with another number", kSyn, 1000, 0, kAck},
                       {"SYN from elsewhere", kSyn, 5u << 20, 0, kAck},
                       {"ACK of what was not sent", kAck, 0, 1, kRst},
                       {"data outside the window", kAck, 5u << 20, 0, kAck},
                       {"old data", kAck, 0u - 1000, 0, kAck},
                       {"nothing", 0, 0, 0, 0},
                       {"FIN without ACK", kFin, 0, 0, 0}};
    for (const auto& x : cases) {
        SCOPED_TRACE(x.what);
        Half t;
        ASSERT_NO_FATAL_FAILURE(t.start());
        Segment s = t.peer.segment(x.flags);
        s.seq += x.seq_off;
        s.ack += x.ack_off;
        for (int i = 0; i < 5; i++) t.peer.put(s);
        auto heard = t.peer.take();
        EXPECT_EQ(heard.size(), x.answer == 0 ? 0u : x.answer == kRst ? 5u : 1u);
        for (const Segment& a : heard) EXPECT_EQ(a.flags, x.answer);
        EXPECT_EQ(t.w.listener->half_open(), 1u);
        t.peer.put(t.peer.segment(kAck));
        EXPECT_EQ(t.w.listener->pending(), 1u);
    }
    Half t;
    ASSERT_NO_FATAL_FAILURE(t.start());
    t.peer.stamp = 99;  // older than the SYN
    t.peer.put(t.peer.segment(kAck));
    EXPECT_EQ(t.w.listener->pending(), 0u);
    t.peer.put(t.peer.segment(kRst));
    EXPECT_EQ(t.w.listener->half_open(), 0u);
}

TEST(TcpListener, DataWithTheLastAckAndInPlaceOfIt) {
    Half t;
    ASSERT_NO_FATAL_FAILURE(t.start());
    // The ACK got lost, and so did the first segment.
    Segment second = t.peer.segment(kAck | kPsh, "second");
    second.seq += 5;
    t.peer.put(second);
    ASSERT_EQ(t.w.listener->pending(), 1u);
    t.peer.put(t.peer.segment(kAck | kPsh, "first"));
    Connection* s = t.w.accept();
    ASSERT_NE(s, nullptr);
    EXPECT_EQ(receive(s), "firstsecond");
}

// Before the rules go: whose last ACK would come to the kernel must not be answered here.
TEST(TcpListener, LeavesNewHandshakesToTheKernel) {
    Half t;
    ASSERT_NO_FATAL_FAILURE(t.start());
    t.w.listener->leave_new_to_kernel(true);
    Peer other{t.w, *t.w.a, 3001, *t.w.b, World::kPort};
    Segment syn = other.segment(kSyn);
    syn.options = option::mss(1460);
    other.put(syn);
    Segment ack = other.segment(kAck);  // of the kernel's answer
    ack.seq = syn.end();
    other.put(ack);
    EXPECT_TRUE(other.take().empty());
    EXPECT_EQ(t.w.listener->half_open(), 1u);
    t.peer.put(t.peer.segment(kAck));
    EXPECT_EQ(t.w.listener->half_open(), 0u);
    EXPECT_EQ(t.w.listener->pending(), 1u);
    t.w.listener->leave_new_to_kernel(false);
    other.put(syn);
    EXPECT_EQ(other.take().size(), 1u);
    EXPECT_EQ(t.w.listener->half_open(), 1u);
}

// As the kernel: a bare ACK does not count, until data comes or the time is over.
TEST(TcpListener, DeferredAccept) {
    {
        World w;
        w.options.defer_accept = std::chrono::seconds(3);
        w.listen();
        Connection* c = w.connect();
        w.pass(500 * kMs);
        EXPECT_EQ(c->state(), State::established);
        EXPECT_EQ(w.listener->pending(), 0u);
        EXPECT_EQ(w.listener->half_open(), 1u);
        EXPECT_EQ(send(c, "hello"), 5);
        w.pass(kMs);
        Connection* s = w.accept();
        ASSERT_NE(s, nullptr);
        EXPECT_EQ(receive(s), "hello");
        expect_streams(w, c, s);
    }
    World w;
    w.options.defer_accept = std::chrono::seconds(3);  // two timeouts: after 1 and 3 s
    w.listen();
    Tap tap(w);
    Connection* c = w.connect();
    w.pass(2'900 * kMs);
    EXPECT_EQ(w.listener->pending(), 0u);
    EXPECT_TRUE(w.until([&] { return w.listener->pending() == 1; }, kSec));
    Connection* s = w.accept();
    ASSERT_NE(s, nullptr);
    unsigned answers = 0;
    for (const auto& x : tap.take()) answers += x.flags == (kSyn | kAck);
    EXPECT_EQ(answers, 2u) << "nothing is repeated while data is waited for";
    expect_streams(w, c, s);
}

// ---- the end of the handshake ----

// There is no rule to be had: the peer, who believes itself connected, hears of it.
TEST(TcpListener, ConnectionWithoutARuleIsReset) {
    World w;
    w.listen();
    w.b->device->refuse_flows(true);
    Connection* c = w.connect();
    w.pass(kSec);
    EXPECT_EQ(c->state(), State::close);
    EXPECT_EQ(c->take_error(), ECONNRESET);
    EXPECT_EQ(w.listener->accept(), nullptr);
    EXPECT_EQ(w.listener->half_open(), 0u);
    EXPECT_EQ(Connection::count(), 1u);
    w.b->device->refuse_flows(false);
    Connection *d = nullptr, *s = nullptr;
    w.pair(d, s);
}

// The next connection with the same four numbers begins beyond what the old one used.
TEST(TcpListener, ReopenedFromTimeWaitBeyondTheOldNumbers) {
    World w;
    w.listen();
    Peer peer(w, *w.a, 3000, *w.b, World::kPort);
    ASSERT_NO_FATAL_FAILURE(peer.connect());
    Connection* s = w.accept();
    ASSERT_NE(s, nullptr);
    const std::string much(30'000, 'm');
    EXPECT_EQ(send(s, much), 30'000);
    for (int i = 0; i < 100 && peer.rcv != peer.syn.end() + 30'000; i++) {
        (void)peer.hear();
        peer.say(kAck);
    }
    s->shutdown(SHUT_WR);
    (void)peer.hear();
    peer.say(kAck);
    peer.say(kFin | kAck);
    w.poll();
    ASSERT_EQ(s->state(), State::time_wait);
    const std::uint32_t used = peer.rcv;
    (void)peer.take();
    peer.snd += 100'000;
    Segment syn = peer.segment(kSyn);
    peer.put(syn);
    const auto answers = peer.take();
    ASSERT_EQ(answers.size(), 1u);
    ASSERT_EQ(answers[0].flags, kSyn | kAck);
    EXPECT_EQ(answers[0].seq - used, 65537u);  // the kernel's distance
    peer.snd = syn.end();
    peer.rcv = answers[0].end();
    peer.put(peer.segment(kAck));
    EXPECT_NE(w.accept(), nullptr);
}

// ---- segments of nobody ----

// Segments of 20,000 connections that nobody has, at one moment.
void flood_with_strays(World& w) {
    verbs::wire::Random random(5);
    for (int i = 0; i < 20'000; i++) {
        Segment s;
        s.from = htonl(0xc6130000u | static_cast<std::uint32_t>(random.below(65536)));
        s.to = w.b->address;
        s.from_port = static_cast<std::uint16_t>(1024 + random.below(60000));
        s.to_port = World::kPort;
        s.flags = kAck;
        w.a->device->kernel_send(build(s, w.a->device->attr().mac, w.b->device->attr().mac));
        if (i % 16 == 15) w.poll();
        if (i % 256 == 255) (void)w.a->device->take_kernel_frames();
    }
}

TEST(TcpListener, QuestionsToTheKernelAreLimited) {
    World w;
    w.listen();
    Connection::note_moved();
    flood_with_strays(w);
    // Each that is answered was asked about; the others are dropped.
    EXPECT_GT(w.listener->counters().resets_sent, 500u);
    EXPECT_LE(w.listener->counters().resets_sent, 2048u);
}

// The flood uses up the questions about strangers. Who answers a cookie believes itself connected, and may
// wait for this end to speak: the segment that answers is not to be dropped with the strangers'.
TEST(TcpListener, CookiesAreTakenBesideAFloodOfStrays) {
    Connection::note_moved();
    for (const bool coarse : {false, true}) {
        SCOPED_TRACE(coarse);
        World w(1, {.coarse_steering = coarse});
        w.options.syncookies = 2;
        w.listen(128);
        flood_with_strays(w);
        Connection *c = nullptr, *s = nullptr;
        ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
        EXPECT_EQ(w.listener->counters().cookies_accepted, 1u);
        EXPECT_EQ(send(s, "hello"), 5);
        w.poll();
        EXPECT_EQ(receive(c), "hello");
    }
}

TEST(KernelTcp, KnowsConnectionsOverOneSocket) {
    const int listening = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{}, from{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof to;
    ASSERT_EQ(bind(listening, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    ASSERT_EQ(listen(listening, 1), 0);
    ASSERT_EQ(getsockname(listening, reinterpret_cast<sockaddr*>(&to), &length), 0);
    ASSERT_EQ(connect(client, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    ASSERT_EQ(getsockname(client, reinterpret_cast<sockaddr*>(&from), &length), 0);
    net::KernelTcp kernel;
    int fds[64];
    const std::size_t none = InternalFd::list(fds, 64);
    for (int i = 0; i < 100; i++) {
        EXPECT_TRUE(kernel.has({net::Endpoint(from), net::Endpoint(to)}, 1));
        EXPECT_FALSE(kernel.has({net::Endpoint(from), {to.sin_addr.s_addr, htons(1)}}, 1));
        EXPECT_FALSE(kernel.has({net::Endpoint(to), {inet_addr("198.18.0.1"), htons(1)}}, 1))
            << "that is the listener";
        EXPECT_EQ(InternalFd::list(fds, 64), none + 1);
    }
    close(client);
    close(listening);
}

}  // namespace
}  // namespace vma::tcp::test
