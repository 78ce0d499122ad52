// SPDX-License-Identifier: BSD-2-Clause
// Every option a TCP/IPv4 socket can have, and what it means to the library; see options.cpp.
#pragma once

#include <cstdint>

namespace vma::sockets {

enum class TcpEffect : std::uint8_t {
    none,                // the shadow's business alone
    connection,          // TcpSocket::apply() gives it to the connection
    kernel,              // only the kernel can do that, whatever the value
    kernel_if_set,       // ... if the value is not 0
    kernel_if_limited,   // ... if the value is not all ones
    kernel_if_positive,  // ... if the value is not negative
};

struct TcpOptionRow {
    int level, name;
    TcpEffect effect;
};

// Null: not in the table.
const TcpOptionRow* find_tcp_option(int level, int name) noexcept;

// Names that come with newer headers than Debian 12's, or hide behind other names there.
constexpr int kReceiveTimeoutNew = 66, kSendTimeoutNew = 67, kBindToIfindex = 62;

}  // namespace vma::sockets
