// SPDX-License-Identifier: BSD-2-Clause
// The program on one netdev and its maps: attach, flow rules, sockets.
//
// The program is attached by a bpf_link that only this process holds. So the kernel detaches it however the
// process ends, and every flow returns to the kernel.
#pragma once

#include <string>
#include <vector>

#include "libvma/runtime/internal_fd.h"
#include "libvma/verbs/device.h"
#include "libvma/verbs/xdp/steer.h"
#include "libvma/verbs/xdp/steer_load.h"
#include "libvma/verbs/xdp/steer_rules.h"

namespace vma::verbs::xdp {

// By a driver's XDP, by generic XDP, or by tcx: the program copies the frames itself (CopyRings).
enum class Mode { drv, skb, tc };
const char* name_of(Mode mode) noexcept;
// Between two looks at whether a process that ends has let go of the netdev.
void pause_msec() noexcept;

class Steering {
  public:
    // Loads the program and attaches it. EBUSY: another program is attached (the message tells whose). A
    // process that has just ended may still hold the netdev. So attach() waits until `deadline_ns`
    // (CLOCK_MONOTONIC) while no process has announced itself as the holder.
    // `copies`: what Mode::tc needs; it gets the program's maps.
    static Result<Steering> attach(int ifindex, const std::string& name, Mode mode, std::uint64_t deadline_ns,
                                   CopyMaps& copies);

    Result<void> set_config(const MacAddress& mac, std::uint32_t mtu);
    // 3-tuple rules take frames from these sources only; the others pass to the kernel.
    Result<void> set_sources(const net::SourceFilter& sources);
    Result<void> set_socket(std::uint32_t slot, std::uint32_t queue, int xsk_fd);
    // A rule that is not there yet. Any thread.
    Result<void> add(const FlowSpec& spec, std::uint32_t slot);
    // A rule that is there gets another slot.
    Result<void> move(const FlowSpec& spec, std::uint32_t slot);
    void remove(const FlowSpec& spec) noexcept;
    // Takes the program off the netdev, for good.
    void detach() noexcept { link_.reset(); }
    // How many rules there are for this protocol and local port: what the program sees.
    std::uint64_t rules_at(const FlowSpec& spec) const noexcept;

    // The program marks super-frames of datagrams (STEER_DATAGRAMS).
    bool splits() const noexcept { return splits_; }

  private:
    Result<void> adopt(const SteerFds& loaded);
    __u64& count_of(const FlowSpec& spec) const noexcept;
    Result<void> write_hashed(const FlowSpec& spec, std::uint32_t slot, std::uint64_t how) const;
    Result<void> write_config();
    std::vector<net::SourcePrefix> listed_;  // in the map of sources
    steer_config values_{};
    InternalFd program_, link_, xsks_, flows5_, flows3_, config_, sources_, counts_fd_, rules_fd_;
    MappedArray<steer_ports> counts_;
    bool splits_ = false;
    SteerRules rules_;  // all rules but those whose bucket was full, which are in the hash maps
};

}  // namespace vma::verbs::xdp
