// SPDX-License-Identifier: BSD-2-Clause
// What a hostile peer knows of a connection with its victim, and what it can do with that.
//
// Random bytes do not get past the first check of a TCP: numbers must be nearly right to do harm. So the
// attacker follows the connection as a peer does, and then lies: at the edges of what is acceptable, in the
// options, about what it has received. Whoever chooses (the bytes of a fuzzer's input, or a generator with a
// seed) is a parameter.
//
// The content of the attacker's stream is a function of the sequence number alone. So, whatever overlaps or
// comes again, what the victim's program reads must be that, in order.
#pragma once

#include <vector>

#include "segment.h"

namespace attacker {

inline constexpr std::uint32_t kOurSeed = 7, kTheirSeed = 9;  // of the streams to the victim, and from it

// A generator with the interface of fuzz::Input.
class Dice {
  public:
    explicit Dice(std::uint64_t seed) : state_(seed) {}
    template <class T>
    T take() {
        std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return static_cast<T>(z ^ (z >> 31));
    }

  private:
    std::uint64_t state_;
};

inline bool before(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b) < 0; }

struct Model {
    in_addr_t me = 0, victim = 0;
    std::uint16_t my_port = 0, victim_port = 0;

    std::uint32_t first = 0;             // our initial sequence number
    std::uint32_t snd = 0;               // next of ours
    std::uint32_t acked = 0;             // of ours, by the victim
    std::uint32_t highest = 0;           // end of what we ever sent, within the victim's reach
    std::uint32_t their_first = 0;       // the victim's SYN
    std::uint32_t rcv = 0;               // next of the victim's
    std::uint32_t their_highest = 0;     // end of what it ever sent
    std::uint32_t their_window = 65535;  // as it said last, in bytes
    std::uint8_t their_scale = 0;
    bool heard_syn = false, stamps = false, scaling = false;
    std::uint16_t window = 65535;
    std::uint32_t stamp = 100, echo = 0;

    // A segment of the victim's arrived. Takes what is in order.
    void hear(const Segment& s) {
        const Said options = said(s);
        if ((s.flags & kSyn) && (!heard_syn || s.seq != their_first)) {
            their_first = s.seq;
            rcv = their_highest = s.end();
            heard_syn = true;
            their_scale = std::min<std::uint8_t>(options.scale.value_or(0), 14);
        } else if (heard_syn && !before(rcv, s.seq) && before(rcv, s.end())) {
            rcv = s.end();
        }
        if (heard_syn && before(their_highest, s.end())) their_highest = s.end();
        if ((s.flags & kAck) && !(s.flags & kRst)) {
            if (before(acked, s.ack)) acked = s.ack;
            their_window = s.flags & kSyn ? s.window : std::uint32_t{s.window} << (scaling ? their_scale : 0);
        }
        if (options.stamp) echo = *options.stamp;
    }

    // What an honest peer would say.
    Segment segment(std::uint8_t flags, std::size_t length = 0) const {
        Segment s;
        s.from = me;
        s.to = victim;
        s.from_port = my_port;
        s.to_port = victim_port;
        s.seq = snd;
        s.ack = flags & kAck ? rcv : 0;
        s.flags = flags;
        s.window = window;
        if (stamps && !(flags & kRst)) s.options = option::stamps(stamp, echo);
        s.payload = content(s.seq, length);
        return s;
    }
    // What stands at `seq` of our stream. (What comes before its beginning is anything.)
    std::string content(std::uint32_t seq, std::size_t length) const {
        std::string s(length, '\0');
        for (std::size_t i = 0; i < length; i++)
            s[i] = stream_byte(static_cast<std::uint32_t>(seq + i - first - 1), kOurSeed);
        return s;
    }
    // To be called with what is sent: where our stream ends, as far as the victim may know.
    void sent(const Segment& s) {
        const std::uint32_t end =
            s.seq + static_cast<std::uint32_t>(s.payload.size()) + ((s.flags & kSyn) != 0);
        if (before(highest, end) && end - highest < (4u << 20)) highest = end;
    }

    // ---- edges ----
    std::vector<std::uint32_t> sequence_edges() const {
        const std::uint32_t right = acked + their_window;
        return {acked - 0x80000000u,
                acked - 0x7fffffffu,
                acked - 65536,
                acked - 1,
                acked,
                acked + 1,
                right - 1,
                right,
                right + 1,
                right + 65536,
                first,
                first + 1,
                0,
                0xffffffffu};
    }
    std::vector<std::uint32_t> ack_edges() const {
        return {rcv - 0x80000000u,
                rcv - 0x7fffffffu,
                rcv - (1u << 20),
                rcv - 1,
                rcv,
                rcv + 1,
                their_highest,
                their_highest + 1,
                their_highest + 65536,
                their_first,
                their_first + 1,
                0,
                0xffffffffu};
    }
    // Blocks that lie: beyond what was sent, backwards, empty, huge, overlapping, of the past.
    std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> lying_blocks() const {
        const std::uint32_t end = their_highest;
        return {{{rcv, rcv}},
                {{end, rcv}},
                {{rcv + 1, end}},
                {{rcv, end}},
                {{end, end + 1000}},
                {{end + 1, end + 2}},
                {{rcv - 5000, rcv}},
                {{rcv - 1, rcv + 1}},
                {{rcv + 1, rcv + 2}, {rcv + 3, rcv + 4}, {rcv + 5, rcv + 6}},
                {{rcv + 10, rcv + 20}, {rcv + 5, rcv + 15}, {rcv + 1, rcv + 30}},
                {{0, 0xffffffffu}},
                {{rcv - 0x80000000u, rcv + 0x7fffffffu}},
                {{their_first, their_first + 1}},
                {{rcv + 1448, end}, {rcv + 1448, end}}};
    }

