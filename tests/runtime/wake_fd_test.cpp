// SPDX-License-Identifier: BSD-2-Clause
// A WakeFd is readable between wake() and clear(), and neither call touches errno; nor does a scope with an
// ErrnoKept.
#include "libvma/runtime/wake_fd.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <utility>

#include "libvma/runtime/errno_kept.h"

namespace vma {
namespace {

bool readable(const WakeFd& fd) {
    pollfd p{fd.get(), POLLIN, 0};
    return poll(&p, 1, 0) == 1;
}

TEST(WakeFd, IsReadableUntilCleared) {
    WakeFd fd = WakeFd::make();
    ASSERT_TRUE(fd);
    EXPECT_TRUE(InternalFd::is_internal(fd.get()));
    EXPECT_FALSE(readable(fd));
    EXPECT_TRUE(fd.wake());
    EXPECT_TRUE(fd.wake());
    EXPECT_TRUE(readable(fd));
    const WakeFd moved = std::move(fd);
    EXPECT_TRUE(readable(moved));
    moved.clear();
    EXPECT_FALSE(readable(moved));
}

TEST(WakeFd, BeginsAwake) { EXPECT_TRUE(readable(WakeFd::make(true))); }

TEST(WakeFd, KeepsErrno) {
    const WakeFd none, some = WakeFd::make();
    errno = E2BIG;
    EXPECT_FALSE(none.wake());
    none.clear();
    some.clear();
    EXPECT_EQ(errno, E2BIG);
}

TEST(ErrnoKept, PutsItBack) {
    errno = E2BIG;
    {
        const ErrnoKept kept;
        errno = ENOENT;
    }
    EXPECT_EQ(errno, E2BIG);
}

}  // namespace
}  // namespace vma
