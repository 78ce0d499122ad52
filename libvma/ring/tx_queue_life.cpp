// SPDX-License-Identifier: BSD-2-Clause
// A send queue's end, recovery and statistics.
#include <time.h>

#include <utility>

#include "libvma/os/raw_syscall.h"
#include "libvma/ring/tx_queue.h"
#include "libvma/runtime/clock.h"
#include "libvma/stats/counter.h"

namespace vma::ring {

void TxQueue::ending(bool on) noexcept {
    if (device_->attr().level_events || lock_.owned_by_me())
        return;  // software has it as soon as it is flushed
    lock_.lock();
    signal_every_ = on ? 1 : signal_most_;
    lock_.unlock();
}

void TxQueue::drain() noexcept {
    if (device_->attr().level_events || lock_.owned_by_me()) return;
    constexpr std::uint64_t kLongestNs = 20'000'000;
    constexpr timespec kPause{0, 50'000};
    lock_.lock();
    Hold hold(*this);
    // Frames that did not ask for a completion get one behind them. Where there is no such request they have
    // the whole time: more than an adapter needs.
    if (unsignalled_ != 0 && device_->mark(qp_, buffers_.posted())) unsignalled_ = 0;
    const std::uint64_t from = clock::monotonic_ns();
    for (;;) {
        reap();
        if (buffers_.under_way() == 0 || clock::monotonic_ns() - from >= kLongestNs) break;
        os::raw_syscall(SYS_nanosleep, &kPause, nullptr);
    }
}

// Requests that did not ask for a completion get one behind them, or with the next one.
bool TxQueue::stands() noexcept {
    if (!lock()) return false;
    const Hold hold(*this);
    reap();
    const std::uint64_t done = buffers_.posted() - buffers_.under_way();
    if (buffers_.under_way() == 0 || std::exchange(done_, done) != done) return false;
    const bool asked = buffers_.under_way() > unsignalled_;
    if (!asked) unsignalled_ = device_->mark(qp_, buffers_.posted()) ? 0 : signal_every_;
    return asked;
}

void TxQueue::send_all() noexcept {
    constexpr int kMostFlushes = 64;  // of as many frames as the kernel takes at a time
    flush_now();
    for (int i = 0; i < kMostFlushes && device_->tx_held(qp_) != 0; i++) flush_now();
    drain();
}

// ---- recovery ----

void TxQueue::stop() noexcept {
    lock_.lock();
    device_->stop(qp_);
    lock_.unlock();
}

bool TxQueue::restart(bool recover) noexcept {
    lock_.lock();
    reap();
    const bool works = recover && device_->recover(qp_);
    reap();
    // What has no completion has been lost, too.
    stats::add(counters_.tx_lost, buffers_.under_way());
    buffers_.done(buffers_.posted());
    tso_.forget();
    unsignalled_ = 0;
    lock_.unlock();
    return works;
}

// ---- statistics ----

void TxQueue::count(TxCounters& out) const noexcept {
    out.tx_frames = stats::load(counters_.tx_frames);
    out.tx_bytes = stats::load(counters_.tx_bytes);
    out.tx_error = stats::load(counters_.tx_error);
    out.tx_lost = stats::load(counters_.tx_lost);
    out.tx_no_buffer = stats::load(counters_.tx_no_buffer);
    out.tx_retransmits = retransmits_.load(std::memory_order_relaxed);
}

void TxQueue::count(BufferCounts& out) noexcept {
    lock_.lock();
    reap();
    out.tx_total = buffers_.count();
    out.tx_free = buffers_.free();
    lock_.unlock();
}

void TxQueue::flush_older(std::uint64_t now, std::uint64_t age, LookAtHeld& look) noexcept {
    const std::uint64_t frames = stats::load(counters_.tx_frames);
    if (frames - std::exchange(frames_looked_at_, frames) >= LookAtHeld::kGoesOn) look.goes_on = true;
    if (!held_.empty()) {
        const std::uint64_t oldest = held_.since();
        if (now < oldest + age) return look.at(oldest + age);
        look.left |= held_.send_all();
        flush_now();
        return look.at(now + age);
    }
    if (device_->tx_held(qp_) == 0) return;
    std::uint64_t since = device_->tx_held_since(qp_);
    if (now < since + age) return look.at(since + age);
    if (!lock_.try_lock()) return look.at(now + age / 8);  // a sender holds it, and decides itself
    device_->flush(qp_);
    lock_.unlock();
    look.left = true;
    look.at(now + age);
}

}  // namespace vma::ring
