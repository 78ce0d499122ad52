// SPDX-License-Identifier: BSD-2-Clause
// The data path's state of one QP and one CQ. Fields for each frame stand together in as few cache lines as
// possible. The two sides of a QP, which different threads may use, share no line.
//
// All counters run freely and wrap at 2^32; queues are powers of two, so a position is a counter's low bits.
// The adapter counts requests with 16 bits and completions with 24: the low bits of these counters.
#pragma once

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "libvma/verbs/mlx5/direct.h"

namespace vma::verbs::mlx5 {

static_assert(std::endian::native == std::endian::little, "fields are put together as little-endian words");

inline constexpr std::uint32_t kBlock =
    MLX5_SEND_WQE_BB;  // basic block: a send request takes one or more, 64 bytes each
inline constexpr std::uint32_t kCacheLine = 64;
inline constexpr std::uint32_t kUnit = 16;      // segments are multiples of it
inline constexpr std::uint32_t kMaxUnits = 63;  // of one request: its length field has 6 bits
inline constexpr std::uint32_t kInlineHeader =
    18;  // bytes of its frame in each request: Ethernet with one VLAN tag

// A posted send request, at the position of its first block.
struct SendSlot {
    std::uint64_t wr_id;
    std::uint32_t end_block;    // blocks posted up to and with this request
    std::uint32_t end_request;  // requests posted up to and with this request
};

struct alignas(64) SendQueue {
    std::uint8_t* buffer = nullptr;
    SendSlot* slots = nullptr;
    __be32* doorbell_record = nullptr;
    std::uint8_t* doorbell = nullptr;             // the QP's first BlueFlame buffer
    std::uint32_t mask = 0;                       // blocks - 1
    std::uint32_t qpn_shifted = 0;                // as in a control segment, without the length
    std::uint32_t posted_blocks = 0, posted = 0;  // posted: requests
    std::uint32_t block_limit = 0,
                  request_limit = 0;  // upper limits of posted_blocks and `posted` until the next completions
    std::uint32_t max_requests = 0;   // most outstanding requests: their completions must not overrun the CQ
    std::uint16_t flame_bytes = 0;    // longest request for BlueFlame; 0: doorbells of 8 bytes only
    std::uint16_t flame_toggle = 0;   // 0 or flame_bytes: the adapter has two buffers, used in turn
    // ---- second line: for all but the simplest requests
    std::uint32_t max_sge = 0, max_inline = 0, max_tso = 0, max_tso_header = 0;

    // All requests up to these numbers are done.
    void set_done(std::uint32_t blocks, std::uint32_t requests) noexcept {
        block_limit = blocks + mask + 1;
        request_limit = requests + max_requests;
    }
};
static_assert(offsetof(SendQueue, max_sge) == 64);

struct alignas(64) ReceiveQueue {
    std::uint8_t* buffer = nullptr;
    std::uint64_t* wr_ids = nullptr;
    __be32* doorbell_record = nullptr;
    std::uint32_t mask = 0;
    std::uint32_t posted = 0, done = 0;
    std::uint32_t max_requests = 0;
    std::uint32_t max_sge = 0;
    std::uint8_t shift = 4;  // log2 of a request's bytes
};

// The facade comes first, and each of the two sides begins a cache line.
struct QueuePair : ibv_qp {
    SendQueue send;
    ReceiveQueue receive;
    ibv_qp* real = nullptr;
    std::unique_ptr<SendSlot[]> send_slots;
    std::unique_ptr<std::uint64_t[]> receive_wr_ids;
};

// hds_ip_ext and, above it, l4_hdr_type_etc of a completion whose sums of IP and of UDP or TCP are right. Two
// bits tell the sums, two bits above them tell that the header is IPv4.
inline constexpr std::uint16_t kChecksumMask = MLX5_CQE_L3_OK | MLX5_CQE_L4_OK | 3 << (2 + 8);
inline constexpr std::uint16_t kChecksumGood =
    MLX5_CQE_L3_OK | MLX5_CQE_L4_OK | MLX5_CQE_L3_HDR_TYPE_IPV4 << (2 + 8);
inline constexpr std::uint16_t kChecksumNever = 0xffff;  // no masked value equals it

// Fields for polling a CQ: with the pointer to the facade's context, which lies behind them, exactly one
// cache line.
struct CompletionRing {
    // The 64 bytes of the first entry that hold its completion: the whole entry, or the last half of 128
    // bytes.
    std::uint8_t* last64 = nullptr;
    __be32* doorbell_record = nullptr;
    QueuePair* sender = nullptr;  // the QP whose requests complete here; null: none
    QueuePair* receiver = nullptr;
    std::atomic<std::uint32_t> consumer_index =
        0;  // the polling thread writes it; arming reads it on any thread
    std::uint32_t entries = 0;
    std::uint32_t tag_mask = 0;                    // 0: no flow tags
    std::uint16_t checksum_good = kChecksumNever;  // or kChecksumGood
    std::uint8_t shift = 6;                        // log2 of an entry's bytes
    std::uint8_t prefetch_lines = 0;               // cache lines of a received frame to fetch
    Clock* clock = nullptr;                        // null: no time stamps
};

static_assert(sizeof(CompletionRing) + sizeof(ibv_context*) == 64);

struct alignas(64) CompletionQueue : CompletionRing, ibv_cq {
    std::uint32_t number = 0;
    std::uint32_t prefetch_lines_before_poll = 0;
    std::uint8_t* uar = nullptr;             // page with the register for arming
    std::atomic<std::uint32_t> armings = 0;  // completion events so far
    ibv_cq* real = nullptr;
};

// The data path's functions for an ibv_context.
int post_send(ibv_qp* facade, ibv_send_wr* wr, ibv_send_wr** bad) noexcept;  // send.cpp
int post_recv(ibv_qp* facade, ibv_recv_wr* wr, ibv_recv_wr** bad) noexcept;  // receive.cpp
int poll_cq(ibv_cq* facade, int count, ibv_wc* wc) noexcept;                 // completion.cpp
int req_notify_cq(ibv_cq* facade, int solicited_only) noexcept;              // completion.cpp

// Forgets the completions that are in the CQ. Only the polling thread may call it.
void discard_completions(CompletionQueue& cq) noexcept;  // completion.cpp

}  // namespace vma::verbs::mlx5
