// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "tools/common/clock.h"
#include "tools/vma_perf/status.h"

namespace vma_perf {
namespace {

tools::Pipe open_pipe() {
    tools::Pipe made = tools::make_pipe();
    if (!made.read) fail_errno("pipe");
    return made;
}

// False: the end.
bool append(tools::Fd& fd, std::string& text) {
    char bytes[16384];
    const ssize_t got = read(fd.get(), bytes, sizeof bytes);
    if (got > 0) text.append(bytes, static_cast<std::size_t>(got));
    return got > 0 || (got < 0 && errno == EINTR);
}

}  // namespace

Child::Child(const Start& start) {
    tools::Pipe out = open_pipe(), err = open_pipe();
    std::vector<char*> argv;
    for (const std::string& word : start.arguments) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ < 0) fail_errno("fork");
    if (pid_ == 0) {
        // Only what may be called between fork and exec of a program without other threads.
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(126);
        if (start.netns >= 0 && setns(start.netns, CLONE_NEWNET) != 0) _exit(126);
        const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
        dup2(null, STDIN_FILENO);
        dup2(out.write.get(), STDOUT_FILENO);
        dup2(err.write.get(), STDERR_FILENO);
        ::signal(SIGPIPE, SIG_DFL);
        unsetenv("LD_PRELOAD");
        if (!start.preload.empty()) {
            setenv("LD_PRELOAD", start.preload.c_str(), 1);
            if (start.quiet_library) setenv("VMA_TRACELEVEL", "warn", 0);
        }
        execvp(argv[0], argv.data());
        dprintf(STDERR_FILENO, "%s cannot be run\n", argv[0]);
        _exit(127);
    }
    out_fd_ = std::move(out.read);
    err_fd_ = std::move(err.read);
}

Child::~Child() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
}

void Child::signal(int number) const {
    if (pid_ > 0) kill(pid_, number);
}

bool Child::read_some(std::chrono::milliseconds limit) {
    pollfd wait[2] = {{out_fd_.get(), POLLIN, 0},
                      {err_fd_.get(), POLLIN, 0}};  // closed ones are -1, which poll() skips
    if (poll(wait, 2, static_cast<int>(limit.count())) <= 0) return true;
    if (wait[0].revents != 0 && !append(out_fd_, out_)) out_fd_.reset();
    if (wait[1].revents != 0 && !append(err_fd_, err_)) err_fd_.reset();
    return out_fd_ || err_fd_;
}

bool Child::wait_for_output(const std::string& text, std::chrono::milliseconds limit) {
    const auto deadline = tools::Clock::now() + limit;
    while (out_.find(text) == out_.npos) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - tools::Clock::now());
        if (left.count() <= 0 || !read_some(left)) return false;
    }
    return true;
}

int Child::wait(const std::atomic<bool>& stop) {
    bool asked = false;
    while (read_some(std::chrono::milliseconds(100))) {
        if (!stop.load() || asked) continue;
        signal(SIGTERM);
        asked = true;
    }
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace vma_perf
