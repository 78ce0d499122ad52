// SPDX-License-Identifier: BSD-2-Clause
// Queues of a ConnectX in plain memory, and an mlx5dv_init_obj() that hands them out: what the adapter would
// read and write is read and written by the test.
#pragma once

#include <errno.h>
#include <gtest/gtest.h>
#include <infiniband/mlx5dv.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "libvma/verbs/device.h"
#include "libvma/verbs/mlx5/direct.h"

namespace vma::test {

// Memory at a multiple of 64, filled with a pattern so that what was not written shows.
class Aligned {
  public:
    Aligned(std::size_t bytes, std::uint8_t pattern) : raw_(bytes + 64, pattern) {}
    std::uint8_t* get() noexcept {
        return raw_.data() + (-reinterpret_cast<std::uintptr_t>(raw_.data()) & 63);
    }

  private:
    std::vector<std::uint8_t> raw_;
};

struct FakeCq {
    FakeCq(std::uint32_t entries, std::uint32_t cqe_size, std::uint32_t number)
        : memory(std::size_t{entries} * cqe_size, 0), entries(entries), cqe_size(cqe_size), number(number) {
        object.cqe = static_cast<int>(entries - 1);
        static ibv_context adapter{};
        object.context = &adapter;
        object.cq_context = this;
        for (std::uint32_t i = 0; i < entries; i++) at(i)->op_own = MLX5_CQE_INVALID << 4;
    }
    mlx5_cqe64* at(std::uint32_t index) {
        return reinterpret_cast<mlx5_cqe64*>(memory.get() + std::size_t{index & (entries - 1)} * cqe_size +
                                             cqe_size - 64);
    }
    // Writes the adapter's next completion: `fill` gets it zeroed.
    template <class Fill>
    void complete(std::uint8_t opcode, Fill&& fill) {
        mlx5_cqe64* cqe = at(producer);
        std::memset(cqe, 0, 63);
        fill(*cqe);
        cqe->op_own = static_cast<std::uint8_t>(opcode << 4 | ((producer & entries) != 0));
        producer++;
    }
    void send_done(std::uint16_t position, std::uint8_t opcode = MLX5_OPCODE_SEND) {
        complete(MLX5_CQE_REQ, [&](mlx5_cqe64& cqe) {
            cqe.wqe_counter = htobe16(position);
            cqe.sop_drop_qpn = htobe32(static_cast<std::uint32_t>(opcode) << 24);
        });
    }
    void received(std::uint32_t length) {
        complete(MLX5_CQE_RESP_SEND, [&](mlx5_cqe64& cqe) { cqe.byte_cnt = htobe32(length); });
    }
    void failed(std::uint8_t opcode, std::uint16_t position, std::uint8_t syndrome, std::uint8_t vendor = 0) {
        complete(opcode, [&](mlx5_cqe64& cqe) {
            auto& error = reinterpret_cast<mlx5_err_cqe&>(cqe);
            error.wqe_counter = htobe16(position);
            error.syndrome = syndrome;
            error.vendor_err_synd = vendor;
        });
    }
    std::uint32_t consumer() const { return be32toh(doorbell_record[0]); }

    Aligned memory;
    std::uint32_t entries, cqe_size, number, producer = 0;
    __be32 doorbell_record[2] = {};
    alignas(64) std::uint64_t uar[512] = {};
    ibv_cq object{};
};

struct FakeQp {
    FakeQp(std::uint32_t blocks, std::uint32_t receives, std::uint32_t receive_stride = 16,
           std::uint32_t flame = 256)
        : send(std::size_t{blocks} * 64, 0xee), receive(std::size_t{receives} * receive_stride, 0xee) {
        object.qp_context = this;
        object.qp_num = 0x123;
        object.qp_type = IBV_QPT_RAW_PACKET;
        queues.dbrec = doorbell_record;
        queues.sq = {send.get(), blocks, 64};
        queues.rq = {receive.get(), receives, receive_stride};
        queues.bf = {registers + 256, flame};  // 0x800 of the page
    }
    const std::uint8_t* block(std::uint32_t index) {
        return send.get() + std::size_t{index % queues.sq.wqe_cnt} * 64;
    }
    std::uint16_t sends_announced() const {
        return static_cast<std::uint16_t>(be32toh(doorbell_record[MLX5_SND_DBR]));
    }
    std::uint16_t receives_announced() const {
        return static_cast<std::uint16_t>(be32toh(doorbell_record[MLX5_RCV_DBR]));
    }

