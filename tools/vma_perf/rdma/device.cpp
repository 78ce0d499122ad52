// SPDX-License-Identifier: BSD-2-Clause
// See device.h.
#include "tools/vma_perf/rdma/device.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <string.h>

#include <vector>

#include "tools/vma_perf/status.h"

namespace vma_perf::rdma {
namespace {

// The entry with this GID, RoCE version 2 before others; -1: none.
int find_gid(const std::vector<ibv_gid_entry>& table, std::uint32_t port, const ibv_gid& gid) {
    int found = -1;
    for (const ibv_gid_entry& entry : table) {
        if (entry.port_num != port || memcmp(&entry.gid, &gid, sizeof gid) != 0) continue;
        if (entry.gid_type == IBV_GID_TYPE_ROCE_V2) return static_cast<int>(entry.gid_index);
        if (found < 0) found = static_cast<int>(entry.gid_index);
    }
    return found;
}

// Completes `found` with the first port of its device that fits. False: none.
bool choose_port(DevicePort& found, int gid_index, const ibv_gid& wanted) {
    ibv_device_attr device{};
    if (ibv_query_device(found.context.get(), &device) != 0) return false;
    for (std::uint8_t port = 1; port <= device.phys_port_cnt; port++) {
        ibv_port_attr attr{};
        if (ibv_query_port(found.context.get(), port, &attr) != 0 || attr.state != IBV_PORT_ACTIVE) continue;
        std::vector<ibv_gid_entry> table(static_cast<std::size_t>(attr.gid_tbl_len) * device.phys_port_cnt);
        const ssize_t entries = ibv_query_gid_table(found.context.get(), table.data(), table.size(), 0);
        if (entries < 0) continue;
        table.resize(static_cast<std::size_t>(entries));
        int index = gid_index;
        if (index < 0) index = find_gid(table, port, wanted);
        for (const ibv_gid_entry& entry : table) {
            if (entry.port_num != port || static_cast<int>(entry.gid_index) != index) continue;
            found.port = port;
            found.gid_index = index;
            found.gid = entry.gid;
            found.mtu = 128u << attr.active_mtu;
            return true;
        }
    }
    return false;
}

struct DeviceList {
    int count = 0;
    ibv_device** devices = ibv_get_device_list(&count);
    ~DeviceList() {
        if (devices != nullptr) ibv_free_device_list(devices);
    }
};

}  // namespace

DevicePort open_port(const std::string& name, int gid_index, const std::string& address) {
    const DeviceList list;
    if (list.devices == nullptr || list.count == 0)
        throw Failure(kUnsupported, "there is no RDMA device here");
    const ibv_gid wanted = mapped_gid(address);
    std::string names;
    for (int i = 0; i < list.count; i++) {
        DevicePort found;
        found.name = ibv_get_device_name(list.devices[i]);
        names += " " + found.name;
        if (!name.empty() && found.name != name) continue;
        found.context.reset(ibv_open_device(list.devices[i]));
        if (!found.context) fail_errno("RDMA device " + found.name, kUnsupported);
        if (choose_port(found, gid_index, wanted)) return found;
        if (!name.empty())
            throw Failure(
                kUnsupported,
                gid_index >= 0
                    ? fmt::format("RDMA device {} has no active port with GID index {}", name, gid_index)
                    : fmt::format("RDMA device {} has no active port with address {}", name, address));
    }
    if (!name.empty())
        throw Failure(kUnsupported, fmt::format("there is no RDMA device {}, only{}", name, names));
    throw Failure(kUnsupported,
                  gid_index >= 0 ? fmt::format("no active RDMA device has GID index {}:{}", gid_index, names)
                                 : fmt::format("no active RDMA device has address {}:{}", address, names));
}

ibv_gid mapped_gid(const std::string& address) {
    ibv_gid gid{};
    gid.raw[10] = gid.raw[11] = 0xff;
    inet_pton(AF_INET, address.c_str(), gid.raw + 12);
    return gid;
}

std::string gid_text(const ibv_gid& gid) {
    std::string text;
    for (const std::uint8_t byte : gid.raw) text += fmt::format("{:02x}", byte);
    return text;
}

ibv_gid gid_from_text(const std::string& text) {
    ibv_gid gid{};
    const auto digit = [](char c) {
        return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    };
    bool good = text.size() == 2 * sizeof gid.raw;
    for (std::size_t i = 0; good && i < sizeof gid.raw; i++) {
        const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
        good = high >= 0 && low >= 0;
        gid.raw[i] = static_cast<std::uint8_t>(high << 4 | low);
    }
    if (!good) throw Failure(kVersion, "the other side's GID cannot be read: " + text);
    return gid;
}

}  // namespace vma_perf::rdma
