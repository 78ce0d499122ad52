// SPDX-License-Identifier: BSD-2-Clause
// TCP sockets on the library, client and server, against a peer on the kernel and on the library: whatever a call
// answers there, it answers here.
#include "support/plain_test.h"

namespace {

using namespace testing_support;

class TcpSockets : public testing::Test {
  protected:
    // The client's transcript; server on host b.
    std::string talk(RunOptions client, RunOptions server) {
        // An address that nobody has is asked for anew: the failure of an earlier question would come too early.
        hosts.ip(Host::a, {"neigh", "flush", "dev", TwoHosts::interface(), "nud", "all"});
        Process listening = hosts.run(Host::b, {app("tcp_socket"), "server"}, std::move(server));
        EXPECT_TRUE(listening.wait_for_out("ready")) << listening.err();
        Exit done = hosts.run(Host::a, {app("tcp_socket"), "client", "198.18.1.2", "198.18.1.1"}, client)
                        .wait(milliseconds(30000) * patience());
        EXPECT_TRUE(done.ok()) << done.code << " " << done.timed_out << "\n" << done.out << done.err;
        EXPECT_TRUE(listening.running()) << listening.err();
        if (client.preload) {
            EXPECT_NE(done.err.find("are offloaded"), std::string::npos) << done.err;
        }
        return done.out;
    }
    TwoHosts hosts;
};

TEST_F(TcpSockets, AnswerAsTheKernels) {
    const std::string kernel = talk({}, {});
    EXPECT_NE(kernel.find("here"), std::string::npos) << kernel;
    EXPECT_EQ(talk(with_library(), {}), kernel) << "client on the library";
    EXPECT_EQ(talk({}, with_library()), kernel) << "server on the library";
    EXPECT_EQ(talk(with_library(), with_library()), kernel) << "both on the library";
}

}  // namespace