    Aligned send, receive;
    __be32 doorbell_record[2] = {};
    alignas(64) std::uint64_t registers[512] = {};
    mlx5dv_qp queues{};
    ibv_qp object{};
};

inline int fake_init_obj(mlx5dv_obj* obj, std::uint64_t type) {
    if (type == MLX5DV_OBJ_CQ) {
        auto& cq = *static_cast<FakeCq*>(obj->cq.in->cq_context);
        *obj->cq.out = {cq.memory.get(), cq.doorbell_record, cq.entries, cq.cqe_size, cq.uar, cq.number, 0};
    } else if (type == MLX5DV_OBJ_QP) {
        *obj->qp.out = static_cast<FakeQp*>(obj->qp.in->qp_context)->queues;
    } else {
        return EOPNOTSUPP;
    }
    return 0;
}

struct Options {
    std::uint32_t blocks = 64, receives = 32, receive_stride = 16, flame = 256, cqe_size = 64, send_cqes = 64,
                  receive_cqes = 32;
    verbs::mlx5::Config config;
    verbs::mlx5::QpLimits limits{.max_send_wr = 32,
                                 .max_recv_wr = 32,
                                 .max_send_sge = 8,
                                 .max_recv_sge = 1,
                                 .max_inline = 204,
                                 .max_tso = 65536,
                                 .max_tso_header = 94};
};

// A device with one QP, its CQs, and a frame of rising bytes.
struct Bench {
    explicit Bench(const Options& setup = {})
        : send_cq(setup.send_cqes, setup.cqe_size, 7),
          recv_cq(setup.receive_cqes, setup.cqe_size, 8),
          qp(setup.blocks, setup.receives, setup.receive_stride, setup.flame) {
        direct = verbs::mlx5::Direct::create({fake_init_obj}, setup.config).value();
        scq = direct->wrap_cq(&send_cq.object).value();
        rcq = direct->wrap_cq(&recv_cq.object).value();
        facade = direct->wrap_qp(&qp.object, scq, rcq, setup.limits).value();
        std::iota(std::begin(frame), std::end(frame), std::uint8_t{0});
    }
    ibv_sge sge(std::uint32_t from, std::uint32_t length) {
        return {reinterpret_cast<std::uintptr_t>(frame + from), length, 0x01020304};
    }
    int send(std::vector<ibv_sge> list, unsigned flags = 0, std::uint64_t id = 0) {
        ibv_send_wr wr{};
        wr.wr_id = id;
        wr.sg_list = list.data();
        wr.num_sge = static_cast<int>(list.size());
        wr.opcode = IBV_WR_SEND;
        wr.send_flags = flags;
        ibv_send_wr* bad = nullptr;
        const int error = ibv_post_send(facade, &wr, &bad);
        EXPECT_EQ(bad, error != 0 ? &wr : nullptr);
        return error;
    }
    int large_send(std::vector<ibv_sge> list, std::uint16_t header, std::uint16_t mss, unsigned flags = 0) {
        ibv_send_wr wr{};
        wr.sg_list = list.data();
        wr.num_sge = static_cast<int>(list.size());
        wr.opcode = IBV_WR_TSO;
        wr.send_flags = flags;
        wr.tso.hdr = frame;
        wr.tso.hdr_sz = header;
        wr.tso.mss = mss;
        ibv_send_wr* bad = nullptr;
        return ibv_post_send(facade, &wr, &bad);
    }
    int receive(std::uint64_t id, std::vector<ibv_sge> list) {
        ibv_recv_wr wr{id, nullptr, list.data(), static_cast<int>(list.size())};
        ibv_recv_wr* bad = nullptr;
        const int error = ibv_post_recv(facade, &wr, &bad);
        EXPECT_EQ(bad, error != 0 ? &wr : nullptr);
        return error;
    }
    std::vector<ibv_wc> poll(ibv_cq* cq, int count = 16) {
        std::vector<ibv_wc> wc(static_cast<std::size_t>(count));
        wc.resize(static_cast<std::size_t>(ibv_poll_cq(cq, count, wc.data())));
        return wc;
    }
    // `count` bytes of the send queue from block `index`, going on at its beginning.
    std::vector<std::uint8_t> bytes(std::uint32_t index, std::size_t count) {
        std::vector<std::uint8_t> out;
        for (; out.size() < count; index++) out.insert(out.end(), qp.block(index), qp.block(index) + 64);
        out.resize(count);
        return out;
    }
    std::vector<std::uint8_t> frame_bytes(std::size_t from, std::size_t count) {
        return {frame + from, frame + from + count};
    }

    FakeCq send_cq, recv_cq;
    FakeQp qp;
    std::unique_ptr<verbs::mlx5::Direct> direct;
    ibv_cq *scq, *rcq;
    ibv_qp* facade;
    alignas(64) std::uint8_t frame[4096];
};

inline std::vector<std::uint8_t> big_endian(std::uint64_t value, int bytes) {
    std::vector<std::uint8_t> out;
    while (bytes-- > 0) out.push_back(static_cast<std::uint8_t>(value >> 8 * bytes));
    return out;
}
template <class... Parts>
std::vector<std::uint8_t> join(const Parts&... parts) {
    std::vector<std::uint8_t> out;
    (out.insert(out.end(), parts.begin(), parts.end()), ...);
    return out;
}
inline std::vector<std::uint8_t> segment(const ibv_sge& sge, std::uint32_t skip = 0) {
    return join(big_endian(sge.length - skip, 4), big_endian(sge.lkey, 4), big_endian(sge.addr + skip, 8));
}
// Control and Ethernet segment up to the inline header.
inline std::vector<std::uint8_t> head(std::uint16_t position, std::uint8_t opcode, std::uint8_t units,
                                      bool signalled, std::uint8_t sums, std::uint16_t mss,
                                      std::uint16_t header) {
    return join(big_endian(std::uint64_t{position} << 8 | opcode, 4), big_endian(0x123u << 8 | units, 4),
                big_endian(0, 3), big_endian(signalled ? 8 : 0, 1), big_endian(0, 4), big_endian(0, 4),
                big_endian(sums, 1), big_endian(0, 1), big_endian(mss, 2), big_endian(0, 4),
                big_endian(header, 2));
}

}  // namespace vma::test
