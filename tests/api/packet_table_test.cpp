// SPDX-License-Identifier: BSD-2-Clause
// Ids of packets that a program keeps: each is good once, and nothing else is good at all.
#include "libvma/api/packet_table.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "libvma/ring/packet_regions.h"

namespace {

using vma::api::PacketTable;
using vma::sockets::Held;

const auto kAnybody = [](const void*) { return true; };

TEST(PacketTable, KnowsNoForeignIds) {
    PacketTable table;
    Held out;
    std::mt19937_64 random(7);
    for (const std::uint64_t id :
         {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}, std::uint64_t{1} << 63})
        EXPECT_EQ(table.take(reinterpret_cast<void*>(id), out, kAnybody), PacketTable::Found::unknown);
    for (int i = 0; i < 100000; i++)
        EXPECT_EQ(table.take(reinterpret_cast<void*>(random()), out, kAnybody), PacketTable::Found::unknown);
    int here;
    EXPECT_EQ(table.take(&here, out, kAnybody), PacketTable::Found::unknown);
}

// The ids of buffers: no other generation, no other place, and none of a buffer that the program does not
// have.
TEST(PacketTable, KnowsBuffersByTheirTenure) {
    PacketTable table;
    Held out;
    vma::ring::RxBuffer buffers[4];
    alignas(64) static std::uint8_t memory[4096];
    const unsigned number = vma::ring::PacketRegions::add(memory, sizeof memory, buffers);
    ASSERT_NE(number, vma::ring::PacketRegions::kNone);
    const auto id = [&](std::uint64_t generation, std::uint64_t index) {
        return reinterpret_cast<void*>(std::uint64_t{1} << 63 | std::uint64_t{1} << 55 | generation << 28 |
                                       std::uint64_t{number} << 21 | index);
    };
    EXPECT_EQ(table.take(id(0, 1), out, kAnybody), PacketTable::Found::unknown);
    const std::uint32_t tenure = buffers[1].tenure.begin();
    EXPECT_TRUE(buffers[1].tenure.is(tenure));
    for (const unsigned index : {0u, 2u, 3u, 4u, 100u, (1u << 21) - 1})
        EXPECT_EQ(table.take(id(tenure >> 1, index), out, kAnybody), PacketTable::Found::unknown);
    EXPECT_EQ(table.take(id((tenure >> 1) + 1, 1), out, kAnybody), PacketTable::Found::unknown);
    // Another socket's: it stays.
    const auto nobody = [](const void*) { return false; };
    EXPECT_EQ(table.take(id(tenure >> 1, 1), out, nobody), PacketTable::Found::refused);
    EXPECT_TRUE(buffers[1].tenure.is(tenure));
    EXPECT_TRUE(buffers[1].tenure.end(tenure));
    EXPECT_FALSE(buffers[1].tenure.end(tenure));
    EXPECT_EQ(table.take(id(tenure >> 1, 1), out, kAnybody), PacketTable::Found::unknown);
    EXPECT_TRUE(vma::ring::PacketRegions::hold(memory + 10, 4086));
    EXPECT_FALSE(vma::ring::PacketRegions::hold(memory + 10, 4087));
    vma::ring::PacketRegions::remove(number);
    EXPECT_FALSE(vma::ring::PacketRegions::hold(memory, 1));
}

}  // namespace
