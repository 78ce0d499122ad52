// SPDX-License-Identifier: BSD-2-Clause
// The simulator as a test in the same process sees it. libmlx5_sim.so is linked before libc, or preloaded;
// SYSFS_PATH names a tree that write_sysfs() made; then libibverbs finds the adapters of the tree, and here
// are their other ends.
//
// Environment, read when the first adapter is used:
//   SYSFS_PATH        the tree. Without it nothing is simulated.
//   MLX5_SIM_WIRE     netdev: frames go over the network device that stands behind the adapter; a thread
//   steps MLX5_SIM_THREAD   1: a thread steps, the wire is in the process: mlx5_0 is joined with mlx5_1,
//   mlx5_2 with mlx5_3, and one
//                     without a partner with itself
//   MLX5_SIM_FAIL_AFTER  after so many sent frames the adapter fails, as by fail_device(). What comes over a
//   netdev that is its wire is
//                     lost for 0.2 s; then the driver has the adapter working again, and the netdev is the
//                     kernel's alone
//   MLX5_SIM_RULES_FIRST  when it fails so, the netdev is the kernel's alone at once, and the event comes
//                     50 ms after
//   MLX5_SIM_STALLS   in place of all that, it sends and receives nothing any more, and no event tells
//   MLX5_SIM_COPIES   over a netdev: of a frame each process with a rule for it gets a copy, as adapters do
//                     where the rules are equal. Without it the first process has it
//   MLX5_SIM_COUNTERS  a file: when the process exits, a line is appended for each adapter, "mlx5_0 sent 5
//   doorbells 3 ..."
// With neither a wire nor a thread nothing moves by itself: a test connects the wire (nic().on_transmit(), or
// join()) and steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "tests/support/mlx5_sim/nic/nic.h"

namespace mlx5_sim {

// The adapter of that name (mlx5_0). One that sysfs does not have ends the process with a message: that is a
// fault of the test.
Nic& nic(const std::string& ibdev);
// A cable between two adapters, or from one back into itself. A port that is down loses what comes and goes.
void join(const std::string& a, const std::string& b);

// One turn of all adapters; true if there was anything to do. With a thread it does nothing.
bool step();
// Turns until there is nothing to do. False if after so many there still is.
bool settle(unsigned turns = 10000);

// The adapter's clock in ticks of 6.4 ns (hca_core_clock is 156250 kHz), with which it stamps completions and
// which ibv_query_rt_values_ex() shows; empty: the time again.
void set_clock(const std::string& ibdev, std::function<std::uint64_t()> ticks);

// Asynchronous events, to every context of the adapter, or to the one that owns the object; an object nobody
// has is left out.
void set_port(const std::string& ibdev, bool active);  // IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR
void fail_device(
    const std::string& ibdev);  // IBV_EVENT_DEVICE_FATAL; nothing moves any more, commands answer EIO
void fail_qp(const std::string& ibdev, std::uint32_t qpn);  // IBV_EVENT_QP_FATAL, and the QP goes to error
void fail_qps(const std::string& ibdev);                    // fail_qp() of all
// All QPs of the adapter stop without a completion, and IBV_EVENT_QP_FATAL is all that tells.
void silence_qps(const std::string& ibdev);
void fail_cq(const std::string& ibdev, std::uint32_t cqn);  // IBV_EVENT_CQ_ERR
// As if an administrator had repaired it: commands work again. Objects of before stay as they are.
void repair_device(const std::string& ibdev);

// How many devices the program has open.
std::size_t open_contexts();

}  // namespace mlx5_sim
