// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/mlx5_sim/sysfs.h"

#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace mlx5_sim {
namespace fs = std::filesystem;
namespace {

template <class... Args>
std::string format(const char* pattern, Args... args) {
    char text[256];
    std::snprintf(text, sizeof(text), pattern, args...);
    return text;
}

// Six pairs of hexadecimal digits with colons between them, nothing else.
std::optional<MacAddress> parse_mac(std::string_view text) {
    MacAddress mac{};
    if (text.size() != mac.size() * 3 - 1) return {};
    for (std::size_t i = 0; i < mac.size(); ++i) {
        const char* const pair = text.data() + i * 3;
        const auto parsed = std::from_chars(pair, pair + 2, mac[i], 16);
        if (parsed.ec != std::errc{} || parsed.ptr != pair + 2) return {};
        if (i != 0 && pair[-1] != ':') return {};
    }
    return mac;
}

std::string mac_text(const MacAddress& mac) {
    return format("%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]);
}

// Writes files below one directory, and keeps the first error.
class Writer {
  public:
    explicit Writer(fs::path root) : root_(std::move(root)) {}

    void file(const fs::path& name, const std::string& content) {
        directory(name.parent_path());
        std::ofstream out(root_ / name);
        out << content << '\n';
        out.close();
        if (!out) fail(name, "cannot be written");
    }
    void directory(const fs::path& name) {
        std::error_code error;
        fs::create_directories(root_ / name, error);
        if (error) fail(name, error.message());
    }
    // `name` points to `target`, both below the root; the link is relative, so the tree may be moved.
    void link(const fs::path& name, const fs::path& target) {
        directory(name.parent_path());
        std::error_code error;
        fs::create_directory_symlink(target.lexically_relative(name.parent_path()), root_ / name, error);
        if (error) fail(name, error.message());
    }
    const std::string& error() const { return error_; }

  private:
    void fail(const fs::path& name, const std::string& why) {
        if (error_.empty()) error_ = (root_ / name).string() + ": " + why;
    }

    fs::path root_;
    std::string error_;
};

std::string guid_text(const MacAddress& mac) {
    const auto id = eui64(mac, false);
    return format("%02x%02x:%02x%02x:%02x%02x:%02x%02x", id[0], id[1], id[2], id[3], id[4], id[5], id[6],
                  id[7]);
}

void write_port(Writer& out, const fs::path& port, const SysfsDevice& device) {
    const auto id = eui64(device.mac, true);
    const std::string gid = format("fe80:0000:0000:0000:%02x%02x:%02x%02x:%02x%02x:%02x%02x", id[0], id[1],
                                   id[2], id[3], id[4], id[5], id[6], id[7]);
    for (unsigned i = 0; i < kGids; ++i) {
        out.file(port / "gids" / std::to_string(i), gid);
        out.file(port / "gid_attrs/ndevs" / std::to_string(i), device.netdev);
        out.file(port / "gid_attrs/types" / std::to_string(i), i == 0 ? "IB/RoCE v1" : "RoCE v2");
    }
    out.file(port / "pkeys/0", "0xffff");
    out.file(port / "state", "4: ACTIVE");
    out.file(port / "phys_state", "5: LinkUp");
    out.file(port / "link_layer", "Ethernet");
    out.file(port / "rate", "100 Gb/sec (4X EDR)");
    out.file(port / "lid", "0x0");
    out.file(port / "lid_mask_count", "0");
    out.file(port / "sm_lid", "0x0");
    out.file(port / "sm_sl", "0");
    out.file(port / "cap_mask", "0x04010000");
}

void write_device(Writer& out, unsigned index, const SysfsDevice& device) {
    const std::string ibdev = "mlx5_" + std::to_string(index);
    const std::string uverbs = "uverbs" + std::to_string(index);
    const std::string slot = format("0000:%02x:00.0", index + 1);
    const fs::path pci = fs::path("devices/pci0000:00") / slot;

    out.file(pci / "vendor", format("0x%04x", kVendorId));
    out.file(pci / "device", format("0x%04x", kDeviceId));
    out.file(pci / "subsystem_vendor", format("0x%04x", kVendorId));
    out.file(pci / "subsystem_device", "0x0008");
    out.file(pci / "revision", "0x00");
    out.file(pci / "class", "0x020000");
    out.file(pci / "modalias",
             format("pci:v%08Xd%08Xsv%08Xsd00000008bc02sc00i00", kVendorId, kDeviceId, kVendorId));
    out.file(pci / "numa_node", "-1");
    out.file(pci / "local_cpus", "ffffffff");

    const fs::path net = pci / "net" / device.netdev;
    out.file(net / "address", mac_text(device.mac));
    out.file(net / "dev_port", "0");
    out.file(net / "dev_id", "0x0");
    out.link(net / "device", pci);
    out.link(fs::path("class/net") / device.netdev, net);

    const fs::path verbs = pci / "infiniband_verbs" / uverbs;
    out.file(verbs / "dev", format("%u:%u", kUverbsMajor, kUverbsFirstMinor + index));
    out.file(verbs / "ibdev", ibdev);
    out.file(verbs / "abi_version", "1");
    out.link(verbs / "device", pci);
    out.link(fs::path("class/infiniband_verbs") / uverbs, verbs);

    const fs::path infiniband = pci / "infiniband" / ibdev;
    out.file(infiniband / "node_type", "1: CA");
    out.file(infiniband / "node_guid", guid_text(device.mac));
    out.file(infiniband / "sys_image_guid", guid_text(device.mac));
    out.file(infiniband / "node_desc", ibdev + " simulated");
    out.file(infiniband / "fw_ver", "16.35.2000");
    out.file(infiniband / "hw_rev", "0");
    out.file(infiniband / "hca_type", "MT4119");
    out.file(infiniband / "board_id", "SIM0000000001");
    write_port(out, infiniband / "ports/1", device);
    out.link(infiniband / "device", pci);
    out.link(fs::path("class/infiniband") / ibdev, infiniband);
}

std::string read_line(const fs::path& file) {
    std::ifstream in(file);
    std::string line;
    std::getline(in, line);
    return line;
}

}  // namespace

std::array<std::uint8_t, 8> eui64(const MacAddress& mac, bool interface_identifier) {
    const auto first = static_cast<std::uint8_t>(interface_identifier ? mac[0] ^ 2 : mac[0]);
    return {first, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]};
}

