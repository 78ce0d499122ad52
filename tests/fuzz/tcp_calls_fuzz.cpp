// SPDX-License-Identifier: BSD-2-Clause
// Two actors: an attacker's segments and the program's socket calls, with options, freezing, path changes,
// ICMP and a full device between them. See tcp_run.h.
#include "tests/fuzz/tcp_run.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Input input(data, size);
    fuzz::Run(input, true).run();
    return 0;
}
