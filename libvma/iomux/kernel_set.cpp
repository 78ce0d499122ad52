// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/iomux/kernel_set.h"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <charconv>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "libvma/iomux/set_numbers.h"
#include "libvma/os/calls.h"
#include "libvma/os/proc_file.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/lock.h"
#include "libvma/runtime/never_destroyed.h"
#include "libvma/runtime/runtime.h"
#include "libvma/runtime/wake_fd.h"
#include "libvma/sockets/fd_table.h"

namespace vma::iomux {
namespace {

// A descriptor for the length of a function. Raw calls, so that none is a cancellation point.
class Opened {
  public:
    Opened(const char* path, int flags) noexcept
        : fd_(static_cast<int>(os::raw_syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0))) {}
    ~Opened() {
        if (fd_ >= 0) os::raw_syscall(SYS_close, fd_);
    }
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;
    int get() const noexcept { return fd_; }

  private:
    int fd_;
};

// Reads the number after `key` in `line`. False if there is none.
template <class T>
bool field(std::string_view line, std::string_view key, int base, T& value) noexcept {
    std::size_t at = line.find(key);
    if (at == line.npos) return false;
    at = line.find_first_not_of(' ', at + key.size());
    if (at == line.npos) return false;
    auto end = line.data() + line.size();
    return std::from_chars(line.data() + at, end, value, base).ec == std::errc{};
}

bool links_to_epoll(int directory, const char* name) noexcept {
    char target[64];
    long length = os::raw_syscall(SYS_readlinkat, directory, name, target, sizeof target);
    return length > 0 &&
           std::string_view(target, static_cast<std::size_t>(length)) == "anon_inode:[eventpoll]";
}

}  // namespace

bool is_epoll(int fd) noexcept {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return links_to_epoll(AT_FDCWD, path);
}

// tfd:        5 events:       19 data: 1234  pos:0 ino:abc sdev:8   (proc(5), fs/eventpoll.c)
std::vector<KernelMember> kernel_members(int epfd) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", epfd);
    std::vector<KernelMember> members;
    const std::string text = os::read_proc_file(path, std::string::npos);
    std::string_view rest = text;
    while (!rest.empty()) {
        std::size_t end = rest.find('\n');
        std::string_view line = rest.substr(0, end);
        rest = end == rest.npos ? std::string_view{} : rest.substr(end + 1);
        KernelMember m{};
        if (!line.starts_with("tfd:")) continue;
        if (field(line, "tfd:", 10, m.fd) && field(line, "events:", 16, m.events) &&
            field(line, "data:", 16, m.data) && !sleepers::is_kick(m.data)) {
            field(line, "ino:", 16, m.inode);
            members.push_back(m);
        }
    }
    return members;
}

std::vector<int> epoll_descriptors(int except) {
    std::vector<int> found;
    Opened directory("/proc/self/fd", O_RDONLY | O_DIRECTORY);
    if (directory.get() < 0) return found;
    struct Entry {  // struct linux_dirent64, getdents64(2)
        std::uint64_t inode;
        std::int64_t offset;
        unsigned short length;
        unsigned char type;
        char name[1];
    };
    alignas(Entry) char block[4096];
    for (;;) {
        long n = os::raw_syscall(SYS_getdents64, directory.get(), block, sizeof block);
        if (n <= 0) break;
        for (long at = 0; at < n;) {
            auto* entry = reinterpret_cast<Entry*>(block + at);
            at += entry->length;
            const char* name = entry->name;
            int fd = -1;
            std::from_chars(name, name + strlen(name), fd);
            if (fd < 0 || fd == except || fd == directory.get() || InternalFd::is_internal(fd)) continue;
            if (links_to_epoll(directory.get(), name)) found.push_back(fd);
        }
    }
    return found;
}

bool same_file(int a, int b) noexcept {
    long self = os::raw_syscall(SYS_getpid);
    return os::raw_syscall(SYS_kcmp, self, self, KCMP_FILE, a, b) == 0;
}

