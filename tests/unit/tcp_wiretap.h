// SPDX-License-Identifier: BSD-2-Clause
// Segments by hand: a tap that sees and drops what goes over the wire, a peer that is no TCP at all but says exactly what a
// test tells it to, and a stream whose every byte can be checked. What the two hosts of tcp_hosts.h do on their own, they do
// right; these are for everything else.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>

#include "libvma/net/checksum.h"
#include "libvma/net/frame.h"
#include "tcp_hosts.h"

namespace vma::tcp::test {

using verbs::wire::Frame;

enum : std::uint8_t { kFin = 1, kSyn = 2, kRst = 4, kPsh = 8, kAck = 16, kUrg = 32 };

struct Segment {
    in_addr_t from = 0, to = 0;
    std::uint16_t from_port = 0, to_port = 0;  // host order, as all below
    std::uint32_t seq = 0, ack = 0;
    std::uint8_t flags = 0;
    std::uint16_t window = 65535, urgent = 0;
    std::string options;  // a multiple of 4 bytes
    std::string payload;

    std::uint32_t end() const {
        return seq + static_cast<std::uint32_t>(payload.size()) + ((flags & kSyn) != 0) + ((flags & kFin) != 0);
    }
};

// What the options of a segment say.
struct Said {
    std::optional<std::uint16_t> mss;
    std::optional<std::uint8_t> scale;
    bool sack_allowed = false;
    std::optional<std::uint32_t> stamp, echo;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> sacks;
};

namespace option {
inline std::string be16(std::uint16_t v) { return {static_cast<char>(v >> 8), static_cast<char>(v)}; }
inline std::string be32(std::uint32_t v) {
    return be16(static_cast<std::uint16_t>(v >> 16)) + be16(static_cast<std::uint16_t>(v));
}
inline std::string mss(std::uint16_t v) { return std::string("\x02\x04", 2) + be16(v); }
inline std::string scale(std::uint8_t shift) { return std::string("\x01\x03\x03", 3) + static_cast<char>(shift); }
inline std::string sack_allowed() { return std::string("\x01\x01\x04\x02", 4); }
inline std::string stamps(std::uint32_t value, std::uint32_t echo) {
    return std::string("\x01\x01\x08\x0a", 4) + be32(value) + be32(echo);
}
inline std::string sack(const std::vector<std::pair<std::uint32_t, std::uint32_t>>& blocks) {
    std::string s("\x01\x01\x05", 3);
    s += static_cast<char>(2 + 8 * blocks.size());
    for (auto [left, right] : blocks) s += be32(left) + be32(right);
    return s;
}
}  // namespace option

inline Said said(const Segment& s) {
    Said out;
    const auto& o = s.options;
    auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(o[i]); };
    auto word = [&](std::size_t i) {
        return std::uint32_t{byte(i)} << 24 | std::uint32_t{byte(i + 1)} << 16 | std::uint32_t{byte(i + 2)} << 8 | byte(i + 3);
    };
    for (std::size_t i = 0; i < o.size() && o[i] != 0;) {
        if (o[i] == 1) {
            i++;
            continue;
        }
        if (i + 1 >= o.size() || byte(i + 1) < 2 || i + byte(i + 1) > o.size()) break;
        const std::size_t n = byte(i + 1);
        if (o[i] == 2 && n == 4) out.mss = static_cast<std::uint16_t>(word(i) & 0xffff);
        if (o[i] == 3 && n == 3) out.scale = byte(i + 2);
        if (o[i] == 4 && n == 2) out.sack_allowed = true;
        if (o[i] == 8 && n == 10) out.stamp = word(i + 2), out.echo = word(i + 6);
        if (o[i] == 5)
            for (std::size_t b = i + 2; b + 8 <= i + n; b += 8) out.sacks.emplace_back(word(b), word(b + 4));
        i += n;
    }
    return out;
}

// Nothing when it is not a TCP segment.
inline std::optional<Segment> parse(const Frame& frame) {
    net::ParsedFrame f;
    if (net::parse(std::span<const std::uint8_t>(frame), false, f) != net::Drop::none || f.protocol != IPPROTO_TCP) return {};
    net::TcpHeader h;
    std::memcpy(&h, frame.data() + f.l4_offset, sizeof h);
    Segment s;
    s.from = f.src_addr;
    s.to = f.dst_addr;
    s.from_port = ntohs(f.src_port);
    s.to_port = ntohs(f.dst_port);
    s.seq = ntohl(h.seq);
    s.ack = ntohl(h.ack);
    s.flags = h.flags;
    s.window = ntohs(h.window);
    s.urgent = ntohs(h.urgent);
    const auto* at = reinterpret_cast<const char*>(frame.data());
    s.options.assign(at + f.l4_offset + sizeof h, at + f.payload_offset);
    s.payload.assign(at + f.payload_offset, f.payload_length);
    return s;
}

