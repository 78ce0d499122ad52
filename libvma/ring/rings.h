// SPDX-License-Identifier: BSD-2-Clause
// Which interface gets which rings: one for each lane (lanes.h), made when the first flow needs it.
//
// Where an interface cannot have a further ring, the lane shares the one that has the fewest users.
// An interface that cannot be offloaded is remembered with its reason for a while. So a program with many
// sockets neither tries nor logs again and again.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libvma/net/view.h"
#include "libvma/ring/devices.h"
#include "libvma/ring/lanes.h"
#include "libvma/ring/ring.h"
#include "libvma/ring/strays/stray_segments.h"
#include "libvma/runtime/internal_fd.h"

namespace vma::ring {

class Rings {
  public:
    explicit Rings(net::KernelView& view) : view_(view), lanes_(Lanes::configured()) {}

    Lanes& lanes() noexcept { return lanes_; }
    StraySegments& strays() noexcept { return strays_; }
    // The ring of an interface for a lane, or null; then the reason has been logged once, and is put into
    // `why`. Callers serialise.
    Ring* get(int ifindex, unsigned lane, std::string* why = nullptr);
    // The ring if there is one already, and its device works.
    Ring* find(int ifindex, unsigned lane = 0) noexcept;
    // What to do when the device of a ring fails (RingConfig::on_failure). Before the first get().
    void on_failure(std::function<void(Ring&)> tell) { on_failure_ = std::move(tell); }
    // `tell` is called when another process that had the interface, or a rule of the adapter, may have let go
    // of it. It calls retry() and returns what retry() says. Internal thread, no lock held. Before the first
    // get().
    void on_freed(std::function<bool(int ifindex)> tell) { on_freed_ = std::move(tell); }
    // get() of an interface that another process had. True: that process still has it, and on_freed() comes
    // again. Callers serialise, as of get().
    bool retry(int ifindex);
    // Ring::check() of all, and the kernel gets the sockets of an interface that is silent. Once a second or
    // so; callers serialise, as of get(). True: what attr().details says of one has changed.
    bool check() noexcept;
    // Would get() try at all? (Ethernet, up, no loopback, not a port of a bridge or bond, named by
    // VMA_XDP_INTERFACES unless there are RDMA devices.) `why` says what is wrong.
    static bool eligible(const net::Link& link, std::string& why);
    template <class F>
    void for_each(F&& visit) {
        for (auto& [ifindex, slot] : slots_)
            for (auto& ring : slot.rings) visit(*ring);
    }
    // What the rings have counted, a line for each with what is not 0, at level debug.
    void log_counters();
    void link_changed(const net::Link& link) noexcept;
    // Addresses, routes or rp_filter changed: rings ask anew from which sources they may take frames. May
    // throw std::bad_alloc.
    void sources_changed();

  private:
    struct Slot {
        std::vector<std::unique_ptr<Ring>> rings;   // in the order of their opening
        std::array<Ring*, Lanes::kMost> by_lane{};  // some may be the same
        std::shared_ptr<RuleOwners> owners;
        unsigned candidate = 0;  // of devices_for(): what its rings are made of
        bool full = false;       // it cannot have more rings
        clock::Time retry_at;
        std::string why;                     // there is no ring
        bool held = false, waiting = false;  // by another process; and on_freed_ will be called
        InternalFd holder;                   // hangs up when that process goes
    };
    Result<std::unique_ptr<Ring>> open(const net::Link& link, Slot& slot, unsigned lane,
                                       const Opening& opening);
    Result<std::unique_ptr<Ring>> open_on(std::unique_ptr<verbs::Device> device, const Slot& slot,
                                          unsigned lane);
    Result<std::unique_ptr<Ring>> open_further(const net::Link& link, const Slot& slot, unsigned lane);
    Ring* further(const net::Link& link, Slot& slot, unsigned lane);
    Ring* least_used(const Slot& slot) noexcept;
    void wait_for(int ifindex);
    void try_again(int ifindex);

    net::KernelView& view_;
    Lanes lanes_;
    StraySegments strays_;
    std::function<void(Ring&)> on_failure_;
    std::function<bool(int)> on_freed_;
    std::map<int, Slot> slots_;
};

}  // namespace vma::ring
