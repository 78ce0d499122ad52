// SPDX-License-Identifier: BSD-2-Clause
// Processes: fork and its relatives, exec, _exit.
//
// fork() runs the runtime's hooks through pthread_atfork. _Fork() and clone() skip those handlers by design,
// so their wrappers run the library's hooks themselves. A child in its parent's memory (vfork, CLONE_VM) gets
// no hooks: it only must not touch the library's state, as the flags of runtime/runtime.h tell. Before exec,
// that child asks its parent for the sockets that it takes along (sockets/handover/shared_sockets.h). popen,
// system and posix_spawn make such a child inside libc, past the wrappers, and the library's descriptors are
// close-on-exec. Before posix_spawn, as before exec, the library leaves the inherited sockets to the kernel.
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>

#include <atomic>

#include "libvma/preload/guard.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/sockets/handover/shared_sockets.h"
#include "libvma/sockets/observe/statistics.h"
#include "libvma/sockets/stack.h"
#include "libvma/stats/stats_memory.h"

using namespace vma;
using namespace vma::preload;

namespace vma::preload {

// Flushes all rings, because a held-back frame may belong to a closed socket.
void flush_all() noexcept {
    sockets::Stack* stack = sockets::Stack::running();
    if (stack == nullptr || table_is_foreign()) return;
    const ErrnoKept kept;
    NotCancelled hold;
    stack->flush();
}

namespace {

// `ends`: this process, or its image, ends, and its devices with it.
void prepare(sockets::sharing::Before what, bool ends = true) noexcept {
    if (!g_fds.any() && sockets::Stack::running() == nullptr) return;
    if (table_is_foreign()) {  // a child in its parent's memory
        sockets::sharing::hand_all(what);
        return;
    }
    flush_all();
    NotCancelled hold;
    sockets::Stack* stack = ends ? sockets::Stack::running() : nullptr;
    if (stack != nullptr) stack->ending(true);
    sockets::sharing::hand_all(what);
    flush_all();
    if (stack == nullptr) return;
    const ErrnoKept kept;
    stack->drain();
    stack->ending(false);
}

}  // namespace

void before_end() noexcept {
    runtime::Region region;
    prepare(sockets::sharing::Before::exit);
    // exit() may call this function more than once.
    static std::atomic<bool> counted{false};
    if (table_is_foreign() || counted.exchange(true)) return;
    sockets::log_counters();
    sockets::statistics::report_all();
    stats::end();
}

}  // namespace vma::preload

// The vfork trampoline calls these before and after vfork, in the parent.
extern "C" __attribute__((visibility("hidden"))) void vma_vfork_begin() noexcept {
    g_vforks.fetch_add(1, std::memory_order_relaxed);
    runtime::enter_vfork();
}
extern "C" __attribute__((visibility("hidden"))) long vma_vfork_end(long result) noexcept {
    runtime::leave_vfork();
    g_vforks.fetch_sub(1, std::memory_order_relaxed);
    if (result >= 0) return result;
    errno = static_cast<int>(-result);
    return -1;
}

// pthread_atfork does the work. Exported because programs that open this library with dlopen look the name up
// here.
VMA_EXPORT pid_t fork() noexcept { return os::fork(); }
VMA_ALIAS(__fork, fork);

VMA_EXPORT pid_t _Fork() noexcept {
    runtime::run_fork_prepare();
    pid_t pid = os::_Fork();
    if (pid == 0)
        runtime::run_fork_child();
    else
        runtime::run_fork_parent();
    return pid;
}

