// SPDX-License-Identifier: BSD-2-Clause
// Which devices are tried for an interface, and in which order.
#include <gmock/gmock.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "libvma/ring/devices.h"

namespace {

using namespace vma;
using testing::ElementsAre;
namespace fs = std::filesystem;

// Links only.
struct Links final : net::KernelView {
    std::map<int, net::Link> all;
    int fd() const noexcept override { return -1; }
    void process() override {}
    Result<net::Route> route(const net::RouteQuery&) override { return net::Route{}; }
    net::Neighbour neighbour(int, in_addr_t) const override { return {}; }
    bool link(int ifindex, net::Link& out) const override {
        auto found = all.find(ifindex);
        if (found != all.end()) out = found->second;
        return found != all.end();
    }
    void solicit(int, in_addr_t) noexcept override {}
    std::vector<net::Link> links() const override { return {}; }
    std::vector<net::LocalAddress> addresses() const override { return {}; }
    bool is_local(in_addr_t, int*) const override { return false; }
};

class RingDevices : public testing::Test {
  protected:
    RingDevices() {
        char name[] = "/tmp/ring_devices.XXXXXX";
        root_ = mkdtemp(name);
        if (const char* set = getenv("SYSFS_PATH")) before_ = set;
        setenv("SYSFS_PATH", root_.c_str(), 1);
        net::Link eth;
        eth.ifindex = 3;
        eth.name = "eth2";
        eth.mac = {2, 0, 0, 0, 0, 1};
        view_.all[3] = eth;
        net::Link vlan = eth;
        vlan.ifindex = 7;
        vlan.name = "eth2.100";
        vlan.kind = "vlan";
        vlan.vlan = 100;
        vlan.lower = 3;
        view_.all[7] = vlan;
    }
    ~RingDevices() override {
        before_.empty() ? unsetenv("SYSFS_PATH") : setenv("SYSFS_PATH", before_.c_str(), 1);
        fs::remove_all(root_);
    }
    void announce(const std::string& netdev, int index) {
        const std::string port = root_ + "/class/infiniband/mlx5_0/ports/1";
        fs::create_directories(port + "/gid_attrs/ndevs");
        fs::create_directories(port + "/gids");
        std::ofstream(port + "/gid_attrs/ndevs/" + std::to_string(index)) << netdev << "\n";
        std::ofstream(port + "/gids/" + std::to_string(index)) << "fe80:0000:0000:0000:0000:00ff:fe00:0001\n";
    }
    std::vector<std::string> tried(int ifindex) {
        std::vector<std::string> names;
        for (const auto& candidate : ring::devices_for(view_, view_.all.at(ifindex)))
            names.push_back(candidate.name + (candidate.only_after != 0 ? " again" : ""));
        return names;
    }

    std::string root_, before_;
    Links view_;
};

TEST_F(RingDevices, WithoutRdma) {
    EXPECT_THAT(tried(3), ElementsAre("xdp"));
    EXPECT_THAT(tried(7), ElementsAre("xdp"));
}

TEST_F(RingDevices, HardwareFirst) {
    announce("eth2", 0);
    EXPECT_THAT(tried(3), ElementsAre("mlx5_0", "mlx5_0 again", "xdp"));
    view_.all[3].mac[5] = 9;
    EXPECT_THAT(tried(3), ElementsAre("xdp")) << "the name is that of another namespace";
}

TEST_F(RingDevices, VlanOnHardware) {
    announce("eth2", 0);
    announce("eth2.100", 1);
    EXPECT_THAT(tried(7), ElementsAre("mlx5_0", "mlx5_0 again", "xdp"));
    view_.all[7].lower = 0;
    EXPECT_THAT(tried(7), ElementsAre("xdp")) << "below it is another namespace's";
    view_.all[7].lower = 12;
    EXPECT_THAT(tried(7), ElementsAre("xdp")) << "nothing is known of what is below it";
    view_.all[7].lower = 3;
    view_.all[3].kind = "vlan";
    EXPECT_THAT(tried(7), ElementsAre("xdp")) << "a VLAN on a VLAN has two tags";
}

TEST_F(RingDevices, Bonds) {
    view_.all[3].kind = "bond";
    view_.all[3].name = "bond0";
    announce("eth0", 0);
    EXPECT_THAT(tried(3), ElementsAre("xdp"));
    announce("bond0", 1);
    EXPECT_THAT(tried(3), ElementsAre("mlx5_0", "mlx5_0 again", "xdp"));
}

TEST_F(RingDevices, NamesAreOfTheXdpDeviceOnly) {
    std::string why;
    EXPECT_TRUE(ring::has_device(view_.all[3], why)) << "the default names all";
}

}  // namespace
