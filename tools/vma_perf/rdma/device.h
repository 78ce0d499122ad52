// SPDX-License-Identifier: BSD-2-Clause
// Finding the RDMA device of ud: by name, by the IPv4 address in its GID table, or both.
#pragma once

#include <cstdint>
#include <string>

#include "tools/vma_perf/rdma/handles.h"

namespace vma_perf::rdma {

struct DevicePort {
    ContextPtr context;
    std::string name;
    std::uint8_t port = 1;
    int gid_index = 0;
    ibv_gid gid{};
    unsigned mtu = 0;  // bytes of a packet's payload
};

// Opens the device `name` (empty: the first that fits) with entry `gid_index` of its GID table (negative: the
// one of `address`, RoCE version 2 before others). Throws Failure with kUnsupported; its text names the
// devices and entries that exist.
DevicePort open_port(const std::string& name, int gid_index, const std::string& address);

// ::ffff:a.b.c.d, as RoCE maps IPv4. `address` must be valid.
ibv_gid mapped_gid(const std::string& address);
// As 32 hexadecimal digits, and back. Throws Failure with kVersion.
std::string gid_text(const ibv_gid& gid);
ibv_gid gid_from_text(const std::string& text);

}  // namespace vma_perf::rdma
