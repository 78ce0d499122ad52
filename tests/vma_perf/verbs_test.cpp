// SPDX-License-Identifier: BSD-2-Clause
// The transports rc and ud, as far as they need no device. With devices they run in tests/rxe.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tools/vma_perf/options.h"
#include "tools/vma_perf/rdma/device.h"
#include "tools/vma_perf/rdma/lane.h"
#include "tools/vma_perf/rdma/sessions.h"

namespace {

using namespace vma_perf;

Parsed parse(std::vector<const char*> words) {
    words.insert(words.begin(), {"vma_perf", "pingpong", "192.0.2.1"});
    return parse_options(static_cast<int>(words.size()), words.data());
}
Params run_of(std::vector<const char*> words) {
    const Parsed parsed = parse(std::move(words));
    EXPECT_EQ(parsed.status, 0) << parsed.err;
    const auto* options = std::get_if<ClientOptions>(&parsed.command);
    return options != nullptr && !options->runs.empty() ? options->runs.front() : Params();
}

TEST(PerfVerbs, OptionsReachTheParameters) {
    const Params p = run_of({"-t",
                             "ud",
                             "--send-depth",
                             "32",
                             "--receive-depth",
                             "64",
                             "--signal-every",
                             "8",
                             "--inline",
                             "0",
                             "--cq-events",
                             "--wr-api",
                             "--rdma-device",
                             "mlx5_0",
                             "--gid-index",
                             "3",
                             "--server-rdma-device",
                             "mlx5_1",
                             "--server-gid-index",
                             "5",
                             "--retry",
                             "2",
                             "--rnr-retry",
                             "1"});
    EXPECT_EQ(p.rdma.send_depth, 32u);
    EXPECT_EQ(p.rdma.receive_depth, 64u);
    EXPECT_EQ(p.rdma.signal_every, 8);
    EXPECT_EQ(p.rdma.max_inline, 0);
    EXPECT_TRUE(p.rdma.events);
    EXPECT_TRUE(p.rdma.builder);
    EXPECT_EQ(p.rdma.device, "mlx5_0");
    EXPECT_EQ(p.rdma.gid_index, 3);
    EXPECT_EQ(p.rdma.server_device, "mlx5_1");
    EXPECT_EQ(p.rdma.server_gid_index, 5);
    EXPECT_EQ(p.rdma.retry, 2u);
    EXPECT_EQ(p.rdma.rnr_retry, 1u);
    // And over the control connection.
    EXPECT_EQ(params_from_json(to_json(p)).rdma, p.rdma);
}

TEST(PerfVerbs, WhatContradictsIsWrongUsage) {
    const struct {
        std::vector<const char*> words;
        const char* text;
    } cases[] = {
        {{"-t", "rc", "--group", "239.1.1.7"}, "--group: rc has no multicast"},
        {{"-t", "rc", "--send-depth", "16", "--signal-every", "17"},
         "--signal-every: more than the send queue holds (16 requests"},
        {{"-t", "ud", "--send-depth", "4", "--burst", "8", "--window", "8"},
         "--burst: longer than the send queue (4 requests"},
        {{"-t", "ud", "--size", "5000"}, "--size: ud carries at most 4096 bytes"},
        {{"-t", "rc", "--retry", "8"}, "--retry"},
        {{"-t", "rc", "--signal-every", "-1"}, "--signal-every"},
        {{"-t", "ud", "--gid-index", "-1"}, "--gid-index"},
        {{"-t", "rc", "--send-depth", "0"}, "--send-depth"},
        {{"-t", "rc", "--receive-depth", "32769"}, "--receive-depth"},
        {{"-t", "rc", "--inline", "4097"}, "--inline"},
        {{"-t", "rc", "--rnr-retry", "8"}, "--rnr-retry"},
        {{"-t", "ud", "--server-gid-index", "65536"}, "--server-gid-index"},
    };
    for (const auto& wrong : cases) {
        const Parsed parsed = parse(wrong.words);
        EXPECT_EQ(parsed.status, kUsage) << wrong.text;
        EXPECT_NE(parsed.err.find(wrong.text), std::string::npos) << parsed.err;
    }
}

TEST(PerfVerbs, AClientCannotAskForWhatTheServerRefuses) {
    Params p;
    p.transport = "rc";
    p.rdma.send_depth = 40'000;
    EXPECT_THROW(rdma::check_rc(p), Failure);
    p.rdma.send_depth = 0;
    p.rdma.max_inline = 100'000;
    EXPECT_THROW(rdma::check_ud(p), Failure);
    p.rdma.max_inline = -2;
    EXPECT_THROW(rdma::check_ud(p), Failure);
    p.rdma.max_inline = -1;
    p.rdma.gid_index = -5;
    EXPECT_THROW(rdma::check_ud(p), Failure);
    p.rdma.gid_index = -1;
    p.rdma.rnr_retry = 8;
    EXPECT_THROW(rdma::check_rc(p), Failure);
    EXPECT_NO_THROW(rdma::check_ud(p));
}

TEST(PerfVerbs, QueuesOfLargeMessagesAreShorter) {
    Params p;
    p.min_size = p.max_size = 64;
    const rdma::Depths small = rdma::depths_of(p, 0);
    EXPECT_EQ(small.send, 128u);
    EXPECT_EQ(small.receive, 512u);
    EXPECT_EQ(small.signal_every, 64u);
    p.max_size = rdma::kMaxRcMessage;
    const rdma::Depths large = rdma::depths_of(p, 0);
    EXPECT_EQ(large.send, 32u);
    EXPECT_EQ(large.receive, 32u);
    EXPECT_EQ(large.signal_every, 16u);
    p.burst = 100;
    EXPECT_EQ(rdma::depths_of(p, 0).send, 100u);
    p.rdma.send_depth = 1;
    EXPECT_EQ(rdma::depths_of(p, 0).signal_every, 1u);
    p.rdma.signal_every = 0;
    EXPECT_EQ(rdma::depths_of(p, 0).signal_every, 0u);
}

TEST(PerfVerbs, GidsTravelAsText) {
    const ibv_gid gid = rdma::mapped_gid("198.18.9.1");
    EXPECT_EQ(rdma::gid_text(gid), "00000000000000000000ffffc6120901");
    EXPECT_EQ(rdma::gid_text(rdma::gid_from_text(rdma::gid_text(gid))), rdma::gid_text(gid));
    for (const char* wrong :
         {"", "00", "00000000000000000000ffffc612090x", "00000000000000000000ffffc612090101"})
        EXPECT_THROW(rdma::gid_from_text(wrong), Failure) << wrong;
}

TEST(PerfVerbs, WithoutADeviceItSaysSo) {
    int count = 0;
    ibv_device** devices = ibv_get_device_list(&count);
    if (devices != nullptr) ibv_free_device_list(devices);
    if (count != 0) GTEST_SKIP() << "this machine has RDMA devices";
    try {
        rdma::open_port("", -1, "198.18.9.1");
        FAIL();
    } catch (const Failure& failure) {
        EXPECT_EQ(failure.status(), kUnsupported);
        EXPECT_STREQ(failure.what(), "there is no RDMA device here");
    }
}

}  // namespace
