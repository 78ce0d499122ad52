// SPDX-License-Identifier: BSD-2-Clause
// fd -> object. Grows with the descriptors in use, never with RLIMIT_NOFILE: leaves of 1024 entries are
// mapped when the first number in their range is used. Reading takes no lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>
#include <utility>

#include "libvma/sockets/fd_object.h"

namespace vma::sockets {

// Asks the process that has the state of `foreign` to put it into the kernel, and forgets what `fd` meant
// (handover/shared_sockets.h).
void settle_foreign(int fd, FdObject* foreign) noexcept;

// stdin, stdout and stderr: libc reads and writes them past all wrappers. So a socket under one of these
// numbers is the kernel's.
inline bool is_standard_stream(int fd) noexcept { return fd >= 0 && fd <= 2; }

// A counted pointer to what an fd means; empty when the kernel alone serves it.
template <class T>
class Ref {
  public:
    Ref() = default;
    explicit Ref(T* owned) noexcept : p_(owned) {}
    Ref(Ref&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
    Ref& operator=(Ref&& o) noexcept {
        if (this != &o) {
            if (p_) p_->unref();
            p_ = std::exchange(o.p_, nullptr);
        }
        return *this;
    }
    ~Ref() {
        if (p_) p_->unref();
    }
    T* operator->() const noexcept { return p_; }
    T* get() const noexcept { return p_; }
    T& operator*() const noexcept { return *p_; }
    explicit operator bool() const noexcept { return p_ != nullptr; }
    // The reference is the caller's.
    T* release() noexcept { return std::exchange(p_, nullptr); }

  private:
    T* p_ = nullptr;
};

class FdTable {
  public:
    static constexpr unsigned kLeafBits = 10,
                              kTopBits = 11;  // 2 Mi descriptors; the kernel's default fs.nr_open is 1 Mi
    static constexpr unsigned kLeaf = 1u << kLeafBits, kTop = 1u << kTopBits;

    // What `fd` means, with a reference; any int is allowed. Whoever asks means to use it: so a socket of
    // another process becomes the kernel's here, and the answer is empty. `sends`: it is only to send.
    Ref<FdObject> find(int fd, bool sends = false) const noexcept {
        Ref<FdObject> found = hold(fd);
        if (__builtin_expect(!found || !found->is_foreign(), 1)) return found;
        if (!sends || found->kind() != Kind::foreign_datagrams) settle_foreign(fd, found.get());
        return {};
    }
    // The same for a mere look: what is another process's stays that. Another thread may destroy the object
    // meanwhile: its memory stays a pool's, and try_ref() reads only the count, which is 0 then.
    __attribute__((no_sanitize("vptr"))) Ref<FdObject> hold(int fd) const noexcept {
        FdObject* object = peek(fd);
        while (__builtin_expect(object != nullptr, 0)) {
            if (object->try_ref()) {
                FdObject* again = peek(fd);
                if (again == object) return Ref<FdObject>(object);
                object->unref();
                object = again;
            } else {
                FdObject* again = peek(fd);
                if (again == object) return {};  // dying: close() is about to clear the entry
                object = again;
            }
        }
        return {};
    }
    // The ordinary case of socket(), with a reference: `seen` was under `fd` just now, and still is. Null:
    // ask socket().
    [[gnu::always_inline]] __attribute__((no_sanitize("vptr"))) Socket* socket_of(
        int fd, FdObject* seen) const noexcept {
        if (__builtin_expect(!seen->try_ref(), 0)) return nullptr;
        if (__builtin_expect(peek(fd) == seen && seen->kind() == Kind::socket, 1))
            return static_cast<Socket*>(seen);
        seen->unref();
        return nullptr;
    }
    Ref<Socket> socket(int fd, bool sends = false) const noexcept {
        if (__builtin_expect(peek(fd) == nullptr, 1)) return {};
        Ref<FdObject> object = find(fd, sends);
        if (!object || object->kind() != Kind::socket) return {};
        return Ref<Socket>(static_cast<Socket*>(release(object)));
    }

    // Is there any object for this number? No reference is taken.
    [[gnu::always_inline]] FdObject* peek(int fd) const noexcept {
        unsigned index = static_cast<unsigned>(fd);
        if ((index >> kLeafBits) >= kTop) return nullptr;
        Leaf* leaf = top_[index >> kLeafBits].load(std::memory_order_acquire);
        return leaf == nullptr ? nullptr : leaf->entries[index & (kLeaf - 1)].load(std::memory_order_acquire);
    }

    // Has the table any entry? While false, the preload layer need not look at the arguments of calls that
    // take many.
    bool any() const noexcept { return used_.load(std::memory_order_relaxed) != 0; }

