// SPDX-License-Identifier: BSD-2-Clause
// Who turns the wheels of the simulator: a test, step by step, or a thread of the simulator's own.
//
// The thread is for programs that know nothing of the simulator. It has a descriptor table of its own
// (unshare(2) with CLONE_FILES, then everything inherited is closed but standard error), so the program
// cannot see or close the simulator's descriptors, nor do its children inherit them. That has a price:
// whatever uses such a descriptor must run on that thread. Hence run() and later().
//
// Without the thread the same calls run at once, and the private descriptors are in the program's table, from
// 500 upwards.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

namespace mlx5_sim {

// Lives as long as the process.
class Engine {
  public:
    // `turn` does one round of work and tells whether there was any; `rest` sleeps until there may be some,
    // at most so many microseconds. Both on the thread.
    Engine(bool threaded, std::function<bool()> turn, std::function<void(unsigned)> rest);
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    bool threaded() const { return threaded_; }
    // Starts the thread, if there is to be one and it does not run yet. An errno, or 0.
    int start();
    // Nothing to do until further notice: the thread sleeps soundly; and back.
    void pause(bool paused);

    // Runs the task where the private descriptors are, and waits until it is done. Never with a lock that the
    // thread may want, such as the model's.
    void run(const std::function<void()>& task);
    // Runs it there in the next turn (without a thread: with the next turn()).
    void later(std::function<void()> task);
    // Is this where the private descriptors are?
    bool here() const;
    // Has the thread descriptors of its own? After a first run().
    bool private_table() const { return private_table_; }
    // Inside run(): opens the pipe behind `fd`, a descriptor of the program, for reading and writing without
    // blocking, as a private descriptor. -1 and errno when that fails.
    int adopt(int fd) const;
    // Runs what later() left; for steps without a thread. True if there was anything.
    bool drain();

  private:
    static void* thread_main(void* self);
    void loop();

    const bool threaded_;
    const std::function<bool()> turn_;
    const std::function<void(unsigned)> rest_;
    bool started_ = false;
    bool private_table_ = false;  // set by the thread
    int process_ = -1;            // pidfd of the program, in the thread's table
    pthread_t thread_{};

    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::vector<std::function<void()>> tasks_;
    unsigned long queued_ = 0, finished_ = 0;  // tasks so far
    bool paused_ = true;
};

}  // namespace mlx5_sim
