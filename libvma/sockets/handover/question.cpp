// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/handover/question.h"

#include <errno.h>
#include <limits.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "libvma/runtime/log.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/sockets/handover/placeholders.h"
#include "libvma/sockets/handover/shared_sockets.h"
#include "libvma/sockets/shadow.h"

namespace vma::sockets::sharing {
namespace {

// The parent's internal thread answers in microseconds, unless it is stopped.
constinit std::atomic<clock::Msec> g_answer_limit{clock::Msec(10'000)};

// What a request means, and the number under which we know it; nothing when we have closed it, and so put it
// into the kernel. Another thread may close it meanwhile, so it is held before it is looked at.
std::pair<Ref<FdObject>, int> meant_by(const Request& request) noexcept {
    auto under = [&](int fd) {
        Ref<FdObject> held = g_fds.hold(fd);
        const bool it_is =
            held.get() == request.object && !held->is_foreign() && shadow::cookie_of(fd) == request.cookie;
        return it_is ? std::move(held) : Ref<FdObject>();
    };
    std::pair<Ref<FdObject>, int> found{under(request.fd), request.fd};
    if (found.first) return found;
    g_fds.for_each(0, INT_MAX, [&](int fd, const FdObject* object) {
        if (!found.first && object == request.object) found = {under(fd), fd};
    });
    return found;
}

// Is it a socket as Question makes them? Another might make us wait, or act in our name.
bool may_carry_answer(int fd) noexcept {
    int domain = 0, type = 0;
    socklen_t length = sizeof domain;
    return os::raw_syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 &&
           domain == AF_UNIX &&
           os::raw_syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 &&
           type == SOCK_STREAM;
}

// Can nothing come any more? A message of no bytes looks like the end, and many children may share a channel.
bool ended(int fd) noexcept {
    pollfd p{fd, POLLRDHUP, 0};
    const timespec now{};
    return os::raw_syscall(SYS_ppoll, &p, 1, &now, nullptr, 0) > 0;
}

}  // namespace

void set_answer_limit(clock::Msec limit) noexcept { g_answer_limit = limit; }
clock::Msec answer_limit() noexcept { return g_answer_limit.load(); }

long send_with(int to, iovec data, int fd) noexcept {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    if (fd >= 0) {
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        cmsghdr* c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        std::memcpy(CMSG_DATA(c), &fd, sizeof(int));
    }
    return os::raw_syscall(SYS_sendmsg, to, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

long receive_with(int from, iovec data, int& fd) noexcept {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    // Not CMSG_SPACE, whose padding is room for a second descriptor. The kernel closes what has no room.
    message.msg_controllen = CMSG_LEN(sizeof(int));
    const long n = os::raw_syscall(SYS_recvmsg, from, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // A message of no bytes may bring one, too.
    if (n >= 0)
        if (const cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr && c->cmsg_level == SOL_SOCKET &&
                                                        c->cmsg_type == SCM_RIGHTS &&
                                                        c->cmsg_len == CMSG_LEN(sizeof fd))
            std::memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return n;
}

void Question::add(const Request& request, Deadline& deadline) noexcept {
    requests_[count_++] = request;
    if (count_ == kRequests) send(deadline);
}

void Question::finish(Deadline& deadline) noexcept {
    if (count_ != 0) send(deadline);
    close_raw(std::exchange(theirs_, -1));
    while (!late_ && messages_ != 0) {
        std::array<char, 64> answers;
        const int from = direct_ ? channel_.get() : ours_;
        late_ = !deadline.wait(from, POLLIN);
        const long n = receive_with(from, {answers.data(), std::min(messages_, answers.size())}, connection_);
        if (n == 0 || (n < 0 && n != -EINTR && n != -EAGAIN)) break;  // the owner is no more
        if (n > 0) messages_ -= static_cast<std::size_t>(n);
    }
    if (late_) log::error("the parent process does not answer: inherited sockets are lost");
}

void Question::send(Deadline& deadline) noexcept {
    const std::size_t count = std::exchange(count_, 0);
    int ends[2];
    if (!direct_ && ours_ < 0 &&
        os::raw_syscall(SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0) {
        ours_ = ends[0];
        theirs_ = ends[1];
    }
    if ((!direct_ && ours_ < 0) || late_) return;
    requests_[0].answer_on_channel = direct_;
    long sent;
    do {
        sent = send_with(channel_.get(), {requests_.data(), count * sizeof(Request)}, theirs_);
        if (sent == -EAGAIN && !deadline.wait(channel_.get(), POLLOUT)) late_ = true;
    } while ((sent == -EAGAIN && !late_) || sent == -EINTR);
    if (sent > 0) messages_++;
}

// Who sends may be hostile: a forked child that has given up our privileges, and has been taken over. It can
// have sockets put into the kernel, which costs speed, and gets connections that are offered; nothing else
// may come of a message.
//
// The program's threads may look for the lowest free number meanwhile. The kernel puts a descriptor that a
// message brings there, so it moves away before anything else happens, and no number is taken when the child
// goes on.
bool serve(int fd) noexcept {
    std::array<Request, kRequests> requests;
    int brought = -1;
    const long n = receive_with(fd, {requests.data(), sizeof requests}, brought);
    const InternalFd answer(brought);
    if (n == 0) return !ended(fd);
    const std::size_t count = n > 0 ? static_cast<std::size_t>(n) / sizeof(Request) : 0;
    InternalFd connection;
    for (const Request& request : std::span(requests).first(count)) {
        if (request.object == nullptr) {
            connection = placeholders::take(static_cast<in_port_t>(request.cookie));
            continue;
        }
        if (auto [object, number] = meant_by(request); object)
            object->leave_to_kernel(number, leave::used_by_child);
    }
    char done = 1;
    if (count != 0 && requests[0].answer_on_channel != 0)
        send_with(fd, {&done, 1}, connection.get());
    else if (answer && may_carry_answer(answer.get()))
        send_with(answer.get(), {&done, 1}, connection.get());
    // ECONNRESET: a child has ended without reading its answer. What it has asked for comes before the end.
    return n > 0 || n == -EAGAIN || n == -EINTR || n == -ECONNRESET;
}

}  // namespace vma::sockets::sharing
