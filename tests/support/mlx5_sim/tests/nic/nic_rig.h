// SPDX-License-Identifier: BSD-2-Clause
// The software's side of a simulated adapter, by hand: one QP, a CQ for each direction, a doorbell page,
// memory with one key. Writes queue memory as the format says and nothing else, so a test can also write it
// wrongly.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "tests/support/mlx5_sim/nic/nic.h"

namespace mlx5_sim {

inline constexpr std::uint8_t kSums = MLX5_ETH_WQE_L3_CSUM | MLX5_ETH_WQE_L4_CSUM;

// The first `bytes` of a frame.
inline std::span<const std::uint8_t> head(const Frame& frame, std::size_t bytes) {
    return std::span(frame).first(bytes);
}

// A send request, before it is put into a queue.
class Wqe {
  public:
    explicit Wqe(std::uint8_t opcode = MLX5_OPCODE_SEND, bool signalled = true)
        : opcode(opcode), signalled(signalled) {
        bytes.resize(16);
    }
    Wqe& eth(std::uint8_t cs_flags, std::uint16_t mss, std::span<const std::uint8_t> header) {
        return eth_raw(cs_flags, mss, static_cast<std::uint16_t>(header.size()), header);
    }
    Wqe& eth_raw(std::uint8_t cs_flags, std::uint16_t mss, std::uint16_t size_field,
                 std::span<const std::uint8_t> header) {
        mlx5_wqe_eth_seg eth{};
        eth.cs_flags = cs_flags;
        eth.mss = htobe16(mss);
        eth.inline_hdr_sz = htobe16(size_field);
        const auto* raw = reinterpret_cast<const std::uint8_t*>(&eth);
        bytes.insert(bytes.end(), raw, raw + offsetof(mlx5_wqe_eth_seg, inline_hdr_start));
        bytes.insert(bytes.end(), header.begin(), header.end());
        return pad();
    }
    Wqe& data(const void* at, std::uint32_t length, std::uint32_t lkey) {
        mlx5_wqe_data_seg segment{htobe32(length), htobe32(lkey),
                                  htobe64(reinterpret_cast<std::uintptr_t>(at))};
        const auto* raw = reinterpret_cast<const std::uint8_t*>(&segment);
        bytes.insert(bytes.end(), raw, raw + sizeof segment);
        return *this;
    }
    Wqe& inlined(std::span<const std::uint8_t> data) {
        const std::uint32_t count = htobe32(MLX5_INLINE_SEG | static_cast<std::uint32_t>(data.size()));
        const auto* raw = reinterpret_cast<const std::uint8_t*>(&count);
        bytes.insert(bytes.end(), raw, raw + 4);
        bytes.insert(bytes.end(), data.begin(), data.end());
        return pad();
    }

    std::uint8_t opcode;
    bool signalled;
    std::vector<std::uint8_t> bytes;
    // To write it wrongly.
    std::optional<std::uint32_t> index, qpn, segments;

  private:
    Wqe& pad() {
        bytes.resize((bytes.size() + 15) / 16 * 16);
        return *this;
    }
};

struct Shape {
    std::uint32_t send_entries = 16, recv_entries = 8, recv_shift = 5, cqes = 32, cqe_size = 64;
    std::uint32_t first_cqe = 0;  // position of the CQs' first completion
};

class Rig {
  public:
    static constexpr std::uint32_t kQpn = 0x1234, kUser = 0x77, kSendCq = 0x10, kRecvCq = 0x11,
                                   kLkey = 0x5500, kUar = 3;
    static constexpr std::size_t kArena = 65536;

    struct Queue {  // a CQ
        std::vector<std::uint8_t> memory;
        std::vector<std::uint32_t> record = {0, 0};
        std::uint32_t consumer = 0, sequence = 0, events = 0, failures = 0;
    };

