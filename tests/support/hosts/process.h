// SPDX-License-Identifier: BSD-2-Clause
// Running a program inside a network namespace, with and without the library, and seeing what it did.
//
// Output goes to memory files instead of pipes: a chatty program can never block on us, and a test can look
// at what has been written so far at any time. A child dies with the test (PR_SET_PDEATHSIG), so an aborted
// test leaves nothing.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace testing_support {

using std::chrono::milliseconds;

// An owned file descriptor.
class Fd {
  public:
    Fd() = default;
    explicit Fd(int fd) : fd_(fd) {}
    Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Fd& operator=(Fd&& other) noexcept;
    ~Fd() { reset(); }
    int get() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }
    void reset();

  private:
    int fd_ = -1;
};

// How a program ended. `code` is the exit status, or 128 + signal.
struct Exit {
    bool timed_out = false;
    int code = -1;
    int signal = 0;
    std::string out, err;
    bool ok() const { return !timed_out && signal == 0 && code == 0; }
};

struct RunOptions {
    bool preload = false;          // with libvma.so (and the sanitizer's run time, where built with one)
    std::vector<std::string> env;  // further "NAME=value"
    std::vector<std::pair<int, int>> fds;  // {ours, number in the child}
    std::string netns;                     // empty: the test's own
};

class Process {
  public:
    Process() = default;
    Process(Process&& other) noexcept { *this = std::move(other); }
    Process& operator=(Process&& other) noexcept;
    ~Process();  // kills and reaps

    // argv[0] is searched in PATH. Throws std::runtime_error when there is no process to speak of.
    static Process run(std::vector<std::string> argv, const RunOptions& options);
    // Forks and calls `body` there; its value is the exit status. Never has the library.
    static Process run(std::function<int()> body, const RunOptions& options);

    pid_t pid() const { return pid_; }
    bool running();
    std::string out() const;  // so far
    std::string err() const;
    bool wait_for_out(const std::string& text, milliseconds limit = milliseconds(10000));
    bool wait_for_err(const std::string& text, milliseconds limit = milliseconds(10000));
    void kill(int signal);
    // Reaps. At `limit` the process is killed and timed_out is set.
    Exit wait(milliseconds limit = milliseconds(20000));

  private:
    static Process start(const std::function<void()>& child, const RunOptions& options);
    bool reap(bool block);

    pid_t pid_ = -1;
    int status_ = 0;
    bool reaped_ = true;
    Fd out_, err_;
};

// Runs a tool to its end in the test's namespace; its output, and success in *ok (else a failure throws with
// the text).
std::string tool(std::vector<std::string> argv, bool* ok = nullptr);

// Path of a file of the build under test: this build, or the one of the directory VMA_TEST_BUILD (a sanitized
// one). Tools and the programs that use the library are always this build's.
std::string built(const std::string& file);
// Path of the library under test: that of the build under test, or VMA_TEST_LIBRARY (an installed one, an
// older one).
std::string library();
// Has the library under test AddressSanitizer?
bool sanitized();
inline std::string vma_stats() { return VMA_BUILD "/tools/vma_stats/vma_stats"; }
inline std::string vma_perf() { return VMA_BUILD "/tools/vma_perf/vma_perf"; }
// What LD_PRELOAD must be for the library under test.
std::string preload_value();
// Path of a test program from tests/apps.
std::string app(const std::string& name);
// Factor for time limits: sanitizer builds and the simulated adapter are slow.
int patience();

}  // namespace testing_support
