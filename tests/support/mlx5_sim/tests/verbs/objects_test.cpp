// SPDX-License-Identifier: BSD-2-Clause
// The life of verbs objects on the simulated kernel: states, errors of the adapter and of the kernel, events,
// and that nothing stays behind.
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#include "tests/support/mlx5_sim/tests/fixture.h"

namespace mlx5_sim::test {
namespace {

unsigned descriptors() {
    unsigned count = 0;
    DIR* const directory = opendir("/proc/self/fd");
    while (readdir(directory) != nullptr) ++count;
    closedir(directory);
    return count;
}
std::size_t mappings() {
    std::ifstream maps("/proc/self/maps");
    std::size_t lines = 0;
    for (std::string line; std::getline(maps, line);)
        lines += line.find("uverbs") != std::string::npos ? 1 : 0;
    return lines;
}
bool readable(int fd) {
    pollfd poll_fd{fd, POLLIN, 0};
    return poll(&poll_fd, 1, 0) == 1;
}
void send_frame(Port& from, std::uint8_t seed = 1) {
    const auto frame = udp_frame(100, seed);
    from.fill(9, frame);
    from.send(9, frame.size());
    EXPECT_TRUE(settle());
}

TEST_F(Joined, CompletionEvents) {
    PortOptions options;
    options.with_channel = true;
    Port a(kFirst), b(kSecond, options);
    const auto rule = b.steer_udp(7);
    for (unsigned i = 0; i < 8; ++i) b.receive_into(i);
    send_frame(a);
    EXPECT_FALSE(readable(b.channel->fd));  // nobody asked
    b.next(b.recv_cq.get());

    ASSERT_EQ(ibv_req_notify_cq(b.recv_cq.get(), 0), 0);
    EXPECT_TRUE(settle());
    EXPECT_FALSE(readable(b.channel->fd));
    send_frame(a);
    send_frame(a);
    ASSERT_TRUE(readable(b.channel->fd));
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    ASSERT_EQ(ibv_get_cq_event(b.channel.get(), &cq, &context), 0);
    EXPECT_EQ(cq, b.recv_cq.get());
    EXPECT_EQ(context, &b);
    EXPECT_FALSE(readable(b.channel->fd));  // one event for one request
    ibv_ack_cq_events(cq, 1);

    // One that is asked for while a completion waits comes at once.
    ASSERT_EQ(ibv_req_notify_cq(b.recv_cq.get(), 0), 0);
    EXPECT_TRUE(settle());
    EXPECT_TRUE(readable(b.channel->fd));
    // It stays unread: destroying the CQ does not wait for it (the end of the test would hang).
}

TEST_F(Joined, UnreadEventsOfOneCqLeaveThoseOfAnother) {
    PortOptions options;
    options.with_channel = true;
    Port a(kFirst), b(kSecond, options);
    CqPtr second(ibv_create_cq(b.context.get(), 8, nullptr, b.channel.get(), 0));
    ASSERT_NE(second, nullptr);
    ibv_qp_init_attr init{};
    init.send_cq = b.send_cq.get();
    init.recv_cq = second.get();
    init.cap = {8, 8, 1, 1, 0};
    init.qp_type = IBV_QPT_RAW_PACKET;
    QpPtr qp(ibv_create_qp(b.pd.get(), &init));
    std::swap(qp, b.qp);
    b.to_rts();
    FlowPtr rule = b.steer_udp(7);
    b.receive_into(0);
    ASSERT_EQ(ibv_req_notify_cq(second.get(), 0), 0);
    EXPECT_TRUE(settle());
    send_frame(a);  // an event of the second CQ
    rule.reset();
    std::swap(qp, b.qp);
    rule = b.steer_udp(7);
    b.receive_into(0);
    ASSERT_EQ(ibv_req_notify_cq(b.recv_cq.get(), 0), 0);
    EXPECT_TRUE(settle());
    send_frame(a);  // and one of the first
    qp.reset();
    second.reset();
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    ASSERT_EQ(ibv_get_cq_event(b.channel.get(), &cq, &context), 0);
    EXPECT_EQ(cq, b.recv_cq.get());
    EXPECT_FALSE(readable(b.channel->fd));
    ibv_ack_cq_events(cq, 1);
}

TEST_F(Joined, ModerationHoldsEventsBack) {
    PortOptions options;
    options.with_channel = true;
    Port a(kFirst), b(kSecond, options);
    const auto rule = b.steer_udp(7);
    for (unsigned i = 0; i < 4; ++i) b.receive_into(i);
    std::uint64_t now = 1000;
    set_clock(kSecond, [&] { return now; });
    ibv_modify_cq_attr attr{};
    attr.attr_mask = IBV_CQ_ATTR_MODERATE;
    attr.moderate = {3, 4095};
    ASSERT_EQ(ibv_modify_cq(b.recv_cq.get(), &attr), 0);
    attr.moderate.cq_period = 4096;
    EXPECT_EQ(ibv_modify_cq(b.recv_cq.get(), &attr), EINVAL);
    ASSERT_EQ(ibv_req_notify_cq(b.recv_cq.get(), 0), 0);
    EXPECT_TRUE(settle());
    send_frame(a);
    send_frame(a);
    EXPECT_FALSE(readable(b.channel->fd));
    send_frame(a);
    EXPECT_TRUE(readable(b.channel->fd));
    set_clock(kSecond, {});
}

TEST_F(Joined, MemoryOutsideARegionFails) {
    Port a(kFirst), b(kSecond);
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(a.slot(0)), 100, a.mr->lkey + 0x100};
    ibv_send_wr wr{};
    wr.wr_id = 5;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(a.qp.get(), &wr, &bad), 0);
    const ibv_wc wc = a.next(a.send_cq.get());
    EXPECT_EQ(wc.status, IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(wc.wr_id, 5u);
    EXPECT_EQ(a.state(), IBV_QPS_SQE);
    EXPECT_FALSE(violations().empty());

    // What follows is flushed, and after a restart all is well.
    a.send(1, 100);
    EXPECT_EQ(a.next(a.send_cq.get()).status, IBV_WC_WR_FLUSH_ERR);
    a.stop();
    a.restart();
    EXPECT_EQ(a.state(), IBV_QPS_RTS);
    send_frame(a);
    EXPECT_EQ(a.next(a.send_cq.get()).status, IBV_WC_SUCCESS);
}

TEST_F(Joined, OrderedErrorsFlushAndRecover) {
    Port a(kFirst), b(kSecond);
    const auto rule = b.steer_udp(7);
    Faults faults;
    faults.fail_sends = 1;
    nic(kFirst).set_faults(faults);
    send_frame(a);
    EXPECT_EQ(a.next(a.send_cq.get()).status, IBV_WC_LOC_PROT_ERR);

    for (unsigned i = 0; i < 5; ++i) b.receive_into(i);
    b.stop();
    EXPECT_EQ(b.state(), IBV_QPS_ERR);
    for (unsigned i = 0; i < 5; ++i) {
        const ibv_wc wc = b.next(b.recv_cq.get());
        EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
        EXPECT_EQ(wc.wr_id, i);
    }
    for (Port* port : {&a, &b}) port->restart();
    b.receive_into(0);
    send_frame(a);
    EXPECT_EQ(b.next(b.recv_cq.get()).byte_len, 100u);
    violations();
}

TEST_F(Joined, QueryQp) {
    Port a(kFirst);
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    ASSERT_EQ(ibv_query_qp(a.qp.get(), &attr, IBV_QP_STATE | IBV_QP_CAP, &init), 0);
    EXPECT_EQ(attr.qp_state, IBV_QPS_RTS);
    EXPECT_EQ(attr.port_num, 1);
    EXPECT_EQ(init.sq_sig_all, 1);
    EXPECT_GE(attr.cap.max_recv_wr, 64u);
    EXPECT_GE(attr.cap.max_send_wr, 64u);
    EXPECT_GE(attr.cap.max_recv_sge, 4u);
}

TEST_F(Joined, QueuesAsMlx5dvShowsThem) {
    Port a(kFirst), other(kFirst);
    mlx5dv_qp qp{};
    mlx5dv_cq cq{}, recv_cq{};
    mlx5dv_obj object{};
    object.qp = {a.qp.get(), &qp};
    object.cq = {a.send_cq.get(), &cq};
    ASSERT_EQ(mlx5dv_init_obj(&object, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ), 0);
    object.cq = {a.recv_cq.get(), &recv_cq};
    ASSERT_EQ(mlx5dv_init_obj(&object, MLX5DV_OBJ_CQ), 0);
    EXPECT_EQ(qp.sq.stride, 64u);
    EXPECT_EQ(qp.rq.stride, 64u);  // four segments
    EXPECT_EQ(qp.rq.wqe_cnt, 64u);
    EXPECT_EQ(qp.bf.size, 256u);
    EXPECT_NE(qp.sq.buf, nullptr);
    EXPECT_NE(qp.rq.buf, nullptr);
    EXPECT_EQ(cq.cqe_size, 64u);
    EXPECT_EQ(cq.cqe_cnt, static_cast<unsigned>(a.send_cq->cqe + 1));
    EXPECT_NE(cq.cqn, recv_cq.cqn);
    EXPECT_EQ(cq.cq_uar, recv_cq.cq_uar);
    // QPs that ask for a register of their own get one, as long as there are some.
    mlx5dv_qp second{};
    object.qp = {other.qp.get(), &second};
    ASSERT_EQ(mlx5dv_init_obj(&object, MLX5DV_OBJ_QP), 0);
    EXPECT_NE(second.bf.reg, qp.bf.reg);

    // A completion by hand from where mlx5dv says it is.
    a.fill(0, udp_frame(100, 1));
    a.send(0, 100);
    EXPECT_TRUE(settle());
    const auto* const cqe = static_cast<const mlx5_cqe64*>(cq.buf);
    EXPECT_EQ(mlx5dv_get_cqe_opcode(const_cast<mlx5_cqe64*>(cqe)), MLX5_CQE_REQ);
    EXPECT_EQ(mlx5dv_get_cqe_owner(const_cast<mlx5_cqe64*>(cqe)), 0);
    EXPECT_EQ(be32toh(cqe->sop_drop_qpn) & 0xffffff, a.qp->qp_num);

    mlx5dv_context attributes{};
    attributes.comp_mask = MLX5DV_CONTEXT_MASK_CLOCK_INFO_UPDATE;
    ASSERT_EQ(mlx5dv_query_device(a.context.get(), &attributes), 0);
    EXPECT_TRUE(attributes.flags & MLX5DV_CONTEXT_FLAGS_CQE_V1);
}

TEST_F(Joined, BigCompletions) {
    setenv("MLX5_CQE_SIZE", "128", 1);
    Port a(kFirst), b(kSecond);
    unsetenv("MLX5_CQE_SIZE");
    const auto rule = b.steer_udp(7);
    for (unsigned i = 0; i < 300; ++i) {
        b.receive_into(i % 8);
        send_frame(a);
        ASSERT_EQ(b.next(b.recv_cq.get()).byte_len, 100u);
        ASSERT_EQ(a.next(a.send_cq.get()).status, IBV_WC_SUCCESS);
    }
}

TEST_F(Joined, WhatIsInUseStays) {
    Port a(kFirst);
    const auto rule = a.steer_udp(7);
    EXPECT_EQ(ibv_destroy_qp(a.qp.get()), EBUSY);
    EXPECT_EQ(ibv_destroy_cq(a.recv_cq.get()), EBUSY);
    EXPECT_EQ(ibv_dealloc_pd(a.pd.get()), EBUSY);
}

TEST_F(Joined, RegionsAreChecked) {
    Port a(kFirst);
    void* const page = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_EQ(munmap(static_cast<char*>(page) + 4096, 4096), 0);
    EXPECT_EQ(ibv_reg_mr(a.pd.get(), page, 8192, IBV_ACCESS_LOCAL_WRITE), nullptr);
    EXPECT_EQ(errno, EFAULT);
    EXPECT_EQ(ibv_reg_mr(a.pd.get(), page, 4096, IBV_ACCESS_REMOTE_WRITE), nullptr);
    EXPECT_EQ(errno, EINVAL);
    const MrPtr good(ibv_reg_mr(a.pd.get(), page, 4096, IBV_ACCESS_LOCAL_WRITE));
    EXPECT_NE(good, nullptr);
    munmap(page, 4096);
}

TEST_F(Joined, AsynchronousEvents) {
    Port a(kFirst);
    ibv_port_attr port{};
    const auto next = [&](ibv_context* context) {
        ibv_async_event event{};
        EXPECT_TRUE(readable(context->async_fd));
        if (readable(context->async_fd)) {
            EXPECT_EQ(ibv_get_async_event(context, &event), 0);
        }
        return event;
    };
    set_port(kFirst, false);
    ibv_async_event event = next(a.context.get());
    EXPECT_EQ(event.event_type, IBV_EVENT_PORT_ERR);
    EXPECT_EQ(event.element.port_num, 1);
    ibv_ack_async_event(&event);
    ASSERT_EQ(ibv_query_port(a.context.get(), 1, &port), 0);
    EXPECT_EQ(port.state, IBV_PORT_DOWN);
    set_port(kFirst, true);
    event = next(a.context.get());
    EXPECT_EQ(event.event_type, IBV_EVENT_PORT_ACTIVE);
    ibv_ack_async_event(&event);
    ASSERT_EQ(ibv_query_port(a.context.get(), 1, &port), 0);
    EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
    EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);

