// SPDX-License-Identifier: BSD-2-Clause
// Does a device carry frames? Decides once a second, from what its ring has counted.
//
// A driver may lose the program that steers (vmxnet3 of Linux 6.12 does when its link goes), or read a send
// queue no more, and tell nobody. The kernel's own queues work meanwhile, so it serves the sockets better.
#pragma once

#include <cstdint>

namespace vma::ring {

class Silence {
  public:
    struct Seen {
        bool link = true;          // the interface is up and has a carrier
        bool sends_stand = false;  // requests wait for a completion, and none has come since the last look
        std::uint64_t frames = 0;  // that the ring has received
        std::uint64_t strays = 0;  // segments of its connections that the kernel has received
    };
    // Why the kernel is to serve the ring's sockets; null: the device is not silent.
    const char* look(const Seen& seen) noexcept {
        if (!seen.link || seen.frames != frames_) {
            strays_before_ = seen.strays;
            deaf_ = 0;
        } else if (seen.strays != strays_before_) {
            deaf_++;
        }
        frames_ = seen.frames;
        dumb_ = seen.link && seen.sends_stand ? dumb_ + 1 : 0;
        if (dumb_ >= kDumb) return "nothing that was sent has left for 5 s";
        if (deaf_ >= kDeaf && seen.strays - strays_before_ >= kStrays)
            return "for 3 s segments of its connections reached the kernel, and none its queues";
        return nullptr;
    }

  private:
    static constexpr unsigned kDumb = 5, kDeaf = 3;  // looks
    // A peer that says little, and that in fragments, is no reason.
    static constexpr std::uint64_t kStrays = 32;

    std::uint64_t frames_ = 0, strays_before_ = 0;
    unsigned dumb_ = 0, deaf_ = 0;
};

}  // namespace vma::ring
