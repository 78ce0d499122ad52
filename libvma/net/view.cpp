// SPDX-License-Identifier: BSD-2-Clause
// Three sockets, so that none waits for another: announcements and table dumps, both for the internal thread
// only, and route queries from any thread. Tables are small and change rarely, so each is a map under a lock.
// Readers hold the lock while they copy one value out.
//
// Order matters twice. The view joins the groups before it reads the tables, so the kernel announces a change
// in between. After a loss the view empties the queue of old announcements before it reads the tables again,
// so none overwrites newer state. Announcements that arrive during the dump may repeat the dump's entries,
// and lead to the same state.
#include "libvma/net/view.h"

#include <fcntl.h>
#include <linux/fib_rules.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <netlink/msg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "libvma/net/decode.h"
#include "libvma/net/netlink.h"
#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/os/sysctl.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/lock.h"
#include "libvma/runtime/log.h"

namespace vma::net {
namespace {

// Room for some thousand announcements (the kernel accounts about 1 KiB for a small one). Only used room
// costs memory.
constexpr int kAnnouncementBuffer = 4 << 20;
// Datagrams taken in one process(), so that the internal thread gets to its other work in a storm.
constexpr int kBatch = 512;

bool same(const Link& a, const Link& b) {
    return a.ifindex == b.ifindex && a.name == b.name && a.kind == b.kind && a.mac == b.mac &&
           a.mtu == b.mtu && a.rx_queues == b.rx_queues && a.master == b.master && a.lower == b.lower &&
           a.vlan == b.vlan && a.up == b.up && a.loopback == b.loopback && a.ethernet == b.ethernet;
}

bool usable(const Neighbour& n) { return n.state == Neighbour::State::usable; }

using Links = std::map<int, LinkEntry>;
using Addresses = std::vector<AddressEntry>;
using Neighbours = std::unordered_map<std::uint64_t, Neighbour>;

std::uint64_t neighbour_key(int ifindex, in_addr_t address) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(ifindex)) << 32 | address;
}

// Holds one of the view's locks. A signal handler may interrupt the holder anywhere, also half-way through
// taking the lock, and ask again. So the thread notes that it is inside before it touches the lock. Where
// entered() is false, the handler must do without the lock. The view's locks are never nested, so one note
// for all of them is enough.
class Section {
  public:
    explicit Section(Lock& lock) noexcept : lock_(t_inside ? nullptr : &lock) {
        if (lock_ == nullptr) return;
        t_inside = true;
        std::atomic_signal_fence(std::memory_order_seq_cst);
        lock_->lock();
    }
    ~Section() {
        if (lock_ == nullptr) return;
        lock_->unlock();
        std::atomic_signal_fence(std::memory_order_seq_cst);
        t_inside = false;
    }
    Section(const Section&) = delete;
    Section& operator=(const Section&) = delete;
    bool entered() const noexcept { return lock_ != nullptr; }
    static bool in_handler() noexcept { return t_inside; }

  private:
    static thread_local volatile bool t_inside;
    Lock* lock_;
};
thread_local volatile bool Section::t_inside = false;

// RTM_NEWNEIGH with NTF_USE: the kernel does what a packet to the neighbour would make it do. Made on the
// stack, as RouteRequest.
class UseNeighbour {
  public:
    UseNeighbour(int ifindex, in_addr_t address, std::uint32_t sequence) noexcept {
        header_.nlmsg_type = RTM_NEWNEIGH;
        header_.nlmsg_flags = NLM_F_REQUEST | NLM_F_CREATE;
        header_.nlmsg_seq = sequence;
        neighbour_.ndm_family = AF_INET;
        neighbour_.ndm_ifindex = ifindex;
        neighbour_.ndm_flags = NTF_USE;
        destination_.rta_type = NDA_DST;
        destination_.rta_len = RTA_LENGTH(sizeof address);
        address_ = address;
        header_.nlmsg_len = sizeof *this;
    }
    const nlmsghdr* message() const noexcept { return &header_; }

  private:
    nlmsghdr header_{};
    ndmsg neighbour_{};
    rtattr destination_{};
    in_addr_t address_ = 0;
};
static_assert(sizeof(UseNeighbour) == NLMSG_LENGTH(sizeof(ndmsg)) + RTA_LENGTH(sizeof(in_addr_t)));

// Announcements do not tell that the kernel has learned a path MTU, so remembered routes expire.
constexpr std::chrono::seconds kKnownFor{1};

