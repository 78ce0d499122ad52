// SPDX-License-Identifier: BSD-2-Clause
// The writing side of the descriptor table. Writers are rare (socket, close, dup) and may race with each
// other for the same number only when the program itself races, so an atomic exchange for each entry is all
// the order there is.
#include "libvma/sockets/fd_table.h"

#include <errno.h>
#include <sys/mman.h>
#include <time.h>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/never_destroyed.h"
#include "libvma/runtime/region.h"

namespace vma::sockets {

constinit FdTable g_fds;

namespace {

void drop(int fd, FdObject* object) noexcept {
    object->fd_removed(fd);
    object->unref();
}

// Stands where a number means nothing any more, and the kernel has not been told yet. Calls that move data
// wait for that moment, then look again what the number means.
class ClosingNumber final : public Socket {
  public:
    ssize_t recvfrom(int fd, void*, size_t, int, sockaddr*, socklen_t*) override { return look_again(fd); }
    ssize_t recvmsg(int fd, msghdr*, int) override { return look_again(fd); }
    int recvmmsg(int fd, mmsghdr*, unsigned, int, timespec*) override { return look_again(fd); }
    ssize_t sendto(int fd, const void*, size_t, int, const sockaddr*, socklen_t) override {
        return look_again(fd);
    }
    ssize_t sendmsg(int fd, const msghdr*, int) override { return look_again(fd); }
    int sendmmsg(int fd, mmsghdr*, unsigned, int) override { return look_again(fd); }
    ssize_t sendfile(int out, int, off_t*, size_t) override { return look_again(out); }
    ssize_t splice_in(int, off64_t*, int out, off64_t*, size_t, unsigned) override { return look_again(out); }
    ssize_t splice_out(int in, off64_t*, int, off64_t*, size_t, unsigned) override { return look_again(in); }

    // Not the kernel's socket. Who waits for it is not told, so looks again soon.
    Readiness readiness() const noexcept override { return Readiness::ours; }
    bool add_waiter(Waiter*) noexcept override { return false; }

  protected:
    void recycle() noexcept override {}

  private:
    // The closing thread gives the connection's rules back before it tells the kernel, so it may take its
    // time, above all where it waits for a processor. It ends in every case: it runs no code of the program.
    int look_again(int fd) const noexcept {
        constexpr int kYields = 100;
        constexpr timespec kPause{0, 50'000};
        for (int i = 0; g_fds.peek(fd) == this && !runtime::pending(); i++)
            os::raw_syscall(i < kYields ? SYS_sched_yield : SYS_nanosleep, &kPause, nullptr);
        errno = runtime::kRestart;
        return -1;
    }
};

FdObject& closing_number() noexcept {
    static NeverDestroyed<ClosingNumber> number;
    return *number;
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
    if (slot.compare_exchange_strong(leaf, fresh, std::memory_order_acq_rel, std::memory_order_acquire))
        return fresh;
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
    note(*leaf, static_cast<unsigned>(fd), stale, object);
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
    note(*leaf, index, object, nullptr);
    used_.fetch_sub(1, std::memory_order_relaxed);
    const ErrnoKept kept;
    drop(fd, object);
}

void FdTable::remove_if(int fd, FdObject* object) noexcept {
    unsigned index = static_cast<unsigned>(fd);
    if ((index >> kLeafBits) >= kTop) return;
    Leaf* leaf = top_[index >> kLeafBits].load(std::memory_order_acquire);
    if (leaf == nullptr) return;
    if (!leaf->entries[index & (kLeaf - 1)].compare_exchange_strong(object, nullptr,
                                                                    std::memory_order_acq_rel))
        return;
    note(*leaf, index, object, nullptr);
    used_.fetch_sub(1, std::memory_order_relaxed);
    const ErrnoKept kept;
    drop(fd, object);
}

bool FdTable::close(int fd) noexcept {
    FdObject* object = peek(fd);
    if (object == nullptr) return false;
    bool hide = false;
    if (object->kind() == Kind::socket) {
        const ErrnoKept kept;
        if (Ref<Socket> s = socket(fd)) {
            if (s->has_one_fd()) s->before_last_close(fd);
            // The kernel's socket could do nothing with a call, and would raise SIGPIPE.
            hide = s->readiness() == Readiness::ours;
        }
    }
    const ErrnoKept kept;
    hide = hide && insert(fd, &closing_number());
    if (!hide) remove(fd);
    return hide;
}

void FdTable::closed(int fd) noexcept { remove_if(fd, &closing_number()); }

bool FdTable::is_closing(const FdObject* object) noexcept { return object == &closing_number(); }

void FdTable::clear_in_child() noexcept {
    for (auto& slot : top_) {
        Leaf* leaf = slot.load(std::memory_order_relaxed);
        if (leaf == nullptr) continue;
        for (auto& entry : leaf->entries)
            if (entry.load(std::memory_order_relaxed) != nullptr)
                entry.store(nullptr, std::memory_order_relaxed);
        for (auto& sets : leaf->sets) sets.store(0, std::memory_order_relaxed);
    }
    used_.store(0, std::memory_order_relaxed);
}

void on_dup(int oldfd, int newfd) noexcept {
    Ref<FdObject> object = g_fds.find(oldfd);
    if (!object || !g_fds.insert(newfd, object.get())) {
        g_fds.drop_stale(newfd);
        return;
    }
    if (is_standard_stream(newfd) && object->kind() == Kind::socket)
        object->leave_to_kernel(newfd, leave::standard_stream);
}

}  // namespace vma::sockets
