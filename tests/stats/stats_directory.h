// SPDX-License-Identifier: BSD-2-Clause
// A directory for statistics files, for the length of a test.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>

namespace vma::test {

class StatsDirectory : public testing::Test {
  protected:
    void SetUp() override {
        char name[] = "/tmp/vma-stats-test-XXXXXX";
        ASSERT_NE(mkdtemp(name), nullptr);
        directory_ = name;
    }
    void TearDown() override {
        if (!directory_.empty()) (void)!system(("rm -rf " + directory_).c_str());
    }

    std::string directory_;
};

}  // namespace vma::test
