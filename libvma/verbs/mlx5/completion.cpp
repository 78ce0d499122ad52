// SPDX-License-Identifier: BSD-2-Clause
// Completions. The owner bit of each entry tells whether the adapter has written it; the bit's meaning
// changes with each lap of the queue.
#include <atomic>
#include <cstring>

#include "libvma/runtime/log.h"
#include "libvma/verbs/device.h"
#include "libvma/verbs/mlx5/barriers.h"
#include "libvma/verbs/mlx5/queues.h"

namespace vma::verbs::mlx5 {
namespace {

void give_back(CompletionQueue& cq, std::uint32_t index) noexcept {
    cq.consumer_index.store(index, std::memory_order_relaxed);
    before_consumer_index();
    *const_cast<volatile __be32*>(cq.doorbell_record) = __builtin_bswap32(index & 0xffffff);
}

// A send completion also completes all requests posted before.
inline const SendSlot& finish_sends(SendQueue& q, std::uint16_t position) noexcept {
    const SendSlot& slot = q.slots[position & q.mask];
    q.set_done(slot.end_block, slot.end_request);
    return slot;
}

ibv_wc_status status_of(std::uint8_t syndrome) noexcept {
    switch (syndrome) {
        case MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR:
            return IBV_WC_LOC_LEN_ERR;
        case MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR:
            return IBV_WC_LOC_QP_OP_ERR;
        case MLX5_CQE_SYNDROME_LOCAL_PROT_ERR:
            return IBV_WC_LOC_PROT_ERR;
        case MLX5_CQE_SYNDROME_WR_FLUSH_ERR:
            return IBV_WC_WR_FLUSH_ERR;
        case MLX5_CQE_SYNDROME_MW_BIND_ERR:
            return IBV_WC_MW_BIND_ERR;
        case MLX5_CQE_SYNDROME_BAD_RESP_ERR:
            return IBV_WC_BAD_RESP_ERR;
        case MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR:
            return IBV_WC_LOC_ACCESS_ERR;
        case MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR:
            return IBV_WC_REM_INV_REQ_ERR;
        case MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR:
            return IBV_WC_REM_ACCESS_ERR;
        case MLX5_CQE_SYNDROME_REMOTE_OP_ERR:
            return IBV_WC_REM_OP_ERR;
        case MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR:
            return IBV_WC_RETRY_EXC_ERR;
        case MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR:
            return IBV_WC_RNR_RETRY_EXC_ERR;
        case MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR:
            return IBV_WC_REM_ABORT_ERR;
        default:
            return IBV_WC_GENERAL_ERR;
    }
}

// Takes any completion but a send or a receive that succeeded. False: the completion belongs to no QP, and is
// left out.
[[gnu::noinline, gnu::cold]] bool other_completion(CompletionQueue& cq, const mlx5_cqe64* cqe,
                                                   std::uint8_t opcode, ibv_wc* wc) noexcept {
    QueuePair* qp = opcode == MLX5_CQE_REQ_ERR    ? cq.sender
                    : opcode == MLX5_CQE_RESP_ERR ? cq.receiver
                                                  : nullptr;
    if (qp == nullptr) {
        log::once(log::Level::warn,
                  "mlx5: CQ {} has a completion with opcode {}, which belongs to no queue pair", cq.number,
                  opcode);
        return false;
    }
    const auto& error = *reinterpret_cast<const mlx5_err_cqe*>(cqe);
    *wc = {};
    wc->status = status_of(error.syndrome);
    wc->vendor_err = error.vendor_err_synd;
    wc->qp_num = qp->qp_num;
    if (opcode == MLX5_CQE_REQ_ERR) {
        wc->opcode = IBV_WC_SEND;
        wc->wr_id = finish_sends(qp->send, __builtin_bswap16(error.wqe_counter)).wr_id;
    } else {
        wc->opcode = IBV_WC_RECV;
        wc->wr_id = qp->receive.wr_ids[qp->receive.done++ & qp->receive.mask];
    }
    if (wc->status != IBV_WC_WR_FLUSH_ERR)
        log::once(log::Level::warn, "mlx5: a {} request of QP {} failed: syndrome {:#x}, vendor's {:#x}",
                  opcode == MLX5_CQE_REQ_ERR ? "send" : "receive", qp->qp_num, error.syndrome,
                  error.vendor_err_synd);
    return true;
}

inline void fetch(const std::uint8_t* from, std::uint32_t lines) noexcept {
    for (; lines != 0; lines--, from += kCacheLine) __builtin_prefetch(from);
}

// Where a posted receive puts its frame.
inline const std::uint8_t* frame_of(const ReceiveQueue& q, std::uint32_t index) noexcept {
    const auto* segment =
        reinterpret_cast<const mlx5_wqe_data_seg*>(q.buffer + (std::size_t{index & q.mask} << q.shift));
    return reinterpret_cast<const std::uint8_t*>(__builtin_bswap64(segment->addr));
}

// Writes status and opcode as one word: they are neighbours in ibv_wc.
inline void set_success(ibv_wc* wc, ibv_wc_opcode opcode) noexcept {
    static_assert(offsetof(ibv_wc, opcode) == offsetof(ibv_wc, status) + 4 && IBV_WC_SUCCESS == 0);
    const std::uint64_t both = std::uint64_t{opcode} << 32;
    std::memcpy(&wc->status, &both, sizeof both);
}

inline void take_send(QueuePair& qp, const mlx5_cqe64* cqe, ibv_wc* wc) noexcept {
    wc->wr_id = finish_sends(qp.send, __builtin_bswap16(cqe->wqe_counter)).wr_id;
    set_success(wc, __builtin_bswap32(cqe->sop_drop_qpn) >> 24 == MLX5_OPCODE_TSO ? IBV_WC_TSO : IBV_WC_SEND);
    wc->qp_num = qp.qp_num;
    wc->wc_flags = 0;
}

// Walks through the entries that the adapter has written.
class Walk {
  public:
    explicit Walk(const CompletionQueue& cq) noexcept
        : size_(std::size_t{1} << cq.shift),
          first_(cq.last64),
          end_(cq.last64 + (std::size_t{cq.entries} << cq.shift)),
          index_(cq.consumer_index.load(std::memory_order_relaxed)),
          owner_((index_ & cq.entries) != 0),
          at_(cq.last64 + (std::size_t{index_ & (cq.entries - 1)} << cq.shift)) {}

