// SPDX-License-Identifier: BSD-2-Clause
// What the statistics say of groups: in the file, and in view 4, JSON and Prometheus of vma_stats.
#include <unistd.h>

#include <fstream>
#include <string>

#include "tests/preloaded/multicast_fixture.h"
#include "tests/support/hosts/stats_file.h"

namespace {

using namespace testing_support;
using vma::stats::GroupBlock;

class MulticastCounters : public Multicast {
  protected:
    // Two sources: "p" is 198.18.1.2, "q" is 198.18.1.102.
    void begin(std::vector<std::string> env = {}) {
        start(std::move(env), {.second_address = true});
        EXPECT_EQ(b->ask("open q 198.18.1.102 6000"), "ok 6000");
        EXPECT_EQ(b->ask("set q multicast_if 198.18.1.102"), "ok");
        file = std::make_unique<StatsFile>(a->process().pid());
    }
    void send_from_q(int count) {
        EXPECT_EQ(b->ask("send q " + kGroup + " 5000 100 " + std::to_string(count) + " 1001"),
                  "sent " + std::to_string(count));
    }
    // In the order of joining.
    std::vector<GroupBlock> groups() {
        EXPECT_TRUE(refresh(*hosts, Host::a, *file));
        return file->groups();
    }
    static std::string numbers(const GroupBlock& g) {
        std::string text = std::to_string(g.frames);
        for (const std::uint64_t n : {g.filtered, g.dropped, g.delivered}) text += " " + std::to_string(n);
        return text;
    }
    std::string vma_stats_says(std::vector<std::string> options) {
        options.insert(options.begin(), {vma_stats(), "-c", "1", "-p", std::to_string(a->process().pid())});
        const Exit end = hosts->run(Host::a, options).wait();
        EXPECT_TRUE(end.ok()) << end.err;
        return end.out;
    }
    std::unique_ptr<StatsFile> file;
};

TEST_F(MulticastCounters, FramesAreFilteredDroppedOrDelivered) {
    begin();
    for (const char* id : {"s", "t", "u"}) open_any(*a, id);
    join(*a, "s");
    EXPECT_EQ(a->ask("listen_to t " + kGroup + " 198.18.1.1 198.18.1.2"), "ok");
    EXPECT_EQ(a->ask("listen_to t " + kGroup + " 198.18.1.1 203.0.113.9"), "ok");
    a->ask("set u rcvbuf 4096");
    join(*a, "u");
    send(300);
    send_from_q(200);
    EXPECT_EQ(drained(*a, "s"), 500);
    EXPECT_EQ(drained(*a, "t"), 300);
    const long of_u = drained(*a, "u");
    EXPECT_GT(of_u, 0);
    EXPECT_LT(of_u, 500);

    auto now = groups();
    ASSERT_EQ(now.size(), 4u);  // two of t, by source
    EXPECT_EQ(numbers(now[0]), "500 0 0 500");
    EXPECT_EQ(numbers(now[1]), "500 200 0 300");
    EXPECT_EQ(numbers(now[2]), "500 200 0 300");
    EXPECT_EQ(now[1].source.bytes[3] + now[2].source.bytes[3], 2 + 9);
    EXPECT_EQ(numbers(now[3]), "500 0 " + std::to_string(500 - of_u) + " " + std::to_string(of_u));
    for (const GroupBlock& g : now) {
        EXPECT_STREQ(g.interface, "veth1");
        EXPECT_EQ(g.path, static_cast<std::uint32_t>(vma::stats::Path::offloaded));
    }

    const std::string text = vma_stats_says({"-v", "4"});
    EXPECT_NE(text.find("          500            0            0          500  libvma\n"), text.npos) << text;
    EXPECT_NE(text.find("          500          200            0          300  libvma\n"), text.npos) << text;
    const std::string json = vma_stats_says({"--json"});
    EXPECT_NE(json.find("\"frames\":500,\"filtered\":200,\"dropped\":0,\"delivered\":300"), json.npos)
        << json;
    const std::string metrics = vma_stats_says({"--prometheus"});
    EXPECT_NE(metrics.find("vma_group_filtered_frames_total{"), metrics.npos);
    EXPECT_NE(metrics.find("group=\"239.1.2.3\",interface=\"veth1\""), metrics.npos);

    EXPECT_EQ(command(*hosts, Host::a, *file, vma::stats::Command::zero).error, 0);
    send(10);
    EXPECT_EQ(drained(*a, "s"), 10);
    now = groups();
    ASSERT_EQ(now.size(), 4u);
    EXPECT_EQ(numbers(now[0]), "10 0 0 10");
}

// Numbers stay when the way changes, and go with the membership.
TEST_F(MulticastCounters, OnlyWhatComesPastTheKernelCounts) {
    begin();
    open_any(*a, "s");
    join(*a, "s");
    expect_past_the_kernel(20);
    Agent other(*hosts, Host::a);
    open_any(other, "o");
    wait_out_the_window(*a);
    send(30);
    EXPECT_EQ(drained(*a, "s"), 30);
    auto now = groups();
    ASSERT_EQ(now.size(), 1u);
    EXPECT_EQ(numbers(now[0]), "20 0 0 20");
    EXPECT_EQ(now[0].path, static_cast<std::uint32_t>(vma::stats::Path::kernel));
    EXPECT_NE(std::string(now[0].detail).find("not the library's"), std::string::npos) << now[0].detail;
    other.ask("close o");
    wait_out_the_window(*a);
    expect_past_the_kernel(5);
    now = groups();
    ASSERT_EQ(now.size(), 1u);
    EXPECT_EQ(numbers(now[0]), "25 0 0 25");
    EXPECT_EQ(a->ask("leave s " + kGroup + " 198.18.1.1"), "ok");
    EXPECT_TRUE(groups().empty());
    join(*a, "s");
    now = groups();
    ASSERT_EQ(now.size(), 1u);
    EXPECT_EQ(numbers(now[0]), "0 0 0 0");
}

// A socket that is left to the kernel: its groups are listed, with the reason, and so are those that it joins
// later.
TEST_F(MulticastCounters, GroupsOfTheKernelsSockets) {
    const std::string file_name = "/tmp/vma_multicast_counters." + std::to_string(getpid());
    std::ofstream(file_name) << "application-id * *\nuse os udp_connect *:*\n";
    begin({"VMA_CONFIG_FILE=" + file_name});
    open_any(*a, "s");
    join(*a, "s");
    expect_past_the_kernel(5);
    EXPECT_EQ(a->ask("connect s 198.18.1.2 6000"), "ok");
    join(*a, "s", kAlias);
    const auto now = groups();
    ASSERT_EQ(now.size(), 2u);
    for (const GroupBlock& g : now) EXPECT_EQ(g.path, static_cast<std::uint32_t>(vma::stats::Path::kernel));
    EXPECT_EQ(numbers(now[0]), "5 0 0 5");
    EXPECT_NE(std::string(now[0].detail).find("udp_connect"), std::string::npos) << now[0].detail;
    EXPECT_STREQ(now[1].detail, "the socket is the kernel's");
    EXPECT_EQ(a->ask("leave s " + kAlias + " 198.18.1.1"), "ok");
    EXPECT_EQ(groups().size(), 1u);
    a->ask("close s");
    EXPECT_TRUE(groups().empty());
    unlink(file_name.c_str());
}

}  // namespace
