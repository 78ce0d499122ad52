// SPDX-License-Identifier: BSD-2-Clause
// The parts of TCP sockets that need neither network nor kernel.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstring>
#include <string>

#include "libvma/sockets/iov_cursor.h"
#include "libvma/sockets/names.h"
#include "libvma/sockets/tcp/inherited_options.h"
#include "libvma/sockets/tcp/option_table.h"

namespace {

using namespace vma::sockets;

std::string text_of(const IovCursor& at, std::size_t limit) {
    iovec pieces[IovCursor::kWindow];
    std::size_t bytes = 0;
    std::string text;
    const std::size_t count = at.window(pieces, limit, bytes);
    for (std::size_t i = 0; i < count; i++)
        text.append(static_cast<char*>(pieces[i].iov_base), pieces[i].iov_len);
    EXPECT_EQ(text.size(), bytes);
    return text;
}

TEST(IovCursor, GoesThroughPiecesOfEveryLength) {
    char a[] = "abc", b[] = "d", c[] = "efgh";
    const iovec iov[] = {{a, 3}, {nullptr, 0}, {b, 1}, {c, 4}, {nullptr, 0}};
    IovCursor at(iov, 5, 8);
    EXPECT_EQ(text_of(at, 100), "abcdefgh");
    EXPECT_EQ(text_of(at, 2), "ab");
    at.advance(2);
    EXPECT_EQ(text_of(at, 3), "cde");
    at.advance(1);
    EXPECT_EQ(text_of(at, 100), "defgh");
    at.advance(4);
    EXPECT_EQ(at.left(), 1u);
    EXPECT_EQ(text_of(at, 100), "h");
    at.advance(1);
    EXPECT_EQ(at.left(), 0u);
    EXPECT_EQ(text_of(at, 100), "");
}

TEST(IovCursor, StopsAtItsLength) {
    char a[] = "abcdef";
    const iovec iov[] = {{a, 6}};
    IovCursor at(iov, 1, 4);
    EXPECT_EQ(text_of(at, 100), "abcd");
    at.advance(4);
    EXPECT_EQ(text_of(at, 100), "");
}

TEST(IovCursor, LongVectorsComeInWindows) {
    char bytes[100];
    iovec iov[100];
    for (int i = 0; i < 100; i++) {
        bytes[i] = static_cast<char>(i);
        iov[i] = {bytes + i, 1};
    }
    IovCursor at(iov, 100, 100);
    std::string all;
    while (at.left() != 0) {
        const std::string part = text_of(at, at.left());
        EXPECT_LE(part.size(), IovCursor::kWindow);
        all += part;
        at.advance(part.size());
    }
    EXPECT_EQ(all, std::string(bytes, 100));
}

TEST(OptionLog, TheLastValueCounts) {
    OptionLog log;
    int one = 1, two = 2;
    log.note(SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    log.note(IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    log.note(SOL_SOCKET, SO_KEEPALIVE, &two, sizeof two);
    ASSERT_EQ(log.entries().size(), 2u);
    EXPECT_EQ(log.entries()[0].name, SO_KEEPALIVE);
    EXPECT_EQ(std::memcmp(log.entries()[0].value.data(), &two, sizeof two), 0);
}

TEST(TcpOptions, WhatIsNotInTheTableIsNotAccepted) {
    EXPECT_EQ(find_tcp_option(IPPROTO_TCP, 9999), nullptr);
    ASSERT_NE(find_tcp_option(IPPROTO_TCP, TCP_ULP), nullptr);
    EXPECT_EQ(find_tcp_option(IPPROTO_TCP, TCP_ULP)->effect, TcpEffect::kernel);
    EXPECT_EQ(find_tcp_option(IPPROTO_TCP, TCP_NODELAY)->effect, TcpEffect::connection);
    EXPECT_EQ(find_tcp_option(SOL_SOCKET, SO_DEBUG)->effect, TcpEffect::none);
}

TEST(CopyName, CutsAndTellsTheWholeLength) {
    sockaddr_in name;
    std::memset(&name, 0xee, sizeof name);
    socklen_t length = 4;
    EXPECT_EQ(copy_name({htonl(0xc6120101), htons(80)}, reinterpret_cast<sockaddr*>(&name), &length), 0);
    EXPECT_EQ(length, sizeof name);
    EXPECT_EQ(name.sin_family, AF_INET);
    EXPECT_EQ(name.sin_port, htons(80));
    EXPECT_EQ(name.sin_addr.s_addr, 0xeeeeeeeeu);
    length = static_cast<socklen_t>(-1);
    EXPECT_EQ(copy_name({}, reinterpret_cast<sockaddr*>(&name), &length), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(copy_name({}, reinterpret_cast<sockaddr*>(&name), nullptr), -1);
    EXPECT_EQ(errno, EFAULT);
}

}  // namespace
