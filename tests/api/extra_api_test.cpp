// SPDX-License-Identifier: BSD-2-Clause
// The extra API's binary layout: programs built against libvma's header years ago rely on each of these
// numbers.
#include <gtest/gtest.h>

#include "mellanox/vma_extra.h"

static_assert(sizeof(vma_cmsg_ioctl_user_alloc_t) == 17);
static_assert(sizeof(vma_buff_t) == 24 && offsetof(vma_buff_t, len) == 16);
static_assert(sizeof(vma_packet_desc_t) == 40 && offsetof(vma_packet_desc_t, hw_timestamp) == 24);
static_assert(sizeof(vma_completion_t) == 80 && offsetof(vma_completion_t, src) == 56);
static_assert(offsetof(vma_completion_t, listen_fd) == 72);
static_assert(sizeof(vma_packet_t) == 16 && sizeof(vma_packets_t) == 8);
static_assert(sizeof(vma_info_t) == 80 && offsetof(vma_info_t, payload_sz) == 32);
static_assert(offsetof(vma_info_t, hw_timestamp) == 48 && offsetof(vma_info_t, sw_timestamp) == 64);
static_assert(sizeof(vma_rate_limit_t) == 12);
static_assert(sizeof(vma_ring_alloc_logic_attr) == 20);
static_assert(sizeof(vma_modify_ring_attr) == 16);
static_assert(sizeof(vma_ring_type_attr) == 12);
static_assert(sizeof(vma_api_t) == 168);
static_assert(offsetof(vma_api_t, socketxtreme_poll) == 40 &&
              offsetof(vma_api_t, get_socket_tx_ring_fd) == 64);
static_assert(offsetof(vma_api_t, dump_fd_stats) == 96 && offsetof(vma_api_t, vma_modify_ring) == 144);
static_assert(offsetof(vma_api_t, vma_extra_supported_mask) == 152 && offsetof(vma_api_t, ioctl) == 160);

TEST(ExtraApi, IsAbsentWithoutTheLibrary) { EXPECT_EQ(vma_get_api(), nullptr); }
