// SPDX-License-Identifier: BSD-2-Clause
// Writing a log line must be possible anywhere: in a signal handler, in a vforked or forked child, on a
// thread that the program cancels. So this code takes no lock, and makes its system calls without libc.
// Threads agree by single compare-and-swap steps: on opening the file again after fork, and on remembered
// texts.
#include "libvma/runtime/log.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/never_destroyed.h"
#include "libvma/runtime/pid_name.h"
#include "libvma/runtime/runtime.h"

namespace vma::log {

constinit std::atomic<int> g_level{static_cast<int>(Level::none)};

namespace {

constexpr std::size_t kMaxText = 1024;
constexpr std::size_t kMaxPrefix = 128;  // colour, level, time and ids

struct Stderr {
    bool known = false;
    bool open = false;
    dev_t device = 0;
    ino_t inode = 0;
};
Stderr g_stderr;
clock::Time g_started{};

std::atomic<int> g_details{0};
std::atomic<bool> g_colors{false};
std::atomic<Callback> g_callback{nullptr};
constinit thread_local bool t_in_callback = false;

// State of the log file. A forked child sets `reopen`; the thread that turns it into `opening` opens the
// file. Lines that other threads write meanwhile are lost.
enum class FileState : int { none, ready, reopen, opening };
std::atomic<FileState> g_file_state{FileState::none};
char g_file_name[PATH_MAX];  // with %d

// Never destroyed: lines are written until the process is gone.
constinit NeverDestroyed<InternalFd> g_file;
InternalFd& file() noexcept { return *g_file; }

bool stderr_usable() noexcept {
    if (!g_stderr.open) return false;
    struct stat now {};
    if (os::raw_syscall(SYS_fstat, STDERR_FILENO, &now) != 0) return false;
    return now.st_dev == g_stderr.device && now.st_ino == g_stderr.inode;
}

// 0 or -errno.
int open_file() noexcept {
    char name[PATH_MAX];
    if (!expand_pid(g_file_name, os::raw_syscall(SYS_getpid), name, sizeof name)) return -ENAMETOOLONG;
    // Non-blocking, because a FIFO without a reader would stop the program.
    long fd = os::raw_syscall(SYS_openat, AT_FDCWD, static_cast<const char*>(name),
                              O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0644);
    if (fd < 0) return static_cast<int>(fd);
    const ErrnoKept kept;
    file() = InternalFd(static_cast<int>(fd));
    int error = file() ? 0 : -EMFILE;
    return error;
}

// The descriptor that a line goes to, -1 for none.
int target() noexcept {
    switch (g_file_state.load(std::memory_order_acquire)) {
        case FileState::none:
            break;
        case FileState::ready:
            return file().get();
        case FileState::opening:
            return -1;
        case FileState::reopen: {
            FileState expected = FileState::reopen;
            if (!g_file_state.compare_exchange_strong(expected, FileState::opening)) return -1;
            bool opened = open_file() == 0;
            g_file_state.store(opened ? FileState::ready : FileState::none, std::memory_order_release);
            if (opened) return file().get();
            break;
        }
    }
    return stderr_usable() ? STDERR_FILENO : -1;
}

// Calls write(2) once. A pipe without a reader must not kill the program because of a log line. So SIGPIPE is
// blocked, and taken away again if this write raised it. Same for SIGXFSZ on a file that reached its limit.
void put(int fd, const char* data, std::size_t size) noexcept {
    constexpr std::size_t kSetSize = 8;  // the kernel's sigset_t
    std::uint64_t block = (1ull << (SIGPIPE - 1)) | (1ull << (SIGXFSZ - 1)), before = 0, pending = 0;
    os::raw_syscall(SYS_rt_sigprocmask, SIG_BLOCK, &block, &before, kSetSize);
    os::raw_syscall(SYS_rt_sigpending, &pending, kSetSize);
    long written = 0;
    do written = os::raw_syscall(SYS_write, fd, data, size);
    while (written == -EINTR);
    std::uint64_t ours = 0;
    if (written == -EPIPE) ours = 1ull << (SIGPIPE - 1);
    if (written == -EFBIG) ours = 1ull << (SIGXFSZ - 1);
    ours &= ~pending;
    if (ours != 0) {
        timespec at_once{};
        os::raw_syscall(SYS_rt_sigtimedwait, &ours, nullptr, &at_once, kSetSize);
    }
    os::raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, kSetSize);
}

const char* name(Level level) noexcept {
    switch (level) {
        case Level::panic:
            return "PANIC";
        case Level::error:
            return "ERROR";
        case Level::warn:
            return "WARNING";
        case Level::info:
            return "INFO";
        case Level::debug:
            return "DEBUG";
        case Level::fine:
            return "FINE";
        case Level::finer:
            return "FINER";
        case Level::none:
            break;
    }
    return "";
}

void emit(int fd, Callback callback, Level level, std::string_view text) noexcept {
    char line[kMaxPrefix + kMaxText + 8];
    char* out = line;
    const bool color = callback == nullptr && g_colors.load(std::memory_order_relaxed);
    const char* paint = level <= Level::warn ? "\033[31m" : level >= Level::fine ? "\033[2m" : "";
    if (!color) paint = "";
    out = fmt::format_to(out, "{}VMA {}: ", paint, name(level));
    const int details = g_details.load(std::memory_order_relaxed);
    if (details >= 1) {
        *out++ = '[';
        if (details >= 3) {
            const std::uint64_t passed = (clock::monotonic() - g_started) / std::chrono::microseconds(1);
            out = fmt::format_to(out, "time {}.{:03} ", passed / 1000, passed % 1000);
        }
        if (details >= 2) out = fmt::format_to(out, "pid {} ", os::raw_syscall(SYS_getpid));
        out = fmt::format_to(out, "tid {}] ", os::raw_syscall(SYS_gettid));
    }
    // Control characters in a variable or a file name must not break a line in two.
    for (char c : text.substr(0, kMaxText)) {
        auto byte = static_cast<unsigned char>(c);
        *out++ = byte < 0x20 || byte == 0x7f ? '?' : c;
    }
    if (*paint != '\0') out = fmt::format_to(out, "\033[0m");
    *out++ = '\n';
    if (callback == nullptr) return put(fd, line, static_cast<std::size_t>(out - line));
    *out = '\0';
    const ErrnoKept kept;
    t_in_callback = true;
    callback(static_cast<int>(level), line);
    t_in_callback = false;
}

// Texts that write_once() has seen. A slot is taken by one compare-and-swap and never given back.
std::array<std::atomic<std::uint64_t>, 256> g_seen{};

bool first_time(std::string_view text) noexcept {
    std::uint64_t hash = 14695981039346656037ull;  // FNV-1a
    for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
    if (hash == 0) hash = 1;
    for (std::size_t i = 0; i < g_seen.size(); i++) {
        std::uint64_t there = 0;
        if (g_seen[(hash + i) % g_seen.size()].compare_exchange_strong(there, hash,
                                                                       std::memory_order_relaxed))
            return true;
        if (there == hash) return false;
    }
    return false;
}

}  // namespace

