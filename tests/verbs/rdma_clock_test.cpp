// SPDX-License-Identifier: BSD-2-Clause
// The adapter's clock to nanoseconds, with clocks that the test sets; and what is left where libraries are
// missing.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>

#include "libvma/verbs/rdma/hw_clock.h"
#include "libvma/verbs/rdma/library.h"

namespace {

using namespace vma::verbs::rdma;

constexpr std::uint64_t kAll = ~std::uint64_t{0};
constexpr std::uint64_t kKhz = 156'250;  // 6.4 ns a tick

// A crystal that is `ppm` fast, beside a system clock.
struct Clocks {
    std::uint64_t real_ns = 1'700'000'000'000'000'000, up_ns = 0;
    std::uint64_t first_ticks = 1000;
    double ppm = 0;
    std::uint64_t mask = kAll;
    std::uint64_t width_ns = 100;
    bool readable = true;
    std::optional<ClockLine> ptp;

    std::uint64_t ticks() const {
        return (first_ticks +
                static_cast<std::uint64_t>(static_cast<double>(up_ns) * kKhz / 1e6 * (1 + ppm / 1e6))) &
               mask;
    }
    void pass(std::uint64_t ns) {
        up_ns += ns;
        real_ns += ns;
    }
    HwClock make(Conversion conversion, std::uint64_t khz = kKhz) {
        return HwClock({.conversion = conversion, .khz = khz, .mask = mask},
                       {.pair = [this]() -> std::optional<ClockPair> {
                            if (!readable) return std::nullopt;
                            return ClockPair{ticks(), real_ns, width_ns};
                        },
                        .ptp = [this] { return ptp; }});
    }
};
std::int64_t difference(std::uint64_t a, std::uint64_t b) { return static_cast<std::int64_t>(a - b); }

TEST(HwClock, Raw) {
    Clocks clocks;
    HwClock clock = clocks.make(Conversion::raw);
    EXPECT_EQ(clock.conversion(), Conversion::raw);
    EXPECT_EQ(clock.to_ns(0), 0u);
    EXPECT_EQ(clock.to_ns(10), 64u);
    // After a year of running: no overflow.
    EXPECT_NEAR(static_cast<double>(clock.to_ns(kKhz * 1000 * 86400 * 365)), 86400e9 * 365, 1e6);
}

TEST(HwClock, FollowsTheSystemsClock) {
    Clocks clocks;
    clocks.ppm = 80;
    HwClock clock = clocks.make(Conversion::system);
    EXPECT_LE(std::abs(difference(clock.to_ns(clocks.ticks()), clocks.real_ns)), 10);
    clocks.pass(1'000'000'000);
    EXPECT_NEAR(static_cast<double>(difference(clock.to_ns(clocks.ticks()), clocks.real_ns)), 80'000, 100)
        << "not known yet";
    clock.synchronise();
    EXPECT_LE(std::abs(difference(clock.to_ns(clocks.ticks()), clocks.real_ns)), 10);
    clocks.pass(1'000'000'000);
    EXPECT_LE(std::abs(difference(clock.to_ns(clocks.ticks()), clocks.real_ns)), 50)
        << "now the frequency is";
}

TEST(HwClock, OldTimeStamps) {
    Clocks clocks;
    HwClock clock = clocks.make(Conversion::system);
    const std::uint64_t then = clocks.ticks(), real = clocks.real_ns;
    clocks.pass(2'000'000'000);
    clock.synchronise();
    EXPECT_LE(std::abs(difference(clock.to_ns(then), real)), 20);
}

TEST(HwClock, CounterWraps) {
    Clocks clocks;
    clocks.mask = (std::uint64_t{1} << 41) - 1;
    clocks.first_ticks = clocks.mask - 100;
    HwClock clock = clocks.make(Conversion::system);
    const std::uint64_t before = clocks.ticks(), real = clocks.real_ns;
    clocks.pass(1'000'000'000);
    EXPECT_LT(clocks.ticks(), before);
    EXPECT_LE(std::abs(difference(clock.to_ns(clocks.ticks()), clocks.real_ns)), 20);
    clock.synchronise();
    EXPECT_LE(std::abs(difference(clock.to_ns(before), real)), 20);
}

TEST(HwClock, AStepOfTheSystemsClock) {
    Clocks clocks;
    clocks.ppm = 20;
    HwClock clock = clocks.make(Conversion::system);
    clocks.pass(1'000'000'000);
    clock.synchronise();
    clocks.real_ns += 3'600'000'000'000;
    clocks.pass(1'000'000'000);
    clock.synchronise();
    EXPECT_LE(std::abs(difference(clock.to_ns(clocks.ticks()), clocks.real_ns)), 20);
    clocks.real_ns -= 7'200'000'000'000;
    clock.synchronise();
    clocks.pass(1'000'000'000);
    EXPECT_LE(std::abs(difference(clock.to_ns(clocks.ticks()), clocks.real_ns)), 30'000)
        << "at the nominal frequency";
}

TEST(HwClock, BadReadingsAreLeftOut) {
    Clocks clocks;
    HwClock clock = clocks.make(Conversion::system);
    clocks.pass(1'000'000'000);
    clocks.width_ns = 5'000'000;
    clocks.real_ns += 2'000'000;  // the thread lost its processor in between
    clock.synchronise();
    EXPECT_LE(std::abs(difference(clock.to_ns(clocks.ticks()), clocks.real_ns - 2'000'000)), 20);
    clocks.width_ns = 100;
    clocks.pass(1000);
    clocks.readable = false;
    clock.synchronise();  // nothing happens
}

TEST(HwClock, WhatTheDeviceDoesNotHave) {
    Clocks clocks;
    EXPECT_EQ(clocks.make(Conversion::best).conversion(), Conversion::system);
    EXPECT_EQ(clocks.make(Conversion::ptp).conversion(), Conversion::system);
    EXPECT_EQ(clocks.make(Conversion::system, 0).conversion(), Conversion::none);
    clocks.readable = false;
    EXPECT_EQ(clocks.make(Conversion::best).conversion(), Conversion::raw);
    EXPECT_EQ(clocks.make(Conversion::system).conversion(), Conversion::none);
    EXPECT_EQ(clocks.make(Conversion::raw, 0).conversion(), Conversion::none);
    EXPECT_EQ(clocks.make(Conversion::none).conversion(), Conversion::none);
}

TEST(HwClock, Ptp) {
    Clocks clocks;
    clocks.ptp = ClockLine{1000, 5'000'000'000, std::uint64_t{2} << 32};
    HwClock clock = clocks.make(Conversion::ptp);
    EXPECT_EQ(clock.conversion(), Conversion::ptp);
    EXPECT_EQ(clock.to_ns(1010), 5'000'000'020u);
    EXPECT_EQ(clock.to_ns(990), 4'999'999'980u);
    clocks.ptp = ClockLine{2000, 6'000'000'000, std::uint64_t{1} << 32};
    clock.synchronise();
    EXPECT_EQ(clock.to_ns(2001), 6'000'000'001u);
}

TEST(VerbsLibrary, Missing) {
    auto verbs = load_verbs("libibverbs-that-is-not-there.so.1");
    ASSERT_FALSE(verbs);
    EXPECT_NE(verbs.error().what.find("libibverbs-that-is-not-there.so.1"), std::string::npos);
    EXPECT_FALSE(load_mlx5("libmlx5-that-is-not-there.so.1"));
}

TEST(VerbsLibrary, AnotherLibraryByThatName) {
    auto verbs = load_verbs("libm.so.6");
    ASSERT_FALSE(verbs);
    EXPECT_EQ(verbs.error().code, ENOSYS);
    EXPECT_NE(verbs.error().what.find("ibv_"), std::string::npos) << verbs.error().what;
}

TEST(VerbsLibrary, CalmKeepsErrno) {
    errno = EDOM;
    {
        ErrnoAndCancelKept calm;
        (void)access("/nowhere/at/all", F_OK);
    }
    EXPECT_EQ(errno, EDOM);
}

}  // namespace
