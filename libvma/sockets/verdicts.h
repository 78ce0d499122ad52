// SPDX-License-Identifier: BSD-2-Clause
// Callbacks of the program that judge what arrives (the extra API's register_recv_callback).
//
// The program's code must not run while the library holds a lock or a reference, since it may close, send,
// throw or jump. So what arrives for such a socket is first undecided: it waits beside the receive queue, and
// nothing says that it is readable. A receive call, select, poll or epoll_wait that finds undecided packets
// ends with kAskVerdict. The preload layer, outside of the region, has the callbacks called (run()) and makes
// the call again. It is how deferred signal handlers run, too (runtime/region.h).
//
// One callback of a socket runs at a time, so packets keep their order. A thread inside a callback does not
// wait for that socket: nothing could come. A callback that never returns (longjmp, the end of its thread) is
// noticed when its thread asks for verdicts again with a shorter stack; its packet is dropped then.
//
// due() is what every waiting call asks; where the process never had a callback it is one load.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "libvma/runtime/clock.h"
#include "libvma/sockets/fd_object.h"

struct iovec;
struct vma_info_t;

namespace vma::sockets {

// What register_recv_callback() was given (include/mellanox/vma_extra.h).
struct Callback {
    using Function = int (*)(int fd, std::size_t count, iovec* iov, vma_info_t* info, void* context);
    Function function = nullptr;
    void* context = nullptr;
    int fd = -1;
};

// A callback that has not returned. Each filter has the memory for one, as no more run at a time.
struct Judging {
    virtual ~Judging() = default;
    const Socket* socket = nullptr;
    Judging* outer = nullptr;  // of the same thread
};

// The callback of one socket. It lives as long as the socket's object.
class Filter {
  public:
    explicit Filter(Socket& socket) noexcept : socket_(socket) {}
    virtual ~Filter();
    Filter(const Filter&) = delete;
    Filter& operator=(const Filter&) = delete;

    Socket& socket() const noexcept { return socket_; }
    bool active() const noexcept { return active_.load(std::memory_order_acquire); }
    // No function: none any more.
    void set(const Callback& callback) noexcept;
    // The memory for a callback that runs; before set(). It stays with the filter, and later ones are
    // dropped.
    void give_room(std::unique_ptr<Judging> room) noexcept;
    // Of whoever has the filter by Verdicts::claim().
    Judging& room() noexcept { return *room_; }
    // Has claim() given it out?
    bool judging() noexcept;
    // Something is undecided. Any lock of the socket held.
    void note() noexcept;

  private:
    friend class Verdicts;
    Socket& socket_;
    std::atomic<bool> active_{false};
    // Under the lock of the list.
    Callback callback_;
    std::unique_ptr<Judging> room_;
    Filter* next_ = nullptr;
    bool listed_ = false, judging_ = false;
};

class Verdicts {
  public:
    // Must a call that is about to wait end with kAskVerdict?
    static bool due() noexcept {
        return __builtin_expect(runner_.load(std::memory_order_relaxed) != nullptr, 0) &&
               (listed_.load(std::memory_order_relaxed) != 0 || (t_.top != nullptr && !t_.looked));
    }
    // The same for a call that has something to return: once in a call.
    static bool due_first() noexcept { return due() && !t_.ran; }
    // Is the calling thread inside a callback of this socket? Then a receive call does not wait.
    static bool inside(const Socket& socket) noexcept {
        return __builtin_expect(t_.top != nullptr, 0) && inside_any(socket);
    }

    // ---- the call that ends with kAskVerdict, and is made again ----
    // Its deadline, for the next try; Time{}: none.
    static void keep_deadline(clock::Time deadline) noexcept { t_.deadline = deadline; }
    static clock::Time take_deadline() noexcept {
        const clock::Time deadline = t_.deadline;
        if (__builtin_expect(deadline != clock::Time{}, 0)) t_.deadline = {};
        return deadline;
    }
    // Calls what is due. Outside of all regions; callbacks may throw.
    static void run();
    // The call is over.
    static void call_over() noexcept {
        t_.ran = t_.looked = false;
        t_.deadline = {};
    }

    // ---- for whoever runs callbacks ----
    static void set_runner(void (*runner)()) noexcept { runner_.store(runner, std::memory_order_release); }
    // The next filter with something undecided, and its callback; its socket has one reference more. Null:
    // there is none. The caller answers by done().
    static Filter* claim(Callback& callback) noexcept {
        return listed_.load(std::memory_order_relaxed) != 0 ? claim_listed(callback) : nullptr;
    }
    // Its callback has returned, or never will. Not inside a forked child.
    static void done(Filter& filter) noexcept;
    // Callbacks of the calling thread that have not returned, innermost first.
    static Judging* running() noexcept { return t_.top; }
    static void set_running(Judging* top) noexcept { t_.top = top; }
    static void renew() noexcept;

  private:
    friend class Filter;
    struct Thread {
        Judging* top;
        bool ran;     // run() in this call
        bool looked;  // run() knows that `top` still runs
        clock::Time deadline;
    };
    static bool inside_any(const Socket& socket) noexcept;
    // Under the lock of the list.
    static void count_listed(int change) noexcept {
        listed_.store(listed_.load(std::memory_order_relaxed) + static_cast<unsigned>(change),
                      std::memory_order_relaxed);
    }
    static void list(Filter& filter) noexcept;
    static Filter* claim_listed(Callback& callback) noexcept;

    static inline constinit std::atomic<void (*)()> runner_{nullptr};  // set with the first filter
    static inline constinit std::atomic<unsigned> listed_{0};          // changed under the lock of the list
    static inline constinit thread_local Thread t_{};
};

}  // namespace vma::sockets
