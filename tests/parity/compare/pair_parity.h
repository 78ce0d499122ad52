// SPDX-License-Identifier: BSD-2-Clause
// The kernel is the reference, for two programs that talk: a case of a program in tests/apps that is written
// with tests/parity/pair/tcp_harness.h runs as a server on host a and a client on host b, without the
// library and with it; the transcripts must be equal. Each case has moreover a limit of packets that the
// kernel may carry at a side with the library, seen in its counters; otherwise falling back for everything
// would pass.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "tests/support/hosts/device.h"
#include "tests/support/hosts/two_hosts.h"

namespace testing_support {

struct PairCase {
    std::string program, theme, name;
    long kernel_limit;  // segments and datagrams, at each side
    bool server_is_killed;
};
inline void PrintTo(const PairCase& c, std::ostream* out) { *out << c.theme << "." << c.name; }
// What the program answers to --list, sorted.
std::vector<PairCase> pair_cases(const std::string& program);
inline std::string pair_case_name(const testing::TestParamInfo<PairCase>& info) {
    return info.param.theme + "_" + info.param.name;
}

struct PairSide {
    Exit exit;
    long kernel_segments = -1;
};
struct PairOutcome {
    PairSide server, client;
};

class PairParity : public testing::TestWithParam<PairCase> {
  protected:
    static void SetUpTestSuite();
    static void TearDownTestSuite();
    void SetUp() override { ASSERT_TRUE(hosts_) << why_; }
    // A program that hung may have left routes behind: the next case has hosts of its own.
    void TearDown() override {
        if (!HasFailure()) return;
        TearDownTestSuite();
        SetUpTestSuite();
    }

    // Runs the kernel's own pair and those with the library; each_side: also with the library on one side
    // only.
    void expect_same_as_kernel(bool each_side);
    milliseconds limit_{15000};  // of one run
    // Of the runs with the library on both sides; each is tried.
    std::vector<std::vector<std::string>> environments_{{}};

    // Each program inherits an epoll set as descriptor 102; the end of a pipe is in it, 103 is the other.
    bool inherited_set_ = false;

  private:
    PairOutcome run(bool library_at_server, bool library_at_client,
                    const std::vector<std::string>& environment = {}) const;
    static void compare(const std::string& what, const PairOutcome& kernel, const PairOutcome& library,
                        bool at_server, bool at_client);

    static inline std::unique_ptr<TwoHosts> hosts_;
    static inline std::string why_;
};

}  // namespace testing_support
