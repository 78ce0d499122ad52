// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/memory_bound.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "libvma/os/sysctl.h"
#include "libvma/runtime/log.h"
#include "libvma/tcp/connection.h"
#include "libvma/tcp/tcb_inline.h"
#include "libvma/tcp/timers/background.h"

namespace vma::tcp::memory_bound {
namespace {

constexpr std::uint32_t kLeast = 4096;                    // the kernel's tcp_wmem[0] and tcp_rmem[0]
constexpr std::uint32_t kLeastUnderPressure = 16u << 10;  // its tcp_wmem[1]
constexpr std::uint32_t kOrphanLeast = 4608;              // its SOCK_MIN_SNDBUF

struct State {
    std::atomic<std::size_t> max_orphans{8192};
    std::atomic<std::uint64_t> dropped{0}, reset{0};
};
constinit State g_state;

std::size_t all_memory() noexcept {
    const long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && bytes > 0 ? static_cast<std::size_t>(pages) * static_cast<std::size_t>(bytes)
                                  : std::size_t{1} << 30;
}

std::size_t share() noexcept { return lwip::memory_bound() / std::max<std::size_t>(Connection::count(), 1); }

[[gnu::cold]] void warn() noexcept {
    log::once(
        log::Level::warn,
        "the queues of TCP connections have {} MiB, which is the bound (VMA_TCP_MEM): writes wait, and data "
        "is dropped",
        lwip::memory_bound() >> 20);
}

}  // namespace

// The kernel's proportions (tcp_init_mem()): three quarters, one, and one and a half of a sixteenth of the
// memory. A network namespace of its own does not show what the kernel computed.
void set(std::size_t bytes) noexcept {
    std::size_t low = bytes / 2, pressure = bytes / 3 * 2;
    if (bytes == 0) {
        pressure = all_memory() / 16;
        low = pressure / 4 * 3;
        bytes = 2 * low;
        long pages[3];
        if (const long page = sysconf(_SC_PAGESIZE);
            os::read_sysctl("ipv4/tcp_mem", pages) == 3 && page > 0) {
            low = static_cast<std::size_t>(std::max(pages[0], 1l) * page);
            pressure = static_cast<std::size_t>(std::max(pages[1], 1l) * page);
            bytes = static_cast<std::size_t>(std::max(pages[2], 1l) * page);
        }
    }
    lwip::set_bounds(low, pressure, bytes);
    const auto orphans = static_cast<long>(all_memory() >> 18);
    set_max_orphans(static_cast<std::size_t>(std::max(os::sysctl("ipv4/tcp_max_orphans", orphans), 0l)));
}

void set_max_orphans(std::size_t orphans) noexcept { g_state.max_orphans = orphans; }

std::uint32_t send_limit(std::uint32_t limit) noexcept {
    if (over()) {
        warn();
        return std::min(limit, kLeast);
    }
    return static_cast<std::uint32_t>(
        std::min<std::size_t>(limit, std::max<std::size_t>(kLeastUnderPressure, share())));
}

std::size_t early_limit() noexcept { return over() ? 0 : share(); }

void note_drop() noexcept {
    g_state.dropped.fetch_add(1, std::memory_order_relaxed);
    warn();
}

// As the kernel's tcp_check_oom().
bool orphan_must_go(const Tcb& tcb, unsigned shift) noexcept {
    const bool many =
        Background::instance().orphans() << shift > g_state.max_orphans.load(std::memory_order_relaxed);
    const bool holds = over() && tcb.queue.queued() > kOrphanLeast;
    if (!many && !holds) return false;
    g_state.reset.fetch_add(1, std::memory_order_relaxed);
    log::once(log::Level::warn, "closed TCP connections are reset: {}",
              many ? "there are too many (net.ipv4.tcp_max_orphans)" : "memory is out (VMA_TCP_MEM)");
    return true;
}

Counts counts() noexcept {
    return {lwip::memory_use().used, lwip::memory_pressures(),
            g_state.dropped.load(std::memory_order_relaxed), g_state.reset.load(std::memory_order_relaxed)};
}

}  // namespace vma::tcp::memory_bound
