// SPDX-License-Identifier: BSD-2-Clause
// Views 1 and 2, and the lines about waiting. See views.h.
#include <fmt/format.h>

#include "tools/vma_stats/text.h"
#include "tools/vma_stats/views.h"

namespace vma_stats {
namespace {

// What libvma carried, the receive queue (view 2 only), what the kernel carried.
#define OFFLOADED "{:<4} {:>4} {:>12} {:>10} {:>10} {:>8} {:>7}"
#define QUEUE " {:>10} {:>10} {:>10}"
#define KERNEL "   {:>10} {:>10} {:>8}\n"
constexpr std::size_t kQueueWidth = 33;

// Numbers of one direction as they are shown: totals, or a second's share.
class Numbers {
  public:
    Numbers(bool deltas, double seconds) : deltas_(deltas), seconds_(seconds) {}
    std::uint64_t operator()(std::uint64_t value) const {
        return deltas_ ? per_second(value, seconds_) : value;
    }
    std::uint64_t kilobytes(std::uint64_t bytes) const { return (*this)(bytes) / 1024; }

  private:
    bool deltas_;
    double seconds_;
};

std::string centred(const std::string& title, std::size_t width) {
    const std::size_t dashes = width > title.size() + 2 ? width - title.size() - 2 : 0;
    return std::string(dashes / 2, '-') + " " + title + " " + std::string(dashes - dashes / 2, '-');
}

std::string heading(const Shape& shape, bool medium) {
    const std::string s = shape.deltas ? "/s" : "", total = shape.deltas ? "" : "total ";
    std::string top = fmt::format("{:<10}{}", "fd", centred(total + "offloaded", 51));
    std::string names =
        fmt::format(OFFLOADED, "", "", "pkt" + s, "Kbyte" + s, "eagain" + s, "error" + s, "poll%");
    if (medium) {
        top += " " + centred("queue pkt", kQueueWidth - 1);
        names += fmt::format(QUEUE, "cur", "max", "drop" + s);
    }
    top += "   " + centred(total + "os", 30) + "\n";
    return top + names + fmt::format(KERNEL, "pkt" + s, "Kbyte" + s, "error" + s);
}

// `queue` and `poll` are blank for what is sent.
std::string line(const std::string& fd, const char* direction, const layout::Traffic& offload,
                 const layout::Traffic& os, const std::string& poll, const std::string& queue,
                 const Numbers& number) {
    return fmt::format(OFFLOADED, fd, direction, number(offload.packets), number.kilobytes(offload.bytes),
                       number(offload.eagain), number(offload.errors), poll) +
           queue + fmt::format(KERNEL, number(os.packets), number.kilobytes(os.bytes), number(os.errors));
}

}  // namespace

std::string BasicView::report(const Frame& frame) {
    const Snapshot& shown = frame.shown(shape_.deltas);
    const Numbers number(shape_.deltas, frame.seconds);
    std::string out;
    const auto put = [&](const std::string& text, int lines) {
        if (lines_ + lines > kLinesForEachHeading) {
            out += heading(shape_, medium_);
            lines_ = 0;
        }
        out += text;
        lines_ += lines;
    };
    for (const auto& row : shown.sockets) {
        const layout::SocketBlock& s = row.block;
        if (!shape_.sockets.contains(s.fd)) continue;
        std::string queue, blank;
        if (medium_) {
            queue = fmt::format(QUEUE, s.rx_queue_packets, s.rx_queue_max_packets, number(s.rx_drop_packets));
            blank.assign(kQueueWidth, ' ');
        }
        const std::string poll = fmt::format("{:.1f}", percent(s.rx_poll_hit, s.rx_poll_miss));
        put(line(std::to_string(s.fd), "Rx:", s.rx_offload, s.rx_os, poll, queue, number) +
                line("", "Tx:", s.tx_offload, s.tx_os, "", blank, number),
            2);
    }
    const auto waiting = mux_lines(frame, shape_.deltas);
    for (std::size_t i = 0; i + 1 < waiting.size(); i += 2) put(waiting[i] + waiting[i + 1], 2);
    put(std::string(94 + (medium_ ? kQueueWidth : 0), '-') + "\n", 1);
    return out;
}

std::vector<std::string> mux_lines(const Frame& frame, bool deltas) {
    const Snapshot& shown = frame.shown(deltas);
    const Numbers number(deltas, frame.seconds);
    std::vector<std::string> lines;
    for (const auto& row : shown.muxes) {
        const layout::MuxBlock& m = row.block;
        if (m.calls == 0 && m.rx_ready_offload == 0 && m.rx_ready_os == 0 && m.timeouts == 0 && m.errors == 0)
            continue;
        std::string name(mux_name(m.kind));
        if (static_cast<layout::Mux>(m.kind) == layout::Mux::epoll)
            name += m.fd >= 0 ? fmt::format("[{}]", m.fd) : "[others]";
        else
            name += "()";
        // The processor's share is a part of passed time: since the last report, or else since the process
        // began.
        double share = -1;
        if (frame.seconds > 0) {
            for (const auto& change : frame.change.muxes)
                if (change.number == row.number)
                    share = static_cast<double>(change.block.polling_ns) / (frame.seconds * 1e7);
        } else if (shown.header.zeroed == 0) {
            const auto age =
                static_cast<double>(shown.realtime_ns) - static_cast<double>(shown.header.started_ns);
            if (age > 0) share = static_cast<double>(m.polling_ns) / age * 100;
        }
        lines.push_back(fmt::format("{} Rx Ready:{}/{} [os/offload]\n", name, number(m.rx_ready_os),
                                    number(m.rx_ready_offload)));
        lines.push_back(fmt::format("Timeouts:{} Errors:{} Poll:{:.2f}% Polling CPU:{}\n", number(m.timeouts),
                                    number(m.errors), percent(m.poll_hit, m.poll_miss),
                                    share < 0 ? "-" : fmt::format("{:.0f}%", share)));
    }
    return lines;
}

}  // namespace vma_stats
