// SPDX-License-Identifier: BSD-2-Clause
// Log lines: "VMA <LEVEL>: text", one write(2) each, to stderr or VMA_LOG_FILE.
//
// Nothing is written before start() has run, nothing in a set-uid program, and nothing to descriptor 2 once
// it is no longer the file it was when the process started (daemons close it and open their own files under
// that number).
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

// The level a text names: none, panic, error, warn(ing), info, details, debug, fine, finer, all, the manual's
// func and func_all, or 0 to 6; case does not matter. "details" has no number of its own and is info.
std::optional<Level> parse_level(std::string_view text) noexcept;

inline bool enabled(Level level) noexcept {
    return static_cast<int>(level) <= g_level.load(std::memory_order_relaxed);
}

// Writes one line; errno is preserved; never throws, never allocates after the text is formatted (at most 1
// KiB, longer text is cut).
void write(Level level, std::string_view text) noexcept;

// The same, but never through the program's callback: for handlers of fatal signals.
void write_direct(Level level, std::string_view text) noexcept;

// Formatting is compiled once, in log.cpp, and not in every file that has something to say.
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

// Like print, but each distinct text appears once in the life of the process. After 256 different texts there
// is no memory for more, and later ones are dropped: what would come more often than that is a flood.
void write_once(Level level, std::string_view text) noexcept;
void format_and_write_once(Level level, fmt::string_view format, fmt::format_args args) noexcept;
template <class... Args>
void once(Level level, fmt::format_string<Args...> format, Args&&... args) noexcept {
    if (enabled(level)) format_and_write_once(level, format, fmt::make_format_args(args...));
}

// Remembers what stderr is, reads no configuration. Called from the library's constructor; cheap.
void remember_stderr() noexcept;

// A function of the program that gets each line, with its newline, and the level's number. Called on whatever
// thread has something to say, perhaps with locks of the library held: so it must not use sockets. Lines that
// come up while it runs on the same thread are lost.
using Callback = void (*)(int level, const char* line);

// How the log shall be. `file` may hold one %d for the process id; empty means stderr. With a callback
// neither is used, except by write_direct().
struct Settings {
    Level level = Level::info;
    int details = 0;
    bool colors = true;
    std::string_view file;
    Callback callback = nullptr;
};

// Opens the log. In a set-uid program it stays closed. A file that cannot be opened is reported on stderr,
// which then serves instead. The second call replaces the settings of the first.
void configure(const Settings& settings) noexcept;

// Configures the log from VMA_TRACELEVEL, VMA_LOG_DETAILS, VMA_LOG_FILE, VMA_LOG_COLORS. Idempotent. Defined
// in config/start.cpp, because parameters are a layer above the log.
void start() noexcept;

// While the program runs: the level, and what a line begins with (VMA_LOG_DETAILS, 0 to 3; other numbers are
// bent into the range). As at start, level debug and beyond come with details of at least 2; set_details()
// afterwards may lower them. Nothing changes in a set-uid program. Async-signal-safe.
void set_level(Level level) noexcept;
void set_details(int details) noexcept;
Level level() noexcept;
int details() noexcept;

}  // namespace vma::log
