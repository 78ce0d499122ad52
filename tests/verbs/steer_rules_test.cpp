// SPDX-License-Identifier: BSD-2-Clause
// The table of rules that the XDP program reads, in the memory of a file instead of a map.
#include "libvma/verbs/xdp/steer_rules.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "libvma/runtime/internal_fd.h"

namespace vma::verbs::xdp {
namespace {

using Table = std::array<steer_bucket, STEER_BUCKETS>;

class SteerRulesTest : public testing::Test {
  protected:
    void SetUp() override {
        ASSERT_EQ(ftruncate(memory.get(), sizeof(Table)), 0);
        ASSERT_TRUE(rules.map(memory.get()));
        ASSERT_TRUE(table.map(memory.get()));
    }

    // What the program finds: slot + 1, or 0. Never more than one entry has a key.
    std::uint32_t found(const steer_key& key) const {
        const __u64 hash = steer_hash(rules.seeds().data(), key);
        steer_bucket& bucket = (*table)[steer_bucket_of(hash)];
        std::uint32_t slot = 0;
        for (int i = 0; i < STEER_WAYS; i++) {
            const __u64 mark = std::atomic_ref(bucket.mark[i]).load(std::memory_order_acquire);
            if (mark >> 32 != steer_tag_of(hash) || static_cast<std::uint32_t>(mark) == 0 ||
                std::atomic_ref(bucket.addresses[i]).load() != key.addresses ||
                std::atomic_ref(bucket.ports[i]).load() != key.ports)
                continue;
            EXPECT_EQ(slot, 0u);
            slot = static_cast<std::uint32_t>(mark);
        }
        return slot;
    }
    static steer_key key_of(const FlowSpec& s) {
        return s.is_five_tuple()
                   ? steer_key_of(STEER_FIVE, s.src_addr, s.dst_addr, s.src_port, s.dst_port, s.protocol)
                   : steer_key_of(STEER_THREE, 0, s.dst_addr, 0, s.dst_port, s.protocol);
    }
    std::uint32_t found(const FlowSpec& s) const { return found(key_of(s)); }

    static FlowSpec connection(std::uint16_t peer_port, std::uint16_t port = 80) {
        return {IPPROTO_TCP, inet_addr("198.18.0.1"), htons(port), inet_addr("198.18.0.2"), htons(peer_port)};
    }

