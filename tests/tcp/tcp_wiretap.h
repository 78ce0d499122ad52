// SPDX-License-Identifier: BSD-2-Clause
// Segments by hand: a tap that sees and drops what goes over the wire, a peer that is no TCP at all but says
// exactly what a test tells it to, and a stream whose every byte can be checked. What the two hosts of
// tcp_hosts.h do on their own, they do right; these are for everything else.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>

#include "tcp_hosts.h"
#include "tests/support/attacker/segment.h"

namespace vma::tcp::test {

using verbs::wire::Frame;

using attacker::build;
using attacker::parse;
using attacker::Said;
using attacker::said;
using attacker::Segment;
using attacker::stream_byte;
using enum attacker::Flag;
namespace option = attacker::option;

// Listens on the wire of a World, and may take segments off it.
class Tap {
  public:
    struct Seen : Segment {
        bool from_a = false;
        unsigned number = 0;  // of this direction, from 0
        std::uint64_t at = 0;
        bool dropped = false;
    };
    explicit Tap(World& world) : world_(world) {
        world.wire.set_hook([this](const verbs::wire::WireDevice& from, std::vector<Frame>& frames) {
            auto segment = parse(frames.at(0));
            if (!segment) return;
            Seen s;
            static_cast<Segment&>(s) = std::move(*segment);
            s.from_a = &from == world_.a->device;
            s.number = s.from_a ? from_a_++ : from_b_++;
            s.at = world_.wire.now();
            s.dropped = drop && drop(s);
            if (s.dropped) {
                dropped++;
                if (keep) lost.push_back(std::move(frames[0]));
                frames.clear();
            } else if (keep) {
                passed.push_back(frames[0]);
            }
            if (!record) return;
            seen.push_back(std::move(s));
        });
    }
    ~Tap() { world_.wire.set_hook({}); }
    Tap(const Tap&) = delete;
    Tap& operator=(const Tap&) = delete;

    std::vector<Seen> take() { return std::exchange(seen, {}); }
    // What was recorded, for a reader.
    std::string text() const {
        std::string out;
        for (const Seen& s : seen) {
            char line[160];
            snprintf(line, sizeof line, "%12.6f %s%-3u %c%c%c%c%c seq %u +%zu ack %u win %u%s\n",
                     static_cast<double>(s.at) / 1e9, s.from_a ? "a" : "                        b", s.number,
                     s.flags & kSyn ? 'S' : '.', s.flags & kFin ? 'F' : '.', s.flags & kRst ? 'R' : '.',
                     s.flags & kPsh ? 'P' : '.', s.flags & kAck ? 'A' : '.', s.seq, s.payload.size(), s.ack,
                     s.window, s.dropped ? " LOST" : "");
            out += line;
        }
        return out;
    }

    std::function<bool(const Seen&)> drop;  // true: the segment is lost
    bool record = true, keep = false;
    std::vector<Seen> seen;
    std::vector<Frame> passed, lost;  // with `keep`
    unsigned dropped = 0;

  private:
    World& world_;
    unsigned from_a_ = 0, from_b_ = 0;
};

// A host's kernel that speaks as told. It has its own endpoint on `here`, for which our stack has no rule.
class Peer {
  public:
    Peer(World& world, Host& here, std::uint16_t port, Host& there, std::uint16_t there_port)
        : world_(world), here_(here), there_(there), port_(port), there_port_(there_port) {
        (void)here_.device->take_kernel_frames();
    }

