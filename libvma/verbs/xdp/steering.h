// SPDX-License-Identifier: BSD-2-Clause
// The XDP program on one netdev and its maps: attach, flow rules, sockets.
//
// The program hangs on a bpf_link that only this process holds, so it is detached by the kernel however the process
// ends, and every flow returns to the kernel.
#pragma once

#include <string>

#include "libvma/runtime/internal_fd.h"
#include "libvma/verbs/device.h"

namespace vma::verbs::xdp {

enum class Mode { drv, skb };

class Steering {
  public:
    // Loads the program and attaches it. EBUSY: another program is attached (the message says whose); it is waited for
    // a few milliseconds, since a process that has just ended may still hold it.
    static Result<Steering> attach(int ifindex, const std::string& name, Mode mode);

    Result<void> set_config(const MacAddress& mac, std::uint32_t mtu);
    Result<void> set_socket(std::uint32_t slot, std::uint32_t queue, int xsk_fd);
    Result<void> add(const FlowSpec& spec, std::uint32_t slot);
    void remove(const FlowSpec& spec) noexcept;

  private:
    InternalFd program_, link_, xsks_, flows5_, flows3_, config_;
};

}  // namespace vma::verbs::xdp
