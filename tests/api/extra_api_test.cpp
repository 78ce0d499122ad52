// SPDX-License-Identifier: BSD-2-Clause
// The extra API's binary layout: programs built against libvma's header years ago rely on each of these
// numbers.
#include <gtest/gtest.h>

#include <vector>

#include "mellanox/vma_extra.h"
#include "mellanox/vma_extra2.h"
#include "tests/api/layout.h"

extern "C" const size_t* vma_extra_layout_in_c(size_t* count);

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
// The table of this library grows at its end only.
static_assert(offsetof(vma_api2_t, size) == 0 && offsetof(vma_api2_t, version) == 4);
static_assert(offsetof(vma_api2_t, sendmany) == 8 && offsetof(vma_api2_t, get_send_buffers) == 16);
static_assert(offsetof(vma_api2_t, send_zcopy) == 24 && offsetof(vma_api2_t, free_send_buffer) == 32);
static_assert(offsetof(vma_api2_t, register_memory) == 40 && sizeof(vma_api2_t) == 48);
static_assert(sizeof(vma_send_buffer_t) == 24 && offsetof(vma_send_buffer_t, data) == 8);
static_assert(offsetof(vma_send_buffer_t, size) == 16);

TEST(ExtraApi, LayoutIsThatOfEveryRelease) {
    // By the public facts about the interface, 9.3 to today, x86-64 and aarch64.
    const std::vector<size_t> expected = {
        17, 1,  9,  24, 8,  16, 40, 8,  16, 24, 80, 40,  48,  56,  72,  16,  8,   16,  8,   8, 80,
        8,  16, 24, 32, 40, 44, 48, 64, 12, 4,  8,  20,  12,  16,  4,   8,   12,  8,   168, 0, 8,
        16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128, 136, 144, 152, 160};
    EXPECT_EQ((std::vector<size_t>{VMA_EXTRA_LAYOUT}), expected);
    size_t count = 0;
    const size_t* in_c = vma_extra_layout_in_c(&count);
    EXPECT_EQ(std::vector<size_t>(in_c, in_c + count), expected);
}

TEST(ExtraApi, IsAbsentWithoutTheLibrary) { EXPECT_EQ(vma_get_api(), nullptr); }
