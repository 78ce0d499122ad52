// SPDX-License-Identifier: BSD-2-Clause
// JSON and Prometheus' format. The latter also goes through promtool, where that is installed, and through
// our own reading of the grammar, so that it is checked without it, too.
#include "tools/vma_stats/formats.h"

#include <gmock/gmock.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "tests/vma_stats/snapshots.h"

namespace {

using namespace vma_stats;
using nlohmann::json;
using testing::HasSubstr;

class StatsFormats : public testing::Test {
  protected:
    Frame frame() { return Sampler().next(snapshot_of(image)); }
    std::string prometheus() {
        const Frame f = frame();
        return prometheus_text({&f.now}, shape);
    }
    stats_image::Image image = stats_image::sample(4711, 99);
    Shape shape;
};

TEST_F(StatsFormats, JsonHasAllBlocks) {
    const std::string line = json_line(frame(), shape);
    EXPECT_EQ(line.find('\n'), line.size() - 1);
    const json j = json::parse(line);
    EXPECT_EQ(j["schema"], "vma_stats/1");
    EXPECT_EQ(j["pid"], 4711);
    EXPECT_EQ(j["mode"], "total");
    EXPECT_EQ(j["ended"], false);
    ASSERT_EQ(j["sockets"].size(), 4u);
    const json& udp = j["sockets"][0];
    EXPECT_EQ(udp["fd"], 14);
    EXPECT_EQ(udp["rx_offload"]["packets"], 140479898u);
    EXPECT_EQ(udp["tx_os"]["errors"], 12);
    EXPECT_EQ(udp["local"]["port"], 11111);
    EXPECT_EQ(udp["peer"], nullptr);
    EXPECT_EQ(j["sockets"][3]["tx"]["path"], "kernel");
    EXPECT_EQ(j["sockets"][3]["tx"]["reason"], "libvma.conf leaves it to the kernel");
    EXPECT_EQ(j["sockets"][3]["rule"], "libvma.conf:12: use os udp_sender *:53");
    EXPECT_EQ(j["rings"][0]["cq"]["posted"], 500);
    EXPECT_EQ(j["rings"][0]["drops"]["bad_udp_checksum"], 6);
    EXPECT_EQ(j["pools"][1]["direction"], "send");
    EXPECT_EQ(j["muxes"][0]["kind"], "select");
    EXPECT_EQ(j["muxes"][1]["fd"], 9);
    EXPECT_EQ(j["groups"][1]["source"], "198.18.1.2");
    EXPECT_EQ(j["groups"][0]["interface"], "veth1");
    EXPECT_EQ(j["groups"][0]["frames"], 1000);
    EXPECT_EQ(j["groups"][0]["delivered"], 966);
    EXPECT_EQ(j["parameters"][1]["origin"], "environment");
    EXPECT_EQ(j["totals"]["udp"]["rx_offload"]["packets"], 71);
    EXPECT_EQ(j["totals"]["tcp"]["tcp_retransmits"], 75);
}

TEST_F(StatsFormats, JsonRates) {
    Sampler sampler;
    sampler.next(snapshot_of(image, 10));
    image.sockets[0].rx_offload.packets += 1;
    shape.deltas = true;
    const json j = json::parse(json_line(sampler.next(snapshot_of(image, 14)), shape));
    EXPECT_EQ(j["mode"], "per_second");
    EXPECT_EQ(j["interval"], 4.0);
    EXPECT_EQ(j["sockets"][0]["rx_offload"]["packets"], 0.25);
    EXPECT_EQ(j["sockets"][0]["rx_queue_limit"], 16777216);
}

TEST_F(StatsFormats, JsonKeepsBigNumbersAndSurvivesAnyText) {
    image.sockets[0].rx_offload.bytes = UINT64_MAX;
    memset(image.header.program, 0xff, sizeof image.header.program);
    memset(image.sockets[0].rule, '"', sizeof image.sockets[0].rule);
    const json j = json::parse(json_line(frame(), shape));
    EXPECT_EQ(j["sockets"][0]["rx_offload"]["bytes"], UINT64_MAX);
    EXPECT_EQ(j["sockets"][0]["rule"], std::string(96, '"'));
}

TEST_F(StatsFormats, JsonOfTheSocketsAskedFor) {
    ASSERT_TRUE(shape.sockets.parse("17"));
    EXPECT_EQ(json::parse(json_line(frame(), shape))["sockets"].size(), 1u);
}

// The exposition format: every line is a comment of the two kinds or a sample; a metric is declared once,
// before its samples, which stand together; no series comes twice.
void expect_grammar(const std::string& text) {
    static const std::regex help("# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) .+");
    static const std::regex type("# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge)");
    static const std::regex sample(
        R"re(([a-zA-Z_:][a-zA-Z0-9_:]*))re"
        R"re((\{(?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"(?:,|(?=\})))*\})? (-?[0-9.e+-]+))re");
    std::istringstream in(text);
    std::string line, current;
    std::set<std::string> declared, series;
    ASSERT_TRUE(text.empty() || text.back() == '\n');
    while (std::getline(in, line)) {
        std::smatch match;
        if (std::regex_match(line, match, help)) {
            EXPECT_TRUE(declared.insert(match[1]).second) << line;
            current = match[1];
        } else if (std::regex_match(line, match, type)) {
            EXPECT_EQ(current, match[1]) << line;
            if (match[2] == "counter") {
                EXPECT_TRUE(current.ends_with("_total")) << line;
            }
        } else {
            ASSERT_TRUE(std::regex_match(line, match, sample)) << line;
            EXPECT_EQ(current, match[1]) << line;
            EXPECT_TRUE(series.insert(std::string(match[1]) + std::string(match[2])).second) << line;
        }
    }
}

