// SPDX-License-Identifier: BSD-2-Clause
// Control messages beside the kernel's own: a loopback socket shows what the kernel writes for every size of
// buffer, and what it answers to every kind of malformed control data.
#include "libvma/sockets/cmsg.h"

#include <arpa/inet.h>
#include <errno.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <vector>

namespace vma::sockets {
namespace {

class Cmsg : public testing::Test {
  protected:
    void SetUp() override {
        fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        ASSERT_GE(fd, 0);
        self.sin_family = AF_INET;
        self.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t length = sizeof self;
        ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&self), sizeof self), 0);
        ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&self), &length), 0);
    }
    void TearDown() override { close(fd); }

    void want(int level, int name) {
        int one = 1;
        ASSERT_EQ(setsockopt(fd, level, name, &one, sizeof one), 0);
    }
    void send() { ASSERT_EQ(sendto(fd, "x", 1, 0, reinterpret_cast<sockaddr*>(&self), sizeof self), 1); }

    // Looks at the waiting datagram with `room` bytes for control data, `shift` bytes into a buffer of 0xab.
    struct Seen {
        std::vector<std::uint8_t> bytes;
        std::size_t controllen;
        int flags;
        friend bool operator==(const Seen&, const Seen&) = default;
    };
    static Seen prepare(msghdr& message, std::vector<std::uint8_t>& buffer, std::size_t room,
                        std::size_t shift) {
        buffer.assign(shift + room + 32, 0xab);
        message.msg_control = buffer.data() + shift;
        message.msg_controllen = room;
        return {};
    }
    Seen kernel(std::size_t room, std::size_t shift) {
        msghdr message{};
        std::vector<std::uint8_t> buffer;
        prepare(message, buffer, room, shift);
        char byte;
        iovec part{&byte, 1};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        EXPECT_EQ(recvmsg(fd, &message, MSG_PEEK), 1);
        return {buffer, message.msg_controllen, message.msg_flags};
    }

    void compare_for_all_sizes() {
        send();
        Seen all = kernel(1024, 0);
        ASSERT_EQ(all.flags & MSG_CTRUNC, 0);
        for (std::size_t shift : {0u, 1u, 4u})
            for (std::size_t room = 0; room <= all.controllen + 24; room++) {
                msghdr message{};
                std::vector<std::uint8_t> buffer;
                prepare(message, buffer, room, shift);
                CmsgWriter writer(message);
                for (std::size_t at = 0; at < all.controllen;) {
                    cmsghdr header;
                    memcpy(&header, all.bytes.data() + at, sizeof header);
                    writer.put(header.cmsg_level, header.cmsg_type, all.bytes.data() + at + sizeof header,
                               header.cmsg_len - sizeof header);
                    at += CMSG_ALIGN(header.cmsg_len);
                }
                Seen ours{buffer, message.msg_controllen, message.msg_flags};
                Seen theirs = kernel(room, shift);
                ASSERT_EQ(ours.controllen, theirs.controllen) << room;
                ASSERT_EQ(ours.flags, theirs.flags) << room;
                ASSERT_EQ(ours.bytes, theirs.bytes) << room;
            }
    }

    int fd = -1;
    sockaddr_in self{};
};

TEST_F(Cmsg, PacketInfoAsTheKernelWritesIt) {
    want(IPPROTO_IP, IP_PKTINFO);
    compare_for_all_sizes();
}

TEST_F(Cmsg, OneByteMessage) {
    want(IPPROTO_IP, IP_RECVTOS);
    compare_for_all_sizes();
}

TEST_F(Cmsg, SeveralMessages) {
    want(IPPROTO_IP, IP_PKTINFO);
    want(IPPROTO_IP, IP_RECVTTL);
    want(IPPROTO_IP, IP_RECVTOS);
    want(IPPROTO_IP, IP_RECVORIGDSTADDR);
    want(SOL_SOCKET, SO_TIMESTAMPNS);
    compare_for_all_sizes();
}

TEST_F(Cmsg, NoMessageLeavesAnEmptyBuffer) {
    send();
    msghdr message{};
    std::vector<std::uint8_t> buffer;
    prepare(message, buffer, 64, 0);
    CmsgWriter writer(message);
    EXPECT_EQ(message.msg_controllen, 0u);
    EXPECT_EQ(kernel(64, 0).controllen, 0u);
}

TEST_F(Cmsg, NoBufferButALength) {
    want(IPPROTO_IP, IP_PKTINFO);
    send();
    msghdr message{};
    char byte;
    iovec part{&byte, 1};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_controllen = 64;
    ASSERT_EQ(recvmsg(fd, &message, MSG_PEEK), 1);
    msghdr ours{};
    ours.msg_controllen = 64;
    CmsgWriter(ours).put(IPPROTO_IP, IP_PKTINFO, "123456789012", 12);
    EXPECT_EQ(ours.msg_flags, message.msg_flags);
    EXPECT_EQ(ours.msg_controllen, message.msg_controllen);
}

// Messages of a level that UDP ignores, so that the kernel's EINVAL can only mean that they are malformed.
TEST_F(Cmsg, ClassifiesAsTheKernelAnswers) {
    std::mt19937 random(3);
    int counts[3] = {};
    for (int round = 0; round < 20000; round++) {
        std::vector<std::uint8_t> control(random() % 97);
        for (std::size_t at = 0; at + sizeof(cmsghdr) <= control.size();) {
            cmsghdr header{};
            header.cmsg_level = 0x7e57;
            header.cmsg_len = random() % 3 ? sizeof header + random() % 24 : random() % 80;
            if (random() % 50 == 0) header.cmsg_len = ~std::size_t{0} - random() % 40;
            memcpy(control.data() + at, &header, sizeof header);
            std::size_t step = CMSG_ALIGN(header.cmsg_len);
            if (step < sizeof header || step > control.size()) break;
            at += step;
        }
        msghdr message{};
        iovec part{const_cast<char*>("x"), 1};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_name = &self;
        message.msg_namelen = sizeof self;
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        SendControl ours = classify(message);
        counts[static_cast<int>(ours)]++;
        int kernel = sendmsg(fd, &message, 0) == 1 ? 0 : errno;
        ASSERT_EQ(kernel, ours == SendControl::invalid ? EINVAL : 0) << "round " << round;
        ASSERT_EQ(ours == SendControl::none, control.size() < sizeof(cmsghdr));
        char byte;
        recv(fd, &byte, 1, MSG_DONTWAIT);
    }
    for (int count : counts) EXPECT_GT(count, 100);
}

TEST_F(Cmsg, UnreadableControlIsTheKernelsToRefuse) {
    msghdr message{};
    EXPECT_EQ(classify(message), SendControl::none);
    message.msg_controllen = 32;
    EXPECT_EQ(classify(message), SendControl::os_needed);
    iovec part{const_cast<char*>("x"), 1};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_name = &self;
    message.msg_namelen = sizeof self;
    EXPECT_EQ(sendmsg(fd, &message, 0), -1);
    EXPECT_EQ(errno, EFAULT);
}

TEST_F(Cmsg, KnownMessageNeedsTheKernel) {
    alignas(cmsghdr) std::uint8_t control[CMSG_SPACE(sizeof(in_pktinfo))] = {};
    msghdr message{};
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = IPPROTO_IP;
    header->cmsg_type = IP_PKTINFO;
    header->cmsg_len = CMSG_LEN(sizeof(in_pktinfo));
    EXPECT_EQ(classify(message), SendControl::os_needed);
}

}  // namespace
}  // namespace vma::sockets
