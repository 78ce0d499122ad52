// SPDX-License-Identifier: BSD-2-Clause
// The sysfs tree in which libibverbs finds the simulated adapters (through SYSFS_PATH), and what the
// simulator itself reads from it: which network device and MAC address stand behind an adapter.
//
// The tree has what libibverbs and programs that look for the adapter of a network device read; files of a
// real one that tell of hardware we do not simulate are left out.
#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace mlx5_sim {

using MacAddress = std::array<std::uint8_t, 6>;

inline constexpr unsigned kVendorId = 0x15b3;  // Mellanox
inline constexpr unsigned kDeviceId = 0x1017;  // ConnectX-5
inline constexpr unsigned kUverbsMajor = 231;  // numbers of the character devices, as the kernel gives them
inline constexpr unsigned kUverbsFirstMinor = 192;
inline constexpr unsigned kGids = 2;  // of the port: the link-local address as RoCE v1, and again as v2

// One adapter with one port.
struct SysfsDevice {
    std::string netdev;
    MacAddress mac{};
};

// "NETDEV=aa:bb:cc:dd:ee:ff"; nothing if it is not that.
std::optional<SysfsDevice> parse_device(std::string_view text);

// Writes the tree below `directory`, which is created if need be and must not have one yet: mlx5_0 and
// uverbs0 for the first device, mlx5_1 and uverbs1 for the second. The error says what could not be written.
std::expected<void, std::string> write_sysfs(const std::string& directory,
                                             std::span<const SysfsDevice> devices);

// An adapter of such a tree.
struct Identity {
    std::string ibdev;  // mlx5_0
    std::string netdev;
    MacAddress mac{};
};
// Reads which adapter the character device `uverbs` (uverbs0) is; nothing if the tree has none of that name.
std::optional<Identity> read_identity(const std::string& directory, const std::string& uverbs);

// The address in network byte order from which GUIDs are made: the MAC address with ff:fe in its middle, and
// the second bit of the first byte turned when it is the identifier of an IPv6 address (RFC 4291, appendix
// A).
std::array<std::uint8_t, 8> eui64(const MacAddress& mac, bool interface_identifier);

}  // namespace mlx5_sim
