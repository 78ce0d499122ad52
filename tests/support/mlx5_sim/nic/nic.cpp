// SPDX-License-Identifier: BSD-2-Clause
// Control functions and doorbells of the simulated adapter.
#include "tests/support/mlx5_sim/nic/nic.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "tests/support/mlx5_sim/nic/nic_frames.h"
#include "tests/support/mlx5_sim/nic/nic_state.h"

namespace mlx5_sim {
namespace {

constexpr std::size_t kAdapterPage = 4096;
// Doorbell registers of QPs: 256 bytes each (two make a BlueFlame register of the adapter, which are used in
// turns).
constexpr std::size_t kFirstRegister = 0x800, kRegisterBytes = 0x100;
constexpr std::uint64_t kSilenceUsec = 1000000;
constexpr std::size_t kMaxTexts = 1000;

std::uint64_t monotonic_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1000000000 + static_cast<std::uint64_t>(now.tv_nsec);
}

std::atomic_ref<std::uint64_t> word_at(const std::uint8_t* reg, std::size_t index) {
    return std::atomic_ref(*(reinterpret_cast<std::uint64_t*>(const_cast<std::uint8_t*>(reg)) + index));
}

}  // namespace

void Nic::State::violation(std::string text) {
    ++counters.violations;
    const char* mode = getenv("MLX5_SIM_STRICT");
    const std::string_view strict = mode == nullptr ? "" : mode;
    if (strict == "abort" || strict == "print") fmt::print(stderr, "mlx5_sim: {}\n", text);
    if (strict == "abort") abort();
    if (violations.size() < kMaxTexts) violations.push_back(std::move(text));
}

std::uint8_t* Nic::State::memory(std::uint32_t lkey, std::uint64_t address, std::uint64_t length,
                                 const std::string& who) {
    const auto found = regions.find(lkey);
    if (found == regions.end()) {
        violation(fmt::format("{}: there is no memory region with the key {:#x}", who, lkey));
        return nullptr;
    }
    const Region& region = found->second;
    if (address < region.address || length > region.length ||
        address - region.address > region.length - length) {
        violation(fmt::format("{}: {} bytes at {:#x} are outside the region {:#x} of {} bytes at {:#x}", who,
                              length, address, lkey, region.length, region.address));
        return nullptr;
    }
    return reinterpret_cast<std::uint8_t*>(address);
}

std::uint8_t* Nic::State::page_of(const Qp& qp) const {
    const auto found = uars.find(qp.attr.uar);
    return found == uars.end() ? nullptr : found->second;
}

// ---- doorbells ----

void Nic::State::take_doorbells() {
    for (std::uint8_t* page : pages) take_page(page);
}

void Nic::State::list_pages() {
    pages.clear();
    for (const auto& [index, page] : uars)
        if (std::ranges::find(pages, page) == pages.end()) pages.push_back(page);
}

void Nic::State::take_page(std::uint8_t* page) {
    bool send_rang = false, cq_rang = false;
    for (std::size_t base = 0; base < uar_page_bytes; base += kAdapterPage) {
        if (const std::uint64_t doorbell =
                word_at(page + base + MLX5_CQ_DOORBELL, 0).exchange(0, std::memory_order_acq_rel);
            doorbell != 0) {
            cq_rang = true;
            take_cq_doorbell(be64toh(doorbell));
        }
        for (std::size_t at = base + kFirstRegister; at < base + kAdapterPage; at += kRegisterBytes) {
            const std::uint8_t* reg = page + at;
            const std::uint64_t doorbell = word_at(reg, 0).exchange(0, std::memory_order_acq_rel);
            if (doorbell == 0) continue;
            send_rang = true;
            bool blue_flame = false;
            for (std::size_t i = 1; i < 8; ++i)
                blue_flame |= word_at(reg, i).load(std::memory_order_relaxed) != 0;
            ring_send(page, be64toh(doorbell), reg, blue_flame);
            for (std::size_t i = 1; blue_flame && i < kRegisterBytes / 8; ++i) {
                std::uint64_t seen = word_at(reg, i).load(std::memory_order_relaxed);
                if (seen != 0) word_at(reg, i).compare_exchange_strong(seen, 0, std::memory_order_relaxed);
            }
        }
    }
    if (send_rang) {
        worked = true;
        for (auto& [qpn, qp] : qps)
            if (page_of(qp) == page && (qp.sends() || qp.flushes_sends())) run_send_queue(qp);
    }
    // libmlx5 rings all completion queues of a context in its first page, which the model does not know.
    if (cq_rang)
        for (auto& [cqn, cq] : cqs) look_at_arm_record(cq, true);
}