// The changes of one process(). The listener gets them when all tables are consistent again.
struct Changes {
    bool any = false;  // moves the generation
    bool addresses = false;
    bool reread_addresses = false;
    bool reread_rules = false;
    bool routes = false;   // or rules, or next hops
    bool sources = false;  // rp_filter of an interface
    std::map<int, Link> links;
};

// RTM_GETROUTE, made on the stack: a send from a signal handler may come here, and must not enter malloc.
class RouteRequest {
  public:
    RouteRequest(const RouteQuery& query, std::uint32_t sequence) noexcept {
        header_.nlmsg_type = RTM_GETROUTE;
        header_.nlmsg_flags = NLM_F_REQUEST;
        header_.nlmsg_seq = sequence;
        route_.rtm_family = AF_INET;
        route_.rtm_dst_len = 32;
        route_.rtm_tos = query.tos & 0xfc;  // the two ECN bits never choose a route
        route_.rtm_flags = RTM_F_LOOKUP_TABLE;
        put(RTA_DST, query.dst);
        if (query.src != 0) {
            route_.rtm_src_len = 32;
            put(RTA_SRC, query.src);
        }
        if (query.oif != 0) put(RTA_OIF, query.oif);
        if (query.mark != 0) put(RTA_MARK, query.mark);
        if (query.protocol == IPPROTO_UDP || query.protocol == IPPROTO_TCP) {
            put(RTA_IP_PROTO, query.protocol);
            if (query.src_port != 0) put(RTA_SPORT, query.src_port);
            if (query.dst_port != 0) put(RTA_DPORT, query.dst_port);
        }
        header_.nlmsg_len = static_cast<std::uint32_t>(sizeof header_ + sizeof route_ + used_);
    }
    const nlmsghdr* message() const noexcept { return &header_; }

  private:
    template <class T>
    void put(unsigned short type, T value) noexcept {
        rtattr attribute{static_cast<unsigned short>(RTA_LENGTH(sizeof value)), type};
        memcpy(attributes_ + used_, &attribute, sizeof attribute);
        memcpy(attributes_ + used_ + sizeof attribute, &value, sizeof value);
        used_ += RTA_SPACE(sizeof value);
    }
    nlmsghdr header_{};
    rtmsg route_{};
    std::uint8_t attributes_[8 * RTA_SPACE(4)]{};  // one for each put() above
    std::size_t used_ = 0;
};

class NetlinkView final : public KernelView {
  public:
    Result<void> load() override;

    int fd() const noexcept override { return announcements_.fd(); }
    void process() override;
    Result<Route> route(const RouteQuery& query) override;
    Neighbour neighbour(int ifindex, in_addr_t address) const override;
    bool link(int ifindex, Link& out) const override;
    void solicit(int ifindex, in_addr_t address) noexcept override;
    std::vector<Link> links() const override;
    std::vector<LocalAddress> addresses() const override;
    bool is_local(in_addr_t address, int* ifindex) const override;
    SourceFilter sources(int ifindex) const override;

  private:
    bool routed_sources(int ifindex, bool strict, std::vector<SourcePrefix>& out) const;
    long setting(const std::string& name) const;
    Result<void> read_links(Links& out);
    Result<void> read_addresses(Addresses& out);
    Result<void> read_neighbours(Neighbours& out);
    void read_rules();
    Result<Route> ask_route(const RouteQuery& query);
    bool nothing_announced() const noexcept;

    // Empties the queue of announcements. False when some were lost.
    bool take_announcements(Changes& changes);
    void apply(nlmsghdr* message, Changes& changes);
    void apply_link(nlmsghdr* message, Changes& changes);
    void apply_neighbour(nlmsghdr* message, Changes& changes);
    void replace_addresses(Changes& changes);
    void reload(Changes& changes);
    std::uint32_t link_mtu(int ifindex) const noexcept;

    NetlinkSocket announcements_, dumps_, queries_;
    std::vector<std::uint8_t> buffer_;
    bool reload_again_ = false;  // the last reload failed