    fail_qp(kFirst, a.qp->qp_num);
    event = next(a.context.get());
    EXPECT_EQ(event.event_type, IBV_EVENT_QP_FATAL);
    EXPECT_EQ(event.element.qp, a.qp.get());
    ibv_ack_async_event(&event);
    EXPECT_EQ(a.state(), IBV_QPS_ERR);

    mlx5dv_cq cq{};
    mlx5dv_obj object{};
    object.cq = {a.recv_cq.get(), &cq};
    ASSERT_EQ(mlx5dv_init_obj(&object, MLX5DV_OBJ_CQ), 0);
    fail_cq(kFirst, cq.cqn);  // stays unread, and destroying the CQ does not wait for it
    EXPECT_TRUE(readable(a.context->async_fd));
}

TEST_F(Joined, AnOverrunCqTells) {
    PortOptions options;
    options.cqes = 7;
    Port a(kFirst, options);
    a.fill(0, udp_frame(100, 1));
    for (unsigned i = 0; i < 12; ++i) a.send(0, 100);
    EXPECT_TRUE(settle());
    ibv_async_event event{};
    ASSERT_TRUE(readable(a.context->async_fd));
    ASSERT_EQ(ibv_get_async_event(a.context.get(), &event), 0);
    EXPECT_EQ(event.event_type, IBV_EVENT_CQ_ERR);
    EXPECT_EQ(event.element.cq, a.send_cq.get());
    ibv_ack_async_event(&event);
    EXPECT_FALSE(violations().empty());
}