void Nic::State::ring_send(std::uint8_t* page, std::uint64_t doorbell, const std::uint8_t* reg,
                           bool blue_flame) {
    ++(blue_flame ? counters.blue_flames : counters.doorbells);
    const auto index = static_cast<std::uint16_t>(doorbell >> 40);
    const std::uint32_t qpn = static_cast<std::uint32_t>(doorbell) >> 8;
    const auto found = qps.find(qpn);
    if (found == qps.end()) {
        violation(fmt::format("send doorbell for QP {:#x}, which there is not", qpn));
        return;
    }
    Qp& qp = found->second;
    if (page_of(qp) != page) {
        violation(fmt::format("QP {:#x}: rung in a doorbell page that is not its own", qpn));
        return;
    }
    if (qp.state == QpState::reset) {
        violation(fmt::format("QP {:#x}: doorbell while the QP may not send", qpn));
        return;
    }
    const auto posted = static_cast<std::uint16_t>(load_be32(qp.attr.doorbell_record, MLX5_SND_DBR));
    const auto ahead = static_cast<std::uint16_t>(posted - index);
    if (ahead == 0 || ahead >= 0x8000)
        violation(fmt::format("QP {:#x}: doorbell for the request {:#x}, but the record says {:#x}", qpn,
                              index, posted));
    if (check_blue_flames && blue_flame) take_blue_flame(qp, doorbell, reg);
    run_send_queue(qp);
}

// The first word of the register is taken already.
void Nic::State::take_blue_flame(Qp& qp, std::uint64_t doorbell, const std::uint8_t* reg) {
    const auto index = static_cast<std::uint16_t>(doorbell >> 40);
    const std::size_t bytes = (static_cast<std::uint32_t>(doorbell) & 0x3f) * 16;
    if (bytes > kRegisterBytes) {
        violation(fmt::format("QP {:#x}: BlueFlame copy of the request {:#x}, which has {} bytes",
                              qp.attr.qpn, index, bytes));
        return;
    }
    const auto* queue = static_cast<const std::uint8_t*>(qp.attr.send_buffer);
    const std::size_t queue_bytes = std::size_t{qp.attr.send_entries} * MLX5_SEND_WQE_BB;
    const std::size_t start = std::size_t{index} * MLX5_SEND_WQE_BB;
    const std::uint64_t first = htobe64(doorbell);
    qp.flame_index = index;
    qp.flame.assign(reg, reg + bytes);
    std::memcpy(qp.flame.data(), &first, std::min<std::size_t>(bytes, sizeof first));
    bool same = std::memcmp(queue + (start & (queue_bytes - 1)), &first, 8) == 0;
    for (std::size_t at = 8; at < bytes; at += 8)
        same &= std::memcmp(queue + ((start + at) & (queue_bytes - 1)), reg + at, 8) == 0;
    if (!same)
        violation(fmt::format("QP {:#x}: the BlueFlame copy of the request {:#x} differs from it",
                              qp.attr.qpn, index));
}

void Nic::State::look_at_silent(Qp& qp) {
    if (qp.state == QpState::reset) return;
    if (qp.recv_failed || qp.state == QpState::error) flush_receives(qp);
    const auto posted = static_cast<std::uint16_t>(load_be32(qp.attr.doorbell_record, MLX5_SND_DBR));
    if (posted == qp.send_next || qp.dead_send || posted == qp.silent_posted) {
        qp.silent_since.reset();
        return;
    }
    const std::uint64_t now = ticks();
    if (!qp.silent_since) {
        qp.silent_since = now;
    } else if (usec(now - *qp.silent_since) >= kSilenceUsec) {
        ++counters.doorbell_records;
        violation(fmt::format(
            "QP {:#x}: the send counter in the record is {:#x}, requests from {:#x} on got no doorbell",
            qp.attr.qpn, posted, qp.send_next));
        qp.silent_posted = posted;
    }
}

// ---- control plane ----

Nic::Nic(std::uint32_t uar_page_bytes) : state_(std::make_unique<State>()) {
    state_->uar_page_bytes = uar_page_bytes;
    state_->ticks = monotonic_ns;
}
Nic::~Nic() = default;

