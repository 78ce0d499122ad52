// SPDX-License-Identifier: BSD-2-Clause
#include "kernel_report.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <sstream>

namespace testing_support {

KernelReport::KernelReport() : file_(memfd_create("report", MFD_CLOEXEC)) {}

long KernelReport::packets() const {
    std::string text(4096, '\0');
    const ssize_t length = pread(file_.get(), text.data(), text.size(), 0);
    std::istringstream lines(text.substr(0, length > 0 ? static_cast<std::size_t>(length) : 0));
    long begin = -1, end = -1, value = 0;
    std::string when;
    while (lines >> when >> value) {
        if (when == "begin") begin = value;
        if (when == "end") end = value;
    }
    return begin < 0 || end < begin ? -1 : end - begin;
}

void expect_offloaded(long library, long limit) {
    EXPECT_GE(library, 0) << "the program did not report what the kernel carried";
    EXPECT_LE(library, limit) << "packets went through the kernel that the library has to carry";
}

}  // namespace testing_support
