// SPDX-License-Identifier: BSD-2-Clause
// The ioctl itself: what the kernel answers to calls that libibverbs would never make, and that outputs are
// whole.
#include "tests/support/mlx5_sim/uverbs.h"

#include <fcntl.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/mlx5-abi.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>

#include "tests/support/mlx5_sim/tests/fixture.h"

namespace mlx5_sim::test {
namespace {

// One INVOKE_WRITE call, in pieces that a test may spoil.
class Call {
  public:
    explicit Call(std::uint64_t command) {
        header().object_id = UVERBS_OBJECT_DEVICE;
        header().method_id = UVERBS_METHOD_INVOKE_WRITE;
        header().driver_id = RDMA_DRIVER_MLX5;
        add(UVERBS_ATTR_WRITE_CMD, sizeof(command), command);
    }
    template <class T>
    Call& in(const T& value, std::uint16_t id = UVERBS_ATTR_CORE_IN) {
        std::uint64_t data = reinterpret_cast<std::uintptr_t>(&value);
        if (sizeof(T) <= sizeof(data)) {
            data = 0;
            std::memcpy(&data, &value, sizeof(T));
        }
        return add(id, sizeof(T), data);
    }
    template <class T>
    Call& out(T& value, std::uint16_t id = UVERBS_ATTR_CORE_OUT) {
        return add(id, sizeof(T), reinterpret_cast<std::uintptr_t>(&value));
    }
    Call& add(std::uint16_t id, std::size_t bytes, std::uint64_t data) {
        ib_uverbs_attr& attribute = header().attrs[header().num_attrs++];
        attribute.attr_id = id;
        attribute.len = static_cast<__u16>(bytes);
        attribute.flags = UVERBS_ATTR_F_MANDATORY;
        attribute.data = data;
        header().length =
            static_cast<__u16>(sizeof(ib_uverbs_ioctl_hdr) + header().num_attrs * sizeof(ib_uverbs_attr));
        return *this;
    }
    ib_uverbs_ioctl_hdr& header() { return *reinterpret_cast<ib_uverbs_ioctl_hdr*>(bytes_); }
    const ib_uverbs_attr& attribute(unsigned index) { return header().attrs[index]; }
    // 0 or the errno.
    int on(int fd) { return ioctl(fd, RDMA_VERBS_IOCTL, bytes_) == 0 ? 0 : errno; }

  private:
    alignas(ib_uverbs_ioctl_hdr) std::byte bytes_[sizeof(ib_uverbs_ioctl_hdr) + 6 * sizeof(ib_uverbs_attr)]{};
};

constexpr std::uint64_t extended(std::uint64_t command) { return command | IB_USER_VERBS_CMD_FLAG_EXTENDED; }

class Uverbs : public Joined {
  protected:
    void SetUp() override {
        Joined::SetUp();
        context_ = open_device(kFirst);
        fd_ = context_->cmd_fd;
    }
    void TearDown() override {
        context_.reset();
        Joined::TearDown();
    }

