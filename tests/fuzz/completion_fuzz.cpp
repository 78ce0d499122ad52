// SPDX-License-Identifier: BSD-2-Clause
// What an adapter writes into its completion queues, with any content: opcodes, owner bits, lengths,
// positions and syndromes of any value, between posted sends and receives of the program. However wrong they
// are, nothing outside the queues may be touched, each poll ends, and a request's number comes from what was
// posted.
//
// Input: options, then operations of a byte and their arguments.
#include "libvma/runtime/log.h"
#include "tests/fuzz/input.h"
#include "tests/verbs/mlx5_queues.h"

using namespace vma;

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    log::set_level(log::Level::none);  // it complains of each adapter
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Input in(data, size);
    const auto how = in.take<std::uint8_t>();
    test::Options options;
    options.blocks = how & 1 ? 8 : 64;
    options.receives = options.receive_cqes = how & 2 ? 8 : 32;
    options.cqe_size = how & 4 ? 128 : 64;
    options.config.rx_checksum = how & 8;
    options.config.flow_tags = how & 16;
    options.config.rx_prefetch = how & 32 ? 256 : 0;
    options.config.rx_prefetch_before_poll = how & 64 ? 64 : 0;
    options.limits.max_send_wr = how & 1 ? 4 : 32;
    options.limits.max_recv_wr = options.receives;
    test::Bench bench(options);
    std::uint64_t next_id = 1;
    alignas(64) static std::uint8_t buffer[4096];
    for (int i = 0; i < 200 && !in.rest().empty(); i++) {
        const auto op = in.take<std::uint8_t>();
        test::FakeCq& cq = op & 8 ? bench.send_cq : bench.recv_cq;
        switch (op % 8) {
            case 0: {  // any content, in turn
                const auto opcode = in.take<std::uint8_t>();
                mlx5_cqe64 cqe;
                for (auto& byte : reinterpret_cast<std::uint8_t(&)[sizeof cqe]>(cqe))
                    byte = in.take<std::uint8_t>();
                cq.complete(opcode & 15, [&](mlx5_cqe64& at) { memcpy(&at, &cqe, 63); });
                break;
            }
            case 1:  // any owner bit, anywhere
                cq.at(in.take<std::uint8_t>())->op_own = in.take<std::uint8_t>();
                break;
            case 2:
                bench.recv_cq.received(in.take<std::uint32_t>());
                break;
            case 3:
                bench.send_cq.send_done(in.take<std::uint16_t>(), op >> 4);
                break;
            case 4:
                cq.failed(op & 16 ? MLX5_CQE_REQ_ERR : MLX5_CQE_RESP_ERR, in.take<std::uint16_t>(),
                          in.take<std::uint8_t>());
                break;
            case 5: {
                const ibv_sge sge{reinterpret_cast<std::uintptr_t>(buffer), 2048, 1};
                ibv_recv_wr wr{next_id++, nullptr, const_cast<ibv_sge*>(&sge), 1};
                ibv_recv_wr* bad = nullptr;
                (void)ibv_post_recv(bench.facade, &wr, &bad);
                break;
            }
            case 6:
                (void)bench.send({bench.sge(0, 18u + in.take<std::uint8_t>() * 4u)},
                                 op & 16 ? IBV_SEND_INLINE | IBV_SEND_SIGNALED : IBV_SEND_SIGNALED,
                                 next_id++);
                break;
            default: {
                ibv_wc wc[16];
                ibv_cq* const which = op & 8 ? bench.scq : bench.rcq;
                const int count = 1 + (op >> 4);
                if (op & 128) (void)ibv_req_notify_cq(which, op & 16);
                const int n = ibv_poll_cq(which, std::min(count, 16), wc);
                FUZZ_CHECK(n >= 0 && n <= count);
                for (int k = 0; k < n; k++) FUZZ_CHECK(wc[k].wr_id < next_id);
            }
        }
    }
    bench.direct->reset(bench.facade);
    return 0;
}
