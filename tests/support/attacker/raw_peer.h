// SPDX-License-Identifier: BSD-2-Clause
// One end of TCP connections on a packet socket: an honest peer whose packets take odd ways. It has an
// address (198.18.1.60) and a MAC address of its own, answers who asks for them, and counts resets.
#pragma once

#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <stdexcept>
#include <utility>

#include "model.h"

namespace attacker {

// How a segment travels.
enum class Way {
    plain,
    nops,          // 40 bytes of options: none but NOP
    record_route,  // RFC 791
    router_alert,  // RFC 2113
    fragments,
    fragments_reversed,
    eighths,          // fragments of 8 bytes
    nop_fragments,    // options and fragments
    priority_tag,     // VLAN 0 (IEEE 802.1Q)
    other_interface,  // see RawPeer::detour
};

inline const char* name_of(Way way) {
    constexpr const char* kNames[] = {"plain",        "nops",           "record_route", "router_alert",
                                      "fragments",    "reversed",       "eighths",      "nop_fragments",
                                      "priority_tag", "other_interface"};
    return kNames[static_cast<int>(way)];
}

class RawPeer {
  public:
    static constexpr Mac kMac{2, 0, 0x5e, 0x10, 0x66, 0x66};

    // `victim`: who this is a peer of. Throws std::runtime_error.
    RawPeer(const char* interface, const char* victim) : victim_(inet_addr(victim)) {
        fd_ = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, htons(ETH_P_ALL));
        sockaddr_ll at{};
        at.sll_family = AF_PACKET;
        at.sll_protocol = htons(ETH_P_ALL);
        at.sll_ifindex = static_cast<int>(if_nametoindex(interface));
        const int one = 1, room = 8 << 20;
        setsockopt(fd_, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one);
        setsockopt(fd_, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
        if (fd_ < 0 || bind(fd_, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0)
            throw std::runtime_error("no packet socket");
        for (int i = 0; i < 10 && theirs_ == Mac{}; i++) {
            put(question());
            hear_for(200, [this] { return theirs_ != Mac{}; });
        }
        if (theirs_ == Mac{}) throw std::runtime_error("the victim's MAC address is not known");
    }
    ~RawPeer() { close(fd_); }
    RawPeer(const RawPeer&) = delete;
    RawPeer& operator=(const RawPeer&) = delete;

    static in_addr_t address() { return inet_addr("198.18.1.60"); }

    // A connection of the model's form. `echoed`: what it has heard, in order.
    struct End : Model {
        std::string heard;
        unsigned resets = 0, segments = 0;
        bool their_fin = false;
    };
    // Hears until `done()` or for `ms`. Returns whether it is done.
    template <class Done>
    bool hear_for(int ms, Done&& done) {
        const std::uint64_t end = now() + static_cast<std::uint64_t>(ms);
        while (!done()) {
            const std::uint64_t at = now();
            if (at >= end) return false;
            pollfd p{fd_, POLLIN, 0};
            poll(&p, 1, static_cast<int>(end - at));
            hear();
        }
        return true;
    }
    void hear_for(int ms) {
        hear_for(ms, [] { return false; });
    }

    // Speaks for `end` from now on.
    void serve(End* end) { end_ = end; }
    void say(End& end, Segment segment, Way way = Way::plain) {
        end.sent(segment);
        end.snd = segment.end();
        send(build(segment, kMac, theirs_), way);
    }
    void say(End& end, std::uint8_t flags, std::size_t length = 0, Way way = Way::plain) {
        say(end, end.segment(flags, length), way);
    }
    // Opens a connection to `port`. The SYN goes by `first`, the last ACK by `way`.
    bool open(End& end, std::uint16_t my_port, std::uint16_t port, bool stamps, Way way = Way::plain,
              Way first = Way::plain) {
        begin(end, my_port, port, 0x10000000u + my_port * 1000u);
        Segment syn = end.segment(kSyn);
        syn.options = option::mss(1460) + (stamps ? option::stamps(end.stamp, 0) : "");
        for (int i = 0; i < 3 && !end.heard_syn; i++) {
            end.snd = end.first;
            say(end, syn, first);
            hear_for(1000, [&] { return end.heard_syn || end.resets != 0; });
        }
        end.stamps = stamps && end.echo != 0;
        if (end.heard_syn) say(end, kAck, 0, way);
        return end.heard_syn;
    }
    // Waits for a SYN to `my_port` and answers it by `way`.
    bool accept(End& end, std::uint16_t my_port, bool stamps, Way way = Way::plain) {
        begin(end, my_port, 0, 0x20000000u);
        if (!hear_for(10000, [&] { return end.heard_syn; })) return false;
        Segment answer = end.segment(kSyn | kAck);
        end.stamps = stamps && end.echo != 0;
        answer.options = option::mss(1460) + (end.stamps ? option::stamps(end.stamp, end.echo) : "");
        say(end, answer, way);
        return hear_for(3000, [&] { return end.acked == end.first + 1; });
    }
    const Mac& theirs() const { return theirs_; }
    // All resets that came here.
    unsigned resets() const { return resets_; }

    void send(Frame frame, Way way) {
        switch (way) {
            case Way::plain:
                return put(frame);
            case Way::nops:
                return put(with_options(frame, std::string(40, '\1')));
            case Way::record_route:
                return put(with_options(frame, std::string("\x07\x27\x04", 3) + std::string(37, '\0')));
            case Way::router_alert:
                return put(with_options(frame, std::string("\x94\x04\0\0", 4)));
            case Way::fragments:
            case Way::fragments_reversed:
            case Way::eighths:
                return put_pieces(pieces(frame, way == Way::eighths ? 8 : 24), way);
            case Way::nop_fragments:
                return put_pieces(pieces(with_options(frame, std::string(8, '\1')), 24), way);
            case Way::priority_tag: {
                const std::uint8_t tag[] = {0x81, 0, 0xa0, 0};
                frame.insert(frame.begin() + 12, std::begin(tag), std::end(tag));
                return put(frame);
            }
            case Way::other_interface:
                std::copy(detour->theirs_.begin(), detour->theirs_.end(), frame.begin());
                return detour->put(frame);
        }
    }
    // A peer on another interface of the same host, whose wire Way::other_interface takes.
    RawPeer* detour = nullptr;

  private:
    static std::uint64_t now() {
        timespec t{};
        clock_gettime(CLOCK_MONOTONIC, &t);
        return static_cast<std::uint64_t>(t.tv_sec) * 1000 + static_cast<std::uint64_t>(t.tv_nsec) / 1000000;
    }
    void begin(End& end, std::uint16_t my_port, std::uint16_t port, std::uint32_t first) {
        end.me = address();
        end.victim = victim_;
        end.my_port = my_port;
        end.victim_port = port;
        end.first = end.snd = first;
        end.highest = end.acked = first + 1;
        end_ = &end;
    }
    void put(const Frame& frame) {
        for (int i = 0; ::send(fd_, frame.data(), frame.size(), 0) < 0 && i < 1000; i++) {
            pollfd p{fd_, POLLOUT, 0};
            poll(&p, 1, 1);
        }
    }
    static Frame with_options(Frame frame, const std::string& options) {
        frame.insert(frame.begin() + kEthernet + kIp, options.begin(), options.end());
        std::uint8_t* ip = &frame[kEthernet];
        const std::size_t header = kIp + options.size();
        ip[0] = static_cast<std::uint8_t>(0x40 | header / 4);
        put16(ip + 2, static_cast<std::uint32_t>(frame.size() - kEthernet));
        put16(ip + 10, 0);
        put16(ip + 10, checksum(ip, header));
        return frame;
    }
    std::vector<Frame> pieces(const Frame& frame, std::size_t size) {
        const std::size_t header = static_cast<std::size_t>(frame[kEthernet] & 15) * 4,
                          begin = kEthernet + header;
        std::vector<Frame> all;
        id_++;
        for (std::size_t at = begin, n; at < frame.size(); at += n) {
            n = std::min(size, frame.size() - at);
            Frame one(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(begin));
            one.insert(one.end(), frame.begin() + static_cast<std::ptrdiff_t>(at),
                       frame.begin() + static_cast<std::ptrdiff_t>(at + n));
            std::uint8_t* ip = &one[kEthernet];
            put16(ip + 2, static_cast<std::uint32_t>(one.size() - kEthernet));
            put16(ip + 4, id_);
            put16(ip + 6,
                  static_cast<std::uint32_t>((at - begin) / 8) | (at + n == frame.size() ? 0u : 0x2000u));
            put16(ip + 10, 0);
            put16(ip + 10, checksum(ip, header));
            all.push_back(std::move(one));
            if (size < 64 && all.size() == 6) size = 512;  // there may be too many otherwise
        }
        return all;
    }
    void put_pieces(std::vector<Frame> all, Way way) {
        if (way == Way::fragments_reversed) std::reverse(all.begin(), all.end());
        for (const Frame& one : all) put(one);
    }
    void hear() {
        std::uint8_t bytes[65536];
        for (;;) {
            const ssize_t n = recv(fd_, bytes, sizeof bytes, 0);
            if (n <= 0) return;
            const std::span<const std::uint8_t> frame(bytes, static_cast<std::size_t>(n));
            if (frame.size() >= 42 && get16(&frame[12]) == 0x0806) answer_arp(frame);
            const auto s = parse(frame);
            if (!s || s->from != victim_) continue;
            if (s->flags & kRst) resets_++;
            if (end_ == nullptr || s->to != end_->me || s->to_port != end_->my_port) continue;
            take(*end_, *s);
        }
    }
    void take(End& end, const Segment& s) {
        if (end.victim_port == 0 && s.flags & kSyn) end.victim_port = s.from_port;
        if (s.from_port != end.victim_port) return;
        end.segments++;
        if (s.flags & kRst) end.resets++;
        const bool next = end.heard_syn && s.seq == end.rcv;
        const bool news = next && s.end() != s.seq;
        end.hear(s);
        if (!next) return;
        end.heard += s.payload;
        if (s.flags & kFin) end.their_fin = true;
        if (news && acknowledges) {
            Segment ack = end.segment(kAck);
            send(build(ack, kMac, theirs_), Way::plain);
        }
    }
    Frame question() const {
        Frame ask(42);
        std::fill_n(ask.begin(), 6, std::uint8_t{0xff});
        std::copy(kMac.begin(), kMac.end(), ask.begin() + 6);
        put16(&ask[12], 0x0806);
        put16(&ask[14], 1);
        put16(&ask[16], 0x0800);
        ask[18] = 6;
        ask[19] = 4;
        put16(&ask[20], 1);
        std::copy(kMac.begin(), kMac.end(), ask.begin() + 22);
        const in_addr_t me = address();
        std::memcpy(&ask[28], &me, 4);
        std::memcpy(&ask[38], &victim_, 4);
        return ask;
    }
    void answer_arp(std::span<const std::uint8_t> frame) {
        std::uint32_t sender, target;
        std::memcpy(&sender, &frame[28], 4);
        std::memcpy(&target, &frame[38], 4);
        if (sender == victim_) std::copy_n(frame.begin() + 22, 6, theirs_.begin());
        if (get16(&frame[20]) != 1 || target != address()) return;
        Frame answer(frame.begin(), frame.begin() + 42);
        std::copy_n(frame.begin() + 6, 6, answer.begin());
        std::copy(kMac.begin(), kMac.end(), answer.begin() + 6);
        put16(&answer[20], 2);
        std::copy(kMac.begin(), kMac.end(), answer.begin() + 22);
        std::memcpy(&answer[28], &target, 4);
        std::copy_n(frame.begin() + 22, 10, answer.begin() + 32);
        put(answer);
    }

  public:
    bool acknowledges = true;  // what it hears, at once

  private:
    const in_addr_t victim_;
    int fd_ = -1;
    Mac theirs_{};
    End* end_ = nullptr;
    unsigned resets_ = 0;
    std::uint16_t id_ = 100;
};

}  // namespace attacker
