// SPDX-License-Identifier: BSD-2-Clause
// See report.h.
#include "tools/vma_trace/report.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>

namespace vma_trace {
namespace {

const char* name_of(Side side) noexcept { return side == Side::send ? "send" : "receive"; }

const char* opcode_name(std::uint8_t opcode) noexcept {
    switch (opcode) {
        case IBV_WR_RDMA_WRITE:
            return "write";
        case IBV_WR_RDMA_WRITE_WITH_IMM:
            return "write_imm";
        case IBV_WR_SEND:
            return "send";
        case IBV_WR_SEND_WITH_IMM:
            return "send_imm";
        case IBV_WR_RDMA_READ:
            return "read";
        case IBV_WR_ATOMIC_CMP_AND_SWP:
            return "compare_swap";
        case IBV_WR_ATOMIC_FETCH_AND_ADD:
            return "fetch_add";
        case IBV_WR_LOCAL_INV:
            return "local_inv";
        case IBV_WR_BIND_MW:
            return "bind_mw";
        case IBV_WR_SEND_WITH_INV:
            return "send_inv";
        case IBV_WR_TSO:
            return "tso";
        case IBV_WR_ATOMIC_WRITE:
            return "atomic_write";
        case IBV_WR_DRIVER1:
            return "driver";
        case kReceived:
            return "receive";
        default:
            return "other";
    }
}

// Bytes in a time are 8 bits in a nanosecond, which is Gbit/s.
double gbit_per_s(std::uint64_t bytes, double ns) noexcept {
    return ns <= 0 ? 0 : static_cast<double>(bytes) * 8 / ns;
}

bool worth_a_line(const WorkQueue& queue) noexcept {
    return load(queue.totals().posted) != 0 || load(queue.totals().unmatched) != 0;
}

double span_ns(const Totals& totals, const TimeScale& time) noexcept {
    const std::uint64_t began = load(totals.began), ended = load(totals.ended);
    return began == 0 || ended < began ? 0 : time.ns(ended - began);
}

struct Percentile {
    const char* name;
    double part;
};
constexpr Percentile kPercentiles[] = {
    {"p50", .5}, {"p90", .9}, {"p99", .99}, {"p99.9", .999}, {"p99.99", .9999}};

void text_row(Output& out, const char* name, const Histogram& values, double per_us) {
    if (values.count() == 0) return;
    const auto us = [&](double value) { return value / per_us; };
    out.print("  {:<13} {:>11.3f} {:>11.3f}", name, us(static_cast<double>(values.min())), us(values.mean()));
    for (const Percentile& p : kPercentiles)
        out.print(" {:>11.3f}", us(static_cast<double>(values.percentile(p.part))));
    out.print(" {:>11.3f}\n", us(static_cast<double>(values.max())));
}

void text_totals(Output& out, const Totals& totals, std::size_t outstanding, double device_ticks_per_ns,
                 const TimeScale& time) {
    const double ns = span_ns(totals, time);
    out.print(
        "  {} posted, {} completed ({} completions), {} under way, {} bytes, {:.3f} s, {:.3f} Gbit/s, {:.0f} "
        "requests/s\n",
        load(totals.posted), load(totals.completed), load(totals.completions), outstanding,
        load(totals.bytes), ns / 1e9, gbit_per_s(load(totals.bytes), ns),
        ns <= 0 ? 0 : static_cast<double>(load(totals.completed)) * 1e9 / ns);
    if (load(totals.errors) + load(totals.unmatched) + load(totals.forgotten) != 0)
        out.print(
            "  {} completions with errors, {} without a known request, {} requests not followed to their "
            "end\n",
            load(totals.errors), load(totals.unmatched), load(totals.forgotten));
    if (totals.latency.count() == 0) return;
    out.print("  {:<13} {:>11} {:>11}", "microseconds", "min", "mean");
    for (const Percentile& p : kPercentiles) out.print(" {:>11}", p.name);
    out.print(" {:>11}\n", "max");
    text_row(out, "latency", totals.latency, time.ticks_per_ns * 1e3);
    text_row(out, "gap", totals.gap, time.ticks_per_ns * 1e3);
    if (device_ticks_per_ns > 0)
        text_row(out, "hardware gap", totals.hardware_gap, device_ticks_per_ns * 1e3);
}

void text_lines(Output& out, const WorkQueue& queue, std::size_t lines, const TimeScale& time) {
    const std::uint64_t end = queue.recorded();
    const std::uint64_t kept = std::min<std::uint64_t>({end, queue.record_room(), lines});
    for (std::uint64_t i = end - kept; i < end; i++) {
        const Record& r = queue.record(i);
        const double latency = time.ns(r.completed - r.posted);
        out.print(
            "  wr_id={} {} {} bytes, posted {:.3f} us, completed {:.3f} us, latency {:.3f} us, {:.3f} "
            "Gbit/s, gap {:.3f} us",
            r.wr_id, opcode_name(r.opcode), r.bytes, time.since_origin(r.posted) / 1e3,
            time.since_origin(r.completed) / 1e3, latency / 1e3, gbit_per_s(r.bytes, latency),
            time.ns(r.gap) / 1e3);
        if (r.hardware_gap != 0 && queue.device_ticks_per_ns > 0)
            out.print(", hardware gap {:.0f} ns",
                      static_cast<double>(r.hardware_gap) / queue.device_ticks_per_ns);
        out.print("{}{}\n", r.signalled ? "" : ", unsignalled", r.status == IBV_WC_SUCCESS ? "" : ", failed");
    }
}

void json_times(Output& out, const char* name, const Histogram& values, double per_us) {
    out.print(",\"{}\":{{\"count\":{}", name, values.count());
    if (values.count() != 0) {
        const auto us = [&](double value) { return value / per_us; };
        out.print(",\"min\":{:.3f},\"mean\":{:.3f}", us(static_cast<double>(values.min())),
                  us(values.mean()));
        for (const Percentile& p : kPercentiles)
            out.print(",\"{}\":{:.3f}", p.name, us(static_cast<double>(values.percentile(p.part))));
        out.print(",\"max\":{:.3f}", us(static_cast<double>(values.max())));
    }
    out.print("}}");
}

void json_totals(Output& out, const Totals& totals, double device_ticks_per_ns, const TimeScale& time) {
    const double ns = span_ns(totals, time);
    out.print(
        "\"posted\":{},\"completed\":{},\"completions\":{},\"bytes\":{},\"errors\":{},\"unmatched\":{},"
        "\"forgotten\":{}",
        load(totals.posted), load(totals.completed), load(totals.completions), load(totals.bytes),
        load(totals.errors), load(totals.unmatched), load(totals.forgotten));
    out.print(",\"seconds\":{:.6f},\"gbit_per_s\":{:.6f}", ns / 1e9, gbit_per_s(load(totals.bytes), ns));
    json_times(out, "latency_us", totals.latency, time.ticks_per_ns * 1e3);
    json_times(out, "gap_us", totals.gap, time.ticks_per_ns * 1e3);
    if (device_ticks_per_ns > 0)
        json_times(out, "hardware_gap_us", totals.hardware_gap, device_ticks_per_ns * 1e3);
}

}  // namespace

void Output::flush() noexcept {
    const int saved = errno;
    for (std::size_t done = 0; done < used_;) {
        const ssize_t n = write(fd_, buffer_ + done, used_ - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        done += static_cast<std::size_t>(n);
    }
    used_ = 0;
    errno = saved;
}

void write_text(Registry& registry, const TimeScale& time, Output& out) {
    out.print("vma_trace: process {}\n", getpid());
    bool any = false;
    registry.each_queue([&](const WorkQueue& queue) {
        if (!worth_a_line(queue)) return;
        any = true;
        out.print("{} {} {} {}\n", queue.device, queue.kind, queue.number, name_of(queue.side()));
        text_totals(out, queue.totals(), queue.outstanding(), queue.device_ticks_per_ns, time);
        text_lines(out, queue, registry.options.lines, time);
    });
    if (registry.retired_queues() != 0) {
        any = true;
        out.print("{} queues that no longer exist, together\n", registry.retired_queues());
        text_totals(out, registry.retired(), 0, 0, time);
    }
    if (!any) out.print("  no work request was posted\n");
    if (registry.strays() != 0) out.print("  {} completions of QPs that are not traced\n", registry.strays());
    if (registry.untraced() != 0) out.print("  {} objects were too many to be traced\n", registry.untraced());
}

void write_json(Registry& registry, const TimeScale& time, Output& out) {
    out.print("{{\"pid\":{},\"strays\":{},\"untraced\":{},\"queues\":[", getpid(), registry.strays(),
              registry.untraced());
    bool first = true;
    registry.each_queue([&](const WorkQueue& queue) {
        if (!worth_a_line(queue)) return;
        out.print("{}{{\"device\":\"{}\",\"kind\":\"{}\",\"qp\":{},\"side\":\"{}\",\"outstanding\":{},",
                  first ? "" : ",", queue.device, queue.kind, queue.number, name_of(queue.side()),
                  queue.outstanding());
        first = false;
        json_totals(out, queue.totals(), queue.device_ticks_per_ns, time);
        out.print("}}");
    });
    out.print("],\"retired\":{{\"queues\":{},", registry.retired_queues());
    json_totals(out, registry.retired(), 0, time);
    out.print("}}}}\n");
}

void write_csv(Registry& registry, const TimeScale& time, Output& out) {
    out.print(
        "device,qp,side,wr_id,opcode,bytes,posted_us,completed_us,latency_us,gbit_per_s,gap_us,hardware_gap_"
        "ns,signalled,status\n");
    registry.each_queue([&](const WorkQueue& queue) {
        const std::uint64_t end = queue.recorded();
        for (std::uint64_t i = end - std::min<std::uint64_t>(end, queue.record_room()); i < end; i++) {
            const Record& r = queue.record(i);
            const double latency = time.ns(r.completed - r.posted);
            const double hardware = queue.device_ticks_per_ns > 0
                                        ? static_cast<double>(r.hardware_gap) / queue.device_ticks_per_ns
                                        : 0;
            out.print("{},{},{},{},{},{},{:.3f},{:.3f},{:.3f},{:.6f},{:.3f},{:.0f},{},{}\n", queue.device,
                      queue.number, name_of(queue.side()), r.wr_id, opcode_name(r.opcode), r.bytes,
                      time.since_origin(r.posted) / 1e3, time.since_origin(r.completed) / 1e3, latency / 1e3,
                      gbit_per_s(r.bytes, latency), time.ns(r.gap) / 1e3, hardware, r.signalled ? 1 : 0,
                      r.status);
        }
    });
}

}  // namespace vma_trace
