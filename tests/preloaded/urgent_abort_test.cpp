// SPDX-License-Identifier: BSD-2-Clause
// A peer sends urgent data and then resets the connection, falls silent, or ends. It repeats nothing. What
// the program reads is what it reads on the kernel.
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "tests/support/attacker/raw_peer.h"
#include "tests/support/hosts/plain_test.h"

namespace {

using namespace testing_support;
using attacker::kAck, attacker::kFin, attacker::kPsh, attacker::kRst, attacker::kUrg;
using attacker::RawPeer, attacker::Segment;

constexpr std::uint16_t kPort = 4568;

// Says what a case says, with pauses.
class Speaker {
  public:
    Speaker(RawPeer& raw, int pause_msec) : raw_(raw), pause_msec_(pause_msec) {}
    template <class... What>
    void say(RawPeer::End& end, const What&... what) {
        if (std::exchange(spoke_, true) && pause_msec_ != 0) raw_.hear_for(pause_msec_);
        raw_.say(end, what...);
    }

  private:
    RawPeer& raw_;
    int pause_msec_;
    bool spoke_ = false;
};

struct Case {
    const char* name;
    std::vector<const char*> program;  // further arguments
    // What the peer does with an open connection.
    void (*act)(Speaker&, RawPeer::End&);
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// 100 bytes, the last of which is urgent, as RFC 6093 says that all do it.
void urgent(Speaker& peer, RawPeer::End& end, std::uint8_t flags = 0, std::uint16_t at = 100,
            std::size_t length = 100) {
    Segment s = end.segment(static_cast<std::uint8_t>(kAck | kPsh | kUrg | flags), length);
    s.urgent = at;
    peer.say(end, s);
}

const Case kCases[] = {
    {"then_reset", {}, [](Speaker& p, RawPeer::End& e) { urgent(p, e), p.say(e, kRst); }},
    {"then_silence", {}, [](Speaker& p, RawPeer::End& e) { urgent(p, e); }},
    {"then_end", {}, [](Speaker& p, RawPeer::End& e) { urgent(p, e), p.say(e, kFin | kAck); }},
    {"with_end", {}, [](Speaker& p, RawPeer::End& e) { urgent(p, e, kFin); }},
    {"with_end_then_reset", {}, [](Speaker& p, RawPeer::End& e) { urgent(p, e, kFin), p.say(e, kRst); }},
    {"twice_then_reset", {}, [](Speaker& p, RawPeer::End& e) { urgent(p, e), urgent(p, e), p.say(e, kRst); }},
    {"twice_then_silence", {}, [](Speaker& p, RawPeer::End& e) { urgent(p, e), urgent(p, e); }},
    {"behind_data_then_reset",
     {},
     [](Speaker& p, RawPeer::End& e) {
         p.say(e, kAck | kPsh, 700);
         urgent(p, e);
         p.say(e, kRst);
     }},
    {"before_data_then_silence",
     {},
     [](Speaker& p, RawPeer::End& e) {
         urgent(p, e);
         for (int i = 0; i < 20; i++) p.say(e, kAck | kPsh, 700);
     }},
    {"in_the_middle_then_silence", {}, [](Speaker& p, RawPeer::End& e) { urgent(p, e, 0, 50); }},
    {"byte_to_come_then_reset",
     {},
     [](Speaker& p, RawPeer::End& e) { urgent(p, e, 0, 200), p.say(e, kRst); }},
    {"no_data_then_silence", {}, [](Speaker& p, RawPeer::End& e) { urgent(p, e, 0, 1, 0); }},
    {"inline_then_reset", {"inline"}, [](Speaker& p, RawPeer::End& e) { urgent(p, e), p.say(e, kRst); }},
    {"inline_then_silence", {"inline"}, [](Speaker& p, RawPeer::End& e) { urgent(p, e); }},
    {"inline_with_end", {"inline"}, [](Speaker& p, RawPeer::End& e) { urgent(p, e, kFin); }},
    {"before_accept_then_silence", {"late"}, [](Speaker& p, RawPeer::End& e) { urgent(p, e); }},
    {"before_accept_with_end", {"late"}, [](Speaker& p, RawPeer::End& e) { urgent(p, e, kFin); }},
    {"before_accept_then_reset", {"late"}, [](Speaker& p, RawPeer::End& e) { urgent(p, e), p.say(e, kRst); }},
};

// When the program reads.
enum class Reads {
    meanwhile,   // as soon as there is something
    in_between,  // the same, and the peer pauses after each segment
    afterwards,  // when all has arrived
};

class UrgentThenAbort : public testing::TestWithParam<Case> {
  protected:
    // What the program says.
    std::string read(bool library, Reads when) {
        int ends[4];
        EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
        EXPECT_EQ(pipe2(ends + 2, O_CLOEXEC), 0);
        Fd programs_input(ends[0]), read_now(ends[1]), peers_input(ends[2]), speak_now(ends[3]);
        std::vector<std::string> arguments{app("urgent_reader"), std::to_string(kPort),
                                           when == Reads::afterwards ? "told" : "at_once"};
        arguments.insert(arguments.end(), GetParam().program.begin(), GetParam().program.end());
        Process program =
            hosts.run(Host::b, arguments, {.preload = library, .fds = {{programs_input.get(), 0}}});
        EXPECT_TRUE(program.wait_for_out("ready", milliseconds(10000) * patience())) << program.err();
        const std::uint16_t port = port_++;  // the kernel still has the connection of before
        Process peer = hosts.run(Host::a,
                                 [port, when, act = GetParam().act] {
                                     RawPeer raw("veth1", "198.18.1.2");
                                     RawPeer::End end;
                                     if (!raw.open(end, port, kPort, true)) return 1;
                                     Speaker peer(raw, when == Reads::in_between ? 300 : 0);
                                     for (pollfd p{0, POLLIN, 0}; poll(&p, 1, 0) == 0;) raw.hear_for(10);
                                     raw.acknowledges = false;
                                     act(peer, end);
                                     puts("all is said");
                                     fflush(stdout);
                                     raw.hear_for(4000);
                                     return 0;
                                 },
                                 {.fds = {{peers_input.get(), 0}}});
        EXPECT_TRUE(program.wait_for_out("connected", milliseconds(10000) * patience())) << program.err();
        EXPECT_EQ(write(speak_now.get(), "!", 1), 1);  // the peer has copies of both ends
        EXPECT_TRUE(peer.wait_for_out("all is said", milliseconds(10000) * patience()));
        if (when == Reads::afterwards) std::this_thread::sleep_for(milliseconds(100));
        read_now.reset();
        const Exit end = program.wait(milliseconds(20000) * patience());
        EXPECT_TRUE(end.ok()) << end.code << end.err;
        peer.kill(SIGKILL);
        peer.wait();
        return end.out;
    }
    TwoHosts hosts;

