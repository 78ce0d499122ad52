// SPDX-License-Identifier: BSD-2-Clause
// Ids of packets that a program keeps: each is good once, and nothing else is good at all.
#include "libvma/api/packet_table.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

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

}  // namespace
