// SPDX-License-Identifier: BSD-2-Clause
// SO_LINGER in the kernel's order: the number is free first, then close() waits.
#pragma once

namespace vma::sockets {

class TcpSocket;

// While one lives, a TCP socket whose last number goes in this thread does not wait. The destructor does, for
// each of them in turn: it stands behind the kernel's close() of the numbers, inside the caller's region. Not
// inside each other.
class LateLinger {
  public:
    LateLinger() noexcept;
    ~LateLinger();
    LateLinger(const LateLinger&) = delete;
    LateLinger& operator=(const LateLinger&) = delete;

  private:
    friend class TcpSocket;
    static LateLinger* mine() noexcept;  // null: none lives in this thread
    TcpSocket* first_ = nullptr;         // each with a reference
    LateLinger* const outer_;
};

}  // namespace vma::sockets
