// SPDX-License-Identifier: BSD-2-Clause
// Send queues of the simulated adapter. A request is a control segment, an Ethernet segment with the inline
// header, and data segments, inline or by address; it takes whole basic blocks of 64 bytes and may go on at
// the queue's start.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tests/support/mlx5_sim/nic/nic_frames.h"
#include "tests/support/mlx5_sim/nic/nic_state.h"

namespace mlx5_sim {
namespace {

constexpr std::size_t kSegment = 16;
// In the Ethernet segment's inline_hdr_sz: no inline header follows, but an 802.1Q tag to put in.
constexpr std::uint16_t kInsertVlan = 0x8000;
constexpr std::size_t kMinFrame = 60;  // shorter ones are padded

// How a request went; with a syndrome: the adapter refuses it.
struct Outcome {
    std::vector<Frame> frames;
    std::uint8_t syndrome = 0, vendor = 0;
    std::string complaint;  // empty: not the software's fault
};
Outcome refuse(std::uint8_t syndrome, std::uint8_t vendor, std::string complaint) {
    return {{}, syndrome, vendor, std::move(complaint)};
}
Outcome bad_request(std::string complaint) {
    return refuse(MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, kVendorRequest, std::move(complaint));
}
Outcome bad_length(std::string complaint) {
    return refuse(MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, kVendorLength, std::move(complaint));
}

struct Request {
    std::uint16_t index = 0;  // of its first basic block
    std::uint8_t opcode = 0;
    bool signalled = false;
    std::uint16_t blocks = 0;
    std::vector<std::uint8_t> bytes;  // all segments, in one piece
};

std::uint32_t be32_at(const std::vector<std::uint8_t>& bytes, std::size_t at) {
    std::uint32_t word;
    std::memcpy(&word, &bytes[at], sizeof word);
    return be32toh(word);
}
std::uint64_t be64_at(const std::vector<std::uint8_t>& bytes, std::size_t at) {
    return std::uint64_t{be32_at(bytes, at)} << 32 | be32_at(bytes, at + 4);
}

std::string name(const Qp& qp, std::uint16_t index) {
    return fmt::format("QP {:#x} send request {:#x}", qp.attr.qpn, index);
}

// Takes the request at the queue's head out of its memory. A complaint: it cannot even be told where it ends.
std::string fetch(const Qp& qp, std::uint16_t posted, Request& request) {
    const auto* queue = static_cast<const std::uint8_t*>(qp.attr.send_buffer);
    const std::uint32_t mask = qp.attr.send_entries - 1;
    const std::uint8_t* start = queue + std::size_t{qp.send_next & mask} * MLX5_SEND_WQE_BB;
    mlx5_wqe_ctrl_seg ctrl;
    const bool flame = qp.flame_index == qp.send_next && qp.flame.size() >= sizeof ctrl;
    std::memcpy(&ctrl, flame ? qp.flame.data() : start, sizeof ctrl);
    const std::uint32_t what = be32toh(ctrl.opmod_idx_opcode), whose = be32toh(ctrl.qpn_ds);
    request.index = qp.send_next;
    request.opcode = static_cast<std::uint8_t>(what);
    // "Completion" of the flags: 0 and 1 ask for one after an error only.
    request.signalled = (ctrl.fm_ce_se & MLX5_WQE_CTRL_CQ_UPDATE) != 0;
    const std::uint32_t segments = whose & 0x3f;
    const auto left = static_cast<std::uint16_t>(posted - qp.send_next);
    request.blocks = static_cast<std::uint16_t>((segments + 3) / 4);
    if (segments == 0) return fmt::format("{}: 0 segments", name(qp, request.index));
    if (request.blocks > left)
        return fmt::format("{}: {} segments, {} basic blocks, but only {} are posted",
                           name(qp, request.index), segments, request.blocks, left);
    request.bytes.resize(segments * kSegment);
    if (flame && request.bytes.size() <= qp.flame.size()) {
        std::memcpy(request.bytes.data(), qp.flame.data(), request.bytes.size());
    } else {
        for (std::size_t at = 0; at < request.bytes.size(); at += kSegment)
            std::memcpy(
                &request.bytes[at],
                queue + ((start - queue + at) & (std::size_t{qp.attr.send_entries} * MLX5_SEND_WQE_BB - 1)),
                kSegment);
    }

    if ((what >> 8 & 0xffff) != qp.send_next)
        return fmt::format("{}: its control segment has the index {:#x}", name(qp, request.index),
                           what >> 8 & 0xffff);
    if (whose >> 8 != qp.attr.qpn)
        return fmt::format("{}: its control segment names QP {:#x}", name(qp, request.index), whose >> 8);
    return {};
}

// All data segments from `at` on, behind `out`.
Outcome gather(Nic::State& nic, const std::string& who, const Request& request, std::size_t at, Frame& out) {
    const auto& bytes = request.bytes;
    while (at + kSegment <= bytes.size()) {
        const std::uint32_t count = be32_at(bytes, at);
        if ((count & MLX5_INLINE_SEG) != 0) {
            const std::size_t length = count & 0x3ff;
            if (at + 4 + length > bytes.size())
                return bad_request(fmt::format("{}: {} bytes inline do not fit into it", who, length));
            out.insert(out.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at + 4),
                       bytes.begin() + static_cast<std::ptrdiff_t>(at + 4 + length));
            at += (4 + length + kSegment - 1) / kSegment * kSegment;
            continue;
        }
        if (count == 0)
            return bad_length(fmt::format("{}: a data segment of length 0, which means 2 GiB", who));
        const std::uint8_t* data = nic.memory(be32_at(bytes, at + 4), be64_at(bytes, at + 8), count, who);
        if (data == nullptr) return refuse(MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, kVendorMemory, {});
        if (out.size() + count > std::size_t{nic.limits.max_frame} + nic.limits.max_tso)
            return bad_length(fmt::format("{}: more than {} bytes", who, out.size() + count));
        out.insert(out.end(), data, data + count);
        ++nic.counters.gathered;
        at += kSegment;
    }
    return {};
}

Outcome large_send(const Nic::State& nic, const std::string& who, std::uint8_t flags, std::size_t mss,
                   std::size_t header_bytes, const Frame& all) {
    if (mss == 0) return bad_request(fmt::format("{}: a large send with an MSS of 0", who));
    if ((flags & MLX5_ETH_WQE_L3_CSUM) == 0 || (flags & MLX5_ETH_WQE_L4_CSUM) == 0)
        return bad_request(fmt::format("{}: a large send without both checksum flags ({:#x})", who, flags));
    const std::span bytes(all);
    if (bytes.size() - header_bytes > nic.limits.max_tso)
        return bad_length(fmt::format("{}: a large send of {} bytes, {} are allowed", who,
                                      bytes.size() - header_bytes, nic.limits.max_tso));
    Outcome outcome;
    outcome.frames = cut(bytes.first(header_bytes), bytes.subspan(header_bytes), mss);
    if (outcome.frames.empty())
        return bad_request(fmt::format(
            "{}: the {} bytes of a large send's inline header are not the headers of a TCP segment", who,
            header_bytes));
    return outcome;
}

Outcome execute(Nic::State& nic, const Qp& qp, const Request& request) {
    const std::string who = name(qp, request.index);
    if (request.opcode == MLX5_OPCODE_NOP) return {};
    const bool large = request.opcode == MLX5_OPCODE_TSO;
    if (request.opcode != MLX5_OPCODE_SEND && !large)
        return bad_request(
            fmt::format("{}: operation {:#x} is none of a raw packet QP", who, request.opcode));
    constexpr std::size_t kInlineStart = kSegment + offsetof(mlx5_wqe_eth_seg, inline_hdr_start);
    if (request.bytes.size() < 2 * kSegment) return bad_request(fmt::format("{}: no Ethernet segment", who));
    mlx5_wqe_eth_seg eth;
    std::memcpy(&eth, &request.bytes[kSegment], kSegment);
    const std::uint16_t size_field = be16toh(eth.inline_hdr_sz);
    const bool insert = (size_field & kInsertVlan) != 0;
    const std::size_t header_bytes = insert ? 0 : size_field & 0x3ff;
    if (kInlineStart + header_bytes > request.bytes.size())
        return bad_request(
            fmt::format("{}: {} bytes of inline header do not fit into it", who, header_bytes));
    if (header_bytes < nic.limits.min_inline)
        return bad_request(fmt::format("{}: {} bytes of inline header, the adapter wants {}", who,
                                       header_bytes, nic.limits.min_inline));

    Frame all(request.bytes.begin() + kInlineStart,
              request.bytes.begin() + static_cast<std::ptrdiff_t>(kInlineStart + header_bytes));
    const std::size_t data = kSegment + (offsetof(mlx5_wqe_eth_seg, inline_hdr_start) +
                                         std::max<std::size_t>(header_bytes, 2) + kSegment - 1) /
                                            kSegment * kSegment;
    if (Outcome outcome = gather(nic, who, request, data, all); outcome.syndrome != 0) return outcome;

    Outcome outcome;
    if (large) {
        outcome = large_send(nic, who, eth.cs_flags, be16toh(eth.mss), header_bytes, all);
        if (outcome.syndrome != 0) return outcome;
    } else {
        outcome.frames.push_back(std::move(all));
    }
    for (Frame& frame : outcome.frames) {
        if (frame.size() < 14) return bad_length(fmt::format("{}: a frame of {} bytes", who, frame.size()));
        if (insert) {
            const std::uint8_t tag[] = {0x81, 0x00, eth.inline_hdr_start[0], eth.inline_hdr_start[1]};
            frame.insert(frame.begin() + 12, std::begin(tag), std::end(tag));
        }
        if (frame.size() > nic.limits.max_frame)
            return bad_length(fmt::format("{}: a frame of {} bytes, {} are allowed", who, frame.size(),
                                          nic.limits.max_frame));
        complete_checksums(frame, (eth.cs_flags & MLX5_ETH_WQE_L3_CSUM) != 0,
                           (eth.cs_flags & MLX5_ETH_WQE_L4_CSUM) != 0);
        if (frame.size() < kMinFrame) frame.resize(kMinFrame);
    }
    return outcome;
}

}  // namespace