void Nic::add_region(std::uint32_t lkey, std::uint64_t address, std::uint64_t length) {
    const std::lock_guard lock(state_->mutex);
    state_->regions[lkey] = {address, length};
}
void Nic::remove_region(std::uint32_t lkey) {
    const std::lock_guard lock(state_->mutex);
    state_->regions.erase(lkey);
}

void Nic::add_uar(std::uint32_t index, void* page) {
    const std::lock_guard lock(state_->mutex);
    state_->uars[index] = static_cast<std::uint8_t*>(page);
    state_->list_pages();
}
void Nic::remove_uar(std::uint32_t index) {
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->uars.find(index);
    if (found == state_->uars.end()) return;
    state_->take_page(found->second);
    state_->uars.erase(found);
    state_->list_pages();
}

void Nic::create_cq(const CqAttr& attr) {
    const std::lock_guard lock(state_->mutex);
    Cq cq;
    cq.attr = attr;
    cq.owners.resize(attr.entries);
    cq.producer = cq.consumer = attr.first;
    bool invalid = true;
    for (std::uint32_t i = 0; i < attr.entries; ++i) {
        cq.owners[i] = static_cast<const std::uint8_t*>(attr.buffer)[std::size_t{i + 1} * attr.cqe_size - 1];
        invalid &= cq.owners[i] >> 4 == MLX5_CQE_INVALID;
    }
    if (!invalid) state_->violation(fmt::format("CQ {:#x}: its entries are not marked invalid", attr.cqn));
    // Software never reads this word. Without the mark a first arming (0) whose doorbell is overwritten could
    // not be seen.
    cq.arm_record = kArmUnwritten;
    std::atomic_ref(static_cast<std::uint32_t*>(attr.doorbell_record)[1])
        .store(htobe32(kArmUnwritten), std::memory_order_release);
    state_->cqs[attr.cqn] = std::move(cq);
}
void Nic::destroy_cq(std::uint32_t cqn) {
    const std::lock_guard lock(state_->mutex);
    state_->take_doorbells();  // what was rung before is not for nobody
    if (const auto found = state_->cqs.find(cqn); found != state_->cqs.end()) {
        state_->read_consumer(found->second);
        state_->cqs.erase(found);
    }
}
void Nic::moderate_cq(std::uint32_t cqn, std::uint16_t count, std::uint16_t period_usec) {
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->cqs.find(cqn);
    if (found == state_->cqs.end()) return;
    found->second.moderation_count = count;
    found->second.moderation_usec = period_usec;
    state_->raise_if_due(found->second);
}

void Nic::create_qp(const QpAttr& attr) {
    const std::lock_guard lock(state_->mutex);
    Qp qp;
    qp.attr = attr;
    state_->qps[attr.qpn] = qp;
}

void Nic::modify_qp(std::uint32_t qpn, QpState to) {
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->qps.find(qpn);
    if (found == state_->qps.end()) return;
    Qp& qp = found->second;
    state_->take_doorbells();
    if (to == QpState::reset || qp.state == QpState::reset) {
        const QpAttr attr = qp.attr;
        qp = Qp{};
        qp.attr = attr;
    }
    qp.state = to;
    if (to != QpState::error) return;
    // The kernel's command flushes what is posted, whether or not it was rung for.
    state_->run_send_queue(qp);
    state_->flush_receives(qp);
}

void Nic::silence_qp(std::uint32_t qpn) {
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->qps.find(qpn);
    if (found == state_->qps.end()) return;
    found->second.state = QpState::error;
    found->second.dead_send = found->second.dead_recv = true;
}

QpState Nic::qp_state(std::uint32_t qpn) const {
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->qps.find(qpn);
    if (found == state_->qps.end()) return QpState::reset;
    const Qp& qp = found->second;
    if (qp.recv_failed) return QpState::error;
    return qp.send_failed && qp.state != QpState::error ? QpState::send_error : qp.state;
}

void Nic::destroy_qp(std::uint32_t qpn) {
    const std::lock_guard lock(state_->mutex);
    state_->take_doorbells();
    const auto found = state_->qps.find(qpn);
    if (found == state_->qps.end()) return;
    const Qp& qp = found->second;
    const auto posted = static_cast<std::uint16_t>(load_be32(qp.attr.doorbell_record, MLX5_SND_DBR));
    if (qp.sends() && posted != qp.send_next && posted != qp.silent_posted) {
        ++state_->counters.doorbell_records;
        state_->violation(
            fmt::format("QP {:#x}: it goes, but requests from {:#x} on got no doorbell", qpn, qp.send_next));
    }
    state_->qps.erase(found);
}

