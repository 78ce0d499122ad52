// SPDX-License-Identifier: BSD-2-Clause
// Which frames may leave as one super-frame of datagrams, and the headers it gets.
#include "libvma/verbs/xdp/datagram_run.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>

#include "tests/support/wire/udp_frames.h"

namespace vma::verbs::xdp {
namespace {

using namespace udp_frames;

constexpr std::size_t kIpFlags = kIp + 6, kTtl = kIp + 8, kProtocol = kIp + 9;

Bytes datagram(std::size_t length) {
    return make({.src_mac = {2, 0, 0, 0, 0, 1}, .dst_mac = {2, 0, 0, 0, 0, 2}, .payload = pattern(length)});
}

// As many of `frames` as make a run.
std::size_t run_of(const std::vector<Bytes>& frames) {
    DatagramRun run;
    for (const Bytes& frame : frames)
        if (!run.add(frame)) break;
    return run.count();
}

TEST(DatagramRun, EqualLengthsAndAShorterEnd) {
    EXPECT_EQ(run_of({datagram(100), datagram(100), datagram(100), datagram(100)}), 4u);
    EXPECT_EQ(run_of({datagram(100), datagram(100), datagram(1), datagram(1)}), 3u);
    EXPECT_EQ(run_of({datagram(100), datagram(100), datagram(101)}), 2u);
    EXPECT_EQ(run_of({datagram(100), datagram(0), datagram(100)}), 1u) << "an empty one would be lost";
    EXPECT_EQ(run_of({datagram(0), datagram(0)}), 0u);
    EXPECT_EQ(run_of({}), 0u);
}

TEST(DatagramRun, OneFlow) {
    const std::function<void(Bytes&)> others[] = {
        [](Bytes& f) { f[5] ^= 1; },  // station addresses
        [](Bytes& f) { f[11] ^= 1; },
        [](Bytes& f) { f[kIp + 1] = 0x10; },  // type of service
        [](Bytes& f) { put16(f, kIpFlags, 0); },
        [](Bytes& f) { f[kTtl] = 1; },
        [](Bytes& f) { f[kProtocol] = IPPROTO_TCP; },
        [](Bytes& f) { f[kIp + 15] ^= 1; },  // addresses
        [](Bytes& f) { f[kIp + 19] ^= 1; },
        [](Bytes& f) { f[kUdp + 1] ^= 1; },  // ports
        [](Bytes& f) { f[kUdp + 3] ^= 1; },
    };
    for (std::size_t i = 0; i < std::size(others); i++) {
        Bytes other = datagram(100);
        others[i](other);
        EXPECT_EQ(run_of({datagram(100), datagram(100), other, datagram(100)}), 2u) << i;
    }
    Bytes numbered = datagram(100);
    put16(numbered, kIp + 4, 77);  // the identification
    EXPECT_EQ(run_of({datagram(100), numbered, datagram(100)}), 3u);
}

TEST(DatagramRun, WhatBeginsNone) {
    const std::function<void(Bytes&)> bad[] = {
        [](Bytes& f) { put16(f, 12, 0x86dd); },  // no IPv4
        [](Bytes& f) { f[kIp] = 0x46; },         // IP options
        [](Bytes& f) { f[kProtocol] = IPPROTO_TCP; },
        [](Bytes& f) { put16(f, kIpFlags, 0); },  // may be fragmented
        [](Bytes& f) { put16(f, kIpFlags, 0x6000); },
        [](Bytes& f) { put16(f, kIp + 2, 20); },  // lengths that differ
        [](Bytes& f) { f.resize(kPayload); },
        [](Bytes& f) { f.resize(20); },
        [](Bytes& f) { f.clear(); },
    };
    for (std::size_t i = 0; i < std::size(bad); i++) {
        Bytes frame = datagram(100);
        bad[i](frame);
        EXPECT_EQ(run_of({frame, datagram(100)}), 0u) << i;
    }
}

TEST(DatagramRun, ToAGroup) {
    Bytes frame = datagram(100);
    frame[0] = 1;
    EXPECT_EQ(run_of({frame, frame, frame, datagram(100)}), 3u);
}

TEST(DatagramRun, Limits) {
    EXPECT_EQ(run_of(std::vector<Bytes>(100, datagram(10))), DatagramRun::kMost);
    EXPECT_EQ(run_of(std::vector<Bytes>(100, datagram(8000))), 8u) << "an IP packet holds 65,507 bytes";
}

TEST(DatagramRun, HeadersOfTheWhole) {
    DatagramRun run;
    const Bytes full = datagram(1000), end = datagram(10);
    for (int i = 0; i < 5; i++) ASSERT_TRUE(run.add(full));
    ASSERT_TRUE(run.add(end));
    EXPECT_EQ(run.segment(), 1000u);
    Bytes headers(net::kUdpHeaders);
    run.headers(headers.data());
    EXPECT_TRUE(std::equal(headers.begin(), headers.begin() + kIp + 2, full.begin()));
    EXPECT_EQ(get16(headers, kIp + 2), 20u + 8 + 5010);
    EXPECT_EQ(slow_sum(&headers[kIp], 20), 0xffffu) << "the sum of IP's header";
    EXPECT_EQ(get16(headers, kUdp + 4), 8u + 5010);
    EXPECT_EQ(get16(headers, kUdp + 6), pseudo_sum(headers)) << "the device completes it";
    run.clear();
    EXPECT_EQ(run.count(), 0u);
    EXPECT_TRUE(run.add(end));
    EXPECT_EQ(run.segment(), 10u);
}

}  // namespace
}  // namespace vma::verbs::xdp
