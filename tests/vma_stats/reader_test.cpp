// SPDX-License-Identifier: BSD-2-Clause
// The reader against files as they should be, as later and earlier libraries would write them, and as nobody
// should.
#include "tools/vma_stats/reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>

#include "tests/vma_stats/memory_source.h"
#include "tests/vma_stats/stats_image.h"
#include "tools/vma_stats/text.h"

namespace {

using namespace vma_stats;
using stats_image::Image;

Image image() { return stats_image::sample(4711, 99); }

Snapshot good(MemorySource source) {
    Snapshot snapshot;
    const auto error = read_snapshot(source, snapshot);
    EXPECT_FALSE(error) << error->text;
    return snapshot;
}

// Expects a refusal, and no crash, when a value lies at an offset.
template <class T>
void expect_fault(Fault fault, std::size_t offset, T value, const std::string& words) {
    MemorySource source(image().bytes());
    source.poke(offset, value);
    Snapshot snapshot;
    const auto error = read_snapshot(source, snapshot);
    ASSERT_TRUE(error) << "offset " << offset;
    EXPECT_EQ(error->fault, fault) << error->text;
    EXPECT_NE(error->text.find(words), std::string::npos) << error->text;
}
constexpr std::size_t entry(std::size_t n, std::size_t field) {
    return offsetof(layout::Header, sections) + n * sizeof(layout::SectionEntry) + field;
}

TEST(StatsReader, ReadsWhatIsInUse) {
    const Snapshot s = good(MemorySource(image().bytes()));
    EXPECT_EQ(s.header.pid, 4711u);
    ASSERT_EQ(s.sockets.size(), 4u);
    EXPECT_EQ(s.sockets[2].number, 3u);
    EXPECT_EQ(s.sockets[2].block.fd, 16);
    EXPECT_EQ(s.sockets[0].block.rx_offload.packets, 140479898u);
    EXPECT_FALSE(s.sockets[0].torn);
    EXPECT_EQ(s.rings.size(), 1u);
    EXPECT_EQ(s.pools.size(), 2u);
    EXPECT_EQ(s.muxes.size(), 2u);
    EXPECT_EQ(s.groups.size(), 2u);
    EXPECT_EQ(s.parameters.size(), 2u);
    EXPECT_EQ(s.totals.size(), 2u);
}

TEST(StatsReader, LongerBlocksAreReadAsFarAsTheyAreKnown) {
    for (const int longer : {8, 4096}) {
        Image longer_image = image();
        longer_image.longer = longer;
        const Snapshot s = good(MemorySource(longer_image.bytes()));
        ASSERT_EQ(s.sockets.size(), 4u);
        EXPECT_EQ(s.sockets[3].block.fd, 17);
        EXPECT_EQ(s.rings[0].block.cq_posted, 500u);
        EXPECT_EQ(s.totals[1].block.tcp_retransmits, 75u);
    }
}

TEST(StatsReader, FieldsThatShorterBlocksLackAreZero) {
    constexpr std::size_t kLacks = 16;
    Image shorter = image();
    shorter.longer = -static_cast<int>(kLacks);
    auto* const last = reinterpret_cast<std::byte*>(&shorter.sockets[0] + 1) - kLacks;
    std::fill_n(last, kLacks, std::byte{5});
    const Snapshot s = good(MemorySource(shorter.bytes()));
    ASSERT_EQ(s.sockets.size(), 4u);
    EXPECT_EQ(s.sockets[0].block.fd, 14);
    const auto* const read = reinterpret_cast<const std::byte*>(&s.sockets[0].block + 1) - kLacks;
    EXPECT_EQ(std::count(read, read + kLacks, std::byte{0}), std::ptrdiff_t{kLacks});
}

TEST(StatsReader, RefusesForeignFiles) {
    for (const std::string& text : {std::string(), std::string("x"), std::string(10000, '\0'),
                                    std::string("vmastat"), std::string("#!/bin/sh\nexit 1\n")}) {
        std::vector<std::byte> bytes(text.size());
        if (!text.empty()) memcpy(bytes.data(), text.data(), text.size());
        MemorySource source(bytes);
        Snapshot s;
        const auto error = read_snapshot(source, s);
        ASSERT_TRUE(error);
        EXPECT_EQ(error->fault, Fault::foreign);
    }
}

TEST(StatsReader, RefusesOtherVersions) {
    expect_fault(Fault::version, offsetof(layout::Header, version), layout::kVersion + 1, "version 2");
    expect_fault(Fault::version, offsetof(layout::Header, version), 0u, "version 0");
}

TEST(StatsReader, RefusesEveryTruncation) {
    const auto bytes = image().bytes();
    for (std::size_t size = 0; size < bytes.size(); size += size < 2000 ? 1 : 97) {
        MemorySource source({bytes.begin(), bytes.begin() + static_cast<long>(size)});
        Snapshot s;
        const auto error = read_snapshot(source, s);
        ASSERT_TRUE(error) << size;
        EXPECT_EQ(error->fault, size < sizeof layout::kMagic ? Fault::foreign : Fault::truncated) << size;
    }
}

TEST(StatsReader, TruncationWhileItReads) {
    const auto bytes = image().bytes();
    MemorySource source({bytes.begin(), bytes.begin() + 5000});
    source.claimed_size = bytes.size();
    Snapshot s;
    const auto error = read_snapshot(source, s);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->fault, Fault::truncated);
}

