// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/frame_log.h"

#include <arpa/inet.h>

#include <cstring>

#include "libvma/runtime/log.h"

namespace vma::ring {

[[gnu::cold]] void log_frame(std::string_view device, const char* way, std::span<const std::uint8_t> head,
                             std::size_t length, net::Drop drop) noexcept {
    if (drop != net::Drop::none) {
        log::print(log::Level::finer, "{} {} {} bytes: {}", device, way, length, net::drop_name(drop));
        return;
    }
    net::Ipv4Header ip;
    struct {
        in_port_t src, dst;
    } ports;
    constexpr std::size_t kIpAt = sizeof(net::EthernetHeader);
    if (head.size() < kIpAt + sizeof ip) return;
    std::memcpy(&ip, head.data() + kIpAt, sizeof ip);
    const std::size_t ports_at = kIpAt + std::size_t{ip.version_ihl & 15u} * 4;
    if (head.size() < ports_at + sizeof ports) return;
    std::memcpy(&ports, head.data() + ports_at, sizeof ports);
    const in_addr src{ip.src}, dst{ip.dst};
    char from[INET_ADDRSTRLEN], to[INET_ADDRSTRLEN];
    log::print(log::Level::finer, "{} {} {} bytes: {} {}:{} to {}:{}", device, way, length,
               ip.protocol == IPPROTO_UDP ? "UDP" : "TCP", inet_ntop(AF_INET, &src, from, sizeof from),
               ntohs(ports.src), inet_ntop(AF_INET, &dst, to, sizeof to), ntohs(ports.dst));
}

}  // namespace vma::ring