namespace {

void before_exec() noexcept { prepare(sockets::sharing::Before::exec); }
void before_spawn() noexcept { prepare(sockets::sharing::Before::spawn, false); }

// The statistics file is the old program's. `call` returns only where the exec failed.
template <class F>
int exec(F&& call) noexcept {
    before_exec();
    if (table_is_foreign() || stats::current() == nullptr) return call();
    {
        runtime::Region region;
        stats::end();
    }
    const int rc = call();
    const ErrnoKept kept;
    runtime::Region region;
    stats::resume();
    return rc;
}

int fresh_pidfd(int error, const int* pidfd) noexcept {
    if (error == 0) fresh(*pidfd);
    return error;
}

struct CloneStart {
    int (*entry)(void*);
    void* arg;
};

// Runs first in a cloned child, which has its own copy of the parent's memory, `start` included.
int clone_child(void* start) {
    CloneStart program = *static_cast<CloneStart*>(start);
    runtime::run_fork_child();
    return program.entry(program.arg);
}

}  // namespace

VMA_EXPORT int clone(int (*entry)(void*), void* stack, int flags, void* arg, ...) noexcept {
    va_list more;
    va_start(more, arg);
    void* parent_tid = va_arg(more, void*);
    void* tls = va_arg(more, void*);
    void* child_tid = va_arg(more, void*);
    va_end(more);

    // A copy of the process. With a shared descriptor table the child must not close the parent's
    // descriptors. So the hooks do not run for that child, and the library later recognises it as a foreign
    // process.
    if ((flags & (CLONE_VM | CLONE_FILES)) == 0 && entry != nullptr && stack != nullptr) {
        CloneStart start{entry, arg};
        runtime::run_fork_prepare();
        int pid = os::clone(clone_child, stack, flags, &start, parent_tid, tls, child_tid);
        const ErrnoKept kept;
        runtime::run_fork_parent();
        return pid;
    }
    // A vfork with a stack of its own: the child runs on this thread's TLS while this thread waits.
    if ((flags & (CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_THREAD | CLONE_SETTLS)) ==
        (CLONE_VM | CLONE_VFORK)) {
        vma_vfork_begin();
        int pid = os::clone(entry, stack, flags, arg, parent_tid, tls, child_tid);
        vma_vfork_end(0);
        return pid;
    }
    return os::clone(entry, stack, flags, arg, parent_tid, tls, child_tid);
}
VMA_ALIAS(__clone, clone);

// libc's daemon() replaces descriptors 0 to 2 and ends its parent inside libc, past the wrappers.
VMA_EXPORT int daemon(int nochdir, int noclose) noexcept {
    prepare(sockets::sharing::Before::daemon);
    const bool ends = !table_is_foreign() && stats::current() != nullptr;
    if (ends) stats::end();
    int rc = os::daemon(nochdir, noclose);
    if (rc != 0 && ends) {
        const ErrnoKept kept;
        stats::resume();
    }
    if (rc == 0 && noclose == 0)
        for (int fd = 0; fd <= 2; fd++) fresh(fd);
    return rc;
}

// ---- exec ----
// The library's descriptors end with the old program, and the rules with them. A UDP socket that survives
// exec is a plain kernel socket again, so only the held-back frames must go out before. TCP connections are
// handed over to the kernel.

VMA_EXPORT int execve(const char* path, char* const argv[], char* const env[]) noexcept {
    return exec([&] { return os::execve(path, argv, env); });
}
VMA_EXPORT int execv(const char* path, char* const argv[]) noexcept {
    return exec([&] { return os::execv(path, argv); });
}
VMA_EXPORT int execvp(const char* file, char* const argv[]) noexcept {
    return exec([&] { return os::execvp(file, argv); });
}
VMA_EXPORT int execvpe(const char* file, char* const argv[], char* const env[]) noexcept {
    return exec([&] { return os::execvpe(file, argv, env); });
}
VMA_EXPORT int fexecve(int fd, char* const argv[], char* const env[]) noexcept {
    return exec([&] { return os::fexecve(fd, argv, env); });
}
VMA_EXPORT int execveat(int dirfd, const char* path, char* const argv[], char* const env[],
                        int flags) noexcept {
    return exec([&] { return os::execveat(dirfd, path, argv, env, flags); });
}