TEST_F(Joined, ADeadDevice) {
    Port a(kFirst), b(kSecond);
    const auto rule = b.steer_udp(7);
    b.receive_into(0);
    fail_device(kFirst);
    ibv_async_event event{};
    ASSERT_EQ(ibv_get_async_event(a.context.get(), &event), 0);
    EXPECT_EQ(event.event_type, IBV_EVENT_DEVICE_FATAL);
    ibv_ack_async_event(&event);
    send_frame(a);
    ibv_wc wc{};
    EXPECT_EQ(ibv_poll_cq(a.send_cq.get(), 1, &wc), 0);
    EXPECT_EQ(ibv_alloc_pd(a.context.get()), nullptr);
    EXPECT_EQ(errno, EIO);
    repair_device(kFirst);
    EXPECT_EQ(b.recv_cq.get() != nullptr && ibv_poll_cq(b.recv_cq.get(), 1, &wc), 0);
}

TEST_F(Joined, DescriptorsMayMove) {
    PortOptions options;
    options.with_channel = true;
    Port a(kFirst), b(kSecond, options);
    for (int* fd : {&b.context->cmd_fd, &b.context->async_fd, &b.channel->fd}) {
        const int moved = fcntl(*fd, F_DUPFD_CLOEXEC, 700);
        ASSERT_GE(moved, 700);
        close(*fd);
        *fd = moved;
    }
    EXPECT_EQ(open_contexts(), 2u);
    const auto rule = b.steer_udp(7);
    const CqPtr more(ibv_create_cq(b.context.get(), 8, nullptr, b.channel.get(), 0));
    EXPECT_NE(more, nullptr);
    b.receive_into(0);
    ASSERT_EQ(ibv_req_notify_cq(b.recv_cq.get(), 0), 0);
    EXPECT_TRUE(settle());
    send_frame(a);
    EXPECT_TRUE(readable(b.channel->fd));
    set_port(kSecond, true);
    EXPECT_TRUE(readable(b.context->async_fd));
}

