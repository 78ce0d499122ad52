// SPDX-License-Identifier: BSD-2-Clause
// The send requests of a software device between post and completion.
//
// A request is done when all of its pieces are, and pieces may be done in any order. As verbs promise,
// completions come in the order of posting, and only for signalled requests.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <vector>

namespace vma::verbs {

class SendSlots {
  public:
    // `count` is a power of two: requests that may be open at a time.
    void resize(std::uint32_t count) {
        slots_.resize(count);
        mask_ = count - 1;
    }
    bool full() const noexcept { return head_ - tail_ > mask_; }
    // The slot that the next add() takes.
    std::uint32_t next() const noexcept { return head_ & mask_; }
    // The caller checks full() before.
    void add(const ibv_send_wr& wr) noexcept {
        slots_[head_++ & mask_] = {wr.wr_id, static_cast<std::uint16_t>(wr.num_sge),
                                   (wr.send_flags & IBV_SEND_SIGNALED) != 0};
    }
    void piece_done(std::uint32_t slot) noexcept { slots_[slot].pieces_left--; }

    // Takes done requests, in order, and reports the signalled ones as completions of queue pair `qp_num`.
    // Returns the number of completions written.
    int poll(int count, ibv_wc* wc, std::uint32_t qp_num) noexcept {
        int n = 0;
        while (tail_ != head_ && n < count) {
            const Slot& slot = slots_[tail_ & mask_];
            if (slot.pieces_left != 0) break;
            tail_++;
            if (!slot.signalled) continue;
            wc[n].wr_id = slot.wr_id;
            wc[n].status = IBV_WC_SUCCESS;
            wc[n].opcode = IBV_WC_SEND;
            wc[n].qp_num = qp_num;
            wc[n].wc_flags = 0;
            n++;
        }
        return n;
    }

    // Forgets the requests that are not done and never will be; calls tell(wr_id) for each one, in order.
    template <class F>
    void abandon(F&& tell) {
        std::uint32_t at = tail_;
        while (at != head_ && slots_[at & mask_].pieces_left == 0) at++;
        for (std::uint32_t i = at; i != head_; i++) tell(slots_[i & mask_].wr_id);
        head_ = at;
    }

  private:
    struct Slot {
        std::uint64_t wr_id;
        std::uint16_t pieces_left;
        bool signalled;
    };
    std::vector<Slot> slots_;
    std::uint32_t mask_ = 0;
    std::uint32_t head_ = 0, tail_ = 0;  // running
};

}  // namespace vma::verbs
