// SPDX-License-Identifier: BSD-2-Clause
// Segments of an attacker for a live connection and a listener; the program only reads and writes. See
// tcp_run.h.
#include "tests/fuzz/tcp_run.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Input input(data, size);
    fuzz::Run(input, false).run();
    return 0;
}
