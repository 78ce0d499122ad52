// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/mlx5_sim/engine.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <string>

#include "tests/support/mlx5_sim/own_calls.h"

namespace mlx5_sim {
namespace {

constexpr int kFirstPrivate = 500;   // without a thread: out of the way of the program's own descriptors
constexpr unsigned kBusyTurns = 20;  // turns without work before the thread sleeps
constexpr unsigned kShortestRest = 20, kLongestRest = 250;  // microseconds
thread_local bool on_the_thread = false;

}  // namespace

Engine::Engine(bool threaded, std::function<bool()> turn, std::function<void(unsigned)> rest)
    : threaded_(threaded), turn_(std::move(turn)), rest_(std::move(rest)) {}

int Engine::start() {
    if (!threaded_ || started_) return 0;
    // The thread takes none of the program's signals.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    const int error = pthread_create(&thread_, nullptr, thread_main, this);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (error != 0) return error;
    pthread_detach(thread_);
    started_ = true;
    return 0;
}

void Engine::pause(bool paused) {
    const std::lock_guard lock(mutex_);
    paused_ = paused;
    wake_.notify_one();
}

bool Engine::here() const { return !threaded_ || on_the_thread; }

void Engine::run(const std::function<void()>& task) {
    if (here()) return task();
    std::unique_lock lock(mutex_);
    tasks_.push_back(task);
    const unsigned long mine = ++queued_;
    wake_.notify_one();
    done_.wait(lock, [&] { return finished_ >= mine; });
}

void Engine::later(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    ++queued_;
    wake_.notify_one();
}

bool Engine::drain() {
    std::vector<std::function<void()>> tasks;
    {
        const std::lock_guard lock(mutex_);
        tasks.swap(tasks_);
    }
    for (const auto& task : tasks) task();
    const std::lock_guard lock(mutex_);
    finished_ += tasks.size();
    if (!tasks.empty()) done_.notify_all();
    return !tasks.empty();
}

int Engine::adopt(int fd) const {
    // procfs shows a thread's own table; what it opens is a new open file of the same pipe, with flags of its
    // own.
    const auto reopen = [](int own) {
        const std::string name = "/proc/thread-self/fd/" + std::to_string(own);
        return static_cast<int>(
            own_call(SYS_openat, AT_FDCWD, name.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    };
    if (!private_table_) {
        const int opened = reopen(fd);
        if (opened < 0) return -1;
        const int high = static_cast<int>(own_call(SYS_fcntl, opened, F_DUPFD_CLOEXEC, kFirstPrivate));
        if (high < 0) return opened;
        own_call(SYS_close, opened);
        return high;
    }
    const int copy = static_cast<int>(own_call(SYS_pidfd_getfd, process_, fd, 0));
    if (copy < 0) return -1;
    const int opened = reopen(copy);
    const int error = errno;
    own_call(SYS_close, copy);
    errno = error;
    return opened;
}

void* Engine::thread_main(void* self) {
    static_cast<Engine*>(self)->loop();
    return nullptr;
}

void Engine::loop() {
    on_the_thread = true;
    prctl(PR_SET_NAME, "mlx5_sim");
    if (::unshare(CLONE_FILES) == 0) {
        own_call(SYS_close_range, 0, STDERR_FILENO - 1, 0);
        own_call(SYS_close_range, STDERR_FILENO + 1, ~0u, 0);
        process_ = static_cast<int>(own_call(SYS_pidfd_open, ::getpid(), 0));
        private_table_ = process_ >= 0;
    }
    // An adapter does not wait for a processor, however many programs spin: where that is allowed, neither
    // does the thread that plays it. Idle, it sleeps; so programs have the processors.
    const sched_param lowest{.sched_priority = 1};
    ::sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &lowest);
    unsigned idle = 0;
    for (;;) {
        {
            std::unique_lock lock(mutex_);
            wake_.wait(lock, [&] { return !paused_ || !tasks_.empty(); });
        }
        const bool ran = drain();
        if (turn_() || ran) {
            idle = 0;
        } else if (++idle > kBusyTurns) {
            rest_(std::min(kShortestRest + idle - kBusyTurns, kLongestRest));
        } else {
            sched_yield();
        }
    }
}

}  // namespace mlx5_sim
