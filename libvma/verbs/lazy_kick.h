// SPDX-License-Identifier: BSD-2-Clause
// Tells when to submit posted frames to the kernel: the policy of lazy transmission, without clock or device.
//
// A kick costs more than all other work of a sender, so frames of a burst share one. A frame belongs to a
// burst if it is posted within kBurstGap of the one before, with no receive in between. (A program that turns
// to receiving waits for an answer, so from then on no frame may be held back.) The first kLoneFrames leave
// at once, so the only frame of a request does, too. Later frames wait for kMaxHeld frames, for a receive
// call (the ring flushes), or until they are as old as the hold limit. The sender sees their age with its
// next frame. The flusher thread sees it if there is no next frame. A sender that will post more frames at
// once calls gather(). What is left when it ends waits only if the burst had begun before: a lone call's
// frames leave with it.
//
// A run of kLongRun frames survives gaps up to four times as long: an interrupt does not turn a bulk sender
// into a sender of lone frames.
#pragma once

#include <cstdint>

namespace vma::verbs {

class LazyKick {
  public:
    static constexpr unsigned kMaxHeld = 32;  // the kernel transmits as many in one sendto() (max_tx_budget)
    // Frames of a burst that still leave at once. An event loop that answers some connections is no bulk
    // sender. Its held frames would keep the flusher awake, whose timer costs more than the kicks.
    static constexpr unsigned kLoneFrames = 64;
    static constexpr unsigned kLongRun = 256;
    static constexpr std::uint64_t kBurstGapNs =
        2000;  // half a round trip on the fastest wire; a kick is about 600 ns
    static constexpr std::uint64_t kHoldLimitNs =
        35000;  // the promise is 50 us; the rest is for waking the flusher

    // `hold_limit_ticks`: age of the oldest held frame at which the next one has them kicked.
    explicit LazyKick(std::uint64_t burst_gap_ticks, unsigned lone_frames = kLoneFrames,
                      std::uint64_t hold_limit_ticks = UINT64_MAX) noexcept
        : gap_(burst_gap_ticks), hold_limit_(hold_limit_ticks), lone_frames_(lone_frames) {}

    // A frame was posted at `now` (ticks). True: kick now. False: the frame is held.
    bool posted(std::uint64_t now) noexcept {
        held_++;
        run_ = in_burst_ && now - last_ < (run_ < kLongRun ? gap_ : 4 * gap_) ? run_ + 1 : 1;
        in_burst_ = true;
        last_ = now;
        if (gathering_) {
            gathered_++;
            if (held_ == 1) held_since_ = now;
            return held_ >= kMaxHeld;
        }
        if (run_ > lone_frames_ && held_ < kMaxHeld) {
            if (held_ == 1) held_since_ = now;
            return now - held_since_ >= hold_limit_;
        }
        return true;
    }
    // The kick was done at `now`; its duration does not count as a gap.
    void kicked(std::uint64_t now) noexcept {
        held_ = 0;
        last_ = now;
    }
    // The same for a kick that another thread may have made meanwhile, up to `end`.
    void kick_ended(std::uint64_t end) noexcept {
        if (static_cast<std::int64_t>(end - last_) > 0) last_ = end;
    }
    // The program turned to receiving: the next frame is a lone one.
    void end_burst() noexcept { in_burst_ = false; }

    // All frames wait, even the first, until end_gather().
    void gather() noexcept {
        gathering_ = true;
        gathered_ = 0;
    }
    // True: kick what is held now. False: nothing is, or its burst goes on and it waits as other frames do.
    bool end_gather(std::uint64_t now) noexcept {
        gathering_ = false;
        const bool goes_on = in_burst_ && run_ > gathered_ && run_ - gathered_ > lone_frames_;
        return held_ != 0 && (!goes_on || now - held_since_ >= hold_limit_);
    }
    bool gathering() const noexcept { return gathering_; }

    unsigned held() const noexcept { return held_; }
    std::uint64_t held_since() const noexcept { return held_since_; }

  private:
    std::uint64_t gap_, hold_limit_;
    unsigned lone_frames_;
    std::uint64_t last_ = 0, held_since_ = 0;
    unsigned held_ = 0, run_ = 0;  // run_: frames of this burst
    unsigned gathered_ = 0;        // those since gather()
    bool in_burst_ = false, gathering_ = false;
};

}  // namespace vma::verbs
