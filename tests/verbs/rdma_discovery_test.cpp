// SPDX-License-Identifier: BSD-2-Clause
// Which RDMA device is a netdev's: directories made up like sysfs, right and wrong ones.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "libvma/verbs/rdma/discovery.h"

namespace {

using namespace vma::verbs;
using namespace vma::verbs::rdma;
namespace fs = std::filesystem;

constexpr MacAddress kMac = {0x02, 0x00, 0x00, 0x00, 0x00, 0x01},
                     kOtherMac = {0x02, 0x00, 0x00, 0x00, 0x00, 0x02};
const std::string kGid = "fe80:0000:0000:0000:0000:00ff:fe00:0001",
                  kOtherGid = "fe80:0000:0000:0000:0000:00ff:fe00:0002";
const std::string kIpv4Gid = "0000:0000:0000:0000:0000:ffff:c612:0001";

class Discovery : public testing::Test {
  protected:
    Discovery() {
        char name[] = "/tmp/rdma_sysfs.XXXXXX";
        root_ = mkdtemp(name);
    }
    ~Discovery() override { fs::remove_all(root_); }

    void write(const std::string& path, const std::string& text) {
        fs::create_directories(fs::path(root_ + "/" + path).parent_path());
        std::ofstream(root_ + "/" + path) << text;
    }
    // Entry `index` of a port's GID table.
    void gid(const std::string& device, int port, int index, const std::string& netdev,
             const std::string& gid) {
        const std::string folder = "class/infiniband/" + device + "/ports/" + std::to_string(port);
        write(folder + "/gid_attrs/ndevs/" + std::to_string(index), netdev + "\n");
        write(folder + "/gids/" + std::to_string(index), gid + "\n");
    }
    vma::Result<Port> find(const std::string& netdev, const MacAddress& mac = kMac) {
        return find_port(root_, {netdev, mac});
    }
    std::string refusal(const std::string& netdev) {
        auto found = find(netdev);
        EXPECT_FALSE(found);
        return found ? "" : found.error().what;
    }