std::optional<Level> parse_level(std::string_view text) noexcept {
    struct Name {
        std::string_view name;
        Level level;
    };
    static constexpr Name kNames[] = {
        {"none", Level::none},    {"panic", Level::panic},  {"error", Level::error},
        {"warn", Level::warn},    {"warning", Level::warn}, {"info", Level::info},
        {"details", Level::info}, {"debug", Level::debug},  {"fine", Level::fine},
        {"func", Level::fine},    {"finer", Level::finer},  {"func_all", Level::finer},
        {"all", Level::finer},
    };
    if (text.size() == 1 && text[0] >= '0' && text[0] <= '6') return static_cast<Level>(text[0] - '0');
    auto lower = [](char c) noexcept {
        return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
    };
    for (const Name& row : kNames) {
        bool same = row.name.size() == text.size();
        for (std::size_t i = 0; same && i < text.size(); i++) same = lower(text[i]) == row.name[i];
        if (same) return row.level;
    }
    return std::nullopt;
}

void write(Level level, std::string_view text) noexcept {
    const Callback callback = g_callback.load(std::memory_order_relaxed);
    if (callback == nullptr) return write_direct(level, text);
    if (level == Level::none || !enabled(level) || t_in_callback || runtime::in_vfork_child()) return;
    emit(-1, callback, level, text);
}