TEST_F(Joined, NothingStaysBehind) {
    const auto once = [] {
        PortOptions options;
        options.with_channel = true;
        Port a(kFirst, options), b(kSecond, options);
        const auto rule = b.steer_udp(7);
        b.receive_into(0);
        ASSERT_EQ(ibv_req_notify_cq(b.recv_cq.get(), 0), 0);
        EXPECT_TRUE(settle());
        send_frame(a);
        EXPECT_EQ(b.next(b.recv_cq.get()).byte_len, 100u);
    };
    once();
    const unsigned before = descriptors();
    const std::size_t mapped = mappings();
    for (int i = 0; i < 100; ++i) once();
    EXPECT_EQ(descriptors(), before);
    EXPECT_EQ(mappings(), mapped);
    EXPECT_EQ(mapped, 0u);
}

TEST_F(Joined, ChannelsEndWithTheirLastUser) {
    Port a(kFirst);
    const unsigned before = descriptors();
    for (int i = 0; i < 50; ++i) {
        const ChannelPtr channel(ibv_create_comp_channel(a.context.get()));
        const CqPtr cq(ibv_create_cq(a.context.get(), 8, nullptr, channel.get(), 0));
        ASSERT_NE(cq, nullptr);
    }
    EXPECT_LE(descriptors(), before + 1);  // the last one goes with the next channel or the context
}