// True when promtool is not there.
bool promtool_accepts(const std::string& text) {
    if (system("command -v promtool >/dev/null") != 0) return true;
    char path[] = "/tmp/vma_stats_metrics.XXXXXX";
    const int fd = mkstemp(path);
    std::ofstream(path) << text;
    const int status = system((std::string("promtool check metrics <") + path).c_str());
    close(fd);
    unlink(path);
    return status == 0;
}

TEST_F(StatsFormats, PrometheusSamples) {
    const std::string text = prometheus();
    EXPECT_THAT(text, HasSubstr("# TYPE vma_socket_receive_packets_total counter\n"));
    EXPECT_THAT(
        text,
        HasSubstr("vma_socket_receive_packets_total{pid=\"4711\",program=\"sample\",socket=\"100\",fd=\"14\","
                  "protocol=\"UDP\",path=\"offload\"} 140479898\n"));
    EXPECT_THAT(text, HasSubstr("path=\"os\"} 7\n"));
    EXPECT_THAT(
        text,
        HasSubstr(
            "vma_ring_dropped_packets_total{pid=\"4711\",program=\"sample\",ring=\"0\",interface=\"veth1\","
            "device=\"xdp (generic, copy)\",reason=\"bad_udp_checksum\"} 6\n"));
    EXPECT_THAT(
        text, HasSubstr("vma_socket_tcp_rtt_seconds{pid=\"4711\",program=\"sample\",socket=\"103\",fd=\"16\","
                        "protocol=\"TCP\"} 5.7e-05\n"));
    EXPECT_THAT(text, HasSubstr("vma_group_filtered_frames_total{pid=\"4711\",program=\"sample\","
                                "group=\"224.4.1.3\",interface=\"veth1\",socket=\"100\",fd=\"14\"} 30\n"));
    EXPECT_THAT(text, HasSubstr("vma_processes 1\n"));
    expect_grammar(text);
    EXPECT_TRUE(promtool_accepts(text));
}

TEST_F(StatsFormats, PrometheusOfNobodyAndOfTwo) {
    expect_grammar(prometheus_text({}, shape));
    EXPECT_TRUE(promtool_accepts(prometheus_text({}, shape)));
    const Frame one = frame();
    image.header.pid = 4712;
    const Frame two = frame();
    const std::string text = prometheus_text({&one.now, &two.now}, shape);
    EXPECT_THAT(text, HasSubstr("vma_processes 2\n"));
    expect_grammar(text);
    EXPECT_TRUE(promtool_accepts(text));
}

// Labels with quotes and backslashes, and blocks that claim to be the same: still a valid scrape.
TEST_F(StatsFormats, PrometheusOfAHostileFile) {
    stats_image::set_text(image.header.program, "a\"b\\c\nd,}=");
    for (auto& s : image.sockets) s.id = 1, s.fd = 3, s.state = 1, s.sequence = 0, s.type = 2;
    for (auto& m : image.muxes) memset(&m, 0xff, sizeof m);
    for (auto& r : image.rings) memset(&r, 0xff, sizeof r);
    const std::string text = prometheus();
    EXPECT_THAT(text, HasSubstr("program=\"a\\\"b\\\\\\\\c\\\\x0ad,}=\""));
    expect_grammar(text);
    EXPECT_TRUE(promtool_accepts(text));
}

}  // namespace
