// SPDX-License-Identifier: BSD-2-Clause
// See endpoint.h.
#include "endpoint.h"

#include <stdlib.h>

namespace scripts {

using attacker::kAck, attacker::kPsh, attacker::kRst, attacker::kSyn;

namespace {

constexpr std::uint32_t kOurSeed = 7, kTheirSeed = 9;

std::string ends(std::uint32_t from, std::uint32_t to) {
    return std::to_string(from) + ":" + std::to_string(to);
}

// A long way from 0 in the other direction is a negative number.
std::string relative(std::uint32_t v) {
    return v > 0xf0000000u ? std::to_string(static_cast<std::int32_t>(v)) : std::to_string(v);
}

}  // namespace

std::uint32_t Endpoint::echo(const Stamp& stamp) const {
    if (stamp.echo.empty()) return heard_;
    if (stamp.echo == "zero") return 0;
    if (stamp.echo == "first") return first_heard_;
    if (stamp.echo.starts_with("orig:")) {
        const auto found = heard_at_.find(static_cast<std::uint32_t>(atoll(stamp.echo.c_str() + 5)));
        return found == heard_at_.end() ? 0 : found->second;
    }
    // Relative to the latest: "-1000", "+1000".
    return heard_ + static_cast<std::uint32_t>(atoll(stamp.echo.c_str()));
}

attacker::Segment Endpoint::send(const Pattern& p) {
    attacker::Segment s;
    s.from = peer_;
    s.to = program_;
    s.from_port = peer_port_;
    s.to_port = program_port_;
    s.seq = first_ + p.seq;
    s.flags = p.flags;
    if (p.ack) s.ack = their_first_.value_or(0) + *p.ack;
    const bool syn = (p.flags & kSyn) != 0;
    const std::uint32_t bytes = p.window.how == Bound::How::any ? 65535 : p.window.value;
    s.window = static_cast<std::uint16_t>(syn || !scale_heard_ || !scale_sent_ ? bytes : bytes >> scale_);
    s.urgent = p.urgent;
    if (p.mss) s.options += attacker::option::mss(static_cast<std::uint16_t>(p.mss->value));
    if (p.sack_allowed) s.options += attacker::option::sack_allowed();
    if (p.scale) s.options += attacker::option::scale(static_cast<std::uint8_t>(p.scale->value));
    if (!p.no_stamp && (p.stamp || (stamps() && (p.flags & (kSyn | kRst)) == 0))) {
        const Stamp stamp = p.stamp.value_or(Stamp{});
        const std::uint32_t value = stamp.value.value_or(clock_ + 1);
        if (static_cast<std::int32_t>(value - clock_) > 0) clock_ = value;
        s.options += attacker::option::stamps(kFirstStamp + value, p.flags & kAck ? echo(stamp) : 0);
    }
    if (!p.sacks.empty()) {
        auto blocks = p.sacks;
        for (auto& [from, to] : blocks) from += their_first_.value_or(0), to += their_first_.value_or(0);
        s.options += attacker::option::sack(blocks);
    }
    s.options += p.raw;
    s.payload.resize(p.length);
    for (std::uint32_t i = 0; i < p.length; i++)
        s.payload[i] = attacker::stream_byte(p.seq - 1 + i, kOurSeed);
    if (syn) {
        scale_sent_ = p.scale.has_value();
        scale_ = p.scale ? static_cast<std::uint8_t>(p.scale->value) : 0;
        stamps_sent_ = p.stamp.has_value();
    }
    return s;
}

void Endpoint::hear(const attacker::Segment& s) {
    const attacker::Said options = attacker::said(s);
    if ((s.flags & kSyn) != 0) {
        if (!their_first_ || *their_first_ != s.seq) heard_at_.clear(), first_heard_ = 0;
        their_first_ = s.seq;
        program_port_ = s.from_port;
        scale_heard_ = options.scale.has_value();
        their_scale_ = options.scale.value_or(0);
        stamps_heard_ = options.stamp.has_value();
    }
    if (!options.stamp) return;
    heard_ = *options.stamp;
    if (first_heard_ == 0) first_heard_ = heard_;
    heard_at_.emplace(s.seq - their_first_.value_or(0), heard_);
}

attacker::Frame Endpoint::quoted(std::uint32_t seq) const {
    attacker::Segment s;
    s.from = program_;
    s.to = peer_;
    s.from_port = program_port_;
    s.to_port = peer_port_;
    s.seq = their_first_.value_or(0) + seq;
    s.flags = kAck;
    const attacker::Frame frame = attacker::build(s, {}, {});
    return {frame.begin() + attacker::kEthernet, frame.begin() + attacker::kEthernet + attacker::kIp + 8};
}

std::string Endpoint::text(const attacker::Segment& s, std::uint8_t ecn, bool from_peer) const {
    const std::uint32_t mine = from_peer ? first_ : their_first_.value_or(0),
                        other = from_peer ? their_first_.value_or(0) : first_;
    std::string line = flag_letters(s.flags) + " " + relative(s.seq - mine);
    if (!s.payload.empty())
        line += ":" + relative(s.seq - mine + static_cast<std::uint32_t>(s.payload.size()));
    if ((s.flags & kAck) != 0) line += " ack " + relative(s.ack - other);
    const bool scaled = (s.flags & kSyn) == 0 && scale_sent_ && scale_heard_;
    line += " win " +
            std::to_string(std::uint32_t{s.window} << (scaled ? (from_peer ? scale_ : their_scale_) : 0));
    const attacker::Said o = attacker::said(s);
    if (o.mss) line += " mss " + std::to_string(*o.mss);
    if (o.sack_allowed) line += " sackOK";
    if (o.stamp) {
        line += " TS";
        // The other side's clock begins anywhere.
        if (from_peer)
            line += " " + std::to_string(*o.stamp - kFirstStamp);
        else if (*o.echo != 0)
            line += " ecr " + relative(*o.echo - kFirstStamp);
    }
    if (o.scale) line += " wscale " + std::to_string(*o.scale);
    if (!o.sacks.empty()) line += " sack";
    for (auto [from, to] : o.sacks) line += " " + ends(from - other, to - other);
    if (s.urgent != 0) line += " urg " + std::to_string(s.urgent);
    static const char* const kMarks[] = {"", " ect1", " ect0", " ce"};
    return line + kMarks[ecn];
}

std::string Endpoint::options_difference(const Pattern& p, const attacker::Segment& s) const {
    const attacker::Said o = attacker::said(s);
    if (p.mss.has_value() != o.mss.has_value() || (p.mss && !p.mss->holds(*o.mss))) return "mss";
    if (p.scale.has_value() != o.scale.has_value() || (p.scale && !p.scale->holds(*o.scale))) return "wscale";
    if (p.sack_allowed != o.sack_allowed) return "sackOK";
    // A reset that answers a stranger has none: the script says where one is expected.
    const bool wanted = !p.no_stamp && (p.stamp || (stamps() && (p.flags & (kSyn | kRst)) == 0));
    if (wanted != o.stamp.has_value()) return "TS";
    if (p.stamp && !p.stamp->echo.empty() &&
        *o.echo != kFirstStamp + static_cast<std::uint32_t>(atoll(p.stamp->echo.c_str())))
        return "TS ecr";
    if (p.sacks.size() != o.sacks.size()) return "sack";
    for (std::size_t i = 0; i < p.sacks.size(); i++)
        if (o.sacks[i].first - first_ != p.sacks[i].first || o.sacks[i].second - first_ != p.sacks[i].second)
            return "sack";
    return "";
}

std::string Endpoint::difference(const Pattern& p, const attacker::Segment& s, std::uint8_t ecn) const {
    if (((p.flags ^ s.flags) & ~kPsh) != 0) return "flags";
    if (s.seq - their_first_.value_or(0) != p.seq) return "number";
    if (s.payload.size() != p.length) return "length";
    if (p.ack && s.ack - first_ != *p.ack) return "ack";
    const bool scaled = (s.flags & kSyn) == 0 && scale_sent_ && scale_heard_;
    if (!p.window.holds(std::uint64_t{s.window} << (scaled ? their_scale_ : 0))) return "win";
    if (p.urgent != s.urgent) return "urg";
    if (p.ecn != ecn) return "mark of the IP header";
    for (std::uint32_t i = 0; i < s.payload.size(); i++)
        if (s.payload[i] != attacker::stream_byte(p.seq - 1 + i, kTheirSeed)) return "content";
    return options_difference(p, s);
}

}  // namespace scripts