    // ---- a segment that is nearly right ----
    template <class Choices>
    std::string some_options(Choices& in) const {
        const auto mode = in.template take<std::uint8_t>();
        switch (mode % 8) {
            case 0:
                return "";
            case 1: {
                const auto lie = static_cast<std::uint32_t>(in.template take<std::int8_t>());
                return option::stamps(stamp + lie, mode & 128 ? echo + lie : echo);
            }
            case 2: {
                std::vector<std::pair<std::uint32_t, std::uint32_t>> blocks;
                for (unsigned i = 0; i < 1u + mode / 8 % 4; i++) {
                    const std::uint32_t left =
                        rcv + static_cast<std::uint32_t>(in.template take<std::int16_t>());
                    blocks.emplace_back(left,
                                        left + static_cast<std::uint32_t>(in.template take<std::int16_t>()));
                }
                const std::string before = mode & 64 && stamps ? option::stamps(stamp, echo) : "";
                const std::string all = before + option::sack(blocks);
                return all.substr(0, std::min<std::size_t>(all.size(), 40));
            }
            case 3: {
                std::string raw;
                const unsigned n = mode / 8 % 10 * 4 + 4;
                for (unsigned i = 0; i < n; i++) raw += static_cast<char>(in.template take<std::uint8_t>());
                return raw;
            }
            case 4: {
                const auto mss = in.template take<std::uint16_t>();
                return option::mss(mss) + option::scale(in.template take<std::uint8_t>()) +
                       (mode & 8 ? option::stamps(stamp, echo) : "") +
                       (mode & 16 ? option::sack_allowed() : "");
            }
            case 5: {
                const auto lies = lying_blocks();
                const std::string all =
                    (stamps ? option::stamps(stamp, echo) : "") + option::sack(lies[mode / 8 % lies.size()]);
                return all.substr(0, std::min<std::size_t>(all.size(), 40));
            }
            default:
                return stamps ? option::stamps(stamp, echo) : "";
        }
    }
    template <class Choices>
    Segment crafted(Choices& in) const {
        const auto flags = in.template take<std::uint8_t>();
        const auto how = in.template take<std::uint8_t>();
        Segment s = segment(flags);
        const std::uint32_t seqs[] = {snd, acked, first + 1, acked + their_window};
        s.seq = seqs[how & 3];
        if (how & 4) s.seq += static_cast<std::uint32_t>(in.template take<std::int16_t>());
        const std::uint32_t acks[] = {rcv, their_first + 1, their_highest, rcv};
        s.ack = acks[how >> 3 & 3];
        if (how & 32) s.ack += static_cast<std::uint32_t>(in.template take<std::int16_t>());
        if (how & 64) s.window = in.template take<std::uint16_t>();
        std::size_t length = 0;
        if (how & 128) length = in.template take<std::uint16_t>() % 1460;
        if (flags & kUrg) s.urgent = in.template take<std::uint16_t>();
        s.options = some_options(in);
        s.payload =
            content(s.seq + ((flags & kSyn) != 0), std::min<std::size_t>(length, 1460 - s.options.size()));
        return s;
    }
};

// ---- options that no honest peer sends ----

