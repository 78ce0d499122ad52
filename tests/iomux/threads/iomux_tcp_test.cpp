// SPDX-License-Identifier: BSD-2-Clause
// select, poll and epoll over sockets whose whole readiness is ours (TCP connections), against the kernel.
//
// The kernel's world has real TCP sockets over loopback. In ours the program's descriptor is an unconnected
// shadow, and the connection is a second kernel socket that nobody but the test's Socket class knows: it
// plays the TCP engine, so what is true of a connection in any state comes from the kernel in both worlds.
// Both accounts must be the same.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include "tests/iomux/iomux_told.h"

namespace {

using namespace vma::test::worlds;
// The events of a kernel socket that the program does not know.
class Engine final : public Told {
  public:
    explicit Engine(int fd) : fd_(fd) {}
    ~Engine() override { close(fd_); }
    int fd() const { return fd_; }
    std::uint32_t ready_events() const noexcept override {
        asked++;
        pollfd p{fd_,
                 static_cast<short>(POLLIN | POLLOUT | POLLPRI | POLLRDNORM | POLLWRNORM | POLLRDBAND |
                                    POLLWRBAND | POLLRDHUP),
                 0};
        ::poll(&p, 1, 0);
        return static_cast<std::uint16_t>(p.revents);
    }

  private:
    int fd_;
};

int tcp_socket() {
    int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    EXPECT_GE(fd, 0);
    return fd;
}

// A listener on loopback; closed right away it is a port that refuses.
struct Listener {
    int fd = tcp_socket();
    sockaddr_in addr{};
    explicit Listener(int backlog = 16) {
        addr.sin_family = AF_INET;
        addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&addr), sizeof addr), 0);
        socklen_t len = sizeof addr;
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&addr), &len);
        if (backlog >= 0) {
            EXPECT_EQ(::listen(fd, backlog), 0);
        }
    }
    ~Listener() { ::close(fd); }
    int accept() {
        pollfd p{fd, POLLIN, 0};
        EXPECT_EQ(::poll(&p, 1, 5000), 1);
        int peer = ::accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
        EXPECT_GE(peer, 0);
        return peer;
    }
};

