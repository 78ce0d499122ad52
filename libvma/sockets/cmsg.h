// SPDX-License-Identifier: BSD-2-Clause
// Control messages (cmsg(3)) as the kernel writes and checks them, for sockets whose messages the kernel does
// not see.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

namespace vma::sockets {

// Writes control messages into the buffer of a receive call. Like the kernel's put_cmsg(): a message that
// does not fit is cut, with its length saying so, and MSG_CTRUNC is added to msg_flags; without room for a
// header there is only the flag.
class CmsgWriter {
  public:
    // `message` is the caller's: msg_control and msg_controllen say where there is room. msg_controllen
    // becomes 0 and grows with each put(), so it is right at any time. Set msg_flags before.
    explicit CmsgWriter(msghdr& message) noexcept
        : message_(message),
          next_(static_cast<std::uint8_t*>(message.msg_control)),
          left_(message.msg_control == nullptr ? 0 : message.msg_controllen) {
        message.msg_controllen = 0;
    }
    CmsgWriter(const CmsgWriter&) = delete;
    CmsgWriter& operator=(const CmsgWriter&) = delete;

    void put(int level, int type, const void* data, std::size_t length) noexcept;

  private:
    msghdr& message_;
    std::uint8_t* next_;
    std::size_t left_;
};

// What the control data of a send call asks for.
enum class SendControl : std::uint8_t {
    none,       // no message at all (also when there is less than a header)
    os_needed,  // well-formed messages: only the kernel can do what they say
    invalid,    // the kernel answers EINVAL: a message's length is less than its header or beyond the buffer
};
SendControl classify(const msghdr& message) noexcept;

}  // namespace vma::sockets