    std::string root_;
};

TEST_F(Discovery, NothingThere) {
    EXPECT_EQ(refusal("eth0"), "") << "without any RDMA device there is nothing to say";
    fs::create_directories(root_ + "/class/infiniband");
    EXPECT_EQ(refusal("eth0"), "");
    EXPECT_FALSE(find_port(root_ + "/missing", {"eth0", kMac}));
}

TEST_F(Discovery, ByGidTable) {
    gid("mlx5_0", 1, 0, "eth2", kOtherGid);
    gid("mlx5_1", 1, 0, "eth3", kGid);
    gid("mlx5_1", 1, 1, "eth3", kIpv4Gid);
    EXPECT_EQ(*find("eth3"), (Port{"mlx5_1", 1}));
    EXPECT_EQ(*find("eth2", kOtherMac), (Port{"mlx5_0", 1}));
    EXPECT_NE(refusal("eth4").find("(mlx5_0, mlx5_1)"), std::string::npos);
}

TEST_F(Discovery, PortsOfOneDevice) {
    gid("mlx4_0", 1, 0, "eth2", kGid);
    gid("mlx4_0", 2, 0, "eth3", kGid);
    EXPECT_EQ(*find("eth3"), (Port{"mlx4_0", 2}));
}

TEST_F(Discovery, TheSameNameInAnotherNamespace) {
    gid("mlx5_0", 1, 0, "eth0", kOtherGid);
    EXPECT_NE(refusal("eth0").find("another network namespace"), std::string::npos);
    gid("mlx5_1", 1, 0, "eth0", kGid);
    EXPECT_EQ(*find("eth0"), (Port{"mlx5_1", 1}));
}

TEST_F(Discovery, WithoutAGidThatTellsTheMac) {
    gid("mlx5_0", 1, 0, "eth0", kIpv4Gid);
    EXPECT_EQ(*find("eth0"), (Port{"mlx5_0", 1}));
    gid("mlx5_1", 1, 0, "eth1", "");
    EXPECT_EQ(*find("eth1"), (Port{"mlx5_1", 1}));
}

TEST_F(Discovery, ByFunction) {
    write("class/infiniband/mlx4_0/ports/2/state", "4: ACTIVE\n");
    write("class/infiniband/mlx4_0/device/net/eth1/dev_port", "1\n");
    EXPECT_EQ(*find("eth1"), (Port{"mlx4_0", 2}));
    write("class/infiniband/mlx4_0/ports/2/gids/0", kOtherGid + "\n");
    EXPECT_NE(refusal("eth1").find("another network namespace"), std::string::npos);
    write("class/infiniband/mlx4_0/ports/2/gids/0", kGid + "\n");
    EXPECT_EQ(*find("eth1"), (Port{"mlx4_0", 2}));
}

TEST_F(Discovery, ABondThatIsThePort) {
    gid("mlx5_bond_0", 1, 0, "bond0", kGid);
    EXPECT_EQ(*find("bond0"), (Port{"mlx5_bond_0", 1}));
    EXPECT_FALSE(find("eth0")) << "its members are not";
}

TEST_F(Discovery, WhatMakesNoSense) {
    gid("mlx5_0", 0, 0, "eth0", kGid);  // ports count from 1
    gid("mlx5_0", 256, 0, "eth0", kGid);
    write("class/infiniband/mlx5_0/ports/one/gid_attrs/ndevs/0", "eth0\n");
    write("class/infiniband/mlx5_0/device/net/eth0/dev_port", "first\n");
    write("class/infiniband/mlx5_1/device/net/eth0/dev_port", "255\n");
    write("class/infiniband/mlx5_2/device/net/eth0/dev_port", "0\n");  // there is no such port
    write("class/infiniband/mlx5_3", "a file\n");
    write("class/infiniband/mlx5_4/ports", "another\n");
    fs::create_symlink(root_ + "/nowhere", root_ + "/class/infiniband/mlx5_5");
    fs::create_directories(root_ + "/class/infiniband/mlx5_6/ports/1/gid_attrs/ndevs/0");
    EXPECT_FALSE(find("eth0"));
    gid("mlx5_7", 1, 3, "eth0", kGid);
    EXPECT_EQ(*find("eth0"), (Port{"mlx5_7", 1})) << "the rest does not matter";
}

TEST_F(Discovery, EmptyNames) {
    gid("mlx5_0", 1, 0, "", kGid);
    EXPECT_EQ(read_line(root_ + "/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0"), "");
    EXPECT_FALSE(find("eth0"));
}

TEST(Gid, MacInIt) {
    MacAddress mac{};
    EXPECT_TRUE(mac_of_gid("fe80:0000:0000:0000:0202:c9ff:fe10:2a3b", mac));
    EXPECT_EQ(mac, (MacAddress{0x00, 0x02, 0xc9, 0x10, 0x2a, 0x3b}));
    for (const char* text :
         {"", "fe80::1", "fe80:0000:0000:0000:0202:c9ff:ff10:2a3b", "fe80:0000:0000:0001:0202:c9ff:fe10:2a3b",
          "fe80:0000:0000:0000:0202:c9ff:fe10:2a3g", "fe80.0000:0000:0000:0202:c9ff:fe10:2a3b",
          "0000:0000:0000:0000:0000:ffff:c612:0001", "fe80:0000:0000:0000:0202:c9ff:fe10:2a3b0"})
        EXPECT_FALSE(mac_of_gid(text, mac)) << text;
}

TEST(SysfsRoot, AsLibibverbs) {
    const char* before = getenv("SYSFS_PATH");
    const std::string kept = before != nullptr ? before : "";
    setenv("SYSFS_PATH", "/tmp/made/up//", 1);
    EXPECT_EQ(sysfs_root(), "/tmp/made/up");
    unsetenv("SYSFS_PATH");
    EXPECT_EQ(sysfs_root(), "/sys");
    if (before != nullptr) setenv("SYSFS_PATH", kept.c_str(), 1);
}

}  // namespace
