// SPDX-License-Identifier: BSD-2-Clause
// See call.h.
#include "call.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace random_program {

int g_base;
Race* g_race;
Page* g_pages;
SocketCounters* g_brief;
std::atomic<int>* g_brief_used;
std::atomic<int>* g_sigpipes;
thread_local Page* t_page;
thread_local sigjmp_buf t_jump;
thread_local volatile int t_may_jump;

void say(const char* format, ...) {
    char line[600];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    n = std::min(n, static_cast<int>(sizeof line) - 2);
    line[n++] = '\n';
    (void)!write(1, line, static_cast<size_t>(n));
}

long milliseconds() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1'000'000;
}

std::string address_text(const void* address, unsigned length) {
    if (length == 0) return "none";
    sockaddr_in a;
    if (length < sizeof a) return "short";
    memcpy(&a, address, sizeof a);
    if (a.sin_family != AF_INET) return "family " + std::to_string(a.sin_family);
    char name[INET_ADDRSTRLEN];
    std::string text = inet_ntop(AF_INET, &a.sin_addr, name, sizeof name);
    const int number = ntohs(a.sin_port);
    if (number >= g_base && number < g_base + kPorts)
        return text + ":base+" + std::to_string(number - g_base);
    return text + (number < 32768 ? ":" + std::to_string(number) : ":ephemeral");
}

std::string events_text(unsigned events) {
    static constexpr struct {
        unsigned bit;
        const char* name;
    } kNames[] = {{EPOLLIN, "IN"},         {EPOLLOUT, "OUT"},       {EPOLLPRI, "PRI"},
                  {EPOLLERR, "ERR"},       {EPOLLHUP, "HUP"},       {EPOLLRDHUP, "RDHUP"},
                  {EPOLLRDNORM, "RDNORM"}, {EPOLLWRNORM, "WRNORM"}, {POLLNVAL, "NVAL"}};
    std::string text;
    for (const auto& n : kNames)
        if (events & n.bit) text += (text.empty() ? "" : "|") + std::string(n.name);
    return text.empty() ? "-" : text;
}

void wake(std::atomic<uint32_t>& word) {
    word.fetch_add(1);
    syscall(SYS_futex, &word, FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0);
}

bool wait_change(std::atomic<uint32_t>& word, uint32_t old, long msec) {
    const long end = milliseconds() + msec;
    while (word.load() == old) {
        const long left = end - milliseconds();
        if (left <= 0) return false;
        timespec t{left / 1000, left % 1000 * 1'000'000};
        syscall(SYS_futex, &word, FUTEX_WAIT, old, &t, nullptr, 0);
    }
    return true;
}

