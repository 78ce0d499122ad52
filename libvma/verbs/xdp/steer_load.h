// SPDX-License-Identifier: BSD-2-Clause
// Loads the XDP program or the tcx program, and its maps, with no more privileges than these need: CAP_BPF
// and CAP_NET_ADMIN.
#pragma once

#include <linux/bpf.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "libvma/bpf/object.h"
#include "libvma/runtime/error.h"
#include "libvma/runtime/internal_fd.h"

namespace vma::verbs::xdp {

// The programs' name.
inline constexpr std::string_view kProgramName = "vma_steer";

using vma::bpf::bpf;
using vma::bpf::update_map;

// What the tcx program has of its own. `sizes`: entries, powers of two but for `received`.
struct CopySizes {
    std::uint32_t posted = 0, received = 0;
};
struct CopyMaps {
    CopySizes sizes;
    InternalFd rings, posted, received, memory, wakes;
};

struct SteerFds {
    int program, xsks, flows5, flows3, config, sources, counts, rules;
    bool splits;  // the program marks super-frames of datagrams (STEER_DATAGRAMS)
};

// Which XDP program. `splits` needs CAP_PERFMON, too, and Linux 5.17; load_steer() may fall back to `plain`.
// `tags` needs Linux 6.8, and a native driver: it asks the device for the tag of a VLAN.
enum class Steer { plain, splits, tags };

// Returns eight descriptors for the caller to close, or none and the reason. `ifindex`: of Steer::tags, the
// only device that the program can be attached to.
Result<SteerFds> load_steer(Steer which, int ifindex = 0);
// The same for the tcx program, whose own maps `copies` gets (its `sizes` are set).
Result<SteerFds> load_steer_copy(CopyMaps& copies);

// Maps for those of the tcx program that hold maps: `count` chunks, which user space may map, and the
// ring buffer of a slot. A descriptor, or a negative errno.
long make_chunks(std::size_t count) noexcept;
long make_wake() noexcept;

}  // namespace vma::verbs::xdp
