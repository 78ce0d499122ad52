// SPDX-License-Identifier: BSD-2-Clause
// Explicit congestion notification (RFC 3168) as Linux 6.18 has it: each rule by itself, then a connection
// whose frames the wire marks. What the kernel does was measured with the same segments.
#include <gtest/gtest.h>

#include "libvma/tcp/ecn.h"
#include "libvma/tcp/handshake/syn_cookie.h"
#include "tcp_scripted.h"

namespace vma::tcp::test {
namespace {

constexpr std::uint8_t kBoth = kEce | kCwr, kNot = 0, kEct1 = 1, kEct0 = 2, kCe = 3;
constexpr std::uint8_t kAe = 1;  // of accurate ECN, among the reserved bits

// ---- SYNs ----

struct Offer {
    const char* name;
    std::uint8_t flags, reserved, tos;
    bool accepted;
};
constexpr Offer kOffers[] = {
    {"asks", kBoth, 0, kNot, true},
    {"one flag", kEce, 0, kNot, false},
    {"the other", kCwr, 0, kNot, false},
    {"none", 0, 0, kNot, false},
    {"marked blindly", kBoth, 0, kEct0, false},
    {"marked as congested", kBoth, 0, kCe, false},
    {"offers accurate ECN", kBoth, kAe, kNot, true},
    {"the same, marked", kBoth, kAe, kEct1, true},
    {"accurate ECN alone", 0, kAe, kNot, false},
    {"another reserved bit, marked", kBoth, 4, kEct0, true},
};

// A SYN that says `offer` to the listener on host b. Returns what answers it.
Segment offered(World& w, std::uint16_t port, const Offer& offer, const std::string& options = "") {
    Peer peer(w, *w.a, port, *w.b, World::kPort);
    Segment s = peer.segment(static_cast<std::uint8_t>(kSyn | offer.flags));
    s.reserved = offer.reserved;
    s.tos = offer.tos;
    s.options = options;
    peer.put(s);
    const auto answers = peer.take();
    EXPECT_EQ(answers.size(), 1u) << offer.name;
    return answers.empty() ? Segment{} : answers[0];
}

TEST(TcpEcn, AListenerAnswersWhoAsks) {
    for (const bool answers : {true, false})
        for (const bool route : {false, true}) {
            World w;
            w.options.ecn_answers = answers;
            w.b->ecn = route;
            w.listen(64);
            std::uint16_t port = 3000;
            for (const Offer& offer : kOffers) {
                const Segment answer = offered(w, port++, offer);
                const bool accepted = offer.accepted && (answers || route);
                EXPECT_EQ(answer.flags, kSyn | kAck | (accepted ? kEce : 0)) << offer.name;
                EXPECT_EQ(answer.tos, kNot) << offer.name;
            }
        }
}

TEST(TcpEcn, AnAnswerThatIsRepeatedSaysTheSame) {
    World w;
    w.listen();
    (void)offered(w, 3000, kOffers[0]);
    Peer peer(w, *w.a, 3000, *w.b, World::kPort);
    w.pass(3500 * kMs);
    auto again = peer.take();
    ASSERT_EQ(again.size(), 2u);  // after one second, and two more
    for (const Segment& s : again) EXPECT_EQ(s.flags, kSyn | kAck | kEce);
    // What the first SYN said holds, whatever those after it say.
    peer.put(peer.segment(kSyn));
    again = peer.take();
    ASSERT_EQ(again.size(), 1u);
    EXPECT_EQ(again[0].flags, kSyn | kAck | kEce);
}

TEST(TcpEcn, ASynAsksAsItIsTold) {
    for (const bool asks : {false, true})
        for (const bool route : {false, true})
            for (const bool fallback : {false, true}) {
                Scripted s;
                s.w.options.ecn_asks = asks;
                s.w.options.ecn_fallback = fallback;
                s.w.a->ecn = route;
                ASSERT_NO_FATAL_FAILURE(s.start());
                auto heard = s.peer.take();
                ASSERT_EQ(heard.size(), 1u);
                EXPECT_EQ(heard[0].flags, kSyn | (asks || route ? kBoth : 0));
                EXPECT_EQ(heard[0].tos, kNot);
                s.w.pass(1500 * kMs);
                heard = s.peer.take();
                ASSERT_EQ(heard.size(), 1u);
                EXPECT_EQ(heard[0].flags, kSyn | ((asks || route) && !fallback ? kBoth : 0));
            }
}

// A Connection that has asked, or not, with a peer that answers with these bits; see Scripted.
struct Speaking : Scripted {
    explicit Speaking(verbs::wire::WireConfig config = {}) : Scripted(config) {
        w.options.ecn_asks = true;
        peer.window = 65000;
    }
    void open(std::uint8_t flags = kEce, std::uint8_t reserved = 0, std::uint8_t tos = kNot,
              const std::string& options = option::mss(1460) + option::sack_allowed()) {
        ASSERT_NO_FATAL_FAILURE(start());
        answer(flags, reserved, tos, options);
        ASSERT_EQ(c->state(), State::established);
        const auto last = peer.take();
        ASSERT_FALSE(last.empty());
        EXPECT_EQ(last[0].flags, kAck);
    }
    void answer(std::uint8_t flags, std::uint8_t reserved = 0, std::uint8_t tos = kNot,
                const std::string& options = option::mss(1460) + option::sack_allowed()) {
        (void)peer.hear();
        Segment s = peer.segment(static_cast<std::uint8_t>(kSyn | kAck | flags));
        s.reserved = reserved;
        s.tos = tos;
        s.options = options;
        peer.put(s);
        peer.snd = s.end();
    }
    // The peer's data, in a frame with this mark. Returns what answers at once.
    std::vector<Segment> data(std::uint8_t tos, std::uint8_t flags = 0, std::size_t size = 100) {
        Segment s = peer.segment(static_cast<std::uint8_t>(kAck | kPsh | flags), std::string(size, 'd'));
        s.tos = tos;
        peer.put(s);
        peer.snd = s.end();
        return peer.hear();
    }
    bool speaks() { return (info().basic.tcpi_options & TCPI_OPT_ECN) != 0; }
    Info info() {
        Info all;
        c->info(all);
        return all;
    }
    // `count` full segments under way.
    std::uint32_t send_segments(std::size_t count) {
        const std::uint32_t first = peer.rcv;
        EXPECT_EQ(send(c, std::string(count * 1460, 'x')), static_cast<ssize_t>(count * 1460));
        EXPECT_EQ(peer.hear().size(), count);
        return first;
    }
    void acknowledge(std::uint32_t ack, std::uint8_t flags = 0, const std::string& options = "") {
        Segment s = peer.segment(static_cast<std::uint8_t>(kAck | flags));
        s.ack = ack;
        s.options = options;
        peer.put(s);
    }
};

TEST(TcpEcn, OnlyAnEchoAloneAgrees) {
    const Offer answers[] = {{"echo", kEce, 0, kNot, true},       {"echo, marked", kEce, 0, kCe, true},
                             {"none", 0, 0, kNot, false},         {"both", kBoth, 0, kNot, false},
                             {"the other", kCwr, 0, kNot, false}, {"nonce", kEce, kAe, kNot, true},
                             {"all", kBoth, kAe, kNot, false}};
    for (const bool asks : {true, false})
        for (const Offer& answer : answers) {
            Speaking s;
            s.w.options.ecn_asks = asks;
            ASSERT_NO_FATAL_FAILURE(s.open(answer.flags, answer.reserved, answer.tos));
            EXPECT_EQ(s.speaks(), asks && answer.accepted) << answer.name;
            send(s.c, "x");
            const auto heard = s.peer.hear();
            ASSERT_EQ(heard.size(), 1u);
            EXPECT_EQ(heard[0].flags, kAck | kPsh) << answer.name;
            EXPECT_EQ(heard[0].tos, asks && answer.accepted ? kEct0 : kNot) << answer.name;
        }
}

TEST(TcpEcn, TheFirstSynsAnswerCountsAfterItWasRepeated) {
    Speaking s;
    ASSERT_NO_FATAL_FAILURE(s.start());
    s.w.pass(1500 * kMs);
    s.answer(kEce);
    EXPECT_EQ(s.c->state(), State::established);
    EXPECT_TRUE(s.speaks());
}

TEST(TcpEcn, AnAnswerToNothingChangesNothing) {
    Speaking s;
    ASSERT_NO_FATAL_FAILURE(s.start());
    (void)s.peer.hear();
    Segment wrong = s.peer.segment(kSyn | kAck);  // without an echo, and of another SYN
    wrong.ack += 77;
    s.peer.put(wrong);
    s.answer(kEce);
    EXPECT_EQ(s.c->state(), State::established);
    EXPECT_TRUE(s.speaks());
}

TEST(TcpEcn, SimultaneousOpen) {
    for (const bool asks : {true, false})
        for (const std::uint8_t flags : {kBoth, std::uint8_t{0}, std::uint8_t{kEce}}) {
            Speaking s;
            s.w.options.ecn_asks = asks;
            ASSERT_NO_FATAL_FAILURE(s.start());
            (void)s.peer.hear();
            Segment syn = s.peer.segment(kSyn | flags);
            syn.options = option::mss(1460);
            s.peer.put(syn);
            s.peer.snd = syn.end();
            const auto answers = s.peer.hear();
            ASSERT_EQ(answers.size(), 1u);
            const bool agreed = asks && flags == kBoth;
            EXPECT_EQ(answers[0].flags, kSyn | kAck | (agreed ? kEce : 0));
            s.peer.say(kAck);
            EXPECT_EQ(s.c->state(), State::established);
            EXPECT_EQ(s.speaks(), agreed);
        }
}

TEST(TcpEcn, AcceptedConnectionsSpeakIt) {
    for (const bool asks : {true, false}) {
        World w;
        w.options.ecn_asks = asks;
        Connection *client = nullptr, *server = nullptr;
        w.pair(client, server);
        for (Connection* c : {client, server}) {
            Info all;
            c->info(all);
            EXPECT_EQ((all.basic.tcpi_options & TCPI_OPT_ECN) != 0, asks);
        }
    }
}

TEST(TcpEcn, CookiesKeepIt) {
    for (const bool stamps : {true, false})
        for (const Offer& offer : {kOffers[0], kOffers[3]}) {
            World w;
            w.options.syncookies = 2;  // always
            w.listen();
            Peer peer(w, *w.a, 3000, *w.b, World::kPort);
            const std::string options =
                option::mss(1460) + option::sack_allowed() + (stamps ? option::stamps(100, 0) : "");
            const Segment answer = offered(w, 3000, offer, options);
            const bool agreed = stamps && offer.accepted;
            EXPECT_EQ(answer.flags, kSyn | kAck | (agreed ? kEce : 0));
            peer.stamps = stamps;
            peer.echo = stamps ? *said(answer).stamp : 0;
            peer.snd++;
            peer.rcv = answer.end();
            peer.say(kAck);
            Connection* c = w.accept();
            ASSERT_NE(c, nullptr);
            Info all;
            c->info(all);
            EXPECT_EQ((all.basic.tcpi_options & TCPI_OPT_ECN) != 0, agreed);
        }
}

TEST(TcpEcn, AStampOfACookieHoldsIt) {
    const Time now(Nsec(1000 * kSec));
    for (const bool ecn : {true, false})
        for (const bool sack : {true, false}) {
            SynOptions said, got;
            said.ecn = ecn;
            said.sack = sack;
            ASSERT_TRUE(read_cookie_stamp(make_cookie_stamp(said, now), now, got));
            EXPECT_EQ(got.ecn, ecn);
            EXPECT_EQ(got.sack, sack);
        }
}

// ---- what leaves ----

TEST(TcpEcn, NewDataAloneIsMarkedCapable) {
    Speaking s;
    ASSERT_NO_FATAL_FAILURE(s.open());
    s.c->change([](Options& o) { o.path.tos = 0x2b; });
    send(s.c, "new");
    auto heard = s.peer.hear();
    ASSERT_EQ(heard.size(), 1u);
    EXPECT_EQ(heard[0].tos, 0x28 | kEct0) << "the program's two low bits are not its business";
    s.w.pass(1 * kSec);  // a retransmission
    heard = s.peer.hear();
    ASSERT_FALSE(heard.empty());
    for (const Segment& again : heard) EXPECT_EQ(again.tos, 0x28);
    s.acknowledge(s.peer.rcv);
    heard = s.data(kNot);
    s.w.pass(100 * kMs);  // an ACK
    for (const Segment& more : s.peer.hear()) heard.push_back(more);
    ASSERT_FALSE(heard.empty());
    for (const Segment& ack : heard) EXPECT_EQ(ack.tos, 0x28);
    s.c->shutdown(SHUT_WR);
    heard = s.peer.hear();
    ASSERT_EQ(heard.size(), 1u);
    EXPECT_EQ(heard[0].flags & kFin, kFin);
    EXPECT_EQ(heard[0].tos, 0x28) << "a FIN without data";
}

TEST(TcpEcn, AProbeOfAClosedWindowIsNotMarked) {
    Speaking s;
    ASSERT_NO_FATAL_FAILURE(s.open());
    s.peer.window = 0;
    s.acknowledge(s.peer.rcv);
    send(s.c, "waits");
    s.w.pass(1 * kSec);
    const auto heard = s.peer.hear();
    ASSERT_FALSE(heard.empty());
    for (const Segment& probe : heard) EXPECT_EQ(probe.tos, kNot);
}

// ---- congestion that this end sees ----

TEST(TcpEcn, AMarkIsEchoedUntilThePeerHasReduced) {
    Speaking s;
    ASSERT_NO_FATAL_FAILURE(s.open());
    EXPECT_EQ(s.info().basic.tcpi_options & TCPI_OPT_ECN_SEEN, 0);
    auto heard = s.data(kCe);
    ASSERT_EQ(heard.size(), 1u) << "at once";
    EXPECT_EQ(heard[0].flags, kAck | kEce);
    EXPECT_NE(s.info().basic.tcpi_options & TCPI_OPT_ECN_SEEN, 0);
    for (int i = 0; i < 3; i++) {
        heard = s.data(kEct0);
        s.w.pass(100 * kMs);
        for (const Segment& more : s.peer.hear()) heard.push_back(more);
        ASSERT_FALSE(heard.empty());
        for (const Segment& ack : heard) EXPECT_EQ(ack.flags, kAck | kEce);
    }
    send(s.c, "own");
    heard = s.peer.hear();
    ASSERT_EQ(heard.size(), 1u);
    EXPECT_EQ(heard[0].flags, kAck | kPsh | kEce);
    s.acknowledge(s.peer.rcv);
    heard = s.data(kEct0, kCwr);
    ASSERT_EQ(heard.size(), 1u) << "at once";
    EXPECT_EQ(heard[0].flags, kAck);
    // Congestion on the very segment that tells of the reduction is new congestion.
    heard = s.data(kCe, kCwr);
    ASSERT_EQ(heard.size(), 1u);
    EXPECT_EQ(heard[0].flags, kAck | kEce);
    s.acknowledge(s.peer.rcv, kCwr);  // a bare ACK tells it as well
    EXPECT_TRUE(s.peer.hear().empty());
    heard = s.data(kEct0, 0, 2000);
    s.w.pass(100 * kMs);
    for (const Segment& more : s.peer.hear()) heard.push_back(more);
    ASSERT_FALSE(heard.empty());
    for (const Segment& ack : heard) EXPECT_EQ(ack.flags, kAck);
}

TEST(TcpEcn, MarksCountOnNewDataAlone) {
    Speaking s;
    ASSERT_NO_FATAL_FAILURE(s.open());
    (void)s.data(kEct0, 0, 200);
    s.w.pass(100 * kMs);
    (void)s.peer.hear();
    Segment ack = s.peer.segment(kAck);
    ack.tos = kCe;
    s.peer.put(ack);
    Segment old = s.peer.segment(kAck | kPsh, std::string(100, 'd'));
    old.seq -= 200;
    old.tos = kCe;
    s.peer.put(old);
    auto heard = s.peer.hear();
    ASSERT_EQ(heard.size(), 1u);
    EXPECT_EQ(heard[0].flags, kAck);
    Segment fin = s.peer.segment(kAck | kFin);
    fin.tos = kCe;
    s.peer.put(fin);
    s.w.pass(500 * kMs);
    heard = s.peer.hear();
    ASSERT_FALSE(heard.empty());
    for (const Segment& answer : heard) EXPECT_EQ(answer.flags, kAck);
}

TEST(TcpEcn, AMarkBehindAGapIsEchoedAtOnce) {
    Speaking s;
    ASSERT_NO_FATAL_FAILURE(s.open());
    Segment early = s.peer.segment(kAck | kPsh, std::string(100, 'd'));
    early.seq += 100;
    early.tos = kCe;
    s.peer.put(early);
    auto heard = s.peer.hear();
    ASSERT_EQ(heard.size(), 1u);
    EXPECT_EQ(heard[0].flags, kAck | kEce);
    EXPECT_EQ(said(heard[0]).sacks.size(), 1u);
}

// A frame without a mark after marked ones is probably a retransmission: its sender waits.
TEST(TcpEcn, ARetransmissionIsAcknowledgedAtOnce) {
    Speaking s;
    ASSERT_NO_FATAL_FAILURE(s.open());
    for (int i = 0; i < 40; i++) {  // beyond the quick ACKs of a young connection
        (void)s.data(kEct0);
        s.w.pass(100 * kMs);
        (void)s.peer.hear();
    }
    const auto heard = s.data(kNot);
    ASSERT_EQ(heard.size(), 1u);
    EXPECT_EQ(heard[0].flags, kAck);
}

TEST(TcpEcn, MarkedFramesDoNotMergeWithOthers) {
    Speaking s;
    ASSERT_NO_FATAL_FAILURE(s.open());
    std::vector<Frame> frames;
    for (const std::uint8_t tos : {kEct0, kEct0, kCe, kEct0}) {
        Segment part = s.peer.segment(kAck, std::string(1000, 'd'));
        part.tos = tos;
        s.peer.snd = part.end();
        frames.push_back(build(part, s.w.b->device->attr().mac, s.w.a->device->attr().mac));
    }
    for (Frame& f : frames) s.w.b->device->kernel_send(std::move(f));
    s.w.poll();
    bool echoed = false;
    for (const Segment& ack : s.peer.hear()) echoed |= (ack.flags & kEce) != 0;
    EXPECT_TRUE(echoed);
    EXPECT_EQ(receive(s.c).size(), 4000u);
}

TEST(TcpEcn, WhoHasNotAgreedSeesNothing) {
    for (const bool asks : {true, false}) {
        Speaking s;
        s.w.options.ecn_asks = asks;
        ASSERT_NO_FATAL_FAILURE(s.open(0));
        auto heard = s.data(kCe);
        s.w.pass(100 * kMs);
        for (const Segment& more : s.peer.hear()) heard.push_back(more);
        ASSERT_FALSE(heard.empty());
        for (const Segment& ack : heard) EXPECT_EQ(ack.flags, kAck);
        const std::uint32_t first = s.send_segments(10);
        const std::uint32_t before = s.info().basic.tcpi_snd_cwnd;
        s.acknowledge(first + 1460, kEce);
        EXPECT_GE(s.info().basic.tcpi_snd_cwnd, before);
        s.acknowledge(first + 14600, kBoth);
        send(s.c, "y");
        heard = s.peer.hear();
        ASSERT_EQ(heard.size(), 1u);
        EXPECT_EQ(heard[0].flags, kAck | kPsh);
        EXPECT_EQ(heard[0].tos, kNot);
    }
}

// ---- congestion that the peer reports ----

TEST(TcpEcn, AWindowOfDataIsReducedOnce) {
    Speaking s;
    s.w.options.congestion = CongestionAlgorithm::newreno;
    ASSERT_NO_FATAL_FAILURE(s.open());
    std::uint32_t una = s.send_segments(10);
    s.acknowledge(una += 1460, kEce);
    EXPECT_EQ(s.info().basic.tcpi_ca_state, TCP_CA_CWR);
    EXPECT_EQ(s.info().basic.tcpi_snd_ssthresh, 5u);
    for (int i = 2; i <= 10; i++) s.acknowledge(una += 1460, kEce);
    EXPECT_EQ(s.info().basic.tcpi_snd_ssthresh, 5u) << "the same window of data";
    EXPECT_EQ(s.info().basic.tcpi_snd_cwnd, 5u);
    EXPECT_EQ(s.info().basic.tcpi_ca_state, TCP_CA_CWR) << "until the peer has heard of it";
    // The next new data tells it, once.
    send(s.c, std::string(2 * 1460, 'y'));
    auto heard = s.peer.hear();
    ASSERT_EQ(heard.size(), 2u);
    EXPECT_EQ(heard[0].flags & kCwr, kCwr);
    EXPECT_EQ(heard[1].flags & kCwr, 0);
    for (const Segment& data : heard) EXPECT_EQ(data.tos, kEct0);
    s.acknowledge(una += 1460);
    EXPECT_EQ(s.info().basic.tcpi_ca_state, TCP_CA_Open);
    s.acknowledge(una += 1460, kEce);  // a mark on the second: new congestion
    EXPECT_EQ(s.info().basic.tcpi_snd_ssthresh, 2u);
    send(s.c, "z");
    heard = s.peer.hear();
    ASSERT_EQ(heard.size(), 1u);
    EXPECT_EQ(heard[0].flags & kCwr, kCwr);
    EXPECT_EQ(s.c->counters().retransmits, 0u);
    EXPECT_EQ(s.info().delivered_ce, 11u);
}

TEST(TcpEcn, AnEchoSaysNothingWhenNothingIsUnderWay) {
    Speaking s;
    ASSERT_NO_FATAL_FAILURE(s.open());
    const std::uint32_t before = s.info().basic.tcpi_snd_cwnd;
    s.acknowledge(s.peer.rcv, kEce);
    EXPECT_EQ(s.info().basic.tcpi_snd_cwnd, before);
    EXPECT_EQ(s.info().basic.tcpi_ca_state, TCP_CA_Open);
    send(s.c, "z");
    const auto heard = s.peer.hear();
    ASSERT_EQ(heard.size(), 1u);
    EXPECT_EQ(heard[0].flags & kCwr, 0);
}

TEST(TcpEcn, LossIsToldAsWellAndCountsOnceWithAnEcho) {
    for (const bool echo : {false, true}) {
        Speaking s;
        s.w.options.congestion = CongestionAlgorithm::newreno;
        ASSERT_NO_FATAL_FAILURE(s.open());
        const std::uint32_t first = s.send_segments(10);
        for (std::uint32_t i = 2; i <= 9; i++)
            s.acknowledge(first, echo ? kEce : 0, option::sack({{first + 1460, first + 1460 * i}}));
        EXPECT_EQ(s.info().basic.tcpi_ca_state, TCP_CA_Recovery);
        EXPECT_EQ(s.info().basic.tcpi_snd_ssthresh, 5u);
        auto heard = s.peer.hear();
        ASSERT_FALSE(heard.empty());
        EXPECT_EQ(heard[0].seq, first);
        EXPECT_EQ(heard[0].tos, kNot) << "sent again";
        EXPECT_EQ(heard[0].flags & kCwr, 0) << "on new data only";
        s.acknowledge(s.peer.rcv);
        EXPECT_EQ(s.info().basic.tcpi_snd_ssthresh, 5u);
        send(s.c, "z");
        heard = s.peer.hear();
        ASSERT_EQ(heard.size(), 1u);
        EXPECT_EQ(heard[0].flags & kCwr, kCwr);
        EXPECT_EQ(heard[0].tos, kEct0);
    }
}

TEST(TcpEcn, ATimeoutIsToldAsWell) {
    Speaking s;
    ASSERT_NO_FATAL_FAILURE(s.open());
    send(s.c, "lost");
    (void)s.peer.hear();
    s.w.pass(3 * kSec);
    for (const Segment& again : s.peer.hear()) {
        EXPECT_EQ(again.tos, kNot);
        EXPECT_EQ(again.flags & kBoth, 0);
    }
    s.acknowledge(s.peer.rcv);
    send(s.c, "new");
    const auto heard = s.peer.hear();
    ASSERT_EQ(heard.size(), 1u);
    EXPECT_EQ(heard[0].flags & kCwr, kCwr);
}

TEST(TcpEcn, AWordThatTheDeviceRefusesIsSaidLater) {
    Ecn ecn;
    ecn.begin(true);
    ecn.reduced();
    EXPECT_EQ(ecn.segment(false), 0) << "a retransmission, or an ACK";
    EXPECT_EQ(ecn.segment(true), Ecn::kReduced);
    EXPECT_EQ(ecn.segment(true), 0);
    ecn.reduced();  // the device took it not
    EXPECT_TRUE(ecn.tells_reduced());
    ecn.withdraw();
    EXPECT_EQ(ecn.segment(true), 0);
    Ecn off;
    off.reduced();
    EXPECT_EQ(off.segment(true), 0);
}

TEST(TcpEcn, TheWordGoesInAFrameOfItsOwn) {
    Speaking s({.tx_checksum = verbs::wire::TxChecksum::complete, .max_tso = 65495, .tso_copies = true});
    ASSERT_NO_FATAL_FAILURE(
        s.open(kEce, 0, kNot, option::mss(1460) + option::sack_allowed() + option::scale(7)));
    std::uint32_t una = s.peer.rcv;
    const auto tell = [&] {
        Tap tap(s.w);
        send(s.c, std::string(60'000, 'x'));
        s.w.settle();
        return tap.take();
    };
    for (int round = 0; round < 12; round++) {
        const auto seen = tell();
        unsigned told = 0;
        for (const auto& x : seen) {
            if (!x.from_a || x.payload.empty()) continue;
            told += (x.flags & kCwr) != 0;
            EXPECT_LE(x.payload.size(), x.flags & kCwr ? 1460u : 65535u);
            EXPECT_EQ(x.tos, kEct0);
        }
        EXPECT_EQ(told, round == 0 ? 0u : 1u);
        (void)s.peer.hear();
        for (int i = 0; i < 100 && una != s.peer.rcv; i++) {  // whatever was held back leaves now
            una = s.peer.rcv;
            s.acknowledge(una);
            s.w.pass(1 * kMs);
            (void)s.peer.hear();
        }
        send(s.c, std::string(1460, 'x'));
        (void)s.peer.hear();
        s.acknowledge(una = s.peer.rcv, kEce);
    }
}

// ---- a connection ----

TEST(TcpEcn, AMarkingWireSlowsTheSenderDownWithoutLoss) {
    World w;
    w.options.ecn_asks = true;
    Connection *client = nullptr, *server = nullptr;
    w.pair(client, server);
    unsigned number = 0, marked = 0, echoes = 0, told = 0;
    w.wire.set_hook([&](const verbs::wire::WireDevice& from, std::vector<Frame>& frames) {
        auto s = parse(frames.at(0));
        if (!s) return;
        const bool from_a = &from == w.a->device;
        if (!from_a) echoes += (s->flags & kEce) != 0;
        if (!from_a || s->payload.empty()) return;
        told += (s->flags & kCwr) != 0;
        if (++number % 97 != 0) return;
        EXPECT_EQ(s->tos, kEct0);
        s->tos = kCe;
        frames[0] = build(*s, w.a->device->attr().mac, w.b->device->attr().mac);
        marked++;
    });
    Stream up{.from = client, .to = server, .total = 3'000'000};
    ASSERT_TRUE(w.until([&] {
        up.send_some();
        up.receive_some();
        return up.done() || up.failed();
    }));
    w.wire.set_hook({});
    EXPECT_FALSE(up.failed());
    EXPECT_GT(marked, 10u);
    EXPECT_GT(echoes, 0u);
    EXPECT_GT(told, 0u);
    EXPECT_LE(told, marked);
    EXPECT_EQ(client->counters().retransmits, 0u);
    Info all;
    client->info(all);
    EXPECT_LT(all.basic.tcpi_snd_ssthresh, 1000u);
    EXPECT_GT(all.delivered_ce, 0u);
}

}  // namespace
}  // namespace vma::tcp::test
