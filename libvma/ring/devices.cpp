// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/devices.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "libvma/config/params.h"
#include "libvma/net/vlan_priorities.h"
#include "libvma/ring/lent_memory.h"
#include "libvma/runtime/log.h"
#include "libvma/verbs/rdma/discovery.h"
#include "libvma/verbs/rdma/rdma_device.h"
#include "libvma/verbs/xdp/xdp_device.h"

namespace vma::ring {
namespace {

namespace rdma = verbs::rdma;
constexpr std::uint32_t kLeastFurther = 1024;  // receive requests of a further ring
constexpr const char* kNotNamed = "VMA_XDP_INTERFACES does not name it";

bool name_allowed(const std::string& name) {
    std::string_view list = config::get().xdp_interfaces;
    while (!list.empty()) {
        std::size_t comma = list.find(',');
        std::string pattern(list.substr(0, comma));
        std::size_t from = pattern.find_first_not_of(' '), to = pattern.find_last_not_of(' ');
        if (from != std::string::npos &&
            fnmatch(pattern.substr(from, to - from + 1).c_str(), name.c_str(), 0) == 0)
            return true;
        list = comma == std::string_view::npos ? std::string_view{} : list.substr(comma + 1);
    }
    return false;
}

// Has the interface a port of which this is true?
template <class Is>
bool any_port(const net::KernelView& view, const net::Link& link, Is is) {
    return std::ranges::any_of(
        view.links(), [&](const net::Link& port) { return port.master == link.ifindex && is(port); });
}

// Do its frames come by ports: a bond, a team, a virtual machine's interface with a function of the host's?
bool has_ports(const net::KernelView& view, const net::Link& link) {
    return link.kind != "bridge" && any_port(view, link, [](const net::Link&) { return true; });
}

// Generic mode is faster on veth and spares everyone else on it: a native program there makes the peer stop
// sending super-frames. A NIC's native mode avoids an skb per frame, and only it has zero copy. Generic XDP
// is the last choice: it does not see the tag of a VLAN that the kernel has taken off a frame.
// An XSK takes frames of its own netdev's queues alone, and a native program of a netdev with ports runs on
// these: so it gets none.
std::vector<verbs::xdp::Mode> modes_for(const net::KernelView& view, const net::Link& link) {
    using verbs::xdp::Mode;
    const std::string& mode = config::get().xdp_mode;
    const bool ports = has_ports(view, link);
    if (mode == "drv" && !ports) return {Mode::drv};
    if (mode == "skb") return {Mode::skb};
    if (mode == "tc") return {Mode::tc};
    if (mode == "drv") log::once(log::Level::warn, "{} has ports: VMA_XDP_MODE=auto is used", link.name);
    std::vector<Mode> modes;
    if (link.kind != "veth" && !ports) modes.push_back(Mode::drv);
    // The program's own memory cannot be the tcx program's.
    if (!LentMemory::there()) modes.push_back(Mode::tc);
    modes.push_back(Mode::skb);
    return modes;
}

std::uint32_t send_entries() {
    const config::Params& p = config::get();
    return static_cast<std::uint32_t>(std::max(p.tx_wre, 2 * p.tx_wre_batching));
}

// May frames come from this host itself, by a virtual interface that leaves their checksums partial? A frame
// off a real wire with such a sum is damaged or made up. A bond hands over what any of its ports receives.
bool partial_sums(const net::KernelView& view, net::Link link) {
    if (link.kind == "vlan" && link.lower != 0) view.link(link.lower, link);
    if (link.kind == "bond" || link.kind == "team")
        return any_port(view, link, [&](const net::Link& port) { return partial_sums(view, port); });
    if (!link.kind.empty()) return true;
    std::error_code error;
    const auto driver =
        std::filesystem::read_symlink("/sys/class/net/" + link.name + "/device/driver", error);
    if (error) return true;  // no hardware behind it
    const std::string name = driver.filename();
    return name == "virtio_net" || name == "hv_netvsc" || name == "vmxnet3" ||
           name == "vif";  // the last one is Xen's
}

Result<std::unique_ptr<verbs::Device>> open_xdp(const net::KernelView& view, const net::Link& link,
                                                const Opening& opening) {
    if (!name_allowed(link.name)) return fail(ENODEV, kNotNamed);
    verbs::xdp::XdpConfig config;
    config.name = link.name;
    config.ifindex = link.ifindex;
    config.mac = link.mac;
    config.mtu = link.mtu;
    config.queues = link.rx_queues;
    config.modes = modes_for(view, link);
    config.rx_entries = static_cast<std::uint32_t>(config::get().rx_wre);
    config.tx_entries = send_entries();
    config.partial_sums = partial_sums(view, link);
    config.inside = link.kind == "veth";
    config.rings = opening.rings;
    config.patience_ns = opening.patience.count();
    auto device = verbs::xdp::XdpDevice::open(std::move(config));
    if (!device) return std::unexpected(device.error());
    return std::move(*device);
}

// The port that is the interface's hardware. For a VLAN, that of the interface below it.
Result<rdma::Port> port_of(const net::KernelView& view, const net::Link& link) {
    const std::string root = rdma::sysfs_root();
    // The GID table also names VLANs, so one must not be looked for there.
    net::Link below = link;
    if (link.kind == "vlan" && (link.lower == 0 || !view.link(link.lower, below) || below.kind == "vlan"))
        return fail(ENODEV, "it is a VLAN on something else than an interface of this network namespace");
    auto port = rdma::find_port(root, {below.name, below.mac});
    if (!port && !port.error().what.empty() && below.kind == "bond")
        return fail(ENODEV, fmt::format("no RDMA device stands for the bond {} (RoCE LAG)", below.name));
    return port;
}

rdma::RdmaConfig rdma_config(const rdma::Port& port, const net::Link& link, bool further) {
    const config::Params& p = config::get();
    const auto rx_entries = static_cast<std::uint32_t>(p.rx_wre);
    rdma::RdmaConfig config;
    config.port = port;
    config.netdev = link.name;
    config.ifindex = link.ifindex;
    config.mac = link.mac;
    config.mtu = link.mtu;
    config.vlan = link.vlan;
    if (link.vlan != 0) config.priorities = net::vlan_priorities(link.ifindex);
    config.rx_entries = further ? std::min(rx_entries, std::max(rx_entries / 8, kLeastFurther)) : rx_entries;
    config.tx_entries = send_entries();
    config.max_inline = static_cast<std::uint32_t>(p.tx_max_inline);
    config.rules.tcp_3t = p.tcp_3t_rules != 0;
    config.rules.udp_3t = p.udp_3t_rules != 0;
    config.rules.mc_l2_only = p.eth_mc_l2_only_rules != 0;
    config.hw_ts = static_cast<rdma::Conversion>(p.hw_ts_conversion);
    config.fork = p.fork != 0;
    config.direct.blue_flame = p.bf != 0;
    config.direct.rx_prefetch = static_cast<std::uint32_t>(p.rx_prefetch_bytes);
    config.direct.rx_prefetch_before_poll = static_cast<std::uint32_t>(p.rx_prefetch_bytes_before_poll);
    return config;
}

}  // namespace

std::vector<Candidate> devices_for(const net::KernelView& view, const net::Link& link,
                                   const Opening& opening) {
    std::vector<Candidate> candidates;
    if (auto port = port_of(view, link)) {
        auto add = [&](bool direct, int only_after) {
            rdma::RdmaConfig config = rdma_config(*port, link, opening.further);
            config.partial_sums = partial_sums(view, link);
            config.mlx5_direct = direct;
            candidates.push_back(
                {port->device, only_after, [config]() -> Result<std::unique_ptr<verbs::Device>> {
                     auto device = rdma::RdmaDevice::open(config);
                     if (!device) return std::unexpected(device.error());
                     return std::move(*device);
                 }});
        };
        const bool direct = config::get().mlx5_direct != 0;
        add(direct, 0);
        if (direct) add(false, EOPNOTSUPP);  // its queues may be of a form that only libmlx5 knows
    } else if (!port.error().what.empty()) {
        log::debug("no RDMA device for {}: {}", link.name, port.error().what);
    }
    candidates.push_back({"xdp", 0, [&view, link, opening] { return open_xdp(view, link, opening); }});
    return candidates;
}

bool has_device(const net::Link& link, std::string& why) {
    if (name_allowed(link.name) || !rdma::devices(rdma::sysfs_root()).empty()) return true;
    why = kNotNamed;
    return false;
}

}  // namespace vma::ring
