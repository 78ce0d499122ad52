// SPDX-License-Identifier: BSD-2-Clause
// Which device the library has below it in these tests. The environment variable VMA_TEST_DEVICE chooses it:
//   xdp    (or nothing) AF_XDP on the veth interfaces
//   rdma   a simulated mlx5 adapter (tests/support/mlx5_sim) on each of them, by plain verbs:
//   VMA_MLX5_DIRECT=0 mlx5   the same adapter, by the library's own queues
// Nothing else in the support code knows more than this file tells. A namespace "has adapters" when there is
// a directory that looks like sysfs for it; then every program with the library that runs there gets the
// simulator, too.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace testing_support {

enum class Device { xdp, rdma, mlx5 };

// Throws std::runtime_error when VMA_TEST_DEVICE is none of the above.
Device device();
// What the names of its rings begin with in the library's log, before a colon: "xdp", "rdma" or "mlx5".
std::string device_name();
// Is it the simulated adapter?
bool simulated();

// Gives the interfaces of a namespace (name, MAC address) an adapter each. Nothing for the xdp device.
void make_adapters(const std::string& netns,
                   const std::vector<std::pair<std::string, std::string>>& interfaces);
// Also of a namespace that a killed test left behind.
void remove_adapters(const std::string& netns);
// What a program with the library needs in this namespace, "NAME=value"; nothing where there are no adapters.
std::vector<std::string> adapter_environment(const std::string& netns);
// What LD_PRELOAD must have behind the library in this namespace, with the separator before it; nothing where
// there are no adapters.
std::string adapter_preload(const std::string& netns);
// Does the library use the interface now, judged by what `ip -d link show` says of the namespace's
// interfaces?
bool shows_offloading(const std::string& links, const std::string& interface);
inline constexpr auto kTcxIngress = 46;  // BPF_TCX_INGRESS, Linux 6.6
// Does a tcx program take frames of the interface, on the host where this thread is? `ip link` does not show
// it.
bool has_tcx_program(const std::string& interface);
// Sets the first value of such a program's map `name`. False: there is none.
bool set_tcx_value(const std::string& interface, const std::string& name, std::uint32_t value);

}  // namespace testing_support
