// SPDX-License-Identifier: BSD-2-Clause
// Uses register_recv_callback of the extra API. Each case is a function; the far side is
// "extra_callback peer", on the kernel.
#include <setjmp.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>

#include "extra_api.h"

namespace {

using namespace extra;

// What the callback is to say, and what it saw.
struct Plan {
    std::function<vma_recv_callback_retval_t(int fd, const std::string& content, vma_info_t* info)> judge;
    int called = 0;
    pthread_t thread{};
};

vma_recv_callback_retval_t callback(int fd, size_t count, iovec* iov, vma_info_t* info, void* context) {
    Plan& plan = *static_cast<Plan*>(context);
    plan.called++;
    plan.thread = pthread_self();
    std::string content;
    for (size_t i = 0; i < count; i++) content.append(static_cast<char*>(iov[i].iov_base), iov[i].iov_len);
    CHECK(info->struct_sz == sizeof(vma_info_t) && info->payload_sz == content.size());
    CHECK(info->packet_id != nullptr);
    return plan.judge(fd, content, info);
}

void judge(int fd, Plan& plan, decltype(Plan::judge) how) {
    plan.judge = std::move(how);
    CHECK(api->register_recv_callback(fd, &callback, &plan) == 0);
}

// A socket whose datagrams are the library's.
int offloaded() {
    const int fd = udp();
    for (int i = 0; i < 50; i++) {
        request(fd, 10, 1);
        Packet packet;
        CHECK(packet.receive(fd) >= 0);
        if (!packet.held()) continue;
        CHECK(packet.give_back(fd) == 0);
        return fd;
    }
    CHECK(!"never offloaded");
    return -1;
}

int ready(int fd, int msec) {
    pollfd p{fd, POLLIN, 0};
    return poll(&p, 1, msec);
}

std::string receive(int fd, int flags = 0) {
    char bytes[65536];
    const ssize_t n = recv(fd, bytes, sizeof bytes, flags);
    return n < 0 ? strerrorname_np(errno) : std::string(bytes, static_cast<std::size_t>(n));
}

void udp_verdicts() {
    const int fd = offloaded();
    Plan plan;
    // Queued before: nobody is asked.
    request(fd, 20, 2);
    CHECK(ready(fd, 5000) == 1);
    judge(fd, plan, [&](int number, const std::string& content, vma_info_t* info) {
        CHECK(number == fd && content == made(100, 3));
        CHECK(info->src->sin_port == htons(kUdpPort) &&
              info->src->sin_addr.s_addr == at(peer, 0).sin_addr.s_addr);
        CHECK(info->dst->sin_addr.s_addr == at(own, 0).sin_addr.s_addr);
        return VMA_PACKET_DROP;
    });
    CHECK(receive(fd) == made(20, 2) && plan.called == 0);
    // Dropped: the call goes on waiting, as long as its timeout says.
    limit(fd, 100);
    for (int i = 0; i < 5; i++) request(fd, 100, 3);
    CHECK(receive(fd) == "EAGAIN" && plan.called == 5);
    CHECK(plan.thread == pthread_self());
    request(fd, 100, 3);
    CHECK(ready(fd, 50) == 0 && plan.called == 6);
    limit(fd, 5000);
    // Received.
    judge(fd, plan, [](int, const std::string&, vma_info_t*) { return VMA_PACKET_RECV; });
    for (std::uint32_t i = 0; i < 20; i++) request(fd, 100 + i, i);
    for (std::uint32_t i = 0; i < 20; i++) CHECK(receive(fd) == made(100 + i, i));
    CHECK(plan.called == 26);
    // A verdict that is none.
    judge(fd, plan,
          [](int, const std::string&, vma_info_t*) { return static_cast<vma_recv_callback_retval_t>(77); });
    request(fd, 100, 4);
    CHECK(receive(fd) == made(100, 4));
    // Held.
    std::vector<std::pair<void*, iovec>> held;
    judge(fd, plan, [&](int, const std::string&, vma_info_t* info) {
        held.push_back({info->packet_id, {}});
        return VMA_PACKET_HOLD;
    });
    for (std::uint32_t i = 0; i < 10; i++) request(fd, 100, i);
    limit(fd, 100);
    CHECK(receive(fd) == "EAGAIN" && held.size() == 10);
    CHECK(ready(fd, 0) == 0);
    CHECK(api->register_recv_callback(fd, nullptr, nullptr) == 0);
    limit(fd, 5000);
    request(fd, 50, 5);
    CHECK(receive(fd) == made(50, 5) && held.size() == 10);
    std::thread([&] {
        for (auto& [id, iov] : held) CHECK(give_back(fd, id) == 0);
    }).join();
    CHECK_FAILS(give_back(fd, held[0].first), ENOENT);
    // By zero copy, too.
    judge(fd, plan, [](int, const std::string&, vma_info_t*) { return VMA_PACKET_RECV; });
    request(fd, 60, 6);
    Packet packet;
    CHECK(packet.receive(fd) == 60 && packet.held() && packet.content() == made(60, 6));
    CHECK(packet.give_back(fd) == 0);
}

// select, poll and epoll call it, and see what it lets pass.
void udp_waiting() {
    const int fd = offloaded(), always = udp();
    Plan plan;
    auto select_ready = [&](int msec) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(fd, &set);
        timeval time{msec / 1000, msec % 1000 * 1000};
        return select(fd + 1, &set, nullptr, nullptr, &time);
    };
    const int set = epoll_create1(0);
    epoll_event event{EPOLLIN, {.fd = fd}};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    auto epoll_ready = [&](int msec) { return epoll_wait(set, &event, 1, msec); };
    auto poll_ready = [&](int msec) { return ready(fd, msec); };
    for (const auto& wait : {std::function<int(int)>(select_ready), {epoll_ready}, {poll_ready}}) {
        const int before = plan.called;
        judge(fd, plan, [](int, const std::string&, vma_info_t*) { return VMA_PACKET_DROP; });
        request(fd, 30, 1);
        CHECK(wait(60) == 0 && plan.called == before + 1);
        judge(fd, plan, [](int, const std::string&, vma_info_t*) { return VMA_PACKET_RECV; });
        request(fd, 30, 1);
        CHECK(wait(5000) == 1 && plan.called == before + 2);
        CHECK(receive(fd, MSG_DONTWAIT) == made(30, 1));
        CHECK(wait(0) == 0);
        // A thread that sleeps already.
        std::thread late([&] {
            usleep(30000);
            request(fd, 40, 2);
        });
        CHECK(wait(5000) == 1);
        late.join();
        CHECK(receive(fd, MSG_DONTWAIT) == made(40, 2));
    }
    // A descriptor that is ready all the time does not keep it from being called.
    judge(fd, plan, [](int, const std::string&, vma_info_t*) { return VMA_PACKET_DROP; });
    const int before = plan.called;
    request(always, 10, 1);
    CHECK(ready(always, 5000) == 1);
    request(fd, 30, 1);
    for (int i = 0; i < 1000 && plan.called == before; i++) {
        pollfd both[2] = {{fd, POLLIN, 0}, {always, POLLIN, 0}};
        CHECK(poll(both, 2, 10) == 1);
        usleep(1000);
    }
    CHECK(plan.called == before + 1);
}

