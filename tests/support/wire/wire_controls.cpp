// SPDX-License-Identifier: BSD-2-Clause
// What tests do to an end point: errors, faults of the adapter, the host's kernel, and questions.
#include <sys/eventfd.h>

#include <iterator>
#include <utility>

#include "libvma/os/raw_syscall.h"
#include "tests/support/wire/wire_device.h"

namespace vma::verbs::wire {

// ---- errors ----

// The QP goes to the error state. Requests that are not done complete as flushed, but the first with an
// error, unless the QP was stopped before.
void WireDevice::break_qp() {
    bool first = !std::exchange(stopped_, true);
    for (std::deque<PostedSend>* list : {&unsent_, &sent_}) {
        for (const PostedSend& send : *list)
            for (const ibv_sge& sge : send.pieces) owner_[chunk_of(sge.addr)] = Owner::caller;
        list->clear();
    }
    slots_.abandon([&](std::uint64_t wr_id) {
        ibv_wc wc{};
        wc.wr_id = wr_id;
        wc.status = std::exchange(first, false) ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_WR_FLUSH_ERR;
        send_errors_.push_back(wc);
    });
    flush_receives();
}

void WireDevice::flush_receives() {
    for (const PostedReceive& buffer : receives_) {
        ibv_wc wc{};
        wc.wr_id = buffer.wr_id;
        wc.status = IBV_WC_WR_FLUSH_ERR;
        received_.push_back({wc, chunk_of(buffer.address)});
    }
    const bool any = !receives_.empty();
    receives_.clear();
    if (any) notify();
}

void WireDevice::stop(ibv_qp*) noexcept {
    std::lock_guard guard(wire_.mutex_);
    if (!stopped_ && !dead_) break_qp();
}

// Like a reset, it drops the completions that nobody has taken.
bool WireDevice::recover(ibv_qp*) noexcept {
    std::lock_guard guard(wire_.mutex_);
    if (dead_ || refuse_recovery_) return false;
    recoveries_++;
    break_qp();
    for (const Completion& completion : received_) owner_[completion.chunk] = Owner::caller;
    received_.clear();
    send_errors_.clear();
    slots_.abandon([](std::uint64_t) {});
    stopped_ = false;
    return true;
}

void WireDevice::on_failure(std::function<void()> tell) { on_failure_ = std::move(tell); }

void WireDevice::die() {
    dead_ = true;
    if (on_failure_) on_failure_();
}

void WireDevice::fail_next_send() {
    std::lock_guard guard(wire_.mutex_);
    fail_send_ = true;
}

void WireDevice::fail_next_receive(bool whole_qp) {
    std::lock_guard guard(wire_.mutex_);
    fail_receive_ = true;
    fail_whole_qp_ = whole_qp;
}

void WireDevice::refuse_recovery(bool on) {
    std::lock_guard guard(wire_.mutex_);
    refuse_recovery_ = on;
}

// ---- the host's kernel, and controls ----

void WireDevice::kernel_send(Frame frame) {
    std::lock_guard guard(wire_.mutex_);
    wire_.transmit(*this, std::move(frame));
}

std::vector<Frame> WireDevice::take_kernel_frames() {
    std::lock_guard guard(wire_.mutex_);
    std::vector<Frame> frames(std::make_move_iterator(to_kernel_.begin()),
                              std::make_move_iterator(to_kernel_.end()));
    to_kernel_.clear();
    return frames;
}

std::uint64_t WireDevice::kernel_frames() const {
    std::lock_guard guard(wire_.mutex_);
    return kernel_frames_;
}

void WireDevice::receive_unsteered(Frame frame) {
    std::lock_guard guard(wire_.mutex_);
    receive(frame);
}

void WireDevice::receive_pieces(const std::vector<Frame>& pieces, bool finished) {
    std::lock_guard guard(wire_.mutex_);
    for (std::size_t i = 0; i < pieces.size() && !stopped_ && !receives_.empty(); i++)
        fill(pieces[i]).wc_flags = i + 1 < pieces.size() || !finished ? kWcMore : 0;
    notify();
}

void WireDevice::refuse_sends(bool on) {
    std::lock_guard guard(wire_.mutex_);
    refuse_sends_ = on;
}

void WireDevice::refuse_some_sends(unsigned accepted, unsigned times, int error) {
    std::lock_guard guard(wire_.mutex_);
    refusals_ = {accepted, times, error};
}

void WireDevice::refuse_flows(bool on) {
    std::lock_guard guard(wire_.mutex_);
    refuse_flows_ = on;
}

void WireDevice::hold_completions(bool on) {
    std::lock_guard guard(wire_.mutex_);
    hold_completions_ = on;
    if (!on) complete_sent();
}

std::uint64_t WireDevice::rx_device_drops() noexcept {
    std::lock_guard guard(wire_.mutex_);
    return rx_drops_;
}

unsigned WireDevice::held() const {
    std::lock_guard guard(wire_.mutex_);
    return lazy_.held();
}

std::size_t WireDevice::rules() const {
    std::lock_guard guard(wire_.mutex_);
    return flows_.size();
}

std::uint32_t WireDevice::receives_posted() const {
    std::lock_guard guard(wire_.mutex_);
    return static_cast<std::uint32_t>(receives_.size());
}

std::uint32_t WireDevice::receives_filled() const {
    std::lock_guard guard(wire_.mutex_);
    return static_cast<std::uint32_t>(received_.size());
}

std::uint64_t WireDevice::tx_invalid() const {
    std::lock_guard guard(wire_.mutex_);
    return tx_invalid_;
}

std::uint64_t WireDevice::violations() const {
    std::lock_guard guard(wire_.mutex_);
    return violations_;
}

std::uint64_t WireDevice::recoveries() const {
    std::lock_guard guard(wire_.mutex_);
    return recoveries_;
}

void WireDevice::spurious_event() {
    const std::uint64_t one = 1;
    os::raw_syscall(SYS_write, event_.get(), &one, sizeof one);
}

void WireDevice::lose_events(unsigned count) {
    std::lock_guard guard(wire_.mutex_);
    events_to_lose_ = count;
}

std::pair<unsigned, unsigned> WireDevice::moderation() const {
    std::lock_guard guard(wire_.mutex_);
    return moderation_;
}

std::uint64_t WireDevice::tso_requests() const {
    std::lock_guard guard(wire_.mutex_);
    return tso_requests_;
}

std::uint64_t WireDevice::inline_requests() const {
    std::lock_guard guard(wire_.mutex_);
    return inline_requests_;
}

}  // namespace vma::verbs::wire
