// SPDX-License-Identifier: BSD-2-Clause
// Runs programs that use the extra API, against a peer on the kernel.
#pragma once

#include <stdlib.h>

#include "tests/support/hosts/plain_test.h"

namespace testing_support {

class ExtraApi : public testing::Test {
  protected:
    ExtraApi() : hosts({.known_neighbours = true}) {}

    // The log of the last one. VMA_TEST_PACKETS says how much each case does, as far as it has a choice.
    std::string run(const std::string& program, const std::vector<std::string>& cases,
                    std::vector<std::string> env = {}) {
        Process peer = hosts.run(Host::b, {app(program), "peer", "198.18.1.2"});
        EXPECT_TRUE(peer.wait_for_out("ready")) << peer.err() << peer.out();
        std::string log;
        for (const std::string& name : cases) {
            std::vector<std::string> command{app(program), name, "198.18.1.1", "198.18.1.2"};
            milliseconds time(20000);
            if (const char* packets = getenv("VMA_TEST_PACKETS")) {
                command.emplace_back(packets);
                time += milliseconds(atol(packets) / 5);
            }
            const Exit done = hosts.run(Host::a, command, with_library(env)).wait(time * patience());
            EXPECT_TRUE(done.ok()) << name << ": " << done.code << (done.timed_out ? " timed out" : "")
                                   << "\n"
                                   << done.out << done.err;
            EXPECT_NE(done.out.find("done"), std::string::npos) << name;
            log = done.err;
        }
        return log;
    }
    TwoHosts hosts;
};

}  // namespace testing_support