// TCP in a world: the same calls, but in ours on the hidden socket, with a word to the Socket class after
// each.
class Tcp {
  public:
    explicit Tcp(World& world) : w(world), ours(std::string(world.name()) == "ours") {}
    ~Tcp() {
        for (int fd : peers_) ::close(fd);
        for (auto& [fd, e] : engines) g_fds.remove(fd);
    }
    int open() {
        int fd = w.track(tcp_socket());
        if (ours) {
            Engine* e = keep<Engine>(tcp_socket());
            e->silent = silent;
            EXPECT_TRUE(g_fds.insert(fd, e));
            e->unref();
            engines[fd] = e;
        }
        return fd;
    }
    int engine(int fd) { return engines.contains(fd) ? engines[fd]->fd() : fd; }
    void woken(int fd, std::uint32_t key) {
        if (engines.contains(fd)) engines[fd]->woken(key, [] {});
    }
    // Waits until the engine has all of `bits`, then says so.
    void expect(int fd, std::uint32_t bits, std::uint32_t key) {
        for (int i = 0; i < 5000; i++) {
            pollfd p{engine(fd), static_cast<short>(bits), 0};
            ::poll(&p, 1, 0);
            if ((static_cast<std::uint16_t>(p.revents) & bits) == bits) return woken(fd, key);
            std::this_thread::sleep_for(1ms);
        }
        ADD_FAILURE() << "never saw " << bits;
    }
    void connect(int fd, const Listener& to) {
        int rc = ::connect(engine(fd), reinterpret_cast<const sockaddr*>(&to.addr), sizeof to.addr);
        w.note("connect " + w.result(rc));
        if (engines.contains(fd)) engines[fd]->woken(0, [&] { engines[fd]->mode = Readiness::ours; });
    }
    // Connected, on both sides. Returns the peer.
    int establish(int fd, Listener& to) {
        connect(fd, to);
        expect(fd, EPOLLOUT, kOut);
        peers_.insert(to.accept());
        return last_peer = *peers_.rbegin();
    }
    void send_from(int peer, int fd, const char* text, int flags = 0) {
        EXPECT_GT(::send(peer, text, strlen(text), flags), 0);
        if ((flags & MSG_OOB) != 0)
            expect(fd, EPOLLPRI, EPOLLPRI);
        else
            expect(fd, EPOLLIN, kIn);
    }
    void close_peer(int peer, bool reset = false) {
        peers_.erase(peer);
        linger hard{1, 0};
        if (reset) setsockopt(peer, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        ::close(peer);
    }
    std::size_t receive(int fd, std::size_t most = 4096) {
        std::vector<char> room(most);
        ssize_t n = ::recv(engine(fd), room.data(), most, 0);
        return n < 0 ? 0 : static_cast<std::size_t>(n);
    }
    // Until there is no room.
    void fill(int fd) {
        std::vector<char> much(1 << 20);
        for (int idle = 0; idle < 5;) {
            if (::send(engine(fd), much.data(), much.size(), MSG_NOSIGNAL) > 0) {
                idle = 0;
            } else {
                idle++;
                std::this_thread::sleep_for(5ms);
            }
        }
    }
    void drain(int peer, int fd) {
        std::vector<char> room(1 << 20);
        for (;;) {
            pollfd p{engine(fd), POLLOUT, 0};
            ::poll(&p, 1, 0);
            if (p.revents != 0 && ::recv(peer, room.data(), room.size(), MSG_DONTWAIT) < 0) break;
            if (p.revents == 0) (void)!::recv(peer, room.data(), room.size(), MSG_DONTWAIT);
        }
        woken(fd, kOut);
    }
    // The connection becomes a kernel socket under the program's number.
    void hand_over(int fd) {
        if (!engines.contains(fd)) return;
        Engine* e = engines[fd];
        EXPECT_EQ(dup2(e->fd(), fd), fd);
        e->woken(0, [&] { e->mode = Readiness::kernel; });
        handed_.insert(fd);
        engines.erase(fd);
        kept_[fd] = e;
    }

    World& w;
    const bool ours;
    bool silent = false;
    std::map<int, Engine*> engines, kept_;
    int last_peer = -1;

  private:
    std::set<int> peers_, handed_;
};

// As same(), with TCP; ours also with sockets that do not tell of their changes.
void same_tcp(const std::function<void(World&, Tcp&)>& scene) {
    std::string expected;
    {
        KernelWorld world;
        Tcp tcp(world);
        scene(world, tcp);
        expected = world.account;
    }
    for (bool silent : {false, true})
        for (std::int64_t usec : {0, 2000}) {
            Spin spin(usec);
            OurWorld world;
            Tcp tcp(world);
            tcp.silent = silent;
            scene(world, tcp);
            EXPECT_EQ(world.account, expected) << "spin " << usec << (silent ? ", silent" : "");
        }
    ASSERT_FALSE(expected.empty());
}

constexpr std::uint32_t kAll =
    EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP | EPOLLRDNORM | EPOLLWRNORM | EPOLLRDBAND;

// All that poll, select and fresh epoll sets say of `fd` now.
void look(World& w, int fd, const std::string& when) {
    w.note("== " + when);
    std::vector<pollfd> fds;
    for (short events :
         {short{0}, short{POLLIN}, short{POLLOUT}, short{POLLPRI}, static_cast<short>(POLLRDHUP),
          static_cast<short>(POLLRDNORM | POLLWRNORM), static_cast<short>(kAll)})
        fds.push_back({fd, events, 0});
    w.polled(fds);
    for (auto& p : fds) w.polled({p});
    for (unsigned which = 0; which < 8; which++) {
        fd_set sets[3];
        for (auto& set : sets) FD_ZERO(&set);
        for (unsigned s = 0; s < 3; s++)
            if ((which & 1u << s) != 0) FD_SET(fd, &sets[s]);
        timespec none{0, 0};
        int n = w.select(fd + 1, &sets[0], &sets[1], &sets[2], &none);
        w.note(fmt::format("select {} {} {} {}", w.result(n), FD_ISSET(fd, &sets[0]), FD_ISSET(fd, &sets[1]),
                           FD_ISSET(fd, &sets[2])));
    }
    for (std::uint32_t mode : {0u, unsigned{EPOLLET}, unsigned{EPOLLONESHOT}, EPOLLET | EPOLLONESHOT})
        for (std::uint32_t events :
             {0u, unsigned{EPOLLIN}, unsigned{EPOLLOUT}, unsigned{EPOLLRDHUP}, unsigned{EPOLLPRI}, kAll}) {
            int ep = w.epoll();
            w.ctl(ep, EPOLL_CTL_ADD, fd, events | mode, 7);
            w.wait(ep);
            w.wait(ep);
            w.ctl(ep, EPOLL_CTL_MOD, fd, events | mode, 8);
            w.wait(ep);
            w.polled({{ep, POLLIN, 0}});
            w.ctl(ep, EPOLL_CTL_DEL, fd, 0, 0);
            w.wait(ep);
            w.closed(ep);
            w.close(ep);
        }
}

TEST(IomuxTcp, EveryStateAsTheKernel) {
    same_tcp([](World& w, Tcp& t) {
        Listener listener;
        int a = t.open();
        look(w, a, "new");
        int peer = t.establish(a, listener);
        look(w, a, "connected");
        t.send_from(peer, a, "hello");
        look(w, a, "data");
        t.receive(a, 2);
        look(w, a, "some data left");
        t.receive(a);
        look(w, a, "no data left");
        t.send_from(peer, a, "!", MSG_OOB);
        look(w, a, "urgent");
        char c;
        (void)!::recv(t.engine(a), &c, 1, MSG_OOB);
        t.receive(a);
        look(w, a, "urgent taken");
        t.fill(a);
        look(w, a, "full");
        t.drain(peer, a);
        look(w, a, "drained");
        ::shutdown(peer, SHUT_WR);
        t.expect(a, EPOLLRDHUP, kIn | EPOLLRDHUP);
        look(w, a, "peer shut down");
        ::shutdown(t.engine(a), SHUT_WR);
        t.expect(a, EPOLLHUP, kIn | kOut | EPOLLHUP);
        look(w, a, "both shut down");

        int b = t.open();
        peer = t.establish(b, listener);
        ::shutdown(t.engine(b), SHUT_WR);
        look(w, b, "we shut down");
        t.send_from(peer, b, "x");
        t.close_peer(peer);
        t.expect(b, EPOLLRDHUP, kIn | EPOLLRDHUP | EPOLLHUP);
        look(w, b, "then the peer closed");

        int c2 = t.open();
        peer = t.establish(c2, listener);
        t.send_from(peer, c2, "x");
        t.close_peer(peer, true);
        t.expect(c2, EPOLLERR, kIn | kOut | kGone | EPOLLRDHUP);
        look(w, c2, "reset");
        int error;
        socklen_t len = sizeof error;
        getsockopt(t.engine(c2), SOL_SOCKET, SO_ERROR, &error, &len);
        w.note(strerrorname_np(error));
        look(w, c2, "reset, error taken");

        int d = t.open();
        t.establish(d, listener);
        ::shutdown(t.engine(d), SHUT_RD);
        look(w, d, "we shut down reading");

        Listener closed(-1);
        int e = t.open();
        t.connect(e, closed);
        t.expect(e, EPOLLERR, kIn | kOut | kGone | EPOLLRDHUP);
        look(w, e, "refused");
        getsockopt(t.engine(e), SOL_SOCKET, SO_ERROR, &error, &len);
        look(w, e, "refused, error taken");
    });
}

// Descriptors that were closed, or mean something else meanwhile.
TEST(IomuxTcp, ClosedDescriptors) {
    same_tcp([](World& w, Tcp& t) {
        Listener listener;
        int a = t.open(), b = t.open(), pipe = w.plain_eventfd();
        int peer = t.establish(a, listener);
        t.establish(b, listener);
        t.send_from(peer, a, "x");
        int ep = w.epoll();
        w.ctl(ep, EPOLL_CTL_ADD, a, EPOLLIN, 1);
        w.ctl(ep, EPOLL_CTL_ADD, b, EPOLLOUT, 2);
        w.ctl(ep, EPOLL_CTL_ADD, pipe, EPOLLIN, 3);
        w.wait(ep);
        t.engines.erase(a);
        w.close(a);
        w.wait(ep);
        w.polled({{a, POLLIN, 0}, {b, POLLOUT, 0}, {-3, POLLIN, 0}});
        fd_set r;
        FD_ZERO(&r);
        FD_SET(a, &r);
        FD_SET(b, &r);
        timespec none{0, 0};
        w.note(w.result(w.select(std::max(a, b) + 1, &r, nullptr, nullptr, &none)));
        w.ctl(ep, EPOLL_CTL_DEL, a, 0, 0);
        w.ctl(ep, EPOLL_CTL_ADD, a, EPOLLIN, 1);
        eventfd_write(pipe, 1);
        w.wait(ep);
    });
}

// The two ways of every event loop.
TEST(IomuxTcp, NonBlockingConnect) {
    for (std::uint32_t mode : {0u, unsigned{EPOLLET}, unsigned{EPOLLONESHOT}})
        for (bool refused : {false, true})
            same_tcp([=](World& w, Tcp& t) {
                Listener listener, closed(-1);
                const Listener& to = refused ? closed : listener;
                const std::uint32_t events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | mode;
                auto finished = [&](int fd) {
                    refused ? t.expect(fd, EPOLLERR, kIn | kOut | kGone | EPOLLRDHUP)
                            : t.expect(fd, EPOLLOUT, kOut);
                };
                int ep = w.epoll(), e = w.plain_eventfd();
                w.ctl(ep, EPOLL_CTL_ADD, e, EPOLLIN, 9);
                // ADD, connect
                int a = t.open();
                w.ctl(ep, EPOLL_CTL_ADD, a, events, 1);
                t.connect(a, to);
                finished(a);
                w.wait(ep, 16, 1000);
                w.wait(ep);
                w.ctl(ep, EPOLL_CTL_MOD, a, EPOLLIN | EPOLLRDHUP | mode, 11);
                w.wait(ep);
                // connect, ADD
                int b = t.open();
                t.connect(b, to);
                w.ctl(ep, EPOLL_CTL_ADD, b, events, 2);
                finished(b);
                w.wait(ep, 16, 1000);
                eventfd_write(e, 1);
                w.wait(ep);
                w.ctl(ep, EPOLL_CTL_DEL, a, 0, 0);
                w.wait(ep);
                w.ctl(ep, EPOLL_CTL_ADD, b, events, 2);
                w.ctl(ep, EPOLL_CTL_DEL, b, 0, 0);
                w.ctl(ep, EPOLL_CTL_DEL, b, 0, 0);
                w.wait(ep);
            });
}

// The shadow's EPOLLHUP before connect(), which Linux shows as well, and its end.
TEST(IomuxTcp, AddedBeforeConnectAndLookedAt) {
    for (std::uint32_t mode : {0u, unsigned{EPOLLET}})
        same_tcp([=](World& w, Tcp& t) {
            Listener listener;
            int ep = w.epoll(), a = t.open();
            w.ctl(ep, EPOLL_CTL_ADD, a, EPOLLIN | EPOLLOUT | EPOLLRDHUP | mode, 1);
            w.wait(ep);
            w.wait(ep);
            int peer = t.establish(a, listener);
            w.wait(ep);
            w.wait(ep);
            t.send_from(peer, a, "x");
            w.wait(ep);
            w.wait(ep);
        });
}

TEST(IomuxTcp, Edges) {
    same_tcp([](World& w, Tcp& t) {
        Listener listener;
        int ep = w.epoll(), a = t.open();
        int peer = t.establish(a, listener);
        w.ctl(ep, EPOLL_CTL_ADD, a, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 1);
        w.wait(ep);
        w.wait(ep);
        t.send_from(peer, a, "abc");
        w.wait(ep);  // IN, and OUT is still true
        w.wait(ep);
        t.receive(a, 1);
        w.wait(ep);  // something is left, nothing is new
        t.send_from(peer, a, "d");
        w.wait(ep);
        t.receive(a);
        w.wait(ep);
        t.fill(a);
        w.wait(ep);
        t.drain(peer, a);
        w.wait(ep);
        w.wait(ep);
        w.ctl(ep, EPOLL_CTL_MOD, a, EPOLLOUT | EPOLLET, 2);
        w.wait(ep);
        t.send_from(peer, a, "e");  // nobody asked for IN
        w.wait(ep);
        w.ctl(ep, EPOLL_CTL_MOD, a, EPOLLIN | EPOLLRDHUP | EPOLLET, 3);
        w.wait(ep);
        t.close_peer(peer);
        t.expect(a, EPOLLRDHUP, kIn | EPOLLRDHUP);
        w.wait(ep);
        w.wait(ep);
    });
}

TEST(IomuxTcp, Nested) {
    for (std::uint32_t mode : {0u, unsigned{EPOLLET}})
        same_tcp([=](World& w, Tcp& t) {
            Listener listener;
            int outer = w.epoll(), inner = w.epoll(), a = t.open();
            w.ctl(inner, EPOLL_CTL_ADD, a, EPOLLIN | EPOLLRDHUP, 1);
            w.ctl(outer, EPOLL_CTL_ADD, inner, EPOLLIN | mode, 100);
            int peer = t.establish(a, listener);
            if (mode != 0) w.wait(outer);  // the edge of the HUP before connect()
            auto all = [&] {
                w.wait(outer);
                w.wait(outer);
                w.polled({{outer, POLLIN, 0}, {inner, POLLIN | POLLOUT, 0}});
                w.wait(inner);
            };
            if (mode == 0) all();
            t.send_from(peer, a, "x");
            all();
            t.receive(a);
            all();
            t.close_peer(peer);
            t.expect(a, EPOLLRDHUP, kIn | EPOLLRDHUP);
            all();
        });
}

TEST(IomuxTcp, ControlAnswersAsIfTheKernelHadIt) {
    same_tcp([](World& w, Tcp& t) {
        Listener listener;
        int ep = w.epoll(), a = t.open(), b = t.open();
        t.establish(a, listener);
        int peer = t.establish(b, listener);
        w.ctl(ep, EPOLL_CTL_MOD, a, EPOLLIN, 1);
        w.ctl(ep, EPOLL_CTL_DEL, a, EPOLLIN, 1);
        w.note(w.result(w.epoll_ctl(ep, EPOLL_CTL_ADD, a, nullptr)));
        w.ctl(ep, EPOLL_CTL_ADD, a, EPOLLIN, 1);
        w.ctl(ep, EPOLL_CTL_ADD, a, EPOLLIN, 1);
        w.note(w.result(w.epoll_ctl(ep, EPOLL_CTL_ADD, a, nullptr)));
        w.note(w.result(w.epoll_ctl(ep, EPOLL_CTL_MOD, a, nullptr)));
        w.ctl(ep, EPOLL_CTL_MOD, a, EPOLLIN | EPOLLEXCLUSIVE, 1);
        w.ctl(ep, 17, a, EPOLLIN, 1);
        w.ctl(a, EPOLL_CTL_ADD, a, EPOLLIN, 1);
        w.ctl(-1, EPOLL_CTL_ADD, a, EPOLLIN, 1);
        w.ctl(a, EPOLL_CTL_ADD, b, EPOLLIN, 1);
        w.ctl(ep, EPOLL_CTL_ADD, b, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 2);
        w.ctl(ep, EPOLL_CTL_ADD, b, EPOLLIN | EPOLLRDHUP | EPOLLEXCLUSIVE, 2);
        w.ctl(ep, EPOLL_CTL_ADD, b, EPOLLIN | EPOLLEXCLUSIVE, 2);
        w.ctl(ep, EPOLL_CTL_MOD, b, EPOLLIN, 2);
        t.send_from(peer, b, "x");
        w.wait(ep);
        w.ctl(ep, EPOLL_CTL_DEL, b, 0, 0);
        w.wait(ep);
        int copy = w.dup(a);
        w.ctl(ep, EPOLL_CTL_DEL, copy, 0, 0);  // another number, so no member
        w.ctl(ep, EPOLL_CTL_ADD, copy, EPOLLOUT, 3);
        w.wait(ep);
        w.ctl(ep, EPOLL_CTL_DEL, copy, 0, 0);
        w.close(copy);
        w.wait(ep);
    });
}

TEST(IomuxTcp, EqualData) {
    same_tcp([](World& w, Tcp& t) {
        Listener listener;
        int ep = w.epoll(), a = t.open(), b = t.open(), c = w.plain_eventfd(), u = w.socket();
        for (int fd : {a, b, c, u}) w.ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLRDHUP, 5);
        int pa = t.establish(a, listener);
        t.establish(b, listener);
        w.wait(ep);
        t.send_from(pa, a, "x");
        w.wait(ep);
        eventfd_write(c, 1);
        w.wait(ep);
        w.deliver(u);
        w.wait(ep);
        w.ctl(ep, EPOLL_CTL_DEL, a, 0, 0);
        w.wait(ep);
    });
}