  private:
    std::uint16_t port_ = 20000;
};

TEST_P(UrgentThenAbort, IsReadAsOnTheKernel) {
    const std::string kernel = read(false, Reads::afterwards);
    EXPECT_EQ(read(true, Reads::afterwards), kernel);
}

// What a program that reads meanwhile is told, it may be told by the kernel, too: each part of it, for what
// has come before which call is a race with the peer. Once the reset has come, the kernel has no urgent byte
// (ENOTCONN).
struct Parts {
    std::string mark, byte, end;
    explicit Parts(const std::string& text) {
        std::istringstream lines(text);
        for (std::string line; std::getline(lines, line);)
            if (const auto comma = line.find(", urgent"); comma != line.npos)
                mark = line.substr(0, comma), byte = line.substr(comma);
            else
                end = line;
    }
};
void expect_possible(const std::string& library, const std::set<std::string>& kernel) {
    std::set<std::string> marks, bytes, ends;
    for (const auto& text : kernel) {
        const Parts parts(text);
        marks.insert(parts.mark), bytes.insert(parts.byte), ends.insert(parts.end);
        if (parts.end.ends_with("ECONNRESET") || parts.end.ends_with("EPIPE"))
            bytes.insert(", urgent ENOTCONN 0");
    }
    const Parts parts(library);
    EXPECT_TRUE(marks.contains(parts.mark) && bytes.contains(parts.byte) && ends.contains(parts.end))
        << library << "and the kernel's program:\n"
        << testing::PrintToString(kernel);
}

TEST_P(UrgentThenAbort, IsReadMeanwhileAsOnTheKernel) {
    std::set<std::string> kernel{read(false, Reads::meanwhile)};
    const std::string library = read(true, Reads::meanwhile);
    // A program that was quicker, or slower.
    if (!kernel.contains(library)) kernel.insert(read(false, Reads::afterwards));
    for (int i = 0; i < 3 && !kernel.contains(library); i++) kernel.insert(read(false, Reads::in_between));
    expect_possible(library, kernel);
}

INSTANTIATE_TEST_SUITE_P(Cases, UrgentThenAbort, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
