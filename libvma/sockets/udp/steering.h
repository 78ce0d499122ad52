// SPDX-License-Identifier: BSD-2-Clause
// How datagrams get to a UDP socket: its names, the flow rules that follow from them, and its queue.
//
// Names and options are read from the shadow, which the kernel binds and connects. State here changes under
// Stack::control().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "libvma/net/address.h"
#include "libvma/ring/ring.h"
#include "libvma/sockets/steered_socket.h"
#include "libvma/sockets/udp/groups.h"
#include "libvma/sockets/udp/kernel_side.h"
#include "libvma/sockets/udp/receive_control.h"
#include "libvma/sockets/udp/receive_queue.h"
#include "libvma/sockets/udp/send_path.h"
#include "libvma/sockets/verdicts.h"

namespace vma::sockets {

class UdpSteering : public SteeredSocket, public ring::FrameSink, public GroupSocket {
  public:
    // Any that has rules, or may get some from another call.
    bool carries_state() const noexcept final { return !left_ && !closed_; }
    unsigned rings(ring::Ring** out, unsigned room) const noexcept final { return rules_.copy(out, room); }

    // ring::FrameSink, with the ring's lock held
    bool deliver(ring::RxBuffer* buffer) noexcept final;
    bool deliver_group(ring::RxBuffer* buffer) noexcept final { return UdpSteering::deliver(buffer); }

    // GroupSocket
    const GroupListener& listener() const noexcept final { return listener_; }
    std::uint64_t cookie() const noexcept final { return shadow_.cookie(); }
    const char* objection() const noexcept final;
    void before_group_frames() noexcept final;
    void groups_changed() noexcept final;
    void show_group(in_addr_t group, int ifindex, const Why& why) noexcept final;

    // SteeredSocket
    bool move_to(unsigned lane, std::string& why) final;

    // Steered
    void refresh_rules() noexcept final { update_rules(!bound_explicitly_); }
    void bury() noexcept final;

  protected:
    UdpSteering(Stack& stack, int type) noexcept : SteeredSocket(stack, type) {}
    ~UdpSteering() override;

    // ---- under Stack::control() ----
    void read_names(int fd) noexcept;       // local and peer address from the shadow
    void read_attributes(int fd) noexcept;  // options that matter to the library, from the shadow
    // `only_route`: on rings that exist alone. A client need not attach everywhere: a send opens its ring.
    void update_rules(bool only_route) noexcept;
    void drop_rules() noexcept;
    void announce_queue() noexcept;  // tells the rings how much this socket may hold
    // The kernel accepted this option about memberships, or IP_MULTICAST_ALL; or it refused an option about a
    // source, which may have turned an empty filter round before that (ip_mc_source() of Linux).
    void learn_groups(int fd, int name, const void* value, socklen_t length, bool accepted) noexcept;

    net::Endpoints ends_;            // as the shadow is bound and connected; port 0: not
    std::atomic<bool> left_{false};  // left to the kernel for good
    bool bound_explicitly_ = false, reuseport_ = false;
    bool rules_shut_ = false;  // SO_VMA_SHUTDOWN_RX
    ReceiveQueue queue_;       // watchers_.lock()
    // What the program's callback has not judged; made with the first one. watchers_.lock()
    struct Undecided final : Filter {
        using Filter::Filter;
        ReceiveQueue queue;
    };
    std::unique_ptr<Undecided> undecided_;
    ReceiveControl control_;
    SendPath send_;
    KernelSide kernel_side_;

  private:
    std::vector<FlowRules::Rule> wanted_rules(bool only_route,
                                              Why& why);  // why: if none. May throw bad_alloc
    std::vector<FlowRules::Rule> connected_rules(Why& why);
    ring::Ring* ring_of(const net::LocalAddress& at, Why& why);
    bool rule_allows(const net::Address& address, Why& why) const;
    void set_rules(std::vector<FlowRules::Rule> wanted, Why& why) noexcept;
    void decide_receive(const Why& why) noexcept;

    bool deliver_undecided(ring::RxBuffer* b) noexcept;
    template <class Change>
    void change_rings(Change&& change) noexcept;
    void follow_groups() noexcept;
    void learn_membership(int fd, const GroupRequest& request);
    bool ask_membership(int fd, in_addr_t group, int ifindex);

    GroupListener listener_;
    bool lost_track_ = false;  // a membership that is not in listener_
    std::int64_t announced_ = 0;
};

}  // namespace vma::sockets
