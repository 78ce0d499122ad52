// SPDX-License-Identifier: BSD-2-Clause
// What happens to the rdma device: completion events, errors and recovery, failure, fork, descriptors.
#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/runtime.h"
#include "tests/verbs/sim_rdma/rdma_rig.h"

namespace rdma_rig {
namespace {

using testing::ElementsAre;

class RdmaEvents : public RdmaPaths {};
INSTANTIATE_TEST_SUITE_P(Rdma, RdmaEvents, testing::Bool(), path_name);

bool readable(const Rig& rig) {
    pollfd fd{rig.channel->fd, POLLIN, 0};
    return poll(&fd, 1, 0) == 1;
}
void arrive(const std::string& payload) {
    EXPECT_TRUE(mlx5_sim::nic(kB).receive(udp(payload)));
    mlx5_sim::settle();
}
std::vector<int> descriptors() {
    std::vector<int> all;
    DIR* folder = opendir("/proc/self/fd");
    while (const dirent* entry = readdir(folder))
        if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(folder))
            all.push_back(atoi(entry->d_name));
    closedir(folder);
    std::ranges::sort(all);
    return all;
}

TEST_P(RdmaEvents, OnlyWhenArmed) {
    Rig b(config(kB));
    b.rule(three_tuple());
    arrive("not armed");
    EXPECT_FALSE(readable(b));
    EXPECT_EQ(b.receive().size(), 1u);
    for (int i = 0; i < 50; i++) {  // the number of events goes into each arming
        ASSERT_EQ(ibv_req_notify_cq(b.recv_cq, 0), 0);
        mlx5_sim::settle();
        ASSERT_FALSE(readable(b));
        arrive("armed");
        ASSERT_TRUE(readable(b));
        b.device->consume_events(b.channel);
        ASSERT_FALSE(readable(b));
        ASSERT_EQ(b.receive().size(), 1u);
        arrive("not armed again");
        ASSERT_FALSE(readable(b));
        ASSERT_EQ(b.receive().size(), 1u);
    }
}

TEST_P(RdmaEvents, ArmedAfterArrival) {
    Rig b(config(kB));
    b.rule(three_tuple());
    arrive("before");
    ASSERT_EQ(ibv_req_notify_cq(b.recv_cq, 0), 0);
    mlx5_sim::settle();
    // Whether this gives an event or not, the frame is there for who polls after arming.
    EXPECT_EQ(b.receive().size(), 1u);
    b.device->consume_events(b.channel);
}

TEST_P(RdmaEvents, SpuriousAndLost) {
    Rig b(config(kB));
    b.rule(three_tuple());
    b.device->consume_events(b.channel);  // nothing there
    ibv_req_notify_cq(b.recv_cq, 0);
    mlx5_sim::nic(kB).set_faults({.extra_events = 3});
    for (int i = 0; i < 5; i++) mlx5_sim::step();
    b.device->consume_events(b.channel);
    EXPECT_FALSE(readable(b));
    EXPECT_TRUE(b.receive().empty());
    mlx5_sim::nic(kB).set_faults({.lost_events = 1});
    ibv_req_notify_cq(b.recv_cq, 0);
    mlx5_sim::settle();
    arrive("unannounced");
    EXPECT_EQ(b.receive().size(), 1u);
    // Afterwards it goes on.
    mlx5_sim::nic(kB).set_faults({});
    ibv_req_notify_cq(b.recv_cq, 0);
    mlx5_sim::settle();
    arrive("announced");
    EXPECT_EQ(b.receive().size(), 1u);
    b.device->consume_events(b.channel);
}

TEST_P(RdmaEvents, Moderation) {
    Rig b(config(kB));
    b.rule(three_tuple());
    b.device->moderate(b.recv_cq, 3, 60'000);  // bent to what the adapter can
    ibv_req_notify_cq(b.recv_cq, 0);
    mlx5_sim::settle();
    std::uint64_t ticks = 1000;
    mlx5_sim::set_clock(kB, [&] { return ticks; });
    for (int i = 0; i < 2; i++) {
        EXPECT_TRUE(mlx5_sim::nic(kB).receive(udp("few")));
        mlx5_sim::step();
    }
    EXPECT_FALSE(readable(b));
    EXPECT_TRUE(mlx5_sim::nic(kB).receive(udp("enough")));
    mlx5_sim::step();
    EXPECT_TRUE(readable(b));
    b.device->consume_events(b.channel);
    EXPECT_EQ(b.receive().size(), 3u);
    b.device->moderate(b.recv_cq, 0, 0);
    ibv_req_notify_cq(b.recv_cq, 0);
    mlx5_sim::settle();
    arrive("at once");
    EXPECT_TRUE(readable(b));
    b.device->consume_events(b.channel);
    EXPECT_EQ(b.receive().size(), 1u);
}

// Brings a QP back and posts receives anew; returns how many of those posted came back flushed.
unsigned recover(Rig& rig) {
    rig.device->stop(rig.qp);
    unsigned flushed = 0;
    while (true) {
        mlx5_sim::settle();
        const auto sent = rig.poll(rig.send_cq), received = rig.poll(rig.recv_cq);
        for (const auto& wc : received) flushed += wc.status == IBV_WC_WR_FLUSH_ERR;
        if (sent.empty() && received.empty()) break;
    }
    EXPECT_TRUE(rig.device->recover(rig.qp));
    for (unsigned i = 0; i < 32; i++) rig.post_receive(i);
    return flushed;
}

TEST_P(RdmaEvents, FailedSendAndRecovery) {
    Rig a(config(kA)), b(config(kB));
    a.rule({IPPROTO_UDP, inet_addr(kIpA), htons(1000), 0, 0});
    b.rule(three_tuple());
    for (int round = 0; round < 5; round++) {
        mlx5_sim::nic(kA).set_faults({.fail_sends = 1});
        for (int i = 0; i < 3; i++) a.post(udp("lost"));
        mlx5_sim::settle();
        const auto sent = a.poll(a.send_cq);
        ASSERT_FALSE(sent.empty());
        EXPECT_NE(sent[0].status, IBV_WC_SUCCESS);
        EXPECT_NE(sent[0].status, IBV_WC_WR_FLUSH_ERR);
        EXPECT_EQ(recover(a), 32u) << "what was posted for receiving comes back";
        for (int i = 0; i < 10; i++) {
            a.send(udp("after recovery"));
            ASSERT_THAT(b.receive(), ElementsAre(udp("after recovery")));
        }
        EXPECT_EQ(a.poll(a.send_cq).size(), 10u);
        const Bytes answer = udp_frames::make({kMacB, kMacA, kIpB, kIpA, 2000, 1000, "answer"});
        b.send(answer);
        EXPECT_THAT(a.receive(), ElementsAre(answer)) << "its rules are still there";
        EXPECT_EQ(b.poll(b.send_cq).size(), 1u);
    }
}

TEST_P(RdmaEvents, FailedReceiveAndRecovery) {
    Rig b(config(kB));
    b.rule(three_tuple());
    mlx5_sim::nic(kB).set_faults({.fail_receives = 1});
    mlx5_sim::nic(kB).receive(udp("lost"));
    mlx5_sim::settle();
    const auto received = b.poll(b.recv_cq);
    ASSERT_FALSE(received.empty());
    EXPECT_NE(received[0].status, IBV_WC_SUCCESS);
    recover(b);
    arrive("after recovery");
    EXPECT_THAT(b.receive(), ElementsAre(udp("after recovery")));
}

TEST_P(RdmaEvents, RecoveryOnAVlan) {
    RdmaConfig on_vlan = config(kB);
    on_vlan.vlan = 5;
    Rig b(on_vlan);
    b.rule(three_tuple());
    recover(b);
    Bytes frame = udp("x");
    frame.insert(frame.begin() + 12, {0x81, 0, 0, 5});
    ASSERT_TRUE(mlx5_sim::nic(kB).receive(frame));
    EXPECT_THAT(b.receive(), ElementsAre(udp("x")));
}

TEST_P(RdmaEvents, DeviceFatal) {
    Rig b(config(kB));
    b.rule(three_tuple());
    std::atomic<int> told{0};
    b.device->on_failure([&] { told++; });
    EXPECT_FALSE(b.device->failed());
    mlx5_sim::fail_device(kB);
    EXPECT_TRUE(eventually([&] { return told == 1; }));
    EXPECT_TRUE(b.device->failed());
    EXPECT_FALSE(b.device->recover(b.qp));
    EXPECT_FALSE(b.device->create_flow(b.qp, three_tuple(3000)));
    b.device->stop(b.qp);
    b.device->moderate(b.recv_cq, 1, 1);
    b.device->link_changed(kMacA, 9000);
    mlx5_sim::repair_device(kB);
    EXPECT_EQ(told, 1);
}

TEST_P(RdmaEvents, FailureIsToldToWhoAsksLater) {
    Rig b(config(kB));
    mlx5_sim::fail_device(kB);
    ASSERT_TRUE(eventually([&] { return b.device->failed(); }));
    std::atomic<int> told{0};
    b.device->on_failure([&] { told++; });
    EXPECT_TRUE(eventually([&] { return told == 1; }));
    mlx5_sim::repair_device(kB);
}

TEST_P(RdmaEvents, FramesThatWouldNotFit) {
    Rig b(config(kB));
    b.rule(three_tuple());
    b.device->link_changed(kMacB, 1900);
    EXPECT_FALSE(b.device->failed());
    EXPECT_EQ(b.device->attr().mtu, 1900u);
    b.device->link_changed(kMacB, 9000);
    EXPECT_TRUE(b.device->failed());
    EXPECT_TRUE(mlx5_sim::nic(kB).steered(udp("x"))) << "the kernel does not know its sockets yet";
    b.device->give_up_flows();
    EXPECT_FALSE(mlx5_sim::nic(kB).steered(udp("x"))) << "its frames are the kernel's";
}

TEST_P(RdmaEvents, LargeMtu) {
    RdmaConfig jumbo = config(kB);
    jumbo.mtu = 9000;
    Rig b(jumbo);
    EXPECT_EQ(b.device->attr().chunk_size, 16384u);
    b.rule(three_tuple());
    arrive(udp_frames::pattern(8972));
    EXPECT_THAT(b.receive(), ElementsAre(udp(udp_frames::pattern(8972))));
}

TEST_P(RdmaEvents, PortAndQueueEventsAreHarmless) {
    Rig b(config(kB));
    b.rule(three_tuple());
    mlx5_sim::set_port(kB, false);
    mlx5_sim::set_port(kB, true);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    arrive("still there");
    EXPECT_EQ(b.receive().size(), 1u);
    EXPECT_FALSE(b.device->failed());
}

// ---- descriptors, processes ----

TEST_P(RdmaEvents, DescriptorsAreHidden) {
    { Rig first(config(kA)); }  // what is opened once for good
    const auto before = descriptors();
    const int lowest_free = dup(0);
    close(lowest_free);
    {
        Rig a(config(kA));
        EXPECT_TRUE(vma::InternalFd::is_internal(a.channel->fd));
        EXPECT_GT(a.channel->fd, 1000);
        int hidden = 0;
        for (int fd : descriptors()) {
            if (std::ranges::find(before, fd) != before.end()) continue;
            hidden += vma::InternalFd::is_internal(fd);
            EXPECT_TRUE(vma::InternalFd::is_internal(fd) || fd >= 500)
                << fd << " is neither ours nor the simulator's";
        }
        EXPECT_EQ(hidden, 3) << "device, asynchronous events, channel";
        const int next = dup(0);
        EXPECT_EQ(next, lowest_free) << "the program's numbers are as they were";
        close(next);
    }
    EXPECT_EQ(descriptors(), before);
}

TEST_P(RdmaEvents, OpenedAndClosedManyTimes) {
    { Rig first(config(kB)); }
    const auto before = descriptors();
    for (int i = 0; i < 100; i++) {
        Rig b(config(kB));
        b.rule(three_tuple());
    }
    EXPECT_EQ(descriptors(), before);
    EXPECT_EQ(mlx5_sim::open_contexts(), 0u);
}

TEST_P(RdmaEvents, ForkedChildLeavesItAlone) {
    vma::runtime::install_fork_hooks();
    auto b = std::make_unique<Rig>(config(kB));
    b->rule(three_tuple());
    const pid_t child = fork();
    if (child == 0) {
        const bool hidden_closed = fcntl(b->channel->fd, F_GETFD) < 0;
        b->flows.clear();
        b->device.reset();
        _exit(hidden_closed ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    arrive("after the child's end");
    EXPECT_EQ(b->receive().size(), 1u);
}

// An adapter copies a frame to each QP with its rule. So one process at a time has a rule.
TEST_P(RdmaEvents, ARuleIsOneProcesss) {
    vma::runtime::install_fork_hooks();
    int ready[2], word[2];
    ASSERT_EQ(pipe(ready), 0);
    ASSERT_EQ(pipe(word), 0);
    const pid_t child = fork();
    if (child == 0) {
        auto b = std::make_unique<Rig>(config(kB));
        b->rule(three_tuple());
        char byte = 1;
        (void)!write(ready[1], &byte, 1);
        (void)!read(word[0], &byte, 1);
        b->drop(b->flows.front());
        (void)!write(ready[1], &byte, 1);
        (void)!read(word[0], &byte, 1);
        b->rule(three_tuple());
        (void)!write(ready[1], &byte, 1);
        for (;;) pause();
    }
    char byte;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    {
        Rig b(config(kB));
        std::atomic<int> freed{0};
        b.device->on_rule_freed([&] { freed++; });
        const auto refused = [&] {
            auto made = b.device->create_flow(b.qp, three_tuple());
            if (made) b.device->destroy_flow(*made);
            return !made && made.error().code == EBUSY;
        };
        EXPECT_TRUE(refused());
        b.drop(b.rule(five_tuple()));
        b.drop(b.rule(three_tuple(2001)));
        ASSERT_EQ(write(word[1], &byte, 1), 1);  // the other process lets go of it
        ASSERT_EQ(read(ready[0], &byte, 1), 1);
        EXPECT_TRUE(eventually([&] { return freed == 1; }));
        EXPECT_FALSE(refused());
        ASSERT_EQ(write(word[1], &byte, 1), 1);  // and takes it again
        ASSERT_EQ(read(ready[0], &byte, 1), 1);
        EXPECT_TRUE(refused());
        kill(child, SIGKILL);
        EXPECT_TRUE(eventually([&] { return freed == 2; }));
        EXPECT_FALSE(refused());
    }
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
    for (const int fd : {ready[0], ready[1], word[0], word[1]}) close(fd);
}

TEST_P(RdmaEvents, ErrnoIsKept) {
    errno = EDOM;
    Rig b(config(kB));
    auto* flow = b.rule(three_tuple());
    b.device->consume_events(b.channel);
    b.device->moderate(b.recv_cq, 1, 1);
    b.drop(flow);
    EXPECT_EQ(errno, EDOM);
}

TEST_P(RdmaEvents, NoSuchDevice) {
    RdmaConfig wrong = config(kA);
    wrong.port.device = "mlx5_9";
    auto opened = RdmaDevice::open(wrong);
    ASSERT_FALSE(opened);
    EXPECT_NE(opened.error().what.find("mlx5_9"), std::string::npos);
    wrong = config(kA);
    wrong.port.port = 7;
    EXPECT_FALSE(RdmaDevice::open(wrong));
}

}  // namespace
}  // namespace rdma_rig
