// SPDX-License-Identifier: BSD-2-Clause
// See params.h. The fields stand in one table (visit); sending, reading and comparing come from it.
#include "tools/vma_perf/params.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/vma_perf/cpus.h"
#include "tools/vma_perf/message.h"
#include "tools/vma_perf/status.h"

namespace vma_perf {
namespace {

constexpr std::array<const char*, 5> kWaitNames{"blocking", "nonblocking", "select", "poll", "epoll"};

// Calls visitor(name, field) for every field that is sent.
template <class P, class Visitor>
void visit(P& p, Visitor&& visitor) {
    visitor("throughput", p.throughput);
    visitor("transport", p.transport);
    visitor("min_size", p.min_size);
    visitor("max_size", p.max_size);
    visitor("threads", p.threads);
    visitor("connections", p.connections);
    visitor("window", p.window);
    visitor("burst", p.burst);
    visitor("rate", p.rate);
    visitor("seconds", p.seconds);
    visitor("iterations", p.iterations);
    visitor("warmup", p.warmup);
    visitor("lost_after", p.lost_after);
    visitor("timeout", p.timeout);
    visitor("wait", p.wait);
    visitor("server_wait", p.server_wait);
    visitor("server_cpus", p.server_cpus);
    visitor("verify", p.verify);
    visitor("interval", p.interval);
    visitor("connected", p.sockets.connected);
    visitor("delay", p.sockets.delay);
    visitor("send_buffer", p.sockets.send_buffer);
    visitor("receive_buffer", p.sockets.receive_buffer);
    visitor("groups", p.sockets.groups);
    visitor("group_interface", p.sockets.group_interface);
    visitor("group_ttl", p.sockets.group_ttl);
    visitor("group_sockets", p.sockets.group_sockets);
    visitor("extra_api", p.sockets.extra_api);
    visitor("raw_device", p.raw.device);
    visitor("raw_mode", p.raw.mode);
    visitor("send_depth", p.rdma.send_depth);
    visitor("receive_depth", p.rdma.receive_depth);
    visitor("signal_every", p.rdma.signal_every);
    visitor("max_inline", p.rdma.max_inline);
    visitor("events", p.rdma.events);
    visitor("builder", p.rdma.builder);
    visitor("retry", p.rdma.retry);
    visitor("rnr_retry", p.rdma.rnr_retry);
    visitor("rdma_device", p.rdma.device);
    visitor("server_device", p.rdma.server_device);
    visitor("gid_index", p.rdma.gid_index);
    visitor("server_gid_index", p.rdma.server_gid_index);
}

// nlohmann::json would silently convert 1e12 or -1 to another number.
template <class Number>
Number whole_number(const nlohmann::json& value, const char* name) {
    const auto number = value.get<std::int64_t>();
    if (!value.is_number_integer() || !std::in_range<Number>(number))
        throw Failure(kVersion, fmt::format("{} = {} is out of range", name, value.dump()));
    return static_cast<Number>(number);
}

void expect(bool holds, const std::string& text) {
    if (!holds) throw Failure(kUsage, text);
}

void check_groups(const Params& p) {
    const SocketParams& s = p.sockets;
    expect(s.groups.size() <= p.connections,
           fmt::format("--group: {} groups, so as many --connections are needed", s.groups.size()));
    expect(s.group_sockets >= 1 && s.group_sockets <= 1024, "--group-sockets: 1 to 1024");
    expect(s.group_sockets == 1 || !s.groups.empty(), "--group-sockets: nothing without --group");
    expect(s.group_sockets == 1 || p.throughput,
           "--group-sockets: for throughput; in a ping-pong each socket would answer");
    expect(s.group_sockets * p.connections <= 65536, "--group-sockets: at most 65536 with all --connections");
}

}  // namespace

const char* wait_name(Wait wait) noexcept { return kWaitNames[static_cast<std::size_t>(wait)]; }

Wait wait_from_name(const std::string& name) {
    for (std::size_t i = 0; i < kWaitNames.size(); ++i)
        if (name == kWaitNames[i]) return static_cast<Wait>(i);
    throw Failure(kUsage, name + " is none of blocking, nonblocking, select, poll, epoll");
}

nlohmann::json to_json(const Params& params) {
    nlohmann::json json;
    visit(params, [&](const char* name, const auto& field) {
        if constexpr (std::is_same_v<decltype(field), const Wait&>)
            json[name] = wait_name(field);
        else
            json[name] = field;
    });
    return json;
}

Params params_from_json(const nlohmann::json& json) {
    Params params;
    try {
        visit(params, [&](const char* name, auto& field) {
            const nlohmann::json& value = json.at(name);
            using Field = std::remove_reference_t<decltype(field)>;
            if constexpr (std::is_same_v<Field, Wait>) {
                field = wait_from_name(value.get<std::string>());
            } else if constexpr (std::is_integral_v<Field> && !std::is_same_v<Field, bool>) {
                field = whole_number<Field>(value, name);
            } else if constexpr (std::is_same_v<Field, std::vector<unsigned>>) {
                for (const auto& element : value.get<std::vector<nlohmann::json>>())
                    field.push_back(whole_number<unsigned>(element, name));
            } else {
                value.get_to(field);
            }
        });
        check_params(params);
    } catch (const nlohmann::json::exception& error) {
        throw Failure(kVersion, fmt::format("the client's parameters cannot be read: {}", error.what()));
    } catch (const Failure& error) {
        throw Failure(kVersion, fmt::format("the client's parameters make no sense: {}", error.what()));
    }
    return params;
}

void check_params(const Params& p) {
    expect(p.min_size >= kMinSize, fmt::format("--size: a message has at least {} bytes", kMinSize));
    expect(p.min_size <= p.max_size, "--size: the smallest is larger than the largest");
    expect(p.threads >= 1 && p.threads <= 1024, "--threads: 1 to 1024");
    expect(p.connections >= p.threads, "--connections: fewer than --threads, so a thread would have none");
    expect(p.connections <= 65536, "--connections: at most 65536");
    expect(p.burst >= 1 && p.burst <= 65536, "--burst: 1 to 65536");
    expect(p.window <= 65536, "--window: at most 65536");
    expect(p.window == 0 || p.window >= p.burst,
           "--window: smaller than --burst, so no burst could ever be sent");
    expect(std::isfinite(p.rate) && p.rate >= 0 && p.rate <= 1e9, "--rate: 0 to 1e9 messages per second");
    expect(std::isfinite(p.seconds) && p.seconds > 0 && p.seconds <= 1e7, "--time: more than 0 seconds");
    expect(std::isfinite(p.warmup) && p.warmup >= 0 && p.warmup <= 3600, "--warmup: 0 to 3600 seconds");
    expect(std::isfinite(p.lost_after) && p.lost_after >= 0.001 && p.lost_after <= 3600,
           "--lost-after: 0.001 to 3600 seconds");
    expect(std::isfinite(p.timeout) && p.timeout >= 0.1 && p.timeout <= 3600,
           "--timeout: 0.1 to 3600 seconds");
    for (const unsigned cpu : p.server_cpus)
        expect(cpu < kMaxCpus, fmt::format("--server-cpus: 0 to {}", kMaxCpus - 1));
    expect(std::isfinite(p.interval) && p.interval >= 0 && p.interval <= 3600,
           "--interval: 0.01 to 3600 seconds");
    expect(p.sockets.send_buffer >= 0, "--send-buffer: at least 0 bytes");
    expect(p.sockets.receive_buffer >= 0, "--receive-buffer: at least 0 bytes");
    expect(p.sockets.group_ttl >= 0 && p.sockets.group_ttl <= 255, "--group-ttl: 0 to 255");
    const std::string& extra = p.sockets.extra_api;
    expect(extra.empty() || extra == "zcopy" || extra == "callback" || extra == "sendmany" ||
               extra == "send_zcopy",
           "--extra-api: zcopy, callback, sendmany or send_zcopy");
    check_groups(p);
}

}  // namespace vma_perf
