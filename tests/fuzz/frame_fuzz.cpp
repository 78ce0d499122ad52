// SPDX-License-Identifier: BSD-2-Clause
// The frame parser on any bytes, cut into any pieces. Beside memory errors it looks for wrong answers: a
// frame in pieces must be judged as in one piece, and the checksums as the definition in RFC 1071 says.
//
// Input: flags (1: the device checked the sums, 2: repair the IP sum, 4: repair the L4 sum), number of cuts,
// for each a 16-bit length, then the frame.
#include <algorithm>
#include <vector>

#include "libvma/net/checksum.h"
#include "libvma/net/frame.h"
#include "tests/fuzz/input.h"

using namespace vma::net;

namespace {

constexpr std::size_t kIp = 14, kL4 = 34;

std::uint16_t slow_sum(std::span<const std::uint8_t> bytes, std::uint32_t sum) {
    for (std::size_t i = 0; i < bytes.size(); i++) {
        sum += i % 2 ? bytes[i] : bytes[i] << 8;
        sum = (sum & 0xffff) + (sum >> 16);
    }
    return static_cast<std::uint16_t>((sum & 0xffff) + (sum >> 16));
}

unsigned get16(std::span<const std::uint8_t> bytes, std::size_t at) { return bytes[at] << 8 | bytes[at + 1]; }
void put16(std::vector<std::uint8_t>& bytes, std::size_t at, unsigned value) {
    bytes[at] = static_cast<std::uint8_t>(value >> 8);
    bytes[at + 1] = static_cast<std::uint8_t>(value);
}

// Without right sums, mutation never gets past them.
void repair(std::vector<std::uint8_t>& frame, unsigned flags) {
    if (frame.size() < kL4 + 20) return;
    if (flags & 4) {
        const bool udp = frame[kIp + 9] == IPPROTO_UDP;
        const std::size_t field = udp ? kL4 + 6 : kL4 + 16;
        std::size_t length = udp ? get16(frame, kL4 + 4) : get16(frame, kIp + 2) - 20u;
        length = std::min(length, frame.size() - kL4);
        put16(frame, field, 0);
        std::uint16_t pseudo = slow_sum(std::span(frame).subspan(kIp + 12, 8),
                                        frame[kIp + 9] + static_cast<std::uint32_t>(length));
        put16(frame, field, 0xffff & ~slow_sum(std::span(frame).subspan(kL4, length), pseudo));
    }
    if (flags & 2) {
        put16(frame, kIp + 10, 0);
        put16(frame, kIp + 10, 0xffff & ~slow_sum(std::span(frame).subspan(kIp, 20), 0));
    }
}

void check_accepted(std::span<const std::uint8_t> frame, const ParsedFrame& parsed, bool sums_known) {
    FUZZ_CHECK(parsed.l4_offset == kL4);
    FUZZ_CHECK(parsed.payload_offset >= kL4 + 8 && parsed.payload_offset <= kL4 + 60);
    FUZZ_CHECK(parsed.payload_offset + parsed.payload_length <= frame.size());
    FUZZ_CHECK(parsed.protocol == IPPROTO_UDP || parsed.protocol == IPPROTO_TCP);
    FUZZ_CHECK(frame[kIp] == 0x45 && (get16(frame, kIp + 6) & 0x3fff) == 0);
    if (sums_known) return;
    FUZZ_CHECK(slow_sum(frame.subspan(kIp, 20), 0) == 0xffff);
}

bool l4_sum_right(std::span<const std::uint8_t> frame, const ParsedFrame& parsed) {
    const bool udp = parsed.protocol == IPPROTO_UDP;
    const std::size_t length = parsed.payload_offset - kL4 + parsed.payload_length;
    const unsigned field = get16(frame, udp ? kL4 + 6 : kL4 + 16);
    if (udp && field == 0) return true;
    std::uint16_t pseudo =
        slow_sum(frame.subspan(kIp + 12, 8), parsed.protocol + static_cast<std::uint32_t>(length));
    return field == pseudo || slow_sum(frame.subspan(kL4, length), pseudo) == 0xffff;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Input input(data, size);
    const auto flags = input.take<std::uint8_t>();
    std::vector<std::size_t> cuts(input.take<std::uint8_t>() % 8);
    for (auto& cut : cuts) cut = input.take<std::uint16_t>();
    std::vector<std::uint8_t> bytes(input.rest().begin(), input.rest().end());
    repair(bytes, flags);
    const bool known = flags & 1;

    fuzz::Exact whole(bytes);
    ParsedFrame one;
    const Drop answer = parse(whole.span(), known, one);
    FUZZ_CHECK(answer < Drop::count_);
    if (answer == Drop::none) check_accepted(whole.span(), one, known);

    // Whether the L4 sum was judged rightly: parse again without looking at sums.
    ParsedFrame trusting;
    const Drop trusted = parse(whole.span(), true, trusting);
    if (!known && (answer == Drop::none || answer == Drop::bad_l4_checksum)) {
        FUZZ_CHECK(trusted == Drop::none);
        FUZZ_CHECK(l4_sum_right(whole.span(), trusting) == (answer == Drop::none));
    }

    std::vector<fuzz::Exact> pieces;
    std::vector<std::span<const std::uint8_t>> spans;
    std::span<const std::uint8_t> left(bytes);
    cuts.push_back(left.size());
    for (std::size_t cut : cuts) {
        cut = std::min(cut, left.size());
        pieces.emplace_back(left.first(cut));
        spans.push_back(pieces.back().span());
        left = left.subspan(cut);
    }
    ParsedFrame many;
    const Drop split = parse(FramePieces(spans), known, many);
    FUZZ_CHECK(split == answer || split == Drop::short_frame);
    if (split == Drop::none) {
        FUZZ_CHECK(many.payload_offset == one.payload_offset && many.payload_length == one.payload_length);
        FUZZ_CHECK(many.src_addr == one.src_addr && many.dst_port == one.dst_port);
    }
    if (spans[0].size() >= kL4 + 60) FUZZ_CHECK(split == answer);

    // Headers built from the same bytes must be acceptable to the parser, whatever they say.
    fuzz::Input fields(data, size);
    UdpTemplate headers;
    headers.src_addr = fields.take<std::uint32_t>();
    headers.dst_addr = fields.take<std::uint32_t>();
    headers.src_port = fields.take<std::uint16_t>();
    headers.dst_port = fields.take<std::uint16_t>();
    headers.tos = fields.take<std::uint8_t>();
    headers.ttl = fields.take<std::uint8_t>();
    headers.dont_fragment = fields.take<std::uint8_t>() % 2;
    const auto first_length = static_cast<std::uint16_t>(fields.take<std::uint16_t>() % 65508);
    const auto payload = static_cast<std::uint16_t>(fields.rest().size() % 1500);
    std::vector<std::uint8_t> built(kUdpHeaders + payload);
    build_udp_headers(headers, first_length, built.data());
    finish_udp_headers(built.data(), payload);
    ParsedFrame back;
    FUZZ_CHECK(parse(std::span<const std::uint8_t>(built), false, back) == Drop::none);
    FUZZ_CHECK(back.payload_length == payload && back.src_addr == headers.src_addr &&
               back.ttl == headers.ttl);
    return 0;
}
