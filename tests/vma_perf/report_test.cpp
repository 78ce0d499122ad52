// SPDX-License-Identifier: BSD-2-Clause
// What is printed and written: JSON, CSV, summary, running table, pictures, comparisons.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "tools/vma_perf/bootstrap.h"
#include "tools/vma_perf/compare.h"
#include "tools/vma_perf/files.h"
#include "tools/vma_perf/plot.h"
#include "tools/vma_perf/result.h"
#include "tools/vma_perf/stages.h"

namespace vma_perf {
namespace {

using testing::HasSubstr;
using testing::Not;

Result pingpong() {
    Result r;
    r.label = "a, \"b\"";
    r.client_stack = "libvma";
    r.server_stack = "kernel";
    r.seconds = 2;
    LatencyHistogram h;
    for (int i = 1; i <= 1000; ++i) h.add(i * 2000);  // half a round trip: 1 to 1000 us
    h.add_to(r.latency);
    r.counters = {.sent = 1003,
                  .received = 1000,
                  .bytes_sent = 64192,
                  .bytes_received = 64000,
                  .lost = 3,
                  .duplicates = 1};
    r.server = {{"received", 1003u}, {"reordered", 2u}, {"corrupt", 1u}};
    r.blocks = {
        {.p50 = 2000, .p90 = 4000, .p99 = 6000, .p999 = 8000, .average = 2500, .received_per_s = 500}};
    return r;
}

Result one_way() {
    Result r;
    r.label = "one way";
    r.client_stack = r.server_stack = "kernel";
    r.params.throughput = true;
    r.seconds = 2;
    r.counters = {.sent = 1000, .bytes_sent = 100000};
    r.server = {{"received", 900u}, {"bytes", 90000u}, {"received_per_s", 450.5}, {"duplicates", 4u}};
    return r;
}

TEST(PerfResult, JsonOfPingPong) {
    const nlohmann::json j = to_json(pingpong());
    EXPECT_EQ(j["test"], "pingpong");
    EXPECT_EQ(j["latency_of"], "half");
    EXPECT_NEAR(j["latency_us"]["p50"].get<double>(), 500, 1);
    EXPECT_NEAR(j["latency_us"]["p99"].get<double>(), 990, 1);
    EXPECT_NEAR(j["latency_us"]["p99.999"].get<double>(), 1000, 1);
    EXPECT_EQ(j["latency_us"]["min"], 1);
    EXPECT_EQ(j["received_per_s"], 500);
    EXPECT_EQ(j["lost"], 3);
    EXPECT_EQ(j["duplicates"], 1);
    EXPECT_EQ(j["reordered"], 2);
    EXPECT_EQ(j["corrupt"], 1);
    EXPECT_NEAR(j["megabytes_per_s"].get<double>(), 0.032, 1e-9);
    EXPECT_EQ(j["client"], "libvma");
    EXPECT_EQ(j["blocks"][0]["p50"], 1);
    const auto curve = j["curve"].get<std::vector<std::pair<double, double>>>();
    EXPECT_EQ(curve.front().first, 0);
    EXPECT_EQ(curve.back().first, 100);
    EXPECT_TRUE(std::is_sorted(curve.begin(), curve.end()));
    Result whole = pingpong();
    whole.whole_round_trip = true;
    EXPECT_NEAR(to_json(whole)["latency_us"]["p50"].get<double>(), 1000, 2);
    EXPECT_EQ(to_json(whole)["latency_of"], "round trip");
}

TEST(PerfResult, JsonOfThroughput) {
    const nlohmann::json j = to_json(one_way());
    EXPECT_EQ(j["test"], "throughput");
    EXPECT_EQ(j["received_per_s"], 450.5);
    EXPECT_EQ(j["sent_per_s"], 500);
    EXPECT_EQ(j["lost"], 100);
    EXPECT_EQ(j["duplicates"], 4);
    EXPECT_FALSE(j.contains("latency_us"));
    EXPECT_FALSE(j.contains("curve"));
}

TEST(PerfResult, NothingArrived) {
    Result r = one_way();
    r.server = nlohmann::json::object();
    EXPECT_EQ(to_json(r)["lost"], 1000);
    EXPECT_EQ(r.received_per_s(), 0);
    Result p = pingpong();
    p.latency = {};
    p.counters = {.sent = 5, .lost = 5};
    EXPECT_THAT(summary(p), HasSubstr("no answers, so no latencies"));
    EXPECT_EQ(to_json(p)["latency_us"]["p50"], 0);
}

TEST(PerfResult, Csv) {
    const std::string head = csv_header(), line = csv_line(pingpong()), other = csv_line(one_way());
    EXPECT_THAT(line,
                HasSubstr("\"a, \"\"b\"\"\",pingpong,udp,64,libvma,kernel,2.000,1003,1000,3,1,2,1,500.0,"));
    EXPECT_EQ(std::count(head.begin(), head.end(), ','), std::count(other.begin(), other.end(), ','));
    EXPECT_EQ(std::count(head.begin(), head.end(), ','),
              std::count(line.begin(), line.end(), ',') - 1);  // one in the label
    EXPECT_TRUE(line.ends_with(",1000.000\n"));
}

TEST(PerfResult, Summaries) {
    const std::string text = summary(pingpong());
    EXPECT_THAT(text,
                HasSubstr("udp ping-pong, 64 bytes, 1 connection, client on libvma, server on kernel\n"));
    EXPECT_THAT(text, HasSubstr("sent 1003, received 1000 in 2.000 s; lost 3, duplicates 1, out of order 2"));
    EXPECT_THAT(text, HasSubstr("half of the round trip"));
    EXPECT_THAT(text, HasSubstr("p99.999"));
    EXPECT_THAT(summary(one_way()), HasSubstr("received by the server: 450 messages/s"));
    EXPECT_THAT(sizes_table({pingpong(), pingpong()}), HasSubstr("p99.9"));
    EXPECT_THAT(sizes_table({one_way()}), Not(HasSubstr("p99.9")));
}

TEST(PerfResult, Groups) {
    Result r = one_way();
    r.params.sockets.groups = {"239.1.1.1", "239.1.1.2"};
    r.params.sockets.group_sockets = 2;
    r.server["received_per_s"] = 1000.0;
    r.groups = {{"239.1.1.1", 500, {{500, 0, 0}, {400, 3, 2}}},
                {"239.1.1.2", 500, {{500, 0, 0}, {500, 0, 0}}}};
    const nlohmann::json j = to_json(r);
    EXPECT_EQ(j["lost"], 2 * 1000 - 900);
    EXPECT_EQ(j["groups"][0]["group"], "239.1.1.1");
    EXPECT_EQ(j["groups"][0]["lost"], 100);
    EXPECT_EQ(j["groups"][0]["sockets"][1]["lost"], 100);
    EXPECT_EQ(j["groups"][0]["sockets"][1]["duplicates"], 3);
    EXPECT_EQ(j["groups"][0]["sockets"][1]["reordered"], 2);
    EXPECT_NEAR(j["groups"][1]["received_per_s"].get<double>(), 1000.0 * 1000 / 1900, 1e-9);
    EXPECT_EQ(j["groups"][1]["lost"], 0);
    const std::string text = summary(r);
    EXPECT_THAT(text,
                HasSubstr("  239.1.1.1               500        900      100           3             2   "
                          "2 sockets, 211-263/s each\n"));
    EXPECT_THAT(text, HasSubstr("\n  239.1.1.2 "));
    EXPECT_FALSE(to_json(one_way()).contains("groups"));
    // Of many groups those without a fault share a line.
    for (int i = 3; i <= 40; ++i)
        r.groups.push_back({"239.1.1." + std::to_string(i), 5, {{5, 0, 0}, {5, 0, 0}}});
    EXPECT_THAT(summary(r), HasSubstr("  39 groups: everything came, once and in order\n"));
    EXPECT_THAT(summary(r), HasSubstr("\n  239.1.1.1 "));
    EXPECT_THAT(summary(r), Not(HasSubstr("\n  239.1.1.2 ")));
}

TEST(PerfResult, GroupsOfAnotherServer) {
    Params p;
    p.sockets.groups = {"239.1.1.1"};
    const auto one = nlohmann::json::array({{{"received", 1}, {"duplicates", 0}, {"reordered", 0}}});
    EXPECT_EQ(group_results(p, {1}, nlohmann::json::array({one}))[0].lost(), 0u);
    EXPECT_TRUE(group_results(Params{}, {1}, nlohmann::json::array()).empty());
    EXPECT_THROW(group_results(p, {1}, nlohmann::json::array()), Failure);
    EXPECT_THROW(group_results(p, {1}, nlohmann::json::array({nlohmann::json::array()})), Failure);
}

TEST(PerfStages, Rows) {
    const StageTable table(50, false, false);
    EXPECT_THAT(table.head(), HasSubstr("50%"));
    EXPECT_THAT(table.head(), HasSubstr("message rate (1/s)"));
    LatencyHistogram h;
    h.add(4000);
    Stage stage{2.0, 1.0, 100, 6400, 300, 19200, {}, {}};
    h.add_to(stage.latency);
    h.add(8000);
    h.add_to(stage.all_latency);
    const std::string line = table.line(stage);
    EXPECT_THAT(line, HasSubstr("[2.0 s]"));
    EXPECT_THAT(line, HasSubstr(" 300 "));
    EXPECT_THAT(line, HasSubstr(" 2.000       2.000       3.000 "));  // percentile, average, overall
    EXPECT_THAT(line, HasSubstr(" 100          150\n"));              // rates: of the stage, of all
    EXPECT_THAT(table.last_line(pingpong()), HasSubstr("Final:"));
    EXPECT_THAT(StageTable(50, false, true).line(stage), HasSubstr(" - "));
}

TEST(PerfBootstrap, RatioAndInterval) {
    std::vector<double> a, b;
    for (int i = 0; i < 60; ++i) {
        a.push_back(10 + i % 5 * 0.1);
        b.push_back(5 + i % 7 * 0.1);
    }
    const Interval i = ratio_of_medians(a, b, {});
    EXPECT_NEAR(i.ratio, 5.3 / 10.2, 1e-9);
    EXPECT_LE(i.low, i.ratio);
    EXPECT_GE(i.high, i.ratio);
    EXPECT_LT(i.high - i.low, 0.1);
    const Interval again = ratio_of_medians(a, b, {});
    EXPECT_EQ(again.low, i.low);  // the same seed
    const Interval narrow = ratio_of_medians(a, b, {.confidence = 50});
    EXPECT_LE(narrow.high - narrow.low, i.high - i.low);
    EXPECT_EQ(ratio_of_medians(std::vector<double>{2}, std::vector<double>{6}, {}).low, 3);  // too few to say
    EXPECT_EQ(median(std::vector<double>{4, 1, 3, 2}), 2.5);
    EXPECT_EQ(median({}), 0);
    const Interval rounds = median_of_ratios(std::vector<double>{2, 3, 4, 5, 6}, {});
    EXPECT_EQ(rounds.ratio, 4);
    EXPECT_GE(rounds.low, 2);
    EXPECT_LE(rounds.high, 6);
}

TEST(PerfPlot, OnePictureOfSeveralCurves) {
    nlohmann::json other = to_json(pingpong());
    other["label"] = "<kernel & \x01 more>";
    const std::string svg = draw({curve_of(to_json(pingpong()), "x"), curve_of(other, "y")});
    EXPECT_TRUE(svg.starts_with("<svg "));
    EXPECT_TRUE(svg.ends_with("</svg>\n"));
    EXPECT_THAT(svg, HasSubstr("&lt;kernel &amp;  more&gt;"));
    EXPECT_THAT(svg, HasSubstr("a, &quot;b&quot;"));
    EXPECT_THAT(svg, HasSubstr(">99 %<"));
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
    EXPECT_THAT(svg, Not(HasSubstr("inf")));
    std::size_t lines = 0;
    for (std::size_t at = 0; (at = svg.find("<polyline", at)) != svg.npos; ++at) ++lines;
    EXPECT_EQ(lines, 2u);
    Curve whole = curve_of(other, "y");
    whole.whole_round_trip = true;
    EXPECT_THROW(draw({curve_of(other, "y"), whole}), Failure);
    // One sample, one value.
    EXPECT_THAT(draw({{"flat", false, {{0, 5}, {100, 5}}}}), Not(HasSubstr("nan")));
    for (const char* bad : {"{}", "[]", "3", R"({"label":"x","latency_of":"half","curve":[]})",
                            R"({"label":"x","latency_of":"half","curve":[[0,-1]]})",
                            R"({"label":"x","latency_of":"half","curve":[["a",1]]})"})
        EXPECT_THROW(curve_of(nlohmann::json::parse(bad), "x"), Failure) << bad;
}

class PerfCompare : public testing::Test {
  protected:
    PerfCompare() { std::filesystem::create_directory(directory_); }
    ~PerfCompare() override { std::filesystem::remove_all(directory_); }
    std::string write(const std::string& name, const std::string& text) const {
        OutputFile file(directory_ + "/" + name);
        file.write(text);
        file.close();
        return directory_ + "/" + name;
    }
    const std::string directory_ = testing::TempDir() + "vma_perf_compare_" + std::to_string(getpid());
};

TEST_F(PerfCompare, RatiosOfFiles) {
    nlohmann::json slow = to_json(pingpong());
    slow["label"] = "slow";
    for (auto& [key, value] : slow["latency_us"].items()) value = value.get<double>() * 2;
    for (int i = 0; i < 10; ++i) {
        slow["blocks"].push_back({{"p50", 2 + i % 2 * 0.1}, {"received_per_s", 300}});
    }
    nlohmann::json fast = to_json(pingpong());
    for (int i = 0; i < 10; ++i)
        fast["blocks"].push_back({{"p50", 1 + i % 3 * 0.1}, {"received_per_s", 600}});
    CompareOptions o{.files = {write("slow.json", slow.dump()), write("fast.json", fast.dump())},
                     .plot = directory_ + "/both.svg",
                     .json = directory_ + "/ratios.json"};
    testing::internal::CaptureStdout();
    EXPECT_EQ(run_compare(o), kOk);
    const std::string out = testing::internal::GetCapturedStdout();
    EXPECT_THAT(out, HasSubstr("A: slow"));
    EXPECT_THAT(out, HasSubstr("95 % confidence"));
    const nlohmann::json ratios = read_json(*o.json)[0]["ratios"];
    EXPECT_LT(ratios["p50"]["high"].get<double>(), 1);
    EXPECT_GE(ratios["p50"]["high"], ratios["p50"]["ratio"]);
    EXPECT_EQ(ratios["p99.99"]["ratio"], 0.5);
    EXPECT_EQ(ratios["received_per_s"]["ratio"], 2);
    EXPECT_TRUE(std::filesystem::exists(o.plot));
    // On standard output it is the JSON alone.
    o.json = "-";
    testing::internal::CaptureStdout();
    EXPECT_EQ(run_compare(o), kOk);
    EXPECT_EQ(nlohmann::json::parse(testing::internal::GetCapturedStdout())[0]["ratios"], ratios);
    o.seed = 99;
    o.confidence = 60;
    testing::internal::CaptureStdout();
    EXPECT_EQ(run_compare(o), kOk);
    const auto narrow = nlohmann::json::parse(testing::internal::GetCapturedStdout())[0]["ratios"]["p50"];
    EXPECT_EQ(narrow["ratio"], ratios["p50"]["ratio"]);
    EXPECT_GE(narrow["low"], ratios["p50"]["low"]);
}

TEST_F(PerfCompare, WhatCannotBeCompared) {
    const std::string ping = write("ping.json", to_json(pingpong()).dump()),
                      way = write("way.json", to_json(one_way()).dump());
    const auto fails = [&](std::vector<std::string> files, Status status, const std::string& text) {
        try {
            run_compare({.files = std::move(files)});
            ADD_FAILURE() << text;
        } catch (const Failure& failure) {
            EXPECT_EQ(failure.status(), status) << failure.what();
            EXPECT_THAT(failure.what(), HasSubstr(text));
        }
    };
    fails({ping, way}, kUsage, "cannot be compared: test is pingpong and throughput");
    fails({ping, directory_ + "/none"}, kFailed, "none: No such file");
    fails({ping, write("bad", "{")}, kFailed, "bad: not a JSON file");
    fails({ping, write("alien", R"({"tool":"iperf"})")}, kFailed, "alien: no result of vma_perf");
    fails({ping, write("list", R"([1,2])")}, kFailed, "list: no result of vma_perf");
    fails(
        {ping, write("two", nlohmann::json{{"results", {to_json(pingpong()), to_json(pingpong())}}}.dump())},
        kUsage, "has 2");
}

TEST(PerfFiles, ErrorsNameTheFile) {
    try {
        OutputFile("/no/such/place");
        ADD_FAILURE();
    } catch (const Failure& failure) {
        EXPECT_THAT(failure.what(), HasSubstr("/no/such/place: No such file"));
    }
    OutputFile full("/dev/full");
    EXPECT_THROW(
        {
            full.write("x");
            full.close();
        },
        Failure);
}

}  // namespace
}  // namespace vma_perf
