// SPDX-License-Identifier: BSD-2-Clause
// select, poll and epoll as the kernel does them: the groups of scenarios of tests/parity/mux, with the
// library on both sides (support/pair_parity.h).
#include <map>

#include "tests/parity/compare/pair_parity.h"

namespace {

using namespace testing_support;

class MuxParity : public PairParity {
  protected:
    void SetUp() override {
        PairParity::SetUp();
        limit_ = milliseconds(30000);  // some hundred scenarios
        inherited_set_ = GetParam().name == "inherited";
        // The default spins for longer than most scenarios take: so it is also tried with never and with
        // always sleeping.
        environments_ = {
            {}, {"VMA_SELECT_POLL=-1", "VMA_RX_POLL=-1"}, {"VMA_SELECT_POLL=0", "VMA_RX_POLL=0"}};
        // An adapter cannot change who spins; that completions wake who sleeps it can. Sanitizers see in the
        // default what they see in a program that always spins.
        if (simulated() || sanitized()) environments_.erase(environments_.begin() + 1);
        if (GetParam().theme != "random") return;
        // Long, so each seed has its own: how threads lock, who else polls.
        static const std::map<std::string, std::vector<std::string>> kOwn = {
            {"seed1", {"VMA_THREAD_MODE=0"}},
            {"seed2", {"VMA_THREAD_MODE=2"}},
            {"seed3", {"VMA_THREAD_MODE=3"}},
            {"seed4", {"VMA_INTERNAL_THREAD_ARM_CQ=1"}}};
        environments_ = {{}, kOwn.at(GetParam().name)};
    }
};

TEST_P(MuxParity, SameAsKernel) {
    if (sanitized() && GetParam().theme == "limits" && GetParam().name == "arguments")
        GTEST_SKIP() << "AddressSanitizer's poll() reads what the case says is not to be read";
    expect_same_as_kernel(false);
}

INSTANTIATE_TEST_SUITE_P(Mux, MuxParity, testing::ValuesIn(pair_cases("mux_parity")), pair_case_name);

}  // namespace
