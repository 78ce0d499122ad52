// SPDX-License-Identifier: BSD-2-Clause
// The simulator with a thread of its own, as whole programs have it: nobody steps.
#include <dirent.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "tests/support/mlx5_sim/tests/fixture.h"

namespace mlx5_sim::test {
namespace {

// mlx5_0 and mlx5_1 are joined from the beginning.
class Threaded : public testing::Test {
  protected:
    void TearDown() override {
        expect_no_violations();
        EXPECT_EQ(open_contexts(), 0u);
    }
};

bool readable_soon(int fd) {
    pollfd poll_fd{fd, POLLIN, 0};
    return poll(&poll_fd, 1, 10'000) == 1;
}
unsigned descriptors() {
    unsigned count = 0;
    DIR* const directory = opendir("/proc/self/fd");
    while (readdir(directory) != nullptr) ++count;
    closedir(directory);
    return count;
}

TEST_F(Threaded, RoundTripsByEvents) {
    PortOptions options;
    options.with_channel = true;
    Port a(kFirst, options), b(kSecond, options);
    const auto to_b = b.steer_udp(7), to_a = a.steer_udp(7);
    const auto cross = [](Port& from, Port& to, unsigned round) {
        to.receive_into(0);
        ASSERT_EQ(ibv_req_notify_cq(to.recv_cq.get(), 0), 0);
        const auto frame = udp_frame(100 + round % 1000, static_cast<std::uint8_t>(round));
        from.fill(1, frame);
        from.send(1, frame.size());
        ASSERT_TRUE(readable_soon(to.channel->fd));
        ibv_cq* cq = nullptr;
        void* context = nullptr;
        ASSERT_EQ(ibv_get_cq_event(to.channel.get(), &cq, &context), 0);
        ibv_ack_cq_events(cq, 1);
        const ibv_wc got = to.next(to.recv_cq.get());
        ASSERT_EQ(got.byte_len, frame.size());
        EXPECT_EQ(std::memcmp(to.slot(0), frame.data(), frame.size()), 0);
        EXPECT_EQ(from.next(from.send_cq.get()).status, IBV_WC_SUCCESS);
    };
    for (unsigned round = 0; round < 500; ++round) {
        ASSERT_NO_FATAL_FAILURE(cross(a, b, round));
        ASSERT_NO_FATAL_FAILURE(cross(b, a, round));
    }
}

TEST_F(Threaded, TheProgramSeesOnlyItsOwnDescriptors) {
    { const Port first(kFirst); }
    const unsigned before = descriptors();
    {
        PortOptions options;
        options.with_channel = true;
        const Port a(kFirst, options);
        EXPECT_EQ(descriptors(), before + 3);  // the device, its events, the channel
    }
    EXPECT_EQ(descriptors(), before);
}

TEST_F(Threaded, CreatingAndEndingWhileFramesCome) {
    Port a(kFirst);
    a.fill(0, udp_frame(100, 1));
    for (unsigned round = 0; round < 50; ++round) {
        PortOptions options;
        options.with_channel = true;
        Port b(kSecond, options);
        const auto rule = b.steer_udp(7);
        for (unsigned i = 0; i < 8; ++i) b.receive_into(i);
        ASSERT_EQ(ibv_req_notify_cq(b.recv_cq.get(), 0), 0);
        for (unsigned i = 0; i < 8; ++i) a.send(0, 100);
        for (unsigned i = 0; i < 8; ++i) ASSERT_EQ(a.next(a.send_cq.get()).status, IBV_WC_SUCCESS);
        // Everything of b ends here, its event unread.
    }
}

TEST_F(Threaded, AChildOpensTheAdapterForItself) {
    Port a(kFirst);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        const bool refused = ibv_alloc_pd(a.context.get()) == nullptr && errno == ENODEV;
        bool works = false;
        {
            Port own(kFirst), other(kSecond);
            const auto rule = other.steer_udp(7);
            other.receive_into(0);
            own.fill(0, udp_frame(100, 1));
            own.send(0, 100);
            works = other.next(other.recv_cq.get()).byte_len == 100;
        }
        _exit(refused && works && !HasFailure() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(a.state(), IBV_QPS_RTS);
}

TEST_F(Threaded, TheClockGoesOn) {
    Port a(kFirst);
    const auto clock = [&] {
        ibv_values_ex values{};
        values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
        EXPECT_EQ(ibv_query_rt_values_ex(a.context.get(), &values), 0);
        return static_cast<std::uint64_t>(values.raw_clock.tv_nsec);
    };
    const std::uint64_t first = clock();
    std::uint64_t now = first;
    for (int i = 0; i < 1000 && now == first; ++i) {
        usleep(1000);
        now = clock();
    }
    EXPECT_GT(now, first);
}

}  // namespace
}  // namespace mlx5_sim::test