bool is_member(int epfd, int fd) noexcept {
    epoll_event none{};
    long rc = os::raw_syscall(SYS_epoll_ctl, epfd, EPOLL_CTL_ADD, fd, &none);
    if (rc == 0) os::raw_syscall(SYS_epoll_ctl, epfd, EPOLL_CTL_DEL, fd, nullptr);
    return rc == -EEXIST;
}

namespace sleepers {

constinit std::atomic<int> g_kicks{0};

namespace {

// A count for each descriptor, in leaves like those of sockets::FdTable and for the same reason.
constexpr unsigned kLeafBits = 10, kLeaf = 1u << kLeafBits, kTop = 1u << 11;
using Count = std::atomic<std::uint16_t>;
struct Leaf {
    Count counts[kLeaf];
};
constinit std::atomic<Leaf*> g_top[kTop]{};

Count* count_of(int fd, bool make) noexcept {
    auto index = static_cast<unsigned>(fd);
    if ((index >> kLeafBits) >= kTop) return nullptr;
    auto& slot = g_top[index >> kLeafBits];
    Leaf* leaf = slot.load(std::memory_order_acquire);
    if (leaf == nullptr) {
        if (!make) return nullptr;
        int saved = errno;
        void* memory =
            mmap(nullptr, sizeof(Leaf), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        errno = saved;
        if (memory == MAP_FAILED) return nullptr;
        auto* fresh = new (memory) Leaf;
        if (slot.compare_exchange_strong(leaf, fresh, std::memory_order_acq_rel, std::memory_order_acquire)) {
            leaf = fresh;
        } else {
            munmap(memory, sizeof(Leaf));
            errno = saved;
        }
    }
    return &leaf->counts[index & (kLeaf - 1)];
}

constinit Lock g_kick_lock;
constinit NeverDestroyed<WakeFd> g_kick_fd;  // always readable; g_kick_lock guards its making
constinit int g_kick_number = -1;            // its number in the sets
constinit int g_in_sets = 0;                 // how many of g_kicks are in sets; guarded by g_kick_lock

constinit std::atomic<clock::Time> g_kicked_at{};

// The sets in which the thread sleeps.
struct Place {
    unsigned ticket = 0;  // 0: none
    std::size_t count = 0;
    int fds[WatchedSets::kMost];
};
constinit thread_local Place t_place{};
constinit thread_local unsigned t_tickets = 0;

// Its address is the event's data. A program has no reason to use an address inside this library as data.
const char g_kick_token = 0;

// Removes the event from all sets: closing the file does that.
void close_kick_file() noexcept {
    g_kick_fd->reset();
    g_kick_number = -1;
    g_kicks.fetch_sub(std::exchange(g_in_sets, 0));
}

void end_kick(int epfd) noexcept {
    const int fd = g_kick_fd->get();
    // A dup2() of the program has moved the event. A set keeps the former number until the file is closed.
    if (fd != g_kick_number) return close_kick_file();
    if (fd < 0 || os::raw_syscall(SYS_epoll_ctl, epfd, EPOLL_CTL_DEL, fd, nullptr) != 0) return;
    g_kicks.fetch_sub(1);
    g_in_sets--;
}

// Does a thread sleep in the set under `epfd`, by any of its numbers?
bool anybody_in(int epfd) noexcept {
    const sockets::FdObject* set = sockets::g_fds.peek(epfd);
    bool any = false;
    sockets::g_fds.for_each(0, kTop * kLeaf - 1, [&](int fd, sockets::FdObject* object) {
        if (object != set) return;
        const Count* count = count_of(fd, false);
        any |= count != nullptr && count->load(std::memory_order_seq_cst) != 0;
    });
    return any;
}

void kick_one(int epfd) noexcept {
    Count* count = count_of(epfd, false);
    if (count == nullptr || count->load(std::memory_order_seq_cst) == 0) return;
    const std::lock_guard guard(g_kick_lock);
    if (!*g_kick_fd || g_kick_fd->get() != g_kick_number) {
        close_kick_file();
        *g_kick_fd = WakeFd::make(true);
        g_kick_number = g_kick_fd->get();
    }
    if (*g_kick_fd && count->load(std::memory_order_seq_cst) != 0) {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.u64 = kick_data();
        if (os::raw_syscall(SYS_epoll_ctl, epfd, EPOLL_CTL_ADD, g_kick_number, &event) == 0) {
            g_kicks.fetch_add(1);
            g_in_sets++;
        }
        // A thread that left between the two looks at the count found no kick to remove.
        if (!anybody_in(epfd)) end_kick(epfd);
    }
}

}  // namespace

std::uint64_t kick_data() noexcept { return reinterpret_cast<std::uintptr_t>(&g_kick_token); }
bool is_kick(std::uint64_t data) noexcept { return data == kick_data(); }

bool superseded(int epfd) noexcept {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const sockets::FdObject* object = sockets::g_fds.peek(epfd);
    return object != nullptr && object->kind() == sockets::Kind::epoll;
}

unsigned enter(std::span<const int> epfds) noexcept {
    runtime::install_fork_hooks();
    if (t_place.ticket != 0) leave(t_place.ticket);
    t_place.count = 0;
    for (int epfd : epfds) {
        Count* count = count_of(epfd, true);
        if (count == nullptr || t_place.count == WatchedSets::kMost) continue;
        count->fetch_add(1, std::memory_order_seq_cst);
        t_place.fds[t_place.count++] = epfd;
    }
    if (t_place.count == 0) return 0;
    if (++t_tickets == 0) t_tickets = 1;
    return t_place.ticket = t_tickets;
}

// The kick stays as long as a counted thread could have missed it; the last thread to leave removes it.
void leave(unsigned ticket) noexcept {
    if (t_place.ticket != ticket) return;  // a handler of this thread has slept elsewhere meanwhile
    t_place.ticket = 0;
    bool kicked = false;
    for (std::size_t i = 0; i < t_place.count; i++) {
        const int epfd = t_place.fds[i];
        Count* count = count_of(epfd, false);
        const bool last = count != nullptr && count->fetch_sub(1, std::memory_order_seq_cst) == 1;
        if (!superseded(epfd)) continue;
        kicked = true;
        if (!last) continue;
        const std::lock_guard guard(g_kick_lock);
        if (!anybody_in(epfd)) end_kick(epfd);
    }
    if (kicked) settle();
}

void await_settled() noexcept {
    // A thread that has not woken up by then is in a handler.
    constexpr std::chrono::milliseconds kLongest{500};
    constexpr unsigned kYields = 50;
    for (unsigned i = 0; g_kicks.load(std::memory_order_seq_cst) > 0; i++) {
        if (clock::monotonic() - g_kicked_at.load(std::memory_order_relaxed) > kLongest) return;
        const timespec pause{0, i < kYields ? 0 : 100'000};
        os::raw_syscall(i < kYields ? SYS_sched_yield : SYS_nanosleep, &pause, nullptr);
    }
}

void kick(std::span<const int> epfds) noexcept {
    const ErrnoKept kept;
    g_kicked_at.store(clock::monotonic(), std::memory_order_relaxed);
    g_kicks.fetch_add(1);
    // kick()'s caller put the sets under the numbers before this function reads the counts. A sleeper counts
    // itself before it looks for a set.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (int epfd : epfds) kick_one(epfd);
    g_kicks.fetch_sub(1);
}

namespace {
// The threads that are counted are the parent's.
void forget_sleepers() noexcept {
    new (&g_kick_lock) Lock();
    g_kicks = g_in_sets = 0;
    t_place.ticket = 0;
    for (auto& slot : g_top) {
        Leaf* leaf = slot.load(std::memory_order_relaxed);
        if (leaf == nullptr) continue;
        for (auto& count : leaf->counts)
            if (count.load(std::memory_order_relaxed) != 0) count.store(0, std::memory_order_relaxed);
    }
}
VMA_RENEW_IN_CHILD(forget_sleepers);
}  // namespace

}  // namespace sleepers

}  // namespace vma::iomux
