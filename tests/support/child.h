// SPDX-License-Identifier: BSD-2-Clause
// Runs a part of a test in a forked child: log, signal dispositions and the internal thread are things of a
// whole process, and a test must find them untouched.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#ifdef __SANITIZE_THREAD__
// The sanitizer refuses threads in a child of a program with threads, which is just what some tests are
// about.
extern "C" inline __attribute__((used)) const char* __tsan_default_options() { return "die_after_fork=0"; }
#endif

namespace vma::test {

struct Outcome {
    int status = 0;      // as waitpid() has it
    std::string output;  // what went to descriptor 2
    bool passed() const { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }
};

// `body` runs with descriptor 2 a pipe; failed expectations in it make the child exit with 1 and print to
// stdout.
template <class F>
Outcome in_child(F&& body) {
    Outcome outcome;
    int ends[2];
    if (pipe(ends) != 0) {
        ADD_FAILURE() << "pipe";
        return outcome;
    }
    fflush(nullptr);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        body();
        fflush(nullptr);
        _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    close(ends[1]);
    char block[4096];
    for (ssize_t n; (n = read(ends[0], block, sizeof block)) > 0;)
        outcome.output.append(block, static_cast<size_t>(n));
    close(ends[0]);
    waitpid(pid, &outcome.status, 0);
    return outcome;
}

}  // namespace vma::test
