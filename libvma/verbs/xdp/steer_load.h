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
    bool splits;  // the program marks super-frames of datagrams (STEER_DATAGRAMS)
};

// Returns eight descriptors for the caller to close, or none and the reason. `split`: a program that splits
// is wanted; it needs CAP_PERFMON, too, and Linux 5.17.
Result<SteerFds> load_steer(bool split);

}  // namespace vma::verbs::xdp
