// SPDX-License-Identifier: BSD-2-Clause
// The processes that are watched, from when they are found until they end.
#pragma once

#include <expected>
#include <set>
#include <string>
#include <vector>

#include "tools/vma_stats/attach.h"
#include "tools/vma_stats/options.h"
#include "tools/vma_stats/sampler.h"

namespace vma_stats {

// A report of a process.
struct Sample {
    pid_t pid = 0;
    std::string program;
    Frame frame;
    bool ended = false;  // this is the last one
};

// Why there is nothing to watch.
struct Refusal {
    bool may_come = false;           // none runs: one may be started yet
    std::vector<std::string> lines;  // for people
};

class Fleet {
  public:
    // `all`: every process that fits, also those that are started later. Otherwise exactly one.
    Fleet(const Options& options, bool all) : options_(options), all_(all) {}

    std::expected<void, Refusal> find();
    // Reads every process, in the order of their numbers. A process that has ended comes once more, marked,
    // and is then forgotten.
    std::vector<Sample> sample();
    // What went wrong since the last call, each once.
    std::vector<std::string> complaints();
    // Did a process become unreadable, rather than end?
    bool failed() const { return failed_; }

    bool empty() const { return members_.empty(); }
    std::vector<int> pidfds() const;
    const Attachment& first() const { return members_.front().process; }

  private:
    struct Member {
        Attachment process;
        Sampler sampler;
        bool refreshes = true;  // it does as we ask (Command::refresh)
    };

    std::expected<void, Refusal> find_all();
    void complain(const Problem& problem);
    void join();
    // A process that has called exec has another file.
    void follow(Member& member);

    const Options& options_;
    bool all_;
    bool failed_ = false;
    std::vector<Member> members_;
    std::vector<std::string> complaints_;
    std::set<std::string> complained_;
};

}  // namespace vma_stats
