// SPDX-License-Identifier: BSD-2-Clause
// select, poll and epoll over sockets whose whole readiness is ours (TCP connections), against the kernel.
//
// The kernel's world has real TCP sockets over loopback. In ours the program's descriptor is an unconnected shadow, and
// the connection is a second kernel socket that nobody but the test's Socket class knows: it plays the TCP engine, so what
// is true of a connection in any state comes from the kernel in both worlds. Both accounts must be the same.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>

#include "libvma/iomux/epoll_set.h"
#include "libvma/ring/ring.h"
#include "libvma/runtime/clock.h"
#include "libvma/sockets/ready_hook.h"
#include "libvma/verbs/wire/wire_device.h"
#include "tests/unit/iomux_worlds.h"

namespace {

using namespace vma::test::worlds;
using vma::sockets::Readiness;

constexpr std::uint32_t kIn = EPOLLIN | EPOLLRDNORM, kOut = EPOLLOUT | EPOLLWRNORM, kGone = EPOLLHUP | EPOLLERR;

// A socket that tells of its changes, as UdpSocket and TcpSocket do. What it is asked is counted.
class Told : public vma::sockets::Socket {
  public:
    bool offloaded() const noexcept override { return mode != Readiness::kernel; }
    Readiness readiness() const noexcept override { return mode; }
    std::uint32_t edges(std::uint32_t events) const noexcept override {
        return all_ + ((events & kIn) != 0 ? in_.load() : 0) + ((events & kOut) != 0 ? out_.load() : 0);
    }
    bool add_waiter(vma::sockets::Waiter* w) noexcept override {
        std::lock_guard guard(lock_);
        waiters_added++;
        return waiters_.add(w);
    }
    void remove_waiter(vma::sockets::Waiter* w) noexcept override {
        std::lock_guard guard(lock_);
        waiters_.remove(w);
    }
    bool subscribe(vma::sockets::ReadyHook* hook) noexcept override {
        std::lock_guard guard(lock_);
        if (silent) return false;
        hooks_.add(hook);
        return true;
    }
    bool unsubscribe(vma::sockets::ReadyHook* hook) noexcept override {
        std::lock_guard guard(lock_);
        if (busy) return false;
        hooks_.remove(hook);
        return true;
    }
    unsigned rings(vma::ring::Ring**, unsigned) const noexcept override { return 0; }
    unsigned progress() noexcept override {
        progressed++;
        return 0;
    }
    // Something happened, as a TCP engine would say it. `change` is made under the lock.
    template <class F>
    void woken(std::uint32_t key, F&& change) noexcept {
        std::lock_guard guard(lock_);
        change();
        if ((key & kIn) != 0) in_++;
        if ((key & kOut) != 0) out_++;
        if (key == 0 || (key & kGone) != 0) all_++;
        waiters_.signal_all();
        hooks_.wake_all(key);
    }
    bool alone() {
        std::lock_guard guard(lock_);
        return waiters_.empty() && hooks_.empty();
    }

    std::atomic<Readiness> mode{Readiness::kernel};
    std::atomic<bool> silent{false}, busy{false}, recycled{false};
    mutable std::atomic<unsigned> asked{0};
    std::atomic<unsigned> waiters_added{0}, progressed{0};

  protected:
    void last_fd_closed() noexcept override {
        woken(0, [] {});
    }
    void recycle() noexcept override { recycled = true; }

  private:
    vma::Lock lock_;
    std::atomic<unsigned> in_{0}, out_{0}, all_{0};
    vma::sockets::WaiterList waiters_;
    vma::sockets::ReadyHooks hooks_;
};

// The events of a kernel socket that the program does not know.
class Engine final : public Told {
  public:
    explicit Engine(int fd) : fd_(fd) {}
    ~Engine() override { close(fd_); }
    int fd() const { return fd_; }
    std::uint32_t ready_events() const noexcept override {
        asked++;
        pollfd p{fd_, static_cast<short>(POLLIN | POLLOUT | POLLPRI | POLLRDNORM | POLLWRNORM | POLLRDBAND | POLLWRBAND |
                                         POLLRDHUP), 0};
        ::poll(&p, 1, 0);
        return static_cast<std::uint16_t>(p.revents);
    }

