// SPDX-License-Identifier: BSD-2-Clause
// Exit statuses. Scripts rely on the numbers, which vma_perf(1) documents.
#pragma once

#include <stdexcept>
#include <string>

namespace vma_perf {

enum Status : int {
    kOk = 0,
    kFailed = 1,         // a system call failed, a file cannot be read or written
    kUsage = 2,          // wrong options, or options that contradict
    kUnreachable = 3,    // no server there
    kPeerEnded = 4,      // the other side ended, or stopped answering, before the run was over
    kVersion = 5,        // the other side speaks another version, or is no vma_perf
    kData = 6,           // --verify found messages that are not what was sent
    kUnsupported = 7,    // this machine, library or build does not have what was asked for
    kNotOffloaded = 8,   // race: the library left the work to the kernel
    kInterrupted = 130,  // SIGINT or SIGTERM; what was measured so far is printed
};

// Thrown wherever a run cannot go on; main() prints the text and exits with the status.
class Failure : public std::runtime_error {
  public:
    Failure(Status status, const std::string& text) : std::runtime_error(text), status_(status) {}
    Status status() const noexcept { return status_; }

  private:
    Status status_;
};

// A system call failed: "WHAT: reason" with errno's text.
[[noreturn]] void fail_errno(const std::string& what, Status status = kFailed);

}  // namespace vma_perf
