/* SPDX-License-Identifier: BSD-2-Clause */
/* Every size and offset of the extra API's structures, in one order, for C and C++. */
#pragma once

#define VMA_EXTRA_SLOT(name) offsetof(struct vma_api_t, name)
#define VMA_EXTRA_LAYOUT                                                                                    \
    sizeof(vma_cmsg_ioctl_user_alloc_t), offsetof(vma_cmsg_ioctl_user_alloc_t, memalloc),                   \
        offsetof(vma_cmsg_ioctl_user_alloc_t, memfree), sizeof(struct vma_buff_t),                          \
        offsetof(struct vma_buff_t, payload), offsetof(struct vma_buff_t, len),                             \
        sizeof(struct vma_packet_desc_t), offsetof(struct vma_packet_desc_t, total_len),                    \
        offsetof(struct vma_packet_desc_t, buff_lst), offsetof(struct vma_packet_desc_t, hw_timestamp),     \
        sizeof(struct vma_completion_t), offsetof(struct vma_completion_t, events),                         \
        offsetof(struct vma_completion_t, user_data), offsetof(struct vma_completion_t, src),               \
        offsetof(struct vma_completion_t, listen_fd), sizeof(struct vma_packet_t),                          \
        offsetof(struct vma_packet_t, sz_iov), offsetof(struct vma_packet_t, iov),                          \
        sizeof(struct vma_packets_t), offsetof(struct vma_packets_t, pkts), sizeof(struct vma_info_t),      \
        offsetof(struct vma_info_t, packet_id), offsetof(struct vma_info_t, src),                           \
        offsetof(struct vma_info_t, dst), offsetof(struct vma_info_t, payload_sz),                          \
        offsetof(struct vma_info_t, socket_ready_pkt_count),                                                \
        offsetof(struct vma_info_t, socket_ready_byte_count), offsetof(struct vma_info_t, hw_timestamp),    \
        offsetof(struct vma_info_t, sw_timestamp), sizeof(struct vma_rate_limit_t),                         \
        offsetof(struct vma_rate_limit_t, max_burst_sz), offsetof(struct vma_rate_limit_t, typical_pkt_sz), \
        sizeof(struct vma_ring_alloc_logic_attr), offsetof(struct vma_ring_alloc_logic_attr, user_id),      \
        sizeof(struct vma_modify_ring_attr), offsetof(struct vma_modify_ring_attr, ring_fd),                \
        offsetof(struct vma_modify_ring_attr, cq_moderation), sizeof(struct vma_ring_type_attr),            \
        offsetof(struct vma_ring_type_attr, ring_pktiov), sizeof(struct vma_api_t),                         \
        VMA_EXTRA_SLOT(register_recv_callback), VMA_EXTRA_SLOT(recvfrom_zcopy),                             \
        VMA_EXTRA_SLOT(free_packets), VMA_EXTRA_SLOT(add_conf_rule), VMA_EXTRA_SLOT(thread_offload),        \
        VMA_EXTRA_SLOT(socketxtreme_poll), VMA_EXTRA_SLOT(get_socket_rings_num),                            \
        VMA_EXTRA_SLOT(get_socket_rings_fds), VMA_EXTRA_SLOT(get_socket_tx_ring_fd),                        \
        VMA_EXTRA_SLOT(socketxtreme_free_vma_packets), VMA_EXTRA_SLOT(socketxtreme_ref_vma_buff),           \
        VMA_EXTRA_SLOT(socketxtreme_free_vma_buff), VMA_EXTRA_SLOT(dump_fd_stats),                          \
        VMA_EXTRA_SLOT(vma_add_ring_profile), VMA_EXTRA_SLOT(get_socket_network_header),                    \
        VMA_EXTRA_SLOT(get_ring_direct_descriptors), VMA_EXTRA_SLOT(register_memory_on_ring),               \
        VMA_EXTRA_SLOT(deregister_memory_on_ring), VMA_EXTRA_SLOT(vma_modify_ring),                         \
        VMA_EXTRA_SLOT(vma_extra_supported_mask), VMA_EXTRA_SLOT(ioctl)
