// SPDX-License-Identifier: BSD-2-Clause
// The frame parser: one test for each reason to drop, then everything that must be accepted, in one piece and
// in many.
#include "libvma/net/frame.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "libvma/net/checksum.h"

namespace vma::net {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kIp = 14, kL4 = 34;

// Sum of 16-bit words the slow way, so that the tests do not lean on the code they test.
std::uint16_t slow_sum(const std::uint8_t* p, std::size_t length, std::uint32_t sum) {
    for (std::size_t i = 0; i < length; i++) sum += i % 2 ? p[i] : p[i] << 8;
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return static_cast<std::uint16_t>(sum);
}

void put16(Bytes& frame, std::size_t at, unsigned value) {
    frame.at(at) = static_cast<std::uint8_t>(value >> 8);
    frame.at(at + 1) = static_cast<std::uint8_t>(value);
}
unsigned get16(const Bytes& frame, std::size_t at) { return frame.at(at) << 8 | frame.at(at + 1); }

void seal_ip(Bytes& frame) {
    put16(frame, kIp + 10, 0);
    put16(frame, kIp + 10, 0xffff & ~slow_sum(&frame[kIp], 20, 0));
}

std::uint16_t pseudo(const Bytes& frame, unsigned protocol, std::size_t length) {
    return slow_sum(&frame[kIp + 12], 8, static_cast<std::uint32_t>(protocol + length));
}

enum class Sum { full, partial, zero };

Bytes ip_frame(unsigned protocol, std::size_t l4_length) {
    Bytes frame = {0x02, 0, 0, 0, 0, 2, 0x02, 0, 0, 0, 0, 1, 0x08, 0x00};
    frame.resize(kL4 + l4_length);
    frame[kIp] = 0x45;
    frame[kIp + 1] = 0xb8;
    put16(frame, kIp + 2, static_cast<unsigned>(20 + l4_length));
    put16(frame, kIp + 6, 0x4000);
    frame[kIp + 8] = 63;
    frame[kIp + 9] = static_cast<std::uint8_t>(protocol);
    const std::uint8_t addresses[8] = {198, 18, 0, 1, 198, 18, 0, 2};
    memcpy(&frame[kIp + 12], addresses, 8);
    seal_ip(frame);
    return frame;
}

void seal_l4(Bytes& frame, Sum sum, std::size_t length, std::size_t field, unsigned protocol) {
    put16(frame, field, 0);
    std::uint16_t start = pseudo(frame, protocol, length);
    if (sum == Sum::partial) put16(frame, field, start);
    if (sum == Sum::full) {
        unsigned value = 0xffff & ~slow_sum(&frame[kL4], length, start);
        put16(frame, field, value == 0 ? 0xffff : value);
    }
}

void fill(Bytes& frame, std::size_t from, unsigned seed) {
    std::mt19937 random(seed);
    for (std::size_t i = from; i < frame.size(); i++) frame[i] = static_cast<std::uint8_t>(random());
}

Bytes udp(std::size_t payload, Sum sum = Sum::full) {
    Bytes frame = ip_frame(IPPROTO_UDP, 8 + payload);
    put16(frame, kL4, 40000);
    put16(frame, kL4 + 2, 5001);
    put16(frame, kL4 + 4, static_cast<unsigned>(8 + payload));
    fill(frame, kL4 + 8, static_cast<unsigned>(payload));
    seal_l4(frame, sum, 8 + payload, kL4 + 6, IPPROTO_UDP);
    return frame;
}

Bytes tcp(std::size_t payload, std::size_t options = 0, Sum sum = Sum::full) {
    Bytes frame = ip_frame(IPPROTO_TCP, 20 + options + payload);
    fill(frame, kL4 + 4, static_cast<unsigned>(payload));
    put16(frame, kL4, 40001);
    put16(frame, kL4 + 2, 80);
    frame[kL4 + 12] = static_cast<std::uint8_t>((20 + options) / 4 << 4);
    seal_l4(frame, sum, 20 + options + payload, kL4 + 16, IPPROTO_TCP);
    return frame;
}

Drop check(const Bytes& frame, ParsedFrame* out = nullptr, bool checksum_good = false) {
    // An exact copy on the heap, so that a sanitizer sees a byte read too far.
    std::unique_ptr<std::uint8_t[]> exact(new std::uint8_t[frame.size()]);
    if (!frame.empty()) memcpy(exact.get(), frame.data(), frame.size());
    ParsedFrame parsed;
    Drop drop = parse(std::span<const std::uint8_t>(exact.get(), frame.size()), checksum_good, parsed);
    if (out) {
        *out = parsed;
        out->ip = nullptr;
    }
    return drop;
}

TEST(Frame, UdpFields) {
    Bytes frame = udp(18);
    ParsedFrame parsed;
    ASSERT_EQ(parse(std::span<const std::uint8_t>(frame), false, parsed), Drop::none);
    EXPECT_EQ(reinterpret_cast<const std::uint8_t*>(parsed.ip), frame.data() + kIp);
    EXPECT_EQ(parsed.src_addr, inet_addr("198.18.0.1"));
    EXPECT_EQ(parsed.dst_addr, inet_addr("198.18.0.2"));
    EXPECT_EQ(ntohs(parsed.src_port), 40000);
    EXPECT_EQ(ntohs(parsed.dst_port), 5001);
    EXPECT_EQ(parsed.protocol, IPPROTO_UDP);
    EXPECT_EQ(parsed.tos, 0xb8);
    EXPECT_EQ(parsed.ttl, 63);
    EXPECT_EQ(parsed.l4_offset, 34u);
    EXPECT_EQ(parsed.payload_offset, 42u);
    EXPECT_EQ(parsed.payload_length, 18u);
}

TEST(Frame, TcpFields) {
    for (std::size_t options : {0u, 12u, 40u}) {
        ParsedFrame parsed;
        ASSERT_EQ(check(tcp(101, options), &parsed), Drop::none);
        EXPECT_EQ(ntohs(parsed.src_port), 40001);
        EXPECT_EQ(ntohs(parsed.dst_port), 80);
        EXPECT_EQ(parsed.l4_offset, 34u);
        EXPECT_EQ(parsed.payload_offset, 54 + options);
        EXPECT_EQ(parsed.payload_length, 101u);
    }
}

TEST(Frame, EveryLengthAndKindOfSum) {
    for (std::size_t payload = 0; payload <= 1500; payload++) {
        for (Sum sum : {Sum::full, Sum::partial, Sum::zero}) {
            ParsedFrame parsed;
            ASSERT_EQ(check(udp(payload, sum), &parsed), Drop::none) << payload;
            ASSERT_EQ(parsed.payload_length, payload);
        }
        ASSERT_EQ(check(tcp(payload, payload % 11 * 4, Sum::full)), Drop::none) << payload;
        ASSERT_EQ(check(tcp(payload, payload % 11 * 4, Sum::partial)), Drop::none) << payload;
    }
}

TEST(Frame, ZeroSumIsOnlyForUdp) { EXPECT_EQ(check(tcp(10, 0, Sum::zero)), Drop::bad_l4_checksum); }

TEST(Frame, CutAnywhereIsShort) {
    for (const Bytes& whole : {udp(20), tcp(20, 12)})
        for (std::size_t length = 0; length < whole.size(); length++) {
            Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
            ASSERT_EQ(check(cut), Drop::short_frame) << length;
            ASSERT_EQ(check(cut, nullptr, true), Drop::short_frame) << length;
        }
    ParsedFrame parsed;
    EXPECT_EQ(parse(FramePieces{}, false, parsed), Drop::short_frame);
}

TEST(Frame, OtherEthertypes) {
    Bytes frame = udp(20);
    for (unsigned type : {0x0806u, 0x86ddu, 0x8100u, 0x0008u, 0u}) {
        put16(frame, 12, type);
        EXPECT_EQ(check(frame), Drop::bad_ethertype) << type;
    }
}

TEST(Frame, BadIpHeader) {
    for (unsigned first = 0; first < 256; first++) {
        if (first == 0x45) continue;
        Bytes frame = udp(60);
        frame[kIp] = static_cast<std::uint8_t>(first);
        seal_ip(frame);
        ASSERT_EQ(check(frame), Drop::bad_ip_header) << first;
    }
    for (unsigned total = 0; total < 20; total++) {
        Bytes frame = udp(60);
        put16(frame, kIp + 2, total);
        seal_ip(frame);
        ASSERT_EQ(check(frame), Drop::bad_ip_header) << total;
    }
}

TEST(Frame, TotalLengthBeyondTheFrame) {
    Bytes frame = udp(20);
    put16(frame, kIp + 2, 20 + 8 + 21);
    seal_ip(frame);
    EXPECT_EQ(check(frame), Drop::short_frame);
    put16(frame, kIp + 2, 0xffff);
    seal_ip(frame);
    EXPECT_EQ(check(frame), Drop::short_frame);
}

TEST(Frame, BadIpChecksumOneBitAnywhere) {
    for (std::size_t bit = 0; bit < 160; bit++) {
        Bytes frame = udp(20);
        frame[kIp + bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
        Drop drop = check(frame);
        ASSERT_EQ(drop, bit / 8 == 0 ? Drop::bad_ip_header : Drop::bad_ip_checksum) << bit;
    }
}

TEST(Frame, Fragments) {
    for (unsigned field : {0x2000u, 0x0001u, 0x1fffu, 0x20b9u, 0x6000u}) {
        Bytes frame = udp(20);
        put16(frame, kIp + 6, field);
        seal_ip(frame);
        EXPECT_EQ(check(frame), Drop::fragment) << field;
        EXPECT_EQ(check(frame, nullptr, true), Drop::fragment) << field;
    }
    Bytes may_fragment = udp(20);
    put16(may_fragment, kIp + 6, 0);
    seal_ip(may_fragment);
    EXPECT_EQ(check(may_fragment), Drop::none);
}

TEST(Frame, OtherProtocols) {
    for (unsigned protocol : {0u, 1u, 2u, 41u, 47u, 132u, 136u, 255u}) {
        Bytes frame = udp(20);
        frame[kIp + 9] = static_cast<std::uint8_t>(protocol);
        seal_ip(frame);
        EXPECT_EQ(check(frame), Drop::bad_protocol) << protocol;
    }
}

TEST(Frame, UdpLength) {
    for (unsigned length : {0u, 1u, 7u, 29u, 0xffffu}) {
        Bytes frame = udp(20);
        put16(frame, kL4 + 4, length);
        EXPECT_EQ(check(frame), Drop::bad_l4_length) << length;
        EXPECT_EQ(check(frame, nullptr, true), Drop::bad_l4_length) << length;
    }
    for (unsigned total = 20; total < 28; total++) {
        Bytes frame = udp(20);
        put16(frame, kIp + 2, total);
        seal_ip(frame);
        EXPECT_EQ(check(frame), Drop::bad_l4_length) << total;
    }
}

TEST(Frame, UdpLengthMayBeLessThanTheIpPayload) {
    // The kernel cuts the datagram to UDP's length, and sums only that much.
    Bytes frame = udp(20);
    put16(frame, kL4 + 4, 8 + 5);
    seal_l4(frame, Sum::full, 8 + 5, kL4 + 6, IPPROTO_UDP);
    ParsedFrame parsed;
    ASSERT_EQ(check(frame, &parsed), Drop::none);
    EXPECT_EQ(parsed.payload_length, 5u);
    frame.back() ^= 0xff;
    EXPECT_EQ(check(frame), Drop::none);
}

TEST(Frame, TcpDataOffset) {
    for (unsigned words = 0; words < 16; words++) {
        Bytes frame = tcp(8);  // room for 7 words of header
        frame[kL4 + 12] = static_cast<std::uint8_t>(words << 4);
        seal_l4(frame, Sum::full, 28, kL4 + 16, IPPROTO_TCP);
        EXPECT_EQ(check(frame), words >= 5 && words <= 7 ? Drop::none : Drop::bad_l4_length) << words;
    }
    for (unsigned total = 20; total < 40; total++) {
        Bytes frame = tcp(20);
        put16(frame, kIp + 2, total);
        seal_ip(frame);
        EXPECT_EQ(check(frame), Drop::bad_l4_length) << total;
    }
}

TEST(Frame, BadL4ChecksumOneBitAnywhere) {
    for (bool is_tcp : {false, true}) {
        const Bytes good = is_tcp ? tcp(21, 4) : udp(21);
        for (std::size_t at = kL4; at < good.size(); at++) {
            if (!is_tcp && (at == kL4 + 4 || at == kL4 + 5)) continue;  // the length has its own test
            if (is_tcp && at == kL4 + 12) continue;                     // so has the data offset
            for (unsigned bit = 0; bit < 8; bit++) {
                Bytes frame = good;
                frame[at] ^= static_cast<std::uint8_t>(1u << bit);
                ASSERT_EQ(check(frame), Drop::bad_l4_checksum) << at;
                ASSERT_EQ(check(frame, nullptr, true), Drop::none) << at;
            }
        }
    }
}

TEST(Frame, PartialSumMustBeExact) {
    Bytes frame = udp(32, Sum::partial);
    unsigned field = get16(frame, kL4 + 6);
    put16(frame, kL4 + 6, field + 1);
    EXPECT_EQ(check(frame), Drop::bad_l4_checksum);
    put16(frame, kL4 + 6, 0xffff & ~field);  // complemented: not what the kernel leaves
    EXPECT_EQ(check(frame), Drop::bad_l4_checksum);
}

TEST(Frame, PaddingIsIgnored) {
    for (std::size_t payload : {0u, 1u, 17u}) {
        Bytes frame = udp(payload);
        frame.resize(60, 0xee);
        ParsedFrame parsed;
        ASSERT_EQ(check(frame, &parsed), Drop::none);
        EXPECT_EQ(parsed.payload_length, payload);
    }
}

TEST(Frame, KnownSumStillChecksLengths) {
    Bytes frame = udp(20);
    frame[kIp + 10] ^= 1;
    frame[kL4 + 6] ^= 1;
    EXPECT_EQ(check(frame, nullptr, true), Drop::none);
    frame.resize(frame.size() - 1);
    EXPECT_EQ(check(frame, nullptr, true), Drop::short_frame);
}

// Cuts a frame after `lengths`, each piece exactly on the heap; the last piece takes the rest.
struct Pieces {
    std::vector<std::unique_ptr<std::uint8_t[]>> memory;
    std::vector<std::span<const std::uint8_t>> spans;
    Pieces(const Bytes& frame, const std::vector<std::size_t>& lengths) {
        std::size_t at = 0;
        for (std::size_t length : lengths) add(frame, at, std::min(length, frame.size() - at));
        add(frame, at, frame.size() - at);
    }
    void add(const Bytes& frame, std::size_t& at, std::size_t length) {
        memory.emplace_back(new std::uint8_t[length]);
        if (length != 0) memcpy(memory.back().get(), frame.data() + at, length);
        spans.emplace_back(memory.back().get(), length);
        at += length;
    }
};

TEST(Frame, PiecesOfOddLengths) {
    std::mt19937 random(7);
    for (int round = 0; round < 5000; round++) {
        const bool is_tcp = random() % 2;
        Bytes frame = is_tcp ? tcp(random() % 3000, 8) : udp(random() % 3000);
        if (random() % 3 == 0) frame.resize(frame.size() + random() % 30, 0xcc);
        std::vector<std::size_t> lengths{(is_tcp ? 62 : 42) + random() % 20};
        for (unsigned i = random() % 6; i > 0; i--) lengths.push_back(random() % 4 == 0 ? 0 : random() % 700);
        Pieces pieces(frame, lengths);
        ParsedFrame split, whole;
        ASSERT_EQ(parse(FramePieces(pieces.spans), false, split), Drop::none) << round;
        ASSERT_EQ(check(frame, &whole), Drop::none);
        ASSERT_EQ(split.payload_length, whole.payload_length);
        ASSERT_EQ(split.payload_offset, whole.payload_offset);
        // The same with one bit wrong in the payload.
        if (split.payload_length == 0) continue;
        frame[split.payload_offset + random() % split.payload_length] ^= 0x10;
        Pieces wrong(frame, lengths);
        ASSERT_EQ(parse(FramePieces(wrong.spans), false, split), Drop::bad_l4_checksum) << round;
    }
}

TEST(Frame, HeadersSplitAcrossPiecesAreShort) {
    for (std::size_t first = 0; first < 42; first++) {
        Pieces pieces(udp(20), {first});
        ParsedFrame parsed;
        ASSERT_EQ(parse(FramePieces(pieces.spans), false, parsed), Drop::short_frame) << first;
    }
    for (std::size_t first = 0; first < 66; first++) {
        Pieces pieces(tcp(20, 12), {first});
        ParsedFrame parsed;
        ASSERT_EQ(parse(FramePieces(pieces.spans), false, parsed), Drop::short_frame) << first;
    }
}

TEST(Frame, MissingLastPieceIsShort) {
    Pieces pieces(udp(1000), {100, 301, 400});
    ParsedFrame parsed;
    EXPECT_EQ(parse(FramePieces(pieces.spans).first(3), false, parsed), Drop::short_frame);
}

TEST(Frame, SuperFrame) {
    // A segment that was not cut (GSO) comes as pages, with the partial sum over its whole length.
    Bytes frame = tcp(65535 - 40 - 12, 12, Sum::partial);
    std::vector<std::size_t> lengths(17, 3840);
    Pieces pieces(frame, lengths);
    ParsedFrame parsed;
    ASSERT_EQ(parse(FramePieces(pieces.spans), false, parsed), Drop::none);
    EXPECT_EQ(parsed.payload_length, 65535u - 52);
}

TEST(Frame, NamesAreDistinct) {
    std::set<std::string> names;
    for (int i = 0; i < static_cast<int>(Drop::count_); i++) names.insert(drop_name(static_cast<Drop>(i)));
    EXPECT_EQ(names.size(), static_cast<std::size_t>(Drop::count_));
    EXPECT_EQ(names.count("unknown"), 0u);
}

UdpTemplate sample_template() {
    UdpTemplate t;
    t.src_mac = {2, 0, 0, 0, 0, 1};
    t.dst_mac = {2, 0, 0, 0, 0, 2};
    t.src_addr = inet_addr("198.18.0.1");
    t.dst_addr = inet_addr("198.18.3.2");
    t.src_port = htons(1234);
    t.dst_port = htons(4321);
    t.tos = 0x10;
    t.ttl = 7;
    return t;
}

TEST(Headers, BuiltFrameParses) {
    Bytes frame(kUdpHeaders + 33, 0x77);
    build_udp_headers(sample_template(), 33, frame.data());
    EXPECT_EQ(Bytes(frame.begin(), frame.begin() + 6), (Bytes{2, 0, 0, 0, 0, 2}));
    EXPECT_EQ(Bytes(frame.begin() + 6, frame.begin() + 12), (Bytes{2, 0, 0, 0, 0, 1}));
    EXPECT_EQ(get16(frame, kIp + 6), 0x4000u);
    EXPECT_EQ(get16(frame, kL4 + 6), 0u);
    ParsedFrame parsed;
    ASSERT_EQ(check(frame, &parsed), Drop::none);
    EXPECT_EQ(parsed.payload_length, 33u);
    EXPECT_EQ(parsed.src_addr, inet_addr("198.18.0.1"));
    EXPECT_EQ(parsed.dst_addr, inet_addr("198.18.3.2"));
    EXPECT_EQ(ntohs(parsed.src_port), 1234);
    EXPECT_EQ(ntohs(parsed.dst_port), 4321);
    EXPECT_EQ(parsed.tos, 0x10);
    EXPECT_EQ(parsed.ttl, 7);
}

TEST(Headers, FinishedTemplateEqualsFreshHeadersForEveryLength) {
    UdpTemplate t = sample_template();
    Bytes finished(kUdpHeaders), fresh(kUdpHeaders);
    build_udp_headers(t, 0, finished.data());
    for (unsigned step = 0; step <= 65507; step++) {
        auto payload = static_cast<std::uint16_t>(step * 7919u % 65508u);
        finish_udp_headers(finished.data(), payload);
        build_udp_headers(t, payload, fresh.data());
        ASSERT_EQ(finished, fresh) << payload;
        ASSERT_EQ(slow_sum(&finished[kIp], 20, 0), 0xffff) << payload;
    }
}

TEST(Headers, IncrementalSumForManyHeaders) {
    std::mt19937 random(11);
    for (int round = 0; round < 20000; round++) {
        UdpTemplate t;
        t.src_addr = random();
        t.dst_addr = random();
        t.tos = static_cast<std::uint8_t>(random());
        t.ttl = static_cast<std::uint8_t>(random());
        t.dont_fragment = random() % 2;
        Bytes frame(kUdpHeaders);
        build_udp_headers(t, static_cast<std::uint16_t>(random() % 65508), frame.data());
        finish_udp_headers(frame.data(), static_cast<std::uint16_t>(random() % 65508));
        ASSERT_EQ(slow_sum(&frame[kIp], 20, 0), 0xffff);
        ASSERT_NE(get16(frame, kIp + 10), 0xffffu);
    }
}

TEST(Headers, FragmentableDatagramsAreTellable) {
    UdpTemplate t = sample_template();
    t.dont_fragment = false;
    Bytes frame(kUdpHeaders);
    build_udp_headers(t, 100, frame.data());
    EXPECT_EQ(get16(frame, kIp + 6), 0u);
    std::set<unsigned> ids;
    for (int i = 0; i < 1000; i++) {
        finish_udp_headers(frame.data(), 100);
        ids.insert(get16(frame, kIp + 4));
    }
    EXPECT_EQ(ids.size(), 1000u);
}

}  // namespace
}  // namespace vma::net