TEST(StatsReader, ReadErrorsAreReported) {
    MemorySource source(image().bytes());
    source.fails = true;
    Snapshot s;
    const auto error = read_snapshot(source, s);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->fault, Fault::unreadable);
    EXPECT_NE(error->text.find("Input/output error"), std::string::npos);
}

TEST(StatsReader, RefusesImpossibleSizes) {
    expect_fault(Fault::malformed, offsetof(layout::Header, header_size), 16u, "header of 16 bytes");
    expect_fault(Fault::malformed, offsetof(layout::Header, header_size), 0xffffffffu, "header");
    expect_fault(Fault::malformed, offsetof(layout::Header, file_size), std::uint64_t{100}, "100 bytes");
    expect_fault(Fault::malformed, offsetof(layout::Header, file_size), UINT64_MAX, "bytes");
    expect_fault(Fault::truncated, offsetof(layout::Header, file_size), std::uint64_t{1} << 20, "truncated");
    for (const std::uint32_t size : {0u, 7u, 0x10001u, 0xffffffffu})
        expect_fault(Fault::malformed, entry(0, offsetof(layout::SectionEntry, block_size)), size,
                     "section 1");
    for (const std::uint32_t count : {9u, 16384u, 16385u, 0xffffffffu})
        expect_fault(Fault::malformed, entry(6, offsetof(layout::SectionEntry, blocks)), count, "section 7");
    // Offsets whose end wraps, lies behind the file, or begins there.
    for (const std::uint64_t offset :
         {UINT64_MAX, UINT64_MAX - 100, std::uint64_t{1} << 63, std::uint64_t{1} << 30})
        expect_fault(Fault::malformed, entry(3, offsetof(layout::SectionEntry, offset)), offset, "outside");
}

TEST(StatsReader, SectionsMayOverlapEachOtherAndTheHeader) {
    MemorySource source(image().bytes());
    for (std::size_t n = 0; n < 7; n++)
        source.poke(entry(n, offsetof(layout::SectionEntry, offset)), std::uint64_t{0});
    Snapshot s;
    read_snapshot(source, s);  // what it finds does not matter, only that it ends well
}

TEST(StatsReader, UnknownAndRepeatedSectionsAreSkipped) {
    MemorySource source(image().bytes());
    source.poke(entry(5, offsetof(layout::SectionEntry, kind)), 77u);  // was parameters
    source.poke(entry(5, offsetof(layout::SectionEntry, offset)),
                UINT64_MAX);                                          // and nobody looks at its place
    source.poke(entry(7, offsetof(layout::SectionEntry, kind)), 1u);  // sockets again
    source.poke(entry(7, offsetof(layout::SectionEntry, offset)), UINT64_MAX);
    Snapshot s;
    const auto error = read_snapshot(source, s);
    ASSERT_FALSE(error) << error->text;
    EXPECT_TRUE(s.parameters.empty());
    EXPECT_EQ(s.sockets.size(), 4u);
}