    // What has come for us since the last time.
    std::vector<Segment> take() {
        world_.poll();
        std::vector<Segment> out;
        for (const Frame& f : here_.device->take_kernel_frames())
            if (auto s = parse(f); s && s->to_port == port_ && s->from_port == there_port_)
                out.push_back(std::move(*s));
        return out;
    }
    Segment segment(std::uint8_t flags, std::string payload = "") const {
        Segment s;
        s.from = here_.address;
        s.to = there_.address;
        s.from_port = port_;
        s.to_port = there_port_;
        s.seq = snd;
        s.ack = flags & kAck ? rcv : 0;
        s.flags = flags;
        s.window = window;
        if (stamps && !(flags & kRst)) s.options = option::stamps(stamp, echo);
        s.payload = std::move(payload);
        return s;
    }
    void put(const Segment& s) {
        here_.device->kernel_send(build(s, here_.device->attr().mac, there_.device->attr().mac));
        world_.poll();
    }
    // A segment in sequence.
    void say(std::uint8_t flags, std::string payload = "") {
        const Segment s = segment(flags, std::move(payload));
        put(s);
        snd = s.end();
    }
    // As take(), and moves our idea of what was received.
    std::vector<Segment> hear() {
        auto all = take();
        for (const Segment& s : all) {
            if (s.seq == rcv || (s.flags & kSyn)) rcv = s.end();
            if (auto v = said(s).stamp) echo = *v;
        }
        return all;
    }
    // The active side is a Connection: takes its SYN, answers with `options`, and has the last ACK.
    void answer(const std::string& options = "") {
        auto first = take();
        ASSERT_FALSE(first.empty());
        ASSERT_EQ(first[0].flags, kSyn);
        syn = first[0];
        rcv = syn.end();
        if (auto v = said(syn).stamp) echo = *v;
        Segment s = segment(kSyn | kAck);
        s.options = options;
        put(s);
        snd = s.end();
        stamps = said(s).stamp.has_value();
        auto last = take();
        ASSERT_FALSE(last.empty());
        ASSERT_EQ(last[0].flags & (kSyn | kAck | kRst), kAck);
    }
    // The passive side is a Listener.
    void connect(const std::string& options = "") {
        Segment s = segment(kSyn);
        s.options = options;
        put(s);
        snd = s.end();
        auto answers = take();
        ASSERT_FALSE(answers.empty());
        ASSERT_EQ(answers[0].flags, kSyn | kAck);
        syn = answers[0];
        rcv = syn.end();
        if (auto v = said(syn).stamp) echo = *v;
        stamps = said(s).stamp.has_value() && said(syn).stamp.has_value();
        put(segment(kAck));
    }

    std::uint32_t snd = 5'000'000, rcv = 0;
    std::uint16_t window = 65535;
    bool stamps = false;
    std::uint32_t stamp = 100, echo = 0;
    Segment syn;  // the other side's

  private:
    World& world_;
    Host& here_;
    Host& there_;
    std::uint16_t port_, there_port_;
};

// One direction of a connection, with known content.
struct Stream {
    Connection* from = nullptr;
    Connection* to = nullptr;
    std::uint64_t total = 0;
    std::uint32_t seed = 1;
    std::size_t write = 16384, read = 65536;
    bool close_when_done = false;  // shutdown(SHUT_WR) behind the last byte
    std::uint64_t sent = 0, got = 0;
    bool wrong = false, shut = false, end = false;
    int send_error = 0, receive_error = 0;
    std::string buffer{};

    void send_some() {
        while (sent < total && send_error == 0) {
            const std::size_t n = std::min<std::uint64_t>(write, total - sent);
            buffer.resize(n);
            for (std::size_t i = 0; i < n; i++) buffer[i] = stream_byte(sent + i, seed);
            iovec iov{buffer.data(), n};
            const ssize_t done = from->send(&iov, 1, n, 0);
            if (done == -EAGAIN) break;
            if (done < 0) {
                send_error = static_cast<int>(-done);
                break;
            }
            sent += static_cast<std::uint64_t>(done);
        }
        if (sent == total && close_when_done && !shut) {
            shut = true;
            from->shutdown(SHUT_WR);
        }
    }
    void receive_some(bool all = true) {
        while (!end && receive_error == 0) {
            buffer.resize(read);
            iovec iov{buffer.data(), read};
            const ssize_t n = to->receive(&iov, 1, read, 0);
            if (n == -EAGAIN) break;
            if (n == 0) {
                end = true;
                break;
            }
            if (n < 0) {
                receive_error = static_cast<int>(-n);
                break;
            }
            for (ssize_t i = 0; i < n; i++)
                if (buffer[static_cast<std::size_t>(i)] !=
                    stream_byte(got + static_cast<std::uint64_t>(i), seed))
                    wrong = true;
            got += static_cast<std::uint64_t>(n);
            if (!all) break;
        }
    }
    bool done() const { return got >= total && (!close_when_done || end); }
    bool failed() const { return wrong || send_error != 0 || receive_error != 0 || got > total; }
};

}  // namespace vma::tcp::test
