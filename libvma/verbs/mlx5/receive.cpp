// SPDX-License-Identifier: BSD-2-Clause
// Receive requests: a list of pointers each. An invalid pointer ends a list that is shorter than its place.
#include <errno.h>

#include <cstring>

#include "libvma/verbs/mlx5/barriers.h"
#include "libvma/verbs/mlx5/queues.h"

namespace vma::verbs::mlx5 {
namespace {

inline void write_segment(std::uint8_t* at, const ibv_sge& sge) noexcept {
    const std::uint64_t segment[2] = {
        std::uint64_t{__builtin_bswap32(sge.lkey)} << 32 | __builtin_bswap32(sge.length),
        __builtin_bswap64(sge.addr)};
    std::memcpy(at, segment, sizeof segment);
}

// A request of any number of pieces. EINVAL: more than max_sge.
[[gnu::noinline]] int write_any(const ReceiveQueue& q, std::uint8_t* at, const ibv_recv_wr& wr) noexcept {
    if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > q.max_sge) return EINVAL;
    for (int i = 0; i < wr.num_sge; i++)
        if (wr.sg_list[i].length > 0x7fffffff) return EINVAL;  // the highest bit has another meaning
    const std::uint8_t* end = at + (std::size_t{1} << q.shift);
    for (int i = 0; i < wr.num_sge; i++) {
        if (wr.sg_list[i].length == 0) continue;  // the adapter would take 0 for 2^31
        write_segment(at, wr.sg_list[i]);
        at += sizeof(mlx5_wqe_data_seg);
    }
    if (at != end) write_segment(at, {0, 0, MLX5_INVALID_LKEY});
    return 0;
}

}  // namespace

int post_recv(ibv_qp* facade, ibv_recv_wr* wr, ibv_recv_wr** bad) noexcept {
    ReceiveQueue& q = static_cast<QueuePair&>(*facade).receive;
    const std::uint32_t before = q.posted, mask = q.mask, limit = q.done + q.max_requests;
    std::uint32_t posted = before;
    std::uint8_t* const buffer = q.buffer;
    std::uint64_t* const wr_ids = q.wr_ids;
    const bool single = q.shift == 4;  // room for one pointer: a list needs no end
    int error = 0;
    for (; wr != nullptr; wr = wr->next) {
        if (__builtin_expect(posted == limit, 0)) {
            error = ENOMEM;
            break;
        }
        const std::uint32_t position = posted & mask;
        if (__builtin_expect(single && wr->num_sge == 1 && wr->sg_list->length - 1 < 0x7fffffff, 1)) {
            write_segment(buffer + std::size_t{position} * sizeof(mlx5_wqe_data_seg), *wr->sg_list);
        } else {
            error = write_any(q, buffer + (std::size_t{position} << q.shift), *wr);
            if (error != 0) break;
        }
        wr_ids[position] = wr->wr_id;
        posted++;
    }
    if (__builtin_expect(error != 0, 0)) *bad = wr;
    if (__builtin_expect(posted != before, 1)) {
        q.posted = posted;
        // Receives need no doorbell: the adapter reads the record when it runs out of known requests.
        before_doorbell_record();
        *const_cast<volatile __be32*>(q.doorbell_record) =
            __builtin_bswap32(static_cast<std::uint16_t>(posted));
    }
    return error;
}

}  // namespace vma::verbs::mlx5
