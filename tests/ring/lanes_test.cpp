// SPDX-License-Identifier: BSD-2-Clause
// Whose lane it is, for each logic: limits, sharing, lanes that come free; and rules that one ring has.
#include "libvma/ring/lanes.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ring_hosts.h"

namespace vma::ring {
namespace {

using namespace ring_hosts;

unsigned take_in_thread(Lanes& lanes) {
    unsigned lane = 0;
    std::thread([&] { lane = lanes.take(); }).join();
    return lane;
}

TEST(Lanes, OneForAllInterfaces) {
    Lanes lanes(Logic::interface, 0);
    EXPECT_EQ(lanes.limit(), 1u);
    EXPECT_EQ(lanes.take(), 0u);
    EXPECT_EQ(take_in_thread(lanes), 0u);
    EXPECT_EQ(lanes.of(0, inet_addr(kA)), 0u);
    EXPECT_EQ(lanes.owner(0), "all sockets");
}

TEST(Lanes, OfSockets) {
    Lanes lanes(Logic::socket, 3);
    EXPECT_EQ(lanes.take(), 0u);
    EXPECT_EQ(lanes.take(), 1u);
    EXPECT_EQ(lanes.take(), 2u);
    EXPECT_EQ(lanes.take(), 0u) << "there are no more: it is shared";
    EXPECT_EQ(lanes.users(0), 2u);
    EXPECT_EQ(lanes.owner(0), "shared");
    EXPECT_EQ(lanes.take(), 1u) << "the fewest users";
    lanes.give_back(2);
    EXPECT_EQ(lanes.take(), 2u) << "one without users first";
    EXPECT_EQ(lanes.owner(2), "a socket");
}

TEST(Lanes, AreReusedBeforeThereAreMore) {
    Lanes lanes(Logic::socket, 0);
    EXPECT_EQ(lanes.limit(), Lanes::kMost);
    for (int i = 0; i < 1000; i++) {
        EXPECT_EQ(lanes.take(), 0u);
        lanes.give_back(0);
    }
}

TEST(Lanes, OfThreads) {
    Lanes lanes(Logic::thread, 2);
    const unsigned mine = lanes.take();
    EXPECT_EQ(lanes.take(), mine);
    EXPECT_EQ(lanes.owner(mine), "thread " + std::to_string(gettid()));
    const unsigned other = take_in_thread(lanes);
    EXPECT_NE(other, mine);
    EXPECT_EQ(take_in_thread(lanes), other) << "shared: it has fewer users";
    EXPECT_EQ(lanes.owner(other), "shared");
    lanes.give_back(other);
    lanes.give_back(other);
    EXPECT_EQ(take_in_thread(lanes), other);
    EXPECT_NE(lanes.owner(other), "shared");
    lanes.give_back(mine);
    EXPECT_EQ(lanes.take(), mine) << "still its lane";
}

TEST(Lanes, AThreadLosesALaneThatItDoesNotUse) {
    Lanes lanes(Logic::thread, 2);
    const unsigned mine = lanes.take();
    lanes.give_back(mine);
    EXPECT_EQ(take_in_thread(lanes), mine) << "it was free";
    EXPECT_NE(lanes.take(), mine);
}

TEST(Lanes, OfSeveralProcessesParts) {
    Lanes one(Logic::thread, 4), two(Logic::thread, 4);
    EXPECT_EQ(take_in_thread(one), 0u);
    EXPECT_EQ(one.take(), 1u);
    EXPECT_EQ(two.take(), 0u) << "what a thread remembers is of one";
}

TEST(Lanes, OfCores) {
    Lanes lanes(Logic::core, 0);
    std::thread([&] {
        cpu_set_t all, one;
        sched_getaffinity(0, sizeof all, &all);
        std::set<unsigned> seen;
        for (int core = 0; core < CPU_SETSIZE; core++) {
            if (!CPU_ISSET(core, &all)) continue;
            CPU_ZERO(&one);
            CPU_SET(core, &one);
            ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
            const unsigned lane = lanes.take();
            EXPECT_EQ(lanes.take(), lane);
            EXPECT_TRUE(seen.insert(lane).second);
            EXPECT_EQ(lanes.owner(lane), "core " + std::to_string(core));
            if (seen.size() == Lanes::kMost) break;
        }
    }).join();
}

TEST(Lanes, ThreadsAreBoundToTheQuietestCore) {
    Lanes lanes(Logic::pinned, 0);
    std::set<unsigned> seen;
    cpu_set_t all;
    sched_getaffinity(0, sizeof all, &all);
    const int cores = std::min(CPU_COUNT(&all), static_cast<int>(Lanes::kMost));
    for (int i = 0; i < cores; i++)
        std::thread([&] {
            seen.insert(lanes.take());
            cpu_set_t mine;
            sched_getaffinity(0, sizeof mine, &mine);
            EXPECT_EQ(CPU_COUNT(&mine), 1);
        }).join();
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(cores));
}

TEST(Lanes, OfAddresses) {
    Lanes lanes(Logic::address, 2);
    EXPECT_EQ(lanes.of(0, inet_addr(kA)), 0u);
    EXPECT_EQ(lanes.of(0, inet_addr(kB)), 1u);
    EXPECT_EQ(lanes.of(1, inet_addr(kA)), 0u);
    EXPECT_LT(lanes.of(0, inet_addr("198.18.0.3")), 2u);
    EXPECT_EQ(lanes.of(0, inet_addr(kB)), 1u);
    EXPECT_EQ(lanes.owner(1) == kB || lanes.owner(1) == "shared", true);
}

// In a process whose sockets share a ring otherwise.
TEST(Lanes, OfSocketsThatChoose) {
    Lanes lanes(Logic::interface, 8);
    EXPECT_EQ(lanes.take(), 0u);
    const Choice seven{Logic::user_id, 0, 7}, eight{Logic::user_id, 0, 8}, alone{Logic::socket, 0, 0},
        other{Logic::user_id, 1, 7}, address{Logic::address, 0, 0};
    lanes.allow(seven);
    EXPECT_EQ(lanes.limit(), 8u);
    const unsigned first = lanes.take(&seven);
    EXPECT_NE(first, 0u) << "lane 0 is everyone's";
    EXPECT_EQ(lanes.owner(first), "user id 7");
    EXPECT_EQ(lanes.logic(first), Logic::user_id);
    EXPECT_NE(lanes.take(&eight), first);
    EXPECT_EQ(lanes.take(&seven), first);
    EXPECT_NE(lanes.take(&other), first) << "another profile";
    EXPECT_NE(lanes.take(&alone), lanes.take(&alone));
    EXPECT_EQ(lanes.take(), 0u);
    const unsigned by_address = lanes.take(&address);
    EXPECT_EQ(by_address, Lanes::kByAddress);
    EXPECT_EQ(lanes.of(by_address, inet_addr(kA)), lanes.of(by_address, inet_addr(kA)));
    EXPECT_NE(lanes.of(by_address, inet_addr(kA)), lanes.of(by_address, inet_addr(kB)));
    lanes.give_back(by_address);
    EXPECT_EQ(lanes.of(first, inet_addr(kA)), first);
}

TEST(Lanes, ManyThreadsAtATime) {
    Lanes lanes(Logic::thread, 8);
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; i++)
        threads.emplace_back([&] {
            for (int j = 0; j < 2000; j++) lanes.give_back(lanes.take());
        });
    for (std::thread& t : threads) t.join();
    for (unsigned lane = 0; lane < 8; lane++) EXPECT_EQ(lanes.users(lane), 0u);
}

