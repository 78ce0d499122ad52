// SPDX-License-Identifier: BSD-2-Clause
// What the full-screen view shows: order, rates, sparklines, pages.
#include <gmock/gmock.h>

#include "tests/vma_stats/snapshots.h"
#include "tools/vma_stats/top_model.h"

namespace {

using namespace vma_stats;
using testing::HasSubstr;

class StatsTop : public testing::Test {
  protected:
    // A report two seconds after the one before.
    void report() {
        seconds += 2;
        std::vector<Sample> samples;
        samples.push_back(
            {.pid = 4711, .program = "sample", .frame = sampler.next(snapshot_of(image, seconds))});
        model.take(std::move(samples), shape);
    }
    // The descriptors in the order of the lines.
    std::vector<int> order() const {
        std::vector<int> fds;
        for (const std::string& line : model.lines()) fds.push_back(std::stoi(line.substr(8, 4)));
        return fds;
    }
    stats_image::Image image = stats_image::sample(4711, 99);
    Sampler sampler;
    Shape shape;
    TopModel model{false};
    double seconds = 0;
};

TEST_F(StatsTop, SortsByRates) {
    report();
    EXPECT_EQ(order(), (std::vector{14, 15, 16, 17}));  // nothing is known of rates yet
    image.sockets[3].rx_offload.packets += 4000;
    image.sockets[3].rx_offload.bytes += 4000;
    image.sockets[4].tx_os.packets += 200;
    image.sockets[4].tx_os.bytes += 2'000'000;
    image.sockets[1].rx_drop_packets += 1;
    report();
    EXPECT_EQ(order(), (std::vector{16, 17, 14, 15}));
    EXPECT_THAT(model.lines()[0], HasSubstr("    2000    2000B"));
    EXPECT_THAT(model.lines()[1], HasSubstr(" Lk "));
    EXPECT_THAT(model.lines()[1], HasSubstr("     100    1.0MB"));
    EXPECT_THAT(model.title(),
                HasSubstr("sample (4711), 4 sockets   Rx 2000/s 2000B/s   Tx 100/s 1.0MB/s   drops 0.5/s"));
    model.next_sort();
    EXPECT_STREQ(model.sort_name(), "received bytes");
    EXPECT_EQ(order()[0], 16);
    model.next_sort();
    EXPECT_EQ(order()[0], 17);
    model.next_sort();
    EXPECT_EQ(order()[0], 15);
    model.next_sort();
    EXPECT_EQ(order(), (std::vector{14, 15, 16, 17}));
    model.reversed = true;
    EXPECT_EQ(order(), (std::vector{17, 16, 15, 14}));
}

TEST_F(StatsTop, HistoriesFollowSocketsAndEndWithThem) {
    report();
    for (int i = 1; i <= 30; i++) {
        image.sockets[0].rx_offload.packets += static_cast<std::uint64_t>(i) * 100;
        report();
    }
    const std::string line = model.lines()[0];
    EXPECT_THAT(line, HasSubstr("--====++++****## "));
    image.sockets[0].id = 999;  // another socket in the same block
    report();
    for (const std::string& other : model.lines()) EXPECT_THAT(other, testing::Not(HasSubstr("***#")));
}

TEST_F(StatsTop, Pages) {
    report();
    image.rings[0].rx_packets += 100;
    image.muxes[1].calls += 10;
    report();
    model.page = TopPage::rings;
    EXPECT_THAT(model.heading(), HasSubstr("INTERFACE"));
    EXPECT_THAT(model.lines()[0], HasSubstr("veth1                 50"));
    model.page = TopPage::waiting;
    EXPECT_THAT(model.lines()[0], HasSubstr("select             5.0"));
    EXPECT_THAT(model.lines()[1], HasSubstr("epoll[9]"));
    model.page = TopPage::reasons;
    EXPECT_THAT(model.lines()[3], HasSubstr("offloaded  kernel     libvma.conf leaves it to the kernel; "
                                            "libvma.conf:12: use os udp_sender *:53"));
}

TEST_F(StatsTop, OnlyTheSocketsAskedFor) {
    ASSERT_TRUE(shape.sockets.parse("16-17"));
    report();
    EXPECT_EQ(order(), (std::vector{16, 17}));
}

TEST_F(StatsTop, Nobody) {
    model.take({}, shape);
    EXPECT_TRUE(model.lines().empty());
    EXPECT_THAT(model.title(), HasSubstr("0 processes, 0 sockets"));
}

TEST(StatsSparkline, Heights) {
    EXPECT_EQ(sparkline({}, true), std::string(16, ' '));
    EXPECT_EQ(sparkline({0, 0}, true), std::string(16, ' '));
    EXPECT_EQ(sparkline({0, 4, 8}, true), std::string(14, ' ') + "\u2584\u2588");
    EXPECT_EQ(sparkline({0.001, 8}, false), std::string(14, ' ') + ".#");
    std::deque<double> many(40, 1);
    many[0] = 1e9;  // too long ago to count
    EXPECT_EQ(sparkline(many, false), std::string(16, '#'));
}

}  // namespace