// A live connection goes to the kernel; the set goes on with it.
TEST(IomuxTcp, HandedOver) {
    for (std::uint32_t mode : {0u, unsigned{EPOLLONESHOT}})
        same_tcp([=](World& w, Tcp& t) {
            Listener listener;
            int ep = w.epoll(), a = t.open(), b = t.open();
            int pa = t.establish(a, listener);
            int pb = t.establish(b, listener);
            w.ctl(ep, EPOLL_CTL_ADD, a, EPOLLIN | EPOLLRDHUP | mode, 1);
            w.ctl(ep, EPOLL_CTL_ADD, b, EPOLLIN | mode, 2);
            t.send_from(pa, a, "x");
            w.wait(ep);
            t.hand_over(a);
            t.hand_over(b);
            w.wait(ep);
            w.polled({{a, POLLIN | POLLOUT, 0}, {b, POLLIN | POLLOUT, 0}});
            t.send_from(pb, b, "y");
            w.wait(ep);
            w.wait(ep);
            t.receive(a);
            w.ctl(ep, EPOLL_CTL_MOD, a, EPOLLIN | EPOLLRDHUP | mode, 11);
            w.wait(ep);
            t.send_from(pa, a, "z");
            w.wait(ep);
            w.ctl(ep, EPOLL_CTL_DEL, b, 0, 0);
            w.ctl(ep, EPOLL_CTL_DEL, b, 0, 0);
            w.wait(ep);
            t.close_peer(pa);
            t.expect(a, EPOLLRDHUP, kIn);
            w.wait(ep);
        });
}

