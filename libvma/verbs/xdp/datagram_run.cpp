// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/xdp/datagram_run.h"

#include <cstring>

#include "libvma/net/udp_headers.h"

namespace vma::verbs::xdp {
namespace {

constexpr std::uint32_t kMostPayload = 65535 - 20 - 8;

bool may_begin(std::span<const std::uint8_t> frame) noexcept {
    if (frame.size() <= net::kUdpHeaders) return false;
    const auto& ethernet = *reinterpret_cast<const net::EthernetHeader*>(frame.data());
    const auto& ip = *reinterpret_cast<const net::Ipv4Header*>(frame.data() + sizeof ethernet);
    return ethernet.type == htons(net::kEthertypeIpv4) && ip.version_ihl == 0x45 &&
           ip.protocol == IPPROTO_UDP && ip.fragment == htons(net::kDontFragment) &&
           ntohs(ip.total_length) == frame.size() - sizeof(net::EthernetHeader);
}

// All but lengths, identification and sums.
bool same_flow(const std::uint8_t* a, const std::uint8_t* b) noexcept {
    constexpr std::size_t kLength = 16, kFragment = 20, kSum = 24, kAddresses = 26, kUdpLength = 38;
    return std::memcmp(a, b, kLength) == 0 &&
           std::memcmp(a + kFragment, b + kFragment, kSum - kFragment) == 0 &&
           std::memcmp(a + kAddresses, b + kAddresses, kUdpLength - kAddresses) == 0;
}

}  // namespace

bool DatagramRun::add(std::span<const std::uint8_t> frame) noexcept {
    if (count_ == 0) {
        if (!may_begin(frame)) return false;
        first_ = frame.data();
        segment_ = static_cast<std::uint16_t>(frame.size() - net::kUdpHeaders);
        payload_ = segment_;
        count_ = 1;
        ended_ = false;
        return true;
    }
    if (ended_ || count_ == kMost || frame.size() <= net::kUdpHeaders || !same_flow(first_, frame.data()))
        return false;
    const std::size_t length = frame.size() - net::kUdpHeaders;
    if (length > segment_ || payload_ + length > kMostPayload) return false;
    ended_ = length < segment_;
    payload_ += static_cast<std::uint32_t>(length);
    count_++;
    return true;
}

void DatagramRun::headers(std::uint8_t* out) const noexcept {
    std::memcpy(out, first_, net::kUdpHeaders);
    net::finish_udp_frame(out, payload_, 0, true);
}

}  // namespace vma::verbs::xdp