namespace {

void handle(int) {
    const int error = errno;
    Page* page = t_page;
    if (page == nullptr) return;
    page->handlers++;
    switch (static_cast<InHandler>(page->in_handler.load())) {
        case InHandler::nothing:
            break;
        case InHandler::jump:
            if (t_may_jump) {
                page->handlers--;
                siglongjmp(t_jump, 1);
            }
            break;
        case InHandler::close:
            page->in_handler = 0;
            close(page->handler_fd);
            break;
        case InHandler::send: {
            page->in_handler = 0;
            uint8_t bytes[40];
            Stream{page->handler_key}.fill(bytes, sizeof bytes, page->handler_at);
            (void)!send(page->handler_fd, bytes, sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
            break;
        }
        case InHandler::record: {
            const uint64_t w = Records::word(page->handler_writer, page->handler_serial);
            if (send(page->handler_fd, &w, sizeof w, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof w) {
                page->handler_serial++;
                g_race->written += static_cast<long>(sizeof w);
            }
            break;
        }
    }
    page->handler_ran++;
    page->handlers--;
    errno = error;
}

sockaddr_in address_at(const char* ip, int port) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, ip, &a.sin_addr);
    return a;
}

template <class... Arguments>
void note(Result& r, const char* format, Arguments... arguments) {
    const size_t have = strlen(r.text);
    snprintf(r.text + have, sizeof r.text - have, format, arguments...);
}

// What was received: of a stream, whether it is what belongs there, else its hash.
void note_content(Result& r, const Call& call, const uint8_t* data, long n, uint64_t at) {
    if (n <= 0) return;
    if (call.key == 0) {
        note(r, " hash %08x", hash_of(data, n));
        return;
    }
    const long wrong = Stream{call.key}.wrong(data, n, at);
    if (wrong < 0) return;
    long run = 0;
    const long found = n >= 15 ? Stream{call.key}.find(data, n, run) : -1;
    note(r, " WRONG at %ld of %ld, expected position %ld, found %ld", wrong, n, static_cast<long>(at), found);
}

std::string message_flags(int flags) {
    std::string text;
    if (flags & MSG_TRUNC) text += " TRUNC";
    if (flags & MSG_CTRUNC) text += " CTRUNC";
    if (flags & MSG_EOR) text += " EOR";
    if (flags & MSG_OOB) text += " OOB";
    if (flags & MSG_ERRQUEUE) text += " ERRQUEUE";
    return text;
}

thread_local uint8_t t_buffer[4 << 20];

// a room, b flags, c manner; key 0: datagrams.
void do_receive(const Call& call, Result& r) {
    static constexpr int kMessages = 3;
    const size_t room = static_cast<size_t>(call.a), third = room / 3;
    const int flags = static_cast<int>(call.b);
    uint8_t* b = t_buffer;
    iovec parts[3] = {{b, third}, {b + third, third}, {b + 2 * third, room - 2 * third}};
    sockaddr_in from{};
    socklen_t length = sizeof from;
    char control[256];
    msghdr m{&from, sizeof from, parts, 3, control, sizeof control, 0};
    switch (call.c) {
        case 0:
            r.value = read(call.fd, b, room);
            break;
        case 1:
            r.value = recv(call.fd, b, room, flags);
            break;
        case 2:
            r.value = recvfrom(call.fd, b, room, flags, reinterpret_cast<sockaddr*>(&from), &length);
            break;
        case 3:
            r.value = readv(call.fd, parts, 3);
            break;
        case 4:
            r.value = recvmsg(call.fd, &m, flags);
            break;
        default: {
            mmsghdr several[kMessages] = {};
            sockaddr_in senders[kMessages] = {};
            iovec one[kMessages];
            for (int i = 0; i < kMessages; i++) {
                one[i] = {b + static_cast<size_t>(i) * room, room};
                several[i].msg_hdr = {&senders[i], sizeof from, &one[i], 1, nullptr, 0, 0};
            }
            r.value = recvmmsg(call.fd, several, kMessages, flags | MSG_DONTWAIT, nullptr);
            r.error = errno;
            uint64_t at = call.at;
            for (long i = 0; i < r.value; i++) {
                const long n = several[i].msg_len;
                note(r, " [%ld%s %s]", n, message_flags(several[i].msg_hdr.msg_flags).c_str(),
                     address_text(&senders[i], several[i].msg_hdr.msg_namelen).c_str());
                if (!(flags & MSG_TRUNC)) note_content(r, call, b + static_cast<size_t>(i) * room, n, at);
                if (flags & MSG_PEEK) continue;
                at += static_cast<uint64_t>(n);
                r.moved += n;
            }
            return;
        }
    }
    r.error = errno;
    if (r.value > 0 && (!(flags & MSG_PEEK) || call.c == 0 || call.c == 3)) r.moved = r.value;
    if (r.value >= 0 && call.c == 2) note(r, " from %s", address_text(&from, length).c_str());
    if (r.value >= 0 && call.c == 4)
        note(r, " from %s%s", address_text(&from, m.msg_namelen).c_str(), message_flags(m.msg_flags).c_str());
    if (!(flags & MSG_TRUNC)) note_content(r, call, b, std::min(r.value, call.a), call.at);
    errno = r.error;
}

// a length, b flags, c manner, d port of the destination or 0, list[0] its link; key and at: the bytes.
void do_send(const Call& call, Result& r) {
    const size_t length = static_cast<size_t>(call.a), third = length / 3;
    const int flags = static_cast<int>(call.b) | MSG_NOSIGNAL;
    uint8_t* b = t_buffer;
    Stream{call.key}.fill(b, call.a, call.at);
    iovec parts[3] = {{b, third}, {b + third, third}, {b + 2 * third, length - 2 * third}};
    sockaddr_in to = address_at(kPeer[call.list[0]], static_cast<int>(call.d));
    msghdr m{call.d != 0 ? &to : nullptr,
             call.d != 0 ? static_cast<socklen_t>(sizeof to) : 0,
             parts,
             3,
             nullptr,
             0,
             0};
    switch (call.c) {
        case 0:
            r.value = write(call.fd, b, length);
            break;
        case 1:
            r.value = send(call.fd, b, length, flags);
            break;
        case 2:
            r.value = sendto(call.fd, b, length, flags, static_cast<sockaddr*>(m.msg_name), m.msg_namelen);
            break;
        case 3:
            r.value = writev(call.fd, parts, 3);
            break;
        case 4:
            r.value = sendmsg(call.fd, &m, flags);
            break;
        default: {
            // A part each. The value is the sum of what was taken.
            mmsghdr several[3] = {};
            for (int i = 0; i < 3; i++)
                several[i].msg_hdr = {m.msg_name, m.msg_namelen, &parts[i], 1, nullptr, 0, 0};
            const int sent = sendmmsg(call.fd, several, 3, flags);
            r.error = errno;
            r.value = sent < 0 ? -1 : 0;
            for (int i = 0; i < sent; i++) {
                r.value += several[i].msg_len;
                note(r, " [%u]", several[i].msg_len);
            }
            return;
        }
    }
    r.error = errno;
}

// list: fd, events, fd, events...; count of them; a: timeout.
void do_poll(const Call& call, Result& r) {
    pollfd p[8];
    for (int i = 0; i < call.count; i++)
        p[i] = {call.list[2 * i], static_cast<short>(call.list[2 * i + 1]), 0};
    r.value = poll(p, static_cast<nfds_t>(call.count), static_cast<int>(call.a));
    r.error = errno;
    if (r.value >= 0)
        for (int i = 0; i < call.count; i++)
            note(r, " %s", events_text(static_cast<unsigned>(p[i].revents)).c_str());
}

void do_select(const Call& call, Result& r) {
    fd_set in, out, urgent;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&urgent);
    int last = -1;
    for (int i = 0; i < call.count; i++) {
        const int fd = call.list[2 * i], events = call.list[2 * i + 1];
        if (events & POLLIN) FD_SET(fd, &in);
        if (events & POLLOUT) FD_SET(fd, &out);
        if (events & POLLPRI) FD_SET(fd, &urgent);
        last = std::max(last, fd);
    }
    timeval t{call.a / 1000, call.a % 1000 * 1000};
    r.value = select(last + 1, &in, &out, &urgent, call.a < 0 ? nullptr : &t);
    r.error = errno;
    if (r.value >= 0)
        for (int i = 0; i < call.count; i++) {
            const int fd = call.list[2 * i];
            note(r, " %s%s%s.", FD_ISSET(fd, &in) ? "r" : "", FD_ISSET(fd, &out) ? "w" : "",
                 FD_ISSET(fd, &urgent) ? "x" : "");
        }
}