    explicit Rig(const Shape& shape = {}) : shape(shape) {
        page = static_cast<std::uint8_t*>(std::aligned_alloc(4096, 4096));
        std::memset(page, 0, 4096);
        send_queue.resize(std::size_t{shape.send_entries} * 64);
        recv_queue.resize(std::size_t{shape.recv_entries} << shape.recv_shift);
        arena.resize(kArena);
        nic.set_clock([this] { return now; });
        nic.check_blue_flames(true);
        nic.add_uar(kUar, page);
        nic.add_region(kLkey, reinterpret_cast<std::uintptr_t>(arena.data()), arena.size());
        nic.on_transmit([this](Frame frame) { sent.push_back(std::move(frame)); });
        make_cq(send_cq, kSendCq);
        make_cq(recv_cq, kRecvCq);
        QpAttr attr;
        attr.qpn = kQpn;
        attr.user_index = kUser;
        attr.send_buffer = send_queue.data();
        attr.send_entries = shape.send_entries;
        attr.recv_buffer = recv_queue.data();
        attr.recv_entries = shape.recv_entries;
        attr.recv_shift = shape.recv_shift;
        attr.doorbell_record = record.data();
        attr.send_cqn = kSendCq;
        attr.recv_cqn = kRecvCq;
        attr.uar = kUar;
        nic.create_qp(attr);
        to_rts();
    }
    ~Rig() { std::free(page); }
    Rig(const Rig&) = delete;

    void to_rts() {
        for (QpState state : {QpState::init, QpState::rtr, QpState::rts}) nic.modify_qp(kQpn, state);
    }
    // Through reset, as software that starts anew.
    void reset() {
        nic.modify_qp(kQpn, QpState::reset);
        record = {0, 0};
        send_post = recv_post = 0;
        to_rts();
    }

    // ---- sending ----
    // Writes the request; does not tell the adapter.
    void put(const Wqe& wqe) {
        std::vector<std::uint8_t> bytes = wqe.bytes;
        mlx5_wqe_ctrl_seg ctrl{};
        const auto segments = static_cast<std::uint32_t>(bytes.size() / 16);
        ctrl.opmod_idx_opcode = htobe32(wqe.index.value_or(send_post & 0xffffu) << 8 | wqe.opcode);
        ctrl.qpn_ds = htobe32(wqe.qpn.value_or(kQpn) << 8 | wqe.segments.value_or(segments));
        ctrl.fm_ce_se = wqe.signalled ? MLX5_WQE_CTRL_CQ_UPDATE : 0;
        std::memcpy(bytes.data(), &ctrl, sizeof ctrl);
        last = send_post;
        for (std::size_t i = 0; i < bytes.size(); ++i)
            send_queue[(std::size_t{send_post} * 64 + i) % send_queue.size()] = bytes[i];
        send_post = static_cast<std::uint16_t>(send_post + (segments + 3) / 4);
    }
    void write_record() { record[MLX5_SND_DBR] = htobe32(send_post); }
    void ring(std::size_t reg = 0x800) {
        std::memcpy(page + reg, &send_queue[std::size_t{last} * 64 % send_queue.size()], 8);
    }
    void blue_flame(std::size_t bytes = 64, std::size_t reg = 0x800) {
        for (std::size_t i = 0; i < bytes; ++i)
            page[reg + i] = send_queue[(std::size_t{last} * 64 + i) % send_queue.size()];
    }
    void post(const Wqe& wqe) {
        put(wqe);
        write_record();
        ring();
    }

    // ---- receiving ----
    void put_receive(std::vector<mlx5_wqe_data_seg> segments) {
        std::uint8_t* to = &recv_queue[std::size_t{recv_post % shape.recv_entries} << shape.recv_shift];
        if (segments.size() < (std::size_t{1} << shape.recv_shift) / 16)
            segments.push_back({0, htobe32(MLX5_INVALID_LKEY), 0});
        std::memcpy(to, segments.data(), segments.size() * 16);
        ++recv_post;
    }
    mlx5_wqe_data_seg segment(std::size_t offset, std::uint32_t length) {
        return {htobe32(length), htobe32(kLkey),
                htobe64(reinterpret_cast<std::uintptr_t>(arena.data()) + offset)};
    }
    void write_receive_record() { record[MLX5_RCV_DBR] = htobe32(recv_post); }
    void post_receive(std::size_t offset, std::uint32_t length) {
        put_receive({segment(offset, length)});
        write_receive_record();
    }
    std::uint64_t take_all(std::uint32_t tag = 0) {
        Rule rule;
        rule.tag = tag;
        rule.qpn = kQpn;
        return nic.create_rule(rule);
    }

