// SPDX-License-Identifier: BSD-2-Clause
// The tree, the tool that writes it, and a program that is not ours which finds the adapters in it.
#include "tests/support/mlx5_sim/sysfs.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace mlx5_sim::test {
namespace {

class Sysfs : public testing::Test {
  protected:
    Sysfs() {
        char name[] = "/tmp/mlx5_sim_XXXXXX";
        directory_ = std::string(mkdtemp(name)) + "/sys";
    }
    ~Sysfs() override { std::filesystem::remove_all(std::filesystem::path(directory_).parent_path()); }

    std::string line(const std::string& file) const {
        std::ifstream in(directory_ + "/" + file);
        std::string text;
        std::getline(in, text);
        return text;
    }
    // Runs a shell command; what it prints, and how it ended in `status`.
    static std::string run(const std::string& command, int& status) {
        FILE* const out = popen((command + " 2>&1").c_str(), "r");
        std::string text;
        std::array<char, 4096> part{};
        while (const std::size_t bytes = std::fread(part.data(), 1, part.size(), out))
            text.append(part.data(), bytes);
        status = WEXITSTATUS(pclose(out));
        return text;
    }

    std::string directory_;
};

TEST_F(Sysfs, WhatTheToolTakes) {
    const auto device = parse_device("eth0=02:00:00:00:aa:0b");
    ASSERT_TRUE(device);
    EXPECT_EQ(device->netdev, "eth0");
    EXPECT_EQ(device->mac, (MacAddress{2, 0, 0, 0, 0xaa, 0x0b}));
    for (const char* wrong : {"", "eth0", "=02:00:00:00:00:01", "eth0=", "eth0=02:00:00:00:00",
                              "eth0=02:00:00:00:00:01:02", "eth0=02:00:00:00:00:0x", "a/b=02:00:00:00:00:01",
                              "..=02:00:00:00:00:01", "a-name-of-16-let=02:00:00:00:00:01"}) {
        EXPECT_FALSE(parse_device(wrong)) << wrong;
    }
}

TEST_F(Sysfs, TheTree) {
    const SysfsDevice devices[] = {{"eth0", {2, 0, 0, 0, 0, 1}}, {"eth1", {0xb8, 0x59, 0x9f, 1, 2, 3}}};
    ASSERT_TRUE(write_sysfs(directory_, devices));
    EXPECT_EQ(line("class/infiniband_verbs/abi_version"), "6");
    EXPECT_EQ(line("class/infiniband_verbs/uverbs1/ibdev"), "mlx5_1");
    EXPECT_EQ(line("class/infiniband_verbs/uverbs1/dev"), "231:193");
    EXPECT_EQ(line("class/infiniband_verbs/uverbs1/device/vendor"), "0x15b3");
    EXPECT_EQ(line("class/infiniband/mlx5_1/device/device"), "0x1017");
    EXPECT_EQ(line("class/infiniband/mlx5_1/ports/1/gid_attrs/ndevs/0"), "eth1");
    EXPECT_EQ(line("class/infiniband/mlx5_1/ports/1/gids/0"), "fe80:0000:0000:0000:ba59:9fff:fe01:0203");
    EXPECT_EQ(line("class/infiniband/mlx5_0/device/net/eth0/address"), "02:00:00:00:00:01");
    EXPECT_EQ(line("class/infiniband/mlx5_0/ports/1/link_layer"), "Ethernet");
    const auto identity = read_identity(directory_, "uverbs1");
    ASSERT_TRUE(identity);
    EXPECT_EQ(identity->ibdev, "mlx5_1");
    EXPECT_EQ(identity->netdev, "eth1");
    EXPECT_EQ(identity->mac, devices[1].mac);
    EXPECT_FALSE(read_identity(directory_, "uverbs2"));
    // Not twice, and not where nothing can be written.
    EXPECT_FALSE(write_sysfs(directory_, devices));
    EXPECT_FALSE(write_sysfs("/proc/none", devices));
}

TEST_F(Sysfs, DevinfoShowsTheAdapters) {
    if (*SIM_SANITIZERS != '\0') GTEST_SKIP() << "ibv_devinfo has no sanitizer, which the library needs";
    int status = 0;
    const std::string tool = SIM_SYSFS_TOOL;
    EXPECT_NE(run(tool, status).find("usage:"), std::string::npos);
    EXPECT_EQ(status, 2);
    EXPECT_NE(run(tool + " " + directory_ + " eth0", status).find("eth0: not NETDEV="), std::string::npos);
    EXPECT_EQ(status, 2);
    run(tool + " " + directory_ + " eth0=02:00:00:00:00:01 eth1=02:00:00:00:00:02", status);
    ASSERT_EQ(status, 0);

    const std::string program =
        "SYSFS_PATH=" + directory_ + " LD_PRELOAD=" SIM_LIBRARY " timeout 20 ibv_devinfo -v -d ";
    const std::string text = run(program + "mlx5_0", status);
    EXPECT_EQ(status, 0) << text;
    for (const char* expected :
         {"hca_id:\tmlx5_0", "fw_ver:\t\t\t\t16.35.2000", "node_guid:\t\t\t0200:00ff:fe00:0001",
          "vendor_part_id:\t\t\t4119", "phys_port_cnt:\t\t\t1", "RAW_IP_CSUM", "MANAGED_FLOW_STEERING",
          "hca_core_clock:\t\t\t156250kHZ", "IP csum offload", "max_tso:\t\t\t262144", "SUPPORT_RAW_PACKET",
          "max_cq_count:\t65535", "state:\t\t\tPORT_ACTIVE (4)", "link_layer:\t\tEthernet",
          "active_mtu:\t\t1024 (3)", "fe80:0000:0000:0000:0000:00ff:fe00:0001, RoCE v1", "RoCE v2"}) {
        EXPECT_NE(text.find(expected), std::string::npos) << expected << "\nin\n" << text;
    }
    // Without the tree the simulator is not there, and one that the tree has not is not found.
    EXPECT_NE(run("env -u SYSFS_PATH LD_PRELOAD=" SIM_LIBRARY " ibv_devinfo", status).find("Failed"),
              std::string::npos);
    EXPECT_NE(run(program + "mlx5_7", status).find("wasn't found"), std::string::npos);
    // With the simulator's thread all is the same.
    EXPECT_EQ(run("MLX5_SIM_THREAD=1 " + program + "mlx5_0", status), text);
}

}  // namespace
}  // namespace mlx5_sim::test
