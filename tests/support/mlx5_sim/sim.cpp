// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/mlx5_sim/sim.h"

#include <infiniband/verbs.h>

#include <cstdio>
#include <cstdlib>

#include "tests/support/mlx5_sim/context.h"

namespace mlx5_sim {
namespace {

Device& device_of(const std::string& ibdev) {
    Device* const device = Simulator::get().device(ibdev);
    if (device != nullptr) return *device;
    std::fprintf(stderr, "mlx5_sim: no adapter %s in the tree at SYSFS_PATH=%s\n", ibdev.c_str(),
                 sysfs_path().c_str());
    std::abort();
}

}  // namespace

Nic& nic(const std::string& ibdev) {
    const std::lock_guard lock(Simulator::get().control);
    return device_of(ibdev).nic;
}

void join(const std::string& a, const std::string& b) {
    const std::lock_guard lock(Simulator::get().control);
    join(device_of(a), device_of(b));
}

bool step() {
    Simulator& simulator = Simulator::get();
    if (simulator.engine.threaded()) return false;
    const bool ran = simulator.engine.drain();
    return simulator.turn() || ran;
}

bool settle(unsigned turns) {
    for (unsigned i = 0; i < turns; ++i) {
        if (!step()) return true;
    }
    return false;
}

void set_clock(const std::string& ibdev, std::function<std::uint64_t()> ticks) {
    const std::lock_guard lock(Simulator::get().control);
    device_of(ibdev).clock.set_source(std::move(ticks));
}

void set_port(const std::string& ibdev, bool active) {
    const std::lock_guard lock(Simulator::get().control);
    Device& device = device_of(ibdev);
    device.port_active = active;
    tell_all(device, active ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, 1);
}

void fail_device(const std::string& ibdev) {
    const std::lock_guard lock(Simulator::get().control);
    Device& device = device_of(ibdev);
    Simulator::fail(device);
}

void repair_device(const std::string& ibdev) {
    const std::lock_guard lock(Simulator::get().control);
    device_of(ibdev).dead = false;
}

void fail_qp(const std::string& ibdev, std::uint32_t qpn) {
    const std::lock_guard lock(Simulator::get().control);
    Device& device = device_of(ibdev);
    for (Context* const context : device.contexts) {
        const QpObject* const qp =
            context->qps.find_if([&](const QpObject& candidate) { return candidate.qpn == qpn; });
        if (qp == nullptr) continue;
        device.nic.modify_qp(qpn, QpState::error);
        context->async->post(qp->user_handle, IBV_EVENT_QP_FATAL);
    }
}

void fail_qps(const std::string& ibdev) {
    const std::lock_guard lock(Simulator::get().control);
    Device& device = device_of(ibdev);
    for (Context* const context : device.contexts)
        context->qps.for_each([&](const QpObject& qp) {
            device.nic.modify_qp(qp.qpn, QpState::error);
            context->async->post(qp.user_handle, IBV_EVENT_QP_FATAL);
        });
}

void silence_qps(const std::string& ibdev) {
    const std::lock_guard lock(Simulator::get().control);
    Device& device = device_of(ibdev);
    for (Context* const context : device.contexts)
        context->qps.for_each([&](const QpObject& qp) {
            device.nic.silence_qp(qp.qpn);
            context->async->post(qp.user_handle, IBV_EVENT_QP_FATAL);
        });
}

void fail_cq(const std::string& ibdev, std::uint32_t cqn) {
    const std::lock_guard lock(Simulator::get().control);
    for (Context* const context : device_of(ibdev).contexts) {
        const CqObject* const cq =
            context->cqs.find_if([&](const CqObject& candidate) { return candidate.cqn == cqn; });
        if (cq != nullptr) context->async->post(cq->user_handle, IBV_EVENT_CQ_ERR);
    }
}

std::size_t open_contexts() {
    Simulator& simulator = Simulator::get();
    const std::lock_guard lock(simulator.control);
    simulator.sweep();
    return simulator.contexts();
}

}  // namespace mlx5_sim
