// SPDX-License-Identifier: BSD-2-Clause
// A peer sends urgent data and then resets the connection, falls silent, or ends. It repeats nothing. What
// the program reads is what it reads on the kernel.
#include <stdio.h>

#include "tests/support/attacker/raw_peer.h"
#include "tests/support/hosts/plain_test.h"

namespace {

using namespace testing_support;
using attacker::kAck, attacker::kFin, attacker::kPsh, attacker::kRst, attacker::kUrg;
using attacker::RawPeer;

constexpr std::uint16_t kPort = 4568;

struct Case {
    const char* name;
    std::vector<const char*> program;  // further arguments
    // What the peer does with an open connection.
    void (*act)(RawPeer&, RawPeer::End&);
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// 100 bytes, the last of which is urgent, as RFC 6093 says that all do it.
void urgent(RawPeer& peer, RawPeer::End& end, std::uint8_t flags = 0, std::uint16_t at = 100,
            std::size_t length = 100) {
    attacker::Segment s = end.segment(static_cast<std::uint8_t>(kAck | kPsh | kUrg | flags), length);
    s.urgent = at;
    peer.say(end, s);
}

const Case kCases[] = {
    {"then_reset", {}, [](RawPeer& p, RawPeer::End& e) { urgent(p, e), p.say(e, kRst); }},
    {"then_silence", {}, [](RawPeer& p, RawPeer::End& e) { urgent(p, e); }},
    {"then_end", {}, [](RawPeer& p, RawPeer::End& e) { urgent(p, e), p.say(e, kFin | kAck); }},
    {"with_end", {}, [](RawPeer& p, RawPeer::End& e) { urgent(p, e, kFin); }},
    {"with_end_then_reset", {}, [](RawPeer& p, RawPeer::End& e) { urgent(p, e, kFin), p.say(e, kRst); }},
    {"twice_then_reset", {}, [](RawPeer& p, RawPeer::End& e) { urgent(p, e), urgent(p, e), p.say(e, kRst); }},
    {"twice_then_silence", {}, [](RawPeer& p, RawPeer::End& e) { urgent(p, e), urgent(p, e); }},
    {"behind_data_then_reset",
     {},
     [](RawPeer& p, RawPeer::End& e) {
         p.say(e, kAck | kPsh, 700);
         urgent(p, e);
         p.say(e, kRst);
     }},
    {"before_data_then_silence",
     {},
     [](RawPeer& p, RawPeer::End& e) {
         urgent(p, e);
         for (int i = 0; i < 20; i++) p.say(e, kAck | kPsh, 700);
     }},
    {"in_the_middle_then_silence", {}, [](RawPeer& p, RawPeer::End& e) { urgent(p, e, 0, 50); }},
    {"byte_to_come_then_reset",
     {},
     [](RawPeer& p, RawPeer::End& e) { urgent(p, e, 0, 200), p.say(e, kRst); }},
    {"no_data_then_silence", {}, [](RawPeer& p, RawPeer::End& e) { urgent(p, e, 0, 1, 0); }},
    {"inline_then_reset", {"inline"}, [](RawPeer& p, RawPeer::End& e) { urgent(p, e), p.say(e, kRst); }},
    {"inline_then_silence", {"inline"}, [](RawPeer& p, RawPeer::End& e) { urgent(p, e); }},
    {"inline_with_end", {"inline"}, [](RawPeer& p, RawPeer::End& e) { urgent(p, e, kFin); }},
    {"before_accept_then_silence", {"late"}, [](RawPeer& p, RawPeer::End& e) { urgent(p, e); }},
    {"before_accept_with_end", {"late"}, [](RawPeer& p, RawPeer::End& e) { urgent(p, e, kFin); }},
    {"before_accept_then_reset", {"late"}, [](RawPeer& p, RawPeer::End& e) { urgent(p, e), p.say(e, kRst); }},
};

class UrgentThenAbort : public testing::TestWithParam<Case> {
  protected:
    // What the program says.
    std::string read(bool library, const char* wait, std::uint16_t port) {
        std::vector<std::string> arguments{app("urgent_reader"), std::to_string(kPort), wait};
        arguments.insert(arguments.end(), GetParam().program.begin(), GetParam().program.end());
        Process program = hosts.run(Host::b, arguments, library ? with_library() : RunOptions{});
        EXPECT_TRUE(program.wait_for_out("ready", milliseconds(10000) * patience())) << program.err();
        Process peer = hosts.run(Host::a, [port, act = GetParam().act] {
            RawPeer peer("veth1", "198.18.1.2");
            RawPeer::End end;
            if (!peer.open(end, port, kPort, true)) return 1;
            peer.hear_for(100);  // the connection is accepted
            peer.acknowledges = false;
            act(peer, end);
            peer.hear_for(4000);
            return 0;
        });
        const Exit end = program.wait(milliseconds(20000) * patience());
        EXPECT_TRUE(end.ok()) << end.code << end.err;
        peer.kill(SIGKILL);
        peer.wait();
        return end.out;
    }
    TwoHosts hosts;
};

TEST_P(UrgentThenAbort, IsReadAsOnTheKernel) {
    std::uint16_t port = 20000;  // the kernel still has the connection of before
    for (const char* wait : {"0", "200"}) {
        const std::string kernel = read(false, wait, port++);
        EXPECT_EQ(read(true, wait, port++), kernel) << wait;
    }
}

INSTANTIATE_TEST_SUITE_P(Cases, UrgentThenAbort, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
