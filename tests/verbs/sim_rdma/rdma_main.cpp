// SPDX-License-Identifier: BSD-2-Clause
// Two simulated adapters: mlx5_0 behind sim0, mlx5_1 behind sim1.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>

#include "tests/support/mlx5_sim/sysfs.h"
#include "tests/verbs/sim_rdma/rdma_rig.h"

int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    char directory[] = "/tmp/rdma_device_XXXXXX";
    if (mkdtemp(directory) == nullptr) return 2;
    const mlx5_sim::SysfsDevice devices[] = {{"sim0", rdma_rig::kMacA}, {"sim1", rdma_rig::kMacB}};
    if (const auto written = mlx5_sim::write_sysfs(directory, devices); !written) {
        std::fprintf(stderr, "%s\n", written.error().c_str());
        return 2;
    }
    setenv("SYSFS_PATH", directory, 1);
    const int result = RUN_ALL_TESTS();
    std::filesystem::remove_all(directory);
    return result;
}
