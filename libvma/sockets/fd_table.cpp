// SPDX-License-Identifier: BSD-2-Clause
// The writing side of the descriptor table. Writers are rare (socket, close, dup) and may race with each other for the
// same number only when the program itself races, so an atomic exchange for each entry is all the order there is.
#include "libvma/sockets/fd_table.h"

#include <errno.h>
#include <sys/mman.h>

namespace vma::sockets {

constinit FdTable g_fds;

namespace {

void drop(int fd, FdObject* object) noexcept {
    object->fd_removed(fd);
    object->unref();
}

}  // namespace

// Leaves are never unmapped: a reader may hold a pointer into one at any time.
FdTable::Leaf* FdTable::leaf_for(unsigned index) noexcept {
    if ((index >> kLeafBits) >= kTop) return nullptr;
    auto& slot = top_[index >> kLeafBits];
    Leaf* leaf = slot.load(std::memory_order_acquire);
    if (leaf != nullptr) return leaf;
    // mmap and not malloc: this can run inside the program's own malloc, and zero pages are empty entries.
    int saved = errno;
    void* memory = mmap(nullptr, sizeof(Leaf), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = saved;
    if (memory == MAP_FAILED) return nullptr;
    Leaf* fresh = new (memory) Leaf;
    if (slot.compare_exchange_strong(leaf, fresh, std::memory_order_acq_rel, std::memory_order_acquire)) return fresh;
    munmap(memory, sizeof(Leaf));
    errno = saved;
    return leaf;
}

bool FdTable::insert(int fd, FdObject* object) noexcept {
    Leaf* leaf = leaf_for(static_cast<unsigned>(fd));
    if (leaf == nullptr || !object->try_ref()) return false;
    object->fd_added();
    auto& entry = leaf->entries[static_cast<unsigned>(fd) & (kLeaf - 1)];
    FdObject* stale = entry.exchange(object, std::memory_order_acq_rel);
    if (stale != nullptr)
        drop(fd, stale);
    else
        used_.fetch_add(1, std::memory_order_relaxed);
    return true;
}

void FdTable::remove(int fd) noexcept {
    unsigned index = static_cast<unsigned>(fd);
    if ((index >> kLeafBits) >= kTop) return;
    Leaf* leaf = top_[index >> kLeafBits].load(std::memory_order_acquire);
    if (leaf == nullptr) return;
    FdObject* object = leaf->entries[index & (kLeaf - 1)].exchange(nullptr, std::memory_order_acq_rel);
    if (object == nullptr) return;
    used_.fetch_sub(1, std::memory_order_relaxed);
    int saved = errno;
    drop(fd, object);
    errno = saved;
}

void FdTable::remove_if(int fd, FdObject* object) noexcept {
    unsigned index = static_cast<unsigned>(fd);
    if ((index >> kLeafBits) >= kTop) return;
    Leaf* leaf = top_[index >> kLeafBits].load(std::memory_order_acquire);
    if (leaf == nullptr) return;
    if (!leaf->entries[index & (kLeaf - 1)].compare_exchange_strong(object, nullptr, std::memory_order_acq_rel)) return;
    used_.fetch_sub(1, std::memory_order_relaxed);
    int saved = errno;
    drop(fd, object);
    errno = saved;
}

void FdTable::close(int fd) noexcept {
    FdObject* object = peek(fd);
    if (object == nullptr) return;
    if (object->kind() == Kind::socket) {
        int saved = errno;
        if (Ref<Socket> s = socket(fd); s && s->has_one_fd()) s->before_last_close(fd);
        errno = saved;
    }
    remove(fd);
}

void FdTable::clear_in_child() noexcept {
    for (auto& slot : top_) {
        Leaf* leaf = slot.load(std::memory_order_relaxed);
        if (leaf == nullptr) continue;
        for (auto& entry : leaf->entries)
            if (entry.load(std::memory_order_relaxed) != nullptr) entry.store(nullptr, std::memory_order_relaxed);
    }
    used_.store(0, std::memory_order_relaxed);
}

void on_dup(int oldfd, int newfd) noexcept {
    g_fds.drop_stale(newfd);
    if (Ref<FdObject> object = g_fds.find(oldfd)) g_fds.insert(newfd, object.get());
}

}  // namespace vma::sockets