    ContextPtr context_;
    int fd_ = -1;
};

TEST_F(Uverbs, TheCallItself) {
    const ib_uverbs_query_device ask{};
    ib_uverbs_query_device_resp answer{};
    EXPECT_EQ(Call(IB_USER_VERBS_CMD_QUERY_DEVICE).on(fd_), ENOSPC);  // the probe of libibverbs
    EXPECT_EQ(Call(IB_USER_VERBS_CMD_QUERY_DEVICE).in(ask).on(fd_), ENOSPC);
    EXPECT_EQ(Call(IB_USER_VERBS_CMD_QUERY_DEVICE).in(ask).out(answer).on(fd_), 0);
    EXPECT_EQ(answer.vendor_part_id, 4119u);
    EXPECT_EQ(Call(IB_USER_VERBS_CMD_OPEN_QP).in(ask).out(answer).on(fd_), EOPNOTSUPP);
    EXPECT_EQ(Call(0x7f).on(fd_), EOPNOTSUPP);
    EXPECT_EQ(Call(0x1000).on(fd_), EINVAL);
    EXPECT_EQ(Call(IB_USER_VERBS_CMD_GET_CONTEXT).in(ask).out(answer).on(fd_), EINVAL);  // once only

    Call other(0);
    other.header().method_id = UVERBS_METHOD_QUERY_PORT;
    EXPECT_EQ(other.on(fd_), EPROTONOSUPPORT);
    Call object(0);
    object.header().object_id = UVERBS_OBJECT_CQ;
    EXPECT_EQ(object.on(fd_), EPROTONOSUPPORT);
    Call driver(0);
    driver.header().driver_id = RDMA_DRIVER_MLX4;
    EXPECT_EQ(driver.on(fd_), EINVAL);
    Call length(0);
    length.header().length += 8;
    EXPECT_EQ(length.on(fd_), EINVAL);
    Call attribute(IB_USER_VERBS_CMD_QUERY_DEVICE);
    EXPECT_EQ(attribute.add(99, 8, 0).on(fd_), EPROTONOSUPPORT);
    Call reserved(0);
    reserved.header().reserved1 = 1;
    EXPECT_EQ(reserved.on(fd_), EPROTONOSUPPORT);
    EXPECT_EQ(ioctl(fd_, RDMA_VERBS_IOCTL, nullptr), -1);
    EXPECT_EQ(errno, EFAULT);
    EXPECT_EQ(Call(IB_USER_VERBS_CMD_QUERY_PORT).add(UVERBS_ATTR_CORE_IN, 16, 8).out(answer).on(fd_), EFAULT);
    EXPECT_EQ(
        Call(IB_USER_VERBS_CMD_QUERY_DEVICE).in(ask).add(UVERBS_ATTR_CORE_OUT, sizeof(answer), 8).on(fd_),
        EFAULT);
    EXPECT_EQ(ioctl(fd_, FIONBIO, &answer), 0);  // of a memfd, as of a device: no matter of ours
}

TEST_F(Uverbs, BeforeTheContext) {
    const int fd = open("/dev/infiniband/uverbs0", O_RDWR | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    const ib_uverbs_query_device ask{};
    ib_uverbs_query_device_resp answer{};
    EXPECT_EQ(Call(IB_USER_VERBS_CMD_QUERY_DEVICE).in(ask).out(answer).on(fd), EINVAL);
    const ib_uverbs_get_context wish{};
    ib_uverbs_get_context_resp resp{};
    mlx5_ib_alloc_ucontext_req_v2 mlx5{};
    Call call(IB_USER_VERBS_CMD_GET_CONTEXT);
    EXPECT_EQ(call.in(wish).out(resp).in(mlx5, UVERBS_ATTR_UHW_IN).on(fd), EINVAL);  // no registers wanted
    mlx5.total_num_bfregs = 4096;
    EXPECT_EQ(call.on(fd), ENOMEM);
    mlx5.total_num_bfregs = 16;
    mlx5.num_low_latency_bfregs = 16;
    EXPECT_EQ(call.on(fd), EINVAL);
    mlx5.num_low_latency_bfregs = 4;
    mlx5.flags = MLX5_IB_ALLOC_UCTX_DEVX;
    EXPECT_EQ(call.on(fd), EOPNOTSUPP);
    mlx5.flags = 0;
    EXPECT_EQ(call.on(fd), 0);
    EXPECT_EQ(call.on(fd), EINVAL);
    close(static_cast<int>(resp.async_fd));
    close(fd);
}

TEST_F(Uverbs, OutputsAreWhole) {
    struct {
        ib_uverbs_query_port_resp resp;
        std::uint8_t more[16];
    } answer;
    std::memset(&answer, 0xee, sizeof(answer));
    ib_uverbs_query_port ask{};
    ask.port_num = 1;
    Call call(IB_USER_VERBS_CMD_QUERY_PORT);
    ASSERT_EQ(call.in(ask).out(answer).on(fd_), 0);
    for (const std::uint8_t byte : answer.more) EXPECT_EQ(byte, 0);
    EXPECT_EQ(answer.resp.reserved, 0);
    EXPECT_TRUE(call.attribute(2).flags & UVERBS_ATTR_F_VALID_OUTPUT);
    ask.port_num = 2;
    EXPECT_EQ(Call(IB_USER_VERBS_CMD_QUERY_PORT).in(ask).out(answer).on(fd_), EINVAL);

    // An extended answer tells how much of it there is.
    const ib_uverbs_ex_query_device wish{};
    struct {
        ib_uverbs_query_device_resp base;
        __u32 comp_mask, response_length;
    } shorter{};
    ASSERT_EQ(Call(extended(IB_USER_VERBS_EX_CMD_QUERY_DEVICE)).in(wish).out(shorter).on(fd_), 0);
    EXPECT_EQ(shorter.response_length, sizeof(shorter));
    ib_uverbs_ex_query_device_resp whole{};
    ASSERT_EQ(Call(extended(IB_USER_VERBS_EX_CMD_QUERY_DEVICE)).in(wish).out(whole).on(fd_), 0);
    EXPECT_EQ(whole.response_length, sizeof(whole));
    EXPECT_EQ(whole.hca_core_clock, 156250u);
}

TEST_F(Uverbs, UnknownHandles) {
    constexpr std::uint32_t kNone = 1000;
    ib_uverbs_destroy_cq_resp cq_resp{};
    ib_uverbs_destroy_qp_resp qp_resp{};
    ib_uverbs_query_qp_resp query{};
    ib_uverbs_reg_mr_resp mr{};
    EXPECT_EQ(Call(IB_USER_VERBS_CMD_DEALLOC_PD).in(ib_uverbs_dealloc_pd{kNone}).on(fd_), ENOENT);
    EXPECT_EQ(Call(IB_USER_VERBS_CMD_DEREG_MR).in(ib_uverbs_dereg_mr{kNone}).on(fd_), ENOENT);
    const ib_uverbs_destroy_cq no_cq{0, kNone, 0};
    EXPECT_EQ(Call(IB_USER_VERBS_CMD_DESTROY_CQ).in(no_cq).out(cq_resp).on(fd_), ENOENT);
    const ib_uverbs_destroy_qp no_qp{0, kNone, 0};
    EXPECT_EQ(Call(IB_USER_VERBS_CMD_DESTROY_QP).in(no_qp).out(qp_resp).on(fd_), ENOENT);
    EXPECT_EQ(Call(extended(IB_USER_VERBS_EX_CMD_DESTROY_FLOW)).in(ib_uverbs_destroy_flow{0, kNone}).on(fd_),
              ENOENT);
    ib_uverbs_query_qp ask{};
    ask.qp_handle = kNone;
    EXPECT_EQ(Call(IB_USER_VERBS_CMD_QUERY_QP).in(ask).out(query).on(fd_), EINVAL);
    ib_uverbs_modify_qp modify{};
    modify.qp_handle = kNone;
    EXPECT_EQ(Call(IB_USER_VERBS_CMD_MODIFY_QP).in(modify).on(fd_), EINVAL);
    ib_uverbs_ex_modify_cq moderate{};
    moderate.cq_handle = kNone;
    moderate.attr_mask = IBV_CQ_ATTR_MODERATE;
    EXPECT_EQ(Call(extended(IB_USER_VERBS_EX_CMD_MODIFY_CQ)).in(moderate).on(fd_), EINVAL);
    ib_uverbs_reg_mr region{};
    region.pd_handle = kNone;
    region.length = 1;
    region.start = region.hca_va = reinterpret_cast<std::uintptr_t>(&region);
    EXPECT_EQ(Call(IB_USER_VERBS_CMD_REG_MR).in(region).out(mr).on(fd_), EINVAL);

    // What was destroyed is unknown, also when something new was made since.
    ibv_pd* const pd = ibv_alloc_pd(context_.get());
    const std::uint32_t handle = pd->handle;
    ASSERT_EQ(ibv_dealloc_pd(pd), 0);
    const PdPtr another(ibv_alloc_pd(context_.get()));
    EXPECT_EQ(Call(IB_USER_VERBS_CMD_DEALLOC_PD).in(ib_uverbs_dealloc_pd{handle}).on(fd_), ENOENT);
}

TEST_F(Uverbs, QueuesThatCannotBe) {
    const ChannelPtr channel(ibv_create_comp_channel(context_.get()));
    std::vector<std::byte> buffer(64 * 8, std::byte{0xf0});  // all entries invalid
    alignas(8) std::uint32_t record[2] = {0, 0};
    ib_uverbs_create_cq wish{};
    wish.cqe = 7;
    wish.comp_channel = -1;
    mlx5_ib_create_cq mlx5{};
    mlx5.buf_addr = reinterpret_cast<std::uintptr_t>(buffer.data());
    mlx5.db_addr = reinterpret_cast<std::uintptr_t>(record);
    mlx5.cqe_size = 64;
    ib_uverbs_create_cq_resp resp{};
    mlx5_ib_create_cq_resp number{};
    Call call(IB_USER_VERBS_CMD_CREATE_CQ);
    call.in(wish).out(resp).in(mlx5, UVERBS_ATTR_UHW_IN).out(number, UVERBS_ATTR_UHW_OUT);
    const auto answer = [&](auto& field, auto value) {
        const auto before = field;
        field = static_cast<std::remove_reference_t<decltype(field)>>(value);
        const int error = call.on(fd_);
        field = before;
        return error;
    };
    EXPECT_EQ(answer(wish.cqe, 0), EINVAL);
    EXPECT_EQ(answer(wish.cqe, 1 << 22), EINVAL);
    EXPECT_EQ(answer(wish.comp_vector, 1), EINVAL);
    EXPECT_EQ(answer(wish.comp_channel, 0), EBADF);
    EXPECT_EQ(answer(mlx5.cqe_size, 32), EINVAL);
    EXPECT_EQ(answer(mlx5.cqe_comp_en, 1), EOPNOTSUPP);
    EXPECT_EQ(answer(mlx5.buf_addr, 0), EFAULT);
    ASSERT_EQ(call.on(fd_), 0);
    EXPECT_EQ(resp.cqe, 7u);
    EXPECT_GE(number.cqn, 0x400u);
    const ib_uverbs_destroy_cq end{0, resp.cq_handle, 0};
    ib_uverbs_destroy_cq_resp ended{};
    EXPECT_EQ(Call(IB_USER_VERBS_CMD_DESTROY_CQ).in(end).out(ended).on(fd_), 0);
    EXPECT_EQ(Call(IB_USER_VERBS_CMD_DESTROY_CQ).in(end).out(ended).on(fd_), ENOENT);
}

TEST_F(Uverbs, StatesOfAQp) {
    Port port(kFirst);
    ibv_qp_attr attr{};
    const auto becomes = [&](ibv_qp_state state, int mask = IBV_QP_STATE) {
        attr.qp_state = state;
        return ibv_modify_qp(port.qp.get(), &attr, mask);
    };
    EXPECT_EQ(becomes(IBV_QPS_RTR), EINVAL);
    EXPECT_EQ(becomes(IBV_QPS_SQD), EINVAL);
    EXPECT_EQ(becomes(IBV_QPS_RTS), 0);
    EXPECT_EQ(becomes(IBV_QPS_RESET), 0);
    EXPECT_EQ(becomes(IBV_QPS_ERR), EINVAL);
    EXPECT_EQ(becomes(IBV_QPS_INIT), EINVAL);  // without a port
    attr.port_num = 1;
    attr.cur_qp_state = IBV_QPS_RTS;
    EXPECT_EQ(becomes(IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_CUR_STATE), EINVAL);
    EXPECT_EQ(becomes(IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_QKEY), EINVAL);
    EXPECT_EQ(becomes(IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_PORT), 0);
    EXPECT_EQ(becomes(IBV_QPS_ERR), 0);
    EXPECT_EQ(port.state(), IBV_QPS_ERR);
    EXPECT_EQ(becomes(IBV_QPS_RTS), EINVAL);
}

TEST_F(Uverbs, RulesThatCannotBe) {
    Port port(kFirst);
    // As ib_uverbs_create_flow, which C++ allows nothing behind.
    struct Head {
        __u32 comp_mask, qp_handle;
        struct {
            __u32 type;
            __u16 size, priority;
            __u8 num_of_specs, reserved[2], port;
            __u32 flags;
        } flow_attr;
    };
    static_assert(sizeof(Head) == sizeof(ib_uverbs_create_flow));
    struct {
        Head flow;
        ib_uverbs_flow_spec_ipv4 ip;
        ib_uverbs_flow_spec_tcp_udp udp;
    } wish{};
    wish.flow.qp_handle = port.qp->handle;
    wish.flow.flow_attr.port = 1;
    wish.flow.flow_attr.num_of_specs = 2;
    wish.flow.flow_attr.size = sizeof(wish) - sizeof(wish.flow);
    wish.ip.type = IBV_FLOW_SPEC_IPV4;
    wish.ip.size = sizeof(wish.ip);
    wish.udp.type = IBV_FLOW_SPEC_UDP;
    wish.udp.size = sizeof(wish.udp);
    ib_uverbs_create_flow_resp resp{};
    Call call(extended(IB_USER_VERBS_EX_CMD_CREATE_FLOW));
    call.in(wish).out(resp);
    const auto answer = [&](auto& field, auto value) {
        const auto before = field;
        field = static_cast<std::remove_reference_t<decltype(field)>>(value);
        const int error = call.on(port.context->cmd_fd);
        field = before;
        return error;
    };
    EXPECT_EQ(answer(wish.flow.comp_mask, 1), EINVAL);
    EXPECT_EQ(answer(wish.flow.qp_handle, 99), EINVAL);
    EXPECT_EQ(answer(wish.flow.flow_attr.port, 2), EINVAL);
    EXPECT_EQ(answer(wish.flow.flow_attr.num_of_specs, 1), EINVAL);
    EXPECT_EQ(answer(wish.flow.flow_attr.num_of_specs, 3), EINVAL);
    EXPECT_EQ(answer(wish.flow.flow_attr.num_of_specs, 11), EINVAL);
    EXPECT_EQ(answer(wish.flow.flow_attr.size, 4096), ENOSPC);
    EXPECT_EQ(answer(wish.flow.flow_attr.type, 9), EINVAL);
    EXPECT_EQ(answer(wish.flow.flow_attr.flags, 2), EOPNOTSUPP);
    EXPECT_EQ(answer(wish.ip.type, IBV_FLOW_SPEC_IPV6), EOPNOTSUPP);
    EXPECT_EQ(answer(wish.ip.size, 4), EINVAL);
    EXPECT_EQ(answer(wish.ip.size, 400), EINVAL);
    EXPECT_EQ(answer(wish.ip.mask.ttl, 1), EOPNOTSUPP);
    wish.ip.val.proto = IPPROTO_TCP;
    EXPECT_EQ(answer(wish.ip.mask.proto, 0xff), EINVAL);  // TCP's addresses with UDP's ports
    ASSERT_EQ(call.on(port.context->cmd_fd), 0);
    const ib_uverbs_destroy_flow end{0, resp.flow_handle};
    EXPECT_EQ(Call(extended(IB_USER_VERBS_EX_CMD_DESTROY_FLOW)).in(end).on(port.context->cmd_fd), 0);
    EXPECT_EQ(Call(extended(IB_USER_VERBS_EX_CMD_DESTROY_FLOW)).in(end).on(port.context->cmd_fd), ENOENT);
}

}  // namespace
}  // namespace mlx5_sim::test
