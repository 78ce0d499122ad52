// SPDX-License-Identifier: BSD-2-Clause
// Holds pthread_cancel() off: in calls that are no cancellation points in libc, and wherever the library's
// own system calls are cancellation points that nobody may unwind from (noexcept functions, a change that is
// half done).
#pragma once

#include <pthread.h>

namespace vma::runtime {

class NoCancel {
  public:
    NoCancel() noexcept { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old_); }
    ~NoCancel() { pthread_setcancelstate(old_, nullptr); }
    NoCancel(const NoCancel&) = delete;
    NoCancel& operator=(const NoCancel&) = delete;

  private:
    int old_ = 0;
};

}  // namespace vma::runtime
