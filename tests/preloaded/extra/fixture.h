// SPDX-License-Identifier: BSD-2-Clause
// Runs programs that use the extra API, against a peer on the kernel.
#pragma once

#include "tests/support/hosts/plain_test.h"

namespace testing_support {

class ExtraApi : public testing::Test {
  protected:
    ExtraApi() : hosts({.known_neighbours = true}) {}

    // The log of the last one.
    std::string run(const std::string& program, const std::vector<std::string>& cases,
                    std::vector<std::string> env = {}) {
        Process peer = hosts.run(Host::b, {app(program), "peer", "198.18.1.2"});
        EXPECT_TRUE(peer.wait_for_out("ready")) << peer.err() << peer.out();
        std::string log;
        for (const std::string& name : cases) {
            const Exit done =
                hosts.run(Host::a, {app(program), name, "198.18.1.1", "198.18.1.2"}, with_library(env))
                    .wait(milliseconds(20000) * patience());
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
