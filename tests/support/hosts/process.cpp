// SPDX-License-Identifier: BSD-2-Clause
// See process.h. The child between fork and exec makes system calls only; strings are prepared before.
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "device.h"

extern char** environ;

namespace testing_support {
namespace {

std::string contents(int fd) {
    std::string text;
    char block[8192];
    ssize_t n;
    while ((n = pread(fd, block, sizeof block, static_cast<off_t>(text.size()))) > 0)
        text.append(block, static_cast<std::size_t>(n));
    return text;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
    std::vector<char*> result;
    for (const auto& s : strings) result.push_back(const_cast<char*>(s.c_str()));
    result.push_back(nullptr);
    return result;
}

// The test's environment without anything that steers the library, then what the caller wants.
std::vector<std::string> environment(const RunOptions& options) {
    std::vector<std::string> env;
    for (char** e = environ; *e != nullptr; e++) {
        std::string_view entry(*e);
        if (!entry.starts_with("LD_PRELOAD=") && !entry.starts_with("VMA_") &&
            !entry.starts_with("ASAN_OPTIONS=") && !entry.starts_with("GTEST_"))
            env.emplace_back(entry);
    }
    if (options.preload) {
        env.push_back("LD_PRELOAD=" + preload_value() + adapter_preload(options.netns));
        const auto adapters = adapter_environment(options.netns);
        env.insert(env.end(), adapters.begin(), adapters.end());
    }
    // A whole suite with several rings on an interface.
    if (const char* logic = getenv("VMA_TEST_RING_LOGIC"); options.preload && logic != nullptr)
        env.push_back(std::string("VMA_RING_ALLOCATION_LOGIC_RX=") + logic);
    // Outside the test's own namespaces the library must not attach to the machine's interfaces.
    if (options.preload && options.netns.empty()) env.emplace_back("VMA_XDP_INTERFACES=");
    // Also to programs without the library: see tests/parity/pair/tcp_harness.cpp and
    // mux_parity/random.cpp.
    if (simulated()) {
        if (getenv("TEST_SETTLE_USEC") == nullptr) env.emplace_back("TEST_SETTLE_USEC=1500");
        env.emplace_back("TEST_RANDOM_STEPS=1000");
    }
    if (sanitized()) env.emplace_back("ASAN_OPTIONS=detect_leaks=0");
    env.insert(env.end(), options.env.begin(), options.env.end());
    return env;
}

std::string gcc_file(const char* name) {
    std::string path = tool({"g++", std::string("-print-file-name=") + name});
    path.erase(path.find_last_not_of('\n') + 1);
    return path;
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
    if (this != &other) {
        reset();
        fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
}

void Fd::reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
}

std::string preload_value() {
    static const std::string value = [] {
        return sanitized() ? gcc_file("libasan.so") + " " + library() : library();
    }();
    return value;
}

std::string built(const std::string& file) {
    const char* other = getenv("VMA_TEST_BUILD");
    return std::string(other != nullptr ? other : VMA_BUILD) + "/" + file;
}

std::string library() {
    const char* other = getenv("VMA_TEST_LIBRARY");
    return other != nullptr ? other : built("libvma/libvma.so");
}

bool sanitized() {
    static const bool value =
        tool({"readelf", "--dynamic", library()}).find("[libasan.so") != std::string::npos;
    return value;
}

std::string app(const std::string& name) {
    const std::string other = built("tests/app_" + name);
    return std::filesystem::exists(other) ? other : std::string(VMA_APPS_DIR) + "/app_" + name;
}

int patience() { return (sanitized() ? 4 : 1) * (simulated() ? 2 : 1); }

Process& Process::operator=(Process&& other) noexcept {
    if (this != &other) {
        std::swap(pid_, other.pid_);
        std::swap(status_, other.status_);
        std::swap(reaped_, other.reaped_);
        std::swap(out_, other.out_);
        std::swap(err_, other.err_);
    }
    return *this;
}

Process::~Process() {
    if (pid_ > 0 && !reaped_) {
        ::kill(pid_, SIGKILL);
        reap(true);
    }
}

Process Process::start(const std::function<void()>& child, const RunOptions& options) {
    Process p;
    p.out_ = Fd(memfd_create("stdout", MFD_CLOEXEC));
    p.err_ = Fd(memfd_create("stderr", MFD_CLOEXEC));
    if (!p.out_ || !p.err_) throw std::runtime_error("memfd_create failed");
    // Appending, so that several processes sharing the file never overwrite each other's lines.
    fcntl(p.out_.get(), F_SETFL, O_APPEND);
    fcntl(p.err_.get(), F_SETFL, O_APPEND);
    std::string ns_path = "/run/netns/" + options.netns;
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid < 0) throw std::runtime_error("fork failed");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(126);
        setpgid(0, 0);
        if (!options.netns.empty()) {
            int ns = open(ns_path.c_str(), O_RDONLY | O_CLOEXEC);
            if (ns < 0 || setns(ns, CLONE_NEWNET) != 0) {
                dprintf(p.err_.get(), "cannot enter namespace %s\n", options.netns.c_str());
                _exit(126);
            }
            close(ns);
        }
        dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), 0);
        dup2(p.out_.get(), 1);
        dup2(p.err_.get(), 2);
        for (auto [ours, number] : options.fds) {
            if (ours == number)
                fcntl(ours, F_SETFD, 0);
            else
                dup2(ours, number);
        }
        child();
        _exit(127);
    }
    p.pid_ = pid;
    p.reaped_ = false;
    return p;
}

