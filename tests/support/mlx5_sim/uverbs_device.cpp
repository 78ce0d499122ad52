// SPDX-License-Identifier: BSD-2-Clause
// Commands about the device as a whole: the context, what the device can do, its port, completion channels.
//
// The numbers are those of a ConnectX-5 where the simulator has what they count, and 0 where it has not.
#include <endian.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/mlx5-abi.h>
#include <unistd.h>

#include <bit>
#include <cerrno>

#include "tests/support/mlx5_sim/uverbs.h"

namespace mlx5_sim {
namespace {

constexpr std::uint32_t kBfRegBytes = 512;  // two buffers of 256
constexpr std::uint32_t kMaxBfRegs = 512;
constexpr std::uint32_t kBfRegsPerUar = 2;
constexpr std::uint32_t kMaxDescriptorBytes = 512;  // of one work request
constexpr std::uint32_t kMaxWr = 1 << 15;
constexpr std::uint32_t kMaxTso = 256 * 1024;
constexpr std::uint32_t kRawPacket = 1u << IBV_QPT_RAW_PACKET;

std::uint64_t guid(const Device& device) {
    return std::bit_cast<std::uint64_t>(eui64(device.identity.mac, false));
}

ib_uverbs_query_device_resp describe(const Device& device) {
    ib_uverbs_query_device_resp resp{};
    resp.fw_ver = 16ull << 32 | 35ull << 16 | 2000;
    resp.node_guid = guid(device);
    resp.sys_image_guid = guid(device);
    resp.max_mr_size = ~0ull;
    resp.page_size_cap = ~0xfffull;
    resp.vendor_id = 0x02c9;  // as the driver reports it, not the PCI vendor
    resp.vendor_part_id = kDeviceId;
    resp.max_qp = 1 << 18;
    resp.max_qp_wr = kMaxWr;
    resp.device_cap_flags = IB_UVERBS_DEVICE_PORT_ACTIVE_EVENT | IB_UVERBS_DEVICE_SYS_IMAGE_GUID |
                            IB_UVERBS_DEVICE_RAW_IP_CSUM | IB_UVERBS_DEVICE_MANAGED_FLOW_STEERING;
    resp.max_sge = kMaxSge;
    resp.max_sge_rd = kMaxSge;
    resp.max_cq = 1 << 24;
    resp.max_cqe = (1 << 22) - 1;
    resp.max_mr = 1 << 24;
    resp.max_pd = 1 << 24;
    resp.max_pkeys = 1;
    resp.local_ca_ack_delay = 16;
    resp.phys_port_cnt = 1;
    return resp;
}

}  // namespace

int get_context(Context& context, Request& request) {
    mlx5_ib_alloc_ucontext_req_v2 wish = request.driver<mlx5_ib_alloc_ucontext_req_v2>();
    constexpr std::size_t kSecond = offsetof(mlx5_ib_alloc_ucontext_req_v2, max_cqe_version);
    if (request.driver_bytes() != sizeof(mlx5_ib_alloc_ucontext_req) && request.driver_bytes() < kSecond)
        return EINVAL;
    if (wish.comp_mask != 0 || wish.reserved0 != 0 || wish.reserved1 != 0 || wish.reserved2 != 0)
        return EOPNOTSUPP;
    if ((wish.flags & MLX5_IB_ALLOC_UCTX_DEVX) != 0) return EOPNOTSUPP;  // libmlx5 asks again without
    if (wish.flags != 0 || wish.total_num_bfregs == 0) return EINVAL;
    const std::uint32_t bfregs = (wish.total_num_bfregs + kBfRegsPerUar - 1) / kBfRegsPerUar * kBfRegsPerUar;
    if (bfregs > kMaxBfRegs) return ENOMEM;
    if (wish.num_low_latency_bfregs > bfregs - 1) return EINVAL;

    auto async = EventPipe::open(context.engine, sizeof(ib_uverbs_async_event_desc));
    if (!async) return async.error();
    if (!context.make_pages(request.fd(), bfregs / kBfRegsPerUar)) {
        const int error = errno;
        ::close(async->fd);
        return error;
    }
    context.async = std::move(async->pipe);
    context.low_latency_bfregs = wish.num_low_latency_bfregs;
    context.bfreg_users.assign(bfregs, 0);
    context.has_ucontext = true;

    ib_uverbs_get_context_resp resp{};
    resp.async_fd = static_cast<std::uint32_t>(async->fd);
    resp.num_comp_vectors = 1;
    request.answer(resp);

    mlx5_ib_alloc_ucontext_resp mlx5{};
    mlx5.qp_tab_size = 1 << 18;
    mlx5.bf_reg_size = kBfRegBytes;
    mlx5.tot_bfregs = bfregs;
    mlx5.cache_line_size = 64;
    mlx5.max_sq_desc_sz = kMaxDescriptorBytes;
    mlx5.max_rq_desc_sz = kMaxDescriptorBytes;
    mlx5.max_send_wqebb = kMaxWr;
    mlx5.max_recv_wr = kMaxWr;
    mlx5.num_ports = 1;
    mlx5.comp_mask = MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_CORE_CLOCK_OFFSET;
    mlx5.response_length = static_cast<__u32>(std::min(sizeof(mlx5), request.driver_out_bytes()));
    mlx5.cqe_version = std::min<__u8>(wish.max_cqe_version, 1);
    mlx5.cmds_supp_uhw = MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE;
    mlx5.eth_min_inline = MLX5_USER_INLINE_MODE_NONE;  // the adapter can read the headers itself
    mlx5.clock_info_versions = 1 << MLX5_IB_CLOCK_INFO_V1;
    mlx5.log_uar_size = std::countr_zero(kPageBytes);
    mlx5.num_uars_per_page = 1;
    request.answer_driver(mlx5);
    return 0;
}

int query_device(Context& context, Request& request) {
    request.answer(describe(context.device));
    return 0;
}

int query_device_ex(Context& context, Request& request) {
    const auto asked = request.core<ib_uverbs_ex_query_device>();
    if (asked.comp_mask != 0 || asked.reserved != 0) return EINVAL;
    ib_uverbs_ex_query_device_resp resp{};
    resp.base = describe(context.device);
    resp.response_length = static_cast<__u32>(std::min(sizeof(resp), request.out_bytes()));
    resp.timestamp_mask = 0x7fffffffffffffff;
    resp.hca_core_clock = kClockKHz;
    resp.device_cap_flags_ex = resp.base.device_cap_flags;
    resp.raw_packet_caps = IB_UVERBS_RAW_PACKET_CAP_IP_CSUM;
    resp.cq_moderation_caps.max_cq_moderation_count = 0xffff;
    resp.cq_moderation_caps.max_cq_moderation_period = kMaxModerationUsec;
    request.answer(resp);

    mlx5_ib_query_device_resp mlx5{};
    mlx5.response_length = static_cast<__u32>(std::min(sizeof(mlx5), request.driver_out_bytes()));
    mlx5.tso_caps = {kMaxTso, kRawPacket};
    request.answer_driver(mlx5);
    return 0;
}

int query_port(Context& context, Request& request) {
    if (request.core<ib_uverbs_query_port>().port_num != 1) return EINVAL;
    const bool active = context.device.port_active;
    ib_uverbs_query_port_resp resp{};
    resp.port_cap_flags = IB_UVERBS_PCF_CM_SUP;
    resp.max_msg_sz = 1 << 30;
    resp.gid_tbl_len = kGids;
    resp.pkey_tbl_len = 1;
    resp.state = active ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    resp.max_mtu = IBV_MTU_4096;
    resp.active_mtu = IBV_MTU_1024;  // what fits into an Ethernet frame of 1500 bytes
    resp.max_vl_num = 1;
    resp.active_width = 2;             // 4 lanes
    resp.active_speed = 32;            // of 25 Gb/s each
    resp.phys_state = active ? 5 : 3;  // LinkUp, Disabled
    resp.link_layer = IBV_LINK_LAYER_ETHERNET;
    resp.flags = IB_UVERBS_QPF_GRH_REQUIRED;
    request.answer(resp);
    return 0;
}

int create_comp_channel(Context& context, Request& request) {
    // A channel ends when neither the program nor a CQ has it any more.
    context.drop_unused_channels();
    auto channel = EventPipe::open(context.engine, sizeof(ib_uverbs_comp_event_desc));
    if (!channel) return channel.error();
    context.channels.push_back(std::move(channel->pipe));
    request.answer(ib_uverbs_create_comp_channel_resp{static_cast<__u32>(channel->fd)});
    return 0;
}

}  // namespace mlx5_sim
