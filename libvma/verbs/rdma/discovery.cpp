// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/rdma/discovery.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>

#include "libvma/os/proc_file.h"

namespace vma::verbs::rdma {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestLine = 256;  // a name, a number or a GID

std::vector<std::string> names_in(const std::string& directory) {
    std::vector<std::string> names;
    std::error_code error;
    fs::directory_iterator entry(directory, fs::directory_options::skip_permission_denied, error);
    while (!error && entry != fs::directory_iterator()) {
        names.push_back(entry->path().filename().string());
        entry.increment(error);
    }
    std::ranges::sort(names);
    return names;
}

template <class T>
std::optional<T> number(const std::string& text, int base = 10) {
    T value{};
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return value;
}

// Ports are numbered from 1 to 255.
std::optional<std::uint8_t> port_number(const std::string& name) {
    auto value = number<std::uint8_t>(name);
    return value && *value != 0 ? value : std::nullopt;
}

enum class Match { no, yes, other_mac };

// Does the port's GID table have an entry of a netdev with this name? A GID without a MAC (an IPv4 address,
// another kind of IPv6 address) does not speak against the netdev.
Match match_port(const std::string& port, const Netdev& netdev) {
    Match match = Match::no;
    for (const std::string& index : names_in(port + "/gid_attrs/ndevs")) {
        if (read_line(port + "/gid_attrs/ndevs/" + index) != netdev.name) continue;
        MacAddress mac;
        if (!mac_of_gid(read_line(port + "/gids/" + index), mac)) {
            if (match == Match::no) match = Match::yes;
        } else if (mac == netdev.mac) {
            return Match::yes;
        } else {
            match = Match::other_mac;
        }
    }
    return match;
}

// Looks at the function's own netdevs; dev_port counts from 0. `other_mac` becomes true if a netdev of this
// name has another MAC.
std::optional<std::uint8_t> port_by_function(const std::string& device, const Netdev& netdev,
                                             bool& other_mac) {
    const std::string folder = device + "/device/net/" + netdev.name;
    const auto dev_port = number<std::uint8_t>(read_line(folder + "/dev_port"));
    if (!dev_port || *dev_port == 255) return std::nullopt;
    const auto port = static_cast<std::uint8_t>(*dev_port + 1);
    MacAddress mac;
    if (mac_of_gid(read_line(fmt::format("{}/ports/{}/gids/0", device, port)), mac) && mac != netdev.mac) {
        other_mac = true;
        return std::nullopt;
    }
    std::error_code error;
    if (!fs::exists(fmt::format("{}/ports/{}", device, port), error)) return std::nullopt;
    return port;
}

}  // namespace

std::string read_line(const std::string& path) {
    std::string text = os::read_proc_file(path.c_str(), kLongestLine);
    text.resize(std::min(text.find('\n'), text.size()));
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
        text.pop_back();
    return text;
}

std::string sysfs_root() {
    const char* set = geteuid() == getuid() ? getenv("SYSFS_PATH") : nullptr;
    std::string root = set != nullptr ? set : "/sys";
    while (!root.empty() && root.back() == '/') root.pop_back();
    return root;
}

std::vector<std::string> devices(const std::string& root) { return names_in(root + "/class/infiniband"); }

bool mac_of_gid(const std::string& gid, MacAddress& mac) {
    // Eight groups of four digits.
    if (gid.size() != 39) return false;
    std::array<std::uint16_t, 8> group;
    for (std::size_t i = 0; i < group.size(); i++) {
        if (i != 0 && gid[5 * i - 1] != ':') return false;
        auto value = number<std::uint16_t>(gid.substr(5 * i, 4), 16);
        if (!value) return false;
        group[i] = *value;
    }
    // fe80::/64, and the MAC with ff:fe in the middle and the universal bit inverted (RFC 4291, appendix A).
    if (group[0] != 0xfe80 || group[1] != 0 || group[2] != 0 || group[3] != 0) return false;
    if ((group[5] & 0xff) != 0xff || group[6] >> 8 != 0xfe) return false;
    mac = {static_cast<std::uint8_t>((group[4] >> 8) ^ 2), static_cast<std::uint8_t>(group[4]),
           static_cast<std::uint8_t>(group[5] >> 8),       static_cast<std::uint8_t>(group[6]),
           static_cast<std::uint8_t>(group[7] >> 8),       static_cast<std::uint8_t>(group[7])};
    return true;
}

Result<Port> find_port(const std::string& root, const Netdev& netdev) {
    const std::vector<std::string> all = devices(root);
    if (all.empty()) return fail(ENODEV, "");
    bool other_mac = false;
    for (const std::string& name : all) {
        const std::string device = root + "/class/infiniband/" + name;
        for (const std::string& port : names_in(device + "/ports")) {
            const auto number = port_number(port);
            if (!number) continue;
            const Match match = match_port(device + "/ports/" + port, netdev);
            if (match == Match::yes) return Port{name, *number};
            other_mac |= match == Match::other_mac;
        }
        if (auto port = port_by_function(device, netdev, other_mac)) return Port{name, *port};
    }
    if (other_mac)
        return fail(
            ENODEV,
            fmt::format(
                "the RDMA device of {} has another MAC address: it belongs to another network namespace",
                netdev.name));
    return fail(ENODEV, fmt::format("none of the RDMA devices ({}) is the hardware of {}",
                                    fmt::join(all, ", "), netdev.name));
}

}  // namespace vma::verbs::rdma