// ---- rules of an interface with several rings ----

TEST(RuleOwners, ARuleIsOneRings) {
    Wire wire(7);
    auto owners = std::make_shared<RuleOwners>();
    Host one(wire, kA, {}, {.owners = owners, .huge_pages = false});
    Host two(wire, kA, {}, {.lane = 1, .owners = owners, .huge_pages = false});
    EXPECT_EQ(two.ring->lane(), 1u);
    Sink first, second;
    const FlowSpec spec = one.flow(2000);
    EXPECT_EQ(&two.ring->home_of(spec), two.ring.get()) << "nobody has it";
    ASSERT_TRUE(two.ring->attach(spec, &second, Share::latest));
    EXPECT_EQ(&one.ring->home_of(spec), two.ring.get());
    auto refused = one.ring->attach(spec, &first, Share::latest);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, EEXIST);
    EXPECT_EQ(one.ring->counters().rules, 0u);
    two.ring->detach(spec, &second);
    EXPECT_TRUE(one.ring->attach(spec, &first, Share::latest));
    EXPECT_EQ(&two.ring->home_of(spec), one.ring.get());
    one.ring->detach(spec, &first);
    one.close();
    EXPECT_EQ(owners->find(spec), nullptr);
}

// Rules without the peer are one for all peers.
TEST(RuleOwners, FlowsThatShareARule) {
    RuleOwners owners;
    owners.leave_out_peers(false, true);
    auto* one = reinterpret_cast<Ring*>(0x1000);
    auto* two = reinterpret_cast<Ring*>(0x2000);
    const FlowSpec a{IPPROTO_UDP, 1, 2, 3, 4}, b{IPPROTO_UDP, 1, 2, 5, 6}, c{IPPROTO_TCP, 1, 2, 3, 4},
        d{IPPROTO_TCP, 1, 2, 5, 6};
    EXPECT_EQ(owners.claim(a, one), one);
    EXPECT_EQ(owners.claim(b, two), one);
    EXPECT_EQ(owners.claim(b, one), one);
    EXPECT_EQ(owners.claim(c, one), one);
    EXPECT_EQ(owners.claim(d, two), two);
    owners.release(a, one);
    EXPECT_EQ(owners.find(a), one) << "the other one's still";
    owners.release(b, two);
    EXPECT_EQ(owners.find(a), one) << "not this ring's";
    owners.release(b, one);
    EXPECT_EQ(owners.find(a), nullptr);
}

}  // namespace
}  // namespace vma::ring
