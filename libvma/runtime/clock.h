// SPDX-License-Identifier: BSD-2-Clause
// Time: the cycle counter for the fast path, CLOCK_MONOTONIC for deadlines, CLOCK_REALTIME for time stamps.
//
// A point in time is a time_point of its clock, and a duration is a std::chrono::duration, so the compiler
// refuses to mix clocks, units and plain numbers. A Ticks is a reading of the cycle counter, or the
// difference of two. Numbers of a file, of the kernel or of a wire become such types where they are read.
#pragma once

#include <time.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace vma::clock {

// Unsigned, because differences and comparisons of times are; 584 years.
using Nsec = std::chrono::duration<std::uint64_t, std::nano>;
// 32 bits, for round trips and their like: 71 minutes, and 49 days.
using Usec = std::chrono::duration<std::uint32_t, std::micro>;
using Msec = std::chrono::duration<std::uint32_t, std::milli>;

// CLOCK_MONOTONIC as a clock of std::chrono. The system has been up for a while, so Time{} can mean "never".
struct Monotonic {
    using duration = Nsec;
    using rep = duration::rep;
    using period = duration::period;
    using time_point = std::chrono::time_point<Monotonic, duration>;
    static constexpr bool is_steady = true;
    static time_point now() noexcept;
};
using Time = Monotonic::time_point;

// CLOCK_REALTIME, as in the time stamps of packets. WallTime{} means that there is none.
using WallTime = std::chrono::sys_time<std::chrono::nanoseconds>;

// The clock of a device, in the time at which a frame arrived there. DeviceTime{} means that there is none.
struct DeviceClock {
    using duration = Nsec;
    using rep = duration::rep;
    using period = duration::period;
    static constexpr bool is_steady = false;
};
using DeviceTime = std::chrono::time_point<DeviceClock, Nsec>;

// What the kernel takes and gives, with seconds and nanoseconds apart.
constexpr Nsec from_timespec(const timespec& t) noexcept {
    return Nsec(static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u +
                static_cast<std::uint64_t>(t.tv_nsec));
}
constexpr timespec to_timespec(Nsec t) noexcept {
    return {static_cast<time_t>(t.count() / 1'000'000'000), static_cast<long>(t.count() % 1'000'000'000)};
}

inline Monotonic::time_point Monotonic::now() noexcept {
    timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return time_point(from_timespec(ts));
}
inline Time monotonic() noexcept { return Monotonic::now(); }

inline WallTime wall() noexcept {
    timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return WallTime(std::chrono::nanoseconds(ts.tv_sec * 1'000'000'000ll + ts.tv_nsec));
}

// A reading of the constant-rate counter (TSC, or CNTVCT on aarch64), or a difference of readings.
class Ticks {
  public:
    constexpr Ticks() noexcept = default;
    constexpr explicit Ticks(std::uint64_t count) noexcept : count_(count) {}
    static Ticks now() noexcept {
#if defined(__x86_64__)
        return Ticks(__builtin_ia32_rdtsc());
#elif defined(__aarch64__)
        std::uint64_t t;
        asm volatile("mrs %0, cntvct_el0" : "=r"(t));
        return Ticks(t);
#endif
    }
    static constexpr Ticks max() noexcept { return Ticks(UINT64_MAX); }

    constexpr std::uint64_t count() const noexcept { return count_; }
    constexpr Ticks& operator+=(Ticks t) noexcept {
        count_ += t.count_;
        return *this;
    }
    friend constexpr Ticks operator+(Ticks a, Ticks b) noexcept { return Ticks(a.count_ + b.count_); }
    friend constexpr Ticks operator-(Ticks a, Ticks b) noexcept { return Ticks(a.count_ - b.count_); }
    friend constexpr bool operator==(Ticks, Ticks) noexcept = default;
    friend constexpr bool operator<(Ticks a, Ticks b) noexcept { return a.count_ < b.count_; }
    friend constexpr bool operator>(Ticks a, Ticks b) noexcept { return a.count_ > b.count_; }
    friend constexpr bool operator<=(Ticks a, Ticks b) noexcept { return a.count_ <= b.count_; }
    friend constexpr bool operator>=(Ticks a, Ticks b) noexcept { return a.count_ >= b.count_; }

  private:
    std::uint64_t count_ = 0;
};

namespace internal {
inline constinit std::atomic<std::uint64_t> ticks_per_usec{0};
std::uint64_t measure_ticks_per_usec() noexcept;
}  // namespace internal

// Ticks in a microsecond, at least 1. The first call measures them against CLOCK_MONOTONIC, which takes about
// 0.2 ms. A signal handler may interrupt the measurement and measure for itself. So callers must not keep
// derived values in static variables of functions: the handler would wait there for the thread that it has
// interrupted.
inline std::uint64_t ticks_per_usec() noexcept {
    const std::uint64_t known = internal::ticks_per_usec.load(std::memory_order_relaxed);
    return __builtin_expect(known != 0, 1) ? known : internal::measure_ticks_per_usec();
}

// How many ticks `time` takes. A product of 64 bits: up to some weeks.
template <class Rep, class Period>
Ticks to_ticks(std::chrono::duration<Rep, Period> time) noexcept {
    if constexpr (std::ratio_less_v<Period, std::micro>)
        return Ticks(static_cast<std::uint64_t>(time.count()) * ticks_per_usec() / 1000);
    else
        return Ticks(std::chrono::duration<std::uint64_t, std::micro>(time).count() * ticks_per_usec());
}
// The same the other way round.
inline Nsec to_nsec(Ticks ticks) noexcept { return Nsec(ticks.count() * 1000 / ticks_per_usec()); }

// The same readings as plain numbers.
inline std::uint64_t ticks() noexcept { return Ticks::now().count(); }
inline std::uint64_t monotonic_ns() noexcept { return monotonic().time_since_epoch().count(); }

}  // namespace vma::clock