std::optional<SysfsDevice> parse_device(std::string_view text) {
    const auto equals = text.find('=');
    if (equals == 0 || equals == std::string_view::npos || equals > 15)
        return {};  // IFNAMSIZ with its final zero is 16
    const std::string_view name = text.substr(0, equals);
    if (name.find('/') != std::string_view::npos || name == "." || name == "..") return {};
    const auto mac = parse_mac(text.substr(equals + 1));
    if (!mac) return {};
    return SysfsDevice{std::string(name), *mac};
}

std::expected<void, std::string> write_sysfs(const std::string& directory,
                                             std::span<const SysfsDevice> devices) {
    if (fs::exists(fs::path(directory) / "class/infiniband_verbs")) {
        return std::unexpected(directory + ": there is such a tree already");
    }
    Writer out{fs::path(directory)};
    out.directory("class/infiniband");
    out.file("class/infiniband_verbs/abi_version", "6");
    for (unsigned i = 0; i < devices.size(); ++i) write_device(out, i, devices[i]);
    if (!out.error().empty()) return std::unexpected(out.error());
    return {};
}

std::optional<Identity> read_identity(const std::string& directory, const std::string& uverbs) {
    const fs::path verbs = fs::path(directory) / "class/infiniband_verbs" / uverbs;
    Identity identity;
    identity.ibdev = read_line(verbs / "ibdev");
    if (identity.ibdev.empty()) return {};
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(verbs / "device/net", error)) {
        identity.netdev = entry.path().filename();
        const auto mac = parse_mac(read_line(entry.path() / "address"));
        if (!mac) return {};
        identity.mac = *mac;
        return identity;
    }
    return {};
}

}  // namespace mlx5_sim