TEST_F(Joined, AContextThatIsClosedWithEverythingOpen) {
    auto a = std::make_unique<Port>(kFirst);
    auto rule = a->steer_udp(7);
    // The program loses its descriptor; what it made is no more.
    close(a->context->cmd_fd);
    EXPECT_EQ(open_contexts(), 0u);
    EXPECT_FALSE(nic(kFirst).steered(udp_frame(100, 1)));
    // libibverbs does not know it; its objects are given up, as after an error that nobody can handle.
    static void* lost[7];  // within reach of leak checkers
    void* const released[] = {rule.release(),  a->qp.release(), a->send_cq.release(), a->recv_cq.release(),
                              a->mr.release(), a->pd.release(), a->context.release()};
    std::copy(std::begin(released), std::end(released), lost);
    for (void* object : lost) EXPECT_NE(object, nullptr);
}

TEST_F(Joined, AChildHasNoneOfItsParentsObjects) {
    Port a(kFirst), b(kSecond);
    const auto rule = b.steer_udp(7);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        const bool refused = ibv_alloc_pd(a.context.get()) == nullptr && errno == ENODEV;
        // But it may open the adapter for itself.
        ibv_context* const own = ibv_open_device(a.context->device);
        const bool works = own != nullptr && ibv_alloc_pd(own) != nullptr;
        _exit(refused && works ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    b.receive_into(0);
    send_frame(a);
    EXPECT_EQ(b.next(b.recv_cq.get()).byte_len, 100u);
    EXPECT_EQ(open_contexts(), 2u);
}

TEST_F(Joined, AnOpenDeviceLooksLikeOne) {
    const ContextPtr context = open_device(kSecond);
    struct stat by_name {
    }, by_fd{};
    ASSERT_EQ(stat("/dev/infiniband/uverbs1", &by_name), 0);
    ASSERT_EQ(fstat(context->cmd_fd, &by_fd), 0);
    for (const auto& status : {by_name, by_fd}) {
        EXPECT_TRUE(S_ISCHR(status.st_mode));
        EXPECT_EQ(status.st_rdev, makedev(231, 193));
    }
    EXPECT_EQ(stat("/dev/infiniband/uverbs7", &by_name), -1);
    EXPECT_EQ(open("/dev/infiniband/uverbs7", O_RDWR), -1);
    EXPECT_EQ(errno, ENOENT);
    // Only whole pages that there are, and the clock not for writing.
    const auto map = [&](off_t page, std::size_t length, int protection) {
        return mmap(nullptr, length, protection, MAP_SHARED, context->cmd_fd, page * 4096);
    };
    EXPECT_EQ(map(0, 8192, PROT_WRITE), MAP_FAILED);
    EXPECT_EQ(map(8, 4096, PROT_WRITE), MAP_FAILED);
    EXPECT_EQ(map(5 << 8, 4096, PROT_READ | PROT_WRITE), MAP_FAILED);
    EXPECT_EQ(map(9 << 8, 4096, PROT_READ), MAP_FAILED);
    void* const clock = map(5 << 8, 4096, PROT_READ);
    ASSERT_NE(clock, MAP_FAILED);
    munmap(clock, 4096);
}

}  // namespace
}  // namespace mlx5_sim::test
