// SPDX-License-Identifier: BSD-2-Clause
// See mux.h.
#include "mux.h"

#include <stdarg.h>
#include <time.h>

#include <algorithm>

namespace parity::mux {

namespace {
constexpr uint64_t kMark = 0x5a17'c0de'0000'0000;
constexpr int kSelectRead = POLLIN | POLLRDNORM | POLLRDHUP, kSelectWrite = POLLOUT | POLLWRNORM;
}  // namespace

const char* name_of(How how) {
    static const char* const names[] = {"select", "pselect",     "poll",        "ppoll",      "epoll",
                                        "edge",   "one-shot",    "exclusive",   "pwait",      "pwait2",
                                        "nested", "nested edge", "edge nested", "polled set", "selected set"};
    return names[static_cast<int>(how)];
}

void scenario(const char* format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    say("## %s", text);
}

long now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1'000'000'000 + t.tv_nsec;
}

Watch::Watch(How how) : how_(how) {
    if (is_epoll(how)) set_ = epoll_create1(0);
    if (how == How::nested || how == How::nested_edge || how == How::edge_nested) {
        outer_ = epoll_create1(0);
        epoll_add(outer_, set_, how == How::nested_edge ? EPOLLIN | EPOLLET : static_cast<uint32_t>(EPOLLIN),
                  kMark);
    }
}

Watch::~Watch() {
    if (outer_ >= 0) close(outer_);
    if (set_ >= 0) close(set_);
}

void Watch::add(int fd, int events) {
    auto index = members_.size();
    members_.push_back({fd, events, 0});
    if (set_ < 0) return;
    auto bits = static_cast<uint32_t>(events);
    if (how_ == How::edge || how_ == How::edge_nested) bits |= EPOLLET;
    if (how_ == How::one_shot) bits |= EPOLLONESHOT;
    if (how_ == How::exclusive)
        bits = (bits & (EPOLLIN | EPOLLOUT)) | EPOLLEXCLUSIVE;  // all it may be combined with
    if (epoll_add(set_, fd, bits, kMark + index) != 0)
        say("add #%zu fails: %s", index, strerrorname_np(errno));
}

void Watch::remove(int fd) {
    for (Member& m : members_)
        if (m.fd == fd) m.fd = -1;
    if (set_ >= 0 && epoll_del(set_, fd) != 0) say("del fails: %s", strerrorname_np(errno));
}

int Watch::wait_select(long limit, const sigset_t* mask) {
    int top = 0;
    for (const Member& m : members_) top = std::max(top, m.fd + 1);
    // Larger than fd_set, for numbers beyond FD_SETSIZE.
    std::vector<unsigned long> words[3];
    fd_set* sets[3];
    for (int s = 0; s < 3; s++) {
        words[s].resize(static_cast<size_t>(std::max(top, FD_SETSIZE)) / 64 + 1);
        sets[s] = reinterpret_cast<fd_set*>(words[s].data());
    }
    auto bit = [&](int s, int fd) -> bool {
        return words[s][static_cast<size_t>(fd) / 64] >> (static_cast<size_t>(fd) % 64) & 1;
    };
    auto put_bit = [&](int s, int fd) {
        words[s][static_cast<size_t>(fd) / 64] |= 1ul << (static_cast<size_t>(fd) % 64);
    };
    for (const Member& m : members_) {
        if (m.fd < 0) continue;
        if (m.events & kSelectRead) put_bit(0, m.fd);
        if (m.events & kSelectWrite) put_bit(1, m.fd);
        if (m.events & POLLPRI) put_bit(2, m.fd);
    }
    timespec ts = to_timespec(limit < 0 ? 0 : limit);
    timeval tv{ts.tv_sec, ts.tv_nsec / 1000};
    int n = how_ == How::pselect ? ::pselect(top, sets[0], sets[1], sets[2], limit < 0 ? nullptr : &ts, mask)
                                 : ::select(top, sets[0], sets[1], sets[2], limit < 0 ? nullptr : &tv);
    for (Member& m : members_) {
        m.seen = 0;
        if (m.fd < 0 || n <= 0) continue;
        m.seen = (bit(0, m.fd) ? POLLIN : 0) | (bit(1, m.fd) ? POLLOUT : 0) | (bit(2, m.fd) ? POLLPRI : 0);
    }
    return n;
}

int Watch::wait_poll(long limit, const sigset_t* mask) {
    std::vector<pollfd> fds;
    for (const Member& m : members_) fds.push_back({m.fd, static_cast<short>(m.events), 0x55});
    timespec ts = to_timespec(limit < 0 ? 0 : limit);
    int n = how_ == How::ppoll ? ::ppoll(fds.data(), fds.size(), limit < 0 ? nullptr : &ts, mask)
                               : ::poll(fds.data(), fds.size(),
                                        limit < 0 ? -1 : static_cast<int>((limit + kMsec - 1) / kMsec));
    for (size_t i = 0; i < fds.size(); i++) members_[i].seen = n < 0 ? 0 : fds[i].revents;
    return n;
}

