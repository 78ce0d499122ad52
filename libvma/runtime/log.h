// SPDX-License-Identifier: BSD-2-Clause
// Log lines: "VMA <LEVEL>: text", one write(2) each, to stderr or VMA_LOG_FILE.
//
// The log writes nothing before start() has run, and nothing in a set-uid program. It writes to descriptor 2
// only while that number means the same file as at the start of the process. Daemons close the number and
// open their own files under it.
#pragma once

#include <fmt/core.h>

#include <atomic>
#include <optional>
#include <string_view>

namespace vma::log {

// VMA_TRACELEVEL. Numbers are the manual's (section 4.2.1): 0 panic .. 6 finer; -1 is "none".
enum class Level : int {
    none = -1,
    panic = 0,
    error = 1,
    warn = 2,
    info = 3,
    debug = 4,
    fine = 5,
    finer = 6
};

extern std::atomic<int> g_level;

// Parses the name of a level: none, panic, error, warn(ing), info, details, debug, fine, finer, all, the
// manual's func and func_all, or 0 to 6. Case does not matter. "details" has no number of its own and means
// info.
std::optional<Level> parse_level(std::string_view text) noexcept;

inline bool enabled(Level level) noexcept {
    return static_cast<int>(level) <= g_level.load(std::memory_order_relaxed);
}

// Writes one line. Keeps errno, never throws, and never allocates. Text over 1 KiB is cut.
void write(Level level, std::string_view text) noexcept;

// The same, but never through the program's callback: for handlers of fatal signals.
void write_direct(Level level, std::string_view text) noexcept;

// log.cpp compiles the formatting once for all files that log.
void format_and_write(Level level, fmt::string_view format, fmt::format_args args) noexcept;
template <class... Args>
void print(Level level, fmt::format_string<Args...> format, Args&&... args) noexcept {
    if (enabled(level)) format_and_write(level, format, fmt::make_format_args(args...));
}

#define VMA_LOG_FN(name)                                                     \
    template <class... Args>                                                 \
    void name(fmt::format_string<Args...> format, Args&&... args) noexcept { \
        print(Level::name, format, std::forward<Args>(args)...);             \
    }
VMA_LOG_FN(error)
VMA_LOG_FN(warn)
VMA_LOG_FN(info)
VMA_LOG_FN(debug)
VMA_LOG_FN(fine)
#undef VMA_LOG_FN

// Like print, but each distinct text appears once in the life of the process. There is room for 256 different
// texts; later ones are dropped, because more of them would flood the log.
void write_once(Level level, std::string_view text) noexcept;
void format_and_write_once(Level level, fmt::string_view format, fmt::format_args args) noexcept;
template <class... Args>
void once(Level level, fmt::format_string<Args...> format, Args&&... args) noexcept {
    if (enabled(level)) format_and_write_once(level, format, fmt::make_format_args(args...));
}

// Remembers which file stderr is; reads no configuration. Called from the library's constructor, so it must
// be cheap.
void remember_stderr() noexcept;

// A function of the program that gets each line, with its newline, and the level's number. Any thread of the
// process may call it, perhaps while it holds locks of the library: so it must not use sockets. Lines that
// the same thread logs while the function runs are lost.
using Callback = void (*)(int level, const char* line);

// `file` may hold one %d for the process id; empty means stderr. With a callback the log uses neither, except
// in write_direct().
struct Settings {
    Level level = Level::info;
    int details = 0;
    bool colors = true;
    std::string_view file;
    Callback callback = nullptr;
};

// Opens the log. In a set-uid program it stays closed. If the file cannot be opened, the log goes to stderr
// and says so there. A second call replaces the settings of the first.
void configure(const Settings& settings) noexcept;

// Configures the log from VMA_TRACELEVEL, VMA_LOG_DETAILS, VMA_LOG_FILE, VMA_LOG_COLORS. Idempotent. Defined
// in config/start.cpp, because parameters are a layer above the log.
void start() noexcept;

// Set, while the program runs, the level and what a line begins with (VMA_LOG_DETAILS, clamped to 0 to 3). As
// at start, level debug and beyond raise the details to at least 2; set_details() may lower them afterwards.
// set_level() has no effect in a set-uid program. All four functions are async-signal-safe.
void set_level(Level level) noexcept;
void set_details(int details) noexcept;
Level level() noexcept;
int details() noexcept;

}  // namespace vma::log