// It sends, receives and waits on its own descriptor.
void udp_inside() {
    const int fd = offloaded();
    Plan plan;
    int answers = 0;
    judge(fd, plan, [&](int, const std::string& content, vma_info_t*) {
        CHECK(receive(fd, MSG_DONTWAIT) == "EAGAIN");
        CHECK(receive(fd) == "EAGAIN");  // nothing could come: it does not wait
        CHECK(ready(fd, 0) == 0);
        if (++answers < 10) request(fd, content.size() + 1, 1);
        return VMA_PACKET_DROP;
    });
    request(fd, 100, 1);
    limit(fd, 100);
    CHECK(receive(fd) == "EAGAIN" && answers == 10);
    limit(fd, 5000);
    // Order, with a recursive receive, which gets what was let pass before.
    std::vector<std::size_t> got;
    judge(fd, plan, [&](int, const std::string&, vma_info_t*) {
        if (const std::string earlier = receive(fd, MSG_DONTWAIT); earlier != "EAGAIN")
            got.push_back(earlier.size());
        return VMA_PACKET_RECV;
    });
    for (std::size_t i = 0; i < 20; i++) request(fd, 10 + i, 1);
    while (got.size() < 20) got.push_back(receive(fd).size());
    for (std::size_t i = 0; i < 20; i++) CHECK(got[i] == 10 + i);
}

jmp_buf g_jump;

