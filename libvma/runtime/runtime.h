// SPDX-License-Identifier: BSD-2-Clause
// The life of the library in one process: start, fork, exit, and the internal thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace vma::runtime {

// True in a set-uid or set-gid program (AT_SECURE): the library then does nothing at all.
bool inert() noexcept;

// The pid that owns the library's state. A vforked child runs in its parent's memory and has another pid.
bool in_foreign_process() noexcept;  // one getpid(); true in a vforked child

// vfork bookkeeping of the calling thread (set by the vfork trampoline): while true, calls that would change
// the library's state (close, dup2, sigaction) go straight to the kernel.
bool in_vfork_child() noexcept;
void enter_vfork() noexcept;
void leave_vfork() noexcept;

// Of the internal thread, before it starts. affinity: see cpus.h, "-1" for none; cpuset: a directory, or
// empty; periodic work shares wake-ups within resolution_msec.
struct InternalThreadSettings {
    std::string affinity = "-1", cpuset;
    unsigned resolution_msec = 1;
};
void set_internal_thread(InternalThreadSettings settings);

// Registers functions run around fork(), in the order given (prepare: reverse order). Held locks: take them
// in prepare, release them in parent; in the child make them new. At most 16 registrations, before the first
// fork. Before the first child function runs, the library's descriptors are closed in the child (InternalFd
// objects are empty), the internal thread with all its watches and ticks is forgotten: the next watch(),
// watch_errors() or every() starts a new one; and what fork_renewal.h lists is new.
struct ForkHooks {
    void (*prepare)() = nullptr;
    void (*parent)() = nullptr;
    void (*child)() = nullptr;
};
void at_fork(const ForkHooks& hooks) noexcept;
// Makes fork() run the three functions below even if nobody registers hooks. Idempotent.
void install_fork_hooks() noexcept;
void run_fork_prepare() noexcept;
void run_fork_parent() noexcept;
void run_fork_child() noexcept;

// The internal thread: one for the process, started on first use, all signals blocked, named "vma".
// Watches `fd` for EPOLLIN and calls `ready` there, again and again while it is readable. The fd must stay
// open until unwatch(). A second watch of the same fd replaces the first.
void watch(int fd, std::function<void()> ready);
// When it returns, `ready` does not run and will not; so hold no lock that `ready` takes. Called from the
// internal thread it returns at once.
void unwatch(int fd) noexcept;
// The same for the watch whose `ready` calls this: an InternalFd may have another number than when the watch
// began.
void unwatch_this() noexcept;
// Error events only (EPOLLERR, edge triggered) of a descriptor the program owns; `token` comes back to the
// handler of on_error(). The watch ends when the program closes the descriptor; an event may still be on its
// way then, so the handler must recognise a token that is no longer valid. Watching again replaces the token.
void watch_errors(int fd, std::uint64_t token) noexcept;
void on_error(void (*handler)(std::uint64_t token)) noexcept;
// Calls `tick` about every `msec` milliseconds until it returns false.
void every(unsigned msec, std::function<bool()> tick);

// Signals that interrupted this thread inside a handler without SA_RESTART, a running count. A blocking call
// that spins compares it with the value at entry: different means EINTR. (Maintained by runtime/signals.)
std::uint32_t interruptions() noexcept;
// Same for handlers with SA_RESTART: a call that slept and got EINTR restarts if only this one moved.
std::uint32_t restarts() noexcept;

}  // namespace vma::runtime
