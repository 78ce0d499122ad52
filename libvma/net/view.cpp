// SPDX-License-Identifier: BSD-2-Clause
// Three sockets, so that none waits for another: announcements and table dumps, both for the internal thread
// only, and route queries from any thread (route_answers.h).
//
// Order matters twice. The view joins the groups before it reads the tables, so the kernel announces a change
// in between. After a loss the view empties the queue of old announcements before it reads the tables again,
// so none overwrites newer state. Announcements that arrive during the dump may repeat the dump's entries,
// and lead to the same state.
#include "libvma/net/view.h"

#include <linux/fib_rules.h>
#include <linux/rtnetlink.h>
#include <netlink/msg.h>
#include <string.h>
#include <sys/socket.h>

#include <atomic>
#include <utility>
#include <vector>

#include "libvma/net/decode.h"
#include "libvma/net/netlink.h"
#include "libvma/net/network_tables.h"
#include "libvma/net/route_answers.h"
#include "libvma/net/section.h"
#include "libvma/net/source_routes.h"
#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/os/sysctl.h"
#include "libvma/runtime/log.h"

namespace vma::net {
namespace {

// Room for some thousand announcements (the kernel accounts about 1 KiB for a small one). Only used room
// costs memory.
constexpr int kAnnouncementBuffer = 4 << 20;
// Datagrams taken in one process(), so that the internal thread gets to its other work in a storm.
constexpr int kBatch = 512;

class NetlinkView final : public KernelView {
  public:
    Result<void> load() override;

    int fd() const noexcept override { return announcements_.fd(); }
    void process() override;
    Result<Route> route(const RouteQuery& query) override;
    Neighbour neighbour(int ifindex, in_addr_t address) const override {
        return tables_.neighbour(ifindex, address);
    }
    bool link(int ifindex, Link& out) const override { return tables_.link(ifindex, out); }
    void solicit(int ifindex, in_addr_t address) noexcept override;
    std::vector<Link> links() const override { return tables_.links(); }
    std::vector<LocalAddress> addresses() const override { return tables_.addresses(); }
    bool is_local(in_addr_t address, int* ifindex) const override {
        return tables_.is_local(address, ifindex);
    }
    SourceFilter sources(int ifindex) const override;

  private:
    Result<void> read_links(Links& out);
    Result<void> read_addresses(Addresses& out);
    Result<void> read_neighbours(Neighbours& out);
    void read_rules();
    Result<Route> ask_route(const RouteQuery& query);
    bool nothing_announced() const noexcept;

    // Empties the queue of announcements. False when some were lost.
    bool take_announcements(Changes& changes);
    void apply(nlmsghdr* message, Changes& changes);
    void replace_addresses(Changes& changes);
    void reload(Changes& changes);

    NetlinkSocket announcements_, dumps_;
    std::vector<std::uint8_t> buffer_;
    bool reload_again_ = false;  // the last reload failed