// a timeout. What is ready is shown in the order of the data.
void do_wait_set(const Call& call, Result& r) {
    epoll_event events[64];
    r.value = epoll_wait(call.fd, events, 64, static_cast<int>(call.a));
    r.error = errno;
    std::sort(events, events + std::max(0L, r.value),
              [](const auto& x, const auto& y) { return x.data.u64 < y.data.u64; });
    for (long i = 0; i < r.value; i++)
        note(r, " %lu:%s", static_cast<unsigned long>(events[i].data.u64),
             events_text(events[i].events).c_str());
}

// Until all of it is true: a bytes are there (or -1), b are among poll()'s events. 5 s.
void do_await(const Call& call, Result& r) {
    const long end = milliseconds() + 5000;
    for (;; usleep(200)) {
        int bytes = 0;
        ioctl(call.fd, FIONREAD, &bytes);
        pollfd p{call.fd, static_cast<short>(POLLIN | POLLRDHUP | call.b), 0};
        poll(&p, 1, 0);
        const bool enough = call.a < 0 || (bytes == call.a && (call.a == 0 || p.revents & POLLIN));
        if (enough && (p.revents & call.b) == call.b) break;
        if (milliseconds() > end) {
            note(r, " NEVER: %d bytes for %ld, %s for %s", bytes, call.a,
                 events_text(static_cast<unsigned>(p.revents)).c_str(),
                 events_text(static_cast<unsigned>(call.b)).c_str());
            r.value = -1;
            break;
        }
    }
}

