// SPDX-License-Identifier: BSD-2-Clause
// The inside of the simulated adapter: plain data and the functions of its parts. Everything here happens
// under Nic's lock.
//   nic.cpp          the control functions, step(), doorbells
//   nic_send.cpp     send requests: reading, checking, executing
//   nic_receive.cpp  rules, receive requests
//   nic_cq.cpp       completions, arming, events
// Queue positions run freely as the adapter's counters do: 16 bits of them stand in records and completions
// of work queues, 24 in those of completion queues.
#pragma once

#include <endian.h>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "tests/support/mlx5_sim/nic/nic.h"

namespace mlx5_sim {

// Vendor syndromes say more than syndromes, to the vendor. Tests only see that they arrive.
inline constexpr std::uint8_t kVendorFlush = 0xf9, kVendorRequest = 0x68, kVendorMemory = 0x51,
                              kVendorLength = 0x32, kVendorFault = 0x77;

inline constexpr std::uint32_t kArmUnwritten = 0xffffffff;

struct Region {
    std::uint64_t address = 0, length = 0;
};

struct Cq {
    CqAttr attr;
    std::uint32_t producer = 0, consumer = 0;
    bool overrun = false;
    bool complained_consumer = false;  // one violation for each wrong value
    std::uint32_t wrong_consumer = 0;
    std::vector<std::uint8_t>
        owners;  // of each entry that is the adapter's, op_own as it was when it became so
    // Arming. The sequence number counts events; a doorbell with another one is not for now.
    std::uint32_t sequence = 0;
    bool armed = false, solicited_only = false;
    std::uint32_t arm_record = 0;               // as last acted upon
    std::uint32_t stale_run = 0;                // stale arms since the last event, with one consumer index
    std::optional<std::uint64_t> silent_since;  // the record moved, its page did not ring
    // Completions not yet reported, for moderation.
    std::uint32_t unreported = 0;
    bool unreported_solicited = false;
    std::uint64_t first_unreported = 0;  // ticks
    std::uint16_t moderation_count = 0, moderation_usec = 0;
};

struct Qp {
    QpAttr attr;
    QpState state = QpState::reset;
    bool send_failed = false, recv_failed = false;
    bool dead_send = false,
         dead_recv = false;         // not even to be flushed: its queue is nonsense, or its CQ is dead
    std::uint16_t send_next = 0;    // basic block to execute next
    std::uint16_t send_posted = 0;  // the record, as last acted upon
    std::uint16_t send_free = 0;    // blocks before this one completed visibly: software may use them again
    std::uint16_t recv_next = 0;
    std::vector<std::uint8_t> flame;  // the last BlueFlame copy, of the request with `flame_index`
    std::uint16_t flame_index = 0;
    std::optional<std::uint64_t> silent_since;
    std::optional<std::uint16_t> silent_posted;  // the record that was complained about

    bool sends() const { return state == QpState::rts && !send_failed && !dead_send; }
    bool flushes_sends() const { return (state == QpState::error || send_failed) && !dead_send; }
    bool receives() const {
        return state != QpState::reset && state != QpState::error && !recv_failed && !dead_recv;
    }
    bool flushes_receives() const { return (state == QpState::error || recv_failed) && !dead_recv; }
};

struct NumberedRule {
    std::uint64_t handle = 0;
    Rule rule;
};

inline std::uint32_t load_be32(const void* at, std::size_t word = 0) {
    auto* p = static_cast<std::uint32_t*>(const_cast<void*>(at)) + word;
    return be32toh(std::atomic_ref(*p).load(std::memory_order_acquire));
}

struct Nic::State {
    mutable std::mutex mutex;
    std::mutex rules_mutex;  // outside `mutex`: keeps calls of `rules_changed` in order
    std::uint32_t uar_page_bytes = 4096;
    std::map<std::uint32_t, Region> regions;
    std::map<std::uint32_t, std::uint8_t*> uars;
    std::vector<std::uint8_t*> pages;  // of `uars`, each once
    std::map<std::uint32_t, Cq> cqs;
    std::map<std::uint32_t, Qp> qps;
    std::vector<NumberedRule> rules;  // the order in which they are tried
    std::uint64_t last_handle = 0;
    std::shared_ptr<const std::function<void(Frame)>> transmit;
    std::function<void(const std::vector<Rule>&)> rules_changed;
    std::function<std::uint64_t()> ticks;
    std::uint32_t mhz = 1000;
    Faults faults;
    Limits limits;
    bool check_blue_flames = false;
    NicCounters counters;
    std::vector<std::string> violations;
    std::vector<Frame> outbox;  // sent in this step
    bool worked = false;        // in this step

    void violation(std::string text);
    std::uint64_t usec(std::uint64_t ticks_passed) const { return ticks_passed / (mhz == 0 ? 1 : mhz); }
    // The bytes of a request's segment. Null, and a violation about `who`, if the key does not cover them.
    std::uint8_t* memory(std::uint32_t lkey, std::uint64_t address, std::uint64_t length,
                         const std::string& who);

    // nic.cpp
    void take_doorbells();
    void list_pages();
    void take_page(std::uint8_t* page);
    void ring_send(std::uint8_t* page, std::uint64_t doorbell, const std::uint8_t* reg, bool blue_flame);
    void take_blue_flame(Qp& qp, std::uint64_t doorbell, const std::uint8_t* reg);
    void look_at_silent(Qp& qp);
    std::uint8_t* page_of(const Qp& qp) const;

    // nic_send.cpp
    void run_send_queue(Qp& qp);
    void fail_sends(Qp& qp);

    // nic_receive.cpp
    std::vector<const Rule*> rules_for(std::span<const std::uint8_t> frame) const;
    void deliver(Qp& qp, const Rule& rule, std::span<const std::uint8_t> frame);
    void flush_receives(Qp& qp);

    // nic_cq.cpp
    struct Completion {
        std::uint8_t opcode = 0;  // MLX5_CQE_*
        std::uint32_t user_index = 0;
        std::uint32_t sop_drop_qpn = 0;
        std::uint16_t wqe_counter = 0;
        std::uint32_t byte_count = 0;
        std::uint8_t hds_ip_ext = 0, l4_hdr_type_etc = 0;
        std::uint8_t syndrome = 0, vendor_syndrome = 0;
    };
    bool complete(std::uint32_t cqn,
                  const Completion& completion);  // false: it could not be written, the queue is dead
    void read_consumer(Cq& cq);
    void arm(Cq& cq, std::uint32_t word);
    void take_cq_doorbell(std::uint64_t doorbell);
    void look_at_arm_record(Cq& cq, bool page_rang);
    bool raise_if_due(Cq& cq);
    void raise(Cq& cq);
    void extra_event();
};

}  // namespace mlx5_sim
