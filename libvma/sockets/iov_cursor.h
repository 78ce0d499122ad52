// SPDX-License-Identifier: BSD-2-Clause
// A place in a program's iovec array, for calls that fill or empty it in several steps. The array itself is
// the program's and is not changed.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>

namespace vma::sockets {

class IovCursor {
  public:
    // `length`: bytes that may be used, at most what the array holds.
    IovCursor(const iovec* iov, std::size_t count, std::size_t length) noexcept
        : iov_(iov), count_(count), left_(length) {}

    std::size_t left() const noexcept { return left_; }
    void advance(std::size_t n) noexcept {
        left_ -= n;
        while (n != 0) {
            const std::size_t here = iov_->iov_len - offset_;
            if (n < here) {
                offset_ += n;
                return;
            }
            n -= here;
            next();
        }
    }

    static constexpr std::size_t kWindow = 16;
    // The next pieces, at most `limit` bytes and kWindow of them. Returns how many; `bytes` is their sum.
    std::size_t window(iovec (&out)[kWindow], std::size_t limit, std::size_t& bytes) const noexcept {
        std::size_t n = 0, offset = offset_;
        limit = std::min(limit, left_);
        bytes = 0;
        for (std::size_t i = 0; i < count_ && n < kWindow && bytes < limit; i++, offset = 0) {
            const std::size_t piece = std::min(iov_[i].iov_len - offset, limit - bytes);
            if (piece == 0) continue;
            out[n++] = {static_cast<char*>(iov_[i].iov_base) + offset, piece};
            bytes += piece;
        }
        return n;
    }

    // Moves on by what `call(message, bytes)` returns, a sendmsg() or recvmsg() of the next `bytes` bytes.
    // Returns the same.
    template <class Call>
    ssize_t move(Call&& call) {
        iovec pieces[kWindow];
        std::size_t bytes;
        msghdr message{};
        message.msg_iov = pieces;
        message.msg_iovlen = window(pieces, left_, bytes);
        const ssize_t n = call(message, bytes);
        if (n > 0) advance(static_cast<std::size_t>(n));
        return n;
    }

  private:
    void next() noexcept {
        iov_++;
        count_--;
        offset_ = 0;
    }
    const iovec* iov_;
    std::size_t count_;
    std::size_t left_;
    std::size_t offset_ = 0;  // in iov_[0]
};

}  // namespace vma::sockets
