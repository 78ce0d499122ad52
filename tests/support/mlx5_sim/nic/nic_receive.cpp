// SPDX-License-Identifier: BSD-2-Clause
// The receive side of the simulated adapter: which QPs get a frame, and their receive requests: lists of data
// segments of 16 bytes, ended by one with the invalid key where the list does not fill the request.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tests/support/mlx5_sim/nic/nic_frames.h"
#include "tests/support/mlx5_sim/nic/nic_state.h"

namespace mlx5_sim {
namespace {

std::string name(const Qp& qp) {
    return fmt::format("QP {:#x} receive request {:#x}", qp.attr.qpn, qp.recv_next);
}

std::uint16_t posted_receives(const Qp& qp) {
    return static_cast<std::uint16_t>(load_be32(qp.attr.doorbell_record, MLX5_RCV_DBR));
}

// Do the driver's tables have one entry for both?
bool same_entry(const Rule& a, const Rule& b) {
    return a.priority == b.priority && a.sniffs_all == b.sniffs_all && a.match == b.match;
}

}  // namespace

// For a frame to a station: the best, and those with an equal match. For a frame to a group all that match.
// One a QP.
std::vector<const Rule*> Nic::State::rules_for(std::span<const std::uint8_t> frame) const {
    std::vector<const Rule*> taken;
    const Headers headers = parse(frame);
    const bool copies = is_multicast(frame);
    for (const NumberedRule& r : rules) {
        if (!r.rule.sniffs_all && !matches(r.rule.match, frame, headers)) continue;
        if (!copies && !taken.empty() && !same_entry(*taken.front(), r.rule)) continue;
        if (std::ranges::any_of(taken, [&](const Rule* other) { return other->qpn == r.rule.qpn; })) continue;
        taken.push_back(&r.rule);
    }
    return taken;
}

void Nic::State::deliver(Qp& qp, const Rule& rule, std::span<const std::uint8_t> frame) {
    const auto posted = posted_receives(qp);
    const auto ready = static_cast<std::uint16_t>(posted - qp.recv_next);
    if (qp.receives() && ready > qp.attr.recv_entries) {
        violation(fmt::format(
            "QP {:#x}: the receive counter {:#x} is {} requests beyond what completed last; the queue has {}",
            qp.attr.qpn, posted, ready, qp.attr.recv_entries));
        qp.dead_recv = qp.recv_failed = true;
    }
    if (!qp.receives() || ready == 0) {
        ++counters.no_receive;
        return;
    }

    Completion c;
    c.opcode = MLX5_CQE_RESP_SEND;
    c.user_index = qp.attr.user_index;
    c.wqe_counter = qp.recv_next;
    c.sop_drop_qpn = rule.tag & 0xffffff;
    c.byte_count = static_cast<std::uint32_t>(frame.size());
    const ReceiveBits bits = receive_bits(frame);
    c.hds_ip_ext = bits.hds_ip_ext;
    c.l4_hdr_type_etc = bits.l4_hdr_type_etc;
    const auto fail = [&](std::uint8_t syndrome, std::uint8_t vendor) {
        c.opcode = MLX5_CQE_RESP_ERR;
        c.syndrome = syndrome;
        c.vendor_syndrome = vendor;
        c.sop_drop_qpn = qp.attr.qpn;
    };

    if (faults.fail_receives != 0) {
        --faults.fail_receives;
        fail(faults.receive_syndrome, kVendorFault);
    } else {
        const std::size_t slot = qp.recv_next & (qp.attr.recv_entries - 1);
        const auto* request =
            static_cast<const std::uint8_t*>(qp.attr.recv_buffer) + (slot << qp.attr.recv_shift);
        std::size_t done = 0;
        for (std::size_t at = 0; at < std::size_t{1} << qp.attr.recv_shift; at += sizeof(mlx5_wqe_data_seg)) {
            mlx5_wqe_data_seg segment;
            std::memcpy(&segment, request + at, sizeof segment);
            if (be32toh(segment.lkey) == MLX5_INVALID_LKEY) break;
            const std::uint32_t bytes = be32toh(segment.byte_count);
            if (bytes == 0 || bytes > 0x7fffffff) {
                violation(fmt::format("{}: a data segment of length {:#x}", name(qp), bytes));
                fail(MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, kVendorRequest);
                break;
            }
            std::uint8_t* to = memory(be32toh(segment.lkey), be64toh(segment.addr), bytes, name(qp));
            if (to == nullptr) {
                fail(MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, kVendorMemory);
                break;
            }
            const std::size_t piece = std::min<std::size_t>(bytes, frame.size() - done);
            std::memcpy(to, frame.data() + done, piece);
            done += piece;
        }
        if (c.opcode == MLX5_CQE_RESP_SEND && done < frame.size()) {
            violation(fmt::format("{}: {} bytes for a frame of {}", name(qp), done, frame.size()));
            fail(MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, kVendorLength);
        }
    }
    ++qp.recv_next;
    if (c.opcode == MLX5_CQE_RESP_SEND) {
        ++counters.received;
    } else {
        qp.recv_failed = true;
    }
    if (!complete(qp.attr.recv_cqn, c)) qp.dead_recv = qp.recv_failed = true;
    if (qp.recv_failed) flush_receives(qp);
}

void Nic::State::flush_receives(Qp& qp) {
    const auto posted = posted_receives(qp);
    if (qp.flushes_receives() && static_cast<std::uint16_t>(posted - qp.recv_next) > qp.attr.recv_entries) {
        violation(
            fmt::format("QP {:#x}: the receive counter {:#x} is beyond the queue", qp.attr.qpn, posted));
        qp.dead_recv = true;
    }
    while (qp.flushes_receives() && qp.recv_next != posted) {
        Completion c;
        c.opcode = MLX5_CQE_RESP_ERR;
        c.user_index = qp.attr.user_index;
        c.wqe_counter = qp.recv_next;
        c.sop_drop_qpn = qp.attr.qpn;
        c.syndrome = MLX5_CQE_SYNDROME_WR_FLUSH_ERR;
        c.vendor_syndrome = kVendorFlush;
        ++qp.recv_next;
        worked = true;
        if (!complete(qp.attr.recv_cqn, c)) qp.dead_recv = true;
    }
}

}  // namespace mlx5_sim
