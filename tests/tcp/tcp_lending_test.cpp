// SPDX-License-Identifier: BSD-2-Clause
// Data that a connection lends to its program, and that comes back.
#include <gtest/gtest.h>

#include "libvma/tcp/receive/lent_data.h"
#include "tcp_wiretap.h"

namespace vma::tcp::test {
namespace {

TEST(TcpLending, WhatIsPutBackIsSeenAgain) {
    World w;
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    ASSERT_EQ(send(c, "abc"), 3);
    w.settle();
    ASSERT_EQ(s->readable(), 3u);
    {
        LentData lent;
        ASSERT_EQ(s->lend(lent, 4, false), 3);
        EXPECT_EQ(s->readable(), 0u);
        s->judged(&lent);
        EXPECT_FALSE(lent);
    }
    EXPECT_EQ(s->readable(), 3u);
    ASSERT_EQ(send(c, "de"), 2);
    w.settle();
    EXPECT_EQ(receive(s), "abcde");
}

}  // namespace
}  // namespace vma::tcp::test
