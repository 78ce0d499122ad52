// SPDX-License-Identifier: BSD-2-Clause
// select, poll and epoll as the kernel does them: the groups of scenarios of tests/apps/mux_parity, with the
// library on both sides (support/pair_parity.h).
#include <map>

#include "support/pair_parity.h"

namespace {

using namespace testing_support;

class MuxParity : public PairParity {
  protected:
    MuxParity() {
        limit_ = milliseconds(30000);  // some hundred scenarios
        // The default spins for longer than most scenarios take: so it is also tried with never and with
        // always sleeping.
        environments_ = {
            {}, {"VMA_SELECT_POLL=-1", "VMA_RX_POLL=-1"}, {"VMA_SELECT_POLL=0", "VMA_RX_POLL=0"}};
    }
};

TEST_P(MuxParity, SameAsKernel) { expect_same_as_kernel(false); }

INSTANTIATE_TEST_SUITE_P(Mux, MuxParity, testing::ValuesIn(pair_cases("mux_parity")), pair_case_name);

}  // namespace
