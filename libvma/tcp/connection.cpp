// SPDX-License-Identifier: BSD-2-Clause
// A connection's life: beginning, lock, ring, data, end.
#include "libvma/tcp/connection.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/log.h"
#include "libvma/tcp/handshake/isn.h"
#include "libvma/tcp/handshake/syn.h"
#include "libvma/tcp/lwip/entry.h"
#include "libvma/tcp/memory_bound.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

std::atomic<std::size_t> g_count{0};
std::atomic<bool> g_moved{false};

constexpr int kMaxLooks = 64;  // at a ring that may never be empty

}  // namespace

// ---- beginning ----

Connection* Connection::create(PathSource& paths, const net::Endpoints& ends,
                               const Options& options) noexcept {
    try {
        return new Connection(paths, ends, options);
    } catch (...) {
        return nullptr;
    }
}

Connection::Connection(PathSource& paths, const net::Endpoints& ends, const Options& options)
    : tcb_(*this, paths, ends, options) {
    g_count.fetch_add(1, std::memory_order_relaxed);
}

Connection::~Connection() {
    tcb_.timers.cancel();
    later_unrefs_ = 0;
    if (tcb_.pcb != nullptr) tcb_.abandon(false);
    if (tcb_.phase.orphan) Background::instance().orphan_left(*this);
    tcb_.free_queues();
    g_count.fetch_sub(1, std::memory_order_relaxed);
}

