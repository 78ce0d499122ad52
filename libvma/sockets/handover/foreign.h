// SPDX-License-Identifier: BSD-2-Clause
#pragma once

#include <cstddef>

#include "libvma/sockets/fd_object.h"

namespace vma::sockets::sharing {

// A socket or an epoll set whose state is in the memory of an ancestor. Never freed: there are as many as the
// fork found.
class Foreign final : public FdObject {
  public:
    Foreign(Kind kind, const FdObject* object, int fd, std::size_t ancestor) noexcept
        : FdObject(kind), object_(object), fd_(fd), ancestor_(ancestor) {}
    const FdObject* object() const noexcept { return object_; }
    int owners_fd() const noexcept { return fd_; }
    std::size_t ancestor() const noexcept { return ancestor_; }

  private:
    void last_fd_closed() noexcept override {}
    void recycle() noexcept override {}
    const FdObject* object_;
    int fd_;
    std::size_t ancestor_;
};

}  // namespace vma::sockets::sharing
