// SPDX-License-Identifier: BSD-2-Clause
// How many packets the kernel carried while a parity case ran, as the programs of tests/parity report
// it.
#pragma once

#include <string>

#include "tests/support/hosts/process.h"

namespace testing_support {

// A memory file that the program has as descriptor 101 and writes lines to: "begin N" when its case begins,
// "end N" when it has ended, and again when a program that it executed ends. A later "begin" takes the place
// of the first: nothing is to be counted.
class KernelReport {
  public:
    static constexpr int kNumber = 101;
    KernelReport();
    int fd() const { return file_.get(); }
    // Packets from the last "begin" to the last "end"; -1 when either is missing.
    long packets() const;

  private:
    Fd file_;
};

// Fails the test unless `library`, of a run with the library, is there and at most `limit`.
void expect_offloaded(long library, long limit);

}  // namespace testing_support
