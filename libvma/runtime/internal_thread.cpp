// SPDX-License-Identifier: BSD-2-Clause
// The internal thread: one epoll loop for netlink sockets, device events, periodic work and errors of the
// program's sockets.
//
// The program must not notice the thread. So the thread blocks all signals, is detached, has a small stack,
// and calls the kernel directly, past this library's own wrappers. Its state is never destroyed, because the
// thread runs on while exit() destroys the process's objects.
//
// The program's descriptors sit in an epoll set of their own, nested in the thread's set. So the thread
// cannot take a program's token for one of its own. The nested set only holds EPOLLET without EPOLLIN, so a
// datagram does not wake the thread.
#include "libvma/runtime/internal_thread.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/cpus.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/error_watch.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/leader.h"
#include "libvma/runtime/lock.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/runtime.h"
#include "libvma/runtime/wake_fd.h"

namespace vma::runtime {
namespace {

using Id = std::uint32_t;  // of a watch or a tick. `running` holds one too, so it has the size of a futex
constexpr Id kNobody = 0, kWake = 1, kErrors = 2, kFirst = 16;

// How often the thread looks whether the main thread has exited, and after that, whether only the library's
// threads remain. A look costs some microseconds.
constexpr clock::Msec kLookPeriod{1000}, kLookSoon{50};
constexpr std::size_t kStack =
    256 * 1024;  // callbacks parse netlink and format log lines; only touched pages count

struct Watch {
    Id id;
    int fd;
    std::shared_ptr<std::function<void()>> ready;
};

struct Tick {
    Id id;
    clock::Nsec period;
    clock::Time due;
    std::shared_ptr<std::function<bool()>> call;
};

struct State {
    Lock lock;
    bool started = false;
    bool failed = false;  // the failure to start the thread has been logged
    InternalFd events, errors, stat;
    WakeFd wake;
    std::vector<Watch> watches;
    std::vector<Tick> ticks;
    Id next_id = kFirst;
    std::atomic<Id> running{kNobody};
    State* forgotten = nullptr;  // state of an earlier process, in a child of a child
};

std::atomic<const InternalThreadSettings*> g_settings{nullptr};  // never freed: the thread outlives exit()
std::atomic<State*> g_state{nullptr};
State* g_forgotten = nullptr;  // states of the processes this one was forked from
std::atomic<void (*)(std::uint64_t)> g_on_error{nullptr};
constinit thread_local bool t_internal = false;

// Called by InternalFd::relocate().
void watched_number_moved(int from, int to) noexcept;

// Never destroyed. Made without a lock, because fork() could find a lock held.
State& state() {
    State* known = g_state.load(std::memory_order_acquire);
    if (known != nullptr) return *known;
    State* fresh = new State();
    if (g_state.compare_exchange_strong(known, fresh, std::memory_order_acq_rel)) return *fresh;
    delete fresh;
    return *known;
}

long control(int set, int op, int fd, std::uint32_t events, std::uint64_t data) noexcept {
    epoll_event event{};
    event.events = events;
    event.data.u64 = data;
    return os::raw_syscall(SYS_epoll_ctl, set, op, fd, &event);
}

long wait(int set, epoll_event* events, int count, clock::Msec longest) noexcept {
    return os::raw_syscall(SYS_epoll_pwait, set, events, count, longest.count(), nullptr, std::size_t{8});
}

int open_epoll() noexcept {
    long fd = os::raw_syscall(SYS_epoll_create1, EPOLL_CLOEXEC);
    return fd < 0 ? -1 : static_cast<int>(fd);
}

template <class F>
void guarded(F&& call) noexcept {
    try {
        call();
    } catch (const std::exception& e) {
        log::error("internal thread: {}", e.what());
    } catch (...) {
        log::error("internal thread: an unknown exception");
    }
}

// Runs `call` marked as running, so that unwatch() can wait for its end.
template <class F>
void run_marked(State& s, F&& call) noexcept {
    guarded(call);
    s.running.store(kNobody, std::memory_order_release);
    os::raw_syscall(SYS_futex, &s.running, FUTEX_WAKE_PRIVATE, INT_MAX);
}

void run_watch(State& s, Id id) noexcept {
    std::shared_ptr<std::function<void()>> ready;
    s.lock.lock();
    for (const Watch& w : s.watches)
        if (w.id == id) ready = w.ready;
    if (ready != nullptr) s.running.store(id, std::memory_order_relaxed);
    s.lock.unlock();
    if (ready != nullptr) run_marked(s, [&] { (*ready)(); });
}

void run_errors(State& s) noexcept {
    epoll_event events[16];
    for (;;) {
        long n = wait(s.errors.get(), events, 16, clock::Msec::zero());
        auto handler = g_on_error.load(std::memory_order_acquire);
        for (long i = 0; i < n; i++)
            if ((events[i].events & EPOLLERR) != 0 && handler != nullptr)
                guarded([&] { handler(events[i].data.u64); });
        if (n < 16) return;
    }
}

// Rounds up to a multiple of the resolution.
clock::Time round_up(clock::Time t) noexcept {
    const InternalThreadSettings* settings = g_settings.load(std::memory_order_acquire);
    const clock::Nsec step = settings != nullptr ? settings->resolution : clock::Msec(1);
    return clock::Time((t.time_since_epoch() + step - clock::Nsec(1)) / step * step);
}

void move_to_cpuset(const std::string& directory) noexcept {
    // One thread alone moves through "tasks" in version 1, and through "cgroup.threads" of a threaded cgroup
    // in version 2.
    for (const char* file : {"/tasks", "/cgroup.threads"}) {
        long fd = os::raw_syscall(SYS_openat, AT_FDCWD, (directory + file).c_str(), O_WRONLY | O_CLOEXEC, 0);
        if (fd < 0) continue;
        const std::string id = std::to_string(os::raw_syscall(SYS_gettid));
        const long written = os::raw_syscall(SYS_write, fd, id.data(), id.size());
        os::raw_syscall(SYS_close, fd);
        if (written == static_cast<long>(id.size())) return;
    }
    log::warn("the internal thread cannot move into the cpuset {} (VMA_INTERNAL_THREAD_CPUSET)", directory);
}

void settle_down() noexcept {
    const InternalThreadSettings* settings = g_settings.load(std::memory_order_acquire);
    if (settings == nullptr) return;
    if (!settings->cpuset.empty()) guarded([&] { move_to_cpuset(settings->cpuset); });
    cpu_set_t cpus;
    if (settings->affinity != "-1" && parse_cpus(settings->affinity, cpus) &&
        os::raw_syscall(SYS_sched_setaffinity, 0, sizeof cpus, &cpus) < 0)
        log::warn("the internal thread cannot run on processors {} (VMA_INTERNAL_THREAD_AFFINITY)",
                  settings->affinity);
}

// Calls the ticks that are due. Returns the time to the next one, `longest` at most.
clock::Msec run_ticks(State& s, clock::Msec longest) noexcept {
    for (;;) {
        const clock::Time now = clock::monotonic();
        clock::Time next = clock::Time::max();
        Id id = kNobody;
        std::shared_ptr<std::function<bool()>> call;
        s.lock.lock();
        for (Tick& tick : s.ticks) {
            if (tick.due <= now) {
                id = tick.id;
                call = tick.call;
                // Missed periods are not made up for.
                tick.due = std::max(tick.due + tick.period, now + clock::Nsec(1));
                break;
            }
            next = std::min(next, round_up(tick.due));
        }
        s.lock.unlock();
        if (call == nullptr) {
            const clock::Nsec wait = next - now;
            return wait < longest ? std::chrono::ceil<clock::Msec>(wait) : longest;
        }
        bool again = true;
        guarded([&] { again = (*call)(); });
        if (again) continue;
        s.lock.lock();
        std::erase_if(s.ticks, [&](const Tick& tick) { return tick.id == id; });
        s.lock.unlock();
    }
}

void* loop(void*) noexcept {
    t_internal = true;
    pthread_setname_np(pthread_self(), "vma");
    settle_down();
    State& s = state();
    clock::Msec between = kLookPeriod;  // looks
    clock::Time look;
    for (;;) {
        const clock::Msec longest = run_ticks(s, between);
        epoll_event events[16];
        long n = wait(s.events.get(), events, 16, longest);
        if (n < 0 && n != -EINTR) {
            // The program has closed the epoll set with a call that the library does not see. Ticks still
            // work.
            log::once(log::Level::error, "internal thread: its descriptors are gone ({})",
                      strerrordesc_np(static_cast<int>(-n)));
            timespec pause{0, 10'000'000};
            os::raw_syscall(SYS_nanosleep, &pause, nullptr);
        }
        for (long i = 0; i < n; i++) {
            auto id = static_cast<Id>(events[i].data.u64);
            if (id == kWake) {
                s.wake.clear();
            } else if (id == kErrors) {
                run_errors(s);
            } else {
                run_watch(s, id);
            }
        }
        if (const clock::Time now = clock::monotonic(); now >= look) {
            leader::Threads threads = leader::look(s.stat);
            if (threads == leader::Threads::only_own) exit(0);
            between = threads == leader::Threads::many ? kLookPeriod : kLookSoon;
            look = now + between;
        }
    }
    return nullptr;
}

bool start_thread() noexcept {
    // Signals are blocked before the thread exists, because one could arrive in it. libc does the blocking:
    // it keeps the signals it needs itself (setuid() in all threads) out of the set.
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, kStack);
    pthread_t thread;
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, &attributes, loop, nullptr);
    if (error == EINVAL) {  // the program's thread-local data does not fit into kStack: take the default size
        pthread_attr_destroy(&attributes);
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        error = pthread_create(&thread, &attributes, loop, nullptr);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
    if (error == 0) leader::own_threads.fetch_add(1);
    return error == 0;
}

// The caller holds the lock. False when there is no thread.
bool ensure_started(State& s) noexcept {
    if (s.started) return true;
    const ErrnoKept kept;
    install_fork_hooks();
    InternalFd::on_move(watched_number_moved);
    s.events = InternalFd(open_epoll());
    s.errors = InternalFd(open_epoll());
    s.wake = WakeFd::make();
    s.stat = leader::open_stat();
    s.started = s.events && s.errors && s.wake &&
                control(s.events.get(), EPOLL_CTL_ADD, s.errors.get(), EPOLLIN, kErrors) == 0 &&
                control(s.events.get(), EPOLL_CTL_ADD, s.wake.get(), EPOLLIN, kWake) == 0 && start_thread();
    if (!s.started) {
        s.stat.reset();
        s.wake.reset();
        s.errors.reset();
        s.events.reset();
        if (!s.failed) log::error("the internal thread could not be started");
        s.failed = true;
    }
    return s.started;
}

Id new_id(State& s) noexcept {
    Id id = s.next_id++;
    if (s.next_id < kFirst) s.next_id = kFirst;
    return id;
}

void await_end(State& s, Id id) noexcept {
    if (t_internal) return;
    while (s.running.load(std::memory_order_acquire) == id)
        os::raw_syscall(SYS_futex, &s.running, FUTEX_WAIT_PRIVATE, id, nullptr);
}

// Takes the watch for which `is_it` is true out of the table. The caller holds the lock.
template <class F>
Watch take_if(State& s, F&& is_it) noexcept {
    Watch found{kNobody, -1, nullptr};
    auto at = std::find_if(s.watches.begin(), s.watches.end(), is_it);
    if (at != s.watches.end()) {
        found = std::move(*at);
        s.watches.erase(at);
    }
    return found;
}
Watch take(State& s, int fd) noexcept {
    return take_if(s, [fd](const Watch& w) { return w.fd == fd; });
}

// Called by InternalFd::relocate(). The epoll set knows a descriptor by its number, too.
void watched_number_moved(int from, int to) noexcept {
    State* known = g_state.load(std::memory_order_acquire);
    if (known == nullptr) return;
    State& s = *known;
    const std::lock_guard guard(s.lock);
    for (Watch& w : s.watches) {
        if (w.fd != from) continue;
        control(s.events.get(), EPOLL_CTL_DEL, from, 0, 0);
        control(s.events.get(), EPOLL_CTL_ADD, to, EPOLLIN, w.id);
        w.fd = to;
    }
}

}  // namespace