// The description of block 0 while a writer is at work: odd for some reads, then even.
TEST(StatsReader, WaitsForADescriptionToSettle) {
    MemorySource source(image().bytes());
    const std::size_t at = sizeof(layout::Header);
    source.poke(at + offsetof(layout::SocketBlock, sequence), 5u);
    source.poke(at + offsetof(layout::SocketBlock, fd), -1);
    source.on_read = [&](MemorySource& s) {
        if (s.reads != 9) return;
        s.poke(at + offsetof(layout::SocketBlock, fd), 14);
        s.poke(at + offsetof(layout::SocketBlock, sequence), 6u);
    };
    const Snapshot s = good(source);
    EXPECT_EQ(s.sockets[0].block.fd, 14);
    EXPECT_FALSE(s.sockets[0].torn);
}

TEST(StatsReader, TakesADescriptionThatNeverSettles) {
    MemorySource stuck(image().bytes());
    stuck.poke(sizeof(layout::Header) + offsetof(layout::SocketBlock, sequence), 5u);
    Snapshot s = good(stuck);
    EXPECT_TRUE(s.sockets[0].torn);
    EXPECT_FALSE(s.sockets[1].torn);

    MemorySource busy(image().bytes());
    busy.on_read = [](MemorySource& b) {
        b.poke(sizeof(layout::Header) + offsetof(layout::SocketBlock, sequence),
               static_cast<std::uint32_t>(b.reads) * 2);
    };
    EXPECT_TRUE(good(busy).sockets[0].torn);
}

// A block that is freed while it is read is not in use.
TEST(StatsReader, FreedWhileRead) {
    MemorySource source(image().bytes());
    source.on_read = [](MemorySource& s) {
        if (s.reads == 3) s.poke(sizeof(layout::Header) + offsetof(layout::SocketBlock, state), 0u);
    };
    EXPECT_EQ(good(source).sockets.size(), 3u);
}

TEST(StatsText, EscapesWhatATerminalWouldObey) {
    EXPECT_EQ(escaped("plain text"), "plain text");
    EXPECT_EQ(escaped("\033[2J"), "\\x1b[2J");
    EXPECT_EQ(escaped("a\nb\t\x7f\xff"), "a\\x0ab\\x09\\x7f\\xff");
    EXPECT_EQ(escaped("back\\slash"), "back\\\\slash");
    const char unterminated[4] = {'a', 'b', 'c', 'd'};
    EXPECT_EQ(text(unterminated), "abcd");
}

TEST(StatsText, Addresses) {
    EXPECT_EQ(endpoint(stats_image::address("198.18.1.1", 80)), "198.18.1.1:80");
    EXPECT_EQ(endpoint(stats_image::address("2001:2::1", 80)), "[2001:2::1]:80");
    EXPECT_EQ(endpoint({}), "*:0");
    layout::Address odd{};
    odd.family = 200;
    EXPECT_EQ(host(odd), "*");
}

TEST(StatsText, ShortNumbers) {
    EXPECT_EQ(short_number(0), "0");
    EXPECT_EQ(short_number(0.5), "0.5");
    EXPECT_EQ(short_number(12.3), "12");
    EXPECT_EQ(short_number(9999), "9999");
    EXPECT_EQ(short_number(10000), "10.0k");
    EXPECT_EQ(short_number(999499), "999k");
    EXPECT_EQ(short_number(1e6), "1.0M");
    EXPECT_EQ(short_number(1.8e19), "18.0E");
}

// Values that no enumeration has.
TEST(StatsText, UnknownValuesHaveWords) {
    EXPECT_EQ(path(200), "unknown");
    EXPECT_EQ(reason(60000), "unknown reason");
    EXPECT_EQ(tcp_state(4000000000u), "UNKNOWN");
    EXPECT_EQ(mux_name(77), "wait");
    layout::SocketBlock s{};
    s.type = 5;
    EXPECT_EQ(protocol(s), "type 5");
}

}  // namespace
