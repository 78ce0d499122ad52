// SPDX-License-Identifier: BSD-2-Clause
// A descriptor over a unix socket (SCM_RIGHTS, unix(7)), beside one byte of data.
#pragma once

#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

class DescriptorMessage {
  public:
    DescriptorMessage() {
        message_.msg_iov = &iov_;
        message_.msg_iovlen = 1;
        message_.msg_control = control_;
        message_.msg_controllen = sizeof control_;
    }
    DescriptorMessage(const DescriptorMessage&) = delete;
    DescriptorMessage& operator=(const DescriptorMessage&) = delete;

    ssize_t send(int channel, int fd) {
        cmsghdr* c = CMSG_FIRSTHDR(&message_);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
        return sendmsg(channel, &message_, 0);
    }
    // `fd`: -1 if none came.
    ssize_t receive(int channel, int& fd) {
        fd = -1;
        const ssize_t n = recvmsg(channel, &message_, 0);
        if (n > 0)
            if (const cmsghdr* c = CMSG_FIRSTHDR(&message_)) memcpy(&fd, CMSG_DATA(c), sizeof fd);
        return n;
    }

  private:
    char byte_ = 'd';
    iovec iov_{&byte_, 1};
    alignas(cmsghdr) char control_[CMSG_SPACE(sizeof(int))] = {};
    msghdr message_{};
};

inline ssize_t pass_descriptor(int channel, int fd) { return DescriptorMessage().send(channel, fd); }
inline int take_descriptor(int channel) {
    int fd;
    return DescriptorMessage().receive(channel, fd) > 0 ? fd : -1;
}
