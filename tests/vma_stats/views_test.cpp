// SPDX-License-Identifier: BSD-2-Clause
// The views' text for a fixed file, line by line where a script would read it.
#include "tools/vma_stats/views.h"

#include <gmock/gmock.h>

#include "tests/vma_stats/snapshots.h"

namespace {

using namespace vma_stats;
using testing::HasSubstr;
using testing::Not;

class StatsViews : public testing::Test {
  protected:
    StatsViews() { image.header.started_ns = 1'000'000'000; }
    Frame frame() { return sampler.next(snapshot_of(image)); }
    // Two seconds in which the numbers of the manual's example 2 happened.
    Frame two_seconds() {
        sampler.next(snapshot_of(image, 10));
        image.sockets[0].rx_offload.packets += 2 * 15186;
        image.sockets[0].rx_offload.bytes += 2 * 29 * 1024;
        image.sockets[3].tx_os.packets += 2 * 15185;
        image.sockets[3].tx_os.bytes += 2 * 22 * 1024;
        image.muxes[1].calls += 100;
        image.muxes[1].rx_ready_os += 2 * 15185;
        image.muxes[1].rx_ready_offload += 2 * 30372;
        image.muxes[1].poll_hit += 4;
        image.muxes[1].polling_ns += 1'400'000'000;
        image.rings[0].rx_packets += 20;
        image.groups[0].frames += 110;
        image.groups[0].delivered += 110;
        return sampler.next(snapshot_of(image, 12));
    }
    stats_image::Image image = stats_image::sample(4711, 99);
    Sampler sampler;
    Shape shape;
};

TEST_F(StatsViews, Basic) {
    image.sockets[1].state = image.sockets[3].state = 0;
    image.muxes[2].state = 0;
    EXPECT_EQ(
        BasicView(shape, false).report(frame()),
        "fd        ----------------- total offloaded -----------------   ---------- total os ----------\n"
        "                   pkt      Kbyte     eagain    error   poll%          pkt      Kbyte    error\n"
        "14    Rx:    140479898     274374          3        4   100.0            7          8        9\n"
        "      Tx:    140479902     274502          5        6                   10         11       12\n"
        "17    Rx:            0          0          0        0     0.0            0          0        0\n"
        "      Tx:            0          0          0        0                    0          0        0\n"
        "select() Rx Ready:15185/30372 [os/offload]\n"
        "Timeouts:0 Errors:0 Poll:100.00% Polling CPU:0%\n"
        "----------------------------------------------------------------------------------------------\n");
}

TEST_F(StatsViews, BasicDeltasAreOfOneSecond) {
    shape.deltas = true;
    ASSERT_TRUE(shape.sockets.parse("14,16"));
    EXPECT_EQ(
        BasicView(shape, false).report(two_seconds()),
        "fd        -------------------- offloaded --------------------   ------------- os -------------\n"
        "                 pkt/s    Kbyte/s   eagain/s  error/s   poll%        pkt/s    Kbyte/s  error/s\n"
        "14    Rx:        15186         29          0        0     0.0            0          0        0\n"
        "      Tx:            0          0          0        0                    0          0        0\n"
        "16    Rx:            0          0          0        0     0.0            0          0        0\n"
        "      Tx:            0          0          0        0                15185         22        0\n"
        "select() Rx Ready:15185/30372 [os/offload]\n"
        "Timeouts:0 Errors:0 Poll:100.00% Polling CPU:70%\n"
        "----------------------------------------------------------------------------------------------\n");
}

TEST_F(StatsViews, MediumAddsTheQueue) {
    const std::string text = BasicView(shape, true).report(frame());
    EXPECT_THAT(text, HasSubstr("---------- queue pkt -----------   ---------- total os"));
    EXPECT_THAT(text, HasSubstr("   poll%        cur        max       drop          pkt"));
    EXPECT_THAT(text,
                HasSubstr("   100.0          1         16         13            7          8        9\n"));
}

TEST_F(StatsViews, HeadingAgainEvery24Lines) {
    BasicView view(shape, false);
    image.sockets[1].state = image.sockets[3].state = image.sockets[4].state = 0;
    image.muxes[1].state = image.muxes[2].state = 0;
    std::string all;
    for (int i = 0; i < 20; i++) all += view.report(frame());  // three lines each
    std::size_t headings = 0, lines = 0;
    std::istringstream in(all);
    for (std::string line; std::getline(in, line); lines++)
        if (line.starts_with("fd ")) {
            EXPECT_EQ(lines, headings * 26);
            headings++;
        }
    EXPECT_EQ(headings, 3u);
}

TEST_F(StatsViews, ProcessorShareIsUnknownAfterZero) {
    image.header.zeroed = 1;
    EXPECT_THAT(mux_lines(frame(), false)[1], HasSubstr("Polling CPU:-"));
}

TEST_F(StatsViews, FullHasTheManualsLines) {
    image.sockets[0].tx_offload = image.sockets[0].tx_os = image.sockets[0].rx_os = {};
    const std::string text = full_view(frame(), shape);
    EXPECT_THAT(text, HasSubstr("Fd=[14]\n- Blocked, MC Loop Enabled\n- UDP\n- Bound IF = [0.0.0.0:11111]\n"
                                "- Member of = [224.4.1.3]\n"));
    EXPECT_THAT(text, HasSubstr("Rx thread id = 4712\n"
                                "Rx Offload: 274374 KB / 140479898 / 3 / 4 [bytes/packets/eagains/errors]\n"
                                "Rx byte: cur 1470 / max 23520 / dropped 19110 / limit 16777216\n"
                                "Rx pkt : cur 1 / max 16 / dropped 13\n"
                                "Rx poll: 10 / 276077 (100.00%) [miss/hit]\n"));
    EXPECT_THAT(text, HasSubstr("CQ=[0]\n"
                                "Packets dropped:          0\n"
                                "Packets queue len:        0\n"
                                "Drained max:              511\n"
                                "Buffer pool size:         500\n"));
    EXPECT_THAT(text, HasSubstr("RING=[0]\n- veth1 by xdp (generic, copy)\n- generic XDP, 1 of 4 queues\n"
                                "Packets count:            786133\n"
                                "Packets bytes:            1192953545\n"));
    EXPECT_THAT(text, HasSubstr("Interrupt requests:       786137\nInterrupt received:       78613\n"
                                "Moderation frame count:   10\nModeration usec period:   181\n"));
    EXPECT_THAT(text, HasSubstr("Dropped, bad_udp_checksum: 6\n"));
    EXPECT_THAT(text, HasSubstr("BUFFER_POOL(Rx)=[0]\n"));
    EXPECT_THAT(text, HasSubstr("- Sends: kernel (libvma.conf leaves it to the kernel)\n"
                                "- Rule = [libvma.conf:12: use os udp_sender *:53]\n"));
    EXPECT_THAT(text, HasSubstr("Listen: accepted 41 / waiting 2"));
    EXPECT_THAT(text, HasSubstr("Retransmissions: 33\n"));
}

TEST_F(StatsViews, FullDeltas) {
    shape.deltas = true;
    const std::string text = full_view(two_seconds(), shape);
    EXPECT_THAT(text, HasSubstr("Rx Offload: 29 KB / 15186 / 0 / 0 [bytes/packets/eagains/errors]/s\n"
                                "Rx byte: cur 1470 / max 23520 / dropped/s 0 / limit 16777216\n"));
    EXPECT_THAT(text, HasSubstr("Packets count:            10 /s\n"));
    EXPECT_THAT(text, HasSubstr("Drained max:              511\n"));
}

TEST_F(StatsViews, FullShowsOnlyTheSocketsAskedFor) {
    ASSERT_TRUE(shape.sockets.parse("15-16"));
    const std::string text = full_view(frame(), shape);
    EXPECT_THAT(text, Not(HasSubstr("Fd=[14]")));
    EXPECT_THAT(text, HasSubstr("Fd=[15]"));
}

TEST_F(StatsViews, Groups) {
    const std::string text = groups_view(frame(), shape);
    EXPECT_THAT(text, HasSubstr("VMA Group Membership Information\n"
                                "Group                                fd number    interface      "
                                "       frames     filtered      dropped    delivered  served by\n---"));
    EXPECT_THAT(text, HasSubstr("---\n"
                                "[224.4.1.3]                          14           veth1          "
                                "         1000           30            4          966  libvma\n"
                                "[224.4.1.2] from 198.18.1.2          17                          "
                                "            0            0            0            0  kernel "
                                "(VMA_MC_OFFLOAD is never)\n"));
}

TEST_F(StatsViews, GroupsDeltas) {
    shape.deltas = true;
    const std::string text = groups_view(two_seconds(), shape);
    EXPECT_THAT(text, HasSubstr("     frames/s   filtered/s    dropped/s  delivered/s  served by\n"));
    EXPECT_THAT(text, HasSubstr("           55            0            0           55  libvma\n"));
}

TEST_F(StatsViews, NetstatOfAllProcesses) {
    const Frame one = frame();
    image.header.pid = 4712;
    image.sockets[0].local = stats_image::address("2001:2::1", 53);
    image.sockets[0].family = 10;
    const Frame other = Sampler().next(snapshot_of(image));
    const std::string text = netstat_view({&one.now, &other.now}, shape);
    EXPECT_THAT(
        text,
        HasSubstr(
            "Proto Offloaded   Recv-Q   Send-Q Local Address           Foreign Address         State        "
            "Inode      PID/Program name\n"));
    EXPECT_THAT(
        text,
        HasSubstr(
            "udp   Yes           1470        0 0.0.0.0:11111           *:*                                  "
            "5000       4711/sample\n"));
    EXPECT_THAT(
        text,
        HasSubstr(
            "tcp   Yes              0       77 198.18.1.1:80           198.18.1.2:40000        ESTABLISHED  "
            "5003       4711/sample\n"));
    EXPECT_THAT(text, HasSubstr("udp   Rx               0        0 198.18.1.1:5000"));
    EXPECT_THAT(text, HasSubstr("udp6  Yes           1470        0 2001:2::1:53 "));
    EXPECT_THAT(text, HasSubstr("4712/sample\n"));
}

TEST_F(StatsViews, Parameters) {
    EXPECT_EQ(parameters_view(frame().now),
              "Name              Value   Origin\n"
              "VMA_RX_POLL       100000  default\n"
              "VMA_STATS_FD_NUM  8       environment\n");
}

TEST_F(StatsViews, Explain) {
    image.header.sockets_unseen = 3;
    image.sockets[1].rx_path = image.sockets[1].tx_path = static_cast<std::uint8_t>(layout::Path::kernel);
    image.sockets[1].rx_reason = image.sockets[1].tx_reason =
        static_cast<std::uint16_t>(layout::Reason::no_device);
    stats_image::set_text(image.sockets[1].detail, "veth2: a foreign XDP program is attached");
    image.sockets[1].ring = -1;
    const std::string text = explain_view(frame().now, shape);
    EXPECT_THAT(text, HasSubstr("Process 4711 (sample), libvma 0.1.0:\n"));
    EXPECT_THAT(
        text,
        HasSubstr("Socket 14 is a UDP socket, bound to 0.0.0.0:11111.\n"
                  "  It sends and receives through libvma.\n"
                  "  No rule of libvma.conf matched.\n"
                  "  Its ring is number 0, on veth1, served by xdp (generic, copy).\n"
                  "  So far libvma carried 140479898 of 140479905 received and 140479902 of 140479912 sent "
                  "packets.\n"
                  "  It is a member of 224.4.1.3, which comes through libvma.\n"));
    EXPECT_THAT(text, HasSubstr("  It is a member of 224.4.1.2, which comes through the kernel: "
                                "VMA_MC_OFFLOAD is never.\n"));
    EXPECT_THAT(
        text,
        HasSubstr(
            "Socket 15 is a TCP socket, listening on 198.18.1.1:80.\n"
            "  It sends and receives through the kernel: the interface cannot be offloaded (veth2: a foreign "
            "XDP program is attached).\n"
            "  No rule of libvma.conf matched.\n"
            "  So far"));
    EXPECT_THAT(text, HasSubstr("carried 22528 of 22528 received and 24576 of 24576 sent bytes."));
    EXPECT_THAT(text, HasSubstr("  It receives through libvma.\n"
                                "  It sends through the kernel: libvma.conf leaves it to the kernel.\n"
                                "  The rule that decided is: libvma.conf:12: use os udp_sender *:53.\n"));
    EXPECT_THAT(
        text,
        HasSubstr("4 sockets, 2 not or not wholly offloaded. 3 more have no statistics of their own: raise "
                  "VMA_STATS_FD_NUM.\n"));
}

// Whatever the file says, what reaches the terminal is plain text.
TEST_F(StatsViews, HostileValuesGiveWordsAndPlainText) {
    for (layout::SocketBlock& s : image.sockets) {
        const std::uint64_t id = s.id;
        memset(&s, 0xff, sizeof s);
        s.sequence = 2;
        s.id = id;
        stats_image::set_text(s.rule, "\033]0;title\a\n");
    }
    memset(image.header.program, 0x9b, sizeof image.header.program);
    for (layout::MuxBlock& m : image.muxes) memset(&m, 0xff, sizeof m);
    for (layout::GroupBlock& g : image.groups) memset(&g, 0xff, sizeof g);
    for (layout::RingBlock& r : image.rings) memset(&r, 0xff, sizeof r);
    const Frame first = frame();
    const Frame second = two_seconds();
    std::string all = BasicView(shape, true).report(first) + full_view(first, shape) +
                      groups_view(first, shape) + netstat_view({&first.now}, shape) +
                      explain_view(first.now, shape);
    shape.deltas = true;
    all += BasicView(shape, true).report(second) + full_view(second, shape);
    for (const char c : all) ASSERT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << static_cast<int>(c);
    EXPECT_THAT(all, HasSubstr("\\x1b]0;title\\x07\\x0a"));
}

TEST(StatsFdFilter, ListsAndRanges) {
    FdFilter filter;
    EXPECT_TRUE(filter.contains(1234));
    ASSERT_TRUE(filter.parse("4-16,19"));
    for (const int fd : {4, 10, 16, 19}) EXPECT_TRUE(filter.contains(fd)) << fd;
    for (const int fd : {3, 17, 18, 20, -1}) EXPECT_FALSE(filter.contains(fd)) << fd;
    for (const char* bad :
         {"", "a", "4-", "-4", "4-3", "4,", ",4", "4 5", "4--5", "99999999999", "4-16;9", "+4", "1-2-3"}) {
        FdFilter other;
        EXPECT_FALSE(other.parse(bad)) << bad;
    }
}

}  // namespace
