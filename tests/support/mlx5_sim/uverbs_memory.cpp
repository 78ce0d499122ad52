// SPDX-License-Identifier: BSD-2-Clause
// Protection domains and memory regions.
#include <infiniband/verbs.h>
#include <rdma/mlx5-abi.h>
#include <sys/mman.h>

#include <cerrno>

#include "tests/support/mlx5_sim/uverbs.h"

namespace mlx5_sim {
namespace {

// Is all of it mapped? The kernel pins the pages and fails with EFAULT where there are none.
bool is_mapped(std::uint64_t start, std::uint64_t length) {
    constexpr std::uint64_t kChunk = 256 << 20;
    std::vector<unsigned char> resident(kChunk / kPageBytes);
    const std::uint64_t end = (start + length + kPageBytes - 1) / kPageBytes * kPageBytes;
    for (std::uint64_t at = start / kPageBytes * kPageBytes; at < end; at += kChunk) {
        void* const page = reinterpret_cast<void*>(at);  // NOLINT(performance-no-int-to-ptr)
        if (::mincore(page, std::min(kChunk, end - at), resident.data()) != 0) return false;
    }
    return true;
}

}  // namespace

int alloc_pd(Context& context, Request& request) {
    ib_uverbs_alloc_pd_resp resp{};
    resp.pd_handle = context.pds.add({});
    request.answer(resp);
    request.answer_driver(mlx5_ib_alloc_pd_resp{context.device.next_pdn++});
    return 0;
}

int dealloc_pd(Context& context, Request& request) {
    const auto handle = request.core<ib_uverbs_dealloc_pd>().pd_handle;
    const PdObject* const pd = context.pds.find(handle);
    if (pd == nullptr) return ENOENT;
    if (pd->users != 0) return EBUSY;
    context.pds.erase(handle);
    return 0;
}

int reg_mr(Context& context, Request& request) {
    const auto wish = request.core<ib_uverbs_reg_mr>();
    constexpr std::uint32_t kKnown = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                     IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                     IBV_ACCESS_RELAXED_ORDERING | IBV_ACCESS_HUGETLB;
    constexpr std::uint32_t kRemoteWrites = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    if (wish.start % kPageBytes != wish.hca_va % kPageBytes) return EINVAL;
    if ((wish.access_flags & ~kKnown) != 0) return EOPNOTSUPP;
    if ((wish.access_flags & kRemoteWrites) != 0 && (wish.access_flags & IBV_ACCESS_LOCAL_WRITE) == 0)
        return EINVAL;
    PdObject* const pd = context.pds.find(wish.pd_handle);
    if (pd == nullptr) return EINVAL;
    if (wish.length == 0 || wish.start + wish.length < wish.start) return EINVAL;
    if (!is_mapped(wish.start, wish.length)) return EFAULT;
    if (wish.hca_va != wish.start)
        return EOPNOTSUPP;  // regions of the model have the addresses of the program

    // As keys of the hardware look: a number, and 8 bits that differ from its last use.
    const std::uint32_t lkey = context.device.next_key++ << 8 | 0xa5;
    context.device.nic.add_region(lkey, wish.start, wish.length);
    ++pd->users;
    ib_uverbs_reg_mr_resp resp{};
    resp.mr_handle = context.mrs.add({wish.pd_handle, lkey});
    resp.lkey = lkey;
    resp.rkey = lkey;
    request.answer(resp);
    return 0;
}

int dereg_mr(Context& context, Request& request) {
    const auto handle = request.core<ib_uverbs_dereg_mr>().mr_handle;
    if (context.mrs.find(handle) == nullptr) return ENOENT;
    destroy_mr(context, handle);
    return 0;
}

void destroy_mr(Context& context, std::uint32_t handle) {
    const MrObject& mr = *context.mrs.find(handle);
    context.device.nic.remove_region(mr.lkey);
    --context.pds.find(mr.pd)->users;
    context.mrs.erase(handle);
}

}  // namespace mlx5_sim
