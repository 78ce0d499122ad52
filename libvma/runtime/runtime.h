// SPDX-License-Identifier: BSD-2-Clause
// The life of the library in one process: start, fork, exit, and the internal thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "libvma/runtime/clock.h"

namespace vma::runtime {

// True in a set-uid or set-gid program (AT_SECURE): the library then does nothing at all.
bool inert() noexcept;

// True if the caller's pid is not the pid that owns the library's state. A vforked child runs in its parent's
// memory with another pid.
bool in_foreign_process() noexcept;  // costs one getpid()

// The vfork trampoline counts the calling thread's nested vforks. In a vforked child, calls that would change
// the library's state (close, dup2, sigaction) go straight to the kernel.
bool in_vfork_child() noexcept;
void enter_vfork() noexcept;
void leave_vfork() noexcept;

// Settings of the internal thread, given before it starts. affinity: see cpus.h, "-1" for none. cpuset: a
// directory, or empty. Periodic work shares wake-ups within `resolution`.
struct InternalThreadSettings {
    std::string affinity = "-1", cpuset;
    clock::Msec resolution{1};
};
void set_internal_thread(InternalThreadSettings settings);

// Registers functions that run around fork(), in the order of registration (prepare: in reverse order). A
// module takes its locks in prepare, releases them in parent, and makes them new in child. At most 16
// registrations, before the first fork. Before the first child function runs, the child has closed the
// library's descriptors (InternalFd objects are empty), and what fork_renewal.h lists is new. The child has
// forgotten the internal thread with all its watches and ticks. The next watch(), watch_errors() or every()
// starts a new thread.
struct ForkHooks {
    void (*prepare)() = nullptr;
    void (*parent)() = nullptr;
    void (*child)() = nullptr;
};
void at_fork(const ForkHooks& hooks) noexcept;
// Makes fork() run the three functions below even without registered hooks. Idempotent.
void install_fork_hooks() noexcept;
void run_fork_prepare() noexcept;
void run_fork_parent() noexcept;
void run_fork_child() noexcept;

// The internal thread: one for the process, started on first use, all signals blocked, named "vma". watch()
// has that thread wait for EPOLLIN on `fd`, and call `ready` again and again while `fd` is readable. The fd
// must stay open until unwatch(). A second watch of the same fd replaces the first.
void watch(int fd, std::function<void()> ready);
// When it returns, `ready` does not run and will not; so the caller must hold no lock that `ready` takes. On
// the internal thread it returns at once.
void unwatch(int fd) noexcept;
// The same for the watch whose `ready` makes this call. It needs no number, because an InternalFd may have
// another number than when the watch began.
void unwatch_this() noexcept;
// Watches a descriptor of the program for errors only (EPOLLERR, edge triggered); the handler of on_error()
// gets `token`. The watch ends when the program closes the descriptor. An event may still be on its way then,
// so the handler must recognise a stale token. Watching again replaces the token.
void watch_errors(int fd, std::uint64_t token) noexcept;
void on_error(void (*handler)(std::uint64_t token)) noexcept;
// Calls `tick` on the internal thread until it returns false, with about `between` from one call to the next.
// At least a millisecond.
void every(clock::Msec between, std::function<bool()> tick);

// A running count of the signals whose handlers, without SA_RESTART, interrupted this thread. A blocking call
// that spins compares the count with its value at entry: a difference means EINTR.
std::uint32_t interruptions() noexcept;
// Same for handlers with SA_RESTART. A call that slept and got EINTR restarts if only this count moved.
std::uint32_t restarts() noexcept;

}  // namespace vma::runtime
