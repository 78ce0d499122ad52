// SPDX-License-Identifier: BSD-2-Clause
// See urgent.h.
#include "libvma/sockets/handover/urgent.h"

#include <errno.h>
#include <limits.h>
#include <sys/eventfd.h>

#include <atomic>
#include <cstdint>
#include <exception>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/never_destroyed.h"
#include "libvma/runtime/runtime.h"
#include "libvma/sockets/fd_table.h"

namespace vma::sockets::urgent {
namespace {

std::atomic<bool> g_prepared{false};
std::atomic<bool> g_hung{false};  // the bell is there
constinit NeverDestroyed<InternalFd> g_bell_fd;

void look() {
    std::uint64_t count;
    os::raw_syscall(SYS_read, g_bell_fd->get(), &count, sizeof count);
    g_fds.for_each(0, INT_MAX, [](int fd, const FdObject* object) {
        if (object->kind() != Kind::socket) return;
        if (Ref<Socket> socket = g_fds.socket(fd))
            if (const LeaveCause* why = socket->leaving()) socket->leave_to_kernel(fd, *why);
    });
}

}  // namespace

void prepare() noexcept {
    if (g_prepared.load(std::memory_order_relaxed) || g_prepared.exchange(true)) return;
    int saved = errno;
    if (const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); fd >= 0) {
        try {
            *g_bell_fd = InternalFd(fd);
            runtime::watch(g_bell_fd->get(), look);
            g_hung.store(true, std::memory_order_release);
        } catch (const std::exception&) {
            log::once(log::Level::warn, "TCP: urgent data is not noticed between calls: out of memory");
        }
    }
    errno = saved;
}

void ring_bell() noexcept {
    if (!g_hung.load(std::memory_order_acquire)) return;
    const std::uint64_t one = 1;
    os::raw_syscall(SYS_write, g_bell_fd->get(), &one, sizeof one);
}

namespace {
void forget_bell() noexcept {
    g_hung.store(false, std::memory_order_relaxed);
    g_prepared.store(false, std::memory_order_relaxed);
}
VMA_RENEW_IN_CHILD(forget_bell);
}  // namespace

}  // namespace vma::sockets::urgent