  private:
    int fd_;
};

// What is true is set by hand.
class Flags final : public Told {
  public:
    std::uint32_t ready_events() const noexcept override {
        asked++;
        return bits;
    }
    void set(std::uint32_t events) {
        woken(events, [&] { bits |= events; });
    }
    std::atomic<std::uint32_t> bits{0};
};

// Objects are never freed, as in the library.
template <class T, class... Args>
T* keep(Args... args) {
    static std::vector<std::unique_ptr<T>> all;
    all.push_back(std::make_unique<T>(args...));
    return all.back().get();
}

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

// TCP in a world: the same calls, but in ours on the hidden socket, with a word to the Socket class after each.
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
        if (engines.contains(fd))
            engines[fd]->woken(0, [&] { engines[fd]->mode = Readiness::ours; });
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

constexpr std::uint32_t kAll = EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP | EPOLLRDNORM | EPOLLWRNORM | EPOLLRDBAND;

// All that poll, select and fresh epoll sets say of `fd` now.
void look(World& w, int fd, const std::string& when) {
    w.note("== " + when);
    std::vector<pollfd> fds;
    for (short events : {short{0}, short{POLLIN}, short{POLLOUT}, short{POLLPRI}, static_cast<short>(POLLRDHUP),
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
        for (std::uint32_t events : {0u, unsigned{EPOLLIN}, unsigned{EPOLLOUT}, unsigned{EPOLLRDHUP}, unsigned{EPOLLPRI}, kAll}) {
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
                    refused ? t.expect(fd, EPOLLERR, kIn | kOut | kGone | EPOLLRDHUP) : t.expect(fd, EPOLLOUT, kOut);
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

enum class Call { poll, select, epoll, outer };

int wait_in(World& w, Call call, int fd, int ep, int outer) {
    pollfd p{call == Call::outer ? outer : fd, POLLIN, 0};
    fd_set r, e;
    FD_ZERO(&r);
    FD_SET(fd, &r);
    e = r;
    epoll_event ev;
    timespec t{20, 0};
    switch (call) {
        case Call::poll:
        case Call::outer: return w.poll(&p, 1, &t);
        case Call::select: return w.select(fd + 1, &r, nullptr, &e, &t);
        default: return w.epoll_wait(ep, &ev, 1, &t);
    }
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
            // A shadow without EPOLLHUP, as a listener's or a bound datagram socket's: both sides silent at first.
            int quiet = w.plain_eventfd();
            dup2(quiet, a);
            t.engines[a]->woken(0, [&] { t.engines[a]->mode = Readiness::kernel; });
            w.ctl(ep, EPOLL_CTL_ADD, a, EPOLLIN, 1);
            w.ctl(outer, EPOLL_CTL_ADD, ep, EPOLLIN, 1);
            {
                Later later(20ms, [&] { t.engines[a]->woken(0, [&] { t.engines[a]->mode = Readiness::ours; }); });
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

int insert(World& w, Told* socket) {
    int fd = w.plain_eventfd();
    EXPECT_TRUE(g_fds.insert(fd, socket));
    socket->unref();
    return fd;
}

// Cost follows what is active: neither asked, nor polled, nor given a waiter.
TEST(IomuxTcp, TenThousandMembers) {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    rlimit high = limit;
    high.rlim_cur = std::min<rlim_t>(limit.rlim_max, 16384);
    setrlimit(RLIMIT_NOFILE, &high);
    const std::size_t many = std::min<std::size_t>(10000, high.rlim_cur - 300);
    for (std::uint32_t mode : {0u, unsigned{EPOLLET}}) {
        Spin spin(0);
        OurWorld w;
        int ep = w.epoll();
        std::vector<Flags*> all;
        std::vector<int> fds;
        for (std::size_t i = 0; i < many; i++) {
            all.push_back(keep<Flags>());
            all.back()->mode = Readiness::ours;
            fds.push_back(insert(w, all.back()));
            epoll_event ev{};
            ev.events = EPOLLIN | EPOLLRDHUP | mode;
            ev.data.u64 = i;
            ASSERT_EQ(w.epoll_ctl(ep, EPOLL_CTL_ADD, fds.back(), &ev), 0);
        }
        epoll_event ev[16];
        timespec none{0, 0};
        EXPECT_EQ(w.epoll_wait(ep, ev, 16, &none, nullptr), 0);
        auto asked = [&] {
            unsigned sum = 0;
            for (Flags* f : all) sum += f->asked.exchange(0) + f->waiters_added + f->progressed;
            return sum;
        };
        asked();
        EXPECT_EQ(w.epoll_wait(ep, ev, 16, &none, nullptr), 0);
        EXPECT_EQ(asked(), 0u);
        for (std::size_t i : {std::size_t{7}, many / 2, many - 1}) {
            {
                Later later(5ms, [&] { all[i]->set(kIn); });
                ASSERT_EQ(w.epoll_wait(ep, ev, 16, nullptr, nullptr), 1);
            }
            EXPECT_EQ(ev[0].data.u64, i);
            EXPECT_EQ(w.epoll_wait(ep, ev, 16, &none, nullptr), mode == 0 ? 1 : 0);
            all[i]->set(kOut);  // nobody asked for that
            all[i]->bits = 0;
            EXPECT_EQ(w.epoll_wait(ep, ev, 16, &none, nullptr), 0);
        }
        EXPECT_LT(asked(), 60u);
        for (Flags* f : all) f->set(kIn);
        std::set<std::uint64_t> seen;
        for (std::size_t round = 0; round < many / 16 + 2 && seen.size() < many; round++) {
            int n = w.epoll_wait(ep, ev, 16, &none, nullptr);
            for (int i = 0; i < n; i++) seen.insert(ev[i].data.u64);
        }
        EXPECT_EQ(seen.size(), many);
        for (std::size_t i = 0; i < many; i += 2) w.close(fds[i]);
        asked();
        EXPECT_EQ(w.epoll_wait(ep, ev, 16, &none, nullptr), mode == 0 ? 16 : 0);
    }
    setrlimit(RLIMIT_NOFILE, &limit);
}

TEST(IomuxTcp, MembersTakeTurns) {
    for (int max : {1, 3}) {
        OurWorld w;
        int ep = w.epoll();
        for (std::uint64_t i = 0; i < 9; i++) {
            Flags* f = keep<Flags>();
            f->mode = i % 3 == 0 ? Readiness::both : Readiness::ours;
            int fd = insert(w, f);
            if (i == 4) f->silent = true;
            w.ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, i);
            f->set(kIn);
        }
        int e = w.plain_eventfd();
        w.ctl(ep, EPOLL_CTL_ADD, e, EPOLLIN, 9);
        eventfd_write(e, 1);
        std::set<std::uint64_t> seen;
        for (int round = 0; round < 24; round++) {
            epoll_event ev[3];
            timespec none{0, 0};
            int n = w.epoll_wait(ep, ev, max, &none, nullptr);
            ASSERT_GE(n, 1);
            for (int i = 0; i < n; i++) seen.insert(ev[i].data.u64);
        }
        EXPECT_EQ(seen.size(), 10u) << "max " << max;
    }
}

TEST(IomuxTcp, LosesNoWakeUp) {
    for (std::int64_t usec : {0, 50})
        for (std::uint32_t mode : {0u, unsigned{EPOLLET}, unsigned{EPOLLONESHOT}, ~0u}) {
            const bool mod = mode == ~0u;  // interest comes only after the event may have
            Spin spin(usec);
            OurWorld w;
            int ep = w.epoll();
            Flags* f = keep<Flags>();
            f->mode = Readiness::ours;
            int fd = insert(w, f);
            epoll_event want{};
            want.events = EPOLLIN | (mod ? unsigned{EPOLLET} : mode);
            ASSERT_EQ(w.epoll_ctl(ep, EPOLL_CTL_ADD, fd, &want), 0);
            constexpr int kRounds = 3000;
            std::atomic<int> turn{-1};
            std::thread other([&] {
                for (int i = 0; i < kRounds; i++) {
                    while (turn.load() != i) std::this_thread::yield();
                    for (int pause = i * 7 % 400; pause > 0; pause--) vma::cpu_relax();
                    f->set(kIn);
                }
            });
            for (int i = 0; i < kRounds; i++) {
                epoll_event ev;
                timespec t{10, 0};
                if (mod) {
                    want.events = EPOLLET;
                    w.epoll_ctl(ep, EPOLL_CTL_MOD, fd, &want);
                    want.events = EPOLLIN | EPOLLET;
                }
                turn = i;
                if (mod) w.epoll_ctl(ep, EPOLL_CTL_MOD, fd, &want);
                EXPECT_EQ(w.epoll_wait(ep, &ev, 1, &t, nullptr), 1) << i;
                while (f->bits.load() == 0) std::this_thread::yield();
                f->bits = 0;
                if (mode == EPOLLONESHOT) {
                    EXPECT_EQ(w.epoll_ctl(ep, EPOLL_CTL_MOD, fd, &want), 0);
                }
            }
            turn = kRounds;
            other.join();
        }
}

// Members come, go, are closed and change hands while others report and threads wait.
TEST(IomuxTcp, ChurnUnderWakeUps) {
    Spin spin(0);
    OurWorld w;
    int ep = w.epoll();
    constexpr int kSockets = 12;
    std::vector<Flags*> all;
    std::vector<int> fds;
    for (int i = 0; i < kSockets; i++) {
        all.push_back(keep<Flags>());
        all.back()->mode = Readiness::ours;
        EXPECT_TRUE(all.back()->try_ref());  // outlives its descriptors
        fds.push_back(insert(w, all.back()));
    }
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int k = 0; k < 2; k++)
        threads.emplace_back([&, k] {
            for (unsigned i = 0; !stop; i++) {
                Flags* f = all[(i * 5 + static_cast<unsigned>(k)) % kSockets];
                if (i % 7 == 0)
                    f->woken(0, [&] { f->mode = i % 2 == 0 ? Readiness::ours : Readiness::both; });
                else
                    f->set(i % 3 == 0 ? kIn : kOut);
            }
        });
    std::atomic<unsigned> events{0};
    for (int k = 0; k < 2; k++)
        threads.emplace_back([&] {
            while (!stop) {
                epoll_event ev[4];
                timespec t = msec(1);
                int n = w.epoll_wait(ep, ev, 4, &t, nullptr);
                ASSERT_GE(n, 0);
                events += static_cast<unsigned>(n);
            }
        });
    for (unsigned i = 0; i < 20000 || events == 0; i++) {
        std::size_t k = i * 7 % kSockets;
        epoll_event ev{};
        ev.events = EPOLLIN | EPOLLOUT | (i % 2 == 0 ? unsigned{EPOLLET} : unsigned{EPOLLONESHOT});
        ev.data.u64 = i;
        if (w.epoll_ctl(ep, EPOLL_CTL_ADD, fds[k], &ev) != 0) {
            EXPECT_EQ(errno, EEXIST);
            EXPECT_EQ(w.epoll_ctl(ep, i % 3 == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD, fds[k], &ev), 0);
        }
        if (i % 50 == 0) {
            g_fds.remove(fds[k]);
            ::close(fds[k]);
            fds[k] = w.plain_eventfd();
            EXPECT_TRUE(g_fds.insert(fds[k], all[k]));
        }
        all[k]->bits = 0;
    }
    stop = true;
    for (auto& t : threads) t.join();
    for (int fd : fds) w.close(fd);
    w.close(ep);
    for (Flags* f : all) EXPECT_TRUE(f->alone());
}

// A handler interrupted the socket's own code, so the hook stays; the member is gone all the same.
TEST(IomuxTcp, HookThatCannotBeTakenDown) {
    OurWorld w;
    int ep = w.epoll();
    Flags* f = keep<Flags>();
    f->mode = Readiness::ours;
    int fd = insert(w, f);
    w.ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
    f->busy = true;
    w.ctl(ep, EPOLL_CTL_DEL, fd, 0, 0);
    f->set(kIn);
    f->woken(0, [] {});
    epoll_event ev;
    timespec none{0, 0};
    EXPECT_EQ(w.epoll_wait(ep, &ev, 1, &none, nullptr), 0);
    w.ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, 2);
    EXPECT_EQ(w.epoll_wait(ep, &ev, 1, &none, nullptr), 1);
    EXPECT_EQ(ev.data.u64, 2u);
    f->busy = false;
    w.close(fd);
    EXPECT_EQ(w.epoll_wait(ep, &ev, 1, &none, nullptr), 0);
    EXPECT_TRUE(f->alone());
    EXPECT_TRUE(f->recycled);
}

// Sockets that share a ring: it is polled, armed and slept on for all of them, and their own functions are not called.
class OnRing final : public vma::sockets::Socket, public vma::ring::FrameSink {
  public:
    explicit OnRing(vma::ring::Ring* ring) : ring_(ring) {}
    bool deliver(vma::ring::RxBuffer* buffer) noexcept override {
        buffer->release();
        std::lock_guard guard(lock_);
        queued_++;
        waiters_.signal_all();
        hooks_.wake_all(kIn);
        return true;
    }
    void consume() { queued_ = 0; }
    Readiness readiness() const noexcept override { return Readiness::both; }
    std::uint32_t ready_events() const noexcept override { return queued_ != 0 ? kIn : 0; }
    unsigned rings(vma::ring::Ring** out, unsigned room) const noexcept override {
        if (room != 0) out[0] = ring_;
        return 1;
    }
    unsigned progress() noexcept override { return called++, 0; }
    void flush() noexcept override { called++; }
    unsigned arm(int*, unsigned) noexcept override { return called++, 0; }
    void disarm() noexcept override { called++; }
    bool add_waiter(vma::sockets::Waiter* w) noexcept override {
        std::lock_guard guard(lock_);
        return waiters_.add(w);
    }
    void remove_waiter(vma::sockets::Waiter* w) noexcept override {
        std::lock_guard guard(lock_);
        waiters_.remove(w);
    }
    bool subscribe(vma::sockets::ReadyHook* hook) noexcept override {
        std::lock_guard guard(lock_);
        hooks_.add(hook);
        return true;
    }
    bool unsubscribe(vma::sockets::ReadyHook* hook) noexcept override {
        std::lock_guard guard(lock_);
        hooks_.remove(hook);
        return true;
    }
    std::atomic<unsigned> called{0};

  protected:
    void recycle() noexcept override {}

  private:
    vma::ring::Ring* ring_;
    vma::Lock lock_;
    std::atomic<unsigned> queued_{0};
    vma::sockets::WaiterList waiters_;
    vma::sockets::ReadyHooks hooks_;
};

TEST(IomuxRings, PolledForAllTheirSockets) {
    using namespace vma;
    verbs::wire::Wire wire;
    auto near_device = wire.connect({}), far_device = wire.connect({});
    const auto near_mac = near_device->attr().mac, far_mac = far_device->attr().mac;
    auto near_ring = ring::Ring::create(std::move(near_device), {.huge_pages = false});
    auto far_ring = ring::Ring::create(std::move(far_device), {.huge_pages = false});
    ASSERT_TRUE(near_ring && far_ring);
    for (std::int64_t usec : {0, -1}) {
        Spin spin(usec);
        OurWorld w;
        constexpr std::uint16_t kSockets = 40;
        int ep = w.epoll();
        std::vector<OnRing*> all;
        std::vector<int> fds;
        auto flow = [&](std::uint16_t i) {
            return verbs::FlowSpec{IPPROTO_UDP, inet_addr("198.18.0.1"), htons(static_cast<std::uint16_t>(5000 + i)), 0, 0};
        };
        for (std::uint16_t i = 0; i < kSockets; i++) {
            OnRing* s = keep<OnRing>(near_ring->get());
            int fd = w.plain_eventfd();
            ASSERT_TRUE(g_fds.insert(fd, s));
            s->unref();
            ASSERT_TRUE((*near_ring)->attach(flow(i), s, ring::Share::latest));
            w.ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, i);
            all.push_back(s);
            fds.push_back(fd);
        }
        auto send_to = [&](std::uint16_t i) {
            std::array<std::uint8_t, net::kUdpHeaders> headers;
            net::build_udp_headers({.src_mac = far_mac,
                                    .dst_mac = near_mac,
                                    .src_addr = inet_addr("198.18.0.2"),
                                    .dst_addr = inet_addr("198.18.0.1"),
                                    .src_port = htons(1),
                                    .dst_port = htons(static_cast<std::uint16_t>(5000 + i)),
                                    .tos = 0,
                                    .ttl = 64},
                                   0, headers.data());
            char byte = 'x';
            iovec iov{&byte, 1};
            EXPECT_EQ((*far_ring)->send_udp(headers.data(), &iov, 1, 1), 0);
            (*far_ring)->flush();
        };
        for (Call call : {Call::poll, Call::select, Call::epoll, Call::outer})
            for (std::uint16_t i : {std::uint16_t{3}, std::uint16_t{kSockets - 1}}) {
                Later later(10ms, [&] { send_to(i); });
                EXPECT_EQ(wait_in(w, call, fds[i], ep, ep), 1);
                all[i]->consume();
            }
        for (std::uint16_t i = 0; i < kSockets; i++) {
            EXPECT_EQ(all[i]->called, 0u);
            (*near_ring)->detach(flow(i), all[i]);
            g_fds.remove(fds[i]);
        }
    }
}

}  // namespace
