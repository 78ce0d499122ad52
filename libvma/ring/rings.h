// SPDX-License-Identifier: BSD-2-Clause
// Which interface gets which ring: one for each netdev, made when the first flow needs it.
//
// An interface that cannot be offloaded is remembered with its reason for a while. So a program with many
// sockets neither tries nor logs again and again.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "libvma/net/view.h"
#include "libvma/ring/ring.h"
#include "libvma/runtime/internal_fd.h"

namespace vma::ring {

class Rings {
  public:
    explicit Rings(net::KernelView& view) noexcept : view_(view) {}

    // The ring of an interface, or null; then the reason has been logged once, and is put into `why`. Callers
    // serialise.
    Ring* get(int ifindex, std::string* why = nullptr);
    // The ring if there is one already, and its device works.
    Ring* find(int ifindex) noexcept;
    // What to do when the device of a ring fails (RingConfig::on_failure). Before the first get().
    void on_failure(std::function<void(Ring&)> tell) { on_failure_ = std::move(tell); }
    // `tell` is called when another process that had the interface may have let go of it. It calls retry()
    // and returns what retry() says. Internal thread, no lock held. Before the first get().
    void on_freed(std::function<bool(int ifindex)> tell) { on_freed_ = std::move(tell); }
    // get() of an interface that another process had. True: that process still has it, and on_freed() comes
    // again. Callers serialise, as of get().
    bool retry(int ifindex);
    // Does another process have the interface, so that on_freed() tells when it may be free? Callers
    // serialise, as of get().
    bool held(int ifindex) const noexcept {
        auto slot = slots_.find(ifindex);
        return slot != slots_.end() && slot->second.held;
    }
    // Ring::check() of all. Once a second or so; callers serialise.
    void check() noexcept;
    // Would get() try at all? (Ethernet, up, no loopback, not a port of a bridge or bond, named by
    // VMA_XDP_INTERFACES unless there are RDMA devices.) `why` says what is wrong.
    static bool eligible(const net::Link& link, std::string& why);
    template <class F>
    void for_each(F&& visit) {
        for (auto& [ifindex, slot] : slots_)
            if (slot.ring != nullptr) visit(*slot.ring);
    }
    // What the rings have counted, a line for each interface with what is not 0, at level debug.
    void log_counters();
    void link_changed(const net::Link& link) noexcept;
    // Addresses, routes or rp_filter changed: rings ask anew from which sources they may take frames. May
    // throw std::bad_alloc.
    void sources_changed();

  private:
    Result<std::unique_ptr<Ring>> open(const net::Link& link, clock::Nsec patience);
    void wait_for(int ifindex);
    void try_again(int ifindex);

    struct Slot {
        std::unique_ptr<Ring> ring;
        clock::Time retry_at;
        std::string why;                     // there is no ring
        bool held = false, waiting = false;  // by another process; and on_freed_ will be called
        InternalFd holder;                   // hangs up when that process goes
    };
    net::KernelView& view_;
    std::function<void(Ring&)> on_failure_;
    std::function<bool(int)> on_freed_;
    std::map<int, Slot> slots_;
};

}  // namespace vma::ring
