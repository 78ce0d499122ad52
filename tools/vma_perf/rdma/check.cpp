// SPDX-License-Identifier: BSD-2-Clause
// What the options of rc and ud must be.
#include <fmt/format.h>

#include "tools/vma_perf/rdma/lane.h"
#include "tools/vma_perf/rdma/sessions.h"

namespace vma_perf::rdma {
namespace {

void expect(bool holds, const std::string& text) {
    if (!holds) throw Failure(kUsage, text);
}

void check_both(const Params& p) {
    const RdmaParams& r = p.rdma;
    expect(r.send_depth <= 32768, "--send-depth: 1 to 32768");
    expect(r.receive_depth <= 32768, "--receive-depth: 1 to 32768");
    expect(r.signal_every >= -1 && r.signal_every <= 32768, "--signal-every: 0 to 32768");
    expect(r.max_inline >= -1 && r.max_inline <= 4096, "--inline: 0 to 4096 bytes");
    const Depths depths = depths_of(p, 0);
    expect(p.burst <= depths.send,
           fmt::format("--burst: longer than the send queue ({} requests, --send-depth)", depths.send));
    expect(r.signal_every <= static_cast<int>(depths.send),
           fmt::format("--signal-every: more than the send queue holds ({} requests, --send-depth), so it "
                       "would never move on",
                       depths.send));
}

}  // namespace

void check_rc(const Params& p) {
    check_both(p);
    expect(p.sockets.groups.empty(), "--group: rc has no multicast; ud and udp have");
    expect(p.rdma.retry <= 7, "--retry: 0 to 7");
    expect(p.rdma.rnr_retry <= 7, "--rnr-retry: 0 to 7");
}

void check_ud(const Params& p) {
    check_both(p);
    expect(p.sockets.group_sockets == 1, "--group-sockets: for udp");
    expect(p.rdma.gid_index >= -1 && p.rdma.gid_index <= 65535, "--gid-index: 0 to 65535");
    expect(p.rdma.server_gid_index >= -1 && p.rdma.server_gid_index <= 65535,
           "--server-gid-index: 0 to 65535");
}

}  // namespace vma_perf::rdma
