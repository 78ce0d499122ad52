// SPDX-License-Identifier: BSD-2-Clause
// The kernel's view of the network, over netlink (libnl): links, addresses, routes, neighbours.
//
// The kernel owns all of it; this class asks and listens. Tables mirror links, IPv4 addresses and neighbours,
// and notifications keep the tables current, so a look-up costs no system call. For a route the class asks
// the kernel (RTM_GETROUTE), because only the kernel knows its policy rules, marks and multipath. Callers
// cache the answer in their destination entry and drop it when generation() has moved. The class remembers
// the last answers for up to a second, while the kernel announces nothing and no rule and no multipath looks
// at ports. It remembers none about a group, because the kernel does not announce memberships.
#pragma once

#include <netinet/in.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libvma/net/frame.h"
#include "libvma/net/sources.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/error.h"

namespace vma::net {

struct Link {
    int ifindex = 0;
    std::string name;
    std::string kind;  // IFLA_INFO_KIND: "veth", "bridge", ...; empty for a physical device
    MacAddress mac{};
    std::uint32_t mtu = 0;
    unsigned rx_queues = 1;  // IFLA_NUM_RX_QUEUES
    int master = 0;          // ifindex of the bridge or bond it belongs to, or 0
    std::uint16_t vlan = 0;  // 802.1Q VLAN id, for kind "vlan"; else 0
    // Of a VLAN: ifindex of the interface below it; 0 if that interface is in another network namespace.
    int lower = 0;
    bool up = false;  // IFF_UP and IFF_LOWER_UP (carrier)
    bool loopback = false;
    bool ethernet = false;  // ARPHRD_ETHER
};

struct LocalAddress {
    int ifindex = 0;
    in_addr_t address = 0;
    friend bool operator==(const LocalAddress&, const LocalAddress&) = default;
};

struct RouteQuery {
    in_addr_t dst = 0;
    in_addr_t src = 0;       // 0: let the kernel choose
    int oif = 0;             // SO_BINDTODEVICE, 0: any
    std::uint32_t mark = 0;  // SO_MARK
    std::uint8_t tos = 0;
    std::uint8_t protocol = 0;  // for policy rules on ipproto and ports
    in_port_t src_port = 0, dst_port = 0;
    friend bool operator==(const RouteQuery&, const RouteQuery&) = default;
};

struct Route {
    enum class Kind { unicast, local, broadcast, multicast, other };
    // other: a route that the library leaves to the kernel (encapsulation, prohibit, IPv6 gateway, ...).
    Kind kind = Kind::other;
    int ifindex = 0;        // outgoing interface
    in_addr_t gateway = 0;  // 0: on link
    in_addr_t src = 0;      // source address the kernel would use
    bool ecn = false;       // its feature: to ask for explicit congestion notification
    std::uint32_t mtu = 0;  // path MTU: the route's metric or learned exception, never above the link's
    // To a group: this host is a member at the interface, for this source. The kernel gives receivers here a
    // copy unless IP_MULTICAST_LOOP is off.
    bool copied_here = false;
};

struct Neighbour {
    // The kernel announces success and failure, not its first question: the view sees `incomplete` only by
    // chance.
    enum class State { none, incomplete, usable, failed };
    State state = State::none;
    bool stale = false;  // NUD_STALE/DELAY/PROBE: usable, but the kernel wants to see traffic to confirm it
    MacAddress mac{};
    clock::Time failed_at;  // when the failure was announced; Time{}: before the view listened
};

class KernelView {
  public:
    // A view without data: no link, no address, and every route is Kind::other.
    static std::unique_ptr<KernelView> make();
    // make() and load().
    static Result<std::unique_ptr<KernelView>> open();
    virtual ~KernelView() = default;

    // Opens the sockets in the calling thread's network namespace and reads the tables. Errors name the
    // failed step. Call it once, before other use of the view; only generation() may be read meanwhile.
    virtual Result<void> load() { return {}; }

    // Readable when the kernel has announced a change; the internal thread then calls process().
    virtual int fd() const noexcept = 0;
    // Reads announcements, updates the tables and the generation, runs the listener. After a lost
    // announcement (ENOBUFS) reloads everything. One thread at a time.
    virtual void process() = 0;

    // Counts every change of links, addresses, routes or rules, and of a neighbour's address or usability.
    // Relaxed read.
    std::uint32_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }
    // The same without changes of neighbours, which any host of the link can bring about by ARP: what the
    // kernel said of a route holds while this stands, and the neighbour is looked up in the table.
    std::uint32_t routes_generation() const noexcept { return routes_.load(std::memory_order_acquire); }
    // Makes every value derived from the view stale, because something else that the value depends on
    // changed.
    void outdate() noexcept { move(true); }

    // What the kernel would do with a packet. Error: the errno that a send would get (ENETUNREACH,
    // EHOSTUNREACH, EACCES, EINVAL...). One to three system calls; any thread. Never allocates. The answer is
    // Kind::other where the class cannot ask: a signal handler interrupted another query of this thread, or
    // the socket is gone.
    virtual Result<Route> route(const RouteQuery& query) = 0;

    // These read the tables; any thread. neighbour(), link() and is_local() do not allocate. In a signal
    // handler that interrupted one of the three, they find nothing.
    virtual Neighbour neighbour(int ifindex, in_addr_t address) const = 0;
    virtual bool link(int ifindex, Link& out) const = 0;
    // Has the kernel find out, or confirm, a neighbour's link address, as if the kernel had a packet to send
    // there. Until the kernel announces the outcome, neighbour() reports an unusable entry as incomplete.
    // Needs CAP_NET_ADMIN (else nothing happens). Any thread. A signal handler that interrupted another query
    // of this thread has no effect here.
    virtual void solicit(int ifindex, in_addr_t address) noexcept = 0;
    virtual std::vector<Link> links() const = 0;
    virtual std::vector<LocalAddress> addresses() const = 0;  // all IPv4 addresses, in the kernel's order
    // Is it an address of this host? On a loopback link the whole prefix is. `ifindex` may be null.
    virtual bool is_local(in_addr_t address, int* ifindex) const = 0;

    // The addresses from which the kernel surely takes packets that arrive by the interface. The kernel
    // refuses its own addresses, and those that rp_filter excludes (the larger of conf.all and the
    // interface's). The kernel may still accept a source that this answer refuses: the answer does not follow
    // policy rules. Some system calls, and the routing table where rp_filter is on; any thread, not in a
    // signal handler.
    virtual SourceFilter sources(int) const { return {}; }

    // process() calls these after the tables changed, without any lock held. Set them before the first
    // process().
    struct Listener {
        std::function<void()> addresses_changed;
        std::function<void(const Link&)> link_changed;  // MAC, MTU, up/down; gone links have up == false
        std::function<void()> sources_changed;          // the answer of sources() may have changed
    };
    void listen(Listener listener) { listener_ = std::move(listener); }

  protected:
    void move(bool routes) noexcept {
        if (routes) routes_.fetch_add(1, std::memory_order_acq_rel);
        generation_.fetch_add(1, std::memory_order_acq_rel);
    }

    std::atomic<std::uint32_t> generation_{1}, routes_{1};
    Listener listener_;
};

}  // namespace vma::net
