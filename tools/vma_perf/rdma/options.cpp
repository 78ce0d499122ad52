// SPDX-License-Identifier: BSD-2-Clause
// The options of rc and ud.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

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

void add_options(CLI::App& app, Params& params) {
    RdmaParams& r = params.rdma;
    const auto rdma = [](CLI::Option* option) { return option->group("rc and ud"); };
    const auto range = [](auto low, auto high) { return CLI::Range(low, high).description(""); };
    rdma(app.add_option("--send-depth", r.send_depth,
                        "Send requests that a queue pair holds (default: 128, fewer of large messages)"))
        ->check(range(1u, 32768u))
        ->type_name("NUMBER");
    rdma(app.add_option("--receive-depth", r.receive_depth,
                        "Receives kept posted on each (default: 512, fewer of large messages)"))
        ->check(range(1u, 32768u))
        ->type_name("NUMBER");
    rdma(app.add_option("--signal-every", r.signal_every,
                        "Every so many sends ask for a completion; 0: none does, and the send queue "
                        "starves (default: 64, or half the queue)"))
        ->check(range(0, 32768))
        ->type_name("NUMBER");
    rdma(app.add_option(
             "--inline", r.max_inline,
             "Messages up to so many bytes are sent inline, others from registered memory (default: "
             "what the device can, up to 220)"))
        ->check(range(0, 4096))
        ->type_name("BYTES");
    rdma(app.add_flag("--cq-events", r.events,
                      "Waits for completion events in place of polling the completion queue"));
    rdma(app.add_flag("--wr-api", r.builder,
                      "Posts by ibv_wr_start() and its like in place of ibv_post_send()"));
    rdma(app.add_option("--retry", r.retry, "rc: transmissions after a timeout before the connection breaks"))
        ->check(range(0u, 7u))
        ->type_name("0-7")
        ->capture_default_str();
    rdma(app.add_option("--rnr-retry", r.rnr_retry,
                        "rc: the same when the receiver has no buffer; 7: for ever"))
        ->check(range(0u, 7u))
        ->type_name("0-7")
        ->capture_default_str();
    rdma(app.add_option("--rdma-device", r.device,
                        "ud: RDMA device of the client (default: that with its address)"))
        ->type_name("NAME");
    rdma(app.add_option("--gid-index", r.gid_index,
                        "ud: entry of its GID table (default: that with the address)"))
        ->check(range(0, 65535))
        ->type_name("NUMBER");
    rdma(app.add_option("--server-rdma-device", r.server_device, "ud: the same for the server"))
        ->type_name("NAME");
    rdma(app.add_option("--server-gid-index", r.server_gid_index, "ud: the same for the server"))
        ->check(range(0, 65535))
        ->type_name("NUMBER");
}

void check_rc(const Params& p) {
    check_both(p);
    expect(p.sockets.groups.empty(), "--group: rc has no multicast; ud and udp have");
    expect(p.rdma.retry <= 7, "--retry: 0 to 7");
    expect(p.rdma.rnr_retry <= 7, "--rnr-retry: 0 to 7");
}

void check_ud(const Params& p) {
    check_both(p);
    expect(p.rdma.gid_index >= -1 && p.rdma.gid_index <= 65535, "--gid-index: 0 to 65535");
    expect(p.rdma.server_gid_index >= -1 && p.rdma.server_gid_index <= 65535,
           "--server-gid-index: 0 to 65535");
}

}  // namespace vma_perf::rdma