int Watch::wait_epoll(long limit, const sigset_t* mask) {
    std::vector<epoll_event> events(members_.size() + 2);
    auto room = static_cast<int>(events.size());
    timespec ts = to_timespec(limit < 0 ? 0 : limit);
    int ms = limit < 0 ? -1 : static_cast<int>((limit + kMsec - 1) / kMsec);
    int n = how_ == How::pwait    ? epoll_pwait(set_, events.data(), room, ms, mask)
            : how_ == How::pwait2 ? epoll_pwait2(set_, events.data(), room, limit < 0 ? nullptr : &ts, mask)
                                  : epoll_wait(set_, events.data(), room, ms);
    for (Member& m : members_) m.seen = 0;
    for (int i = 0; i < n; i++) {
        uint64_t index = events[static_cast<size_t>(i)].data.u64 - kMark;
        if (index >= members_.size() || members_[index].seen != 0)
            strange_ = true;
        else
            members_[index].seen = static_cast<int>(events[static_cast<size_t>(i)].events);
    }
    return n;
}

int Watch::wait_outer(long limit, const sigset_t* mask) {
    int ms = limit < 0 ? -1 : static_cast<int>((limit + kMsec - 1) / kMsec);
    if (how_ == How::polled_set) {
        pollfd p{set_, POLLIN | POLLOUT, 0};
        timespec ts = to_timespec(limit < 0 ? 0 : limit);
        int n = ::ppoll(&p, 1, limit < 0 ? nullptr : &ts, mask);
        strange_ = n > 0 && p.revents != POLLIN;
        return n;
    }
    if (how_ == How::selected_set) {
        fd_set r, w;
        FD_ZERO(&r);
        FD_SET(set_, &r);
        w = r;
        timespec ts = to_timespec(limit < 0 ? 0 : limit);
        int n = ::pselect(set_ + 1, &r, &w, nullptr, limit < 0 ? nullptr : &ts, mask);
        strange_ = n > 0 && (!FD_ISSET(set_, &r) || FD_ISSET(set_, &w));
        return n;
    }
    epoll_event e[2];
    int n = epoll_pwait(outer_, e, 2, ms, mask);
    strange_ = n > 1 || (n == 1 && (e[0].data.u64 != kMark || e[0].events != EPOLLIN));
    return n;
}

int Watch::wait(long limit, const sigset_t* mask) {
    strange_ = early_ = false;
    long begin = now_ns();
    errno = ERANGE;
    n_ = how_ <= How::pselect ? wait_select(limit, mask)
         : how_ <= How::ppoll ? wait_poll(limit, mask)
         : is_opaque(how_)    ? wait_outer(limit, mask)
                              : wait_epoll(limit, mask);
    error_ = errno;
    // select's timeout is in microseconds; the kernel rounds jiffies up, never down.
    early_ = n_ == 0 && now_ns() - begin < limit;
    return n_;
}

std::string Watch::result() const {
    std::string text = std::to_string(n_);
    if (n_ < 0) text += std::string(" ") + strerrorname_np(error_);
    if (n_ >= 0 && error_ != ERANGE) text += " errno changed";
    if (strange_) text += " STRANGE";
    if (early_) text += " EARLY";
    if (!is_opaque(how_))
        for (size_t i = 0; i < members_.size(); i++)
            if (members_[i].seen != 0) text += " #" + std::to_string(i) + " " + events_text(members_[i].seen);
    return text;
}

int Watch::show(const char* what, long limit, const sigset_t* mask) {
    wait(limit, mask);
    say("%s: %s", what, result().c_str());
    return n_;
}

int datagram(int offset) {
    int fd = bound(here(), port(offset));
    sockaddr_in a = at(there(), port(offset));
    if (connect(fd, raw(a), sizeof a) != 0) say("cannot connect: %s", strerrorname_np(errno));
    return fd;
}

std::unique_ptr<Company> company() {
    auto c = std::make_unique<Company>();
    c->udp = datagram(18);
    c->tcp = connection();
    // The first datagram may have to resolve the neighbour.
    send(c->udp, "hello", 5, 0);
    wait_in(c->udp);
    char hello[8];
    if (recv(c->udp, hello, sizeof hello, 0) != 5) say("cannot talk");
    sync();
    return c;
}

int epoll_add(int set, int fd, uint32_t events, uint64_t data) {
    epoll_event e{events, {.u64 = data}};
    return epoll_ctl(set, EPOLL_CTL_ADD, fd, &e);
}

int epoll_mod(int set, int fd, uint32_t events, uint64_t data) {
    epoll_event e{events, {.u64 = data}};
    return epoll_ctl(set, EPOLL_CTL_MOD, fd, &e);
}

std::string epoll_text(uint32_t events) {
    return events_text(static_cast<int>(events & 0xffff)) + (events >> 16 ? " and more" : "");
}

int show_set(const char* what, int set, long limit_ms, int room) {
    std::vector<epoll_event> events(static_cast<size_t>(std::max(room, 1)));
    errno = ERANGE;
    int n = epoll_wait(set, events.data(), room, static_cast<int>(limit_ms));
    int error = errno;
    std::string text = std::to_string(n);
    if (n < 0) text += std::string(" ") + strerrorname_np(error);
    if (n >= 0 && error != ERANGE) text += " errno changed";
    if (n > 0) {
        std::sort(events.begin(), events.begin() + n,
                  [](const epoll_event& a, const epoll_event& b) { return a.data.u64 < b.data.u64; });
        for (int i = 0; i < n; i++) {
            char line[80];
            const epoll_event& e = events[static_cast<size_t>(i)];
            uint64_t data = e.data.u64;
            uint32_t bits = e.events;
            snprintf(line, sizeof line, " #%llx ", static_cast<unsigned long long>(data));
            text += line + epoll_text(bits);
        }
    }
    say("%s: %s", what, text.c_str());
    return n;
}

}  // namespace parity::mux