inline Frame build(const Segment& s, const net::MacAddress& src, const net::MacAddress& dst) {
    net::UdpTemplate t;
    t.src_mac = src;
    t.dst_mac = dst;
    t.src_addr = s.from;
    t.dst_addr = s.to;
    const std::size_t l4 = sizeof(net::TcpHeader) + s.options.size() + s.payload.size();
    Frame frame(34 + l4);
    net::build_ip_headers(t, IPPROTO_TCP, frame.data());
    net::Ipv4Header ip;
    std::memcpy(&ip, frame.data() + 14, sizeof ip);
    ip.total_length = htons(static_cast<std::uint16_t>(20 + l4));
    ip.checksum = 0;
    auto sum = [](const std::uint8_t* p, std::size_t n, std::uint32_t start) {
        std::uint64_t total = start;
        for (std::size_t i = 0; i < n; i++) total += i % 2 ? p[i] : std::uint32_t{p[i]} << 8;
        while (total >> 16) total = (total & 0xffff) + (total >> 16);
        return htons(static_cast<std::uint16_t>(~total));
    };
    ip.checksum = sum(reinterpret_cast<std::uint8_t*>(&ip), sizeof ip, 0);
    std::memcpy(frame.data() + 14, &ip, sizeof ip);
    net::TcpHeader h{};
    h.src_port = htons(s.from_port);
    h.dst_port = htons(s.to_port);
    h.seq = htonl(s.seq);
    h.ack = htonl(s.ack);
    h.data_offset = static_cast<std::uint8_t>((sizeof h + s.options.size()) / 4 << 4);
    h.flags = s.flags;
    h.window = htons(s.window);
    h.urgent = htons(s.urgent);
    std::uint8_t* at = frame.data() + 34;
    std::memcpy(at, &h, sizeof h);
    std::copy(s.options.begin(), s.options.end(), at + sizeof h);
    std::copy(s.payload.begin(), s.payload.end(), at + sizeof h + s.options.size());
    std::uint32_t pseudo = IPPROTO_TCP + static_cast<std::uint32_t>(l4);
    for (in_addr_t addr : {s.from, s.to}) pseudo += (ntohl(addr) >> 16) + (ntohl(addr) & 0xffff);
    h.checksum = sum(at, l4, pseudo);
    std::memcpy(at, &h, sizeof h);
    return frame;
}

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
            snprintf(line, sizeof line, "%12.6f %s%-3u %c%c%c%c%c seq %u +%zu ack %u win %u%s\n", static_cast<double>(s.at) / 1e9,
                     s.from_a ? "a" : "                        b", s.number, s.flags & kSyn ? 'S' : '.', s.flags & kFin ? 'F' : '.',
                     s.flags & kRst ? 'R' : '.', s.flags & kPsh ? 'P' : '.', s.flags & kAck ? 'A' : '.', s.seq, s.payload.size(),
                     s.ack, s.window, s.dropped ? " LOST" : "");
            out += line;
        }
        return out;
    }

    std::function<bool(const Seen&)> drop;  // true: the segment is lost
    bool record = true, keep = false;
    std::vector<Seen> seen;
    std::vector<Frame> passed, lost;        // with `keep`
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
            if (auto s = parse(f); s && s->to_port == port_ && s->from_port == there_port_) out.push_back(std::move(*s));
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

// Byte `i` of the stream with this seed.
inline char stream_byte(std::uint64_t i, std::uint32_t seed) {
    std::uint64_t z = (i >> 3) * 0x9e3779b97f4a7c15u + seed;
    z = (z ^ z >> 29) * 0xbf58476d1ce4e5b9u;
    return static_cast<char>(z >> (8 * (i & 7)));
}

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
                if (buffer[static_cast<std::size_t>(i)] != stream_byte(got + static_cast<std::uint64_t>(i), seed)) wrong = true;
            got += static_cast<std::uint64_t>(n);
            if (!all) break;
        }
    }
    bool done() const { return got >= total && (!close_when_done || end); }
    bool failed() const { return wrong || send_error != 0 || receive_error != 0 || got > total; }
};

}  // namespace vma::tcp::test
