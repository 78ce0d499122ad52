// SPDX-License-Identifier: BSD-2-Clause
// errno of the calling thread stays as the program left it, whatever the calls of a scope do to it.
#pragma once

#include <errno.h>

namespace vma {

class [[nodiscard]] ErrnoKept {
  public:
    ErrnoKept() noexcept : saved_(errno) {}
    ~ErrnoKept() { errno = saved_; }
    ErrnoKept(const ErrnoKept&) = delete;
    ErrnoKept& operator=(const ErrnoKept&) = delete;

  private:
    const int saved_;
};

}  // namespace vma
