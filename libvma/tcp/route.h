// SPDX-License-Identifier: BSD-2-Clause
// The way a connection's segments take, and what ICMP said of it.
//
// Under the connection's lock.
#pragma once

#include <cstdint>

#include "libvma/tcp/path.h"

namespace vma::tcp {

struct Route {
    explicit Route(PathSource& source) noexcept : paths(source) {}

    PathSource& paths;
    Path path;
    ring::Ring* rule_ring = nullptr;  // where the peer's SYN came in; answers may go another way
    bool has_path = false;
    std::uint32_t learnt_mtu = 0;  // by ICMP, 0: none
    std::uint64_t learnt_until_ns = 0;
    alignas(8) std::uint8_t ip_headers[34]{};
    int soft_error = 0;       // why retransmissions may fail
    unsigned path_tries = 0;  // without success
    std::uint64_t path_since_ns = 0;
};

}  // namespace vma::tcp
