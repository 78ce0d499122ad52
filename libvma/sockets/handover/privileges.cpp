// SPDX-License-Identifier: BSD-2-Clause
// See privileges.h.
#include "libvma/sockets/handover/privileges.h"

#include <atomic>

#include "libvma/runtime/log.h"
#include "libvma/sockets/handover/shared_sockets.h"
#include "libvma/sockets/stack.h"
#include "libvma/tcp/migrate/handover.h"

namespace vma::sockets::privileges {
namespace {

std::atomic<bool> g_had{false};

}  // namespace

void before_drop() noexcept {
    if (Stack::running() == nullptr || !tcp::handover_possible()) return;
    g_had.store(true, std::memory_order_relaxed);
    log::once(log::Level::warn,
              "the program gives up CAP_NET_ADMIN, which moving TCP connections to the kernel needs: TCP is "
              "served by the "
              "kernel from now on");
    sharing::hand_all(sharing::Before::drop);
}

void changed() noexcept { tcp::forget_handover_possible(); }

bool tcp_may_be_ours() noexcept {
    if (tcp::handover_possible()) return true;
    if (g_had.load(std::memory_order_relaxed)) return false;
    log::once(log::Level::warn,
              "without CAP_NET_ADMIN no TCP connection can be moved to the kernel: at exit, exec, and in a "
              "forked child "
              "connections end with a reset, and what is queued is lost");
    return true;
}

}  // namespace vma::sockets::privileges
