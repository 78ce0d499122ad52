// SPDX-License-Identifier: BSD-2-Clause
// A line on the terminal that shows how much of a long job is done. Without a terminal on standard error,
// nothing.
#pragma once

#include <chrono>
#include <string>

namespace vma_perf {

class Progress {
  public:
    explicit Progress(bool quiet);
    ~Progress() { clear(); }
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    // Shows the text in place of what was there; at most four times a second unless `now`.
    void show(const std::string& text, bool now = false);
    // Removes the line, before something else is printed.
    void clear();
    bool active() const noexcept { return active_; }

  private:
    const bool active_;
    bool shown_ = false;
    std::chrono::steady_clock::time_point last_{};
};

}  // namespace vma_perf
