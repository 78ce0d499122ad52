// SPDX-License-Identifier: BSD-2-Clause
// A connection's life on a wire without faults.
#include <gtest/gtest.h>

#include "libvma/tcp/migrate/handover.h"
#include "tcp_hosts.h"

namespace vma::tcp::test {
namespace {

TEST(TcpConnection, HandshakeDataAndOrderlyEnd) {
    World w;
    Connection *c, *s;
    w.pair(c, s);
    EXPECT_EQ(send(c, "hello"), 5);
    w.poll();
    EXPECT_EQ(receive(s), "hello");
    EXPECT_EQ(send(s, "world"), 5);
    w.poll();
    EXPECT_EQ(receive(c), "world");
    EXPECT_EQ(receive_result(c), -EAGAIN);
    EXPECT_EQ(c->shutdown(SHUT_WR), 0);
    w.poll();
    EXPECT_EQ(receive_result(s), 0);
    EXPECT_EQ(s->state(), State::close_wait);
    EXPECT_EQ(send(s, "rest"), 4);
    w.poll();
    EXPECT_EQ(receive(c), "rest");
    w.close(s);
    w.poll();
    EXPECT_EQ(receive_result(c), 0);
    EXPECT_EQ(c->state(), State::time_wait);
    w.close(c);
}

TEST(TcpConnection, MovesMegabytes) {
    World w;
    Connection *c, *s;
    w.pair(c, s);
    std::string data(8 << 20, '\0'), got;
    for (std::size_t i = 0; i < data.size(); i++) data[i] = static_cast<char>(i * 2654435761u >> 13);
    std::size_t sent = 0;
    while (got.size() < data.size()) {
        if (sent < data.size()) {
            iovec iov{data.data() + sent, data.size() - sent};
            const ssize_t n = c->send(&iov, 1, iov.iov_len, 0);
            if (n > 0) sent += static_cast<std::size_t>(n);
        }
        w.poll();
        const std::string more = receive(s);
        got += more;
        if (more.empty()) w.pass(1'000'000);
    }
    EXPECT_EQ(got, data);
    EXPECT_EQ(c->counters().retransmits, 0u);
}

TEST(TcpConnection, RefusedWithoutListener) {
    World w;
    w.listen();
    Connection* c = w.connect();
    w.poll();
    EXPECT_EQ(c->state(), State::established);
    w.listener->close();
    w.poll();
    EXPECT_EQ(c->take_error(), ECONNRESET);
    EXPECT_EQ(c->state(), State::close);
}

// As the kernel's calls, which return what they have moved, and leave the error to the next one.
TEST(TcpConnection, ACallThatHasMovedBytesLeavesTheError) {
    World w;
    w.listen();
    Connection* c = w.connect();
    w.poll();
    w.listener->close();
    w.poll();
    char byte = 1;
    iovec iov{&byte, 1};
    EXPECT_EQ(c->send(&iov, 1, 1, Connection::kBegun), -ECONNRESET);
    EXPECT_EQ(c->receive(&iov, 1, 1, Connection::kBegun), -ECONNRESET);
    EXPECT_EQ(c->peek_error(), ECONNRESET);
    EXPECT_EQ(c->receive(&iov, 1, 1, 0), -ECONNRESET);
    EXPECT_EQ(c->receive(&iov, 1, 1, 0), 0);
}

TEST(TcpConnection, LostSynIsRepeated) {
    World w;
    w.listen();
    verbs::wire::Faults all;
    all.loss = 1;
    w.wire.set_faults(*w.a->device, all);
    Connection* c = w.connect();
    w.pass(1'500'000'000);
    EXPECT_EQ(c->state(), State::syn_sent);
    w.wire.set_faults(*w.a->device, {});
    EXPECT_TRUE(w.until([&] { return c->state() == State::established; }, 10'000'000'000));
}

TEST(TcpConnection, RandomLoss) {
    World w(7);
    Connection *c, *s;
    w.pair(c, s);
    verbs::wire::Faults faults;
    faults.loss = 0.05;
    faults.duplicate = 0.02;
    faults.reorder = 0.02;
    faults.delay_ns = 1'000'000;
    w.wire.set_faults(*w.a->device, faults);
    w.wire.set_faults(*w.b->device, faults);
    std::string data(1 << 20, '\0'), got;
    for (std::size_t i = 0; i < data.size(); i++) data[i] = static_cast<char>(i * 2654435761u >> 13);
    std::size_t sent = 0;
    EXPECT_TRUE(w.until([&] {
        if (sent < data.size()) {
            iovec iov{data.data() + sent, data.size() - sent};
            const ssize_t n = c->send(&iov, 1, iov.iov_len, 0);
            if (n > 0) sent += static_cast<std::size_t>(n);
        }
        got += receive(s);
        return got.size() >= data.size();
    }));
    EXPECT_EQ(got, data);
}

// What comes while a connection is held still for a move that fails is not lost: nothing has to be sent
// again.
TEST(TcpConnection, FramesThatComeWhileFrozenAreProcessedAfterwards) {
    World w;
    Connection *c, *s;
    w.pair(c, s);
    KernelState state;
    ASSERT_EQ(s->freeze(state), 0);
    for (int i = 0; i < 5; i++) EXPECT_EQ(send(c, "hello"), 5);
    EXPECT_EQ(c->shutdown(SHUT_WR), 0);
    w.poll();
    s->finish_freeze(false);
    w.poll();
    EXPECT_EQ(receive(s), "hellohellohellohellohello");
    EXPECT_EQ(receive_result(s), 0);
    EXPECT_EQ(s->shutdown(SHUT_WR), 0);  // a FIN's ACK may wait for the other FIN
    w.poll();
    EXPECT_EQ(c->state(), State::time_wait) << "the FIN was acknowledged";
    EXPECT_EQ(c->counters().retransmits, 0u);
}

}  // namespace
}  // namespace vma::tcp::test
