// SPDX-License-Identifier: BSD-2-Clause
// One RAW_PACKET QP on a simulated adapter through the real libibverbs and libmlx5, with libmlx5's data path
// or ours. Tests and a benchmark need it, so it knows nothing of GoogleTest: what fails ends the process.
#pragma once

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "libvma/verbs/mlx5/direct.h"

namespace mlx5_sim::test {

struct SideOptions {
    bool direct = true;
    std::uint32_t sends = 64, receives = 64;        // of the queues
    std::uint32_t send_cqes = 0, receive_cqes = 0;  // 0: as many
    std::uint32_t max_sge = 4, max_inline = 204, max_tso_header = 0;
    std::uint32_t cqe_size = 64;
    bool with_channel = false;
    vma::verbs::mlx5::Config config{.rx_checksum = true};
    vma::verbs::mlx5::QpLimits limits{};         // of the facade; 0: as the QP was made
    ibv_context* context = nullptr;              // of another Side, to share it; null: one of its own
    vma::verbs::mlx5::Direct* shared = nullptr;  // likewise
};

class Side {
  public:
    explicit Side(const std::string& device, const SideOptions& options = {});
    ~Side();
    Side(const Side&) = delete;
    Side& operator=(const Side&) = delete;

    static constexpr std::uint32_t kSlot = 4096, kSlots = 512;
    std::uint8_t* slot(std::uint64_t index) { return memory_.data() + index % kSlots * kSlot; }
    ibv_sge sge(std::uint64_t index, std::uint32_t from, std::uint32_t length) {
        return {reinterpret_cast<std::uintptr_t>(slot(index)) + from, length, mr_->lkey};
    }
    // The slots that send() and receive() use for a request of that number.
    static constexpr std::uint32_t kHalf = kSlots / 2;
    std::uint8_t* tx_slot(std::uint64_t id) { return slot(kHalf + id % kHalf); }
    std::uint8_t* rx_slot(std::uint64_t id) { return slot(id % kHalf); }
    // Copies the frame to its slot and sends it from there. The answer of ibv_post_send().
    int send(std::uint64_t id, std::span<const std::uint8_t> frame, unsigned flags = IBV_SEND_SIGNALED);
    // A receive into its slot.
    int receive(std::uint64_t id);
    std::vector<ibv_wc> poll(ibv_cq* cq, int count = 16);
    // A rule that takes every frame.
    void take_all();
    void to(ibv_qp_state state);
    // RESET and back to work.
    void restart();

    // What a ring uses: facades if direct.
    ibv_qp* qp = nullptr;
    ibv_cq *send_cq = nullptr, *recv_cq = nullptr;
    ibv_qp* real_qp = nullptr;
    ibv_cq *real_send_cq = nullptr, *real_recv_cq = nullptr;
    ibv_context* context = nullptr;
    ibv_comp_channel* channel = nullptr;
    vma::verbs::mlx5::Direct* direct = nullptr;  // null: libmlx5's data path
    std::string refused;                         // why wrap_qp() would not; then `qp` is null

  private:
    bool owns_context_ = false;
    std::unique_ptr<vma::verbs::mlx5::Direct> own_direct_;
    ibv_pd* pd_ = nullptr;
    ibv_mr* mr_ = nullptr;
    ibv_flow* flow_ = nullptr;
    std::vector<std::uint8_t> memory_;
};

}  // namespace mlx5_sim::test
