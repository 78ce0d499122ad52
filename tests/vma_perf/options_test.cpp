// SPDX-License-Identifier: BSD-2-Clause
// The command line, sizes, processors, and the parameters' way over the control connection.
#include "tools/vma_perf/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tools/vma_perf/control.h"
#include "tools/vma_perf/cpus.h"
#include "tools/vma_perf/sizes.h"
#include "tools/vma_perf/transport.h"

namespace vma_perf {
namespace {

using testing::HasSubstr;
using Words = std::vector<const char*>;

Parsed parse(Words words) {
    words.insert(words.begin(), "vma_perf");
    return parse_options(static_cast<int>(words.size()), words.data());
}

ClientOptions good(Words words) {
    const Parsed parsed = parse(words);
    EXPECT_EQ(parsed.err, "");
    const auto* const client = std::get_if<ClientOptions>(&parsed.command);
    EXPECT_NE(client, nullptr);
    return client != nullptr ? *client : ClientOptions{.runs = {Params{}}};
}

void expect_wrong(Words words, const std::string& text, int status = kUsage) {
    const Parsed parsed = parse(words);
    EXPECT_EQ(parsed.status, status) << text;
    EXPECT_THAT(parsed.err, HasSubstr(text));
    EXPECT_THAT(parsed.err, HasSubstr("vma_perf: "));
    EXPECT_TRUE(std::holds_alternative<std::monostate>(parsed.command));
}

TEST(PerfOptions, Defaults) {
    const ClientOptions p = good({"pingpong", "host"});
    ASSERT_EQ(p.runs.size(), 1u);
    EXPECT_EQ(p.host, "host");
    EXPECT_EQ(p.port, kDefaultPort);
    EXPECT_FALSE(p.runs[0].throughput);
    EXPECT_EQ(p.runs[0].transport, "udp");
    EXPECT_EQ(p.runs[0].min_size, 64u);
    EXPECT_EQ(p.runs[0].wait, Wait::blocking);
    EXPECT_FALSE(p.runs[0].sockets.delay);
    const ClientOptions t = good({"throughput", "host"});
    EXPECT_TRUE(t.runs[0].throughput);
    EXPECT_EQ(t.runs[0].max_size, 100u);
    EXPECT_TRUE(t.runs[0].sockets.delay);
    EXPECT_GT(t.runs[0].interval, 0);
}

TEST(PerfOptions, EveryOptionOfARun) {
    const ClientOptions o = good({"pingpong",
                                  "h",
                                  "-p",
                                  "99",
                                  "-t",
                                  "udp",
                                  "-s",
                                  "64-1400",
                                  "-T",
                                  "3",
                                  "--warmup",
                                  "0.5",
                                  "-r",
                                  "1000",
                                  "-b",
                                  "4",
                                  "-w",
                                  "8",
                                  "--threads",
                                  "2",
                                  "-c",
                                  "4",
                                  "--wait",
                                  "poll",
                                  "--server-wait",
                                  "select",
                                  "--cpus",
                                  "0,2-3",
                                  "--server-cpus",
                                  "1,4",
                                  "--verify",
                                  "--lost-after",
                                  "0.1",
                                  "--timeout",
                                  "2",
                                  "--send-buffer",
                                  "10000",
                                  "--receive-buffer",
                                  "20000",
                                  "--group",
                                  "239.1.1.1,239.1.1.2",
                                  "--group-interface",
                                  "198.18.0.1",
                                  "--group-ttl",
                                  "3",
                                  "--rtt",
                                  "--stages",
                                  "-i",
                                  "0.5",
                                  "--percentile",
                                  "99",
                                  "--json",
                                  "a.json",
                                  "--csv",
                                  "b.csv",
                                  "--log",
                                  "c.log",
                                  "--plot",
                                  "d.svg",
                                  "--plot-with",
                                  "e.json",
                                  "--label",
                                  "mine",
                                  "-q"});
    const Params& p = o.runs[0];
    EXPECT_EQ(o.port, 99);
    EXPECT_EQ(p.min_size, 64u);
    EXPECT_EQ(p.max_size, 1400u);
    EXPECT_EQ(p.seconds, 3);
    EXPECT_EQ(p.warmup, 0.5);
    EXPECT_EQ(p.rate, 1000);
    EXPECT_EQ(p.burst, 4u);
    EXPECT_EQ(p.window, 8u);
    EXPECT_EQ(p.threads, 2u);
    EXPECT_EQ(p.connections, 4u);
    EXPECT_EQ(p.wait, Wait::poll);
    EXPECT_EQ(p.server_wait, Wait::select);
    EXPECT_EQ(o.cpus, (std::vector<unsigned>{0, 2, 3}));
    EXPECT_EQ(p.server_cpus, (std::vector<unsigned>{1, 4}));
    EXPECT_TRUE(p.verify);
    EXPECT_EQ(p.lost_after, 0.1);
    EXPECT_EQ(p.timeout, 2);
    EXPECT_EQ(p.sockets.send_buffer, 10000);
    EXPECT_EQ(p.sockets.receive_buffer, 20000);
    EXPECT_EQ(p.sockets.groups, (std::vector<std::string>{"239.1.1.1", "239.1.1.2"}));
    EXPECT_EQ(p.sockets.group_interface, "198.18.0.1");
    EXPECT_EQ(p.sockets.group_ttl, 3);
    EXPECT_TRUE(o.whole_round_trip && o.stages && o.quiet);
    EXPECT_EQ(o.interval, 0.5);
    EXPECT_EQ(o.percentile, 99);
    EXPECT_EQ(o.json, "a.json");
    EXPECT_EQ(o.csv, "b.csv");
    EXPECT_EQ(o.log, "c.log");
    EXPECT_EQ(o.plot, "d.svg");
    EXPECT_EQ(o.plot_with, std::vector<std::string>{"e.json"});
    EXPECT_EQ(o.label, "mine");
}

TEST(PerfOptions, GroupsHaveConnectionsAndSockets) {
    const Params groups = good({"pingpong", "h", "--group", "239.1.1.1,239.1.1.2"}).runs[0];
    EXPECT_EQ(groups.connections, 2u);
    EXPECT_EQ(groups.wait, Wait::epoll);
    const Params one = good({"throughput", "h", "--group", "239.1.1.1", "--group-sockets", "4"}).runs[0];
    EXPECT_EQ(one.sockets.group_sockets, 4u);
    EXPECT_EQ(one.connections, 1u);
    EXPECT_EQ(one.wait, Wait::blocking);
    EXPECT_EQ(one.server_wait, Wait::epoll);
    EXPECT_EQ(one.sockets_each(), 1u);  // of the client
    const Params told = params_from_json(to_json(one));
    EXPECT_EQ(told.sockets.group_sockets, 4u);
}

TEST(PerfOptions, WaysToWait) {
    EXPECT_EQ(good({"pingpong", "h", "-c", "3"}).runs[0].wait, Wait::epoll);
    EXPECT_EQ(good({"pingpong", "h", "-c", "3"}).runs[0].server_wait, Wait::epoll);
    EXPECT_EQ(good({"pingpong", "h", "--threads", "3"}).runs[0].wait, Wait::blocking);
    EXPECT_EQ(good({"pingpong", "h", "--threads", "3"}).runs[0].connections, 3u);
    EXPECT_EQ(good({"pingpong", "h", "-t", "raw"}).runs[0].wait, Wait::nonblocking);
    EXPECT_EQ(good({"pingpong", "h", "--wait", "select"}).runs[0].server_wait, Wait::select);
    EXPECT_TRUE(good({"pingpong", "h", "-t", "tcp", "--nagle", "on"}).runs[0].sockets.delay);
    EXPECT_FALSE(good({"throughput", "h", "-t", "tcp", "--nagle", "off"}).runs[0].sockets.delay);
    EXPECT_EQ(good({"pingpong", "h", "-n", "5"}).runs[0].iterations, 5u);
    EXPECT_EQ(good({"pingpong", "h", "-t", "raw", "--device", "veth1", "--xdp-mode", "drv"}).runs[0].raw.mode,
              "drv");
    EXPECT_TRUE(good({"pingpong", "h", "--connected"}).runs[0].sockets.connected);
}

TEST(PerfOptions, Outputs) {
    EXPECT_EQ(good({"pingpong", "h", "--json"}).json, "-");
    EXPECT_EQ(good({"pingpong", "h", "--json", "-"}).json, "-");
    EXPECT_EQ(good({"pingpong", "h", "--csv"}).csv, "-");
    EXPECT_EQ(good({"throughput", "h", "-s", "64:512"}).runs.size(), 4u);
}

TEST(PerfOptions, OtherCommands) {
    Parsed parsed =
        parse({"server", "-p", "77", "--bind", "198.18.0.1", "--clients", "2", "--cpus", "1", "-q"});
    const auto& server = std::get<ServerOptions>(parsed.command);
    EXPECT_EQ(server.port, 77);
    EXPECT_EQ(server.bind, "198.18.0.1");
    EXPECT_EQ(server.clients, 2u);
    EXPECT_EQ(server.cpus, std::vector<unsigned>{1});
    EXPECT_TRUE(server.quiet);
    parsed = parse({"compare", "a", "b", "c", "--confidence", "90", "--resamples", "500", "--seed", "4",
                    "--plot", "p.svg", "--json"});
    const auto& compare = std::get<CompareOptions>(parsed.command);
    EXPECT_EQ(compare.files, (std::vector<std::string>{"a", "b", "c"}));
    EXPECT_EQ(compare.confidence, 90);
    EXPECT_EQ(compare.resamples, 500u);
    EXPECT_EQ(compare.seed, 4u);
    EXPECT_EQ(compare.json, "-");
    EXPECT_EQ(compare.plot, "p.svg");
    parsed = parse({"race", "--rounds", "3", "--library", "/x", "--sides", "server", "--json", "r", "--plot",
                    "p.svg", "-q", "--", "pingpong", "-t", "tcp", "-w", "4"});
    const auto& race = std::get<RaceOptions>(parsed.command);
    EXPECT_EQ(race.rounds, 3u);
    EXPECT_EQ(race.library, "/x");
    EXPECT_EQ(race.sides, Sides::server);
    EXPECT_EQ(race.json, "r");
    EXPECT_EQ(race.plot, "p.svg");
    EXPECT_TRUE(race.quiet);
    EXPECT_EQ(race.arguments, (std::vector<std::string>{"pingpong", "-t", "tcp", "-w", "4"}));
}

TEST(PerfOptions, HelpAndVersion) {
    EXPECT_EQ(parse({"--version"}).out, "vma_perf " VMA_VERSION "\n");
    EXPECT_EQ(parse({"-V"}).out, "vma_perf " VMA_VERSION "\n");
    EXPECT_EQ(parse({"-h"}).status, kOk);
    for (const char* word : {"--clients", "--server-cpus", "--lost-after", "--resamples", "--sides"})
        EXPECT_THAT(parse({"--help-all"}).out, HasSubstr(word));
    for (const char* word : {"server", "pingpong", "throughput", "compare", "race", "130 interrupted"})
        EXPECT_THAT(parse({"--help"}).out, HasSubstr(word));
    for (const char* word :
         {"--window", "--transport", "--group", "--log", "--device", "udp, tcp, rc, ud, raw"})
        EXPECT_THAT(parse({"pingpong", "--help"}).out, HasSubstr(word));
}

TEST(PerfOptions, WrongOnes) {
    expect_wrong({}, "A subcommand is required");
    expect_wrong({"pingpong"}, "HOST is required");
    expect_wrong({"pingpong", "h", "--frobnicate"}, "--frobnicate");
    expect_wrong({"pingpong", "h", "-t", "carrier-pigeon"}, "carrier-pigeon is none of udp, tcp");
    expect_wrong({"pingpong", "h", "-s", "15"}, "--size: a message has at least 16 bytes");
    expect_wrong({"pingpong", "h", "-s", "65508"}, "--size: udp carries at most 65507");
    expect_wrong({"pingpong", "h", "-s", "x"}, "--size: x is none of");
    expect_wrong({"pingpong", "h", "-T", "0"}, "--time");
    expect_wrong({"pingpong", "h", "-T", "nan"}, "--time");
    expect_wrong({"pingpong", "h", "-T", "1", "-n", "1"}, "--iterations: does not go together with --time");
    expect_wrong({"pingpong", "h", "-n", "0"}, "--iterations");
    expect_wrong({"pingpong", "h", "-r", "-1"}, "--rate");
    expect_wrong({"pingpong", "h", "-b", "0"}, "--burst");
    expect_wrong({"pingpong", "h", "-w", "2", "-b", "4"}, "--window: smaller than --burst");
    expect_wrong({"pingpong", "h", "--threads", "0"}, "--threads");
    expect_wrong({"pingpong", "h", "--threads", "4", "-c", "2"}, "--connections: fewer than --threads");
    expect_wrong({"pingpong", "h", "--wait", "sleepily"}, "sleepily is none of blocking");
    expect_wrong({"pingpong", "h", "-c", "2", "--wait", "blocking"}, "--wait blocking");
    expect_wrong({"pingpong", "h", "-c", "2", "--wait", "poll", "--server-wait", "blocking"},
                 "--server-wait blocking");
    expect_wrong({"pingpong", "h", "--cpus", "4-2"}, "--cpus: 4-2 is no list");
    expect_wrong({"pingpong", "h", "--server-cpus", "0,,1"}, "--server-cpus: 0,,1 is no list");
    expect_wrong({"throughput", "h", "--server-cpus", "1024"}, "--server-cpus: 1024 is no list");
    expect_wrong({"pingpong", "h", "--timeout", "0"}, "--timeout");
    expect_wrong({"pingpong", "h", "--lost-after", "0"}, "--lost-after");
    expect_wrong({"pingpong", "h", "--group", "198.18.0.1"}, "198.18.0.1 is no multicast group");
    expect_wrong({"pingpong", "h", "--group", "239.1.1.1", "--connected"}, "--connected");
    expect_wrong({"pingpong", "h", "--group", "239.1.1.1", "-t", "tcp"}, "--group: multicast is UDP's");
    expect_wrong({"pingpong", "h", "--connected", "-t", "tcp"}, "--connected");
    for (const char* mode : {"--extra-api", "--extra-api=zcopy", "--extra-api=callback",
                             "--extra-api=sendmany", "--extra-api=send_zcopy"})
        expect_wrong({"pingpong", "h", mode}, "--extra-api", kUnsupported);
    expect_wrong({"pingpong", "h", "--extra-api=other"},
                 "--extra-api: zcopy, callback, sendmany or send_zcopy");
    expect_wrong({"pingpong", "h", "-t", "raw", "--threads", "2"}, "--threads: raw");
    expect_wrong({"pingpong", "h", "-t", "raw", "--wait", "epoll"}, "--wait: raw polls");
    expect_wrong({"pingpong", "h", "-t", "raw", "--connected"}, "raw has no sockets");
    expect_wrong({"pingpong", "h", "-t", "raw", "--xdp-mode", "zero"}, "--xdp-mode");
    expect_wrong({"pingpong", "h", "-i", "2"}, "--interval: nothing without --stages");
    expect_wrong({"pingpong", "h", "--percentile", "9"}, "--percentile: nothing without --stages");
    expect_wrong({"pingpong", "h", "--plot-with", "a"}, "--plot-with: nothing without --plot");
    expect_wrong({"pingpong", "h", "--json", "--csv"}, "--json: does not go together with --csv");
    expect_wrong({"pingpong", "h", "--log", "f", "-s", "64:128"}, "--log: for one size only");
    expect_wrong({"pingpong", "h", "-p", "70000"}, "--port");
    expect_wrong({"pingpong", "h", "-c", "70000"}, "--connections: at most 65536");
    expect_wrong({"pingpong", "h", "-w", "70000"}, "--window");
    expect_wrong({"pingpong", "h", "--warmup", "-1"}, "--warmup: 0 to 3600");
    expect_wrong({"pingpong", "h", "--server-wait", "never"}, "never is none of blocking");
    expect_wrong({"pingpong", "h", "--send-buffer", "-1"}, "--send-buffer: at least 0");
    expect_wrong({"pingpong", "h", "--receive-buffer", "-1"}, "--receive-buffer: at least 0");
    expect_wrong({"pingpong", "h", "--group", "239.1.1.1", "--group-ttl", "256"}, "--group-ttl: 0 to 255");
    expect_wrong({"pingpong", "h", "-c", "1", "--group", "239.1.1.1,239.1.1.2"},
                 "2 groups, so as many --connections are needed");
    expect_wrong({"throughput", "h", "--group-sockets", "2"}, "nothing without --group");
    expect_wrong({"throughput", "h", "--group", "239.1.1.1", "--group-sockets", "0"}, "1 to 1024");
    expect_wrong({"throughput", "h", "--group", "239.1.1.1", "--group-sockets", "1024", "-c", "65"},
                 "at most 65536");
    expect_wrong(
        {"throughput", "h", "--group", "239.1.1.1", "--group-sockets", "2", "--server-wait", "blocking"},
        "--server-wait blocking");
    expect_wrong({"pingpong", "h", "--group", "239.1.1.1", "--group-sockets", "2"}, "--group-sockets");
    expect_wrong({"pingpong", "h", "--group", "239.1.1.1", "--group-interface", "eth0"},
                 "eth0 is no IPv4 address");
    expect_wrong({"pingpong", "h", "--stages", "-i", "0"}, "--interval");
    expect_wrong({"pingpong", "h", "--stages", "--percentile", "101"}, "--percentile");
    expect_wrong({"throughput", "h", "--stages", "--percentile", "50"}, "--percentile");
    expect_wrong({"throughput", "h", "--plot", "p.svg"}, "--plot");
    expect_wrong({"throughput", "h", "--lost-after", "1"}, "--lost-after");
    expect_wrong({"pingpong", "h", "-t", "raw", "--send-buffer", "9"}, "raw has no sockets");
    expect_wrong({"pingpong", "h", "--nagle", "maybe"}, "--nagle");
    expect_wrong({"throughput", "h", "--window", "2"}, "--window");
    expect_wrong({"throughput", "h", "--rtt"}, "--rtt");
    expect_wrong({"throughput", "h", "--log", "f"}, "--log");
    expect_wrong({"server", "--bind", "nowhere"}, "--bind");
    expect_wrong({"server", "-p", "70000"}, "--port");
    expect_wrong({"server", "--clients", "0"}, "--clients");
    expect_wrong({"server", "--cpus", "one"}, "--cpus: one is no list");
    expect_wrong({"compare", "a", "b", "--confidence", "10"}, "--confidence");
    expect_wrong({"compare", "a", "b", "--resamples", "1"}, "--resamples");
    expect_wrong({"compare", "a", "b", "--seed", "-1"}, "--seed");
    expect_wrong({"compare", "a"}, "FILES");
    expect_wrong({"race", "--rounds", "0", "--", "pingpong"}, "--rounds");
    expect_wrong({"race", "--sides", "none", "--", "pingpong"}, "--sides");
    expect_wrong({"race"}, "ARGS is required");
}

TEST(PerfSizes, Lists) {
    using List = std::vector<SizeRange>;
    EXPECT_EQ(parse_sizes("64"), (List{{64, 64}}));
    EXPECT_EQ(parse_sizes("64,100"), (List{{64, 64}, {100, 100}}));
    EXPECT_EQ(parse_sizes("64:500"), (List{{64, 64}, {128, 128}, {256, 256}, {500, 500}}));
    EXPECT_EQ(parse_sizes("64:1024:*4"), (List{{64, 64}, {256, 256}, {1024, 1024}}));
    EXPECT_EQ(parse_sizes("100:300:+100"), (List{{100, 100}, {200, 200}, {300, 300}}));
    EXPECT_EQ(parse_sizes("64-1024,99"), (List{{64, 1024}, {99, 99}}));
    EXPECT_EQ(parse_sizes("7:7"), (List{{7, 7}}));
    for (const char* bad : {"", "x", "64,", ",64", "64:", "64-", "100-64", "100:64", "64:128:3", "64:128:*1",
                            "64:128:+0", "64:128:*0", "64 ", "99999999999", "1:4000000000:+1", "-4"})
        EXPECT_THROW(parse_sizes(bad), Failure) << bad;
}

TEST(PerfCpus, Lists) {
    EXPECT_EQ(parse_cpus("0", "--cpus"), std::vector<unsigned>{0});
    EXPECT_EQ(parse_cpus("1,3-5", "--cpus"), (std::vector<unsigned>{1, 3, 4, 5}));
    for (const char* bad : {"", "a", "1,", "3-1", "1-", "99999"})
        EXPECT_THROW(parse_cpus(bad, "--cpus"), Failure) << bad;
    EXPECT_THROW(pin_to(1023), Failure);
    check_cpus({}, "--cpus");
    try {
        check_cpus({1023}, "--server-cpus");
        ADD_FAILURE();
    } catch (const Failure& failure) {
        EXPECT_EQ(failure.status(), kUnsupported);
        EXPECT_THAT(failure.what(),
                    HasSubstr("--server-cpus: cannot run on processor 1023: Invalid argument ("));
    }
    EXPECT_STREQ(socket_stack(), "kernel");
}

TEST(PerfParams, ArriveAsTheyWereSent) {
    Params p = good({"pingpong", "h", "-t", "tcp", "-s", "20-30", "-r", "12.5", "-c", "3", "--wait", "select",
                     "--verify"})
                   .runs[0];
    EXPECT_EQ(params_from_json(to_json(p)), p);
    p.sockets.groups = {"239.1.1.1"};
    p.server_cpus = {0, 3};
    EXPECT_EQ(params_from_json(to_json(p)), p);
}

TEST(PerfParams, WhatMakesNoSenseIsRefused) {
    const auto refused = [](const char* field, nlohmann::json value) {
        nlohmann::json json = to_json(Params{});
        if (value.is_null())
            json.erase(field);
        else
            json[field] = std::move(value);
        try {
            params_from_json(json);
            ADD_FAILURE() << field;
        } catch (const Failure& failure) {
            EXPECT_EQ(failure.status(), kVersion) << field;
        }
    };
    refused("threads", nullptr);
    refused("threads", "2");
    refused("threads", -1);
    refused("threads", 1e12);
    refused("threads", 100000);
    refused("min_size", 4);
    refused("seconds", -1);
    refused("wait", "never");
    refused("groups", 3);
    refused("server_cpus", 1);
    refused("server_cpus", {0, -1});
    refused("server_cpus", {1.5});
    refused("server_cpus", {1024});
    refused("iterations", 1.5);
}

TEST(PerfParams, ConnectionsOfLanes) {
    Params p;
    p.threads = 3;
    p.connections = 8;
    EXPECT_EQ(p.lane_connections(0) + p.lane_connections(1) + p.lane_connections(2), 8u);
    EXPECT_EQ(p.lane_connections(0), 3u);
    EXPECT_EQ(p.lane_connections(2), 2u);
}

}  // namespace
}  // namespace vma_perf
