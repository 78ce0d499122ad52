// SPDX-License-Identifier: BSD-2-Clause
// Programs that poll rings by the extra API (VMA_SOCKETXTREME). What each case does stands in
// tests/apps/extra_poll.cpp and extra_pollers.cpp.
#include "tests/preloaded/extra/fixture.h"

namespace {

using namespace testing_support;

class SocketXtreme : public ExtraApi {
  protected:
    // Two programs as users have them: `mine` polls, `theirs` is on the kernel.
    void converse(const char* mine, const char* theirs) {
        Process poller = hosts.run(Host::a, {app("extra_pollers"), mine, "198.18.1.1", "198.18.1.2"},
                                   with_library({"VMA_SOCKETXTREME=1"}));
        ASSERT_TRUE(poller.wait_for_out("ready")) << poller.err() << poller.out();
        const Exit far = hosts.run(Host::b, {app("extra_pollers"), theirs, "198.18.1.2", "198.18.1.1"})
                             .wait(milliseconds(30000) * patience());
        EXPECT_TRUE(far.ok()) << far.out << far.err;
        const Exit done = poller.wait(milliseconds(30000) * patience());
        EXPECT_TRUE(done.ok()) << done.code << (done.timed_out ? " timed out" : "") << done.out << done.err;
    }
    void poll(const std::vector<std::string>& cases) { run("extra_poll", cases, {"VMA_SOCKETXTREME=1"}); }
};

TEST_F(SocketXtreme, PollsDatagrams) { poll({"udp_content", "errors", "options", "lifetime"}); }
TEST_F(SocketXtreme, PollsStreams) { poll({"tcp_stream", "tcp_refused", "tcp_window"}); }
TEST_F(SocketXtreme, BoundsWhatAProgramKeeps) { poll({"starving"}); }
TEST_F(SocketXtreme, LeavesOtherSocketsAlone) { poll({"ordinary", "moved", "forked", "callback"}); }
TEST_F(SocketXtreme, PollsInSeveralThreads) { poll({"threads", "churn"}); }
TEST_F(SocketXtreme, FreesInAnyOrderInTwoThreads) { poll({"stress"}); }
TEST_F(SocketXtreme, ReceivesManyGroups) { converse("groups", "feed"); }
TEST_F(SocketXtreme, ServesConnectionsWithoutAccept) { converse("echo", "clients"); }
TEST_F(SocketXtreme, ServesConnectionsWithFewDescriptors) {
    // The sanitizer opens a pipe to look at an object, and takes an object for wrong without it.
    converse(sanitized() ? "echo" : "echo_few", "clients");
}
TEST_F(SocketXtreme, IsOffUnlessAskedFor) { run("extra_poll", {"off"}); }
TEST_F(SocketXtreme, StatisticsShowWhatIsPolled) {
    Process peer = hosts.run(Host::b, {app("extra_poll"), "peer", "198.18.1.2"});
    ASSERT_TRUE(peer.wait_for_out("ready")) << peer.err() << peer.out();
    Process holder = hosts.run(Host::a, {app("extra_poll"), "shown", "198.18.1.1", "198.18.1.2"},
                               with_library({"VMA_SOCKETXTREME=1"}));
    ASSERT_TRUE(holder.wait_for_out("look now")) << holder.err() << holder.out();
    const std::string shown =
        tool({vma_stats(), "-p", std::to_string(holder.pid()), "-v", "3", "-c", "1", "-i", "0.1"});
    EXPECT_NE(shown.find("SocketXtreme: 5 packets"), std::string::npos) << shown;
    EXPECT_NE(shown.find("Extra API: 3 packets held, 1068 bytes"), std::string::npos) << shown;
}

}  // namespace
