// SPDX-License-Identifier: BSD-2-Clause
// Whether somebody on this host receives a multicast group: then the kernel gives receivers here a copy of
// what leaves, and a ring cannot.
//
// The kernel's answer to a route query says it (net::Route::copied_here), and senders keep that answer. This
// class tells them when it may have changed. A socket of this process changes it by setsockopt(), which is
// known at once. Sockets of other processes are seen in /proc/net/igmp and mcfilter, which the internal
// thread reads ten times a second while anybody sends, and less often where that takes long.
#pragma once

#include <netinet/in.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/lock.h"

namespace vma::sockets {

class HostMemberships {
  public:
    struct Entry {
        int ifindex = 0;
        in_addr_t group = 0;
        std::uint32_t users = 0;
        friend bool operator==(const Entry&, const Entry&) = default;
    };

    // Counts changes. An answer of the kernel is good for the version that was read before it was asked for.
    std::uint32_t version() const noexcept { return version_.load(std::memory_order_acquire); }
    // A socket of this process has joined or left something.
    void changed() noexcept { version_.fetch_add(1, std::memory_order_acq_rel); }

    // From now on version() also follows other processes, until note_use() was not called for kUnused looks;
    // then version() moves once more. May allocate, and start the internal thread. Any thread.
    void follow() noexcept;
    void note_use() noexcept {
        if (!used_.load(std::memory_order_relaxed)) used_.store(true, std::memory_order_relaxed);
    }
    // Was the host a member at the last look? True also when that cannot be told. Between two looks a member
    // may leave and come back, which version() does not show. An answer from between must not count alone.
    bool seen(int ifindex, in_addr_t group) const noexcept;
    // Does the kernel forward multicast (mrouted, pimd)? Its router takes copies of what leaves, too.
    bool forwards() const noexcept { return forwards_.load(std::memory_order_relaxed); }

    // The text of /proc/net/igmp.
    static std::vector<Entry> parse(std::string_view igmp);

  private:
    static constexpr int kUnused = 100;

    // A file below /proc that stays open: a new descriptor would take, for a moment, the number that the
    // program expects for its own next one.
    struct File {
        explicit File(const char* name) noexcept : path(name) {}
        bool read(std::string& out);
        const char* path;
        InternalFd fd;
    };
    bool look();  // internal thread; false: not any more

    std::atomic<std::uint32_t> version_{1};
    std::atomic<bool> following_{false}, used_{false}, forwards_{false};
    int unused_ = 0, skip_ = 0;  // looks
    File igmp_{"/proc/thread-self/net/igmp"}, filters_{"/proc/thread-self/net/mcfilter"},
        forwarding_{"/proc/sys/net/ipv4/conf/all/mc_forwarding"};
    std::string filter_text_;
    mutable Lock lock_;
    std::vector<Entry> entries_;
};

}  // namespace vma::sockets