Process Process::run(std::vector<std::string> argv, const RunOptions& options) {
    auto env = environment(options);
    auto argp = pointers(argv);
    auto envp = pointers(env);
    return start(
        [&] {
            execvpe(argp[0], argp.data(), envp.data());
            dprintf(2, "cannot run %s\n", argp[0]);
        },
        options);
}

Process Process::run(std::function<int()> body, const RunOptions& options) {
    return start(
        [&] {
            int code = body();
            fflush(nullptr);
            _exit(code);
        },
        options);
}

bool Process::reap(bool block) {
    if (reaped_) return true;
    pid_t r;
    do r = waitpid(pid_, &status_, block ? 0 : WNOHANG);
    while (r < 0 && errno == EINTR);
    reaped_ = r == pid_ || r < 0;
    return reaped_;
}

bool Process::running() { return pid_ > 0 && !reap(false); }
std::string Process::out() const { return contents(out_.get()); }
std::string Process::err() const { return contents(err_.get()); }

void Process::kill(int signal) {
    if (pid_ > 0 && !reaped_) ::kill(pid_, signal);
}

namespace {
template <class F>
bool wait_until(F&& done, milliseconds limit) {
    auto end = std::chrono::steady_clock::now() + limit * patience();
    while (!done()) {
        if (std::chrono::steady_clock::now() > end) return false;
        std::this_thread::sleep_for(milliseconds(2));
    }
    return true;
}
}  // namespace

bool Process::wait_for_out(const std::string& text, milliseconds limit) {
    return wait_until([&] { return out().find(text) != std::string::npos; }, limit);
}
bool Process::wait_for_err(const std::string& text, milliseconds limit) {
    return wait_until([&] { return err().find(text) != std::string::npos; }, limit);
}

Exit Process::wait(milliseconds limit) {
    Exit e;
    e.timed_out = !wait_until([&] { return reap(false); }, limit);
    if (e.timed_out) {
        ::kill(-pid_, SIGKILL);
        ::kill(pid_, SIGKILL);
        reap(true);
    }
    e.signal = WIFSIGNALED(status_) ? WTERMSIG(status_) : 0;
    e.code = e.signal != 0 ? 128 + e.signal : WEXITSTATUS(status_);
    e.out = out();
    e.err = err();
    return e;
}

std::string tool(std::vector<std::string> argv, bool* ok) {
    Fd output(memfd_create("tool", MFD_CLOEXEC));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, output.get(), 1);
    posix_spawn_file_actions_adddup2(&actions, output.get(), 2);
    auto argp = pointers(argv);
    pid_t pid = -1;
    int status = 1;
    int r = posix_spawnp(&pid, argp[0], &actions, nullptr, argp.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (r == 0)
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
        }
    std::string text = contents(output.get());
    bool success = r == 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (ok != nullptr)
        *ok = success;
    else if (!success) {
        std::string command;
        for (const auto& a : argv) command += a + " ";
        throw std::runtime_error(command + "failed: " + text);
    }
    return text;
}

}  // namespace testing_support
