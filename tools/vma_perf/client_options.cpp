// SPDX-License-Identifier: BSD-2-Clause
// See client_options.h.
#include "tools/vma_perf/client_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/vma_perf/control.h"
#include "tools/vma_perf/cpus.h"
#include "tools/vma_perf/sizes.h"
#include "tools/vma_perf/transport.h"

namespace vma_perf {
namespace {

std::string transport_names() {
    std::string names;
    for (const TransportType* type : transports())
        names += (names.empty() ? "" : ", ") + std::string(type->name);
    return names;
}

CLI::Validator known_transport() {
    return CLI::Validator(
        [](std::string& name) {
            for (const TransportType* type : transports())
                if (name == type->name) return std::string();
            return fmt::format("{} is none of {}", name, transport_names());
        },
        "");
}

void add_run_options(CLI::App& app, ClientWords& w, bool throughput) {
    Params& p = w.params;
    const auto run = [](CLI::Option* option) { return option->group("Run"); };
    run(app.add_option("-t,--transport", p.transport, "What messages travel by: " + transport_names()))
        ->check(known_transport())
        ->type_name("NAME")
        ->capture_default_str();
    run(app.add_option("-s,--size", w.sizes,
                       "Bytes of a message: 64; one run each: 64,256 or 64:1024 (doubled) or 64:1024:+64; "
                       "drawn for each message: 64-1024"))
        ->type_name("BYTES")
        ->default_val(throughput ? "100" : "64");
    w.seconds = run(app.add_option("-T,--time", p.seconds, "Seconds to measure"))
                    ->type_name("SECONDS")
                    ->capture_default_str();
    w.iterations =
        run(app.add_option("-n,--iterations", p.iterations, "Messages to measure, in place of a time"))
            ->check(tools::in_range(std::uint64_t{1}, std::uint64_t{1} << 50))
            ->type_name("NUMBER");
    run(app.add_option("--warmup", p.warmup, "Seconds before that"))
        ->type_name("SECONDS")
        ->capture_default_str();
    run(app.add_option(
            "-r,--rate", p.rate,
            "Messages per second of all threads together, by a schedule; latencies count from when "
            "each was due. 0: as fast as it goes"))
        ->type_name("NUMBER")
        ->capture_default_str();
    run(app.add_option("-b,--burst", p.burst, "Messages sent at once"))
        ->type_name("NUMBER")
        ->capture_default_str();
    if (!throughput)
        run(app.add_option("-w,--window", p.window,
                           "Requests in flight on each connection (default: a burst; with --rate no limit)"))
            ->check(tools::in_range(1u, 65536u))
            ->type_name("NUMBER");
    run(app.add_option("--threads", p.threads, "Threads on each side"))
        ->type_name("NUMBER")
        ->capture_default_str();
    w.connections = run(app.add_option("-c,--connections", p.connections,
                                       "Connections (or sockets) of all threads together "
                                       "(default: one for each thread and group)"))
                        ->type_name("NUMBER");
    run(app.add_option(
            "--wait", w.wait,
            "How the client waits: blocking, nonblocking, select, poll, epoll (default: blocking, epoll with "
            "several connections on a thread; rc, ud, raw: nonblocking)"))
        ->type_name("HOW");
    run(app.add_option("--server-wait", w.server_wait, "How the server waits (default: as the client)"))
        ->type_name("HOW");
    run(app.add_option("--cpus", w.cpus, "Processors for the client's threads, in turn: 0,2-4"))
        ->type_name("LIST");
    run(app.add_option("--server-cpus", w.server_cpus,
                       "Processors for the server's threads, in place of the server's own --cpus"))
        ->type_name("LIST");
    run(app.add_flag("--verify", p.verify,
                     "Fills messages with a pattern that depends on their number, and checks it"));
    if (!throughput)
        run(app.add_option("--lost-after", p.lost_after,
                           "Seconds after which a request is lost (UDP, UD, raw)"))
            ->type_name("SECONDS")
            ->capture_default_str();
    run(app.add_option("--timeout", p.timeout,
                       "Seconds without an answer, or room to send, after which the run fails"))
        ->type_name("SECONDS")
        ->capture_default_str();
}

void add_socket_options(CLI::App& app, ClientWords& w) {
    SocketParams& s = w.params.sockets;
    const auto socket = [](CLI::Option* option) { return option->group("udp and tcp"); };
    socket(app.add_flag("--connected", s.connected, "udp: connects the client's sockets"));
    socket(app.add_option("--nagle", w.nagle,
                          "tcp: on or off (default: off for ping-pong, on for throughput, as sockperf)"))
        ->check(tools::quiet(CLI::IsMember({"on", "off"})))
        ->type_name("on|off");
    socket(app.add_option("--send-buffer", s.send_buffer, "SO_SNDBUF on both sides"))->type_name("BYTES");
    socket(app.add_option("--receive-buffer", s.receive_buffer, "SO_RCVBUF on both sides"))
        ->type_name("BYTES");
    socket(app.add_option(
               "--group", s.groups,
               "udp, ud: sends to this multicast group, which the server joins; several: connections take "
               "them in turn. The result has loss and order of each"))
        ->type_name("ADDRESS")
        ->delimiter(',')
        ->allow_extra_args(false);
    socket(
        app.add_option("--group-interface", s.group_interface, "Address of the client's interface for them"))
        ->type_name("ADDRESS");
    socket(app.add_option("--group-ttl", s.group_ttl, "Hops that they may take"))
        ->type_name("0-255")
        ->capture_default_str();
    if (w.params.throughput)
        socket(app.add_option("--group-sockets", s.group_sockets,
                              "udp: so many sockets of the server receive each group; each has a copy"))
            ->type_name("1-1024")
            ->capture_default_str();
    socket(
        app.add_flag("--extra-api{zcopy}", s.extra_api,
                     "udp: by libvma's extra API: receives without a copy (zcopy, which it means alone), by "
                     "a callback (callback), sends each --burst with one call (sendmany), or from send "
                     "buffers (send_zcopy)"))
        ->type_name("[=MODE]");
}

void add_verbs_options(CLI::App& app, RdmaParams& r) {
    const auto verbs = [](CLI::Option* option) { return option->group("rc and ud"); };
    verbs(app.add_option("--send-depth", r.send_depth,
                         "Send requests that a queue pair holds (default: 128, fewer of large messages)"))
        ->check(tools::in_range(1u, 32768u))
        ->type_name("NUMBER");
    verbs(app.add_option("--receive-depth", r.receive_depth,
                         "Receives kept posted on each (default: 512, fewer of large messages)"))
        ->check(tools::in_range(1u, 32768u))
        ->type_name("NUMBER");
    verbs(app.add_option("--signal-every", r.signal_every,
                         "Every so many sends ask for a completion; 0: none does, and the send queue "
                         "starves (default: 64, or half the queue)"))
        ->check(tools::in_range(0, 32768))
        ->type_name("NUMBER");
    verbs(app.add_option("--inline", r.max_inline,
                         "Messages up to so many bytes are sent inline, others from registered memory "
                         "(default: what the device can, up to 220)"))
        ->check(tools::in_range(0, 4096))
        ->type_name("BYTES");
    verbs(app.add_flag("--cq-events", r.events,
                       "Waits for completion events in place of polling the completion queue"));
    verbs(app.add_flag("--wr-api", r.builder,
                       "Posts by ibv_wr_start() and its like in place of ibv_post_send()"));
    verbs(
        app.add_option("--retry", r.retry, "rc: transmissions after a timeout before the connection breaks"))
        ->check(tools::in_range(0u, 7u))
        ->type_name("0-7")
        ->capture_default_str();
    verbs(app.add_option("--rnr-retry", r.rnr_retry,
                         "rc: the same when the receiver has no buffer; 7: for ever"))
        ->check(tools::in_range(0u, 7u))
        ->type_name("0-7")
        ->capture_default_str();
    verbs(app.add_option("--rdma-device", r.device,
                         "ud: RDMA device of the client (default: that with its address)"))
        ->type_name("NAME");
    verbs(app.add_option("--gid-index", r.gid_index,
                         "ud: entry of its GID table (default: that with the address)"))
        ->check(tools::in_range(0, 65535))
        ->type_name("NUMBER");
    verbs(app.add_option("--server-rdma-device", r.server_device, "ud: the same for the server"))
        ->type_name("NAME");
    verbs(app.add_option("--server-gid-index", r.server_gid_index, "ud: the same for the server"))
        ->check(tools::in_range(0, 65535))
        ->type_name("NUMBER");
}

void add_raw_options(CLI::App& app, RawParams& r) {
    const auto raw = [](CLI::Option* option) { return option->group("raw"); };
    raw(app.add_option("--device", r.device,
                       "The client's device (default: the one with the address towards the server)"))
        ->type_name("NAME");
    raw(app.add_option("--xdp-mode", r.mode, "skb (generic XDP) or drv (native)"))
        ->check(tools::quiet(CLI::IsMember({"skb", "drv"})))
        ->type_name("skb|drv")
        ->capture_default_str();
}

void add_output_options(CLI::App& app, ClientWords& w, bool throughput) {
    ClientOptions& o = w.options;
    const auto output = [](CLI::Option* option) { return option->group("Output"); };
    w.json = output(app.add_option("--json", w.json_file,
                                   "Writes the result there; without FILE, or -, to standard output"))
                 ->expected(0, 1)
                 ->type_name("[FILE]");
    w.csv = output(app.add_option("--csv", w.csv_file,
                                  "Likewise as comma-separated values, one line for each size"))
                ->expected(0, 1)
                ->type_name("[FILE]");
    output(app.add_flag("--stages", o.stages, "A running table, one line for each interval"));
    w.interval = output(app.add_option("-i,--interval", o.interval, "Seconds of a line of that table"))
                     ->check(tools::in_range(0.01, 3600.0))
                     ->type_name("SECONDS")
                     ->capture_default_str();
    if (!throughput) {
        w.percentile = output(app.add_option("--percentile", o.percentile, "The percentile in that table"))
                           ->check(tools::in_range(0.0, 100.0))
                           ->type_name("0-100")
                           ->capture_default_str();
        output(app.add_flag("--rtt", o.whole_round_trip, "Whole round trips instead of halves"));
        output(app.add_option("--log", o.log, "Writes every round trip there, as comma-separated values"))
            ->type_name("FILE");
        output(app.add_option("--plot", o.plot, "Draws the latencies' percentile curve"))
            ->type_name("FILE.svg");
        output(app.add_option("--plot-with", o.plot_with, "JSON results to draw in the same picture"))
            ->type_name("FILE.json");
    }
    output(app.add_option("--label", o.label, "Name of this result in pictures and comparisons"))
        ->type_name("TEXT");
    output(app.add_flag("-q,--quiet", o.quiet, "No progress on the terminal"));
}

}  // namespace

void add_port(CLI::App& app, std::uint16_t& port) {
    port = kDefaultPort;
    app.add_option("-p,--port", port, "TCP port of the control connection")
        ->type_name("PORT")
        ->capture_default_str();
}

void add_client_options(CLI::App& app, ClientWords& w, bool throughput) {
    w.params.throughput = throughput;
    app.add_option("HOST", w.options.host, "Where vma_perf server runs")->required()->type_name("");
    add_port(app, w.options.port);
    add_run_options(app, w, throughput);
    add_socket_options(app, w);
    add_verbs_options(app, w.params.rdma);
    add_raw_options(app, w.params.raw);
    add_output_options(app, w, throughput);
}

ClientOptions finish_client(ClientWords& w) {
    ClientOptions o = std::move(w.options);
    Params p = w.params;
    if (w.iterations->count() != 0 && w.seconds->count() != 0)
        throw Failure(kUsage, "--iterations: does not go together with --time");
    if (w.connections->count() == 0)
        p.connections = std::max(p.threads, static_cast<unsigned>(p.sockets.groups.size()));
    const TransportType& type = transport(p.transport);
    const bool several = p.connections > p.threads && type.usual_wait == Wait::blocking;
    const Wait usual = several ? Wait::epoll : type.usual_wait;
    p.wait = w.wait.empty() ? usual : wait_from_name(w.wait);
    // A thread of the server blocks on one socket only.
    const Wait usual_there = p.wait == Wait::blocking && p.sockets.group_sockets > 1 ? Wait::epoll : p.wait;
    p.server_wait = w.server_wait.empty() ? usual_there : wait_from_name(w.server_wait);
    p.sockets.delay = w.nagle.empty() ? p.throughput : w.nagle == "on";
    if (!w.cpus.empty()) o.cpus = parse_cpus(w.cpus, "--cpus");
    if (!w.server_cpus.empty()) p.server_cpus = parse_cpus(w.server_cpus, "--server-cpus");
    if (w.json->count() != 0) o.json = w.json_file.empty() ? "-" : w.json_file;
    if (w.csv->count() != 0) o.csv = w.csv_file.empty() ? "-" : w.csv_file;
    if (o.json == "-" && o.csv == "-")
        throw Failure(kUsage, "--json: does not go together with --csv on standard output");
    if (!o.stages && w.interval->count() != 0) throw Failure(kUsage, "--interval: nothing without --stages");
    if (!o.stages && w.percentile != nullptr && w.percentile->count() != 0)
        throw Failure(kUsage, "--percentile: nothing without --stages");
    if (!o.plot_with.empty() && o.plot.empty()) throw Failure(kUsage, "--plot-with: nothing without --plot");
    for (const SizeRange& size : parse_sizes(w.sizes)) {
        p.min_size = size.min;
        p.max_size = size.max;
        // The server's reports make the running table and what comparisons are made of.
        p.interval = p.throughput
                         ? std::clamp(std::min(p.seconds / 40, o.stages ? o.interval / 2 : 1.0), 0.02, 0.25)
                         : 0;
        check_params(p);
        if (p.max_size > type.max_size)
            throw Failure(kUsage,
                          fmt::format("--size: {} carries at most {} bytes", type.name, type.max_size));
        type.check(p);
        o.runs.push_back(p);
    }
    if (o.runs.size() > 1 && !o.log.empty()) throw Failure(kUsage, "--log: for one size only");
    return o;
}

}  // namespace vma_perf
