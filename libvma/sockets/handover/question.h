// SPDX-License-Identifier: BSD-2-Clause
// How a process asks the owner of a socket to put it into the kernel (shared_sockets.h), or for a connection.
// Nothing here uses malloc or a lock: a child asks before its exec, whatever its parent's threads held.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/uio.h>
#include <time.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/sockets/fd_object.h"

namespace vma::sockets::sharing {

constexpr std::size_t kRequests = 128;  // in one message

// What a child asks: "put this into the kernel". The object's address and the number are the owner's at the
// time of the fork; the cookie (the kernel's own number of a socket, 0 for an epoll set) says whether they
// still mean the same. A message is an array of requests. When all of them are done the owner answers with a
// byte: on the channel if the first says so, else on the socket that the message brought. Without an object
// it asks for a connection instead: the cookie is its placeholder's port, and the answer brings a descriptor.
struct Request {
    std::uint64_t cookie;
    const FdObject* object;  // only to compare: the child may be hostile
    int fd;
    std::uint8_t answer_on_channel = 0;
};

// May who asks next have the answer on the channel itself? Only one at a time can, and only the child that
// the channel was made for: its own children and those that share the last channel read from it, too.
using Turn = std::atomic<bool>;

inline long close_raw(int fd) noexcept { return fd >= 0 ? os::raw_syscall(SYS_close, fd) : 0; }
// At a number the program does not expect.
inline int duplicate_high(int fd) noexcept {
    for (long from : {1100L, 200L, 3L}) {
        long copy = os::raw_syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, from);
        if (copy >= 0) return static_cast<int>(copy);
    }
    return -1;
}

// Sends one byte or more, and a descriptor unless it is -1. As sendmsg(2), -errno.
long send_with(int to, iovec data, int fd) noexcept;
// As recvmsg(2), -errno, without waiting. `fd` becomes the descriptor that came along, if one did.
long receive_with(int from, iovec data, int& fd) noexcept;
// How long a process waits for all it asks at once.
clock::Msec answer_limit() noexcept;

// One time limit for all that is asked at once, however many owners there are.
class Deadline {
  public:
    // Waits until `fd` is ready for `events`. False: too late.
    bool wait(int fd, short events) noexcept {
        pollfd p{fd, events, 0};
        long ready;
        do
            ready = os::raw_syscall(SYS_ppoll, &p, 1, &left_, nullptr,
                                    0);  // the kernel counts down, over interruptions too
        while (ready == -EINTR);
        return ready > 0;
    }

  private:
    timespec left_ = clock::to_timespec(answer_limit());
};

// Requests to the owner at the other end of a channel. Uses neither malloc nor a lock.
class Question {
  public:
    // Both must outlive it. A question that gets no answer, or is jumped out of, keeps the turn.
    Question(const InternalFd& channel, Turn& turn) noexcept
        : channel_(channel),
          turn_(turn),
          direct_(turn.load(std::memory_order_relaxed) && turn.exchange(false)) {}
    Question(const Question&) = delete;
    Question& operator=(const Question&) = delete;
    ~Question() {
        if (direct_ && messages_ == 0) turn_.store(true);
        close_raw(ours_);
        close_raw(theirs_);
    }

    void add(const Request& request, Deadline& deadline) noexcept;
    // Waits until the owner has done everything, or is no more.
    void finish(Deadline& deadline) noexcept;
    // What the answer brought, or -1.
    int connection() const noexcept { return connection_; }

  private:
    void send(Deadline& deadline) noexcept;

    const InternalFd& channel_;
    Turn& turn_;
    const bool direct_;  // the answer comes on the channel
    int ours_ = -1, theirs_ = -1, connection_ = -1;
    bool late_ = false;
    std::size_t messages_ = 0;  // sent, not answered
    std::size_t count_ = 0;
    std::array<Request, kRequests> requests_;
};

// One message from the channel `fd`; false when nobody is left at its other end. Internal thread.
bool serve(int fd) noexcept;

}  // namespace vma::sockets::sharing