void watch(int fd, std::function<void()> ready) {
    State& s = state();
    auto shared = std::make_shared<std::function<void()>>(std::move(ready));
    std::unique_lock hold(s.lock);
    if (!ensure_started(s)) return;
    s.watches.reserve(s.watches.size() + 1);
    Watch replaced = take(s, fd);
    Id id = new_id(s);
    s.watches.push_back({id, fd, std::move(shared)});
    long error = control(s.events.get(), EPOLL_CTL_ADD, fd, EPOLLIN, id);
    if (error == -EEXIST) error = control(s.events.get(), EPOLL_CTL_MOD, fd, EPOLLIN, id);
    Watch refused = error != 0 ? take(s, fd) : Watch{};
    hold.unlock();
    if (error != 0)
        log::error("internal thread: cannot watch descriptor {} ({})", fd,
                   strerrordesc_np(static_cast<int>(-error)));
    if (replaced.id != kNobody) await_end(s, replaced.id);
}

void unwatch(int fd) noexcept {
    State* known = g_state.load(std::memory_order_acquire);
    if (known == nullptr) return;
    State& s = *known;
    s.lock.lock();
    Watch removed = take(s, fd);
    if (removed.id != kNobody) control(s.events.get(), EPOLL_CTL_DEL, fd, 0, 0);
    s.lock.unlock();
    if (removed.id != kNobody) await_end(s, removed.id);
}