void Nic::State::run_send_queue(Qp& qp) {
    const auto posted = static_cast<std::uint16_t>(load_be32(qp.attr.doorbell_record, MLX5_SND_DBR));
    qp.silent_since.reset();
    qp.send_posted = posted;
    if (posted == qp.send_next) return;
    if (!qp.sends() && !qp.flushes_sends()) {
        if (!qp.dead_send)
            violation(fmt::format("QP {:#x}: doorbell while the QP may not send", qp.attr.qpn));
        return;
    }
    worked = true;
    if (const auto ahead = static_cast<std::uint16_t>(posted - qp.send_free); ahead > qp.attr.send_entries) {
        violation(
            fmt::format("QP {:#x}: the send counter {:#x} is {} basic blocks beyond what completed last; the "
                        "queue has {}",
                        qp.attr.qpn, posted, ahead, qp.attr.send_entries));
        qp.dead_send = qp.send_failed = true;
        return;
    }
    while (qp.send_next != posted && !qp.dead_send) {
        Request request;
        const std::string unreadable = fetch(qp, posted, request);
        Outcome outcome;
        if (!unreadable.empty()) {
            outcome = bad_request(unreadable);
        } else if (qp.flushes_sends()) {
            outcome = refuse(MLX5_CQE_SYNDROME_WR_FLUSH_ERR, kVendorFlush, {});
        } else if (faults.fail_sends != 0) {
            --faults.fail_sends;
            outcome = refuse(faults.send_syndrome, kVendorFault, {});
        } else {
            outcome = execute(*this, qp, request);
        }
        if (!outcome.complaint.empty()) violation(std::move(outcome.complaint));

        Completion c;
        c.opcode = outcome.syndrome == 0 ? MLX5_CQE_REQ : MLX5_CQE_REQ_ERR;
        c.user_index = qp.attr.user_index;
        c.sop_drop_qpn = std::uint32_t{request.opcode} << 24 | qp.attr.qpn;
        c.wqe_counter = request.index;
        c.syndrome = outcome.syndrome;
        c.vendor_syndrome = outcome.vendor;
        qp.send_next = static_cast<std::uint16_t>(qp.send_next + request.blocks);
        if (request.signalled || outcome.syndrome != 0) {
            qp.send_free = qp.send_next;
            ++counters.send_completions;
            if (!complete(qp.attr.send_cqn, c)) qp.dead_send = qp.send_failed = true;
        }
        if (outcome.syndrome != 0) qp.send_failed = true;
        if (qp.flame_index == request.index) qp.flame.clear();
        if (!unreadable.empty()) qp.dead_send = true;  // where the next request begins is anybody's guess
        counters.sent += outcome.frames.size();
        std::ranges::move(outcome.frames, std::back_inserter(outbox));
    }
}

}  // namespace mlx5_sim