    // ---- completions ----
    mlx5_cqe64* entry(Queue& cq, std::uint32_t index) {
        return reinterpret_cast<mlx5_cqe64*>(&cq.memory[(index % shape.cqes + 1) * shape.cqe_size - 64]);
    }
    // The next one; nothing if there is none. The record is written, unless `tell` is false.
    std::optional<mlx5_cqe64> poll(Queue& cq, bool tell = true) {
        const mlx5_cqe64 cqe = *entry(cq, cq.consumer);
        if (cqe.op_own >> 4 == MLX5_CQE_INVALID ||
            (cqe.op_own & 1) != ((cq.consumer & shape.cqes) != 0 ? 1 : 0))
            return std::nullopt;
        ++cq.consumer;
        if (tell) tell_consumer(cq);
        return cqe;
    }
    void tell_consumer(Queue& cq) { cq.record[0] = htobe32(cq.consumer & 0xffffff); }
    std::uint32_t arm_word(const Queue& cq, bool solicited = false) const {
        return (cq.sequence & 3) << 28 | (solicited ? MLX5_CQ_DB_REQ_NOT_SOL : MLX5_CQ_DB_REQ_NOT) |
               (cq.consumer & 0xffffff);
    }
    void arm(Queue& cq, bool solicited = false) {
        const std::uint32_t word = arm_word(cq, solicited);
        cq.record[1] = htobe32(word);
        ring_cq(word, &cq == &send_cq ? kSendCq : kRecvCq);
    }
    void ring_cq(std::uint32_t word, std::uint32_t cqn) {
        const std::uint64_t doorbell = htobe64(std::uint64_t{word} << 32 | cqn);
        std::memcpy(page + MLX5_CQ_DOORBELL, &doorbell, 8);
    }
    // Reads the events that came: how many.
    std::uint32_t read_events(Queue& cq) {
        cq.sequence += cq.events;
        return std::exchange(cq.events, 0);
    }

    // All violations, one a line; "" for none.
    std::string violations() {
        std::string all;
        for (const std::string& text : nic.take_violations()) all += text + "\n";
        return all;
    }

    Shape shape;
    std::uint64_t now = 1000;
    std::uint8_t* page = nullptr;
    std::vector<std::uint8_t> send_queue, recv_queue, arena;
    std::vector<std::uint32_t> record = {0, 0};
    std::uint16_t send_post = 0, recv_post = 0, last = 0;
    Queue send_cq, recv_cq;
    std::vector<Frame> sent;
    Nic nic;

  private:
    void make_cq(Queue& cq, std::uint32_t cqn) {
        cq.consumer = shape.first_cqe;
        tell_consumer(cq);
        cq.memory.resize(std::size_t{shape.cqes} * shape.cqe_size);
        for (std::uint32_t i = 0; i < shape.cqes; ++i) entry(cq, i)->op_own = MLX5_CQE_INVALID << 4;
        CqAttr attr;
        attr.cqn = cqn;
        attr.buffer = cq.memory.data();
        attr.entries = shape.cqes;
        attr.cqe_size = shape.cqe_size;
        attr.doorbell_record = cq.record.data();
        attr.first = shape.first_cqe;
        attr.event = [&cq] { ++cq.events; };
        attr.failed = [&cq] { ++cq.failures; };
        nic.create_cq(attr);
    }
};

// ---- frames ----

struct Make {
    bool tcp = false;
    std::size_t payload = 100;
    std::uint8_t tcp_flags = 0x18;
    std::uint16_t src_port = 1000, dst_port = 2000, fragment = 0;
    std::optional<std::uint16_t> vlan;
    std::uint8_t dst_first = 0x02;  // the first byte of the destination address
    bool sums = true;
};
// An IPv4 frame from 198.18.1.2 to 198.18.1.1 with a payload of counting bytes.
Frame make_frame(const Make& make = {});
// One's complement sum over a range; 0xffff for a header with a right sum.
std::uint16_t plain_sum(std::span<const std::uint8_t> bytes, std::uint64_t start = 0);
// Are IPv4's and UDP's or TCP's sums right?
bool sums_right(const Frame& frame);

}  // namespace mlx5_sim
