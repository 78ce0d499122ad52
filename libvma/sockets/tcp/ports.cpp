// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/tcp/ports.h"

#include <errno.h>

#include <array>
#include <mutex>
#include <new>
#include <utility>

#include "libvma/os/calls.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/lock.h"
#include "libvma/runtime/never_destroyed.h"
#include "libvma/runtime/runtime.h"

namespace vma::sockets {
namespace {

// The shadow goes as soon as the connection has ended, the rest of the entry when look() comes by: the last
// reference must not go while the connection's lock is held.
struct Kept final : tcp::Owner {
    InternalFd shadow;
    tcp::Connection* connection = nullptr;
    void changed() noexcept override;
};
constexpr std::size_t kMax = 256;
constexpr clock::Msec kLookPeriod{1000};

constinit Lock g_lock;
constinit NeverDestroyed<std::array<Kept, kMax>> g_kept;
constinit std::size_t g_next = 0;  // where the next one goes: the oldest stands there
constinit std::size_t g_count = 0;
constinit bool g_ticking = false;

void release(Kept& kept) noexcept {
    if (kept.connection == nullptr) return;
    kept.shadow.reset();
    std::exchange(kept.connection, nullptr)->unref();
    g_count--;
}

void Kept::changed() noexcept {
    if (g_lock.owned_by_me()) return;  // look() will see it
    const std::lock_guard guard(g_lock);
    if (connection != nullptr && connection->state() == tcp::State::close) shadow.reset();
}

// False: nothing is left to look at.
bool look() noexcept {
    const std::lock_guard guard(g_lock);
    for (Kept& kept : *g_kept)
        if (kept.connection != nullptr && kept.connection->state() == tcp::State::close) release(kept);
    g_ticking = g_count != 0;
    return g_ticking;
}

}  // namespace

void keep_port(InternalFd copy, tcp::Connection* connection) noexcept {
    if (g_lock.owned_by_me()) return;
    const ErrnoKept kept;
    if (copy) {
        connection->ref();
        g_lock.lock();
        Kept& place = (*g_kept)[g_next];
        tcp::Connection* oldest = std::exchange(place.connection, connection);
        place.shadow = std::move(copy);
        g_next = (g_next + 1) % kMax;
        if (oldest == nullptr) g_count++;
        const bool start = !std::exchange(g_ticking, true);
        g_lock.unlock();
        if (oldest != nullptr) {
            oldest->set_owner(nullptr);
            oldest->unref();
        }
        connection->set_owner(&place);
        place.changed();  // it may have ended meanwhile
        if (start) {
            try {
                runtime::every(kLookPeriod, look);
            } catch (...) {
                const std::lock_guard guard(g_lock);
                g_ticking = false;  // the next one tries again
            }
        }
    }
}

namespace {
void forget_ports() noexcept {
    new (&g_lock) Lock;
    for (Kept& kept : *g_kept) kept.connection = nullptr;  // the descriptors have been closed already
    g_next = g_count = 0;
    g_ticking = false;
}
VMA_RENEW_IN_CHILD(forget_ports);
}  // namespace

}  // namespace vma::sockets
