// SPDX-License-Identifier: BSD-2-Clause
// Send requests: a control segment, an Ethernet segment with the frame's first bytes, then pointers to the
// rest or the rest itself.
//
// Nearly all requests are of two kinds: a frame in one buffer, and a short frame in one buffer that is
// copied. Straight-line code writes these; write_any() writes all other requests that verbs allow.
#include <errno.h>

#include <cstring>

#include "libvma/verbs/mlx5/barriers.h"
#include "libvma/verbs/mlx5/queues.h"

namespace vma::verbs::mlx5 {
namespace {

// Offsets in a request.
constexpr std::uint32_t kEthernetAt = sizeof(mlx5_wqe_ctrl_seg);  // the Ethernet segment
constexpr std::uint32_t kHeaderAt =
    kEthernetAt + offsetof(mlx5_wqe_eth_seg, inline_hdr_start);  // the frame's first byte
constexpr std::uint32_t kMaxLength = 0x7fffffff;  // of a data segment: the highest bit marks inline data
static_assert(sizeof(mlx5_wqe_ctrl_seg) == 16 && sizeof(mlx5_wqe_eth_seg) == 32 &&
              sizeof(mlx5_wqe_data_seg) == 16);
constexpr std::uint32_t kDataAt = kHeaderAt + kInlineHeader;  // of the frame's rest
static_assert(kDataAt == 48);

inline void store64(void* to, std::uint64_t value) noexcept { std::memcpy(to, &value, 8); }
inline void store32(void* to, std::uint32_t value) noexcept { std::memcpy(to, &value, 4); }
template <class T>
inline T load(const void* from) noexcept {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

// Copies the first and the last Bytes of n, which may overlap.
template <std::size_t Bytes>
inline void copy_ends(std::uint8_t* to, const std::uint8_t* from, std::size_t n) noexcept {
    std::memcpy(to, from, Bytes);
    std::memcpy(to + n - Bytes, from + n - Bytes, Bytes);
}
// Copies n bytes, at least 8, without a call and with few branches.
inline void copy_short(std::uint8_t* to, const std::uint8_t* from, std::size_t n) noexcept {
    if (n >= 64) {
        for (std::size_t i = 0; i + 64 < n; i += 64) std::memcpy(to + i, from + i, 64);
        std::memcpy(to + n - 64, from + n - 64, 64);
    } else if (n >= 32) {
        copy_ends<32>(to, from, n);
    } else if (n >= 16) {
        copy_ends<16>(to, from, n);
    } else {
        copy_ends<8>(to, from, n);
    }
}

// The first 8 bytes of the control segment, in memory order: position, opcode, QP, length. They are the
// doorbell as well.
inline std::uint64_t control_word(const SendQueue& q, std::uint32_t opcode, std::uint32_t units) noexcept {
    const std::uint64_t position = static_cast<std::uint16_t>(q.posted_blocks);
    return __builtin_bswap64(position << 40 | std::uint64_t{opcode} << 32 | q.qpn_shifted | units);
}

// The other 8 bytes: whether the request wants a completion. A shift turns verbs' flag into the adapter's.
inline std::uint64_t completion_word(unsigned send_flags) noexcept {
    static_assert(MLX5_WQE_CTRL_CQ_UPDATE == IBV_SEND_SIGNALED << 2 &&
                  offsetof(mlx5_wqe_ctrl_seg, fm_ce_se) == 11);
    return std::uint64_t{send_flags & IBV_SEND_SIGNALED} << (2 + 24);
}

// The first 8 bytes of the Ethernet segment: the checksums to complete, and the MSS of a large send.
inline std::uint64_t offload_word(unsigned send_flags, std::uint16_t mss = 0) noexcept {
    static_assert(offsetof(mlx5_wqe_eth_seg, cs_flags) == 4 && offsetof(mlx5_wqe_eth_seg, mss) == 6);
    static_assert((MLX5_ETH_WQE_L3_CSUM | MLX5_ETH_WQE_L4_CSUM) == IBV_SEND_IP_CSUM * 12);
    return std::uint64_t{send_flags & IBV_SEND_IP_CSUM} * 12 << 32 | std::uint64_t{__builtin_bswap16(mss)}
                                                                         << 48;
}

// A length and an lkey, each in big-endian order, as one word.
inline std::uint64_t length_and_key(std::uint32_t length, std::uint32_t lkey) noexcept {
    return std::uint64_t{__builtin_bswap32(lkey)} << 32 | __builtin_bswap32(length);
}

// Writes control and Ethernet segment with the first 18 bytes of `frame`: all bytes before the data.
inline std::uint64_t write_head(const SendQueue& q, std::uint8_t* at, unsigned send_flags,
                                std::uint32_t units, const std::uint8_t* frame) noexcept {
    const std::uint64_t control = control_word(q, MLX5_OPCODE_SEND, units);
    store64(at, control);
    store64(at + 8, completion_word(send_flags));
    store64(at + kEthernetAt, offload_word(send_flags));
    constexpr std::uint64_t kSize = std::uint64_t{__builtin_bswap16(kInlineHeader)} << 32;
    store64(at + kEthernetAt + 8, kSize | std::uint64_t{load<std::uint16_t>(frame)} << 48);
    std::memcpy(at + kHeaderAt + 2, frame + 2, kInlineHeader - 2);
    return control;
}

constexpr std::uint32_t units_of(std::size_t bytes) noexcept {
    return static_cast<std::uint32_t>((bytes + kUnit - 1) / kUnit);
}
constexpr std::uint32_t blocks_of(std::uint32_t units) noexcept {
    return (units + kBlock / kUnit - 1) / (kBlock / kUnit);
}

// Copies into the queue. A request may wrap around from the queue's end to its beginning.
class Cursor {
  public:
    Cursor(const SendQueue& q, std::uint8_t* at) noexcept
        : at_(at), begin_(q.buffer), end_(q.buffer + (std::size_t{q.mask} + 1) * kBlock) {}

    void put(const void* from, std::size_t n) noexcept {
        while (n != 0) {
            if (at_ == end_) at_ = begin_;
            const auto room = static_cast<std::size_t>(end_ - at_);
            const std::size_t now = n < room ? n : room;
            std::memcpy(at_, from, now);
            at_ += now;
            from = static_cast<const std::uint8_t*>(from) + now;
            n -= now;
        }
    }
    // Advances to the next segment's border.
    void align() noexcept { at_ += -reinterpret_cast<std::uintptr_t>(at_) & (kUnit - 1); }

  private:
    std::uint8_t *at_, *begin_, *end_;
};

// Writes a request of any kind at its place in the queue. Returns 0 with its length and first word, EINVAL
// for an invalid request, ENOMEM without room for it now. Writes only the request's own bytes.
[[gnu::noinline]] int write_any(const SendQueue& q, const ibv_send_wr& wr, std::uint32_t* blocks,
                                std::uint64_t* control) noexcept {
    if (wr.opcode == IBV_WR_DRIVER1) {
        *blocks = 1;  // the caller has made sure of room for one block
        std::uint8_t* at = q.buffer + std::size_t{q.posted_blocks & q.mask} * kBlock;
        *control = control_word(q, MLX5_OPCODE_NOP, 1);
        store64(at, *control);
        store64(at + 8, completion_word(wr.send_flags));
        return 0;
    }
    const bool large = wr.opcode == IBV_WR_TSO, copied = (wr.send_flags & IBV_SEND_INLINE) != 0;
    if ((!large && wr.opcode != IBV_WR_SEND) || (large && copied)) return EINVAL;
    if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > q.max_sge) return EINVAL;
    std::uint64_t length = 0;
    for (int i = 0; i < wr.num_sge; i++) {
        if (wr.sg_list[i].length > kMaxLength) return EINVAL;
        length += wr.sg_list[i].length;
    }

    // The inline bytes of the Ethernet segment: the headers of a large send, or the first bytes of the frame.
    std::uint8_t first[kInlineHeader];
    const void* header = first;
    std::size_t header_bytes = kInlineHeader;
    std::uint32_t skip_sge = 0, skip_bytes = 0;  // of the scatter list: bytes that are in the header
    if (large) {
        header = wr.tso.hdr;
        header_bytes = wr.tso.hdr_sz;
        if (header_bytes < 14 || header_bytes > q.max_tso_header || wr.tso.mss == 0) return EINVAL;
        if (length == 0 || length > q.max_tso) return EINVAL;
    } else {
        if (length < kInlineHeader || (copied && length > q.max_inline)) return EINVAL;
        for (std::size_t have = 0; have != kInlineHeader;) {
            const ibv_sge& sge = wr.sg_list[skip_sge];
            const std::size_t n = sge.length < kInlineHeader - have ? sge.length : kInlineHeader - have;
            if (n != 0) std::memcpy(first + have, reinterpret_cast<const void*>(sge.addr), n);
            have += n;
            skip_bytes = static_cast<std::uint32_t>(n);
            if (have != kInlineHeader) skip_sge++;
        }
        length -= kInlineHeader;
    }

    std::uint32_t total = 1 + units_of(offsetof(mlx5_wqe_eth_seg, inline_hdr_start) + header_bytes);
    if (copied) {
        if (length != 0) total += units_of(sizeof(mlx5_wqe_inl_data_seg) + length);
    } else {
        for (auto i = skip_sge; i < static_cast<std::uint32_t>(wr.num_sge); i++)
            if (wr.sg_list[i].length > (i == skip_sge ? skip_bytes : 0)) total++;
    }
    *blocks = blocks_of(total);
    if (total > kMaxUnits || *blocks > q.mask + 1) return EINVAL;
    if (q.block_limit - q.posted_blocks < *blocks) return ENOMEM;

    std::uint8_t* at = q.buffer + std::size_t{q.posted_blocks & q.mask} * kBlock;
    *control = control_word(q, large ? MLX5_OPCODE_TSO : MLX5_OPCODE_SEND, total);
    store64(at, *control);
    store64(at + 8, completion_word(wr.send_flags));
    store64(at + kEthernetAt, offload_word(wr.send_flags, large ? wr.tso.mss : 0));
    store64(at + kEthernetAt + 8,
            std::uint64_t{__builtin_bswap16(static_cast<std::uint16_t>(header_bytes))} << 32);
    Cursor cursor(q, at + kHeaderAt);
    cursor.put(header, header_bytes);
    cursor.align();
    if (copied && length != 0) {
        const std::uint32_t count = __builtin_bswap32(MLX5_INLINE_SEG | static_cast<std::uint32_t>(length));
        cursor.put(&count, sizeof count);
    }
    for (auto i = skip_sge; i < static_cast<std::uint32_t>(wr.num_sge); i++) {
        const ibv_sge& sge = wr.sg_list[i];
        const std::uint32_t skip = i == skip_sge ? skip_bytes : 0;
        if (sge.length <= skip) continue;
        if (copied) {
            cursor.put(reinterpret_cast<const void*>(sge.addr + skip), sge.length - skip);
        } else {
            const std::uint64_t segment[2] = {length_and_key(sge.length - skip, sge.lkey),
                                              __builtin_bswap64(sge.addr + skip)};
            cursor.put(segment, sizeof segment);
        }
    }
    return 0;
}

// Is it a frame in one buffer, longer than its inline header, and within a segment's length field? One
// comparison checks both.
inline bool is_pointer(const ibv_send_wr& wr) noexcept {
    return (wr.send_flags & IBV_SEND_INLINE) == 0 &&
           wr.sg_list->length - (kInlineHeader + 1) < kMaxLength - kInlineHeader;
}
inline std::uint64_t write_pointer(const SendQueue& q, std::uint8_t* at, const ibv_send_wr& wr) noexcept {
    const ibv_sge& sge = *wr.sg_list;
    const std::uint64_t control =
        write_head(q, at, wr.send_flags, kBlock / kUnit, reinterpret_cast<const std::uint8_t*>(sge.addr));
    store64(at + kDataAt, length_and_key(sge.length - kInlineHeader, sge.lkey));
    store64(at + kDataAt + 8, __builtin_bswap64(sge.addr + kInlineHeader));
    return control;
}

// Copies a short frame in one buffer into the request. Returns the number of blocks, or 0 if the request does
// not qualify: not inline, invalid, no room, beyond the queue's end.
inline std::uint32_t write_inline(const SendQueue& q, std::uint8_t* at, std::uint32_t position,
                                  const ibv_send_wr& wr, std::uint64_t* control) noexcept {
    const ibv_sge& sge = *wr.sg_list;
    if ((wr.send_flags & IBV_SEND_INLINE) == 0 || sge.length < kInlineHeader + 8 || sge.length > q.max_inline)
        return 0;
    const std::uint32_t rest = sge.length - kInlineHeader;
    const std::uint32_t units = kDataAt / kUnit + units_of(sizeof(mlx5_wqe_inl_data_seg) + rest);
    const std::uint32_t blocks = blocks_of(units);
    if (position + blocks > q.mask + 1 || q.block_limit - q.posted_blocks < blocks) return 0;
    const auto* frame = reinterpret_cast<const std::uint8_t*>(sge.addr);
    *control = write_head(q, at, wr.send_flags, units, frame);
    store32(at + kDataAt, __builtin_bswap32(MLX5_INLINE_SEG | rest));
    copy_short(at + kDataAt + sizeof(mlx5_wqe_inl_data_seg), frame + kInlineHeader, rest);
    return blocks;
}

// Counts a request that is in the queue now.
inline void advance(SendQueue& q, std::uint32_t position, std::uint32_t blocks,
                    std::uint64_t wr_id) noexcept {
    const std::uint32_t end_block = q.posted_blocks + blocks, end_request = q.posted + 1;
    q.posted_blocks = end_block;
    q.posted = end_request;
    SendSlot& slot = q.slots[position];
    slot.wr_id = wr_id;
    store64(&slot.end_block, std::uint64_t{end_request} << 32 | end_block);
}

inline void write_record(SendQueue& q) noexcept {
    before_doorbell_record();
    *q.doorbell_record = __builtin_bswap32(static_cast<std::uint16_t>(q.posted_blocks));
    before_register();
}

// Announces all posted requests to the adapter by the first word of the last request.
inline void ring_doorbell(SendQueue& q, std::uint64_t control) noexcept {
    write_record(q);
    write_register(q.doorbell + q.flame_toggle, control);
    after_register();
    q.flame_toggle ^= q.flame_bytes;
}

// The same for one request at `at`: writes the whole request into the register where the adapter allows that.
inline void ring_doorbell(SendQueue& q, std::uint64_t control, const std::uint8_t* at,
                          std::uint32_t blocks) noexcept {
    if (__builtin_expect(blocks * kBlock > q.flame_bytes, 0)) {
        ring_doorbell(q, control);
        return;
    }
    write_record(q);
    std::uint8_t* reg = q.doorbell + q.flame_toggle;
    const std::uint8_t* const end = q.buffer + (std::size_t{q.mask} + 1) * kBlock;
    for (;;) {
        write_block(reg, at);
        if (--blocks == 0) break;
        reg += kBlock;
        at += kBlock;
        if (__builtin_expect(at == end, 0)) at = q.buffer;
    }
    after_register();
    q.flame_toggle ^= q.flame_bytes;
}

// Posts several requests, or one that is not of the two usual kinds.
[[gnu::noinline]] int post_list(SendQueue& q, ibv_send_wr* wr, ibv_send_wr** bad) noexcept {
    const std::uint32_t before = q.posted;
    std::uint64_t control = 0;
    std::uint32_t blocks = 0;
    std::uint8_t* at = nullptr;
    int error = 0;
    for (; wr != nullptr; wr = wr->next) {
        if (__builtin_expect(q.posted == q.request_limit || q.posted_blocks == q.block_limit, 0)) {
            error = ENOMEM;
            break;
        }
        const std::uint32_t position = q.posted_blocks & q.mask;
        at = q.buffer + std::size_t{position} * kBlock;
        const bool simple = wr->num_sge == 1 && wr->opcode == IBV_WR_SEND;
        if (simple && is_pointer(*wr)) {
            control = write_pointer(q, at, *wr);
            blocks = 1;
        } else if (!simple || (blocks = write_inline(q, at, position, *wr, &control)) == 0) {
            error = write_any(q, *wr, &blocks, &control);
            if (error != 0) break;
        }
        advance(q, position, blocks, wr->wr_id);
    }
    if (error != 0) *bad = wr;
    if (q.posted - before == 1 && error == 0)
        ring_doorbell(q, control, at, blocks);
    else if (q.posted != before)
        ring_doorbell(q, control);
    return error;
}

}  // namespace

int post_send(ibv_qp* facade, ibv_send_wr* wr, ibv_send_wr** bad) noexcept {
    SendQueue& q = static_cast<QueuePair&>(*facade).send;
    const bool simple = wr != nullptr && wr->next == nullptr && wr->num_sge == 1 && wr->opcode == IBV_WR_SEND;
    const bool full = q.posted == q.request_limit || q.posted_blocks == q.block_limit;
    if (__builtin_expect(!simple || full, 0)) return post_list(q, wr, bad);
    const std::uint32_t position = q.posted_blocks & q.mask;
    std::uint8_t* at = q.buffer + std::size_t{position} * kBlock;
    std::uint64_t control;
    std::uint32_t blocks;
    if (is_pointer(*wr)) {
        control = write_pointer(q, at, *wr);
        blocks = 1;
    } else if ((blocks = write_inline(q, at, position, *wr, &control)) == 0) {
        return post_list(q, wr, bad);
    }
    advance(q, position, blocks, wr->wr_id);
    ring_doorbell(q, control, at, blocks);
    return 0;
}

}  // namespace vma::verbs::mlx5