namespace {

// Collects the arguments of execl and its kin on the stack, because a vforked child must not allocate. Calls
// `run`, which also gets the arguments after the terminating null.
template <class F>
[[gnu::always_inline]] inline int with_arguments(const char* first, va_list counting, va_list more,
                                                 F&& run) noexcept {
    size_t count = 1;
    for (const char* arg = first; arg != nullptr; count++) arg = va_arg(counting, const char*);
    auto** argv = static_cast<char**>(__builtin_alloca((count + 1) * sizeof(char*)));
    size_t i = 0;
    for (const char* arg = first;; arg = va_arg(more, const char*)) {
        argv[i++] = const_cast<char*>(arg);
        if (arg == nullptr) break;
    }
    return run(argv, more);
}

#define VMA_EXECL(call)                                                                    \
    va_list counting, more;                                                                \
    va_start(counting, arg);                                                               \
    va_start(more, arg);                                                                   \
    int rc = with_arguments(arg, counting, more, [&](char** argv, va_list rest) noexcept { \
        (void)rest;                                                                        \
        return call;                                                                       \
    });                                                                                    \
    va_end(more);                                                                          \
    va_end(counting);                                                                      \
    return rc;

}  // namespace

VMA_EXPORT int execl(const char* path, const char* arg,
                     ...) noexcept {VMA_EXECL(execv(path, argv))} VMA_EXPORT
    int execlp(const char* file, const char* arg, ...) noexcept {VMA_EXECL(execvp(file, argv))} VMA_EXPORT
    int execle(const char* path, const char* arg,
               ...) noexcept {VMA_EXECL(execve(path, argv, va_arg(rest, char* const*)))}

VMA_EXPORT
    int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                    const posix_spawnattr_t* attributes, char* const argv[], char* const env[]) noexcept {
    before_spawn();
    return os::posix_spawn(pid, path, actions, attributes, argv, env);
}
VMA_EXPORT int posix_spawnp(pid_t* pid, const char* file, const posix_spawn_file_actions_t* actions,
                            const posix_spawnattr_t* attributes, char* const argv[],
                            char* const env[]) noexcept {
    before_spawn();
    return os::posix_spawnp(pid, file, actions, attributes, argv, env);
}
// glibc 2.39 and later have these two.
VMA_EXPORT int pidfd_spawn(int* pidfd, const char* path, const posix_spawn_file_actions_t* actions,
                           const posix_spawnattr_t* attributes, char* const argv[],
                           char* const env[]) noexcept {
    before_spawn();
    auto fn = reinterpret_cast<decltype(&pidfd_spawn)>(os::resolve_optional("pidfd_spawn"));
    return fn != nullptr ? fresh_pidfd(fn(pidfd, path, actions, attributes, argv, env), pidfd) : ENOSYS;
}
VMA_EXPORT int pidfd_spawnp(int* pidfd, const char* file, const posix_spawn_file_actions_t* actions,
                            const posix_spawnattr_t* attributes, char* const argv[],
                            char* const env[]) noexcept {
    before_spawn();
    auto fn = reinterpret_cast<decltype(&pidfd_spawnp)>(os::resolve_optional("pidfd_spawnp"));
    return fn != nullptr ? fresh_pidfd(fn(pidfd, file, actions, attributes, argv, env), pidfd) : ENOSYS;
}
// A close-on-exec descriptor passes to the new program under another number. `actions` does not tell the
// number later, so the socket is handed over now.
VMA_EXPORT int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t* actions, int fd,
                                                int number) noexcept {
    if (g_fds.any() && !table_is_foreign()) {
        NotCancelled hold;
        sockets::sharing::hand_one(fd, sockets::leave::given_to_program);
    }
    return os::posix_spawn_file_actions_adddup2(actions, fd, number);
}

VMA_EXPORT void _exit(int status) {
    before_end();
    for (;;) os::_exit(status);
}
VMA_EXPORT void _Exit(int status) noexcept __attribute__((alias("_exit")));
