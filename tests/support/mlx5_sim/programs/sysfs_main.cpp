// SPDX-License-Identifier: BSD-2-Clause
// mlx5_sim_sysfs DIR NETDEV=aa:bb:cc:dd:ee:ff ...
// Writes the sysfs tree of simulated adapters, one for each network device: for programs that run with
// SYSFS_PATH=DIR and libmlx5_sim.so preloaded.
#include <cstdio>
#include <vector>

#include "tests/support/mlx5_sim/sysfs.h"

int main(int argc, char** argv) {
    if (argc < 3) {
        std::fprintf(stderr, "usage: mlx5_sim_sysfs DIR NETDEV=aa:bb:cc:dd:ee:ff ...\n");
        return 2;
    }
    std::vector<mlx5_sim::SysfsDevice> devices;
    for (int i = 2; i < argc; ++i) {
        const auto device = mlx5_sim::parse_device(argv[i]);
        if (!device) {
            std::fprintf(stderr, "mlx5_sim_sysfs: %s: not NETDEV=aa:bb:cc:dd:ee:ff\n", argv[i]);
            return 2;
        }
        devices.push_back(*device);
    }
    const auto written = mlx5_sim::write_sysfs(argv[1], devices);
    if (!written) {
        std::fprintf(stderr, "mlx5_sim_sysfs: %s\n", written.error().c_str());
        return 1;
    }
    return 0;
}
