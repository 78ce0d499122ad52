// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/tcp/core.h"

#include <cstring>
#include <mutex>

#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/no_cancel.h"
#include "libvma/sockets/extreme.h"
#include "libvma/sockets/verdicts.h"
#include "libvma/tcp/migrate/handover.h"

namespace vma::sockets {

TcpCore::~TcpCore() { delete filter_.load(std::memory_order_relaxed); }

tcp::Connection* TcpCore::connection() noexcept {
    Pin pin(transport_);
    if (pin.connection != nullptr) pin.connection->ref();
    return pin.connection;
}

const LeaveCause* TcpCore::leaving() const noexcept {
    Pin pin(transport_);
    return pin.connection != nullptr ? leaving(*pin.connection) : nullptr;
}

const LeaveCause* TcpCore::leaving(const tcp::Connection& c) const noexcept {
    if (stuck_.load(std::memory_order_relaxed)) return nullptr;
    if (c.urgent_seen()) return &leave::urgent_data;
    // The extra API has no packets of a kernel's socket.
    const bool plain = filter_.load(std::memory_order_relaxed) == nullptr && !ExtremeMember::wanted();
    return c.bulk_seen() && plain ? &leave::bulk : nullptr;
}

// ---- the kernel takes over ----

bool TcpCore::handover(int fd, LeaveCause why) noexcept {
    if (phase() == Phase::kernel) return true;
    if (!has_connection()) {
        leave_to_kernel(fd, why);
        return true;
    }
    if (state_lock_.owned_by_me() || stuck_.load(std::memory_order_relaxed)) return false;
    const runtime::NoCancel whole;
    flush();
    const std::lock_guard guard(state_lock_);
    tcp::Connection* c = transport_.connection();
    bool moved = phase() == Phase::kernel;  // another thread was faster
    if (c != nullptr && !ConnectionScope::interrupted(*c) && !closing_ &&
        !stuck_.load(std::memory_order_relaxed)) {
        const ErrnoKept kept;
        options_.settle(fd);
        const bool bulk = why.reason == stats::Reason::bulk;
        if (bulk) c->begin_silence();
        tcp::KernelState state;
        const int error = -c->freeze(state);
        if (error == 0) {
            try {
                auto result = tcp::hand_over(fd, state, [&] {
                    c->finish_freeze(true);
                    moved = true;
                });
                if (!result)
                    log::warn("a TCP connection cannot be moved to the kernel ({}): {}", why.text,
                              result.error().what);
            } catch (...) {
                log::warn("a TCP connection cannot be moved to the kernel ({}): out of memory", why.text);
            }
            if (!moved) c->finish_freeze(false);
        } else {
            log::once(log::Level::warn,
                      "a TCP connection in this state cannot be moved to the kernel ({}): {}", why.text,
                      strerrordesc_np(error));
        }
        if (moved) {
            log::once(log::Level::info, "a TCP connection is moved to the kernel: {}", why.text);
            c->set_owner(nullptr);
            publish();  // the connection's last numbers
            transport_.retire(transport_.take_connection());
            set_phase(Phase::kernel);
            decided({stats::Path::kernel, why.reason, why.text});
        } else if (bulk) {
            c->keep_bulk();
            c->end_silence();
        } else {
            stuck_.store(true, std::memory_order_relaxed);
            c->keep_urgent();
        }
    }
    return moved;
}

// ---- another ring ----

void TcpCore::move_connection() noexcept {
    const tcp::Connection* c = transport_.connection();
    if (c == nullptr || ConnectionScope::interrupted(*c) || state_lock_.owned_by_me() ||
        !state_lock_.try_lock())
        return;
    if (phase() == Phase::connected) move_ring();
    state_lock_.unlock();
}

// A listener stays where it is: its rules are shared with what it will accept.
bool TcpCore::move_to(unsigned lane, std::string& why) {
    tcp::Connection* const c = transport_.connection();
    ring::Ring* const from = c != nullptr ? c->ring() : nullptr;
    if (from == nullptr) {
        why = "it has no connection";
        return false;
    }
    const unsigned place = stack_.rings().lanes().of(lane, c->endpoints().local.address.v4());
    ring::Ring* const to = stack_.open_ring(from->attr().ifindex, place, &why);
    if (to == nullptr) return false;
    if (auto moved = c->move_to(*to, place); !moved) {
        why = std::move(moved.error().what);
        return false;
    }
    options_.next().path.lane = place;
    describe();
    watchers_.wake(0);  // waiting threads move to this ring
    return true;
}

int TcpCore::move_away(int fd) noexcept {
    if (state_lock_.owned_by_me()) return -EAGAIN;
    const LeaveCause* const why = leaving();
    if (has_connection()) handover(fd, why != nullptr ? *why : leave::urgent_data);
    return has_connection() ? 0 : 1;
}

}  // namespace vma::sockets
