// SPDX-License-Identifier: BSD-2-Clause
// Holds pthread_cancel() off, in two places. The first are calls that are no cancellation points in libc. The
// second are the library's own system calls that must not unwind: in noexcept functions, and in the middle of
// a change.
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
