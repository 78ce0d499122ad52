// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/handshake/syn.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "libvma/net/frame.h"
#include "libvma/tcp/connection.h"
#include "libvma/tcp/ecn.h"

namespace vma::tcp {
namespace {

enum : std::uint8_t { kEnd = 0, kNop = 1, kMss = 2, kScale = 3, kSackAllowed = 4, kStamps = 8 };
constexpr std::uint8_t kMaxScale = 14;
constexpr std::uint8_t kSyn = 2, kRst = 4, kAck = 16;  // TCP's flags

// Calls `each(kind, value)` for every option that is whole.
template <class F>
void for_each_option(std::span<const std::uint8_t> options, F&& each) noexcept {
    for (std::size_t at = 0; at < options.size() && options[at] != kEnd;) {
        if (options[at] == kNop) {
            at++;
            continue;
        }
        if (at + 1 >= options.size()) return;
        const std::size_t size = options[at + 1];
        if (size < 2 || size > options.size() - at) return;
        each(options[at], options.subspan(at + 2, size - 2));
        at += size;
    }
}

// A segment in the making.
class Writer {
  public:
    Writer(std::uint8_t* out, in_port_t from, in_port_t to) noexcept
        : start_(out), at_(out + sizeof header_) {
        header_.src_port = from;
        header_.dst_port = to;
    }
    net::TcpHeader& header() noexcept { return header_; }
    void word(std::uint32_t v) noexcept {
        v = htonl(v);
        std::memcpy(at_, &v, 4);
        at_ += 4;
    }
    void stamps(std::uint32_t value, std::uint32_t echo) noexcept {
        word(0x01010000u | kStamps << 8 | 10);
        word(value);
        word(echo);
    }
    void syn_options(std::uint16_t mss, const SynOptions& said, std::uint8_t scale) noexcept {
        if (mss != 0) word(std::uint32_t{kMss} << 24 | 4u << 16 | mss);
        if (said.sack) word(0x01010000u | kSackAllowed << 8 | 2);
        if (said.has_scale) word(std::uint32_t{kNop} << 24 | std::uint32_t{kScale} << 16 | 3u << 8 | scale);
    }
    std::size_t finish() noexcept {
        const auto length = static_cast<std::size_t>(at_ - start_);
        header_.data_offset = static_cast<std::uint8_t>(length / 4 << 4);
        std::memcpy(start_, &header_, sizeof header_);
        return length;
    }

  private:
    std::uint8_t* const start_;
    std::uint8_t* at_;
    net::TcpHeader header_{};
};

}  // namespace

SynOptions read_syn_options(std::span<const std::uint8_t> options, const Options& wanted) noexcept {
    SynOptions said;
    for_each_option(options, [&](std::uint8_t kind, std::span<const std::uint8_t> value) {
        if (kind == kMss && value.size() == 2) {
            if (const int mss = value[0] << 8 | value[1]; mss != 0)
                said.mss = static_cast<std::uint16_t>(mss);
        } else if (kind == kScale && value.size() == 1 && wanted.window_scaling) {
            said.has_scale = true;
            said.scale = std::min(value[0], kMaxScale);
        } else if (kind == kSackAllowed && value.empty() && wanted.sack) {
            said.sack = true;
        } else if (kind == kStamps && value.size() == 8 && wanted.timestamps) {
            said.has_stamps = true;
            said.stamp = word_at(value.data());
        }
    });
    return said;
}

bool read_stamps(std::span<const std::uint8_t> options, Stamps& stamps) noexcept {
    bool found = false;
    for_each_option(options, [&](std::uint8_t kind, std::span<const std::uint8_t> value) {
        if (kind != kStamps || value.size() != 8) return;
        stamps = {word_at(value.data()), word_at(value.data() + 4)};
        found = true;
    });
    return found;
}

std::size_t write_syn_ack(const Handshake& h, std::uint16_t mss, std::uint16_t window, std::uint32_t stamp,
                          std::uint8_t* out) noexcept {
    Writer w(out, h.ends.local.port, h.ends.remote.port);
    w.header().seq = htonl(h.iss);
    w.header().ack = htonl(h.irs + 1);
    w.header().flags = kSyn | kAck | (h.said.ecn ? Ecn::kEcho : 0);
    w.header().window = htons(window);
    w.syn_options(mss, h.said, h.scale);
    if (h.said.has_stamps) w.stamps(stamp, h.said.stamp);
    return w.finish();
}

std::size_t write_syn(const Handshake& h, std::uint8_t* out) noexcept {
    Writer w(out, h.ends.remote.port, h.ends.local.port);
    w.header().seq = htonl(h.irs);
    w.header().flags = kSyn;
    w.syn_options(h.said.mss, h.said, h.said.scale);
    if (h.said.has_stamps) w.stamps(h.said.stamp, 0);
    return w.finish();
}

std::size_t write_ack(const Handshake& h, std::uint16_t window, std::uint32_t stamp,
                      std::uint8_t* out) noexcept {
    Writer w(out, h.ends.local.port, h.ends.remote.port);
    w.header().seq = htonl(h.iss + 1);
    w.header().ack = htonl(h.irs + 1);
    w.header().flags = kAck;
    w.header().window = htons(window);
    if (h.said.has_stamps) w.stamps(stamp, h.said.stamp);
    return w.finish();
}

std::size_t write_reset(const net::Endpoints& ends, std::uint32_t ack, std::uint8_t* out) noexcept {
    Writer w(out, ends.local.port, ends.remote.port);
    w.header().seq = htonl(ack);
    w.header().flags = kRst;
    return w.finish();
}

}  // namespace vma::tcp
