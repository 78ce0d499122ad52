// SPDX-License-Identifier: BSD-2-Clause
// mlx5_sim_echo PORT
// Plain verbs, and nothing of ours below: takes UDP to PORT from mlx5_0 and sends it back whence it came,
// until standard input ends. Says "ready" when its rule is in force, and at the end how many frames it sent
// back.
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr unsigned kBuffers = 128;
constexpr std::size_t kBuffer = 2048;

template <class T>
T* need(T* object, const char* what) {
    if (object != nullptr) return object;
    std::perror(what);
    std::exit(1);
}
void need_0(int error, const char* what) {
    if (error == 0) return;
    std::fprintf(stderr, "%s: %s\n", what, std::strerror(error));
    std::exit(1);
}

ibv_flow* take_udp(ibv_qp* qp, unsigned port) {
    struct {
        ibv_flow_attr attr;
        ibv_flow_spec_eth eth;
        ibv_flow_spec_ipv4 ip;
        ibv_flow_spec_tcp_udp udp;
    } rule{};
    rule.attr.type = IBV_FLOW_ATTR_NORMAL;
    rule.attr.size = sizeof(rule);
    rule.attr.num_of_specs = 3;
    rule.attr.port = 1;
    rule.eth.type = IBV_FLOW_SPEC_ETH;
    rule.eth.size = sizeof(rule.eth);
    rule.ip.type = IBV_FLOW_SPEC_IPV4;
    rule.ip.size = sizeof(rule.ip);
    rule.udp.type = IBV_FLOW_SPEC_UDP;
    rule.udp.size = sizeof(rule.udp);
    rule.udp.val.dst_port = htons(static_cast<std::uint16_t>(port));
    rule.udp.mask.dst_port = 0xffff;
    return need(ibv_create_flow(qp, &rule.attr), "flow");
}

// Both sums stay right when source and destination change places.
void turn_round(std::uint8_t* frame) {
    std::swap_ranges(frame, frame + 6, frame + 6);
    std::swap_ranges(frame + 26, frame + 30, frame + 30);
    std::swap_ranges(frame + 34, frame + 36, frame + 36);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: mlx5_sim_echo PORT\n");
        return 2;
    }
    ibv_device** const list = need(ibv_get_device_list(nullptr), "devices");
    ibv_context* const context = need(ibv_open_device(need(list[0], "no device")), "open");
    ibv_pd* const pd = need(ibv_alloc_pd(context), "pd");
    std::vector<std::uint8_t> memory(kBuffers * kBuffer);
    ibv_mr* const mr = need(ibv_reg_mr(pd, memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE), "mr");
    ibv_comp_channel* const channel = need(ibv_create_comp_channel(context), "channel");
    ibv_cq* const cq = need(ibv_create_cq(context, 2 * kBuffers, nullptr, channel, 0), "cq");
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.cap = {kBuffers, kBuffers, 1, 1, 0};
    init.qp_type = IBV_QPT_RAW_PACKET;
    init.sq_sig_all = 1;
    ibv_qp* const qp = need(ibv_create_qp(pd, &init), "qp");
    ibv_qp_attr attr{};
    attr.port_num = 1;
    attr.qp_state = IBV_QPS_INIT;
    need_0(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT), "init");
    attr.qp_state = IBV_QPS_RTR;
    need_0(ibv_modify_qp(qp, &attr, IBV_QP_STATE), "rtr");
    attr.qp_state = IBV_QPS_RTS;
    need_0(ibv_modify_qp(qp, &attr, IBV_QP_STATE), "rts");

    const auto buffer = [&](std::uint64_t index) { return memory.data() + index * kBuffer; };
    const auto receive = [&](std::uint64_t index) {
        ibv_sge sge{reinterpret_cast<std::uintptr_t>(buffer(index)), kBuffer, mr->lkey};
        ibv_recv_wr wr{};
        wr.wr_id = index;
        wr.sg_list = &sge;
        wr.num_sge = 1;
        ibv_recv_wr* bad = nullptr;
        need_0(ibv_post_recv(qp, &wr, &bad), "post_recv");
    };
    const auto send = [&](std::uint64_t index, std::uint32_t bytes) {
        ibv_sge sge{reinterpret_cast<std::uintptr_t>(buffer(index)), bytes, mr->lkey};
        ibv_send_wr wr{};
        wr.wr_id = index;
        wr.sg_list = &sge;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_SEND;
        ibv_send_wr* bad = nullptr;
        need_0(ibv_post_send(qp, &wr, &bad), "post_send");
    };
    for (unsigned i = 0; i < kBuffers; ++i) receive(i);
    ibv_flow* const flow = take_udp(qp, static_cast<unsigned>(std::strtoul(argv[1], nullptr, 10)));
    need_0(ibv_req_notify_cq(cq, 0), "notify");
    std::printf("ready\n");
    std::fflush(stdout);

    unsigned answered = 0;
    for (;;) {
        pollfd fds[] = {{channel->fd, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
        if (poll(fds, 2, -1) < 0 || fds[1].revents != 0) break;
        ibv_cq* which = nullptr;
        void* nobody = nullptr;
        need_0(ibv_get_cq_event(channel, &which, &nobody), "event");
        ibv_ack_cq_events(cq, 1);
        need_0(ibv_req_notify_cq(cq, 0), "notify");
        ibv_wc wc{};
        while (ibv_poll_cq(cq, 1, &wc) == 1) {
            if (wc.status != IBV_WC_SUCCESS) need_0(EIO, ibv_wc_status_str(wc.status));
            if ((wc.opcode & IBV_WC_RECV) == 0) {
                receive(wc.wr_id);  // it is sent: its buffer is free again
                continue;
            }
            turn_round(buffer(wc.wr_id));
            send(wc.wr_id, wc.byte_len);
            ++answered;
        }
    }
    need_0(ibv_destroy_flow(flow), "flow");
    need_0(ibv_destroy_qp(qp), "qp");
    need_0(ibv_destroy_cq(cq), "cq");
    need_0(ibv_destroy_comp_channel(channel), "channel");
    need_0(ibv_dereg_mr(mr), "mr");
    need_0(ibv_dealloc_pd(pd), "pd");
    need_0(ibv_close_device(context), "close");
    ibv_free_device_list(list);
    std::printf("%u\n", answered);
    return 0;
}
