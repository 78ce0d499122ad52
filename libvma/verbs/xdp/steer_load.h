// SPDX-License-Identifier: BSD-2-Clause
// Loads the XDP program and its maps, with no more privileges than these need: CAP_BPF and CAP_NET_ADMIN.
#pragma once

#include <linux/bpf.h>

#include "libvma/runtime/error.h"

namespace vma::verbs::xdp {

// bpf(2): returns its result, or a negative errno.
long bpf(int command, bpf_attr& attr) noexcept;

struct SteerFds {
    int program, xsks, flows5, flows3, config, sources, counts, rules;
};

// Returns eight descriptors for the caller to close, or none and the reason.
Result<SteerFds> load_steer();

}  // namespace vma::verbs::xdp