// Nobody who sleeps in the kernel's set, or on its descriptor, is kept awake by a shadow.
TEST(IomuxTcp, KernelsSetIsSilentWhileOurs) {
    OurWorld w;
    Tcp t(w);
    Listener listener;
    int ep = w.epoll(), a = t.open(), b = t.open();
    w.ctl(ep, EPOLL_CTL_ADD, a, EPOLLIN | EPOLLOUT, 1);
    epoll_event ev;
    EXPECT_EQ(::epoll_wait(ep, &ev, 1, 0), 1);
    t.establish(a, listener);
    t.establish(b, listener);
    w.ctl(ep, EPOLL_CTL_ADD, b, EPOLLIN | EPOLLOUT, 2);
    w.wait(ep);
    EXPECT_EQ(::epoll_wait(ep, &ev, 1, 0), 0);
    t.hand_over(a);
    w.wait(ep);
    EXPECT_EQ(::epoll_wait(ep, &ev, 1, 0), 1);
    EXPECT_EQ(ev.data.u64, 1u);
}

// The state changes while a thread waits: connect() in another thread, data, handover, data in the kernel.
TEST(IomuxTcp, WaitersFollowTheState) {
    for (std::int64_t usec : {0, -1})
        for (Call call : {Call::poll, Call::select, Call::epoll, Call::outer}) {
            Spin spin(usec);
            OurWorld w;
            Tcp t(w);
            Listener listener;
            int ep = w.epoll(), outer = w.epoll(), a = t.open();
            int peer = t.establish(a, listener);
            t.send_from(peer, a, "x");
            // A shadow without EPOLLHUP, as a listener's or a bound datagram socket's: both sides silent at
            // first.
            int quiet = w.plain_eventfd();
            dup2(quiet, a);
            t.engines[a]->woken(0, [&] { t.engines[a]->mode = Readiness::kernel; });
            w.ctl(ep, EPOLL_CTL_ADD, a, EPOLLIN, 1);
            w.ctl(outer, EPOLL_CTL_ADD, ep, EPOLLIN, 1);
            {
                Later later(20ms,
                            [&] { t.engines[a]->woken(0, [&] { t.engines[a]->mode = Readiness::ours; }); });
                EXPECT_EQ(wait_in(w, call, a, ep, outer), 1);
            }
            t.receive(a);
            {
                Later later(20ms, [&] { t.send_from(peer, a, "y"); });
                EXPECT_EQ(wait_in(w, call, a, ep, outer), 1);
            }
            t.receive(a);
            Engine* engine = t.engines[a];
            {
                Later later(20ms, [&] {
                    t.hand_over(a);
                    std::this_thread::sleep_for(20ms);
                    ASSERT_EQ(::send(peer, "z", 1, 0), 1);
                });
                EXPECT_EQ(wait_in(w, call, a, ep, outer), 1);
            }
            g_fds.remove(a);
            w.wait(ep);
            EXPECT_TRUE(engine->alone());
        }
}

}  // namespace