    const mlx5_cqe64* entry() const noexcept { return reinterpret_cast<const mlx5_cqe64*>(at_); }
    std::uint32_t index() const noexcept { return index_; }
    // The entry's opcode, or MLX5_CQE_INVALID if the adapter has not written it yet. The owner bit of written
    // entries changes with each lap. A never written entry has the first lap's bit, but the invalid opcode.
    std::uint8_t opcode() const noexcept {
        const std::uint8_t op_own = *static_cast<const volatile std::uint8_t*>(&entry()->op_own);
        if (((op_own ^ owner_) & MLX5_CQE_OWNER_MASK) != 0) return MLX5_CQE_INVALID;
        after_owner_bit();
        return op_own >> 4;
    }
    void next() noexcept {
        index_++;
        at_ += size_;
        if (__builtin_expect(at_ == end_, 0)) {
            at_ = first_;
            owner_ ^= 1;
        }
    }

  private:
    const std::size_t size_;
    const std::uint8_t *const first_, *const end_;
    std::uint32_t index_;
    std::uint8_t owner_;
    const std::uint8_t* at_;
};

// Takes one completion of any kind. False: the completion belongs to no QP, and is left out.
bool take_any(CompletionQueue& cq, const mlx5_cqe64* cqe, std::uint8_t opcode, ibv_wc* wc) noexcept {
    if (__builtin_expect(opcode != MLX5_CQE_REQ || cq.sender == nullptr, 0))
        return other_completion(cq, cqe, opcode, wc);
    take_send(*cq.sender, cqe, wc);
    return true;
}

// Polls the receive CQ, and fetches once the values that all frames of a batch share.
int poll_receives(CompletionQueue& cq, int count, ibv_wc* wc) noexcept {
    Walk walk(cq);
    ReceiveQueue& q = cq.receiver->receive;
    const std::uint32_t mask = q.mask, tag_mask = cq.tag_mask, qp_num = cq.receiver->qp_num;
    const std::uint64_t* const wr_ids = q.wr_ids;
    const std::uint16_t checksum_good = cq.checksum_good;
    const std::uint32_t prefetch_lines = cq.prefetch_lines, before = walk.index();
    Clock* const clock = cq.clock != nullptr && Device::arrival_times_wanted() ? cq.clock : nullptr;
    std::uint32_t done = q.done;
    ibv_wc *out = wc, *const end = wc + count;
    for (; out < end; walk.next()) {
        const mlx5_cqe64* cqe = walk.entry();
        const std::uint8_t opcode = walk.opcode();
        if (__builtin_expect(opcode != MLX5_CQE_RESP_SEND, 0)) {
            if (opcode == MLX5_CQE_INVALID) break;
            q.done = done;
            if (take_any(cq, cqe, opcode, out)) out++;
            done = q.done;
            continue;
        }
        const std::uint32_t length = __builtin_bswap32(cqe->byte_cnt),
                            tag = __builtin_bswap32(cqe->sop_drop_qpn) & tag_mask;
        static_assert(offsetof(mlx5_cqe64, l4_hdr_type_etc) == offsetof(mlx5_cqe64, hds_ip_ext) + 1);
        std::uint16_t sums;
        std::memcpy(&sums, &cqe->hds_ip_ext, sizeof sums);
        const bool good = (sums & kChecksumMask) == checksum_good;
        out->wr_id = wr_ids[done & mask];
        set_success(out, IBV_WC_RECV);
        out->vendor_err = tag;
        out->byte_len = length;
        out->qp_num = qp_num;
        out->wc_flags = (good ? static_cast<unsigned>(IBV_WC_IP_CSUM_OK) : 0u) | (tag != 0 ? kWcFlowTag : 0u);
        if (clock != nullptr) set_arrival_ns(*out, clock->to_ns(__builtin_bswap64(cqe->timestamp)));
        if (prefetch_lines != 0) {
            const std::uint32_t lines = static_cast<std::uint32_t>((length + kCacheLine - 1) / kCacheLine);
            fetch(frame_of(q, done), lines < prefetch_lines ? lines : prefetch_lines);
        }
        done++;
        out++;
    }
    q.done = done;
    if (walk.index() != before)
        give_back(cq, walk.index());
    else if (__builtin_expect(cq.prefetch_lines_before_poll != 0, 0))
        fetch(frame_of(q, done), cq.prefetch_lines_before_poll);
    return static_cast<int>(out - wc);
}

}  // namespace

int poll_cq(ibv_cq* facade, int count, ibv_wc* wc) noexcept {
    CompletionQueue& cq = static_cast<CompletionQueue&>(*facade);
    if (cq.receiver != nullptr) return poll_receives(cq, count, wc);
    Walk walk(cq);
    const std::uint32_t before = walk.index();
    ibv_wc *out = wc, *const end = wc + count;
    for (; out < end; walk.next()) {
        const std::uint8_t opcode = walk.opcode();
        if (opcode == MLX5_CQE_INVALID) break;
        if (take_any(cq, walk.entry(), opcode, out)) out++;
    }
    if (walk.index() != before) give_back(cq, walk.index());
    return static_cast<int>(out - wc);
}

int req_notify_cq(ibv_cq* facade, int solicited_only) noexcept {
    CompletionQueue& cq = static_cast<CompletionQueue&>(*facade);
    // The number of events so far tells the adapter whether this arming is new, or one that it has answered
    // already.
    const std::uint32_t number = cq.armings.load(std::memory_order_relaxed) & 3;
    const std::uint32_t index = cq.consumer_index.load(std::memory_order_relaxed) & 0xffffff;
    const std::uint32_t what = solicited_only != 0 ? MLX5_CQ_DB_REQ_NOT_SOL : MLX5_CQ_DB_REQ_NOT;
    const std::uint32_t word = __builtin_bswap32(number << 28 | what | index);
    before_doorbell_record();
    const_cast<volatile __be32*>(cq.doorbell_record)[1] = word;
    before_register();
    write_register(cq.uar + MLX5_CQ_DOORBELL, std::uint64_t{__builtin_bswap32(cq.number)} << 32 | word);
    after_register();
    return 0;
}

void discard_completions(CompletionQueue& cq) noexcept {
    Walk walk(cq);
    const std::uint32_t before = walk.index();
    while (walk.opcode() != MLX5_CQE_INVALID) walk.next();
    if (walk.index() != before) give_back(cq, walk.index());
}

}  // namespace vma::verbs::mlx5
