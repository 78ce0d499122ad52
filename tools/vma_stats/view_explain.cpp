// SPDX-License-Identifier: BSD-2-Clause
// --explain: for each socket, which way its data goes and why. See views.h.
#include <fmt/format.h>
#include <sys/socket.h>

#include "tools/vma_stats/text.h"
#include "tools/vma_stats/views.h"

namespace vma_stats {
namespace {

// "bound to 198.18.0.1:5000 and connected to 198.18.0.2:6000"
std::string addresses(const layout::SocketBlock& s) {
    constexpr std::uint32_t kListen = 10;
    const bool local = s.local.family != 0, peer = s.peer.family != 0;
    if (s.tcp_state == kListen) return "listening on " + endpoint(s.local);
    if (local && peer) return "bound to " + endpoint(s.local) + " and connected to " + endpoint(s.peer);
    if (peer) return "connected to " + endpoint(s.peer);
    if (local) return "bound to " + endpoint(s.local);
    return "neither bound nor connected";
}

// Why a direction is not offloaded, with the detail that belongs to the reason.
std::string because(const layout::SocketBlock& s, std::uint16_t reason_value) {
    const std::string detail = text(s.detail);
    const auto kind = static_cast<layout::Reason>(reason_value);
    if (kind == layout::Reason::other)
        return detail.empty() ? "for a reason the library does not name" : detail;
    std::string out(reason(reason_value));
    // The rule has its own sentence.
    if (!detail.empty() && kind != layout::Reason::rule && kind != layout::Reason::not_bound)
        out += " (" + detail + ")";
    return out;
}

std::string direction(const layout::SocketBlock& s, const char* verb, std::uint8_t path_value,
                      std::uint16_t reason_value) {
    switch (static_cast<layout::Path>(path_value)) {
        case layout::Path::offloaded:
            return fmt::format("It {} through libvma.", verb);
        case layout::Path::kernel:
            return fmt::format("It {} through the kernel: {}.", verb, because(s, reason_value));
        case layout::Path::undecided:
            return fmt::format("How it {} is not decided yet: {}.", verb, because(s, reason_value));
        case layout::Path::closed:
            return fmt::format("It {} no more: that direction is closed.", verb);
    }
    return fmt::format("How it {} is unknown: the file holds no such value ({}).", verb, path_value);
}

std::string ring_sentence(const Snapshot& now, const layout::SocketBlock& s) {
    if (s.ring < 0) return "";
    const std::string device = text(s.device);
    for (const auto& row : now.rings)
        if (row.number == static_cast<unsigned>(s.ring))
            return fmt::format("Its ring is number {}, on {}, served by {}.", s.ring,
                               text(row.block.interface), text(row.block.device));
    return fmt::format("Its ring is number {}{}.", s.ring, device.empty() ? "" : ", on " + device);
}

std::string rule_sentence(const layout::SocketBlock& s) {
    const std::string rule = text(s.rule);
    if (rule.empty() || rule == "no rule") return "No rule of libvma.conf matched.";
    return fmt::format("The rule that decided is: {}.", rule);
}

// How much of the traffic the kernel carried after all. A stream has no packets, so bytes are counted.
std::string traffic_sentence(const layout::SocketBlock& s) {
    const bool stream = (s.type & 0xf) == SOCK_STREAM;
    const auto part = [&](const layout::Traffic& offload, const layout::Traffic& os) {
        const std::uint64_t ours = stream ? offload.bytes : offload.packets,
                            kernels = stream ? os.bytes : os.packets;
        return fmt::format("{} of {}", ours, ours + kernels);
    };
    return fmt::format("So far libvma carried {} received and {} sent {}.", part(s.rx_offload, s.rx_os),
                       part(s.tx_offload, s.tx_os), stream ? "bytes" : "packets");
}

// Which groups come to it, and which of them by the kernel.
std::string group_sentences(const Snapshot& now, const layout::SocketBlock& s) {
    std::string out;
    for (const auto& row : now.groups) {
        const layout::GroupBlock& g = row.block;
        if (s.id == 0 || g.socket_id != s.id) continue;
        const bool ours = static_cast<layout::Path>(g.path & 0xff) == layout::Path::offloaded;
        const std::string why = text(g.detail);
        out += fmt::format("  It is a member of {}, which comes through {}{}{}.\n", host(g.group),
                           ours ? "libvma" : "the kernel", why.empty() ? "" : ": ", why);
    }
    return out;
}

bool interesting(const layout::SocketBlock& s) {
    return static_cast<layout::Path>(s.rx_path) != layout::Path::offloaded ||
           static_cast<layout::Path>(s.tx_path) != layout::Path::offloaded;
}

}  // namespace

std::string explain_view(const Snapshot& now, const Shape& shape) {
    std::string out = fmt::format("Process {} ({}), libvma {}:\n", now.header.pid, text(now.header.program),
                                  text(now.header.library));
    unsigned count = 0, partly = 0;
    for (const auto& row : now.sockets) {
        const layout::SocketBlock& s = row.block;
        if (!shape.sockets.contains(s.fd)) continue;
        count++;
        if (interesting(s)) partly++;
        out += fmt::format("\nSocket {} is a {} socket, {}{}.\n", s.fd, protocol(s), addresses(s),
                           s.state == 2 ? "; the program has closed it" : "");
        if (s.rx_path == s.tx_path && s.rx_reason == s.tx_reason)
            out += "  " + direction(s, "sends and receives", s.rx_path, s.rx_reason) + "\n";
        else
            out += "  " + direction(s, "receives", s.rx_path, s.rx_reason) + "\n  " +
                   direction(s, "sends", s.tx_path, s.tx_reason) + "\n";
        out += "  " + rule_sentence(s) + "\n";
        if (const std::string ring = ring_sentence(now, s); !ring.empty()) out += "  " + ring + "\n";
        out += "  " + traffic_sentence(s) + "\n" + group_sentences(now, s);
        if (row.torn) out += "  (This changed while it was read; ask again.)\n";
    }
    out +=
        fmt::format("\n{} socket{}, {} not or not wholly offloaded.", count, count == 1 ? "" : "s", partly);
    if (now.header.sockets_unseen != 0)
        out += fmt::format(" {} more have no statistics of their own: raise VMA_STATS_FD_NUM.",
                           now.header.sockets_unseen);
    return out + "\n";
}

}  // namespace vma_stats