    InternalFd memory{memfd_create("rules", MFD_CLOEXEC)};
    SteerRules rules;
    MappedArray<Table> table;
};

TEST_F(SteerRulesTest, ComeMoveAndGo) {
    const FlowSpec five = connection(1000), other = connection(1001);
    const FlowSpec three{IPPROTO_TCP, five.dst_addr, five.dst_port, 0, 0};
    EXPECT_FALSE(rules.move(five, 1));
    EXPECT_FALSE(rules.remove(five));
    EXPECT_TRUE(rules.add(five, 0));
    EXPECT_EQ(found(five), 1u);
    EXPECT_EQ(found(other), 0u);
    EXPECT_EQ(found(three), 0u);
    EXPECT_TRUE(rules.add(three, STEER_MAX_QUEUES));
    EXPECT_EQ(found(three), STEER_MAX_QUEUES + 1u);
    EXPECT_TRUE(rules.move(five, 2 * STEER_MAX_QUEUES));
    EXPECT_EQ(found(five), 2 * STEER_MAX_QUEUES + 1u);
    EXPECT_TRUE(rules.remove(five));
    EXPECT_EQ(found(five), 0u);
    EXPECT_FALSE(rules.remove(five));
    EXPECT_EQ(found(three), STEER_MAX_QUEUES + 1u);
}

// A frame without a source does not pass for a connection's because a listener is there.
TEST_F(SteerRulesTest, KindsAreApart) {
    const FlowSpec three{IPPROTO_TCP, inet_addr("198.18.0.1"), htons(80), 0, 0};
    ASSERT_TRUE(rules.add(three, 0));
    EXPECT_EQ(found(steer_key_of(STEER_FIVE, 0, three.dst_addr, 0, three.dst_port, IPPROTO_TCP)), 0u);
    EXPECT_EQ(found(steer_key_of(STEER_THREE, 0, three.dst_addr, 0, three.dst_port, IPPROTO_UDP)), 0u);
}

// As many as one port has from one peer: hardly one of them finds its bucket full, and what goes makes room.
TEST_F(SteerRulesTest, ManyFitAndMakeRoom) {
    for (int round = 0; round < 3; round++) {
        std::vector<FlowSpec> there;
        unsigned refused = 0;
        for (unsigned i = 1; i <= STEER_BUCKETS; i++) {
            const FlowSpec spec = connection(static_cast<std::uint16_t>(i));
            if (rules.add(spec, i % STEER_MAX_SLOTS))
                there.push_back(spec);
            else
                refused++;
        }
        EXPECT_LT(refused, STEER_BUCKETS / 100u);
        for (const FlowSpec& spec : there)
            EXPECT_EQ(found(spec), ntohs(spec.src_port) % STEER_MAX_SLOTS + 1u);
        for (const FlowSpec& spec : there) EXPECT_TRUE(rules.remove(spec));
    }
    for (const steer_bucket& bucket : *table)
        for (const __u64 mark : bucket.mark) EXPECT_EQ(mark, 0u);
}

// That does not hang on the secret.
TEST_F(SteerRulesTest, HashSpreadsWhateverTheSecret) {
    std::mt19937_64 random(1);
    for (int table = 0; table < 300; table++) {
        const std::array<__u64, STEER_SEEDS> seeds = {random(), random(), random()};
        std::vector<int> in_bucket(STEER_BUCKETS);
        int refused = 0;
        for (unsigned i = 1; i <= STEER_BUCKETS; i++) {
            const steer_key key = key_of(connection(static_cast<std::uint16_t>(i)));
            refused += in_bucket[steer_bucket_of(steer_hash(seeds.data(), key))]++ >= STEER_WAYS;
        }
        ASSERT_LT(refused, STEER_BUCKETS / 100) << "table " << table;
    }
}

TEST_F(SteerRulesTest, FullBucketRefusesOneMore) {
    const auto bucket = [&](const FlowSpec& s) {
        return steer_bucket_of(steer_hash(rules.seeds().data(), key_of(s)));
    };
    const std::uint32_t place = bucket(connection(1, 1));
    std::vector<FlowSpec> same;
    for (std::uint16_t port = 1; port < 100 && same.size() <= STEER_WAYS; port++)
        for (unsigned peer = 1; peer < 65536 && same.size() <= STEER_WAYS; peer++)
            if (const FlowSpec s = connection(static_cast<std::uint16_t>(peer), port); bucket(s) == place)
                same.push_back(s);
    ASSERT_EQ(same.size(), STEER_WAYS + 1u);
    for (int i = 0; i < STEER_WAYS; i++) EXPECT_TRUE(rules.add(same[i], 0));
    EXPECT_FALSE(rules.add(same.back(), 0));
    EXPECT_EQ(found(same.back()), 0u);
    EXPECT_TRUE(rules.remove(same[2]));
    EXPECT_TRUE(rules.add(same.back(), 7));
    EXPECT_EQ(found(same.back()), 8u);
}

// A peer that knows which ports met in one process's table knows nothing of another's.
TEST_F(SteerRulesTest, EachTableHasItsSecret) {
    InternalFd file(memfd_create("rules", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(file.get(), sizeof(Table)), 0);
    SteerRules other;
    ASSERT_TRUE(other.map(file.get()));
    EXPECT_NE(rules.seeds(), other.seeds());
}

// Threads whose rules come and go do not lose one another's, and a reader takes no half of one for a rule.
TEST_F(SteerRulesTest, ManyThreads) {
    constexpr int kThreads = 4, kRules = 2000, kRounds = 20;
    std::atomic<bool> done{false};
    std::thread reader([&] {
        while (!done)
            for (std::uint16_t i = 0; i < kRules; i++) EXPECT_EQ(found(connection(i, 81)), 0u);
    });
    std::vector<std::thread> writers;
    for (int t = 0; t < kThreads; t++)
        writers.emplace_back([&, t] {
            std::vector<bool> there(kRules);
            for (int round = 0; round < kRounds; round++)
                for (std::uint16_t i = 0; i < kRules; i++) {
                    const FlowSpec spec = connection(i, static_cast<std::uint16_t>(1000 + t));
                    if (there[i]) {
                        EXPECT_EQ(found(spec), t + 1u);
                        EXPECT_TRUE(rules.remove(spec));
                    }
                    there[i] = !there[i] && rules.add(spec, static_cast<std::uint32_t>(t));
                }
        });
    for (std::thread& writer : writers) writer.join();
    done = true;
    reader.join();
}

}  // namespace
}  // namespace vma::verbs::xdp
