// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/tcp/system_settings.h"

#include <atomic>

#include "libvma/os/sysctl.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/fork_renewal.h"

namespace vma::sockets {
namespace {

SystemSettings read_settings() noexcept {
    const ErrnoKept kept;
    SystemSettings s;
#define VMA_TCP_SETTING(name, file, otherwise) s.name = os::sysctl(file, otherwise);
#include "libvma/sockets/tcp/system_settings.def"
    return s;
}

// Guards g_known. Nobody waits for it: a signal handler would wait for the code that it has interrupted.
constinit std::atomic<bool> g_busy{false};
constinit SystemSettings g_known{};
constinit std::atomic<std::uint32_t> g_number{0};
constinit std::atomic<clock::Time> g_fresh_until{};

void renew_settings() noexcept { g_busy.store(false, std::memory_order_relaxed); }
VMA_RENEW_IN_CHILD(renew_settings);

}  // namespace

std::uint32_t settings_number() noexcept {
    const std::uint32_t number = g_number.load(std::memory_order_acquire);
    const clock::Time now = clock::monotonic();
    if (number != 0 && now < g_fresh_until.load(std::memory_order_relaxed)) return number;
    if (g_busy.exchange(true, std::memory_order_acquire)) return number != 0 ? number : 1;
    const SystemSettings fresh = read_settings();
    std::uint32_t known = g_number.load(std::memory_order_relaxed);
    if (known == 0 || !(fresh == g_known)) {
        g_known = fresh;
        g_number.store(++known, std::memory_order_release);
    }
    g_fresh_until.store(now + kSettingsFresh, std::memory_order_relaxed);
    g_busy.store(false, std::memory_order_release);
    return known;
}

SystemSettings system_settings() noexcept {
    if (g_busy.exchange(true, std::memory_order_acquire)) return read_settings();
    const bool known = g_number.load(std::memory_order_relaxed) != 0;
    const SystemSettings settings = known ? g_known : read_settings();
    g_busy.store(false, std::memory_order_release);
    return settings;
}

}  // namespace vma::sockets