void Connection::unref() noexcept {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

void Connection::note_moved() noexcept { g_moved.store(true, std::memory_order_relaxed); }
bool Connection::any_moved() noexcept { return g_moved.load(std::memory_order_relaxed); }

std::size_t Connection::count() noexcept { return g_count.load(std::memory_order_relaxed); }

int Connection::attach() noexcept {
    if (attached_) return 0;
    ring::Ring* ring = tcb_.route.rule_ring();
    try {
        // Two connections cannot have the same four numbers, but a peer may begin anew.
        const ring::Share share = tcb_.origin.passive() ? ring::Share::latest : ring::Share::only;
        auto added = ring->attach(flow(), this, share);
        ring::Ring& home = ring->home_of(flow());
        if (!added && added.error().code == EEXIST && !ring->rx_owned_by_me() && !home.rx_owned_by_me()) {
            // Perhaps the last segment of the old one has come, but nobody has looked.
            for (int i = 0; i < kMaxLooks && home.poll() != 0; i++) {
            }
            added = ring->attach(flow(), this, share);
        }
        if (!added && tcb_.origin.passive())
            log::once(log::Level::warn, "a connection is refused, for it cannot have a flow rule: {}",
                      added.error().what);
        if (!added) return added.error().code == EEXIST ? -EADDRNOTAVAIL : -EOPNOTSUPP;
    } catch (...) {
        return -ENOBUFS;
    }
    attached_ = true;
    ring->strays().want(flow());
    ref();  // the rule's; detached() gives it back
    ring_.store(ring, std::memory_order_release);
    ring->expect_stream(true);
    Background::instance().started(*ring);
    return 0;
}

int Connection::connect() noexcept {
    if (!enter()) return -EALREADY;
    int error = tcb_.route.find();
    // The neighbour's address may be unknown yet: the SYN then waits for it, as a packet in the kernel does.
    if (error == -EAGAIN && tcb_.route.ring() != nullptr) error = 0;
    if (error == 0) {
        tcb_.phase.connecting = true;
        // Before the SYN leaves, and without the lock: rings call the connection with their locks held.
        lock_.unlock();
        error = attach();
        lock_.lock();
    }
    if (error == 0) error = tcb_.opening.start();
    if (error != 0) {
        tcb_.phase.connecting = false;
        if (tcb_.pcb != nullptr) tcb_.abandon(false);
    }
    leave();
    return error;
}

Connection* Connection::adopt(PathSource& paths, lwip::Pcb* pcb, const Handshake& handshake,
                              const Options& options, const Path& path, bool resolved, ring::Ring& from,
                              Listener* origin) noexcept {
    Connection* c = create(paths, handshake.ends, options);
    if (c == nullptr) return nullptr;
    c->tcb_.origin.adopt(*origin, options.reuse_address);
    c->tcb_.route.adopt(path, resolved, from);
    c->tcb_.opening.adopt(pcb, handshake);
    return c;
}

void Connection::set_owner(Owner* owner) noexcept {
    const bool mine = enter();
    tcb_.owner = owner;
    if (mine) leave();
}

// ---- lock ----

bool Connection::enter() noexcept {
    if (lock_.try_lock()) return true;
    if (lock_.owned_by_me()) return false;
    lock_.lock();
    return true;
}

void Connection::leave() noexcept {
    for (;;) {
        while (backlog_.any_frames()) tcb_.receiver.input(backlog_.take_frames());
        if (backlog_.take_wish()) serve_backlog();
        tcb_.shown.update();
        const std::uint32_t unrefs = std::exchange(later_unrefs_, 0);
        // The rule goes when nothing is to come any more.
        const bool ended = tcb_.pcb == nullptr && attached_ && !detaching_ && !moving_ &&
                           !tcb_.freeze.frozen() && !tcb_.phase.connecting;
        if (ended) {
            detaching_ = true;
            ring()->strays().drop(flow());  // what is given to the kernel now must not come back
        }
        const bool moved = tcb_.freeze.moved();
        lock_.unlock();
        std::atomic_thread_fence(std::memory_order_seq_cst);
        for (std::uint32_t i = 0; i < unrefs; i++) unref();  // never the last: the caller has one
        if (ended) {
            // May be the end of this object, unless the caller has a reference.
            ring()->detach_soon(flow(), this, moved);
            return;
        }
        if (backlog_.empty() || !lock_.try_lock()) return;  // the lock's new owner does it
    }
}

void Connection::serve_backlog() noexcept {
    if (backlog_.take_abandon() && tcb_.pcb != nullptr) tcb_.abandon(false);
    if (ring::IcmpError error; backlog_.take_icmp(error)) tcb_.route.icmp_error(error);
    if (const auto how = backlog_.take_close(); how != Backlog::Close::no)
        close_locked(how == Backlog::Close::reset);
    tcb_.sender.output_kept();
}

void Connection::try_leave() noexcept {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (lock_.try_lock()) leave();
}

void Connection::abandon_quietly() noexcept {
    backlog_.ask_abandon();
    try_leave();
}

bool Connection::try_ref() noexcept {
    std::uint32_t n = refs_.load(std::memory_order_relaxed);
    while (n != 0 && !refs_.compare_exchange_weak(n, n + 1, std::memory_order_acquire)) {
    }
    return n != 0;
}

// ---- the ring ----

bool Connection::deliver(ring::RxBuffer* buffer) noexcept {
    buffer->next = nullptr;
    staged_.frames.append(buffer, buffer);
    if (!staged_.in_batch) {
        // Whoever owns this connection may let go of it before the batch is over: a later frame of the batch,
        // a timer.
        staged_.in_batch = true;
        ref();
        buffer->ring->at_batch_end(this);
    }
    return true;
}

void Connection::batch_end(ring::Ring& ring) noexcept {
    staged_.in_batch = false;
    ring::RxBuffer* last = staged_.frames.last();
    if (ring::RxBuffer* list = staged_.frames.take(); list != nullptr) take_batch(ring, list, last);
    unref();
}

void Connection::take_batch(ring::Ring& ring, ring::RxBuffer* list, ring::RxBuffer* last) noexcept {
    tcb_.receiver.set_scarce(ring.scarce());
    if (lock_.try_lock()) {
        if (!backlog_.any_frames()) {
            tcb_.receiver.input(list);
            if (tcb_.acks.when_idle() && attached_) {
                const auto when = tcb_.acks.waits_for_program() ? ring::Idle::later : ring::Idle::soon;
                if (!std::exchange(staged_.asked(when), true)) ring.when_idle(this, when);
            }
            leave();
            return;
        }
        lock_.unlock();
    }
    backlog_.add_frames(list, last);
    try_leave();
}

void Connection::idle(ring::Ring&, ring::Idle when) noexcept {
    staged_.asked(when) = false;
    if (!lock_.try_lock()) return;  // its owner, or the timer
    ref();
    tcb_.acks.idle();
    leave();
    unref();
}

void Connection::icmp_error(ring::Ring&, const ring::IcmpError& error) noexcept {
    backlog_.add_icmp(error);
    try_leave();
}

void Connection::hold(ring::Ring& ring) noexcept {
    if (backlog_.hold()) return;
    ref();
    ring.hold(this);
}

bool Connection::send_held() noexcept {
    const bool over = tcb_.sender.pausing(Clock::now());
    backlog_.unhold();
    backlog_.ask_output();
    try_leave();
    unref();
    return over;
}

void Connection::detached(ring::Ring& ring) noexcept {
    Background::instance().stopped(ring);
    ring.expect_stream(false);
    staged_.frames.release();  // frames that this batch has staged find no PCB any more
    unref();
}

// ---- data ----

ssize_t Connection::send(const iovec* iov, std::size_t, std::size_t length, unsigned flags) noexcept {
    if (!enter()) return -EWOULDBLOCK;
    ssize_t result;
    if (__builtin_expect(tcb_.freeze.away(), 0))
        result = -EREMOTE;
    else if (const int error = error_for_call(flags); error != 0)
        result = -error;
    else if (tcb_.phase.write_shut)
        result = -EPIPE;
    else if (tcb_.pcb == nullptr)
        result = tcb_.phase.connecting ? -EAGAIN : -EPIPE;
    else if (!tcb_.phase.established)
        result = -EAGAIN;
    else
        result = tcb_.sender.write(
            iov, length,
            {.more = (flags & kMore) != 0, .record = (flags & kRecord) != 0, .quiet = (flags & kQuiet) != 0});
    leave();
    return result;
}

void Connection::push() noexcept {
    if (!enter()) return;
    tcb_.sender.output();
    leave();
}

// What receive() says when nothing is there behind `skip` bytes.
int Connection::nothing_to_read(unsigned flags, std::size_t skip) noexcept {
    if (skip != 0 || tcb_.receiver.undecided()) return -EAGAIN;
    // The kernel's SOCK_DONE: an error that came later is for SO_ERROR and for writers.
    if (tcb_.phase.fin_seen) return 0;
    if (const int error = error_for_call(flags); error != 0) return -error;
    if (tcb_.phase.peer_closed || tcb_.phase.read_shut) return 0;
    return tcb_.pcb == nullptr && !tcb_.phase.connecting ? -ENOTCONN : -EAGAIN;
}

ssize_t Connection::receive(const iovec* iov, std::size_t count, std::size_t length, unsigned flags,
                            std::size_t skip) noexcept {
    if (!enter()) return -EWOULDBLOCK;
    ssize_t result;
    if (__builtin_expect(tcb_.freeze.away(), 0)) {
        result = -EREMOTE;
    } else if (tcb_.shown.readable() <= skip) {
        result = nothing_to_read(flags, skip);
    } else {
        tcb_.sender.program_reads();
        result = static_cast<ssize_t>(tcb_.receiver.read(
            iov, count, length, {.copy = !(flags & kDiscard), .take = !(flags & kPeek), .skip = skip}));
    }
    leave();
    return result;
}

// ---- end ----

int Connection::shutdown(int how) noexcept {
    if (!enter()) return -ENOTCONN;
    int result = 0;
    if (tcb_.freeze.away()) {
        result = -EREMOTE;
    } else if (tcb_.pcb == nullptr) {
        result = -ENOTCONN;
    } else if (tcb_.pcb->in(State::syn_sent)) {
        // The kernel gives the connection up, without an error to read.
        tcb_.abandon(false);
        tcb_.phase.peer_closed = false;
    } else {
        // The kernel's state_change: whoever waits is woken, whatever for.
        tcb_.shown.wake_all();
        if (how != SHUT_WR) tcb_.phase.read_shut = true;
        if (how != SHUT_RD && !tcb_.phase.write_shut) {
            tcb_.phase.write_shut = true;
            tcb_.in_lwip([&](lwip::Entry&) { tcb_.pcb->shut_write(); });
            if (tcb_.pcb != nullptr) tcb_.sender.output();
        }
        // As the kernel: data that still comes can reach nobody, and is answered with a RST.
        if (tcb_.pcb != nullptr && tcb_.phase.read_shut && tcb_.phase.write_shut) tcb_.pcb->refuse_data();
    }
    leave();
    return result;
}

void Connection::close(bool reset) noexcept {
    const bool mine = enter();
    tcb_.owner = nullptr;
    if (!mine) {  // a handler interrupted a call of this thread on this connection: that call ends it
        backlog_.ask_close(reset);
        return;
    }
    close_locked(reset);
    leave();
}

void Connection::close_locked(bool reset) noexcept {
    keep_urgent_locked();
    tcb_.phase.orphan = true;
    const bool unread = tcb_.receiver.queue().bytes() != 0;
    tcb_.free_queues();
    if (tcb_.pcb == nullptr) return;
    tcb_.phase.read_shut = true;
    if (tcb_.pcb->in(State::syn_sent)) {
        tcb_.abandon(false);
    } else if (!tcb_.pcb->in(State::time_wait) && (reset || unread || !tcb_.phase.established)) {
        // A FIN would wait for the handshake of a simultaneous open, which a peer need not ever complete.
        tcb_.abandon(true);
    } else if (!tcb_.pcb->in(State::time_wait)) {
        tcb_.pcb->refuse_data();  // data that still comes is answered with a RST
        if (!tcb_.phase.write_shut) {
            tcb_.phase.write_shut = true;
            tcb_.in_lwip([&](lwip::Entry&) { tcb_.pcb->shut_write(); });
        }
        if (tcb_.pcb != nullptr) {
            tcb_.sender.end_burst();
            tcb_.sender.output();
        }
        if (tcb_.pcb != nullptr && tcb_.pcb->in(State::fin_wait2)) tcb_.timers.start_fin_wait2();
        if (tcb_.pcb != nullptr) Background::instance().orphaned(*this);
        if (tcb_.pcb != nullptr && memory_bound::orphan_must_go(tcb_, 0)) tcb_.abandon(true);
    }
}

namespace {
void forget_connections() noexcept { g_count = 0; }
VMA_RENEW_IN_CHILD(forget_connections);
}  // namespace

}  // namespace vma::tcp
