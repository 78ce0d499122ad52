// SPDX-License-Identifier: BSD-2-Clause
// The clock, the faults and the way of a frame; the end points are in wire_device.cpp.
#include "tests/support/wire/wire.h"

#include <algorithm>
#include <stdexcept>

#include "tests/support/wire/wire_device.h"

namespace vma::verbs::wire {

Wire::Wire(std::uint64_t seed) : seed_(seed) {}
Wire::~Wire() = default;

std::unique_ptr<WireDevice> Wire::connect(const WireConfig& config) {
    std::lock_guard guard(mutex_);
    WireConfig own = config;
    const std::uint64_t number = ++made_;
    if (own.mac == MacAddress{})
        own.mac = {2, 0, 0, 0, static_cast<std::uint8_t>(number >> 8), static_cast<std::uint8_t>(number)};
    auto device = std::unique_ptr<WireDevice>(new WireDevice(*this, own));
    // A stream of randomness for each sender: traffic one way does not change what happens to the other.
    Random mix(seed_ ^ (number * 0xd1342543de82ef95u));
    ports_.push_back(std::make_unique<Port>(Port{device.get(), {}, Random(mix.next()), {}}));
    return device;
}

void Wire::disconnect(WireDevice& device) noexcept {
    std::lock_guard guard(mutex_);
    std::erase_if(ports_, [&](auto& port) { return port->device == &device; });
    std::erase_if(under_way_, [&](auto& entry) { return entry.second.to == &device; });
    for (auto& [when, arrival] : under_way_)
        if (arrival.from == &device) arrival.from = nullptr;
}

Wire::Port& Wire::port_of(const WireDevice& device) {
    for (auto& port : ports_)
        if (port->device == &device) return *port;
    throw std::logic_error("not an end point of this wire");
}

void Wire::set_faults(const WireDevice& from, Faults faults) {
    std::lock_guard guard(mutex_);
    port_of(from).faults = std::move(faults);
}

void Wire::set_hook(Hook hook) {
    std::lock_guard guard(mutex_);
    hook_ = std::move(hook);
}

WireCounters Wire::counters(const WireDevice& from) const {
    std::lock_guard guard(mutex_);
    return const_cast<Wire*>(this)->port_of(from).counters;
}

void Wire::transmit(WireDevice& from, Frame frame) {
    Port& port = port_of(from);
    port.counters.sent++;
    if (!hook_) {
        pass_one(port, std::move(frame));
    } else {
        std::vector<Frame> frames;
        frames.push_back(std::move(frame));
        hook_(from, frames);
        if (frames.empty()) port.counters.hooked_away++;
        for (Frame& f : frames) pass_one(port, std::move(f));
    }
    deliver_due();
}

// The faults, in the order in which they would happen on a way: lost ones are neither doubled nor damaged,
// and the copies of a duplicated frame have fates of their own from there on.
void Wire::pass_one(Port& from, Frame frame) {
    const Faults& faults = from.faults;
    if (from.random.chance(faults.loss)) {
        from.counters.lost++;
        return;
    }
    int copies = 1;
    if (from.random.chance(faults.duplicate)) {
        from.counters.duplicated++;
        copies = 2;
    }
    for (int i = 0; i < copies; i++) {
        Frame copy = i + 1 < copies ? frame : std::move(frame);
        if (from.random.chance(faults.corrupt)) {
            from.counters.corrupted++;
            if (faults.corrupt_by)
                faults.corrupt_by(copy, from.random);
            else
                for (unsigned bit = 0; bit < faults.corrupt_bits && !copy.empty(); bit++) {
                    const std::uint64_t at = from.random.below(copy.size() * 8);
                    copy[at / 8] ^= static_cast<std::uint8_t>(1u << (at % 8));
                }
        }
        carry(from, std::move(copy));
    }
}

// A known station gets its frames alone; everything else is for all, as on a switch. With two end points the
// other one gets every frame, like the far end of a cable.
void Wire::carry(Port& from, Frame frame) {
    std::uint64_t due = now() + from.faults.delay_ns;
    if (from.faults.jitter_ns != 0) due += from.random.below(from.faults.jitter_ns + 1);
    if (from.random.chance(from.faults.reorder)) {
        from.counters.reordered++;
        due += from.faults.reorder_ns;
    }
    WireDevice* only = nullptr;
    if (frame.size() >= 6)
        for (auto& port : ports_)
            if (port.get() != &from &&
                std::equal(frame.begin(), frame.begin() + 6, port->device->attr_.mac.begin()))
                only = port->device;
    for (auto& port : ports_) {
        if (port.get() == &from || (only != nullptr && port->device != only && ports_.size() > 2)) continue;
        // With two end points there is one receiver.
        under_way_.emplace(std::pair{due, serial_++},
                           Arrival{port->device, from.device, ports_.size() <= 2 ? std::move(frame) : frame});
    }
}

void Wire::deliver_due() {
    while (!under_way_.empty() && under_way_.begin()->first.first <= now()) {
        Arrival arrival = std::move(under_way_.extract(under_way_.begin()).mapped());
        if (arrival.from != nullptr) port_of(*arrival.from).counters.delivered++;
        arrival.to->arrive(arrival.frame);
    }
}

std::optional<std::uint64_t> Wire::next_due_locked() const {
    std::optional<std::uint64_t> due;
    if (!under_way_.empty()) due = under_way_.begin()->first.first;
    for (auto& port : ports_)
        if (auto hold = port->device->hold_ends(); hold && (!due || *hold < *due)) due = hold;
    return due;
}

std::optional<std::uint64_t> Wire::next_due() const {
    std::lock_guard guard(mutex_);
    return next_due_locked();
}

void Wire::run_to(std::uint64_t time) {
    if (time > now()) now_.store(time, std::memory_order_relaxed);
    deliver_due();
    for (auto& port : ports_) {
        WireDevice& device = *port->device;
        if (auto hold = device.hold_ends(); hold && *hold <= now()) device.flush_locked();
    }
}

void Wire::advance(std::uint64_t ns) {
    std::lock_guard guard(mutex_);
    const std::uint64_t end = now() + ns;
    for (auto due = next_due_locked(); due && *due <= end; due = next_due_locked()) run_to(*due);
    run_to(end);
}

std::uint64_t Wire::run_until_idle() {
    std::lock_guard guard(mutex_);
    const std::uint64_t start = now();
    while (auto due = next_due_locked()) run_to(*due);
    return now() - start;
}

}  // namespace vma::verbs::wire