void unwatch_this() noexcept {
    State& s = *g_state.load(std::memory_order_acquire);
    s.lock.lock();
    const Watch removed =
        take_if(s, [&](const Watch& w) { return w.id == s.running.load(std::memory_order_relaxed); });
    if (removed.id != kNobody) control(s.events.get(), EPOLL_CTL_DEL, removed.fd, 0, 0);
    s.lock.unlock();
}

void watch_errors(int fd, std::uint64_t token) noexcept {
    try {
        state();
    } catch (const std::bad_alloc&) {
        return log::debug("internal thread: descriptor {} is not watched for errors: out of memory", fd);
    }
    State& s = state();
    s.lock.lock();
    long error = 0;
    if (ensure_started(s)) {
        error = control(s.errors.get(), EPOLL_CTL_ADD, fd, EPOLLET, token);
        if (error == -EEXIST) error = control(s.errors.get(), EPOLL_CTL_MOD, fd, EPOLLET, token);
    }
    s.lock.unlock();
    if (error != 0)
        log::debug("internal thread: cannot watch descriptor {} for errors ({})", fd,
                   strerrordesc_np(static_cast<int>(-error)));
}

void unwatch_errors(int fd) noexcept {
    if (State* s = g_state.load(std::memory_order_acquire)) control(s->errors.get(), EPOLL_CTL_DEL, fd, 0, 0);
}

void set_internal_thread(InternalThreadSettings settings) {
    g_settings.store(new InternalThreadSettings(std::move(settings)), std::memory_order_release);
}

void on_error(void (*handler)(std::uint64_t token)) noexcept {
    g_on_error.store(handler, std::memory_order_release);
}

void every(clock::Msec between, std::function<bool()> tick) {
    State& s = state();
    const clock::Nsec period = std::max(between, clock::Msec(1));
    auto shared = std::make_shared<std::function<bool()>>(std::move(tick));
    const std::lock_guard hold(s.lock);
    if (ensure_started(s)) {
        s.ticks.push_back({new_id(s), period, clock::monotonic() + period, std::move(shared)});
        if (!t_internal) s.wake.wake();
    }
}

namespace internal_thread {

void forget_in_child() noexcept {
    t_internal = false;
    leader::own_threads.store(0);
    // The old state is not reused: a thread that does not exist in the child may hold its lock. The old state
    // is not freed either (see the header), but stays within reach of leak checkers.
    State* known = g_state.exchange(nullptr);
    if (known == nullptr) return;
    known->forgotten = g_forgotten;
    g_forgotten = known;
}

bool is_current() noexcept { return t_internal; }

}  // namespace internal_thread
}  // namespace vma::runtime
