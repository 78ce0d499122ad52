// SPDX-License-Identifier: BSD-2-Clause
// What it costs to wait, and that no wake-up is lost: members that tell of their changes, in great numbers
// and from many threads; rings that many sockets share.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>

#include <array>

#include "libvma/net/frame.h"
#include "libvma/ring/ring.h"
#include "tests/iomux/iomux_told.h"
#include "tests/support/child.h"
#include "tests/support/wire/wire_device.h"

namespace {

using namespace vma::test::worlds;

int insert(World& w, Told* socket) {
    int fd = w.plain_eventfd();
    EXPECT_TRUE(g_fds.insert(fd, socket));
    socket->unref();
    return fd;
}

// Cost follows what is active: neither asked, nor polled, nor given a waiter.
void wait_on_ten_thousand() {
    rlimit high{};
    getrlimit(RLIMIT_NOFILE, &high);
    high.rlim_cur = std::min<rlim_t>(high.rlim_max, 16384);
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
}

// In a child, because a process's descriptor table never becomes smaller, which other tests look at.
TEST(IomuxReady, TenThousandMembers) {
    auto outcome = vma::test::in_child(wait_on_ten_thousand);
    EXPECT_TRUE(outcome.passed()) << outcome.output;
}

TEST(IomuxReady, MembersTakeTurns) {
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

TEST(IomuxReady, LosesNoWakeUp) {
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
TEST(IomuxReady, ChurnUnderWakeUps) {
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
TEST(IomuxReady, HookThatCannotBeTakenDown) {
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

// Sockets that share a ring: it is polled, armed and slept on for all of them, and their own functions are
// not called.
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
            return verbs::FlowSpec{IPPROTO_UDP, inet_addr("198.18.0.1"),
                                   htons(static_cast<std::uint16_t>(5000 + i)), 0, 0};
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
