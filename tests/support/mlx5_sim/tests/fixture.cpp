// SPDX-License-Identifier: BSD-2-Clause
// The programs' parts of fixture.h, and main(): it writes the tree before libibverbs looks for it.
#include "tests/support/mlx5_sim/tests/fixture.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "tests/support/mlx5_sim/sysfs.h"

// sim_thread_tests is made of this file too, and runs with the simulator's thread.
#ifdef SIM_THREADED
constexpr bool kThreaded = true;
#else
constexpr bool kThreaded = false;
#endif

namespace mlx5_sim::test {
namespace {

std::uint32_t sum(std::span<const std::uint8_t> bytes, std::uint32_t start = 0) {
    for (std::size_t i = 0; i < bytes.size(); ++i) start += i % 2 == 0 ? bytes[i] << 8 : bytes[i];
    return start;
}
std::uint16_t fold(std::uint32_t sum) {
    while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
    return static_cast<std::uint16_t>(~sum);
}
std::size_t ip_length(std::span<const std::uint8_t> frame) {
    return static_cast<std::size_t>(frame[16] << 8 | frame[17]);
}

std::uint32_t pseudo_header(std::span<const std::uint8_t> frame) {
    return sum(frame.subspan(26, 8), static_cast<std::uint32_t>(frame[23] + (ip_length(frame) - 20)));
}

}  // namespace

ContextPtr open_device(const std::string& name) {
    int count = 0;
    ibv_device** const list = ibv_get_device_list(&count);
    ibv_context* context = nullptr;
    for (int i = 0; i < count; ++i) {
        if (name == ibv_get_device_name(list[i])) context = ibv_open_device(list[i]);
    }
    ibv_free_device_list(list);
    EXPECT_NE(context, nullptr) << name;
    return ContextPtr(context);
}

std::vector<std::uint8_t> udp_frame(std::size_t bytes, std::uint8_t seed, std::uint16_t dst_port) {
    const std::uint8_t head[] = {0x02, 0, 0,   0,  0, 2, 0x02, 0,    0,  0,  0, 1, 8,   0,
                                 0x45, 0, 0,   0,  0, 0, 0,    0,    64, 17, 0, 0, 198, 18,
                                 0,    1, 198, 18, 0, 2, 0x30, 0x39, 0,  0,  0, 0, 0,   0};
    std::vector<std::uint8_t> frame(bytes);
    for (std::size_t i = sizeof(head); i < bytes; ++i) frame[i] = static_cast<std::uint8_t>(seed + i);
    std::memcpy(frame.data(), head, sizeof(head));
    const auto put = [&](std::size_t at, std::size_t value) {
        frame[at] = static_cast<std::uint8_t>(value >> 8);
        frame[at + 1] = static_cast<std::uint8_t>(value);
    };
    put(16, bytes - 14);
    put(36, dst_port);
    put(38, bytes - 34);
    put(24, fold(sum(std::span(frame).subspan(14, 20))));
    put(40, fold(sum(std::span(frame).subspan(34), pseudo_header(frame))));
    return frame;
}

std::uint16_t ip_sum(std::span<const std::uint8_t> frame) { return fold(sum(frame.subspan(14, 20))); }

std::uint16_t transport_sum(std::span<const std::uint8_t> frame) {
    return fold(sum(frame.subspan(34, ip_length(frame) - 20), pseudo_header(frame)));
}

Port::Port(const std::string& device, const PortOptions& options) : memory(kSlot * kSlots) {
    context = open_device(device);
    if (context == nullptr) return;
    pd.reset(ibv_alloc_pd(context.get()));
    mr.reset(ibv_reg_mr(pd.get(), memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE));
    if (options.with_channel) channel.reset(ibv_create_comp_channel(context.get()));
    const int cqes = options.cqes != 0 ? options.cqes : options.entries;
    send_cq.reset(ibv_create_cq(context.get(), cqes, nullptr, nullptr, 0));
    if (options.extended) {
        ibv_cq_init_attr_ex attr{};
        attr.cqe = static_cast<std::uint32_t>(cqes);
        attr.cq_context = this;
        attr.channel = channel.get();
        attr.wc_flags =
            IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_FLOW_TAG;
        ibv_cq_ex* const made = ibv_create_cq_ex(context.get(), &attr);
        recv_cq.reset(made != nullptr ? ibv_cq_ex_to_cq(made) : nullptr);
    } else {
        recv_cq.reset(ibv_create_cq(context.get(), cqes, this, channel.get(), 0));
    }
    if (send_cq == nullptr || recv_cq == nullptr) {
        ADD_FAILURE() << "no CQ: " << std::strerror(errno);
        return;
    }
    ibv_qp_init_attr_ex init{};
    init.send_cq = send_cq.get();
    init.recv_cq = recv_cq.get();
    init.cap = {static_cast<std::uint32_t>(options.entries), static_cast<std::uint32_t>(options.entries),
                options.max_sge, options.max_sge, options.max_inline};
    init.qp_type = IBV_QPT_RAW_PACKET;
    init.sq_sig_all = options.all_signalled;
    init.comp_mask = IBV_QP_INIT_ATTR_PD;
    init.pd = pd.get();
    if (options.max_tso_header != 0) {
        init.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
        init.max_tso_header = static_cast<std::uint16_t>(options.max_tso_header);
    }
    qp.reset(ibv_create_qp_ex(context.get(), &init));
    EXPECT_NE(qp, nullptr) << std::strerror(errno);
    if (qp != nullptr) to_rts();
}

void Port::stop() {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    EXPECT_EQ(ibv_modify_qp(qp.get(), &attr, IBV_QP_STATE), 0);
}

void Port::restart() {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RESET;
    EXPECT_EQ(ibv_modify_qp(qp.get(), &attr, IBV_QP_STATE), 0);
    to_rts();
}

ibv_qp_state Port::state() {
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    EXPECT_EQ(ibv_query_qp(qp.get(), &attr, IBV_QP_STATE, &init), 0);
    return attr.qp_state;
}

void Port::to_rts() {
    ibv_qp_attr attr{};
    attr.port_num = 1;
    attr.qp_state = IBV_QPS_INIT;
    EXPECT_EQ(ibv_modify_qp(qp.get(), &attr, IBV_QP_STATE | IBV_QP_PORT), 0);
    attr.qp_state = IBV_QPS_RTR;
    EXPECT_EQ(ibv_modify_qp(qp.get(), &attr, IBV_QP_STATE), 0);
    attr.qp_state = IBV_QPS_RTS;
    EXPECT_EQ(ibv_modify_qp(qp.get(), &attr, IBV_QP_STATE), 0);
}

void Port::receive_into(unsigned index) {
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(slot(index)), kSlot, mr->lkey};
    ibv_recv_wr wr{};
    wr.wr_id = index;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_recv(qp.get(), &wr, &bad), 0);
}

