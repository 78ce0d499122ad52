// SPDX-License-Identifier: BSD-2-Clause
// Which device serves an interface. First comes an RDMA device whose port it is (or whose port it is a VLAN
// on), then the xdp device where that is allowed. With neither, the kernel serves the interface.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libvma/net/view.h"
#include "libvma/verbs/device.h"

namespace vma::ring {

struct Candidate {
    std::string name;    // for the log, where it comes to nothing and the next one is tried
    int only_after = 0;  // an errno value: tried only where the one before failed with it. 0: always
    std::function<Result<std::unique_ptr<verbs::Device>>()> open;
};

// How long a predecessor that ends may take to let go of an interface: some milliseconds, but for a second
// and more on a host whose processors all have other work.
inline constexpr clock::Nsec kPatience{3'000'000'000};

struct Opening {
    clock::Nsec patience = kPatience;
    unsigned rings = 1;  // that the interface may get: a device that shares memory has it from the beginning
    bool further = false;  // there is a ring already: this one has an eighth of the buffers
};

// In the order in which they are to be tried; the last one is no hardware. The view has to outlive them.
std::vector<Candidate> devices_for(const net::KernelView& view, const net::Link& link,
                                   const Opening& opening = {});

// Is there anything to try at all? `why` says what is wrong with the interface.
bool has_device(const net::Link& link, std::string& why);

}  // namespace vma::ring
