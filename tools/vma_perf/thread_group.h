// SPDX-License-Identifier: BSD-2-Clause
// The threads of a run: each is pinned, and what one of them throws is kept for the thread that waits.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "tools/vma_perf/cpus.h"

namespace vma_perf {

class ThreadGroup {
  public:
    ThreadGroup() = default;
    ThreadGroup(const ThreadGroup&) = delete;
    ThreadGroup& operator=(const ThreadGroup&) = delete;
    ~ThreadGroup() { join(); }

    // Starts `count` threads; thread i calls work(i). `cpus`: for the threads, in turn; empty: any.
    void start(unsigned count, const std::vector<unsigned>& cpus, std::function<void(unsigned)> work) {
        cpus_ = cpus;
        work_ = std::move(work);
        errors_.resize(count);
        running_ = count;
        for (unsigned i = 0; i < count; ++i) threads_.emplace_back([this, i] { run(i); });
    }
    void join() {
        for (std::thread& thread : threads_) thread.join();
        threads_.clear();
    }
    // Any time.
    bool running() const noexcept { return running_ > 0; }
    bool failed() const noexcept { return failed_; }
    // After join(): throws what the first thread that failed has thrown.
    void rethrow() const {
        for (const auto& error : errors_)
            if (error) std::rethrow_exception(error);
    }

  private:
    void run(unsigned i) noexcept {
        try {
            if (!cpus_.empty()) pin_to(cpus_[i % cpus_.size()]);
            work_(i);
        } catch (...) {
            errors_[i] = std::current_exception();
            failed_ = true;
        }
        --running_;
    }

    std::vector<unsigned> cpus_;
    std::function<void(unsigned)> work_;
    std::vector<std::exception_ptr> errors_;
    std::vector<std::thread> threads_;
    std::atomic<unsigned> running_{0};
    std::atomic<bool> failed_{false};
};

}  // namespace vma_perf