// A callback jumps out of poll() or of recv(). The next packet comes all the same.
void jump_out(int fd, Plan& plan, bool polls) {
    judge(fd, plan,
          [](int, const std::string&, vma_info_t*) -> vma_recv_callback_retval_t { longjmp(g_jump, 1); });
    request(fd, 14, 1);
    if (setjmp(g_jump) == 0) {
        polls ? (void)ready(fd, 5000) : (void)receive(fd);
        CHECK(!"did not jump");
    }
    judge(fd, plan, [](int, const std::string&, vma_info_t*) { return VMA_PACKET_RECV; });
    request(fd, 15, 1);
    CHECK(receive(fd) == made(15, 1));
}

// What a callback may do to the call that it interrupts.
void udp_leaving() {
    int fd = offloaded();
    Plan plan;
    // Unregisters itself.
    judge(fd, plan, [&](int, const std::string&, vma_info_t*) {
        CHECK(api->register_recv_callback(fd, nullptr, nullptr) == 0);
        return VMA_PACKET_DROP;
    });
    request(fd, 10, 1);
    request(fd, 11, 1);
    CHECK(receive(fd).size() == 11 && plan.called == 1);
    // Throws.
    judge(fd, plan, [&](int, const std::string&, vma_info_t*) -> vma_recv_callback_retval_t {
        throw std::runtime_error("callback");
    });
    request(fd, 12, 1);
    bool caught = false;
    try {
        receive(fd);
    } catch (const std::runtime_error&) {
        caught = true;
    }
    CHECK(caught);
    judge(fd, plan, [](int, const std::string&, vma_info_t*) { return VMA_PACKET_RECV; });
    request(fd, 13, 1);
    CHECK(receive(fd).size() == 13);
    // Jumps out of poll() and of recv(), again and again.
    for (int i = 0; i < 10; i++) jump_out(fd, plan, i % 2 == 0);
    // Its thread ends in it.
    judge(fd, plan,
          [](int, const std::string&, vma_info_t*) -> vma_recv_callback_retval_t { pthread_exit(nullptr); });
    request(fd, 16, 1);
    std::thread([&] { receive(fd); }).join();
    judge(fd, plan, [](int, const std::string&, vma_info_t*) { return VMA_PACKET_RECV; });
    request(fd, 17, 1);
    CHECK(receive(fd).size() == 17);
    // Forks.
    judge(fd, plan, [](int, const std::string&, vma_info_t*) {
        const pid_t child = fork();
        if (child == 0) _exit(vma_get_api() == api ? 3 : 1);
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3);
        return VMA_PACKET_RECV;
    });
    request(fd, 18, 1);
    receive(fd);  // the fork has made the socket one of two processes
    // Closes.
    close(fd);
    fd = offloaded();
    judge(fd, plan, [&](int, const std::string&, vma_info_t*) {
        CHECK(close(fd) == 0);
        return VMA_PACKET_HOLD;
    });
    request(fd, 19, 1);
    CHECK(receive(fd) == "EBADF");
    CHECK_FAILS(api->register_recv_callback(fd, &callback, &plan), EINVAL);
}

// Keeps three, drops two and receives one; vma_stats looks at it then.
void shown() {
    const int fd = offloaded();
    Plan plan;
    judge(fd, plan, [&](int, const std::string&, vma_info_t*) {
        return plan.called <= 3 ? VMA_PACKET_HOLD : plan.called <= 5 ? VMA_PACKET_DROP : VMA_PACKET_RECV;
    });
    for (std::uint32_t i = 0; i < 6; i++) request(fd, 100, i);
    CHECK(receive(fd) == made(100, 5));
    printf("look now\n");
    pause();
}

void errors() {
    Plan plan;
    const int plain = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK_FAILS(api->register_recv_callback(plain, &callback, &plan), EINVAL);
    CHECK_FAILS(api->register_recv_callback(-1, &callback, &plan), EINVAL);
    CHECK_FAILS(api->register_recv_callback(999, nullptr, nullptr), EINVAL);
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in here = at(own, 7000);
    CHECK(bind(listener, raw(here), sizeof here) == 0 && listen(listener, 5) == 0);
    CHECK_FAILS(api->register_recv_callback(listener, &callback, &plan), EINVAL);
    CHECK(api->register_recv_callback(udp(), nullptr, nullptr) == 0);
}

// ---- TCP ----