std::uint64_t Nic::create_rule(const Rule& rule) {
    const std::lock_guard order(state_->rules_mutex);
    std::uint64_t handle = 0;
    {
        const std::lock_guard lock(state_->mutex);
        handle = ++state_->last_handle;
        const auto key = [](const NumberedRule& r) { return std::pair(r.rule.sniffs_all, r.rule.priority); };
        const NumberedRule added{handle, rule};
        const auto at = std::ranges::upper_bound(state_->rules, key(added), {}, key);
        state_->rules.insert(at, added);
    }
    if (state_->rules_changed) {
        std::vector<Rule> all;
        for (const NumberedRule& r : state_->rules) all.push_back(r.rule);
        state_->rules_changed(all);
    }
    return handle;
}

void Nic::destroy_rule(std::uint64_t handle) {
    const std::lock_guard order(state_->rules_mutex);
    {
        const std::lock_guard lock(state_->mutex);
        std::erase_if(state_->rules, [&](const NumberedRule& r) { return r.handle == handle; });
    }
    if (state_->rules_changed) {
        std::vector<Rule> all;
        for (const NumberedRule& r : state_->rules) all.push_back(r.rule);
        state_->rules_changed(all);
    }
}

// ---- wire, time, tests ----

bool Nic::receive(std::span<const std::uint8_t> frame) {
    const std::lock_guard lock(state_->mutex);
    const auto rules = state_->rules_for(frame);
    if (rules.empty()) {
        ++state_->counters.not_steered;
        return false;
    }
    for (const Rule* rule : rules) {
        const auto qp = state_->qps.find(rule->qpn);
        if (qp == state_->qps.end()) {
            ++state_->counters.no_receive;
        } else {
            state_->deliver(qp->second, *rule, frame);
        }
    }
    return true;
}

bool Nic::steered(std::span<const std::uint8_t> frame) const {
    const std::lock_guard lock(state_->mutex);
    return !state_->rules_for(frame).empty();
}

void Nic::on_transmit(std::function<void(Frame)> transmit) {
    const std::lock_guard lock(state_->mutex);
    state_->transmit = std::make_shared<const std::function<void(Frame)>>(std::move(transmit));
}

void Nic::on_rules(std::function<void(const std::vector<Rule>&)> changed) {
    const std::lock_guard order(state_->rules_mutex);
    state_->rules_changed = std::move(changed);
    if (!state_->rules_changed) return;
    std::vector<Rule> all;
    for (const NumberedRule& r : state_->rules) all.push_back(r.rule);
    state_->rules_changed(all);
}

bool Nic::step() {
    std::vector<Frame> frames;
    std::shared_ptr<const std::function<void(Frame)>> transmit;
    bool worked = false;
    {
        const std::lock_guard lock(state_->mutex);
        state_->worked = false;
        state_->take_doorbells();
        for (auto& [qpn, qp] : state_->qps) state_->look_at_silent(qp);
        for (auto& [cqn, cq] : state_->cqs) {
            state_->read_consumer(cq);
            state_->look_at_arm_record(cq, false);
            state_->raise_if_due(cq);
        }
        state_->extra_event();
        frames.swap(state_->outbox);
        transmit = state_->transmit;
        worked = state_->worked;
    }
    if (transmit && *transmit)
        for (Frame& frame : frames) (*transmit)(std::move(frame));
    return worked || !frames.empty();
}

void Nic::set_clock(std::function<std::uint64_t()> ticks, std::uint32_t mhz) {
    const std::lock_guard lock(state_->mutex);
    state_->ticks = ticks ? std::move(ticks) : monotonic_ns;
    state_->mhz = mhz;
}

void Nic::set_faults(const Faults& faults) {
    const std::lock_guard lock(state_->mutex);
    state_->faults = faults;
}
void Nic::set_limits(const Limits& limits) {
    const std::lock_guard lock(state_->mutex);
    state_->limits = limits;
}
void Nic::check_blue_flames(bool on) {
    const std::lock_guard lock(state_->mutex);
    state_->check_blue_flames = on;
}
NicCounters Nic::counters() const {
    const std::lock_guard lock(state_->mutex);
    return state_->counters;
}
std::vector<std::string> Nic::take_violations() {
    const std::lock_guard lock(state_->mutex);
    return std::exchange(state_->violations, {});
}

}  // namespace mlx5_sim
