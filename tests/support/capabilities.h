// SPDX-License-Identifier: BSD-2-Clause
// This thread without some of its capabilities.
#pragma once

#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <initializer_list>
#include <stdexcept>

namespace testing_support {

// Takes them away from this thread until it goes.
class WithoutCapabilities {
  public:
    explicit WithoutCapabilities(std::initializer_list<int> which) {
        if (syscall(SYS_capget, &head_, before_) != 0) throw std::runtime_error("capget");
        __user_cap_data_struct now[2] = {before_[0], before_[1]};
        for (const int capability : which) now[capability / 32].effective &= ~(1u << capability % 32);
        if (syscall(SYS_capset, &head_, now) != 0) throw std::runtime_error("capset");
    }
    ~WithoutCapabilities() { syscall(SYS_capset, &head_, before_); }
    WithoutCapabilities(const WithoutCapabilities&) = delete;
    WithoutCapabilities& operator=(const WithoutCapabilities&) = delete;

  private:
    __user_cap_header_struct head_{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct before_[2]{};
};

}  // namespace testing_support
