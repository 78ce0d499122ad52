// SPDX-License-Identifier: BSD-2-Clause
// See urgent.h.
#include "libvma/sockets/handover/urgent.h"

#include <errno.h>
#include <limits.h>

#include <atomic>
#include <exception>
#include <utility>

#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/never_destroyed.h"
#include "libvma/runtime/runtime.h"
#include "libvma/runtime/wake_fd.h"
#include "libvma/sockets/fd_table.h"

namespace vma::sockets::urgent {
namespace {

std::atomic<bool> g_prepared{false};
std::atomic<bool> g_hung{false};  // the bell is there
constinit NeverDestroyed<WakeFd> g_bell_fd;

void look() {
    g_bell_fd->clear();
    g_fds.for_each(0, INT_MAX, [](int fd, const FdObject* object) {
        if (object->kind() != Kind::socket) return;
        if (Ref<Socket> socket = g_fds.socket(fd))
            if (const LeaveCause* why = socket->leaving()) socket->leave_to_kernel(fd, *why);
    });
}

}  // namespace

void prepare() noexcept {
    if (g_prepared.load(std::memory_order_relaxed) || g_prepared.exchange(true)) return;
    const ErrnoKept kept;
    if (WakeFd bell = WakeFd::make()) {
        try {
            *g_bell_fd = std::move(bell);
            runtime::watch(g_bell_fd->get(), look);
            g_hung.store(true, std::memory_order_release);
        } catch (const std::exception&) {
            log::once(log::Level::warn, "TCP: urgent data is not noticed between calls: out of memory");
        }
    }
}

void ring_bell() noexcept {
    if (g_hung.load(std::memory_order_acquire)) g_bell_fd->wake();
}

namespace {
void forget_bell() noexcept {
    g_hung.store(false, std::memory_order_relaxed);
    g_prepared.store(false, std::memory_order_relaxed);
}
VMA_RENEW_IN_CHILD(forget_bell);
}  // namespace

}  // namespace vma::sockets::urgent
