// SPDX-License-Identifier: BSD-2-Clause
// The extra API in a program with the library; the far side is on the kernel. What each case does stands in
// tests/apps/extra_*.cpp.
#include "tests/preloaded/extra/fixture.h"

namespace {

using namespace testing_support;

TEST_F(ExtraApi, ReceivesDatagramsWithoutCopying) {
    run("extra_receive", {"udp_content", "udp_errors", "udp_kernel", "udp_lifetime", "forked"});
}
TEST_F(ExtraApi, BoundsWhatAProgramKeeps) {
    run("extra_receive", {"udp_starving"});
    // A quarter of these is less than the case keeps.
    const std::string log = run("extra_receive", {"udp_share"}, {"VMA_RX_BUFS=4096", "VMA_RX_WRE=1024"});
    EXPECT_NE(log.find("it gets copies until"), std::string::npos) << log;
}
TEST_F(ExtraApi, ReceivesStreamsWithoutCopying) { run("extra_receive", {"tcp_content", "tcp_window"}); }
TEST_F(ExtraApi, LentStreamsStayWithTheLibrary) { run("extra_receive", {"tcp_bulk"}); }
TEST_F(ExtraApi, StatisticsShowWhatIsKept) {
    Process peer = hosts.run(Host::b, {app("extra_callback"), "peer", "198.18.1.2"});
    ASSERT_TRUE(peer.wait_for_out("ready")) << peer.err() << peer.out();
    Process holder =
        hosts.run(Host::a, {app("extra_callback"), "shown", "198.18.1.1", "198.18.1.2"}, with_library());
    ASSERT_TRUE(holder.wait_for_out("look now")) << holder.err() << holder.out();
    const std::string shown =
        tool({vma_stats(), "-p", std::to_string(holder.pid()), "-v", "3", "-c", "1", "-i", "0.1"});
    EXPECT_NE(shown.find("Extra API: 3 packets held, 1068 bytes"), std::string::npos) << shown;
    EXPECT_NE(shown.find("Callback: 2 / 1 / 3 [dropped/received/held]"), std::string::npos) << shown;
}
TEST_F(ExtraApi, TableAndSettings) { run("extra_settings", {"table", "rings", "settings", "dummy", "many"}); }
TEST_F(ExtraApi, TakesTheProgramsMemory) { run("extra_settings", {"memory", "memory_errors"}); }
TEST_F(ExtraApi, SocketsChooseTheirRings) { run("extra_rings", {"profiles", "mistakes", "users", "shared"}); }
TEST_F(ExtraApi, CallbacksJudgeDatagrams) {
    run("extra_callback", {"udp_verdicts", "udp_waiting", "udp_inside", "errors", "threads"});
}
TEST_F(ExtraApi, CallbacksJudgeStreams) { run("extra_callback", {"tcp_verdicts", "tcp_leaving"}); }
TEST_F(ExtraApi, CallbacksLeaveAsTheyLike) { run("extra_callback", {"udp_leaving"}); }
TEST_F(ExtraApi, FreesInAnyOrderInTwoThreads) { run("extra_receive", {"stress", "random_order"}); }
TEST_F(ExtraApi, SendsFromTheLibrarysBuffers) {
    run("extra_buffers", {"datagrams", "mistakes", "lifetime", "stream"});
}
// A buffer of another socket's ring is copied.
TEST_F(ExtraApi, SendsFromBuffersOfSeveralRings) {
    const std::vector<std::string> own{"VMA_RING_ALLOCATION_LOGIC_RX=10", "VMA_RING_ALLOCATION_LOGIC_TX=10"};
    run("extra_buffers", {"datagrams", "mistakes", "lifetime", "stream", "quota"}, own);
}
TEST_F(ExtraApi, BoundsTheSendBuffersOfAProgram) { run("extra_buffers", {"quota"}); }
TEST_F(ExtraApi, SendsFromRegisteredMemory) { run("extra_buffers", {"memory"}); }
TEST_F(ExtraApi, SendsManyWithOneCall) { run("extra_sending", {"datagrams", "stream", "others"}); }

}  // namespace