    // Puts `object` under `fd` (the caller keeps its own reference); a stale object there is dropped first.
    // False when the number is out of range or there is no memory: the fd then stays with the kernel.
    bool insert(int fd, FdObject* object) noexcept;
    // Forgets what `fd` meant: before close(), or because the kernel handed out the number again.
    void remove(int fd) noexcept;
    // Same, unless it means something else by now.
    void remove_if(int fd, FdObject* object) noexcept;
    // The program closes `fd`, which is still open in the kernel: before_last_close() where it applies, then
    // remove(). True: the kernel's socket must not be seen, so something stands in its place, until closed()
    // or until the number means something else.
    bool close(int fd) noexcept;
    // The kernel has closed `fd`, too.
    void closed(int fd) noexcept;
    // Is it what close() puts there?
    static bool is_closing(const FdObject* object) noexcept;
    // The kernel has just returned `fd` from some call: what the table has under it was closed unseen.
    void drop_stale(int fd) noexcept {
        if (__builtin_expect(peek(fd) != nullptr, 0)) remove(fd);
    }
    // Calls `visit(fd, object)` for each entry in [first, last]; no reference is held.
    template <class F>
    void for_each(unsigned first, unsigned last, F&& visit) const {
        for (unsigned t = first >> kLeafBits; t < kTop && t <= (last >> kLeafBits); t++) {
            Leaf* leaf = top_[t].load(std::memory_order_acquire);
            if (leaf == nullptr) continue;
            for (unsigned i = 0; i < kLeaf; i++) {
                unsigned fd = (t << kLeafBits) | i;
                if (fd < first || fd > last) continue;
                if (FdObject* o = leaf->entries[i].load(std::memory_order_acquire))
                    visit(static_cast<int>(fd), o);
            }
        }
    }
    // The same for each epoll set. Costs a look at 64 numbers at once, so close() of a socket may ask.
    template <class F>
    void for_each_set(F&& visit) const {
        for (unsigned t = 0; t < kTop; t++) {
            Leaf* leaf = top_[t].load(std::memory_order_acquire);
            if (leaf == nullptr) continue;
            for (unsigned w = 0; w < kLeaf / 64; w++)
                for (std::uint64_t bits = leaf->sets[w].load(std::memory_order_acquire); bits != 0;
                     bits &= bits - 1) {
                    const unsigned i = w * 64 + static_cast<unsigned>(__builtin_ctzll(bits));
                    FdObject* o = leaf->entries[i].load(std::memory_order_acquire);
                    if (is_set(o)) visit(static_cast<int>((t << kLeafBits) | i), o);
                }
        }
    }
    // In a forked child: forget everything without touching the objects. Async-signal-safe.
    void clear_in_child() noexcept;
    // The same, but puts `other(fd, object)` in the place of each entry (null: nothing), which has the
    // table's reference.
    template <class F>
    void replace_in_child(F&& other) {
        int used = 0;
        for (unsigned t = 0; t < kTop; t++) {
            Leaf* leaf = top_[t].load(std::memory_order_relaxed);
            if (leaf == nullptr) continue;
            for (unsigned i = 0; i < kLeaf; i++) {
                FdObject* object = leaf->entries[i].load(std::memory_order_relaxed);
                if (object == nullptr) continue;
                object = other(static_cast<int>((t << kLeafBits) | i), object);
                leaf->entries[i].store(object, std::memory_order_relaxed);
                used += object != nullptr;
                leaf->note(i);
            }
        }
        used_.store(used, std::memory_order_relaxed);
    }

  private:
    static bool is_set(const FdObject* object) noexcept {
        return object != nullptr && object->kind() == Kind::epoll;
    }
    struct Leaf {
        std::atomic<FdObject*> entries[kLeaf];
        std::atomic<std::uint64_t> sets[kLeaf / 64];  // a bit for each entry that is an epoll set

        // After entry `i` has changed, where one of the two values is a set.
        void note(unsigned i) noexcept {
            const std::uint64_t bit = std::uint64_t{1} << (i % 64);
            FdObject* now = entries[i].load(std::memory_order_acquire);
            for (;;) {
                if (is_set(now))
                    sets[i / 64].fetch_or(bit, std::memory_order_acq_rel);
                else
                    sets[i / 64].fetch_and(~bit, std::memory_order_acq_rel);
                FdObject* again = entries[i].load(std::memory_order_acquire);
                if (again == now) return;
                now = again;
            }
        }
    };
    static void note(Leaf& leaf, unsigned index, const FdObject* before, const FdObject* after) noexcept {
        if (is_set(before) || is_set(after)) leaf.note(index & (kLeaf - 1));
    }
    Leaf* leaf_for(unsigned index) noexcept;
    static FdObject* release(Ref<FdObject>& ref) noexcept {
        FdObject* p = ref.get();
        new (&ref) Ref<FdObject>();
        return p;
    }
    std::atomic<Leaf*> top_[kTop]{};
    std::atomic<int> used_{0};
};

// The process's table. Constant-initialised, usable before constructors run.
extern FdTable g_fds;

// After socket() returned `fd` for (domain, type, protocol): makes an object where the rules allow, else logs
// once why this kind of socket stays with the kernel. Starts the library on first need. errno is preserved.
void on_socket_created(int fd, int domain, int type, int protocol) noexcept;

// newfd now refers to what oldfd refers to (dup, dup2, dup3, F_DUPFD). `newfd` had been closed before.
void on_dup(int oldfd, int newfd) noexcept;

}  // namespace vma::sockets
