// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/iomux/wait.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>

#include "libvma/config/params.h"
#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/lock.h"
#include "libvma/runtime/runtime.h"
#include "libvma/runtime/signal_hold.h"
#include "libvma/runtime/spin.h"
#include "libvma/sockets/verdicts.h"

namespace vma::iomux {
namespace {

// The longest sleep when no wake-up is certain (no eventfd left, too many sleepers on one set).
constexpr clock::Nsec kSlice{1'000'000};
// With a signal mask, a spinning call asks the kernel at least this often: only the kernel knows which
// signals the mask lets through.
constexpr std::int64_t kSignalRatio = 100;
// How often a spinning call checks that it still has an offloaded socket.
constexpr std::uint64_t kOffloadCheck = 256;

constexpr auto kUnset = std::chrono::microseconds::min();
struct {
    std::atomic<std::chrono::microseconds> spin{kUnset};
    std::atomic<std::int64_t> os_ratio{0}, skip_os{1};
    std::atomic<bool> yield{false}, interrupts{true};
} g_policy;

}  // namespace

SpinPolicy spin_policy() noexcept {
    std::chrono::microseconds spin = g_policy.spin.load(std::memory_order_acquire);
    if (__builtin_expect(spin == kUnset, 0)) {
        const auto& params = config::get();
        spin = std::chrono::microseconds(params.select_poll);
        set_spin_policy({spin, params.select_poll_os_ratio, params.select_skip_os,
                         params.select_poll_yield != 0, params.select_cq_irq != 0});
    }
    return {spin, g_policy.os_ratio.load(std::memory_order_relaxed),
            g_policy.skip_os.load(std::memory_order_relaxed), g_policy.yield.load(std::memory_order_relaxed),
            g_policy.interrupts.load(std::memory_order_relaxed)};
}

void set_spin_policy(SpinPolicy policy) noexcept {
    g_policy.os_ratio.store(policy.os_ratio, std::memory_order_relaxed);
    g_policy.skip_os.store(policy.skip_os, std::memory_order_relaxed);
    g_policy.yield.store(policy.yield, std::memory_order_relaxed);
    g_policy.interrupts.store(policy.interrupts, std::memory_order_relaxed);
    g_policy.spin.store(policy.spin, std::memory_order_release);
}

short events_of_former(int fd, short events) noexcept {
    pollfd asked{fd, static_cast<short>(events | POLLOUT), 0};
    timespec now = kNow;
    if (os::raw_syscall(SYS_ppoll, &asked, 1, &now, nullptr, 8) <= 0) return 0;
    if ((asked.revents & (POLLNVAL | POLLERR)) == 0 &&
        (asked.revents & (POLLHUP | POLLOUT)) == (POLLHUP | POLLOUT))
        return 0;
    return static_cast<short>(asked.revents & (events | POLLERR | POLLHUP | POLLNVAL));
}

bool skip_kernel(unsigned& skipped, bool asked) noexcept {
    const std::int64_t every = spin_policy().skip_os;
    if (asked) skipped = 0;
    if (every <= 1 || ++skipped >= every) {
        skipped = 0;
        return false;
    }
    return true;
}

bool Deadline::set(const timespec* timeout) noexcept {
    if (timeout == nullptr) return true;
    if (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= 1'000'000'000) return false;
    if (timeout->tv_sec == 0 && timeout->tv_nsec == 0) {
        kind_ = zero_;
        return true;
    }
    // Three centuries count as infinite.
    if (static_cast<std::uint64_t>(timeout->tv_sec) > 9'000'000'000u) return true;
    kind_ = timed_;
    at_ = clock::monotonic() + clock::from_timespec(*timeout);
    return true;
}

clock::Nsec Deadline::left() const noexcept {
    if (kind_ == infinite_) return clock::Nsec::max();
    if (kind_ == zero_) return {};
    const clock::Time now = clock::monotonic();
    return at_ > now ? at_ - now : clock::Nsec::zero();
}

// A kernel call ends with EINTR when a handler has run while the call waited. The library's call notices a
// handler in three ways. While it spins: by the running counts of handlers. Between the last look at the
// counts and the sleep: all signals are held, and the sleeping call lets them through. With a mask: the
// spinning call blocks the mask's signals. A signal that only the mask lets through stays pending for the
// kernel's zero-timeout call with that mask.
class Wait::Signals {
  public:
    explicit Signals(const sigset_t* mask) noexcept : mask_(mask) {
        sigemptyset(&original_);
        if (mask_ != nullptr) {
            change_.emplace(runtime::as_kernel_set(*mask_));
            spinning_ = change_->original() | runtime::as_kernel_set(*mask_);
        }
        begin_count();
    }
    Signals(const Signals&) = delete;
    Signals& operator=(const Signals&) = delete;

    void count_from(std::uint32_t interruptions, std::uint32_t restarts) noexcept {
        interruptions_ = interruptions;
        restarts_ = restarts;
    }
    bool handler_ran() const noexcept {
        return runtime::pending() || runtime::interruptions() != interruptions_ ||
               runtime::restarts() != restarts_;
    }

    // Holds every signal but those that a fault of this thread raises.
    void hold() noexcept {
        if (change_)
            change_->set(spinning_ | runtime::kSignalsToHold);
        else
            change_.emplace(runtime::kSignalsToHold);
        if (mask_ == nullptr) runtime::as_kernel_set(original_) = spinning_ = change_->original();
    }
    void release() noexcept { change_->set(spinning_); }
    // The mask to sleep with, while hold() is in force.
    const sigset_t* sleeping() const noexcept { return mask_ != nullptr ? mask_ : &original_; }

  private:
    void begin_count() noexcept { count_from(runtime::interruptions(), runtime::restarts()); }

    const sigset_t* mask_;
    std::optional<runtime::MaskChange> change_;
    sigset_t original_;
    runtime::SignalSet spinning_ = 0;
    std::uint32_t interruptions_, restarts_;
};

bool Wait::poll_rings() {
    sources_.refresh();
    return empty_rings();
}

// One poll takes one batch, which may belong to other sockets only. So the answer is "no event" only after
// the rings are empty.
bool Wait::empty_rings() {
    constexpr unsigned kMaxRounds = 1024;
    for (unsigned round = 0;; round++) {
        unsigned taken = sources_.progress();
        if (ready()) return true;
        if (taken == 0 || round == kMaxRounds) return false;
    }
}

int Wait::look_once(const sigset_t* mask) {
    bool ours = poll_rings();
    return look(ours ? nullptr : mask, false);
}

int Wait::run(const timespec* timeout, const sigset_t* mask) {
    const bool timed = PollTime::enabled();
    const clock::Ticks start = timed ? clock::Ticks::now() : clock::Ticks();
    const int n = run_uncounted(timeout, mask);
    if (counters_ == nullptr || n == -runtime::kAskVerdict) return n;
    stats::count_call(*counters_, n, offloaded_ready_, came_);
    if (timed) {
        stats::add_shared(counters_->waiting_ns, clock::to_nsec(clock::Ticks::now() - start).count());
        stats::add_shared(counters_->polling_ns, clock::to_nsec(polling_).count());
    }
    return n;
}

int Wait::run_uncounted(const timespec* timeout, const sigset_t* mask) {
    Deadline deadline;
    if (!deadline.set(timeout)) return -EINVAL;
    deadline.resume(sockets::Verdicts::take_deadline());
    const runtime::Admit admit(mask);
    std::uint32_t interruptions = runtime::interruptions(), restarts = runtime::restarts();
    sources_.refresh();
    sources_.flush();
    bool ours = poll_rings();
    // Once in each call, ready or not: a descriptor that is always ready must not keep callbacks from
    // running.
    if (sockets::Verdicts::due_first()) return ask_verdict(deadline);
    int n = look(ours ? nullptr : mask, true);
    if (n != 0 || deadline.zero()) return n;

    came_ = stats::Arrived::polled;
    Signals signals(mask);
    // With a mask, handlers that ran before the mask was in force do not count.
    if (mask == nullptr) signals.count_from(interruptions, restarts);
    bool over = false;
    n = spin(deadline, signals, mask, over);
    if (over) return n;
    came_ = stats::Arrived::slept;
    for (;;) {
        n = sleep_once(deadline, signals);
        if (n < 0) return n;
        bool last = deadline.left() == clock::Nsec::zero();
        n = look_once(mask);
        if (n != 0 || last) return n;
        if (sockets::Verdicts::due()) return ask_verdict(deadline);
    }
}

// Callbacks of the program run outside of the library; the call is made again then.
int Wait::ask_verdict(const Deadline& deadline) noexcept {
    sockets::Verdicts::keep_deadline(deadline.infinite() || deadline.zero() ? clock::Time{} : deadline.at());
    return -runtime::kAskVerdict;
}

// over: the call ends with the returned value. Otherwise it goes to sleep.
int Wait::spin(const Deadline& deadline, const Signals& signals, const sigset_t* mask, bool& over) {
    SpinPolicy policy = spin_policy();
    if (policy.spin.count() == 0 || !sources_.offloaded()) return 0;
    // The kernel's side of offloaded sockets is rarely ready, so the call looks there less often than at the
    // program's other descriptors.
    if (policy.skip_os > 1 && policy.os_ratio > 1 && only_shadows()) policy.os_ratio *= policy.skip_os;
    if (mask != nullptr && (policy.os_ratio == 0 || policy.os_ratio > kSignalRatio))
        policy.os_ratio = kSignalRatio;
    constexpr std::uint64_t kEver = std::numeric_limits<std::uint64_t>::max();
    const std::uint64_t rate = clock::ticks_per_usec();
    const clock::Ticks longest = policy.spin.count() < 0 ? clock::Ticks::max() : clock::to_ticks(policy.spin);
    // The counter's rate is known to some parts in a thousand: the counter says when to read the clock, and
    // the clock decides.
    auto ticks_left = [&] {
        const std::uint64_t left =
            deadline.infinite() ? kEver : deadline.left() / std::chrono::microseconds(1);
        return clock::Ticks(left > kEver / rate / 2 ? kEver / 2 : left * rate);
    };
    const clock::Ticks start = clock::Ticks::now();
    clock::Ticks clock_at = ticks_left();
    PollTime time(polling_);
    over = true;
    for (std::uint64_t round = 1;; round++) {
        bool ours = poll_rings();
        if (runtime::pending()) {  // the handler has not run yet, so results go first
            const int n = look(nullptr, false);
            return n != 0 ? n : -EINTR;
        }
        if (!ours && sockets::Verdicts::due()) return ask_verdict(deadline);
        // Checked before the results: a handler that wakes its own thread through a pipe ends the kernel's
        // calls with EINTR.
        if (signals.handler_ran()) return -EINTR;
        bool ask = policy.os_ratio != 0 && round % static_cast<std::uint64_t>(policy.os_ratio) == 0;
        if (ask || round % kOffloadCheck == 0) pthread_testcancel();
        if (ours || ask) {
            int n = look(ours ? nullptr : mask, false);
            if (n != 0) return n;
        }
        const clock::Ticks spent = clock::Ticks::now() - start;
        if (spent >= clock_at) {
            if (deadline.left() == clock::Nsec::zero()) return look_once(mask);
            clock_at = spent + ticks_left();
        }
        if (spent >= longest) break;
        if (round % kOffloadCheck == 0 && !sources_.offloaded()) break;
        time.round();
        sources_.flush();  // frames that polling has answered must not wait for the flusher
        if (policy.yield)
            yield_core();
        else if (!spin_or_sleep(round))
            break;
    }
    over = false;
    return 0;
}

int Wait::sleep_once(const Deadline& deadline, Signals& signals) {
    // Declared first, so released last: when a handler runs, the thread's waiter is on no list any more.
    struct Hold {
        Signals& signals;
        explicit Hold(Signals& s) noexcept : signals(s) { signals.hold(); }
        ~Hold() { signals.release(); }
    } hold(signals);
    if (signals.handler_ran()) return -EINTR;

    sockets::Waiter* waiter = sockets::Waiter::mine();
    if (waiter != nullptr) waiter->clear();
    sources_.refresh(true);
    ArmedWait arming(sources_, waiter, spin_policy().interrupts);
    arming.arm();
    for (;;) {
        if (sources_.stale()) return 0;
        if (empty_rings() || sockets::Verdicts::due()) return 0;
        sources_.flush();  // frames that the looks since the last flush have answered
        timespec left;
        const timespec* limit = nullptr;
        clock::Nsec rest = deadline.left();
        if (!arming.complete()) rest = std::min(rest, kSlice);
        if (!deadline.infinite() || !arming.complete()) {
            left = clock::to_timespec(rest);
            limit = &left;
        }
        spinners::sleeps();
        const int error = sleep(arming.fds(), limit, signals.sleeping());
        spinners::leave();
        if (error != 0) return error;
        if (!arming.sleeps_on() || deadline.left() == clock::Nsec::zero()) return 0;
    }
}

}  // namespace vma::iomux