    NetworkTables tables_;
    RouteAnswers routes_;
    mutable SourceRoutes sources_;
    std::atomic<bool> ports_matter_{true};  // a policy rule or multipath looks at ports
    std::atomic<bool> own_rules_{true};     // policy rules beside the kernel's three default ones
    std::atomic<bool> processing_{false};   // announcements were taken, the generation has not moved yet
};

Result<void> NetlinkView::load() {
    for (NetlinkSocket* socket : {&announcements_, &dumps_}) {
        auto opened = NetlinkSocket::open();
        if (!opened) return std::unexpected(opened.error());
        *socket = std::move(*opened);
    }
    if (auto opened = routes_.open(); !opened) return opened;
    announcements_.enlarge_receive_buffer(kAnnouncementBuffer);
    for (unsigned group :
         {RTNLGRP_LINK, RTNLGRP_NEIGH, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV4_RULE})
        if (auto joined = announcements_.join(group); !joined) return joined;
    (void)announcements_.join(RTNLGRP_IPV4_NETCONF);  // rp_filter
    (void)announcements_.join(RTNLGRP_NEXTHOP);  // since Linux 5.3; before, routes had no shared next hops
    buffer_.resize(64 * 1024);
    Links links;
    Addresses addresses;
    Neighbours neighbours;
    Changes nobody_listens;
    if (auto read = read_links(links); !read) return read;
    if (auto read = read_addresses(addresses); !read) return read;
    if (auto read = read_neighbours(neighbours); !read) return read;
    tables_.replace(std::move(links), std::move(addresses), std::move(neighbours), nobody_listens);
    read_rules();
    return {};
}

Result<void> NetlinkView::read_links(Links& out) {
    ifinfomsg header{};
    return dumps_.dump(
        "netlink links", RTM_GETLINK, &header, sizeof header, [&] { out.clear(); },
        [&](nlmsghdr* message) {
            LinkEntry entry;
            if (message->nlmsg_type == RTM_NEWLINK && decode_link(message, entry))
                out[entry.link.ifindex] = entry;
        });
}

Result<void> NetlinkView::read_addresses(Addresses& out) {
    ifaddrmsg header{};
    header.ifa_family = AF_INET;
    return dumps_.dump(
        "netlink addresses", RTM_GETADDR, &header, sizeof header, [&] { out.clear(); },
        [&](nlmsghdr* message) {
            AddressEntry entry;
            if (message->nlmsg_type == RTM_NEWADDR && decode_address(message, entry)) out.push_back(entry);
        });
}

Result<void> NetlinkView::read_neighbours(Neighbours& out) {
    ndmsg header{};
    header.ndm_family = AF_INET;
    return dumps_.dump(
        "netlink neighbours", RTM_GETNEIGH, &header, sizeof header, [&] { out.clear(); },
        [&](nlmsghdr* message) {
            NeighbourEntry entry;
            if (message->nlmsg_type == RTM_NEWNEIGH && decode_neighbour(message, entry))
                out[neighbour_key(entry.ifindex, entry.address)] = entry.neighbour;
        });
}

// Rules that the decoder does not understand, or that are unreadable, may look at anything.
void NetlinkView::read_rules() {
    bool matter = false, own = false;
    fib_rule_hdr header{};
    header.family = AF_INET;
    const auto read = dumps_.dump(
        "netlink rules", RTM_GETRULE, &header, sizeof header, [&] { matter = own = false; },
        [&](nlmsghdr* message) {
            matter |= message->nlmsg_type != RTM_NEWRULE || rule_looks_at_ports(message);
            own |= !rule_is_default(message);
        });
    int saved = errno;
    const bool policy = os::sysctl("ipv4/fib_multipath_hash_policy", 1) != 0;
    errno = saved;
    own_rules_.store(own || !read, std::memory_order_release);
    ports_matter_.store(matter || !read || policy, std::memory_order_release);
}

void NetlinkView::process() {
    if (Section::in_handler()) return;
    processing_.store(true, std::memory_order_seq_cst);
    struct Done {
        std::atomic<bool>& flag;
        ~Done() { flag.store(false, std::memory_order_release); }
    } done{processing_};
    Changes changes;
    bool complete = take_announcements(changes);
    if (!complete || reload_again_)
        reload(changes);
    else if (changes.reread_addresses)
        replace_addresses(changes);
    if (!complete || changes.reread_rules) read_rules();
    const bool sources =
        !complete || changes.sources || changes.addresses || (changes.routes && sources_.matter());
    if (sources && listener_.sources_changed) listener_.sources_changed();
    if (changes.any || changes.neighbours) move(changes.any);
    if (!changes.any) return;
    if (listener_.link_changed)
        for (const auto& [ifindex, link] : changes.links) listener_.link_changed(link);
    if (changes.addresses && listener_.addresses_changed) listener_.addresses_changed();
}

bool NetlinkView::take_announcements(Changes& changes) {
    bool complete = true;
    // After a loss the kernel adds nothing until the queue is empty, so this loop ends.
    for (int taken = 0; taken < kBatch || !complete; taken++) {
        ssize_t got = announcements_.receive(buffer_);
        if (got == -ENOBUFS || got == -EMSGSIZE) {
            complete = false;
            continue;
        }
        if (got <= 0) break;
        if (!complete) continue;
        int left = static_cast<int>(got);
        for (auto* message = reinterpret_cast<nlmsghdr*>(buffer_.data()); nlmsg_ok(message, left);
             message = nlmsg_next(message, &left))
            apply(message, changes);
    }
    return complete;
}

void NetlinkView::apply(nlmsghdr* message, Changes& changes) {
    switch (message->nlmsg_type) {
        case RTM_NEWLINK:
        case RTM_DELLINK:
            tables_.apply_link(message, changes);
            break;
        case RTM_NEWNEIGH:
        case RTM_DELNEIGH:
            tables_.apply_neighbour(message, changes);
            break;
        case RTM_NEWADDR:
        case RTM_DELADDR:
            // The kernel orders a new address among the others by scopes and prefixes: ask for the list.
            changes.reread_addresses = true;
            break;
        case RTM_NEWROUTE:
        case RTM_DELROUTE:
            if (is_ipv4_route(message)) changes.any = changes.routes = true;
            break;
        case RTM_NEWRULE:
        case RTM_DELRULE:
            changes.any = changes.reread_rules = changes.routes = true;
            break;
        case RTM_NEWNEXTHOP:
        case RTM_DELNEXTHOP:
            changes.any = changes.routes = true;
            break;
        case RTM_NEWNETCONF:
            changes.sources = true;
            break;
        default:
            break;
    }
}

void NetlinkView::replace_addresses(Changes& changes) {
    Addresses fresh;
    if (auto read = read_addresses(fresh); !read) {
        log::warn("reading the addresses failed: {}", strerror(read.error().code));
        reload_again_ = true;
        return;
    }
    tables_.replace(std::move(fresh), changes);
}

void NetlinkView::reload(Changes& changes) {
    Links links;
    Addresses addresses;
    Neighbours neighbours;
    changes.any = true;  // routes and rules are not mirrored, so they may have changed
    auto read = read_links(links);
    if (read) read = read_addresses(addresses);
    if (read) read = read_neighbours(neighbours);
    reload_again_ = !read;
    if (!read) {
        log::warn("reading the network tables again failed: {}: {}", read.error().what,
                  strerror(read.error().code));
        return;
    }
    tables_.replace(std::move(links), std::move(addresses), std::move(neighbours), changes);
}

// Do the tables and the generation show the network's state now? The kernel queues an announcement before the
// call that made the change returns.
bool NetlinkView::nothing_announced() const noexcept {
    if (processing_.load(std::memory_order_seq_cst)) return false;
    char byte;
    const bool nothing =
        os::raw_syscall(SYS_recvfrom, announcements_.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == -EAGAIN;
    return nothing && !processing_.load(std::memory_order_seq_cst);
}

Result<Route> NetlinkView::route(const RouteQuery& query) {
    if (ports_matter_.load(std::memory_order_acquire) || IN_MULTICAST(ntohl(query.dst)))
        return ask_route(query);
    const std::uint32_t present = routes_generation();
    const clock::Time now = clock::monotonic();
    RouteQuery question = query;
    question.src_port = question.dst_port = 0;
    if (Route known; routes_.recall(question, present, known) && nothing_announced()) return known;
    auto answer = ask_route(query);
    if (answer) routes_.remember(question, *answer, present, now);
    return answer;
}

Result<Route> NetlinkView::ask_route(const RouteQuery& query) {
    auto answer = routes_.ask(query);
    if (!answer || answer->kind == Route::Kind::other) return answer;
    const std::uint32_t limit = tables_.link_mtu(answer->ifindex);
    if (answer->mtu == 0 || (limit != 0 && limit < answer->mtu)) answer->mtu = limit;
    return answer;
}

void NetlinkView::solicit(int ifindex, in_addr_t address) noexcept {
    if (tables_.to_solicit(ifindex, address)) routes_.solicit(ifindex, address);
}

SourceFilter NetlinkView::sources(int ifindex) const {
    Link own;
    if (!link(ifindex, own)) return SourceFilter(std::vector<SourcePrefix>{});
    return sources_.filter(own, addresses(), own_rules_.load(std::memory_order_acquire));
}

}  // namespace

std::unique_ptr<KernelView> KernelView::make() { return std::make_unique<NetlinkView>(); }

Result<std::unique_ptr<KernelView>> KernelView::open() {
    auto view = make();
    if (auto loaded = view->load(); !loaded) return std::unexpected(loaded.error());
    return view;
}

}  // namespace vma::net
