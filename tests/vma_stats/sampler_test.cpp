// SPDX-License-Identifier: BSD-2-Clause
// Differences between reports, and rates.
#include "tools/vma_stats/sampler.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/vma_stats/snapshots.h"
#include "tools/vma_stats/fields.h"

namespace {

using namespace vma_stats;

class StatsSampler : public testing::Test {
  protected:
    stats_image::Image image = stats_image::sample(1, 1);
    Sampler sampler;
};

TEST_F(StatsSampler, FirstReportHasNoChange) {
    const Frame frame = sampler.next(snapshot_of(image, 10));
    EXPECT_EQ(frame.seconds, 0);
    EXPECT_TRUE(frame.change.sockets.empty());
    EXPECT_EQ(frame.now.sockets.size(), 4u);
}

TEST_F(StatsSampler, CountersAreDifferencesAndGaugesStay) {
    sampler.next(snapshot_of(image, 10));
    image.sockets[0].rx_offload.packets += 1000;
    image.sockets[0].tx_os.bytes += 5000;
    image.sockets[0].rx_queue_packets = 12;
    image.sockets[0].rx_queue_max_packets = 17;
    image.rings[0].rx_packets += 3;
    image.rings[0].drops[static_cast<unsigned>(layout::RingDrop::bad_udp_checksum)] += 4;
    image.muxes[1].calls += 5;
    image.totals[0].rx_offload.bytes += 6;
    image.pools[1].no_buffer += 7;
    const Frame frame = sampler.next(snapshot_of(image, 12.5));
    EXPECT_DOUBLE_EQ(frame.seconds, 2.5);
    const layout::SocketBlock& s = frame.change.sockets[0].block;
    EXPECT_EQ(s.rx_offload.packets, 1000u);
    EXPECT_EQ(s.tx_os.bytes, 5000u);
    EXPECT_EQ(s.tx_offload.packets, 0u);
    EXPECT_EQ(s.rx_queue_packets, 12u);
    EXPECT_EQ(s.rx_queue_max_packets, 17u);
    EXPECT_EQ(frame.change.rings[0].block.rx_packets, 3u);
    EXPECT_EQ(frame.change.rings[0].block.drops[static_cast<unsigned>(layout::RingDrop::bad_udp_checksum)],
              4u);
    EXPECT_EQ(frame.change.muxes[0].block.calls, 5u);
    EXPECT_EQ(frame.change.totals[0].block.rx_offload.bytes, 6u);
    EXPECT_EQ(frame.change.pools[1].block.no_buffer, 7u);
    EXPECT_EQ(frame.now.sockets[0].block.rx_offload.packets, 140480898u);
    EXPECT_EQ(per_second(1000, frame.seconds), 400u);
}

// After "zero" a counter is lower than before: what it shows was counted since.
TEST_F(StatsSampler, CountersThatWentBack) {
    sampler.next(snapshot_of(image, 1));
    image.header.zeroed = 1;
    image.sockets[0].rx_offload.packets = 50;
    EXPECT_EQ(sampler.next(snapshot_of(image, 2)).change.sockets[0].block.rx_offload.packets, 50u);
    image.sockets[0].rx_offload.packets = 70;
    EXPECT_EQ(sampler.next(snapshot_of(image, 3)).change.sockets[0].block.rx_offload.packets, 20u);
}

// Another socket in the same block, and a socket in a block that was free.
TEST_F(StatsSampler, NewSocketsCountFromZero) {
    sampler.next(snapshot_of(image, 1));
    image.sockets[0].id = 999;
    image.sockets[2] = image.sockets[0];
    image.sockets[2].id = 1000;
    const Frame frame = sampler.next(snapshot_of(image, 2));
    EXPECT_EQ(frame.change.sockets[0].block.rx_offload.packets, 140479898u);
    EXPECT_EQ(frame.change.sockets[2].block.rx_offload.packets, 140479898u);
}

TEST_F(StatsSampler, SocketsThatEndedAreGone) {
    sampler.next(snapshot_of(image, 1));
    image.sockets[0].state = 0;
    const Frame frame = sampler.next(snapshot_of(image, 2));
    EXPECT_EQ(frame.change.sockets.size(), 3u);
    EXPECT_EQ(frame.now.sockets.size(), 3u);
}

TEST(StatsRate, Rounds) {
    EXPECT_EQ(per_second(0, 1), 0u);
    EXPECT_EQ(per_second(10, 0.5), 20u);
    EXPECT_EQ(per_second(10, 4), 3u);
    EXPECT_EQ(per_second(7, 0), 7u);
    // Nothing a counter can hold makes it undefined.
    EXPECT_GT(per_second(UINT64_MAX, 1e-9), UINT64_MAX / 2);
}

// The tables name every 64-bit number of their blocks once.
template <class Block>
void expect_complete(std::size_t first, std::size_t numbers) {
    std::set<std::size_t> offsets;
    std::set<std::string> names, series;
    for (const Field& field : fields_of<Block>()) {
        EXPECT_EQ(field.offset % 8, 0u) << field.name;
        EXPECT_LE(field.offset + 8, sizeof(Block)) << field.name;
        EXPECT_TRUE(offsets.insert(field.offset).second) << field.name;
        EXPECT_TRUE(names.insert(field.name).second) << field.name;
        EXPECT_TRUE(series.insert(std::string(field.metric) + field.label).second) << field.name;
    }
    EXPECT_EQ(offsets.size(), numbers);
    EXPECT_GE(*offsets.begin(), first);
}
TEST(StatsFields, Complete) {
    constexpr auto from = [](std::size_t size, std::size_t first) { return (size - first) / 8; };
    constexpr std::size_t kSocket = offsetof(layout::SocketBlock, rx_queue_packets);
    expect_complete<layout::SocketBlock>(kSocket, from(sizeof(layout::SocketBlock), kSocket));
    constexpr std::size_t kRing = offsetof(layout::RingBlock, rules);
    constexpr std::size_t kSpareDrops =
        layout::kRingDrops - static_cast<std::size_t>(layout::RingDrop::count_);
    // Texts lie between the first numbers and the last ones.
    constexpr std::size_t kLast = offsetof(layout::RingBlock, migrations);
    expect_complete<layout::RingBlock>(kRing, from(offsetof(layout::RingBlock, logic), kRing) - kSpareDrops +
                                                  from(offsetof(layout::RingBlock, details), kLast));
    constexpr std::size_t kPool = offsetof(layout::PoolBlock, buffers);
    expect_complete<layout::PoolBlock>(kPool, from(sizeof(layout::PoolBlock), kPool));
    constexpr std::size_t kMux = offsetof(layout::MuxBlock, calls);
    expect_complete<layout::MuxBlock>(kMux, from(sizeof(layout::MuxBlock), kMux));
    expect_complete<layout::TotalsBlock>(0, sizeof(layout::TotalsBlock) / 8 - 1);
}

}  // namespace
