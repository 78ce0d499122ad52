// SPDX-License-Identifier: BSD-2-Clause
// Finds and reads libvma.conf for this process.
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include <atomic>
#include <memory>
#include <string>

#include "libvma/config/rules.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/pid_name.h"

namespace vma::config {
namespace {

// More than any set of rules: a larger file is some other file.
constexpr std::size_t kMaxFile = 1 << 20;

// Closes the file when the reader ends, also by an exception for lack of memory.
struct File {
    long fd;
    ~File() {
        if (fd >= 0) os::raw_syscall(SYS_close, fd);
    }
};

// The text of the file. Empty, after a line in the log, when the file is unreadable. `chosen`: the user named
// the file, so a missing one is a warning.
std::string load(const char* name, bool chosen) {
    if (*name == '\0') {
        log::warn("VMA_CONFIG_FILE is empty: every socket may be offloaded");
        return {};
    }
    // Non-blocking, so that a FIFO of this name does not stop the program before the code below recognises
    // it.
    File file{os::raw_syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
    if (file.fd == -ENOENT || file.fd == -ENOTDIR) {
        log::print(chosen ? log::Level::warn : log::Level::debug,
                   "{} does not exist: every socket may be offloaded", name);
        return {};
    }
    if (file.fd < 0) {
        log::warn("{} cannot be opened ({}): every socket may be offloaded", name,
                  strerrordesc_np(static_cast<int>(-file.fd)));
        return {};
    }
    struct stat info {};
    if (os::raw_syscall(SYS_fstat, file.fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        log::warn("{} is not a regular file: every socket may be offloaded", name);
        return {};
    }
    std::string text;
    char block[4096];
    for (;;) {
        long size = os::raw_syscall(SYS_read, file.fd, static_cast<char*>(block), sizeof block);
        if (size == -EINTR) continue;
        if (size < 0)
            log::warn("{} cannot be read to its end ({})", name, strerrordesc_np(static_cast<int>(-size)));
        if (size <= 0) return text;
        text.append(block, static_cast<std::size_t>(size));
        if (text.size() > kMaxFile) {
            log::warn("{} is longer than 1 MiB and is not used: every socket may be offloaded", name);
            return {};
        }
    }
}

// The name of the running program without its directory; for a script this is the interpreter.
std::string program_name() {
    char path[PATH_MAX];
    long size = os::raw_syscall(SYS_readlinkat, AT_FDCWD, static_cast<const char*>("/proc/self/exe"),
                                static_cast<char*>(path), sizeof path);
    if (size <= 0) return program_invocation_short_name;
    std::string_view name(path, static_cast<std::size_t>(size));
    name.remove_prefix(name.rfind('/') + 1);
    constexpr std::string_view kDeleted = " (deleted)";  // the kernel's mark on a replaced file
    if (name.ends_with(kDeleted)) name.remove_suffix(kDeleted.size());
    return std::string(name);
}

RuleTable read_rules() {
    const Params& params = get();
    const long pid = os::raw_syscall(SYS_getpid);
    char name[PATH_MAX], id[256];
    if (!expand_pid(params.config_file, pid, name, sizeof name)) {
        log::warn("VMA_CONFIG_FILE is too long: every socket may be offloaded");
        return {};
    }
    if (!expand_pid(params.application_id, pid, id, sizeof id)) {
        log::warn("VMA_APPLICATION_ID is too long and is not used");
        strcpy(id, "VMA_DEFAULT_APPLICATION_ID");
    }
    Complaints complaints;
    std::string_view base = name;
    base.remove_prefix(base.rfind('/') + 1);
    RuleTable rules = RuleTable::parse(load(name, params.config_file != Params{}.config_file), program_name(),
                                       id, complaints, base, program_invocation_short_name);
    for (const std::string& text : complaints) log::once(log::Level::warn, "{}: {}", name, text);
    return rules;
}

// As config::get(): no lock, the first thread to finish wins, never freed.
constinit std::atomic<const RuleTable*> g_rules{nullptr};

}  // namespace

const RuleTable& rules() noexcept {
    if (const RuleTable* rules = g_rules.load(std::memory_order_acquire)) return *rules;
    alignas(RuleTable) static unsigned char storage[sizeof(RuleTable)];  // never destroyed
    static const RuleTable& none = *new (storage) RuleTable();
    std::unique_ptr<const RuleTable> mine;
    try {
        mine = std::make_unique<const RuleTable>(read_rules());
    } catch (const std::exception&) {
        log::error("no memory for the rules: every socket may be offloaded");
        return none;
    }
    const RuleTable* expected = nullptr;
    if (!g_rules.compare_exchange_strong(expected, mine.get(), std::memory_order_acq_rel)) return *expected;
    return *mine.release();
}

// Tables that were in force stay: verdicts point to the texts of their rules.
Result<void> add_rule(std::string_view line) noexcept {
    try {
        Complaints complaints;
        const RuleTable added =
            RuleTable::parse(line, "program", "*", complaints, "add_conf_rule", "program");
        if (!complaints.empty()) return fail(EINVAL, complaints.front());
        if (added.empty()) return fail(EINVAL, "there is no rule in it");
        for (const RuleTable* now = &rules();;) {
            auto next = std::make_unique<const RuleTable>(now != nullptr ? now->behind(added) : added);
            if (g_rules.compare_exchange_strong(now, next.get(), std::memory_order_acq_rel)) {
                (void)next.release();
                return {};
            }
        }
    } catch (const std::exception&) {
        return std::unexpected(Error{ENOMEM, {}});
    }
}

Verdict decide(Role role, const net::Endpoint& first, const net::Endpoint* second) noexcept {
    const Verdict decision = rules().match(role, first, second);
    if (decision.os()) log::once(log::Level::info, "left to the kernel: {}", decision.text());
    if (log::enabled(log::Level::debug)) {
        static constexpr const char* kRoles[] = {"tcp_server", "tcp_client", "udp_sender", "udp_receiver",
                                                 "udp_connect"};
        const std::string other = second != nullptr ? ":" + second->text() : "";
        log::debug("{} {}{}: {} ({})", kRoles[static_cast<std::size_t>(role)], first, other,
                   decision.os() ? "os" : "vma", decision.text());
    }
    return decision;
}

}  // namespace vma::config