// Until our FIN is acknowledged, and what was before it.
void do_await_acked(const Call& call, Result& r) {
    const long end = milliseconds() + 5000;
    for (;; usleep(200)) {
        tcp_info info{};
        socklen_t length = sizeof info;
        if (getsockopt(call.fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return;
        const int s = info.tcpi_state;
        if (s != TCP_FIN_WAIT1 && s != TCP_LAST_ACK && s != TCP_CLOSING) return;
        if (milliseconds() > end) {
            note(r, " NEVER acknowledged, state %d", s);
            r.value = -1;
            return;
        }
    }
}

}  // namespace

void install_handlers() {
    struct sigaction action {};
    action.sa_handler = handle;
    sigaddset(&action.sa_mask, SIGUSR1);
    sigaddset(&action.sa_mask, SIGUSR2);
    sigaction(SIGUSR1, &action, nullptr);
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR2, &action, nullptr);
    action.sa_handler = [](int) { (*g_sigpipes)++; };
    sigaction(SIGPIPE, &action, nullptr);
}

void perform(Page& page) {
    const Call& call = page.call;
    Result& r = page.result;
    r = Result{};
    const int ia = static_cast<int>(call.a), ib = static_cast<int>(call.b);
    socklen_t length;
    sockaddr_in address;
    errno = 0;
    switch (call.what) {
        case What::nothing:
        case What::exit:
            break;
        case What::socket:  // a type, b protocol
            r.value = socket(AF_INET, ia, ib);
            break;
        case What::bind:  // a link (0, 1) or -1 for any, b port
            address = address_at(ia < 0 ? "0.0.0.0" : kSubject[ia], ib);
            r.value = bind(call.fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
            break;
        case What::connect:  // a link, b port; a -1: dissolve
            address = address_at(ia < 0 ? "0.0.0.0" : kPeer[ia], ib);
            if (ia < 0) address.sin_family = AF_UNSPEC;
            r.value = connect(call.fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
            break;
        case What::listen:  // a backlog
            r.value = listen(call.fd, ia);
            break;
        case What::accept:  // a flags, b whether by accept4
            length = sizeof address;
            r.value = call.b ? accept4(call.fd, reinterpret_cast<sockaddr*>(&address), &length, ia)
                             : accept(call.fd, reinterpret_cast<sockaddr*>(&address), &length);
            r.error = errno;
            if (r.value >= 0) note(r, " from %s", address_text(&address, length).c_str());
            return;
        case What::receive:
            return do_receive(call, r);
        case What::send:
            return do_send(call, r);
        case What::shutdown:  // a how
            r.value = shutdown(call.fd, ia);
            break;
        case What::close:
            r.value = close(call.fd);
            break;
        case What::dup:
            r.value = dup(call.fd);
            break;
        case What::dup2:  // a number
            r.value = dup2(call.fd, ia);
            break;
        case What::dup3:  // a number, b flags
            r.value = dup3(call.fd, ia, ib);
            break;
        case What::dupfd:  // a lowest
            r.value = fcntl(call.fd, F_DUPFD, ia);
            break;
        case What::dupfd_cloexec:
            r.value = fcntl(call.fd, F_DUPFD_CLOEXEC, ia);
            break;
        case What::nonblock:  // a on
            r.value = fcntl(call.fd, F_SETFL, ia ? O_NONBLOCK : 0);
            break;
        case What::nonblock_ioctl: {
            int on = ia;
            r.value = ioctl(call.fd, FIONBIO, &on);
            break;
        }
        case What::status_flags:
            r.value = fcntl(call.fd, F_GETFL);
            break;
        case What::set_option: {  // a level, b name, c value
            const int value = static_cast<int>(call.c);
            r.value = setsockopt(call.fd, ia, ib, &value, sizeof value);
            break;
        }
        case What::get_option: {
            int value = 0;
            length = sizeof value;
            r.value = getsockopt(call.fd, ia, ib, &value, &length);
            r.error = errno;
            if (r.value == 0) note(r, " %d length %u", value, length);
            return;
        }
        case What::linger: {  // a on, b seconds
            const ::linger l{ia, ib};
            r.value = setsockopt(call.fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
            break;
        }
        case What::own_name:
        case What::peer_name:
            length = sizeof address;
            r.value = call.what == What::own_name
                          ? getsockname(call.fd, reinterpret_cast<sockaddr*>(&address), &length)
                          : getpeername(call.fd, reinterpret_cast<sockaddr*>(&address), &length);
            r.error = errno;
            if (r.value == 0) note(r, " %s", address_text(&address, length).c_str());
            return;
        case What::poll:
            return do_poll(call, r);
        case What::select:
            return do_select(call, r);
        case What::new_set:
            r.value = epoll_create1(ia);
            break;
        case What::change_set: {  // a operation, b descriptor, c events, at data
            epoll_event event{static_cast<uint32_t>(call.c), {.u64 = call.at}};
            r.value = epoll_ctl(call.fd, ia, ib, &event);
            break;
        }
        case What::wait_set:
            return do_wait_set(call, r);
        case What::fork: {  // a: the page of the child
            // The child touches nothing of its parent's page, which is shared.
            Page& child = g_pages[call.a];
            const pid_t pid = fork();
            if (pid != 0) {
                r.error = errno;
                r.value = pid;
                return;
            }
            serve_calls(child);
            const Call last = child.call;
            if (last.a == 0) exit(static_cast<int>(last.b));
            _exit(static_cast<int>(last.b));
        }
        case What::reap: {  // a process
            int status = -1;
            r.value = waitpid(ia, &status, 0) == ia ? 0 : -1;
            r.error = errno;
            note(r, " status %x", static_cast<unsigned>(status));
            return;
        }
        case What::await:
            return do_await(call, r);
        case What::await_acked:
            return do_await_acked(call, r);
        case What::race:
            return take_part(call, page, r);
    }
    r.error = errno;
}

void serve_calls(Page& page) {
    t_page = &page;
    page.process = getpid();
    page.thread = static_cast<pid_t>(syscall(SYS_gettid));
    const pid_t coordinator = g_pages[0].process;
    uint32_t seen = page.done.load();
    for (;;) {
        while (!wait_change(page.asked, seen, 1000))
            if (kill(coordinator, 0) != 0) _exit(0);  // nobody will ask again
        seen = page.asked.load();
        if (page.call.what == What::exit) return;
        wake(page.entered);
        if (sigsetjmp(t_jump, 1) == 0) {
            t_may_jump = 1;
            perform(page);
            t_may_jump = 0;
        } else {
            t_may_jump = 0;
            page.result = Result{};
            snprintf(page.result.text, sizeof page.result.text, " jumped");
        }
        wake(page.done);
    }
}

}  // namespace random_program
