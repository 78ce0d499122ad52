// SPDX-License-Identifier: BSD-2-Clause
// Owned file descriptors.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace tools {

// Closes its descriptor when it is destroyed. A negative number is no descriptor.
class Fd {
  public:
    Fd() = default;
    explicit Fd(int fd) noexcept : fd_(fd) {}
    Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Fd& operator=(Fd&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Fd() { reset(); }

    int get() const noexcept { return fd_; }
    explicit operator bool() const noexcept { return fd_ >= 0; }
    // Closes the descriptor now.
    void reset() noexcept {
        if (fd_ >= 0) close(fd_);
        fd_ = -1;
    }

  private:
    int fd_ = -1;
};

struct Pipe {
    Fd read, write;
};
// A pipe that exec() closes. Empty on failure; errno says why.
inline Pipe make_pipe() noexcept {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return {};
    return {Fd(ends[0]), Fd(ends[1])};
}

}  // namespace tools