// Made by hand: each is a mistake of its own.
inline const std::vector<std::string>& malformed_options() {
    static const std::vector<std::string> all{
        std::string("\x02\x00\x05\xb4", 4),                       // length 0
        std::string("\x02\x01\x05\xb4", 4),                       // length 1
        std::string("\x02\x03\x05\xb4", 4),                       // MSS of 3
        std::string("\x02\xff\x05\xb4", 4),                       // longer than all
        std::string("\x02\x04\x00\x00", 4),                       // MSS 0
        std::string("\x02\x04\x00\x01", 4),                       // MSS 1
        std::string("\x02\x04\xff\xff", 4),                       // MSS 65535
        std::string("\x01\x03\x03\xff", 4),                       // shift 255
        std::string("\x01\x01\x01\x03", 4),                       // kind without length
        std::string("\x01\x01\x03\x03", 4),                       // without its value
        std::string("\x01\x03\x02\x00", 4),                       // shorter than it should be
        std::string("\x01\x01\x01\x08", 4),                       // time stamp, nothing else
        std::string("\x08\x0a\x00\x00\x00\x01", 6) + "\x01\x01",  // cut off
        std::string("\x08\x04\x00\x01", 4),                       // time stamp of 4
        std::string("\x01\x01\x08\x0b", 4) + std::string(9, '\x7f') + std::string(3, '\x01'),
        std::string("\x04\x02\x04\x02\x04\x02\x04\x02", 8),  // again and again
        std::string("\x05\x02\x01\x01", 4),                  // SACK without a block
        std::string("\x05\x03\x00\x01", 4),
        std::string("\x05\x09", 2) + std::string(7, '\x44') + std::string(3, '\1'),
        option::sack({{5, 4}}),
        option::sack({{0, 0xffffffff}, {1, 2}, {3, 4}, {0x80000000, 0}}),
        std::string("\x05\x22", 2) + std::string(32, '\xff') + std::string(2, '\x01'),
        std::string("\xfe\x04\xf9\x89", 4),
        std::string("\xff\x02\x00\x00", 4),
        std::string("\x13\x12\x00\x00", 4),
        std::string(40, '\x01'),
        std::string(40, '\x00'),
        std::string(40, '\xff'),
        std::string(40, '\x02'),
        std::string(40, '\x08'),
        std::string(40, '\x05'),
        std::string("\x00\x08\x0a\xff", 4),
    };
    return all;
}

// Each kind that somebody knows, with each length: filled with 0, 1 and 0xff.
inline std::vector<std::string> all_lengths() {
    std::vector<std::string> all;
    for (const int kind : {0, 1, 2, 3, 4, 5, 8, 19, 28, 30, 34, 253, 255})
        for (int length = 0; length <= 40; length++)
            for (const char fill : {'\0', '\1', '\xff'}) {
                const std::size_t bytes =
                    std::clamp<std::size_t>(static_cast<std::size_t>(length) + 3, 4, 40) / 4 * 4;
                std::string o(bytes, fill);
                o[0] = static_cast<char>(kind);
                o[1] = static_cast<char>(length);
                all.push_back(o);
            }
    return all;
}

// MSS at its limits, beside time stamps and without them.
inline std::vector<std::string> extreme_sizes() {
    std::vector<std::string> all;
    for (const unsigned mss :
         {0u,  1u,   11u,  12u,   13u,   32u,   43u,   44u,    47u,    48u,    87u,    88u,
          89u, 535u, 536u, 1448u, 1460u, 1461u, 9000u, 32767u, 32768u, 65495u, 65496u, 65535u})
        for (const bool stamps : {false, true})
            for (const unsigned shift : {0u, 14u, 15u, 255u})
                all.push_back(option::mss(static_cast<std::uint16_t>(mss)) + option::sack_allowed() +
                              option::scale(static_cast<std::uint8_t>(shift)) +
                              (stamps ? option::stamps(1, 0) : ""));
    return all;
}

// ICMP errors with the quotation of `about` (a segment as the victim might have sent it): each type and code,
// each length of the quotation up to the whole, MTUs at their limits.
inline std::vector<Frame> icmp_errors(in_addr_t from, const Segment& about, const Mac& source,
                                      const Mac& target) {
    const Frame whole = build(about, source, target);
    const std::span<const std::uint8_t> quotation = std::span<const std::uint8_t>(whole).subspan(kEthernet);
    std::vector<Frame> all;
    auto add = [&](unsigned type, unsigned code, std::uint32_t rest, std::span<const std::uint8_t> quoted) {
        all.push_back(build_icmp(from, about.from, static_cast<std::uint8_t>(type),
                                 static_cast<std::uint8_t>(code), rest, quoted, source, target));
    };
    for (unsigned type = 0; type <= 20; type++)
        for (const unsigned code : {0u, 1u, 2u, 3u, 4u, 5u, 13u, 15u, 16u, 255u})
            add(type, code, 0, quotation.first(28));
    for (std::size_t n = 0; n <= std::min<std::size_t>(quotation.size(), 60); n++)
        add(3, 4, 576, quotation.first(n));
    for (const std::uint32_t mtu :
         {0u, 1u, 20u, 28u, 39u, 40u, 41u, 51u, 52u, 68u, 88u, 128u, 552u, 576u, 1500u, 65535u})
        add(3, 4, mtu, quotation.first(28));
    // A quotation that contradicts itself: lengths, header lengths, protocols, fragments.
    for (const std::size_t at : {0u, 2u, 6u, 9u, 32u})
        for (const unsigned value : {0x00u, 0x0fu, 0x40u, 0x4fu, 0x60u, 0xffu}) {
            Frame copy(quotation.begin(), quotation.end());
            if (at >= copy.size()) continue;
            copy[at] = static_cast<std::uint8_t>(value);
            add(3, 4, 576, copy);
        }
    return all;
}

}  // namespace attacker
