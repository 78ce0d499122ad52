// SPDX-License-Identifier: BSD-2-Clause
// A call within microseconds of a frame acts on what the frame says, as on the kernel. Nothing looks at the
// ring by itself in these programs: the internal thread is told not to.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/hosts/on_host.h"
#include "tests/support/hosts/plain_test.h"

namespace {

using namespace testing_support;

// What the peer does, how the program begins, and its call.
struct Arrival {
    const char *peer, *how, *call;
    std::string name() const { return std::string(peer) + "_" + how + "_" + call; }
};
void PrintTo(const Arrival& arrival, std::ostream* out) { *out << arrival.name(); }

constexpr Arrival kArrivals[] = {
    {"reset", "waits", "getpeername"},
    {"reset", "waits", "so_peername"},
    {"reset", "waits", "so_error"},
    {"reset", "waits", "state"},
    {"reset", "waits", "shutdown"},
    {"reset", "waits", "send"},
    {"reset", "waits", "send_twice"},
    {"reset", "waits", "recv"},
    {"reset", "waits", "peek"},
    {"reset", "waits", "poll"},
    {"reset", "waits", "epoll"},
    {"reset", "waits", "inq"},
    {"data", "waits", "inq"},
    {"data", "waits", "recv"},
    {"data", "waits", "poll"},
    {"data", "sees10", "inq"},
    {"end", "waits", "state"},
    {"end", "waits", "recv"},
    {"end", "waits", "poll"},
    {"end", "waits", "shutdown"},
    {"data", "writes", "outq"},
    {"data", "writes", "unacked"},
    {"data", "writes", "outqnsd"},
    {"reset", "writes", "outq"},
    {"data_reset", "waits", "send"},
    {"data_reset", "waits", "recv"},
    {"data_reset", "waits", "so_error"},
    {"accept", "connects", "again"},
    {"refuse", "connects", "again"},
    {"accept", "connects", "getpeername"},
    {"accept", "connects", "send"},
    {"refuse", "connects", "so_error"},
    {"accept", "connects", "so_error"},
};

class Arrived : public testing::TestWithParam<Arrival> {
  protected:
    static void SetUpTestSuite() { hosts_ = std::make_unique<TwoHosts>(Wire{.known_neighbours = true}); }
    static void TearDownTestSuite() { hosts_.reset(); }

    static void act(const std::string& what, Fd& connection) {
        const auto write_some = [&] { EXPECT_EQ(send(connection.get(), "abcdefghij", 10, 0), 10); };
        if (what == "data" || what == "data_reset") write_some();
        if (what == "end") {
            EXPECT_EQ(shutdown(connection.get(), SHUT_WR), 0);
        }
        if (what == "reset" || what == "data_reset") {
            char text[100];  // what is unread would make a reset of any close
            (void)recv(connection.get(), text, sizeof text, MSG_DONTWAIT);
            const linger l{1, 0};
            setsockopt(connection.get(), SOL_SOCKET, SO_LINGER, &l, sizeof l);
            connection.reset();
        }
    }

    // The program's output.
    static std::string run(const Arrival& arrival, bool library) {
        const On there(*hosts_, Host::b);
        const std::string address = TwoHosts::address(Host::b);
        Fd listening(socket(AF_INET, SOCK_STREAM, 0));
        const int on = 1;
        setsockopt(listening.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        const sockaddr_in at = socket_address(address, 6000);
        EXPECT_EQ(bind(listening.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
        const std::string peer = arrival.peer, how = arrival.how;
        if (peer != "refuse") {
            EXPECT_EQ(listen(listening.get(), 8), 0);
        }
        int pair[2];
        EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        Fd ours(pair[0]), theirs(pair[1]);
        RunOptions options{.preload = library, .fds = {{theirs.get(), 5}}};
        if (library) options.env = {"VMA_PROGRESS_ENGINE_INTERVAL=0", "VMA_TRACELEVEL=info"};
        Process program =
            hosts_->run(Host::a, {app("arrived"), address, "6000", arrival.how, arrival.call}, options);
        Fd connection;
        if (how != "connects") connection = Fd(accept(listening.get(), nullptr, nullptr));
        if (how == "sees10") {
            EXPECT_EQ(send(connection.get(), "0123456789", 10, 0), 10);
        }
        EXPECT_TRUE(program.wait_for_out("begun"));
        if (library) {
            EXPECT_TRUE(hosts_->wait_offloaded(Host::a, true));
        }
        if (how == "writes") {
            char text[10];
            EXPECT_EQ(recv(connection.get(), text, sizeof text, MSG_WAITALL), 10);
        }
        act(peer, connection);
        // A veth device delivers within the call that sends; a busy machine may take its time.
        usleep(10'000);
        EXPECT_EQ(write(ours.get(), "x", 1), 1);
        const Exit end = program.wait();
        EXPECT_TRUE(end.ok()) << end.out << end.err;
        return end.out;
    }

    static inline std::unique_ptr<TwoHosts> hosts_;
};

TEST_P(Arrived, CallSeesIt) { EXPECT_EQ(run(GetParam(), true), run(GetParam(), false)); }

INSTANTIATE_TEST_SUITE_P(, Arrived, testing::ValuesIn(kArrivals),
                         [](const auto& info) { return info.param.name(); });

}  // namespace
