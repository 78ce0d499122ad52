// SPDX-License-Identifier: BSD-2-Clause
// See device.h.
#include "device.h"

#include <linux/bpf.h>
#include <net/if.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "process.h"

namespace testing_support {
namespace {

namespace fs = std::filesystem;

fs::path sysfs_of(const std::string& netns) { return "/dev/shm/" + netns + "-sysfs"; }

bool has_adapters(const std::string& netns) {
    std::error_code error;
    return !netns.empty() && fs::exists(sysfs_of(netns), error);
}

}  // namespace

Device device() {
    static const Device chosen = [] {
        const char* name = getenv("VMA_TEST_DEVICE");
        const std::string_view wanted = name == nullptr ? "" : name;
        if (wanted.empty() || wanted == "xdp") return Device::xdp;
        if (wanted == "rdma") return Device::rdma;
        if (wanted == "mlx5") return Device::mlx5;
        throw std::runtime_error("VMA_TEST_DEVICE is " + std::string(wanted) + ", not xdp, rdma or mlx5");
    }();
    return chosen;
}

std::string device_name() {
    static const char* const kNames[] = {"xdp", "rdma", "mlx5"};
    return kNames[static_cast<int>(device())];
}

bool simulated() { return device() != Device::xdp; }

void make_adapters(const std::string& netns,
                   const std::vector<std::pair<std::string, std::string>>& interfaces) {
    if (!simulated()) return;
    std::vector<std::string> line = {VMA_SIM_SYSFS, sysfs_of(netns)};
    for (const auto& [name, mac] : interfaces) line.push_back(name + "=" + mac);
    tool(line);
}

void remove_adapters(const std::string& netns) {
    std::error_code error;
    fs::remove_all(sysfs_of(netns), error);
}

std::vector<std::string> adapter_environment(const std::string& netns) {
    if (!has_adapters(netns)) return {};
    // Without the adapter there is nothing but the kernel: a suite must not pass over XDP in its place.
    // What an adapter would punish ends the program.
    return {"SYSFS_PATH=" + sysfs_of(netns).string(), "MLX5_SIM_WIRE=netdev", "MLX5_SIM_STRICT=abort",
            "VMA_XDP_INTERFACES=", std::string("VMA_MLX5_DIRECT=") + (device() == Device::mlx5 ? "1" : "0")};
}

std::string adapter_preload(const std::string& netns) {
    return has_adapters(netns) ? ":" VMA_SIM_LIBRARY : "";
}

bool shows_offloading(const std::string& links, const std::string& interface) {
    std::istringstream in(links);
    bool here = false;
    for (std::string line; std::getline(in, line);) {
        if (!line.starts_with(" ")) {  // "5: veth1@if4: <...>" begins an interface
            const std::string name = line.substr(std::min(line.size(), line.find(": ") + 2));
            // The simulator's tap exists as long as a rule redirects frames of the interface to it.
            if (simulated() && name.starts_with("mlx5sim")) return true;
            here = name.starts_with(interface + "@") || name.starts_with(interface + ":");
        }
        if (!simulated() && here && line.find("prog/xdp") != line.npos) return true;
    }
    return false;
}

bool has_tcx_program(const std::string& interface) {
    bpf_attr attr{};
    attr.query.target_fd = if_nametoindex(interface.c_str());
    attr.query.attach_type = kTcxIngress;
    return syscall(SYS_bpf, BPF_PROG_QUERY, &attr, sizeof attr) == 0 && attr.query.prog_cnt != 0;
}

bool set_tcx_value(const std::string& interface, const std::string& name, std::uint32_t value) {
    const auto bpf = [](int command, bpf_attr attr) {
        return static_cast<int>(syscall(SYS_bpf, command, &attr, sizeof attr));
    };
    const auto address = [](auto& what) { return reinterpret_cast<std::uintptr_t>(&what); };
    const auto describe = [&](const Fd& fd, auto& info) {
        bpf_attr attr{};
        attr.info.bpf_fd = static_cast<std::uint32_t>(fd.get());
        attr.info.info_len = sizeof info;
        attr.info.info = address(info);
        return bpf(BPF_OBJ_GET_INFO_BY_FD, attr) == 0;
    };
    std::array<std::uint32_t, 16> programs{};
    bpf_attr query{};
    query.query.target_fd = if_nametoindex(interface.c_str());
    query.query.attach_type = kTcxIngress;
    query.query.prog_ids = address(programs);
    query.query.prog_cnt = programs.size();
    if (bpf(BPF_PROG_QUERY, query) != 0) return false;
    for (const std::uint32_t id : programs) {
        bpf_attr by_id{};
        by_id.prog_id = id;
        const Fd program(id == 0 ? -1 : bpf(BPF_PROG_GET_FD_BY_ID, by_id));
        std::array<std::uint32_t, 64> maps{};
        bpf_prog_info info{};
        info.nr_map_ids = maps.size();
        info.map_ids = address(maps);
        if (program.get() < 0 || !describe(program, info)) continue;
        for (std::size_t i = 0; i < std::min<std::size_t>(info.nr_map_ids, maps.size()); i++) {
            by_id.map_id = maps[i];
            const Fd map(bpf(BPF_MAP_GET_FD_BY_ID, by_id));
            bpf_map_info found{};
            if (!describe(map, found) || name != found.name) continue;
            std::uint32_t key = 0;
            bpf_attr update{};
            update.map_fd = static_cast<std::uint32_t>(map.get());
            update.key = address(key);
            update.value = address(value);
            return bpf(BPF_MAP_UPDATE_ELEM, update) == 0;
        }
    }
    return false;
}

}  // namespace testing_support
