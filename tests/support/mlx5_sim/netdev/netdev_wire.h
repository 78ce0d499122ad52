// SPDX-License-Identifier: BSD-2-Clause
// Connects a simulated adapter to a netdev, as if it were the netdev's hardware: a bifurcated adapter. Frames
// that match a rule of the adapter go to it, all others stay with the kernel, which keeps the netdev with its
// addresses; frames that the adapter sends leave by the netdev. Several processes may share one netdev.
//
// Steering is done by BPF programs on the netdev's tcx hook (netdev_steer.bpf.c), which send frames to a tap
// device of this process; the kernel removes both when the process ends, however it ends. Needs
// CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, Linux 6.6.
#pragma once

#include <expected>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/mlx5_sim/netdev/netdev_steer.h"
#include "tests/support/mlx5_sim/nic/nic.h"

namespace mlx5_sim {

class NetdevWire {
  public:
    // In the network namespace of the calling thread. All descriptors are made, used and closed by raw system
    // calls in the calling thread, which may have a descriptor table of its own: create(), step() of the
    // adapter, turn() and the destructor belong to it. Rules may be made in any thread, and are in force when
    // Nic::create_rule() returns. `nic` must outlive the wire.
    static std::expected<std::unique_ptr<NetdevWire>, std::string> create(Nic& nic,
                                                                          const std::string& netdev);
    ~NetdevWire();
    NetdevWire(const NetdevWire&) = delete;
    NetdevWire& operator=(const NetdevWire&) = delete;

    // Moves frames both ways, without blocking. True if there were any.
    bool turn();
    // Readable when frames for the adapter wait.
    int poll_fd() const { return tap_; }
    // Asks the adapter for its rules, now and whenever they change, as create() does.
    void follow_rules();
    // Frames that could not be sent: longer than the netdev's MTU, or it is down.
    std::uint64_t unsent() const { return unsent_; }

  private:
    explicit NetdevWire(Nic& nic) : nic_(nic) {}
    std::string open(const std::string& netdev);
    void set_rules(const std::vector<Rule>& rules);
    void send(Frame frame);
    bool send_now(const Frame& frame);

    using Row = std::array<std::uint64_t, 8>;  // values and masks of a rule in the table
    Nic& nic_;
    int tap_ = -1, packet_ = -1;
    std::vector<int> held_;                // links: their programs run as long as these are open
    netdev_steer_table* table_ = nullptr;  // shared with the programs
    std::map<Row, std::size_t> rows_;      // where each is in the table
    std::vector<std::size_t> free_;
    std::vector<Frame> waiting_;  // the netdev's queue was full
    std::uint64_t unsent_ = 0;
    std::vector<std::uint8_t> buffer_;
    bool hooked_ = false;
};

}  // namespace mlx5_sim
