// SPDX-License-Identifier: BSD-2-Clause
// Completion queues of the simulated adapter: writing entries, arming, events.
#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <utility>

#include "tests/support/mlx5_sim/nic/nic_state.h"

namespace mlx5_sim {
namespace {

constexpr std::uint32_t kIndexMask = 0xffffff;

// The 64 bytes that count of entry `index`: those of 128 have them in their second half.
mlx5_cqe64* entry(const Cq& cq, std::uint32_t index) {
    auto* start = static_cast<std::uint8_t*>(cq.attr.buffer) +
                  std::size_t{index & (cq.attr.entries - 1)} * cq.attr.cqe_size;
    return reinterpret_cast<mlx5_cqe64*>(start + cq.attr.cqe_size - 64);
}

std::uint8_t owner_now(const Cq& cq, std::uint32_t index) {
    return std::atomic_ref(entry(cq, index)->op_own).load(std::memory_order_acquire);
}

std::string name(const Cq& cq) { return fmt::format("CQ {:#x}", cq.attr.cqn); }

// Is `a` behind `b`, of two that run modulo 2^24?
bool behind(std::uint32_t a, std::uint32_t b) {
    return ((b - a) & kIndexMask) != 0 && ((b - a) & kIndexMask) < 0x800000;
}

}  // namespace

void Nic::State::read_consumer(Cq& cq) {
    const std::uint32_t index = load_be32(cq.attr.doorbell_record, MLX5_RCV_DBR) & kIndexMask;
    const std::uint32_t advance = (index - cq.consumer) & kIndexMask;
    if (advance > cq.producer - cq.consumer) {
        if (!cq.complained_consumer || cq.wrong_consumer != index)
            violation(
                fmt::format("{}: the consumer index in the record is {:#x}, {} {:#x}", name(cq), index,
                            advance < 0x800000 ? "beyond the last completion at" : "behind the one before,",
                            (advance < 0x800000 ? cq.producer : cq.consumer) & kIndexMask));
        cq.complained_consumer = true;
        cq.wrong_consumer = index;
        return;
    }
    cq.complained_consumer = false;
    for (std::uint32_t i = 0; i < advance; ++i, ++cq.consumer)
        cq.owners[cq.consumer & (cq.attr.entries - 1)] = owner_now(cq, cq.consumer);
}

bool Nic::State::complete(std::uint32_t cqn, const Completion& c) {
    const auto found = cqs.find(cqn);
    if (found == cqs.end() || found->second.overrun) return false;
    Cq& cq = found->second;
    read_consumer(cq);
    if (cq.producer - cq.consumer == cq.attr.entries) {
        violation(fmt::format("{}: overrun: all {} entries are taken, the consumer index is {:#x}", name(cq),
                              cq.attr.entries, cq.consumer & kIndexMask));
        cq.overrun = true;
        if (cq.attr.failed) cq.attr.failed();
        return false;
    }
    const std::uint32_t slot = cq.producer & (cq.attr.entries - 1);
    if (const std::uint8_t now = owner_now(cq, cq.producer); now != cq.owners[slot])
        violation(
            fmt::format("{}: software wrote to entry {}, which is the adapter's: op_own {:#x}, was {:#x}",
                        name(cq), slot, now, cq.owners[slot]));

    const auto owner = static_cast<std::uint8_t>((cq.producer & cq.attr.entries) != 0 ? 1 : 0);
    const bool error = c.opcode == MLX5_CQE_REQ_ERR || c.opcode == MLX5_CQE_RESP_ERR;
    mlx5_cqe64 cqe{};
    if (error) {
        mlx5_err_cqe bad{};
        bad.srqn = htobe32(c.user_index);
        bad.vendor_err_synd = c.vendor_syndrome;
        bad.syndrome = c.syndrome;
        bad.s_wqe_opcode_qpn = htobe32(c.sop_drop_qpn);
        bad.wqe_counter = htobe16(c.wqe_counter);
        std::memcpy(&cqe, &bad, sizeof cqe);
    } else {
        cqe.hds_ip_ext = c.hds_ip_ext;
        cqe.l4_hdr_type_etc = c.l4_hdr_type_etc;
        cqe.srqn_uidx = htobe32(c.user_index);
        cqe.byte_cnt = htobe32(c.byte_count);
        cqe.timestamp = htobe64(ticks());
        cqe.sop_drop_qpn = htobe32(c.sop_drop_qpn);
        cqe.wqe_counter = htobe16(c.wqe_counter);
    }
    // The byte that makes it valid comes last.
    mlx5_cqe64* to = entry(cq, cq.producer);
    std::memcpy(static_cast<void*>(to), &cqe, offsetof(mlx5_cqe64, op_own));
    std::atomic_ref(to->op_own)
        .store(static_cast<std::uint8_t>(c.opcode << 4 | owner), std::memory_order_release);
    ++cq.producer;
    if (cq.unreported++ == 0) cq.first_unreported = ticks();
    cq.unreported_solicited |= error;
    raise_if_due(cq);
    return true;
}

void Nic::State::arm(Cq& cq, std::uint32_t word) {
    const std::uint32_t sequence = word >> 28 & 3, index = word & kIndexMask;
    const bool moved = index != (std::exchange(cq.arm_record, word) & kIndexMask);
    cq.silent_since.reset();
    if (behind(cq.producer & kIndexMask, index)) {
        violation(
            fmt::format("{}: armed with the consumer index {:#x}, but the last completion is before {:#x}",
                        name(cq), index, cq.producer & kIndexMask));
        return;
    }
    if (sequence != cq.sequence) {
        // Armed before the last event was read: it is still waiting to be. Who finds completions each time
        // need not read it; who finds none has to.
        ++counters.stale_arms;
        constexpr std::uint32_t kPatience = 16;
        if (moved) cq.stale_run = 0;
        if (sequence != ((cq.sequence + 3) & 3) || ++cq.stale_run == kPatience)
            violation(fmt::format("{}: armed with the sequence number {}, the adapter expects {}", name(cq),
                                  sequence, cq.sequence));
        return;
    }
    cq.stale_run = 0;
    cq.armed = true;
    cq.solicited_only = (word & MLX5_CQ_DB_REQ_NOT_SOL) != 0;
    // Completions that came since the caller looked count as new ones, those it saw do not.
    const std::uint32_t unseen = (cq.producer - index) & kIndexMask;
    if (unseen == 0) cq.unreported_solicited = false;
    if (unseen != 0 && cq.unreported == 0) cq.first_unreported = ticks();
    cq.unreported = unseen;
    raise_if_due(cq);
}

void Nic::State::take_cq_doorbell(std::uint64_t doorbell) {
    const auto word = static_cast<std::uint32_t>(doorbell >> 32), cqn = static_cast<std::uint32_t>(doorbell);
    const auto found = cqs.find(cqn);
    if (found == cqs.end()) {
        violation(fmt::format("CQ doorbell for CQ {:#x}, which there is not", cqn));
        return;
    }
    Cq& cq = found->second;
    const std::uint32_t record = load_be32(cq.attr.doorbell_record, 1);
    const std::uint32_t record_sequence = record >> 28 & 3, sequence = word >> 28 & 3;
    if (record != word && (record_sequence == ((sequence + 3) & 3) ||
                           (record_sequence == sequence && behind(record & kIndexMask, word & kIndexMask)))) {
        violation(fmt::format("{}: armed by doorbell with {:#x}, but the record says {:#x}", name(cq), word,
                              record));
    }
    arm(cq, word);
    worked = true;
}

void Nic::State::look_at_arm_record(Cq& cq, bool page_rang) {
    const std::uint32_t record = load_be32(cq.attr.doorbell_record, 1);
    if (record == cq.arm_record) {
        cq.silent_since.reset();
    } else if (page_rang) {
        arm(cq, record);
        worked = true;
    } else if (const std::uint64_t now = ticks(); !cq.silent_since) {
        cq.silent_since = now;
    } else if (usec(now - *cq.silent_since) >= 1000000) {
        violation(
            fmt::format("{}: armed in the record ({:#x}), but there was no doorbell", name(cq), record));
        cq.arm_record = record;
        cq.silent_since.reset();
    }
}

bool Nic::State::raise_if_due(Cq& cq) {
    if (!cq.armed || cq.unreported == 0 || (cq.solicited_only && !cq.unreported_solicited)) return false;
    if (cq.moderation_count != 0 && cq.moderation_usec != 0 && cq.unreported < cq.moderation_count &&
        usec(ticks() - cq.first_unreported) < cq.moderation_usec) {
        return false;
    }
    raise(cq);
    return true;
}

void Nic::State::raise(Cq& cq) {
    cq.armed = false;
    cq.sequence = (cq.sequence + 1) & 3;
    cq.stale_run = 0;
    cq.unreported = 0;
    cq.unreported_solicited = false;
    worked = true;
    if (faults.lost_events != 0) {
        --faults.lost_events;
        return;
    }
    ++counters.events;
    if (cq.attr.event) cq.attr.event();
}

void Nic::State::extra_event() {
    if (faults.extra_events == 0) return;
    for (auto& [cqn, cq] : cqs) {
        if (!cq.armed) continue;
        --faults.extra_events;
        cq.unreported = 0;
        raise(cq);
        return;
    }
}

}  // namespace mlx5_sim
