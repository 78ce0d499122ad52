// SPDX-License-Identifier: BSD-2-Clause
// Which multicast traffic the process takes past the kernel.
//
// The unit is (interface, group, port): one flow rule on the interface's ring, and one GroupSink that gives
// each frame to all sockets of this process that the kernel would give it to. A rule takes the frame away
// from everybody else. So there is one only where these sockets are all: no other UDP socket of the network
// namespace may receive the group on that port (net/udp_sockets.h). That is looked at before a rule comes,
// and every kLookPeriod afterwards; a rule goes as soon as such a socket is there. VMA_MC_OFFLOAD decides
// otherwise.
//
// The kernel owns the memberships, speaks IGMP, and serves what has no rule: then the shadows receive.
//
// Everything here is under Stack::control(), but GroupReceiver::deliver_group().
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "libvma/ring/ring.h"
#include "libvma/runtime/clock.h"
#include "libvma/sockets/observe/statistics.h"
#include "libvma/sockets/udp/group_sink.h"
#include "libvma/sockets/udp/other_receivers.h"

namespace vma::sockets {

class Stack;

// A socket as the groups know it.
class GroupSocket : public GroupReceiver {
  public:
    virtual const GroupListener& listener() const noexcept = 0;
    virtual std::uint64_t cookie() const noexcept = 0;  // SO_COOKIE of the shadow
    // Why the library may not receive for it, null: it may.
    virtual const char* objection() const noexcept = 0;
    // Frames to groups are about to come past the kernel: what the shadow has is older.
    virtual void before_group_frames() noexcept = 0;
    // rings_of() may say something else now.
    virtual void groups_changed() noexcept = 0;
    // For the statistics: the group comes past the kernel (Reason::none), or not.
    virtual void show_group(in_addr_t group, int ifindex, const Why& why) noexcept = 0;

  protected:
    ~GroupSocket() = default;
};

class Groups {
  public:
    // A foreign socket that appears may lose frames for this long.
    static constexpr clock::Msec kLookPeriod{250};

    struct Key {
        in_addr_t group;
        int ifindex;
        auto operator<=>(const Key&) const = default;
    };
    struct Unit {
        GroupSink sink;
        ring::Ring* ring = nullptr;  // null: the kernel serves it, and `why` says why
        Why why;

        void forget(const GroupSocket& socket) noexcept;
    };

    explicit Groups(Stack& stack) noexcept : stack_(stack), others_(stack) {}

    // Names, options or memberships of the socket have changed; `group`: of that group alone, 0: all. Rules
    // follow.
    void update(GroupSocket& socket, in_addr_t group = 0) noexcept;
    // The socket receives no more. `closed`: its shadow goes, too; else the kernel serves it.
    void remove(GroupSocket& socket, bool closed) noexcept;
    // Links, devices or rings have changed.
    void reconsider() noexcept;

    // The rings over which the socket receives groups, each once. May throw std::bad_alloc.
    std::vector<ring::Ring*> rings_of(const GroupSocket& socket) const;
    // Why the kernel serves a group that the socket receives; Reason::none: no such group.
    Why why_of(const GroupSocket& socket) const;

  private:
    using Units = std::map<Key, std::unique_ptr<Unit>>;
    struct Port {
        std::vector<GroupSocket*> sockets;
        std::vector<net::UdpListener> foreign;  // sockets of the namespace that are not among these
        Units units;
    };

    void place(GroupSocket& socket, in_port_t port);
    void mark(in_port_t port, in_addr_t group);
    void settle() noexcept;
    void evaluate(in_port_t number, in_addr_t group);
    bool evaluate(in_port_t number, Port& port, const Key& key, Unit& unit);
    Why objection(in_port_t number, const Port& port, const Key& key);
    void switch_on(in_port_t number, const Key& key, Unit& unit, ring::Ring& ring,
                   std::vector<GroupSink::Entry>& entries);
    void switch_off(in_port_t number, const Key& key, Unit& unit) noexcept;
    void touch(const std::vector<GroupSink::Entry>& entries);
    // ---- who else receives ----
    // True: they are others than before.
    bool find_foreign(in_port_t number, Port& port) const;
    void keep_looking() noexcept;
    bool tick() noexcept;

    Stack& stack_;
    std::map<in_port_t, Port> ports_;
    std::unordered_map<const GroupSocket*, in_port_t> known_;
    std::vector<std::pair<in_port_t, in_addr_t>> dirty_;  // to be evaluated; group 0: all of the port
    std::vector<GroupSocket*> touched_;                   // to be told
    std::vector<int> wanted_rings_;                       // interfaces
    std::map<int, std::string> no_ring_;                  // interfaces, with the reason
    bool busy_ = false;
    OtherReceivers others_;
    clock::Time next_look_{};
    bool looking_ = false;  // tick() comes
};

}  // namespace vma::sockets
