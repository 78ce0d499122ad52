// SPDX-License-Identifier: BSD-2-Clause
// The attacker's repertory (tests/support/attacker/model.h), all of it and in order, over the in-process
// wire: each option with each length, each number at each edge in each state, lies about what was received,
// windows that hardly open, data that contradicts itself, and forged ICMP. What the attacker of the
// integration tests does by chance is done here for certain, and under sanitizers.
#include <gtest/gtest.h>

#include "libvma/tcp/lwip/memory.h"
#include "tcp_wiretap.h"
#include "tests/support/attacker/model.h"

namespace vma::tcp::test {
namespace {

using attacker::Model;

// A Connection of ours on host a, and the attacker on host b.
struct Attack {
    World w;
    Model m;
    Connection* c = nullptr;
    std::uint64_t written = 0, delivered = 0;

    Attack() {
        (void)w.b->device->take_kernel_frames();
        m.me = w.b->address;
        m.victim = w.a->address;
        m.my_port = kTheirs;
        m.victim_port = kMine;
        m.first = m.snd = 0xffffff00u;
        m.acked = m.highest = m.first + 1;
    }
    void put(const Segment& s) {
        m.sent(s);
        w.b->device->kernel_send(build(s, w.b->device->attr().mac, w.a->device->attr().mac));
    }
    void say(std::uint8_t flags, std::size_t length = 0) {
        const Segment s = m.segment(flags, length);
        put(s);
        m.snd = s.end();
        w.poll();
    }
    // Checks all that is heard: what the program wrote, and nothing else.
    void hear() {
        w.poll();
        for (const verbs::wire::Frame& f : w.b->device->take_kernel_frames()) {
            const auto s = parse(f);
            if (!s || s->to_port != kTheirs) continue;
            m.hear(*s);
            const std::uint32_t at = s->seq - m.their_first - 1;
            if (!s->payload.empty()) {
                ASSERT_LE(at + s->payload.size(), written);
            }
            for (std::size_t i = 0; i < s->payload.size(); i++)
                ASSERT_EQ(s->payload[i], stream_byte(at + i, attacker::kTheirSeed)) << "byte " << at + i;
        }
    }
    void start() {
        c = Connection::create(*w.a, {{w.a->address, htons(kMine)}, {w.b->address, htons(kTheirs)}},
                               w.options);
        w.opened.push_back(c);
        ASSERT_EQ(c->connect(), 0);
        hear();
        ASSERT_TRUE(m.heard_syn);
    }
    void answer(const std::string& options) {
        Segment s = m.segment(kSyn | kAck);
        s.options = options;
        put(s);
        m.snd = s.end();
        m.stamps = said(s).stamp.has_value();
        m.scaling = said(s).scale.has_value();
        hear();
    }
    void establish(const std::string& options = option::mss(1460) + option::sack_allowed() +
                                                option::scale(7) + option::stamps(100, 0)) {
        ASSERT_NO_FATAL_FAILURE(start());
        answer(options);
        ASSERT_EQ(c->state(), State::established);
    }
    std::size_t write(std::size_t n) {
        std::string data(n, '\0');
        for (std::size_t i = 0; i < n; i++) data[i] = stream_byte(written + i, attacker::kTheirSeed);
        const ssize_t done = send(c, data);
        if (done > 0) written += static_cast<std::uint64_t>(done);
        return done > 0 ? static_cast<std::size_t>(done) : 0;
    }
    void read() {
        const std::string got = receive(c);
        for (const char b : got)
            ASSERT_EQ(b, stream_byte(delivered++, attacker::kOurSeed)) << "byte " << delivered - 1;
        ASSERT_LE(delivered, m.highest - m.first - 1);
    }
    // Honest from here on: all that was written is acknowledged, and bytes go both ways.
    void expect_all_arrives() {
        m.window = 65535;
        for (int i = 0; i < 400 && m.rcv - m.their_first - 1 < written; i++) {
            say(kAck);
            ASSERT_NO_FATAL_FAILURE(hear());
            if (m.rcv - m.their_first - 1 < written) w.pass(250 * kMs);
        }
        ASSERT_EQ(m.rcv - m.their_first - 1, written) << "state " << static_cast<int>(c->state());
        say(kAck);
        m.snd = m.acked;
        m.stamp++;
        say(kAck | kPsh, 300);
        ASSERT_NO_FATAL_FAILURE(hear());
        ASSERT_NO_FATAL_FAILURE(read());
        const std::uint64_t before = delivered;
        say(kAck | kPsh, 10);
        ASSERT_NO_FATAL_FAILURE(read());
        EXPECT_GE(delivered, before + 10);
    }
};

std::int64_t memory_used() {
    lwip::flush_thread_cache();
    return static_cast<std::int64_t>(lwip::memory_use().used);
}

// ---- options ----

// A time stamp that returns one which was never sent: such a SYN-ACK is refused, as by the kernel.
bool foreign_echo(const std::string& options) {
    return options.size() >= 10 && options.starts_with("\x08\x0a") &&
           options.substr(6, 4) != std::string(4, '\0');
}

TEST(TcpAttacker, EachLengthOfEachOptionInASynAck) {
    std::vector<std::string> all = attacker::extreme_sizes();
    const auto lengths = attacker::all_lengths();
    for (std::size_t i = 0; i < lengths.size(); i += 7)
        all.push_back(lengths[i]);  // a world each; all of them are below
    for (const std::string& o : attacker::malformed_options()) all.push_back(o);
    for (const std::string& o : all) {
        SCOPED_TRACE(testing::PrintToString(o));
        Attack t;
        ASSERT_NO_FATAL_FAILURE(t.start());
        t.answer(o.substr(0, 40));
        if (foreign_echo(o)) {
            EXPECT_EQ(t.c->state(), State::syn_sent);
            continue;
        }
        ASSERT_EQ(t.c->state(), State::established);
        EXPECT_LE(t.c->mss(), 1460u);
        EXPECT_GE(t.c->mss(), 32u);
        EXPECT_EQ(t.write(4000), 4000u);
        ASSERT_NO_FATAL_FAILURE(t.hear());
        t.w.close(t.c, true);
    }
}

TEST(TcpAttacker, EachLengthOfEachOptionInASyn) {
    World w;
    w.listen(64);
    std::vector<std::string> all = attacker::extreme_sizes();
    const auto lengths = attacker::all_lengths();
    all.insert(all.end(), lengths.begin(), lengths.end());
    std::uint16_t port = 3000;
    for (const std::string& o : all) {
        SCOPED_TRACE(testing::PrintToString(o));
        Peer peer(w, *w.a, ++port, *w.b, World::kPort);
        Segment syn;
        syn.options = o.substr(0, 40);
        if (const auto stamp = said(syn).stamp) peer.stamp = *stamp;  // it goes on from there
        peer.connect(syn.options);
        if (HasFatalFailure()) return;
        Connection* s = w.accept();
        ASSERT_NE(s, nullptr);
        EXPECT_EQ(send(s, std::string(4000, 'w')), 4000);
        peer.say(kAck | kPsh, "hello");
        EXPECT_EQ(receive(s), "hello");
        w.close(s, true);
        (void)peer.take();
    }
}

TEST(TcpAttacker, EachLengthOfEachOptionOnAConnection) {
    Attack t;
    ASSERT_NO_FATAL_FAILURE(t.establish());
    std::vector<std::string> all = attacker::all_lengths();
    for (const std::string& o : attacker::malformed_options()) all.push_back(o);
    for (const std::string& o : attacker::extreme_sizes()) all.push_back(o.substr(0, 40));
    EXPECT_EQ(t.write(3000), 3000u);
    const std::uint32_t mss = t.c->mss();
    for (const std::string& o : all) {
        for (const std::size_t length : {0u, 20u}) {
            Segment s = t.m.segment(kAck, length);
            s.options = (o.size() <= 28 ? s.options + o : o).substr(0, 40);
            t.put(s);
        }
        ASSERT_NO_FATAL_FAILURE(t.hear());
        ASSERT_NO_FATAL_FAILURE(t.read());
        t.m.snd = t.m.acked;
        ASSERT_EQ(t.c->state(), State::established) << testing::PrintToString(o);
    }
    EXPECT_EQ(t.c->mss(), mss) << "an MSS option outside a SYN counts for nothing";
    // A stamp of the future, once accepted, makes honest ones old.
    t.m.stamp = 0x7fffffff;
    t.w.pass(kSec);
}

// ---- numbers ----

class Edges : public testing::TestWithParam<State> {};

// Everything but a reset with the right number: the state may go on as the peer's FIN or ACK says, but what
// the program reads is right, and nothing breaks.
TEST_P(Edges, OfEveryNumberInEveryState) {
    const State state = GetParam();
    for (const std::uint8_t flags :
         {std::uint8_t{0}, std::uint8_t{kAck}, std::uint8_t{kAck | kPsh}, std::uint8_t{kFin | kAck},
          std::uint8_t{kFin}, std::uint8_t{kSyn}, std::uint8_t{kSyn | kAck}, std::uint8_t{kRst},
          std::uint8_t{kRst | kAck}, std::uint8_t{kUrg | kAck}, std::uint8_t{63}, std::uint8_t{255}}) {
        SCOPED_TRACE(int{flags});
        Attack t;
        ASSERT_NO_FATAL_FAILURE(t.start());
        auto say = [&](std::uint8_t f, std::size_t n = 0) { t.say(f, n), t.hear(); };
        if (state != State::syn_sent) {
            t.answer(option::mss(1460) + option::sack_allowed() + option::scale(2) + option::stamps(100, 0));
            t.write(5000);
            t.hear();
            say(kAck | kPsh, 100);
        }
        switch (state) {
            case State::fin_wait1:
                t.c->shutdown(SHUT_WR);
                break;
            case State::closing:
                t.c->shutdown(SHUT_WR), say(kFin | kAck);
                break;
            case State::fin_wait2:
            case State::time_wait:
                t.c->shutdown(SHUT_WR);
                t.hear();
                say(kAck);
                if (state == State::time_wait) say(kFin | kAck);
                break;
            case State::close_wait:
            case State::last_ack:
                say(kFin | kAck);
                if (state == State::last_ack) t.c->shutdown(SHUT_WR);
                break;
            default:
                break;
        }
        for (const std::uint32_t seq : t.m.sequence_edges())
            for (const std::uint32_t ack : t.m.ack_edges()) {
                if (state == State::syn_sent && (flags & kSyn))
                    continue;  // that would choose where the stream begins
                for (const std::size_t length : {0u, 1u, 1000u}) {
                    Segment s = t.m.segment(flags);
                    s.seq = seq;
                    s.ack = ack;
                    s.window = static_cast<std::uint16_t>(length == 1000 ? 65535 : length);
                    s.payload = t.m.content(seq + ((flags & kSyn) != 0), length);
                    t.put(s);
                }
                ASSERT_NO_FATAL_FAILURE(t.hear());
            }
        ASSERT_NO_FATAL_FAILURE(t.read());
        t.w.pass(3 * kSec);
        ASSERT_NO_FATAL_FAILURE(t.hear());
    }
}

INSTANTIATE_TEST_SUITE_P(TcpAttacker, Edges,
                         testing::Values(State::syn_sent, State::established, State::fin_wait1,
                                         State::fin_wait2, State::closing, State::close_wait, State::last_ack,
                                         State::time_wait),
                         [](const auto& info) {
                             return "state" + std::to_string(static_cast<int>(info.param));
                         });

// Found by the fuzzer: such a connection stayed for ever, with its port and its rule.
TEST(TcpAttacker, SimultaneousOpenThatNobodyCompletes) {
    Attack t;
    ASSERT_NO_FATAL_FAILURE(t.start());
    t.say(kSyn);
    ASSERT_EQ(t.c->state(), State::syn_recv);
    t.w.close(t.c);
    t.w.pass(200 * kSec);
    EXPECT_EQ(Connection::count(), 0u);
}

// Found by the fuzzer: of data that came with the peer's SYN-ACK the first byte got lost. The kernel takes
// none of it either.
TEST(TcpAttacker, DataWithTheSynAckOfASimultaneousOpen) {
    Attack t;
    ASSERT_NO_FATAL_FAILURE(t.start());
    Segment s = t.m.segment(kSyn);
    t.put(s);
    t.hear();
    ASSERT_EQ(t.c->state(), State::syn_recv);
    s = t.m.segment(kSyn | kAck);
    s.payload = t.m.content(s.seq + 1, 100);
    t.put(s);
    t.m.snd++;
    t.hear();
    t.say(kAck, 200);
    ASSERT_EQ(t.c->state(), State::established);
    t.read();
    EXPECT_EQ(t.delivered, 200u);
    t.w.close(t.c);
}

// ---- lies ----

TEST(TcpAttacker, LiesAboutWhatWasReceived) {
    const std::size_t kinds = Attack().m.lying_blocks().size();
    for (std::size_t kind = 0; kind <= kinds; kind++)  // the last: all of them in turn
        for (const bool stamps : {true, false}) {
            SCOPED_TRACE(kind);
            Attack t;
            ASSERT_NO_FATAL_FAILURE(t.establish(option::mss(1460) + option::sack_allowed() +
                                                (stamps ? option::stamps(100, 0) : "")));
            EXPECT_EQ(t.write(40'000), 40'000u);
            ASSERT_NO_FATAL_FAILURE(t.hear());
            t.m.rcv = t.m.their_first + 1;
            for (unsigned i = 0; i < 60; i++) {
                const auto lies = t.m.lying_blocks();
                Segment s = t.m.segment(kAck);
                s.options = ((stamps ? s.options : "") + option::sack(lies[kind < kinds ? kind : i % kinds]))
                                .substr(0, 40);
                t.put(s);
                if (i % 8 == 7) t.w.pass(300 * kMs);
                ASSERT_NO_FATAL_FAILURE(t.hear());
                t.m.rcv = t.m.their_first + 1 + i * 100;
            }
            ASSERT_EQ(t.c->state(), State::established);
            // The receiver may discard what it has reported (RFC 2018 section 8): all of it comes again.
            for (int i = 0; i < 60 && t.m.rcv - t.m.their_first - 1 < t.written; i++) {
                t.w.pass(500 * kMs);
                ASSERT_NO_FATAL_FAILURE(t.hear());
                t.say(kAck);
            }
            ASSERT_NO_FATAL_FAILURE(t.expect_all_arrives());
        }
}

TEST(TcpAttacker, WindowsOfNothingAndOfOneByte) {
    for (const std::uint16_t window : {std::uint16_t{0}, std::uint16_t{1}, std::uint16_t{7}}) {
        Attack t;
        ASSERT_NO_FATAL_FAILURE(t.establish(option::mss(1460)));
        t.m.window = window;
        t.say(kAck, 1);  // with a byte: an ACK of nothing new does not shrink a window
        EXPECT_EQ(t.write(20'000), 20'000u);
        const auto before = memory_used();
        std::int32_t beyond = -1;
        for (int i = 0; i < 200; i++) {
            t.w.pass(200 * kMs);
            const std::uint32_t allowed = t.m.rcv + window;
            ASSERT_NO_FATAL_FAILURE(t.hear());
            beyond = std::max(beyond, static_cast<std::int32_t>(t.m.their_highest - allowed));
            t.say(kAck);
        }
        EXPECT_LE(beyond, 1);  // a probe
        EXPECT_EQ(t.c->state(), State::established);
        EXPECT_LT(memory_used() - before, 100'000);
        ASSERT_NO_FATAL_FAILURE(t.expect_all_arrives());
    }
}

// ---- data ----

// Overlapping segments with other content: each place is of one of them, the order is right, nothing comes
// twice.
TEST(TcpAttacker, DataThatContradictsItself) {
    for (std::uint64_t seed = 1; seed <= 20; seed++) {
        SCOPED_TRACE(seed);
        Attack t;
        attacker::Dice dice(seed);
        ASSERT_NO_FATAL_FAILURE(t.establish());
        constexpr std::uint32_t kTotal = 6000;
        // Who said what where: a bit for each speaker.
        std::vector<unsigned> said_there(kTotal, 0);
        auto speak = [&](std::uint32_t from, std::uint32_t n, unsigned who) {
            Segment s = t.m.segment(kAck);
            s.seq = t.m.first + 1 + from;
            s.payload.assign(n, static_cast<char>('a' + who));
            for (std::uint32_t i = 0; i < n; i++) said_there[from + i] |= 1u << who;
            t.put(s);
            if (dice.take<unsigned>() % 2) t.w.poll();
        };
        for (unsigned i = 0; i < 60; i++) {
            const std::uint32_t from = 1 + dice.take<unsigned>() % (kTotal - 1);
            speak(from, 1 + dice.take<unsigned>() % std::min(kTotal - from, 1400u), i % 20);
        }
        for (std::uint32_t at = 0; at < kTotal; at += 1000) speak(at, 1000, 25);
        t.w.poll();
        const std::string got = receive(t.c);
        ASSERT_EQ(got.size(), kTotal);
        for (std::uint32_t i = 0; i < kTotal; i++)
            ASSERT_TRUE(said_there[i] >> (got[i] - 'a') & 1) << "byte " << i;
        EXPECT_EQ(receive_result(t.c), -EAGAIN);
    }
}

// ---- memory ----

// A program that does not read, and peers whose segments cost most for what they carry.
TEST(TcpAttacker, ShortSegmentsTakeTwiceTheWindowAtMost) {
    for (const std::size_t length : {37u, 600u}) {
        SCOPED_TRACE(length);
        Attack t;
        t.w.options.receive_window = 64 * 1024;
        ASSERT_NO_FATAL_FAILURE(t.establish());
        const auto before = memory_used();
        std::int64_t most = 0;
        const std::size_t rounds = 70'000 / length;
        for (std::size_t i = 0; i < rounds; i++) {
            const Segment s = t.m.segment(kAck, length);
            t.put(s);
            t.m.snd = s.end();
            if (i % 16 == 15) {
                ASSERT_NO_FATAL_FAILURE(t.hear());
                most = std::max(most, memory_used() - before);
            }
        }
        EXPECT_LE(most, 2 * 64 * 1024 + 32 * 1024);
        EXPECT_GE(t.c->readable(), 60'000u);
        ASSERT_NO_FATAL_FAILURE(t.read());
    }
}

// SYNs from anybody fill the table, and segments of those that it holds come in the same batch.
TEST(TcpAttacker, SegmentsOfHalfOpenConnectionsThatMakeRoom) {
    World w;
    w.listen(16);
    attacker::Dice dice(3);
    std::vector<Segment> past;
    for (int round = 0; round < 2000; round++) {
        for (int i = 0; i < 4; i++) {
            Segment s;
            s.from = htonl(0xc6120200u + dice.take<unsigned>() % 250);
            s.to = w.b->address;
            s.from_port = static_cast<std::uint16_t>(1024 + dice.take<unsigned>() % 50'000);
            s.to_port = World::kPort;
            s.seq = dice.take<std::uint32_t>();
            s.flags = kSyn;
            // Something of the oldest ones, then a new one, which takes their place.
            if (past.size() > 400) {
                for (std::size_t back : {258u, 257u, 256u, 255u, 254u, 128u}) {
                    Segment old = past[past.size() - back];
                    if (dice.take<unsigned>() % 2)
                        old.flags = kAck, old.seq++, old.ack = dice.take<std::uint32_t>();
                    w.a->device->kernel_send(build(old, w.a->device->attr().mac, w.b->device->attr().mac));
                }
            }
            past.push_back(s);
            w.a->device->kernel_send(build(s, w.a->device->attr().mac, w.b->device->attr().mac));
        }
        w.poll();
        (void)w.a->device->take_kernel_frames();
    }
    EXPECT_LE(Connection::count(), 5000u);
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    EXPECT_EQ(send(c, "x"), 1);
    w.poll();
    EXPECT_EQ(receive(s), "x");
    w.close(c, true);
    w.close(s, true);
    w.pass(200 * kSec);
    EXPECT_EQ(Connection::count(), 0u);
}

// ---- ICMP ----

// Quoted numbers at the edges: only what is under way counts, and once connected nothing ends the connection.
TEST(TcpAttacker, ForgedIcmp) {
    for (const int error : {ECONNREFUSED, EHOSTUNREACH, ENETUNREACH, EPROTO, EMSGSIZE, EACCES})
        for (const std::uint32_t mtu : {0u, 1u, 39u, 40u, 68u, 551u, 552u, 1500u, 65535u, 0xffffffffu}) {
            if (error != EMSGSIZE && mtu != 0) continue;
            SCOPED_TRACE(error * 100000 + static_cast<int>(mtu % 100000));
            Attack t;
            ASSERT_NO_FATAL_FAILURE(t.start());
            for (const std::uint32_t seq :
                 {t.m.their_first - 1, t.m.their_first + 2, t.m.their_first + 0x80000000u})
                t.c->icmp_error(*t.w.a->ring, {error, mtu, seq});
            EXPECT_EQ(t.c->state(), State::syn_sent);
            t.answer(option::mss(1460) + option::sack_allowed());
            ASSERT_EQ(t.c->state(), State::established);
            EXPECT_EQ(t.write(10'000), 10'000u);
            ASSERT_NO_FATAL_FAILURE(t.hear());
            t.m.rcv = t.m.their_first + 1 + 1460;
            t.say(kAck);
            for (const std::uint32_t seq : t.m.ack_edges()) t.c->icmp_error(*t.w.a->ring, {error, mtu, seq});
            EXPECT_EQ(t.c->state(), State::established);
            EXPECT_GE(t.c->mss(), 500u);
            t.m.rcv = t.m.their_highest;
            ASSERT_NO_FATAL_FAILURE(t.hear());
            ASSERT_NO_FATAL_FAILURE(t.expect_all_arrives());
        }
}

// ---- chance ----

// The same dice as on the packet socket, many more of them.
TEST(TcpAttacker, WhateverTheDiceSay) {
    for (std::uint64_t seed = 1; seed <= 300; seed++) {
        SCOPED_TRACE(seed);
        Attack t;
        attacker::Dice dice(seed);
        t.w.options.timestamps = seed % 3 != 0;
        t.w.options.receive_window = seed % 4 == 0 ? 4096 : 1 << 20;
        ASSERT_NO_FATAL_FAILURE(t.start());
        t.answer(option::mss(1460) + (seed % 5 ? option::sack_allowed() : "") +
                 (seed % 7 ? option::scale(3) : "") + (t.w.options.timestamps ? option::stamps(100, 0) : ""));
        for (int i = 0; i < 150; i++) {
            switch (dice.take<unsigned>() % 8) {
                case 0:
                    t.say(kAck | kPsh, dice.take<unsigned>() % 1400);
                    break;
                case 1:
                    t.write(dice.take<unsigned>() % 5000);
                    break;
                case 2:
                    ASSERT_NO_FATAL_FAILURE(t.read());
                    break;
                case 3:
                    ASSERT_NO_FATAL_FAILURE(t.hear());
                    break;
                case 4:
                    t.w.pass(dice.take<unsigned>() % 400 * kMs);
                    break;
                default: {
                    Segment s = t.m.crafted(dice);
                    if (t.c->state() == State::syn_sent) s.flags &= static_cast<std::uint8_t>(~kSyn);
                    t.put(s);
                    if (dice.take<unsigned>() % 4) t.w.poll();
                }
            }
        }
        ASSERT_NO_FATAL_FAILURE(t.read());
        ASSERT_NO_FATAL_FAILURE(t.hear());
    }
}

}  // namespace
}  // namespace vma::tcp::test
