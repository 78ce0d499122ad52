// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/net/source_routes.h"

#include <fcntl.h>
#include <linux/rtnetlink.h>
#include <stdlib.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "libvma/net/decode.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/log.h"

namespace vma::net {

SourceFilter SourceRoutes::filter(const Link& link, const std::vector<LocalAddress>& addresses,
                                  bool own_rules) {
    const std::lock_guard hold(lock_);
    const long rp_filter = std::max(setting("all/rp_filter"), setting(link.name + "/rp_filter"));
    const bool accept_local = setting("all/accept_local") != 0 || setting(link.name + "/accept_local") != 0;
    if (rp_filter != 0) matter_.store(true, std::memory_order_relaxed);
    std::vector<SourcePrefix> prefixes;
    if (rp_filter == 0) {
        prefixes.push_back({0, 0, true});
    } else if (own_rules) {
        log::once(log::Level::info,
                  "rp_filter is on and there are policy rules: frames without a connection reach sockets "
                  "through the kernel");
    } else if (!routed(link.ifindex, rp_filter == 1, prefixes)) {
        prefixes.clear();  // no prefix is certain
    }
    if (!accept_local)
        for (const LocalAddress& a : addresses) prefixes.push_back({a.address, 32, false});
    return SourceFilter(std::move(prefixes));
}

// The number in the file below /proc/sys/net/ipv4/conf; 0 if the file is unreadable.
long SourceRoutes::setting(const std::string& name) {
    InternalFd& file = settings_[name];
    const std::string path = "/proc/sys/net/ipv4/conf/" + name;
    for (int tries = 0; tries < 2; tries++) {
        if (!file) {
            const long fd = os::raw_syscall(SYS_openat, AT_FDCWD, path.c_str(), O_RDONLY | O_CLOEXEC, 0);
            if (fd >= 0) file = InternalFd(static_cast<int>(fd));
        }
        char text[16] = {};
        if (file && os::raw_syscall(SYS_pread64, file.get(), &text[0], sizeof text - 1, 0L) > 0)
            return strtol(text, nullptr, 10);
        file.reset();  // the file's interface has gone; another one may have its name
    }
    return 0;
}

// Which sources have a route back: in loose mode any route, in strict mode one by this interface. False:
// unknown.
bool SourceRoutes::routed(int ifindex, bool strict, std::vector<SourcePrefix>& out) {
    constexpr std::size_t kMaxRoutes = 32768;
    if (!socket_) {
        auto opened = NetlinkSocket::open();
        if (!opened) return false;
        socket_.emplace(std::move(*opened));
    }
    struct Best {
        std::uint32_t metric;
        bool ok;
    };
    std::map<std::pair<in_addr_t, std::uint8_t>, Best> routes;
    bool too_many = false;
    rtmsg header{};
    header.rtm_family = AF_INET;
    const auto read = socket_->dump(
        "netlink routes", RTM_GETROUTE, &header, sizeof header, [&] { routes.clear(); },
        [&](nlmsghdr* message) {
            RouteEntry r;
            if (!decode_route_entry(message, r)) return;
            // The local table comes first; its addresses are no sources.
            const bool local = r.table == RT_TABLE_LOCAL;
            if (!local && r.table != RT_TABLE_MAIN) return;
            if (routes.size() >= kMaxRoutes) {
                too_many = true;
                return;
            }
            const bool here =
                !strict || std::find(r.interfaces.begin(), r.interfaces.end(), ifindex) != r.interfaces.end();
            const bool ok = !local && r.unicast && !r.tos && here;
            auto [known, added] = routes.try_emplace({r.destination, r.length}, Best{r.metric, ok});
            if (added) return;
            // Of several routes the one with the smallest metric counts. A route for some packets only leaves
            // the answer in doubt.
            if (local || r.tos)
                known->second = {0, false};
            else if (r.metric < known->second.metric)
                known->second = {r.metric, ok};
        });
    if (!read || too_many) {
        log::once(log::Level::info,
                  "rp_filter is on and the routing table is {}: frames without a connection reach sockets "
                  "through the kernel",
                  too_many ? "long" : "not to be read");
        return false;
    }
    for (const auto& [prefix, best] : routes) out.push_back({prefix.first, prefix.second, best.ok});
    return true;
}

}  // namespace vma::net
