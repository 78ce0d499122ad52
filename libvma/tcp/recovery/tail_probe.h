// SPDX-License-Identifier: BSD-2-Clause
// The tail loss probe (RFC 8985 section 7): what its answer says.
//
// A loss at the end of what there is to send shows in no later ACK. So when nothing was acknowledged for two
// round trips, the last segment is sent again, or a new one. Where the last one was lost, the probe repairs
// the loss unseen, and the window has to shrink all the same. Values only.
#pragma once

#include <cstdint>

#include "libvma/tcp/sequence.h"

namespace vma::tcp {

class TailProbe {
  public:
    // A probe has left, when SND.NXT was `nxt`; `again`: it was the last segment.
    void sent(std::uint32_t nxt, bool again) noexcept {
        under_way_ = true;
        again_ = again;
        end_ = nxt;
    }
    bool under_way() const noexcept { return under_way_; }
    bool is_duplicate(std::uint32_t end) const noexcept { return under_way_ && again_ && end == end_; }
    void forget() noexcept { under_way_ = false; }

    struct Ack {
        std::uint32_t ack = 0;
        bool duplicate_reported = false;  // a D-SACK for which is_duplicate()
        bool plain_duplicate = false;     // moves and reports nothing, and has no data
    };
    // An ACK has come. True: the probe, or what followed it, has repaired a loss.
    bool on_ack(const Ack& said) noexcept {
        if (!under_way_ || seq_before(said.ack, end_)) return false;
        if (!again_ || said.duplicate_reported) {
            under_way_ = false;  // new data arrived; or both, the segment and its probe
            return false;
        }
        if (seq_before(end_, said.ack)) {
            under_way_ = false;
            return true;
        }
        if (said.plain_duplicate) under_way_ = false;
        return false;
    }

  private:
    std::uint32_t end_ = 0;
    bool under_way_ = false, again_ = false;
};

}  // namespace vma::tcp
