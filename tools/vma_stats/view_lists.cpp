// SPDX-License-Identifier: BSD-2-Clause
// Views 4 and 5 and --parameters: plain lists. See views.h.
#include <fmt/format.h>
#include <sys/socket.h>

#include "tools/vma_stats/fields.h"
#include "tools/vma_stats/text.h"
#include "tools/vma_stats/views.h"

namespace vma_stats {

std::string groups_view(const Frame& frame, const Shape& shape) {
    std::string out = fmt::format("VMA Group Membership Information\n{:<36} {:<12} {:<15}", "Group",
                                  "fd number", "interface");
    for (const Field& field : fields_of<layout::GroupBlock>())
        out += fmt::format(" {:>12}", std::string(field.name) + (shape.deltas ? "/s" : ""));
    out += "  served by\n";
    out.append(110, '-') += '\n';
    for (const auto& row : frame.shown(shape.deltas).groups) {
        const layout::GroupBlock& g = row.block;
        if (!shape.sockets.contains(g.fd)) continue;
        std::string group = "[" + host(g.group) + "]";
        if (g.source.family != 0) group += " from " + host(g.source);
        const auto way = static_cast<layout::Path>(g.path & 0xff);
        std::string served = way == layout::Path::offloaded ? "libvma" : std::string(path(g.path & 0xff));
        if (const std::string why = text(g.detail); !why.empty()) served += " (" + why + ")";
        out += fmt::format("{:<36} {:<12} {:<15}", group, g.fd, text(g.interface));
        for (const Field& field : fields_of<layout::GroupBlock>()) {
            const std::uint64_t value = get(g, field);
            out += fmt::format(" {:>12}", shape.deltas ? per_second(value, frame.seconds) : value);
        }
        out += fmt::format("  {}\n", served);
    }
    return out;
}

namespace {

// Both ways through the library, none, or the one that does.
std::string offloaded(const layout::SocketBlock& s) {
    const bool rx = static_cast<layout::Path>(s.rx_path) == layout::Path::offloaded;
    const bool tx = static_cast<layout::Path>(s.tx_path) == layout::Path::offloaded;
    if (rx && tx) return "Yes";
    if (rx) return "Rx";
    return tx ? "Tx" : "No";
}

std::string netstat_address(const layout::Address& address) {
    if (address.family == 0) return "*:*";
    return host(address) + ":" + (address.port == 0 ? "*" : std::to_string(address.port));
}

std::string lower(std::string text) {
    for (char& c : text)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
    return text;
}

}  // namespace

std::string netstat_view(const std::vector<const Snapshot*>& processes, const Shape& shape) {
    constexpr const char* kRow = "{:<5} {:<9} {:>8} {:>8} {:<23} {:<23} {:<12} {:<10} {}\n";
    std::string out = fmt::format(fmt::runtime(kRow), "Proto", "Offloaded", "Recv-Q", "Send-Q",
                                  "Local Address", "Foreign Address", "State", "Inode", "PID/Program name");
    for (const Snapshot* now : processes)
        for (const auto& row : now->sockets) {
            const layout::SocketBlock& s = row.block;
            if (!shape.sockets.contains(s.fd)) continue;
            out += fmt::format(fmt::runtime(kRow), lower(protocol(s)), offloaded(s), s.rx_queue_bytes,
                               s.tx_queue_bytes, netstat_address(s.local), netstat_address(s.peer),
                               tcp_state(s.tcp_state), s.inode,
                               fmt::format("{}/{}", now->header.pid, text(now->header.program)));
        }
    return out;
}

std::string parameters_view(const Snapshot& now) {
    std::size_t name = 4, value = 5;
    for (const auto& row : now.parameters) {
        name = std::max(name, text(row.block.name).size());
        value = std::max(value, text(row.block.value).size());
    }
    std::string out = fmt::format("{:<{}}  {:<{}}  {}\n", "Name", name, "Value", value, "Origin");
    for (const auto& row : now.parameters)
        out += fmt::format("{:<{}}  {:<{}}  {}\n", text(row.block.name), name, text(row.block.value), value,
                           text(row.block.origin));
    return out;
}

}  // namespace vma_stats
