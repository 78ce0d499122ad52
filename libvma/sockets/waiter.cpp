// SPDX-License-Identifier: BSD-2-Clause
// Where the threads' waiters live.
//
// A waiter's memory is never given back: a program may leave a sleeping call by siglongjmp() out of a signal
// handler, and then its waiter stays on the lists of the sockets it waited for. A late signal to a waiter
// that has changed hands wakes its new owner once for nothing; a signal into freed memory would be a crash.
// So a thread that ends puts its waiter, with its eventfd, back into a pool. The pool's memory comes from
// mmap, because select() and poll() may be called in signal handlers, also in one that interrupted malloc.
#include "libvma/sockets/waiter.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>

#include <cstddef>
#include <mutex>
#include <new>

#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/lock.h"
#include "libvma/runtime/region.h"
#include "libvma/runtime/wakes_held.h"

namespace vma::sockets {
namespace {

struct Node {
    Waiter waiter;  // first: the thread's pointer to the waiter is also the pointer to its node
    Node* next = nullptr;
};

constexpr std::size_t kChunkBytes = 4096;

constinit Lock g_pool_lock;
constinit Node* g_free = nullptr;  // guarded by g_pool_lock

constinit thread_local Waiter* t_mine = nullptr;

std::atomic<unsigned> g_key_state{0};  // 0: no key yet, 1: being made, 2: ready, 3: none to be had
pthread_key_t g_key;

void give_back(Node* node) noexcept {
    const std::lock_guard guard(g_pool_lock);
    node->next = g_free;
    g_free = node;
}

extern "C" void vma_waiter_thread_ends(void* waiter) {
    runtime::Region region;
    t_mine = nullptr;
    give_back(static_cast<Node*>(waiter));
}

// The key whose destructor gives a thread's waiter back. Not pthread_once: a signal handler that interrupts
// it in this very thread would wait for ever.
bool key_ready() noexcept {
    unsigned state = g_key_state.load(std::memory_order_acquire);
    if (state == 0 && g_key_state.compare_exchange_strong(state, 1)) {
        state = pthread_key_create(&g_key, vma_waiter_thread_ends) == 0 ? 2 : 3;
        g_key_state.store(state, std::memory_order_release);
    }
    return state == 2;
}

// Guarded by g_pool_lock.
bool grow() noexcept {
    void* memory = mmap(nullptr, kChunkBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    auto* nodes = static_cast<std::byte*>(memory);
    for (std::size_t at = 0; at + sizeof(Node) <= kChunkBytes; at += sizeof(Node)) {
        Node* node = new (nodes + at) Node;
        node->next = g_free;
        g_free = node;
    }
    return true;
}

Node* take() noexcept {
    if (!g_pool_lock.try_lock()) {
        if (g_pool_lock.owned_by_me()) return nullptr;  // in a handler that interrupted this function
        g_pool_lock.lock();
    }
    Node* node = g_free != nullptr || grow() ? g_free : nullptr;
    if (node != nullptr) g_free = node->next;
    g_pool_lock.unlock();
    return node;
}

}  // namespace

constinit WaiterList::Link* WaiterList::free_links_ = nullptr;  // guarded by g_pool_lock

// A leaf inside the sockets' locks.
WaiterList::Link* WaiterList::take_link() noexcept {
    const std::lock_guard guard(g_pool_lock);
    if (free_links_ == nullptr) {
        int saved = errno;
        void* memory = mmap(nullptr, kChunkBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        errno = saved;
        if (memory != MAP_FAILED)
            for (std::size_t i = 0; i < kChunkBytes / sizeof(Link); i++)
                free_links_ = new (static_cast<Link*>(memory) + i) Link{nullptr, free_links_};
    }
    Link* link = free_links_;
    if (link != nullptr) free_links_ = link->next;
    return link;
}

void WaiterList::give_link(Link* link) noexcept {
    const std::lock_guard guard(g_pool_lock);
    link->next = free_links_;
    free_links_ = link;
}

Waiter* Waiter::mine() noexcept {
    if (__builtin_expect(t_mine != nullptr, 1)) return t_mine;
    const ErrnoKept kept;
    Waiter* waiter = nullptr;
    if (key_ready()) {
        if (Node* node = take()) {
            if (!node->waiter.event_) node->waiter.event_ = WakeFd::make();
            // A handler may have come here meanwhile and made one: then that is the thread's.
            if (node->waiter.event_ && t_mine == nullptr && pthread_setspecific(g_key, node) == 0)
                t_mine = &node->waiter;
            else
                give_back(node);
            waiter = t_mine;
        }
    }
    return waiter;
}

void Waiter::signal() noexcept {
    if (this == t_mine) return;  // it is awake, and looks at its sockets after whatever it does here
    if (!signalled_.exchange(true, std::memory_order_acq_rel)) WakesHeld::wake(event_.get());
}

// The flag falls before the count is read: a signal in between writes again and costs one needless wake-up,
// the other order would lose it. The count is read even if the flag was down, since a signaller may have
// raised the flag before an earlier clear() and written after it; the eventfd would stay readable for ever.
void Waiter::clear() noexcept {
    signalled_.exchange(false, std::memory_order_acq_rel);
    event_.clear();
}

void Waiter::reset_in_child() noexcept {
    // Only this thread exists now. The old nodes may be on lists of forgotten sockets or half taken from the
    // pool.
    new (&g_pool_lock) Lock();
    g_free = nullptr;
    WaiterList::free_links_ = nullptr;
    if (t_mine != nullptr && g_key_state.load() == 2) pthread_setspecific(g_key, nullptr);
    t_mine = nullptr;
    if (g_key_state.load() == 1) g_key_state.store(0);
}
namespace {
VMA_RENEW_IN_CHILD(Waiter::reset_in_child);
}  // namespace

}  // namespace vma::sockets