void tcp_verdicts() {
    const int fd = tcp();
    Plan plan;
    std::string dropped;
    judge(fd, plan, [&](int, const std::string& content, vma_info_t* info) {
        CHECK(info->src->sin_port == htons(kTcpPort));
        dropped += content;
        return VMA_PACKET_DROP;
    });
    request(fd, 50000, 1);
    while (dropped.size() < 50000) CHECK(ready(fd, 100) == 0);
    CHECK(dropped == made(50000, 1));
    CHECK(receive(fd, MSG_DONTWAIT) == "EAGAIN");
    // Each packet received or held at random: nothing lost, nothing in another order.
    std::string all;
    std::vector<void*> ids;
    unsigned state = 1;
    judge(fd, plan, [&](int, const std::string& content, vma_info_t* info) {
        state = state * 1103515245 + 12345;
        if ((state >> 16) % 2 == 0) return VMA_PACKET_RECV;
        all += content;
        ids.push_back(info->packet_id);
        return VMA_PACKET_HOLD;
    });
    const std::string sent = made(1 << 19, 7);
    std::thread writer([&] {
        for (std::size_t at = 0; at < sent.size();) {
            const ssize_t n = send(fd, sent.data() + at, sent.size() - at, 0);
            CHECK(n > 0);
            at += static_cast<std::size_t>(n);
        }
    });
    while (all.size() < sent.size()) {
        if (ready(fd, 100) == 1) all += receive(fd, MSG_DONTWAIT);
        for (void* id : ids) CHECK(give_back(fd, id) == 0);
        ids.clear();
    }
    writer.join();
    CHECK(all == sent);
    // MSG_WAITALL, which has begun to receive.
    judge(fd, plan, [](int, const std::string&, vma_info_t*) { return VMA_PACKET_RECV; });
    request(fd, 60000, 8);
    std::string whole(60000, 0);
    CHECK(recv(fd, whole.data(), whole.size(), MSG_WAITALL) == 60000 && whole == made(60000, 8));
    // The last data comes before the end.
    request(fd, 100, 9);
    usleep(30000);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    usleep(30000);
    CHECK(receive(fd) == made(100, 9));
    CHECK(receive(fd).empty());
}

void tcp_leaving() {
    int fd = tcp();
    Plan plan;
    judge(fd, plan, [&](int, const std::string&, vma_info_t*) {
        CHECK(receive(fd) == "EAGAIN");
        CHECK(api->register_recv_callback(fd, nullptr, nullptr) == 0);
        CHECK(receive(fd) == "EAGAIN");
        return VMA_PACKET_RECV;
    });
    request(fd, 10, 1);
    CHECK(receive(fd) == made(10, 1));
    for (int i = 0; i < 6; i++) jump_out(fd, plan, i % 2 == 0);
    void* held = nullptr;
    judge(fd, plan, [&](int, const std::string&, vma_info_t* info) {
        held = info->packet_id;
        CHECK(close(fd) == 0);
        return VMA_PACKET_HOLD;
    });
    request(fd, 19, 1);
    CHECK(receive(fd) == "EBADF");
    CHECK(give_back(fd, held) == 0);
    fd = tcp();
    judge(fd, plan, [](int, const std::string&, vma_info_t*) { return VMA_PACKET_DROP; });
    request(fd, 19, 1);
    usleep(100000);
    close(fd);
}

// Two threads receive from one socket, and a third one from another socket of the same ring.
void threads() {
    const int fd = offloaded(), other = offloaded();
    Plan plan;
    std::atomic<int> inside{0}, most{0}, total{0};
    judge(fd, plan, [&](int, const std::string&, vma_info_t*) {
        most = std::max<int>(most, ++inside);
        total++;
        usleep(50);
        inside--;
        return VMA_PACKET_DROP;
    });
    std::atomic<bool> over{false};
    auto wait = [&](int from) {
        while (!over) ready(from, 20);
    };
    std::thread one(wait, fd), two(wait, fd), three(wait, other);
    for (std::uint32_t i = 0; i < 1200; i++) {
        request(fd, 100, i);
        if (i % 16 == 0) usleep(2000);
    }
    for (int i = 0; i < 5000 && total < 500; i++) usleep(1000);
    over = true;
    one.join();
    two.join();
    three.join();
    CHECK(most == 1 && total >= 500);
}

}  // namespace

int main(int argc, char** argv) {
    return extra::run(argc, argv,
                      {{"udp_verdicts", udp_verdicts},
                       {"udp_waiting", udp_waiting},
                       {"udp_inside", udp_inside},
                       {"udp_leaving", udp_leaving},
                       {"shown", shown},
                       {"errors", errors},
                       {"tcp_verdicts", tcp_verdicts},
                       {"tcp_leaving", tcp_leaving},
                       {"threads", threads}});
}
