// SPDX-License-Identifier: BSD-2-Clause
// Programs that race runs in a namespace. The parent reads their output, and they end with the parent.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "tools/common/fd.h"

namespace vma_perf {

struct Start {
    std::vector<std::string> arguments;  // the first one is searched in PATH
    int netns = -1;                      // descriptor of a network namespace; -1: the parent's
    std::string preload;                 // LD_PRELOAD; empty: without
    bool quiet_library = true;           // VMA_TRACELEVEL=warn unless the environment says something
};

class Child {
  public:
    // Throws Failure when there is no process to speak of.
    explicit Child(const Start& start);
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;
    ~Child();  // kills and reaps

    // Reads output until it has `text`. False: the program ended, or the time is over, first.
    bool wait_for_output(const std::string& text, std::chrono::milliseconds limit);
    // Reads output until the program ends. Returns its status, 128 + signal if it was killed. When `stop` is
    // set it is asked to end.
    int wait(const std::atomic<bool>& stop);
    void signal(int number) const;

    const std::string& out() const noexcept { return out_; }
    const std::string& err() const noexcept { return err_; }

  private:
    // False: both ends are closed.
    bool read_some(std::chrono::milliseconds limit);

    pid_t pid_ = -1;
    tools::Fd out_fd_, err_fd_;
    std::string out_, err_;
};

}  // namespace vma_perf
