// SPDX-License-Identifier: BSD-2-Clause
// See top_model.h.
#include "tools/vma_stats/top_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "tools/vma_stats/fields.h"
#include "tools/vma_stats/text.h"

namespace vma_stats {
namespace {

// "receives/sends" in two letters: L libvma, k kernel, - neither yet.
char letter(std::uint8_t path_value) {
    switch (static_cast<layout::Path>(path_value)) {
        case layout::Path::offloaded:
            return 'L';
        case layout::Path::kernel:
            return 'k';
        case layout::Path::undecided:
        case layout::Path::closed:
            break;
    }
    return '-';
}

std::string bytes(double value) { return short_number(value) + "B"; }

}  // namespace

std::string sparkline(const std::deque<double>& values, bool utf8) {
    static constexpr const char* kBlocks[] = {" ",      "\u2581", "\u2582", "\u2583", "\u2584",
                                              "\u2585", "\u2586", "\u2587", "\u2588"};
    static constexpr const char* kAscii[] = {" ", ".", ".", ":", "-", "=", "+", "*", "#"};
    const std::size_t count = std::min(values.size(), kSparkline);
    double top = 0;
    for (std::size_t i = values.size() - count; i < values.size(); i++) top = std::max(top, values[i]);
    const char* const* const steps = utf8 ? kBlocks : kAscii;
    std::string out(kSparkline - count, ' ');
    for (std::size_t i = values.size() - count; i < values.size(); i++) {
        // Anything is more than nothing.
        const int height =
            top > 0 && values[i] > 0 ? std::max(1, static_cast<int>(std::lround(values[i] / top * 8))) : 0;
        out += steps[std::min(height, 8)];
    }
    return out;
}

TopModel::Rates TopModel::rates_of(const layout::SocketBlock& c, double seconds) {
    if (seconds <= 0) return {};
    const auto rate = [&](std::uint64_t a, std::uint64_t b) {
        return (static_cast<double>(a) + static_cast<double>(b)) / seconds;
    };
    return {.rx_packets = rate(c.rx_offload.packets, c.rx_os.packets),
            .rx_bytes = rate(c.rx_offload.bytes, c.rx_os.bytes),
            .tx_packets = rate(c.tx_offload.packets, c.tx_os.packets),
            .tx_bytes = rate(c.tx_offload.bytes, c.tx_os.bytes),
            .drops = rate(c.rx_drop_packets, 0)};
}

void TopModel::take(std::vector<Sample> samples, const Shape& shape) {
    samples_ = std::move(samples);
    sockets_.clear();
    std::map<Key, std::deque<double>> histories;
    for (const Sample& sample : samples_) {
        const Frame& frame = sample.frame;
        for (std::size_t i = 0; i < frame.now.sockets.size(); i++) {
            const layout::SocketBlock& block = frame.now.sockets[i].block;
            if (!shape.sockets.contains(block.fd)) continue;
            // The change has the same rows as the snapshot, once there is one.
            const Rates rates =
                frame.seconds > 0 ? rates_of(frame.change.sockets[i].block, frame.seconds) : Rates{};
            const Key key{sample.pid, block.id};
            std::deque<double>& history =
                histories.try_emplace(key, std::move(histories_[key])).first->second;
            if (frame.seconds > 0) history.push_back(rates.packets());
            if (history.size() > kSparkline) history.pop_front();
            sockets_.push_back({sample.pid, sample.program, block, rates, &history});
        }
    }
    histories_ = std::move(histories);
}

const char* TopModel::sort_name() const {
    static constexpr const char* kNames[] = {"packets", "received bytes", "sent bytes", "drops",
                                             "descriptor"};
    static_assert(std::size(kNames) == kTopSorts);
    return kNames[static_cast<int>(sort)];
}

bool TopModel::before(const SocketLine& a, const SocketLine& b) const {
    const auto order = [](auto x, auto y) { return x < y ? -1 : x > y ? 1 : 0; };
    int compared = 0;
    switch (sort) {
        case TopSort::rate:
            compared = order(b.rates.packets(), a.rates.packets());
            break;
        case TopSort::receive:
            compared = order(b.rates.rx_bytes, a.rates.rx_bytes);
            break;
        case TopSort::send:
            compared = order(b.rates.tx_bytes, a.rates.tx_bytes);
            break;
        case TopSort::drops:
            compared = order(b.rates.drops, a.rates.drops);
            break;
        case TopSort::fd:
            break;
    }
    if (compared == 0) compared = order(std::pair(a.pid, a.block.fd), std::pair(b.pid, b.block.fd));
    return reversed ? compared > 0 : compared < 0;
}

std::string TopModel::title() const {
    Rates all;
    for (const SocketLine& line : sockets_) {
        all.rx_packets += line.rates.rx_packets;
        all.rx_bytes += line.rates.rx_bytes;
        all.tx_packets += line.rates.tx_packets;
        all.tx_bytes += line.rates.tx_bytes;
        all.drops += line.rates.drops;
    }
    const std::string who = samples_.size() == 1
                                ? fmt::format("{} ({})", samples_[0].program, samples_[0].pid)
                                : fmt::format("{} processes", samples_.size());
    return fmt::format("{}, {} socket{}   Rx {}/s {}/s   Tx {}/s {}/s   drops {}/s", who, sockets_.size(),
                       sockets_.size() == 1 ? "" : "s", short_number(all.rx_packets), bytes(all.rx_bytes),
                       short_number(all.tx_packets), bytes(all.tx_bytes), short_number(all.drops));
}

std::string TopModel::heading() const {
    switch (page) {
        case TopPage::sockets:
            return fmt::format(
                "{:>7} {:>4} {:<5} {:<2} {:>7} {:>8} {:>7} {:>8} {:>7} {:<{}} {:<21} {:<21} {}", "PID", "FD",
                "PROTO", "RT", "RX/s", "RXB/s", "TX/s", "TXB/s", "DROP/s", "HISTORY", kSparkline, "LOCAL",
                "PEER", "PROGRAM");
        case TopPage::rings:
            return fmt::format("{:>7} {:>4} {:<15} {:>8} {:>9} {:>8} {:>9} {:>8} {:>8} {:>7} {}", "PID",
                               "RING", "INTERFACE", "RX/s", "RXB/s", "TX/s", "TXB/s", "DROP/s", "IRQ/s",
                               "QUEUE", "DEVICE");
        case TopPage::waiting:
            return fmt::format("{:>7} {:<12} {:>9} {:>9} {:>9} {:>9} {:>8} {:>7} {:>8} {}", "PID", "CALL",
                               "CALLS/s", "VMA/s", "OS/s", "TIMEOUT/s", "ERROR/s", "POLL%", "MEMBERS",
                               "PROGRAM");
        case TopPage::reasons:
            return fmt::format("{:>7} {:>4} {:<5} {:<10} {:<10} {}", "PID", "FD", "PROTO", "RECEIVES",
                               "SENDS", "WHY");
    }
    return "";
}

std::vector<std::string> TopModel::lines() const {
    switch (page) {
        case TopPage::sockets:
            return socket_lines();
        case TopPage::rings:
            return ring_lines();
        case TopPage::waiting:
            return waiting_lines();
        case TopPage::reasons:
            return reason_lines();
    }
    return {};
}

std::vector<std::string> TopModel::socket_lines() const {
    std::vector<SocketLine> sorted = sockets_;
    std::stable_sort(sorted.begin(), sorted.end(), [&](auto& a, auto& b) { return before(a, b); });
    std::vector<std::string> out;
    out.reserve(sorted.size());
    for (const SocketLine& s : sorted)
        out.push_back(fmt::format(
            "{:>7} {:>4} {:<5} {}{} {:>7} {:>8} {:>7} {:>8} {:>7} {} {:<21} {:<21} {}", s.pid, s.block.fd,
            protocol(s.block), letter(s.block.rx_path), letter(s.block.tx_path),
            short_number(s.rates.rx_packets), bytes(s.rates.rx_bytes), short_number(s.rates.tx_packets),
            bytes(s.rates.tx_bytes), short_number(s.rates.drops), sparkline(*s.history, utf8_),
            endpoint(s.block.local), endpoint(s.block.peer), s.program));
    return out;
}

std::vector<std::string> TopModel::ring_lines() const {
    std::vector<std::string> out;
    for (const Sample& sample : samples_) {
        const double seconds = sample.frame.seconds;
        for (const auto& row : sample.frame.shown(seconds > 0).rings) {
            const layout::RingBlock& r = row.block;
            std::uint64_t drops = 0;
            for (const std::uint64_t dropped : r.drops) drops += dropped;
            const auto rate = [&](std::uint64_t value) {
                return seconds > 0 ? static_cast<double>(value) / seconds : 0;
            };
            out.push_back(fmt::format(
                "{:>7} {:>4} {:<15} {:>8} {:>9} {:>8} {:>9} {:>8} {:>8} {:>7} {}", sample.pid, row.number,
                text(r.interface), short_number(rate(r.rx_packets)), bytes(rate(r.rx_bytes)),
                short_number(rate(r.tx_packets)), bytes(rate(r.tx_bytes)), short_number(rate(drops)),
                short_number(rate(r.interrupts_received)), r.cq_queue_length, text(r.device)));
        }
    }
    return out;
}

std::vector<std::string> TopModel::waiting_lines() const {
    std::vector<std::string> out;
    for (const Sample& sample : samples_) {
        const double seconds = sample.frame.seconds;
        for (const auto& row : sample.frame.shown(seconds > 0).muxes) {
            const layout::MuxBlock& m = row.block;
            const auto rate = [&](std::uint64_t value) {
                return short_number(seconds > 0 ? static_cast<double>(value) / seconds : 0);
            };
            std::string name(mux_name(m.kind));
            if (static_cast<layout::Mux>(m.kind) == layout::Mux::epoll)
                name += m.fd >= 0 ? fmt::format("[{}]", m.fd) : "[others]";
            out.push_back(fmt::format("{:>7} {:<12} {:>9} {:>9} {:>9} {:>9} {:>8} {:>7.1f} {:>8} {}",
                                      sample.pid, name, rate(m.calls), rate(m.rx_ready_offload),
                                      rate(m.rx_ready_os), rate(m.timeouts), rate(m.errors),
                                      percent(m.poll_hit, m.poll_miss), m.members, sample.program));
        }
    }
    return out;
}

std::vector<std::string> TopModel::reason_lines() const {
    std::vector<std::string> out;
    for (const SocketLine& s : sockets_) {
        const auto offloaded = [](std::uint8_t way) {
            return static_cast<layout::Path>(way) == layout::Path::offloaded;
        };
        std::string why;
        const auto add = [&](const std::string& part) {
            if (!part.empty() && why.find(part) == why.npos) why += (why.empty() ? "" : "; ") + part;
        };
        if (!offloaded(s.block.rx_path)) add(std::string(reason(s.block.rx_reason)));
        if (!offloaded(s.block.tx_path)) add(std::string(reason(s.block.tx_reason)));
        add(text(s.block.detail));
        add(text(s.block.rule));
        out.push_back(fmt::format("{:>7} {:>4} {:<5} {:<10} {:<10} {}", s.pid, s.block.fd, protocol(s.block),
                                  path(s.block.rx_path), path(s.block.tx_path), why));
    }
    return out;
}

}  // namespace vma_stats