    Lock query_lock_;
    // Answers by the whole question but its ports, as long as ports do not matter. A program that connects
    // again and again repeats the same question.
    struct KnownRoute {
        RouteQuery query;
        Route route;
        std::uint32_t generation = 0;  // 0: empty
        clock::Time asked_at;
    };
    KnownRoute* known_route(const RouteQuery& query) noexcept;
    Lock route_lock_;
    std::array<KnownRoute, 16> known_routes_;
    std::atomic<bool> ports_matter_{true};            // a policy rule or multipath looks at ports
    std::atomic<bool> own_rules_{true};               // policy rules beside the kernel's three default ones
    mutable std::atomic<bool> routes_matter_{false};  // sources() looked at routes
    std::atomic<bool> processing_{false};  // announcements were taken, the generation has not moved yet
    // For sources(), also on the internal thread. Kept open: a new descriptor would take, for a moment, the
    // number that the program expects for its own next one.
    mutable Lock sources_lock_;
    mutable std::map<std::string, InternalFd> settings_;
    mutable std::optional<NetlinkSocket> source_routes_;
    mutable Lock table_lock_;  // links and addresses
    Links links_;
    Addresses addresses_;
    mutable Lock neighbour_lock_;
    Neighbours neighbours_;
};

Result<void> NetlinkView::load() {
    for (NetlinkSocket* socket : {&announcements_, &dumps_, &queries_}) {
        auto opened = NetlinkSocket::open();
        if (!opened) return std::unexpected(opened.error());
        *socket = std::move(*opened);
    }
    announcements_.enlarge_receive_buffer(kAnnouncementBuffer);
    for (unsigned group :
         {RTNLGRP_LINK, RTNLGRP_NEIGH, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV4_RULE})
        if (auto joined = announcements_.join(group); !joined) return joined;
    (void)announcements_.join(RTNLGRP_IPV4_NETCONF);  // rp_filter
    (void)announcements_.join(RTNLGRP_NEXTHOP);  // since Linux 5.3; before, routes had no shared next hops
    buffer_.resize(64 * 1024);
    if (auto read = read_links(links_); !read) return read;
    if (auto read = read_addresses(addresses_); !read) return read;
    if (auto read = read_neighbours(neighbours_); !read) return read;
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
    const bool sources = !complete || changes.sources || changes.addresses ||
                         (changes.routes && routes_matter_.load(std::memory_order_relaxed));
    if (sources && listener_.sources_changed) listener_.sources_changed();
    if (!changes.any) return;
    generation_.fetch_add(1, std::memory_order_acq_rel);
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
            apply_link(message, changes);
            break;
        case RTM_NEWNEIGH:
        case RTM_DELNEIGH:
            apply_neighbour(message, changes);
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

void NetlinkView::apply_link(nlmsghdr* message, Changes& changes) {
    LinkEntry entry;
    if (!decode_link(message, entry)) return;
    const int ifindex = entry.link.ifindex;
    if (message->nlmsg_type == RTM_DELLINK) {
        entry.link.up = false;
        {
            Section section(table_lock_);
            links_.erase(ifindex);
        }
        Section section(neighbour_lock_);
        std::erase_if(neighbours_,
                      [&](const auto& item) { return static_cast<int>(item.first >> 32) == ifindex; });
        changes.any = true;
        changes.links[ifindex] = entry.link;
        return;
    }
    Section section(table_lock_);
    LinkEntry& known = links_[ifindex];
    // Flags count on their own: taking a link without carrier down removes routes, and the kernel announces
    // only the flags.
    if (known.flags == entry.flags && same(known.link, entry.link)) return;
    changes.any = true;
    if (!same(known.link, entry.link)) changes.links[ifindex] = entry.link;
    known = std::move(entry);
}

void NetlinkView::apply_neighbour(nlmsghdr* message, Changes& changes) {
    NeighbourEntry entry;
    if (!decode_neighbour(message, entry)) return;
    const auto key = neighbour_key(entry.ifindex, entry.address);
    Section section(neighbour_lock_);
    if (message->nlmsg_type == RTM_DELNEIGH) {
        auto known = neighbours_.find(key);
        if (known == neighbours_.end()) return;
        changes.any |= usable(known->second);
        neighbours_.erase(known);
        return;
    }
    Neighbour& known = neighbours_[key];
    changes.any |=
        usable(known) != usable(entry.neighbour) || (usable(known) && known.mac != entry.neighbour.mac);
    known = entry.neighbour;
    if (known.state == Neighbour::State::failed) known.failed_at = clock::monotonic();
}

void NetlinkView::replace_addresses(Changes& changes) {
    Addresses fresh;
    if (auto read = read_addresses(fresh); !read) {
        log::warn("reading the addresses failed: {}", strerror(read.error().code));
        reload_again_ = true;
        return;
    }
    Section section(table_lock_);
    if (fresh == addresses_) return;
    addresses_.swap(fresh);
    changes.any = changes.addresses = true;
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
    {
        Section section(table_lock_);
        for (const auto& [ifindex, known] : links_)
            if (!links.contains(ifindex)) {
                changes.links[ifindex] = known.link;
                changes.links[ifindex].up = false;
            }
        for (const auto& [ifindex, entry] : links) {
            auto known = links_.find(ifindex);
            if (known == links_.end() || !same(known->second.link, entry.link))
                changes.links[ifindex] = entry.link;
        }
        changes.addresses |= addresses != addresses_;
        links_.swap(links);
        addresses_.swap(addresses);
    }
    Section section(neighbour_lock_);
    neighbours_.swap(neighbours);
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

// The caller holds route_lock_.
NetlinkView::KnownRoute* NetlinkView::known_route(const RouteQuery& q) noexcept {
    std::uint64_t hash = (std::uint64_t{q.dst} << 32 | q.src) * 0x9e3779b97f4a7c15u;
    return &known_routes_[hash >> 60];
}

Result<Route> NetlinkView::route(const RouteQuery& query) {
    if (ports_matter_.load(std::memory_order_acquire) || IN_MULTICAST(ntohl(query.dst)))
        return ask_route(query);
    const std::uint32_t present = generation();
    const clock::Time now = clock::monotonic();
    RouteQuery question = query;
    question.src_port = question.dst_port = 0;
    {
        Section section(route_lock_);
        if (section.entered()) {
            const KnownRoute* known = known_route(question);
            if (known->generation == present && now - known->asked_at < kKnownFor &&
                known->query == question && nothing_announced())
                return known->route;
        }
    }
    auto answer = ask_route(query);
    if (!answer) return answer;
    Section section(route_lock_);
    if (section.entered()) *known_route(question) = {question, *answer, present, now};
    return answer;
}

Result<Route> NetlinkView::ask_route(const RouteQuery& query) {
    Route answer;
    alignas(nlmsghdr) std::uint8_t buffer[4096];  // an answer is some hundred bytes
    nlmsghdr* message = nullptr;
    {
        Section section(query_lock_);
        if (!section.entered()) return answer;
        const std::uint32_t sequence = queries_.next_sequence();
        RouteRequest request(query, sequence);
        if (queries_.send(request.message()) != 0) return answer;
        // A message before this query's answer belongs to an earlier query whose answer was not readable
        // then.
        while (message == nullptr) {
            ssize_t got = queries_.receive(buffer);
            if (got == -ENOBUFS || got == -EMSGSIZE) continue;
            if (got <= 0) return answer;
            auto* candidate = reinterpret_cast<nlmsghdr*>(buffer);
            if (nlmsg_ok(candidate, static_cast<int>(got)) && candidate->nlmsg_seq == sequence)
                message = candidate;
        }
    }
    if (message->nlmsg_type == NLMSG_ERROR) {
        int error = 0;
        if (nlmsg_datalen(message) >= static_cast<int>(sizeof(nlmsgerr)))
            error = -static_cast<const nlmsgerr*>(nlmsg_data(message))->error;
        if (error > 0) return fail(error, "route lookup");  // short enough for std::string not to allocate
        return answer;
    }
    if (!decode_route(message, answer)) return Route{};
    if (answer.src == 0) answer.src = query.src;  // the kernel does not repeat a source from the question
    const std::uint32_t limit = link_mtu(answer.ifindex);
    if (answer.mtu == 0 || (limit != 0 && limit < answer.mtu)) answer.mtu = limit;
    return answer;
}

std::uint32_t NetlinkView::link_mtu(int ifindex) const noexcept {
    Section section(table_lock_);
    if (!section.entered()) return 0;
    auto found = links_.find(ifindex);
    return found == links_.end() ? 0 : found->second.link.mtu;
}

Neighbour NetlinkView::neighbour(int ifindex, in_addr_t address) const {
    Section section(neighbour_lock_);
    if (!section.entered()) return {};
    auto found = neighbours_.find(neighbour_key(ifindex, address));
    return found == neighbours_.end() ? Neighbour{} : found->second;
}

void NetlinkView::solicit(int ifindex, in_addr_t address) noexcept {
    {
        Section section(neighbour_lock_);
        if (!section.entered()) return;
        auto known = neighbours_.find(neighbour_key(ifindex, address));
        if (known != neighbours_.end()) {
            // The kernel would make a permanent entry an ordinary one.
            if (usable(known->second) && !known->second.stale) return;
            // The kernel announces the outcome, not that it asks again.
            if (known->second.state == Neighbour::State::failed)
                known->second.state = Neighbour::State::incomplete;
        }
    }
    Section section(query_lock_);
    if (!section.entered()) return;
    // The request asks for no answer. If one comes (EPERM), the next query takes it for an old one.
    queries_.send(UseNeighbour(ifindex, address, queries_.next_sequence()).message());
}

bool NetlinkView::link(int ifindex, Link& out) const {
    Section section(table_lock_);
    if (!section.entered()) return false;
    auto found = links_.find(ifindex);
    if (found == links_.end()) return false;
    out = found->second.link;
    return true;
}

std::vector<Link> NetlinkView::links() const {
    std::vector<Link> result;
    Section section(table_lock_);
    if (!section.entered()) return result;
    result.reserve(links_.size());
    for (const auto& [ifindex, entry] : links_) result.push_back(entry.link);
    return result;
}

std::vector<LocalAddress> NetlinkView::addresses() const {
    std::vector<LocalAddress> result;
    Section section(table_lock_);
    if (!section.entered()) return result;
    result.reserve(addresses_.size());
    for (const auto& entry : addresses_) result.push_back(entry.local);
    return result;
}

bool NetlinkView::is_local(in_addr_t address, int* ifindex) const {
    Section section(table_lock_);
    if (!section.entered()) return false;
    const AddressEntry* found = nullptr;
    for (const auto& entry : addresses_) {
        if (entry.local.address == address) {
            found = &entry;
            break;
        }
        const in_addr_t mask =
            entry.prefix_length == 0 ? 0 : htonl(~std::uint32_t{0} << (32 - entry.prefix_length));
        if (found == nullptr && ((entry.local.address ^ address) & mask) == 0) {
            auto link = links_.find(entry.local.ifindex);
            if (link != links_.end() && link->second.link.loopback) found = &entry;
        }
    }
    if (found != nullptr && ifindex != nullptr) *ifindex = found->local.ifindex;
    return found != nullptr;
}

// Follows fib_validate_source() and ip_route_input_slow() of the kernel.
SourceFilter NetlinkView::sources(int ifindex) const {
    Link own;
    if (!link(ifindex, own)) return SourceFilter(std::vector<SourcePrefix>{});
    const std::lock_guard hold(sources_lock_);
    const long rp_filter = std::max(setting("all/rp_filter"), setting(own.name + "/rp_filter"));
    const bool accept_local = setting("all/accept_local") != 0 || setting(own.name + "/accept_local") != 0;
    routes_matter_.store(rp_filter != 0 || routes_matter_.load(std::memory_order_relaxed),
                         std::memory_order_relaxed);
    std::vector<SourcePrefix> prefixes;
    if (rp_filter == 0) {
        prefixes.push_back({0, 0, true});
    } else if (!routed_sources(ifindex, rp_filter == 1, prefixes)) {
        prefixes.clear();  // no prefix is certain
    }
    if (!accept_local)
        for (const LocalAddress& a : addresses()) prefixes.push_back({a.address, 32, false});
    return SourceFilter(std::move(prefixes));
}

// The number in the file below /proc/sys/net/ipv4/conf; 0 if the file is unreadable. The caller holds
// sources_lock_.
long NetlinkView::setting(const std::string& name) const {
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
bool NetlinkView::routed_sources(int ifindex, bool strict, std::vector<SourcePrefix>& out) const {
    constexpr std::size_t kMaxRoutes = 32768;
    if (own_rules_.load(std::memory_order_acquire)) {
        log::once(log::Level::info,
                  "rp_filter is on and there are policy rules: frames without a connection reach sockets "
                  "through the kernel");
        return false;
    }
    if (!source_routes_) {
        auto opened = NetlinkSocket::open();
        if (!opened) return false;
        source_routes_.emplace(std::move(*opened));
    }
    struct Best {
        std::uint32_t metric;
        bool ok;
    };
    std::map<std::pair<in_addr_t, std::uint8_t>, Best> routes;
    bool too_many = false;
    rtmsg header{};
    header.rtm_family = AF_INET;
    const auto read = source_routes_->dump(
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

}  // namespace

std::unique_ptr<KernelView> KernelView::make() { return std::make_unique<NetlinkView>(); }

Result<std::unique_ptr<KernelView>> KernelView::open() {
    auto view = make();
    if (auto loaded = view->load(); !loaded) return std::unexpected(loaded.error());
    return view;
}

}  // namespace vma::net