void write_direct(Level level, std::string_view text) noexcept {
    if (level == Level::none || !enabled(level)) return;
    int fd = target();
    if (fd >= 0) emit(fd, nullptr, level, text);
}

void write_once(Level level, std::string_view text) noexcept {
    if (level == Level::none || !enabled(level) || !first_time(text)) return;
    write(level, text);
}

namespace {
void format_to(void (*put)(Level, std::string_view), Level level, fmt::string_view format,
               fmt::format_args args) noexcept {
    char line[kMaxText];
    const auto out = fmt::vformat_to_n(line, sizeof line, format, args);
    put(level, std::string_view(line, out.size < sizeof line ? out.size : sizeof line));
}
}  // namespace

void format_and_write(Level level, fmt::string_view format, fmt::format_args args) noexcept {
    format_to([](Level at, std::string_view text) { write(at, text); }, level, format, args);
}

void format_and_write_once(Level level, fmt::string_view format, fmt::format_args args) noexcept {
    format_to([](Level at, std::string_view text) { write_once(at, text); }, level, format, args);
}

void remember_stderr() noexcept {
    struct stat now {};
    g_stderr.open = os::raw_syscall(SYS_fstat, STDERR_FILENO, &now) == 0;
    g_stderr.device = now.st_dev;
    g_stderr.inode = now.st_ino;
    g_stderr.known = true;
    g_started = clock::monotonic();
}

void configure(const Settings& settings) noexcept {
    if (runtime::inert()) return;
    if (!g_stderr.known) remember_stderr();
    runtime::install_fork_hooks();

    const ErrnoKept kept;
    g_file_state.store(FileState::none);
    file().reset();
    int error = 0;
    if (!settings.file.empty()) {
        // The name is needed again after fork, when the program may have changed its working directory.
        std::size_t n = 0;
        if (settings.file[0] != '/' && getcwd(g_file_name, sizeof g_file_name - 1) != nullptr) {
            n = strlen(g_file_name);
            g_file_name[n++] = '/';
        }
        if (n + settings.file.size() >= sizeof g_file_name) {
            error = -ENAMETOOLONG;
        } else {
            memcpy(g_file_name + n, settings.file.data(), settings.file.size());
            g_file_name[n + settings.file.size()] = '\0';
            error = open_file();
        }
        if (error == 0) g_file_state.store(FileState::ready, std::memory_order_release);
    }
    int fd = target();
    g_colors.store(settings.colors && fd >= 0 && isatty(fd) == 1);
    g_callback.store(settings.callback, std::memory_order_relaxed);
    set_details(settings.details);
    set_level(settings.level);
    if (error != 0)
        warn("VMA_LOG_FILE=\"{}\" cannot be opened ({}): the log goes to stderr", settings.file,
             strerrordesc_np(-error));
}

void set_level(Level level) noexcept {
    if (runtime::inert()) return;
    // Level debug shows several threads and processes, so lines need their ids.
    if (level >= Level::debug && details() < 2) set_details(2);
    g_level.store(static_cast<int>(level));
}

void set_details(int details) noexcept { g_details.store(std::clamp(details, 0, 3)); }

Level level() noexcept { return static_cast<Level>(g_level.load(std::memory_order_relaxed)); }
int details() noexcept { return g_details.load(std::memory_order_relaxed); }

namespace {
// A forked child opens a log file of its own, with its pid in the name, when it has something to write.
void reopen_file() noexcept {
    if (g_file_state.load() != FileState::none) g_file_state.store(FileState::reopen);
}
VMA_RENEW_IN_CHILD(reopen_file);
}  // namespace

}  // namespace vma::log
