// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/host_memberships.h"

#include <fcntl.h>
#include <stdlib.h>

#include <algorithm>
#include <charconv>
#include <mutex>
#include <utility>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/runtime.h"

namespace vma::sockets {
namespace {

constexpr clock::Msec kLook{100};
constexpr clock::Msec kShort{5};  // for each such time that a look takes, the next one is left out
constexpr std::uint64_t kMostSkipped = 9;
constexpr std::size_t kMostText = 4u << 20;  // what is longer is not looked at

// Reads a number of `base` at the beginning of `text`, behind blanks, and removes it. 0: there is none.
std::uint32_t take_number(std::string_view& text, int base) noexcept {
    text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
    std::uint32_t value = 0;
    const auto end = std::from_chars(text.data(), text.data() + text.size(), value, base).ptr;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return value;
}

}  // namespace

void HostMemberships::follow() noexcept {
    note_use();
    if (following_.load(std::memory_order_acquire) || following_.exchange(true)) return;
    const ErrnoKept kept;
    try {
        runtime::every(kLook, [this] { return look(); });
    } catch (...) {
        following_ = false;  // no memory: the next answer tries again
    }
}

bool HostMemberships::seen(int ifindex, in_addr_t group) const noexcept {
    if (lock_.owned_by_me()) return true;
    const std::lock_guard guard(lock_);
    return std::any_of(entries_.begin(), entries_.end(),
                       [&](const Entry& e) { return e.ifindex == ifindex && e.group == group; });
}

// A line of an interface begins with its index, that of a group with tabs, the group as the kernel has it in
// memory, and the number of its users. The timers behind them move by themselves.
std::vector<HostMemberships::Entry> HostMemberships::parse(std::string_view igmp) {
    std::vector<Entry> entries;
    int ifindex = 0;
    while (!igmp.empty()) {
        const std::size_t end = igmp.find('\n');
        std::string_view line = igmp.substr(0, end);
        igmp.remove_prefix(end == std::string_view::npos ? igmp.size() : end + 1);
        if (line.empty()) continue;
        if (line.front() != '\t') {
            ifindex = static_cast<int>(take_number(line, 10));
        } else if (ifindex != 0) {
            const in_addr_t group = take_number(line, 16);
            entries.push_back({ifindex, group, take_number(line, 10)});
        }
    }
    return entries;
}

bool HostMemberships::File::read(std::string& out) {
    out.clear();
    if (!fd) {
        const long opened = os::raw_syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
        if (opened >= 0) fd = InternalFd(static_cast<int>(opened));
    }
    char piece[4096];
    while (fd && out.size() < kMostText) {
        const long got = os::raw_syscall(SYS_pread64, fd.get(), &piece[0], sizeof piece, out.size());
        if (got == 0) return true;
        if (got < 0) break;
        out.append(piece, static_cast<std::size_t>(got));
    }
    return false;
}

bool HostMemberships::look() {
    if (used_.exchange(false)) {
        unused_ = 0;
    } else if (++unused_ >= kUnused) {
        // In this order: whoever asks the kernel after the change finds that it has to call follow() again.
        unused_ = 0;
        following_.store(false);
        changed();
        return false;
    }
    if (skip_ > 0) {
        skip_--;
        return true;
    }
    const clock::Time begin = clock::monotonic();
    try {
        std::string igmp, filters, forwarding;
        const bool known = igmp_.read(igmp) && filters_.read(filters);
        const bool forwards = forwarding_.read(forwarding) && strtol(forwarding.c_str(), nullptr, 10) != 0;
        std::vector<Entry> entries = parse(igmp);
        bool same = known && filters == filter_text_ && forwards == forwards_.load();
        filter_text_ = std::move(filters);
        forwards_ = forwards;
        {
            const std::lock_guard guard(lock_);
            same = same && entries == entries_;
            entries_ = std::move(entries);
        }
        if (!same) changed();
    } catch (...) {
        changed();  // no memory: every sender asks the kernel again
    }
    skip_ = static_cast<int>(std::min<std::uint64_t>((clock::monotonic() - begin) / kShort, kMostSkipped));
    return true;
}

}  // namespace vma::sockets
