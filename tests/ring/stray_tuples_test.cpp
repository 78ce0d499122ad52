// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/strays/stray_tuples.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <set>

namespace vma::ring {
namespace {

// The memory of the map is a file's here, and this is what the program does.
class StrayTuplesTest : public testing::Test {
  protected:
    using Table = std::array<stray_bucket, STRAYS_BUCKETS>;
    void SetUp() override {
        fd = memfd_create("tuples", MFD_CLOEXEC);
        ASSERT_EQ(ftruncate(fd, sizeof(Table)), 0);
        ASSERT_TRUE(tuples.map(fd));
        table = static_cast<Table*>(mmap(nullptr, sizeof(Table), PROT_READ, MAP_SHARED, fd, 0));
    }
    void TearDown() override {
        munmap(table, sizeof(Table));
        close(fd);
    }
    static verbs::FlowSpec flow(unsigned i) {
        return {IPPROTO_TCP, 0x020112c6, htons(80), 0x010112c6 + (i / 60000 << 24),
                htons(static_cast<in_port_t>(1024 + i % 60000))};
    }
    bool listed(const verbs::FlowSpec& s) const {
        const __u64 hash = strays_hash(tuples.seeds().data(), s.src_addr, s.dst_addr, s.src_port, s.dst_port);
        for (const std::uint32_t place : {strays_first(hash), strays_second(hash)})
            for (const stray_tuple& t : (*table)[place].tuples)
                if (t.users && t.src_addr == s.src_addr && t.dst_addr == s.dst_addr &&
                    t.src_port == s.src_port && t.dst_port == s.dst_port)
                    return true;
        return false;
    }
    int fd = -1;
    Table* table = nullptr;
    StrayTuples tuples;
};

TEST_F(StrayTuplesTest, AreThereUntilTheyGo) {
    EXPECT_FALSE(listed(flow(1)));
    EXPECT_TRUE(tuples.add(flow(1)));
    EXPECT_TRUE(listed(flow(1)));
    EXPECT_TRUE(tuples.has(flow(1)));
    EXPECT_FALSE(listed(flow(2)));
    EXPECT_FALSE(tuples.has(flow(2)));
    tuples.remove(flow(1));
    EXPECT_FALSE(listed(flow(1)));
    EXPECT_FALSE(tuples.has(flow(1)));
}

// A connection in TIME_WAIT, and the next one of the same peer.
TEST_F(StrayTuplesTest, GoWithTheirLastUser) {
    tuples.add(flow(1));
    tuples.add(flow(1));
    tuples.remove(flow(1));
    EXPECT_TRUE(listed(flow(1)));
    tuples.remove(flow(1));
    EXPECT_FALSE(listed(flow(1)));
}

TEST_F(StrayTuplesTest, OneThatIsNotThereTakesNoOther) {
    tuples.add(flow(1));
    for (unsigned i = 2; i < 5000; i++) tuples.remove(flow(i));
    EXPECT_TRUE(listed(flow(1)));
}

TEST_F(StrayTuplesTest, FillMostOfTheTable) {
    constexpr unsigned kMany = STRAYS_BUCKETS * STRAYS_WAYS * 65 / 100;
    for (unsigned i = 0; i < kMany; i++) ASSERT_TRUE(tuples.add(flow(i))) << i;
    for (unsigned i = 0; i < kMany; i++) ASSERT_TRUE(listed(flow(i))) << i;
}

// More than it holds: those that found no place are not there, all others are.
TEST_F(StrayTuplesTest, AreBounded) {
    constexpr unsigned kMany = STRAYS_BUCKETS * STRAYS_WAYS * 2;
    std::set<unsigned> in;
    for (unsigned i = 0; i < kMany; i++)
        if (tuples.add(flow(i))) in.insert(i);
    EXPECT_LE(in.size(), std::size_t{STRAYS_BUCKETS} * STRAYS_WAYS);
    for (unsigned i = 0; i < kMany; i++) ASSERT_EQ(listed(flow(i)), in.contains(i)) << i;
    for (unsigned i = 0; i < kMany; i++) tuples.remove(flow(i));
    for (unsigned i = 0; i < kMany; i++) ASSERT_FALSE(listed(flow(i))) << i;
}

}  // namespace
}  // namespace vma::ring
