// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/xdp/kernel_age.h"

#include <gtest/gtest.h>

namespace vma::verbs::xdp {
namespace {

TEST(KernelAge, GenericReceiveIsLockedSince615) {
    for (const char* yes : {"6.15", "6.15.0-rc7", "6.18.44-generic", "7.0", "10.1.2"})
        EXPECT_TRUE(generic_rx_is_locked(yes)) << yes;
    for (const char* no : {"6.14.9", "6.1.0-37-amd64", "5.19", "4.15", "6", "6.", "", "six", "6.x", "-7.0"})
        EXPECT_FALSE(generic_rx_is_locked(no)) << no;
}

}  // namespace
}  // namespace vma::verbs::xdp
