// SPDX-License-Identifier: BSD-2-Clause
// Finds the RDMA device and the port that are a netdev's hardware, as sysfs tells:
//
//   class/infiniband/DEVICE/ports/PORT/gid_attrs/ndevs/N
//       the netdev's name of entry N in the port's GID table
//   class/infiniband/DEVICE/ports/PORT/gids/N
//       that GID; for most entries fe80::/64 with the netdev's MAC in it (EUI-64)
//   class/infiniband/DEVICE/device/net/NETDEV/dev_port
//       the function's netdevs, for devices without the files above
//
// Names repeat: sysfs shows the RDMA devices of all network namespaces, and eth0 exists in each of those. So
// the MAC in the GID has to be the netdev's own. Pure functions over a directory; they skip missing and
// malformed files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "libvma/verbs/device.h"

namespace vma::verbs::rdma {

struct Port {
    std::string device;  // "mlx5_0"
    std::uint8_t port = 1;
    friend bool operator==(const Port&, const Port&) = default;
};

// A netdev to find: its name and MAC.
struct Netdev {
    std::string name;
    MacAddress mac{};
};

// The directory where libibverbs looks for devices: SYSFS_PATH unless the program is set-uid, else /sys;
// without a slash at the end.
std::string sysfs_root();

// The names of all RDMA devices, sorted.
std::vector<std::string> devices(const std::string& root);

// The port whose hardware `netdev` is. Error ENODEV: there is no RDMA device at all (then `what` is empty),
// or none is this netdev's, and `what` tells which devices there are.
Result<Port> find_port(const std::string& root, const Netdev& netdev);

// The MAC in a GID as sysfs writes it ("fe80:0000:0000:0000:0202:c9ff:fe00:0001"). False: the GID holds no
// MAC.
bool mac_of_gid(const std::string& gid, MacAddress& mac);

// A file's first line without blanks at its end; empty if there is none.
std::string read_line(const std::string& path);

}  // namespace vma::verbs::rdma
