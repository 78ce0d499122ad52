// SPDX-License-Identifier: BSD-2-Clause
// A wire inside the process: what one end point sends arrives at the others, as badly as a test wishes.
//
// It exists because loss, duplication, reordering, corruption and delay decide whether a protocol is right,
// and no real network produces them on demand. Everything depends only on the seed, the frames, and a clock
// that stands still until it is told to advance, so a failure happens again with the same seed. With faults
// off, frames arrive at once.
//
// Any thread may call: one lock covers the wire with its devices. The wire must outlive its devices.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "libvma/verbs/device.h"

namespace vma::verbs::wire {

class WireDevice;
struct WireConfig;

using Frame = std::vector<std::uint8_t>;

// A small generator of its own (splitmix64): the standard's distributions differ between libraries.
class Random {
  public:
    explicit Random(std::uint64_t seed) noexcept : state_(seed) {}
    std::uint64_t next() noexcept {
        std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    // 0 to n-1; 0 for n = 0.
    std::uint64_t below(std::uint64_t n) noexcept { return n == 0 ? 0 : next() % n; }
    bool chance(double probability) noexcept {
        return probability > 0 && static_cast<double>(next() >> 11) * 0x1p-53 < probability;
    }

  private:
    std::uint64_t state_;
};

// What happens to the frames of one sender. Probabilities are for each frame, and independent of each other.
struct Faults {
    double loss = 0;
    double duplicate = 0;
    double corrupt = 0;
    unsigned corrupt_bits = 1;                        // flipped in a corrupted frame, anywhere in it
    std::function<void(Frame&, Random&)> corrupt_by;  // does it instead of flipping
    double reorder = 0;  // delayed by reorder_ns more, so that later ones overtake
    std::uint64_t reorder_ns = 10'000;
    std::uint64_t delay_ns = 0;
    std::uint64_t jitter_ns = 0;  // 0 to this much more for each frame; it reorders, too
};

struct WireCounters {
    std::uint64_t sent = 0, lost = 0, duplicated = 0, corrupted = 0, reordered = 0;
    std::uint64_t hooked_away = 0;  // frames the hook took off the wire
    std::uint64_t delivered = 0;    // copies handed to an end point
};

// Sees each frame before the faults: a vector with this one frame, which it may change, remove, or add others
// to. It runs inside the wire's lock: of the wire it may call only now().
using Hook = std::function<void(const WireDevice& from, std::vector<Frame>& frames)>;

class Wire {
  public:
    explicit Wire(std::uint64_t seed = 1);
    ~Wire();
    Wire(const Wire&) = delete;
    Wire& operator=(const Wire&) = delete;

    // A new end point. It leaves the wire with its destructor.
    std::unique_ptr<WireDevice> connect(const WireConfig& config);

    void set_faults(const WireDevice& from, Faults faults);
    void set_hook(Hook hook);
    WireCounters counters(const WireDevice& from) const;

    // Nanoseconds; starts at 0.
    std::uint64_t now() const noexcept { return now_.load(std::memory_order_relaxed); }
    // Passes time, and delivers what falls due on the way at the moment it does.
    void advance(std::uint64_t ns);
    // Passes as much time as it takes until nothing is under way. Returns the nanoseconds passed.
    std::uint64_t run_until_idle();
    // When the next thing happens by itself: a frame arrives, or one that a sender holds back leaves.
    std::optional<std::uint64_t> next_due() const;

  private:
    friend class WireDevice;

    struct Port {
        WireDevice* device;
        Faults faults;
        Random random;
        WireCounters counters;
    };
    struct Arrival {
        WireDevice* to;
        WireDevice* from;
        Frame frame;
    };

    void transmit(WireDevice& from, Frame frame);  // these want the lock held
    void pass_one(Port& from, Frame frame);
    void carry(Port& from, Frame frame);
    void deliver_due();
    void run_to(std::uint64_t time);
    std::optional<std::uint64_t> next_due_locked() const;
    Port& port_of(const WireDevice& device);
    void disconnect(WireDevice& device) noexcept;

    mutable std::mutex mutex_;
    std::uint64_t seed_;
    std::uint64_t made_ = 0;  // end points ever connected
    std::atomic<std::uint64_t> now_{0};
    std::uint64_t serial_ = 0;  // keeps the order of what falls due at the same time
    std::vector<std::unique_ptr<Port>> ports_;
    std::map<std::pair<std::uint64_t, std::uint64_t>, Arrival> under_way_;  // by time and serial
    Hook hook_;
};

}  // namespace vma::verbs::wire
