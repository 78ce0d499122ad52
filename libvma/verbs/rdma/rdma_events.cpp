// SPDX-License-Identifier: BSD-2-Clause
// Events of an open RdmaDevice: completion events, asynchronous events, errors and recovery, changes of the
// link.
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "libvma/os/calls.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/runtime.h"
#include "libvma/verbs/rdma/rdma_device.h"

namespace vma::verbs::rdma {

// ---- completion events ----

void RdmaDevice::consume_events(ibv_comp_channel*) noexcept {
    ErrnoAndCancelKept calm;
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    unsigned events = 0;
    while (verbs_.get_cq_event(channel_, &cq, &context) == 0) {
        if (direct_) direct_->event(cq);
        events++;
    }
    if (events != 0) verbs_.ack_cq_events(recv_cq_, events);  // the only CQ with a channel
}

void RdmaDevice::moderate(ibv_cq* cq, std::uint16_t count, std::uint16_t period_usec) noexcept {
    if (!attr_.moderation || failed()) return;
    ErrnoAndCancelKept calm;
    ibv_modify_cq_attr attr{};
    attr.attr_mask = IBV_CQ_ATTR_MODERATE;
    attr.moderate = {std::min(count, moderation_.max_cq_count),
                     std::min(period_usec, moderation_.max_cq_period)};
    ibv_cq* real = cq == facades_.send ? send_cq_ : recv_cq_;
    if (const int error = ibv_modify_cq(real, &attr))
        log::once(log::Level::debug, "{} does not moderate: {}", attr_.name, strerror(error));
}

// ---- errors of the queue pair ----

bool RdmaDevice::to_state(ibv_qp_state state) noexcept {
    ibv_qp_attr attr{};
    attr.qp_state = state;
    int mask = IBV_QP_STATE;
    if (state == IBV_QPS_INIT) {
        attr.port_num = config_.port.port;
        mask |= IBV_QP_PORT;
    }
    const int error = verbs_.modify_qp(qp_, &attr, mask);
    if (error != 0) errno = error;
    return error == 0;
}

// From RESET to RTS. 0 or an errno value.
int RdmaDevice::bring_up() noexcept {
    return to_state(IBV_QPS_INIT) && to_state(IBV_QPS_RTR) && to_state(IBV_QPS_RTS) ? 0 : errno;
}

void RdmaDevice::stop(ibv_qp*) noexcept {
    ErrnoAndCancelKept calm;
    if (!failed() && !to_state(IBV_QPS_ERR))
        log::debug("{}: the queue pair cannot be stopped: {}", attr_.name, strerror(errno));
}

bool RdmaDevice::recover(ibv_qp*) noexcept {
    ErrnoAndCancelKept calm;
    if (failed()) return false;
    if (!to_state(IBV_QPS_RESET) || bring_up() != 0) {
        fail_device(fmt::format("its queue pair cannot be brought back: {}", strerror(errno)));
        return false;
    }
    if (direct_) direct_->reset(facades_.qp);
    if (vlan_) vlan_->reset();
    failure_->recovered_at = clock::monotonic();
    return true;
}

// A driver may not learn that one side of a raw QP has stopped, and show the state that it gave the QP last.
// So a working state convinces only where a recovery may have been the answer to the event.
bool RdmaDevice::stopped(ibv_qp*) noexcept {
    constexpr clock::Msec kEventIsLate{100};
    ErrnoAndCancelKept calm;
    if (failed()) return false;
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    if (verbs_.query_qp(qp_, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state != IBV_QPS_RTS) return true;
    return failure_->recovered_at == clock::Time{} ||
           clock::monotonic() - failure_->recovered_at > kEventIsLate;
}

void RdmaDevice::on_qp_failure(std::function<void()> call) {
    std::lock_guard hold(failure_->lock);
    failure_->qp_call = std::move(call);
}

// ---- asynchronous events ----

void RdmaDevice::watch_async_events() {
    const int flags = os::fcntl(real_->async_fd, F_GETFL, 0);
    os::fcntl(real_->async_fd, F_SETFL, static_cast<unsigned long>(flags | O_NONBLOCK));
    watching_ = true;
    runtime::watch(real_->async_fd, [this] { async_event(); });
}

// Handles one event, on the internal thread, which calls again while more wait.
void RdmaDevice::async_event() noexcept {
    ErrnoAndCancelKept calm;
    ibv_async_event event{};
    if (verbs_.get_async_event(real_, &event) != 0) {
        if (errno == EAGAIN || errno == EINTR) return;
        runtime::unwatch(real_->async_fd);
        fail_device(fmt::format("its events cannot be read: {}", strerror(errno)));
        return;
    }
    const char* name = verbs_.event_type_str(event.event_type);
    std::function<void()> qp_call;
    switch (event.event_type) {
        case IBV_EVENT_DEVICE_FATAL:
            fail_device("the adapter reports a fatal error");
            break;
        case IBV_EVENT_CQ_ERR:
            // The queue was overrun. Only a new queue helps.
            fail_device(fmt::format("a completion queue failed ({})", name));
            break;
        case IBV_EVENT_QP_FATAL:
        case IBV_EVENT_QP_REQ_ERR:
        case IBV_EVENT_QP_ACCESS_ERR: {
            // Completions with an error may arrive as well, and tell the ring, or may not.
            log::once(log::Level::warn, "{}: {}", attr_.name, name);
            std::lock_guard hold(failure_->lock);
            qp_call = failure_->qp_call;
            break;
        }
        case IBV_EVENT_PORT_ERR:
        case IBV_EVENT_PORT_ACTIVE:
            // The netdev's carrier follows, and the library reacts to that.
            if (event.element.port_num == config_.port.port) log::debug("{}: {}", attr_.name, name);
            break;
        default:
            break;
    }
    verbs_.ack_async_event(&event);
    if (qp_call) qp_call();
}

void RdmaDevice::fail_device(const std::string& why) noexcept {
    if (failed_.exchange(true)) return;
    log::error("{} is not used any more, its sockets go to the kernel: {}", attr_.name, why);
    if (flows_) flows_->close();
    std::lock_guard hold(failure_->lock);
    failure_->failed = true;
    tell_failure(failure_);
}

void RdmaDevice::give_up_flows() noexcept {
    if (flows_) flows_->withdraw();
}

void RdmaDevice::on_failure(std::function<void()> call) {
    std::lock_guard hold(failure_->lock);
    failure_->call = std::move(call);
    tell_failure(failure_);
}

// The caller holds the lock. Any thread may have noticed the failure; the internal thread makes the call.
void RdmaDevice::tell_failure(const std::shared_ptr<Failure>& failure) {
    if (!failure->failed || failure->told || !failure->call) return;
    failure->told = true;
    runtime::every(clock::Msec(1), [failure] {
        std::function<void()> call;
        {
            std::lock_guard hold(failure->lock);
            call = failure->call;
        }
        if (call) call();
        return false;
    });
}

// ---- the link ----

void RdmaDevice::link_changed(const MacAddress& mac, std::uint32_t mtu) noexcept {
    ErrnoAndCancelKept calm;
    if (failed()) return;
    attr_.mac = mac;
    attr_.mtu = mtu;
    if (flows_) flows_->set_mac(mac);
    // A frame that does not fit its buffer would stop the queue pair, again and again.
    if (buffer_for(mtu) > attr_.chunk_size)
        fail_device(fmt::format("packets of {} bytes (the new MTU) do not fit its buffers", mtu));
}

}  // namespace vma::verbs::rdma