void Port::fill(unsigned index, const std::vector<std::uint8_t>& frame) {
    std::memcpy(slot(index), frame.data(), frame.size());
}

void Port::send(unsigned index, std::size_t bytes, unsigned flags) {
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(slot(index)), static_cast<std::uint32_t>(bytes), mr->lkey};
    ibv_send_wr wr{};
    wr.wr_id = index;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = flags;
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(qp.get(), &wr, &bad), 0);
}

ibv_wc Port::next(ibv_cq* cq) {
    ibv_wc wc{};
    // With a thread of the simulator it may take a while.
    for (int i = 0; i < 20000; ++i) {
        if (ibv_poll_cq(cq, 1, &wc) == 1) return wc;
        if (step()) continue;
        if (!kThreaded && i > 100) break;
        if (kThreaded) usleep(500);
    }
    ADD_FAILURE() << "no completion";
    wc.status = IBV_WC_GENERAL_ERR;
    return wc;
}

ibv_flow* Port::try_steer_udp(std::uint16_t dst_port, std::uint32_t tag, std::uint16_t priority) {
    struct {
        ibv_flow_attr attr;
        ibv_flow_spec_eth eth;
        ibv_flow_spec_ipv4 ip;
        ibv_flow_spec_tcp_udp udp;
        ibv_flow_spec_action_tag tag;
    } rule{};
    static_assert(sizeof(rule) == sizeof(rule.attr) + sizeof(rule.eth) + sizeof(rule.ip) + sizeof(rule.udp) +
                                      sizeof(rule.tag));
    rule.attr.type = IBV_FLOW_ATTR_NORMAL;
    rule.attr.size = sizeof(rule);
    rule.attr.priority = priority;
    rule.attr.port = 1;
    rule.attr.num_of_specs = tag != 0 ? 4 : dst_port != 0 ? 3 : 1;
    rule.eth.type = IBV_FLOW_SPEC_ETH;
    rule.eth.size = sizeof(rule.eth);
    rule.ip.type = IBV_FLOW_SPEC_IPV4;
    rule.ip.size = sizeof(rule.ip);
    rule.udp.type = IBV_FLOW_SPEC_UDP;
    rule.udp.size = sizeof(rule.udp);
    rule.udp.val.dst_port = htons(dst_port);
    rule.udp.mask.dst_port = 0xffff;
    rule.tag.type = IBV_FLOW_SPEC_ACTION_TAG;
    rule.tag.size = sizeof(rule.tag);
    rule.tag.tag_id = tag;
    return ibv_create_flow(qp.get(), &rule.attr);
}

FlowPtr Port::steer_udp(std::uint16_t dst_port, std::uint32_t tag, std::uint16_t priority) {
    FlowPtr flow(try_steer_udp(dst_port, tag, priority));
    EXPECT_NE(flow, nullptr) << std::strerror(errno);
    return flow;
}

std::vector<std::string> violations() {
    std::vector<std::string> all;
    for (const char* name : {kFirst, kSecond}) {
        for (const std::string& violation : nic(name).take_violations())
            all.push_back(name + (": " + violation));
    }
    return all;
}

void expect_no_violations() {
    for (const std::string& violation : violations()) ADD_FAILURE() << violation;
}

}  // namespace mlx5_sim::test

int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    char directory[] = "/tmp/mlx5_sim_XXXXXX";
    if (mkdtemp(directory) == nullptr) return 2;
    const mlx5_sim::SysfsDevice devices[] = {{"sim0", {2, 0, 0, 0, 0, 1}}, {"sim1", {2, 0, 0, 0, 0, 2}}};
    const auto written = mlx5_sim::write_sysfs(directory, devices);
    if (!written) {
        std::fprintf(stderr, "%s\n", written.error().c_str());
        return 2;
    }
    setenv("SYSFS_PATH", directory, 1);
    if (kThreaded) setenv("MLX5_SIM_THREAD", "1", 1);
    const int result = RUN_ALL_TESTS();
    std::filesystem::remove_all(directory);
    return result;
}
