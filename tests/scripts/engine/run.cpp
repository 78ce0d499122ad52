// SPDX-License-Identifier: BSD-2-Clause
// See run.h.
#include "run.h"

#include <stdio.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <thread>

#include "endpoint.h"

namespace scripts {

using namespace std::chrono_literals;
using testing_support::Host;
using testing_support::TwoHosts;

namespace {

// How long something may take on a busy machine.
constexpr auto kPatience = 4s;
// Between two questions for what a call returns in the end: longer each time.
constexpr auto kFirstPause = 2ms, kLongestPause = 50ms;
constexpr int kFirstPort = 10000;

std::chrono::nanoseconds span(double seconds) {
    return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

class Difference : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

class Run {
  public:
    Run(const Script& script, std::size_t who, Program& program, RawWire& wire)
        : script_(script),
          who_(who),
          program_(program),
          wire_(wire),
          peer_(inet_addr(peer_address(who).c_str())),
          begin_(now()),
          last_(begin_) {
        wire_.know(peer_, mailbox_);
    }
    ~Run() { wire_.forget(peer_); }

    Outcome all() {
        Outcome o;
        try {
            program_.ask(who_, "begin " + peer_address(who_) + " " + std::to_string(port()));
            for (const Step& s : script_.steps) step(s);
            if (more(now() + 20ms, nullptr)) throw Difference("one segment too many");
            o.passed = true;
        } catch (const std::runtime_error& e) {
            line("*", e.what());
            rest();
        }
        program_.ask(who_, "end");
        o.transcript = transcript_;
        o.frames = mailbox_.record();
        return o;
    }

  private:
    int port() const { return kFirstPort + static_cast<int>(who_); }

    void line(const std::string& mark, const std::string& text, WallTime when = now()) {
        char time[32];
        snprintf(time, sizeof time, "%7.3f ", std::chrono::duration<double>(when - begin_).count());
        transcript_ += time + mark + " " + text + "\n";
    }
    // What comes after the difference helps who reads it.
    void rest() {
        while (const auto more = mailbox_.next(now() + 300ms)) heard(*more);
    }

    Endpoint& endpoint(int number) {
        auto found = endpoints_.find(number);
        if (found == endpoints_.end())
            found = endpoints_
                        .try_emplace(number, peer_, inet_addr(TwoHosts::address(Host::b).c_str()),
                                     static_cast<std::uint16_t>(kPeerPort + number),
                                     static_cast<std::uint16_t>(port()), script_.first)
                        .first;
        return found->second;
    }
    static std::string mark(int number, const char* direction) {
        return number == 1 ? direction : "@" + std::to_string(number) + " " + direction;
    }

    // Takes a segment of the program's into account, and writes it down.
    void heard(const Heard& h) {
        const int number = h.segment.to_port - kPeerPort;
        Endpoint& e = endpoint(number);
        e.hear(h.segment);
        line(mark(number, ">"), e.text(h.segment, h.ecn, false), h.when);
    }

    std::string difference(const Step& s, const Heard& h) {
        const int number = h.segment.to_port - kPeerPort;
        return number != s.endpoint ? "endpoint" : endpoint(number).difference(s.pattern, h.segment, h.ecn);
    }
    // The next segment, but none that may come again, unless it is the expected one.
    std::optional<Heard> more(WallTime limit, const Step* expected) {
        for (;;) {
            auto h = mailbox_.next(limit);
            if (!h) return {};
            heard(*h);
            if (again_ == nullptr || !difference(*again_, *h).empty() ||
                (expected != nullptr && difference(*expected, *h).empty()))
                return h;
        }
    }

    void step(const Step& s) {
        switch (s.kind) {
            case Step::Kind::call:
                return call(s);
            case Step::Kind::send:
                return send(s);
            case Step::Kind::expect:
                return expect(s);
            case Step::Kind::icmp:
                return icmp(s);
            case Step::Kind::nothing:
                return nothing(s);
            case Step::Kind::sleep:
                return std::this_thread::sleep_for(span(s.least));
            case Step::Kind::renumber:
                return endpoint(s.endpoint).renumber(s.number);
        }
    }

    // Asks again what may come true in a moment: a queue that fills, a state that changes.
    void call(const Step& s) {
        const std::string verb = s.call.substr(0, s.call.find(' '));
        const bool question = verb == "info" || verb == "get" || verb == "ioctl" || verb == "poll" ||
                              verb == "peer" || verb == "name" || verb == "error";
        const WallTime limit = now() + kPatience;
        std::string answer;
        for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
            answer = program_.ask(who_, s.call);
            if (as_wanted(s.want, answer)) break;
            const bool again =
                question ? verb != "error" || answer == "0"
                         : answer == "EAGAIN" && (verb == "accept" || verb == "recv" || verb == "send");
            if (!again || now() > limit || answer.starts_with("no ")) break;
            std::this_thread::sleep_for(pause);
        }
        line("", s.call + " = " + answer);
        if (!as_wanted(s.want, answer)) throw Difference("line " + at(s));
    }

    void send(const Step& s) {
        std::this_thread::sleep_for(span(s.least));
        Endpoint& e = endpoint(s.endpoint);
        const attacker::Segment segment = e.send(s.pattern);
        attacker::Frame frame = attacker::build(segment, RawWire::kMine, RawWire::kTheirs);
        if (s.pattern.ecn != 0) {
            std::uint8_t* ip = &frame[attacker::kEthernet];
            ip[1] = s.pattern.ecn;
            attacker::put16(ip + 10, 0);
            attacker::put16(ip + 10, attacker::checksum(ip, attacker::kIp));
        }
        if (s.pattern.bad_checksum) frame[attacker::kEthernet + attacker::kIp + 16] ^= 0x5a;
        last_ = wire_.send(peer_, frame);
        line(mark(s.endpoint, "<"), e.text(segment, s.pattern.ecn, true), last_);
    }

    void expect(const Step& s) {
        const auto h = more(now() + kPatience + span(s.least), &s);
        if (!h) throw Difference("nothing came; line " + at(s));
        const std::string what = difference(s, *h);
        if (!what.empty()) throw Difference(what + " differs; line " + at(s));
        again_ = s.again ? &s : nullptr;
        if (s.least > 0 && h->when - last_ < span(s.least)) throw Difference("too early; line " + at(s));
        if (s.most > 0 && h->when - last_ > span(s.most) + 150ms) throw Difference("too late; line " + at(s));
        last_ = h->when;
    }

    void nothing(const Step& s) {
        if (more(now() + span(s.least), nullptr)) throw Difference("a segment came; line " + at(s));
        line("", "nothing");
    }

    void icmp(const Step& s) {
        struct Kind {
            const char* name;
            std::uint8_t type, code;
        };
        static constexpr Kind kKinds[] = {{"net", 3, 0},  {"host", 3, 1},       {"protocol", 3, 2},
                                          {"port", 3, 3}, {"toobig", 3, 4},     {"prohibited", 3, 13},
                                          {"ttl", 11, 0}, {"parameter", 12, 0}, {"quench", 4, 0}};
        for (const auto& kind : kKinds) {
            if (s.call != kind.name) continue;
            last_ = wire_.send(
                peer_, attacker::build_icmp(peer_, inet_addr(TwoHosts::address(Host::b).c_str()), kind.type,
                                            kind.code, s.number, endpoint(s.endpoint).quoted(s.seq),
                                            RawWire::kMine, RawWire::kTheirs));
            line("<", s.text.substr(2), last_);
            return;
        }
        throw Difference("no such message; line " + at(s));
    }

    static std::string at(const Step& s) { return std::to_string(s.line) + ": " + s.text; }

    const Script& script_;
    const std::size_t who_;
    Program& program_;
    RawWire& wire_;
    const in_addr_t peer_;
    const WallTime begin_;
    WallTime last_;                // of the last segment
    const Step* again_ = nullptr;  // what may come again
    Mailbox mailbox_;
    std::map<int, Endpoint> endpoints_;
    std::string transcript_;
};

}  // namespace

std::string peer_address(std::size_t who) { return "198.18.1." + std::to_string(10 + who); }

Outcome run(const Script& script, std::size_t who, Program& program, RawWire& wire) {
    return Run(script, who, program, wire).all();
}

}  // namespace scripts
