// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/verdicts.h"

#include <mutex>
#include <new>
#include <utility>

#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/lock.h"
#include "libvma/sockets/extra_socket.h"

namespace vma::sockets {
namespace {

// Filters with something undecided that no thread judges, oldest first. The lock is a leaf.
struct List {
    Lock lock;
    Filter* first = nullptr;
    Filter* last = nullptr;
};
constinit List g_list;

void renew_verdicts() noexcept { Verdicts::renew(); }
VMA_RENEW_IN_CHILD(renew_verdicts);

}  // namespace

Filter::~Filter() {
    set({});
    const std::lock_guard guard(g_list.lock);
    if (!listed_) return;
    Filter* before = nullptr;
    for (Filter* f = g_list.first; f != nullptr && f != this; f = f->next_) before = f;
    (before != nullptr ? before->next_ : g_list.first) = next_;
    if (g_list.last == this) g_list.last = before;
    Verdicts::count_listed(-1);
}

void Filter::give_room(std::unique_ptr<Judging> room) noexcept {
    const std::lock_guard guard(g_list.lock);
    if (room_ == nullptr) room_ = std::move(room);
}

void Filter::set(const Callback& callback) noexcept {
    const std::lock_guard guard(g_list.lock);
    callback_ = callback;
    active_.store(callback.function != nullptr, std::memory_order_release);
}

bool Filter::judging() noexcept {
    const std::lock_guard guard(g_list.lock);
    return judging_;
}

void Filter::note() noexcept {
    const std::lock_guard guard(g_list.lock);
    if (!listed_ && !judging_ && active()) Verdicts::list(*this);
}

// Under the lock.
void Verdicts::list(Filter& filter) noexcept {
    filter.listed_ = true;
    filter.next_ = nullptr;
    (g_list.last != nullptr ? g_list.last->next_ : g_list.first) = &filter;
    g_list.last = &filter;
    count_listed(1);
}

Filter* Verdicts::claim_listed(Callback& callback) noexcept {
    const std::lock_guard guard(g_list.lock);
    for (;;) {
        Filter* filter = g_list.first;
        if (filter == nullptr) return nullptr;
        g_list.first = filter->next_;
        if (g_list.first == nullptr) g_list.last = nullptr;
        filter->listed_ = false;
        count_listed(-1);
        // Its object may be about to end: the destructor waits for the lock.
        if (!filter->active() || !filter->socket_.try_ref()) continue;
        filter->judging_ = true;
        callback = filter->callback_;
        return filter;
    }
}

void Verdicts::done(Filter& filter) noexcept {
    {
        const std::lock_guard guard(g_list.lock);
        filter.judging_ = false;
    }
    ExtraSocket* socket = filter.socket_.extra();
    if (!filter.active())
        socket->decide_all();
    else if (socket->any_undecided())
        filter.note();
}

void Verdicts::run() {
    // Calls of the callbacks have their own; and one that jumps out leaves nothing behind.
    const clock::Time deadline = take_deadline();
    call_over();
    if (auto runner = runner_.load(std::memory_order_acquire)) runner();
    t_ = {t_.top, true, true, deadline};
}

bool Verdicts::inside_any(const Socket& socket) noexcept {
    for (const Judging* r = t_.top; r != nullptr; r = r->outer)
        if (r->socket == &socket) return true;
    return false;
}

void Verdicts::renew() noexcept {
    new (&g_list) List;
    listed_ = 0;
    t_ = {};
}

}  // namespace vma::sockets
