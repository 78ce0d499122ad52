// SPDX-License-Identifier: BSD-2-Clause
// TCP as the kernel does it: the cases of tests/parity/tcp, with the library on the server, on the
// client, and on both (support/pair_parity.h).
#include "tests/parity/compare/pair_parity.h"

namespace {

using namespace testing_support;

class TcpParity : public PairParity {};

TEST_P(TcpParity, SameAsKernel) {
    if (sanitized() && GetParam().theme == "listen" && GetParam().name == "accept_bad_addresses")
        GTEST_SKIP() << "AddressSanitizer's accept() reads what the case says is not to be read";
    if (sanitized() && GetParam().theme == "handler" && GetParam().name.starts_with("cancel"))
        GTEST_SKIP() << "AddressSanitizer does not follow the unwinding of pthread_cancel";
    expect_same_as_kernel(true);
}

INSTANTIATE_TEST_SUITE_P(Tcp, TcpParity, testing::ValuesIn(pair_cases("tcp_parity")), pair_case_name);

}  // namespace
