// SPDX-License-Identifier: BSD-2-Clause
// Super-frames of datagrams (DeviceAttr::datagrams_type) become these datagrams again.
#include <algorithm>
#include <cstring>

#include "libvma/ring/receiver.h"

namespace vma::ring {
namespace {

constexpr unsigned kMaxDatagrams = 128;  // of a super-frame: UDP_MAX_SEGMENTS

}  // namespace

// How long the datagrams of a super-frame are (DeviceAttr::datagrams_type); 0: it is none. The frame is like
// any other afterwards.
std::uint32_t Receiver::take_mark(RxBuffer& first) const noexcept {
    auto& ethernet = *reinterpret_cast<net::EthernetHeader*>(first.frame);
    if (first.length < net::kUdpHeaders || device_->attr().datagrams_type == 0 ||
        ethernet.type != htons(device_->attr().datagrams_type))
        return 0;
    ethernet.type = htons(net::kEthertypeIpv4);
    auto& udp = *reinterpret_cast<net::UdpHeader*>(first.frame + net::kUdpHeaders - sizeof(net::UdpHeader));
    const std::uint32_t length = udp.checksum;
    udp.checksum = 0;  // none (RFC 768): who marked the frame found the sum good
    return length;
}

// Hands out copies of a super-frame's datagrams. The super-frame's buffers cannot be shared out: a datagram
// may begin in one and end in the next, and the program may give each datagram back at any time.
void Receiver::split(RxBuffer* first, const net::ParsedFrame& f, const ibv_wc& wc,
                     std::uint32_t datagram_length) noexcept {
    counters_.rx_frames--;  // each datagram counts
    unsigned left = kMaxDatagrams;
    for (std::uint32_t from = 0; from < f.payload_length; from += datagram_length) {
        const std::uint32_t length = std::min(datagram_length, f.payload_length - from);
        counters_.rx_frames++;
        RxBuffer* copy =
            left == 0 || f.payload_offset != net::kUdpHeaders ? nullptr : cut(*first, from, length);
        if (copy == nullptr) {
            counters_.rx_no_buffer++;
            continue;
        }
        left--;
        net::ParsedFrame one = f;
        one.ip = reinterpret_cast<const net::Ipv4Header*>(copy->frame + sizeof(net::EthernetHeader));
        one.payload_length = length;
        to_sink(copy, one, wc);
    }
    queue_.recycle(first);
}

// A frame with the headers of `whole` and `length` bytes of its payload, in free buffers. Null: there are too
// few.
RxBuffer* Receiver::cut(const RxBuffer& whole, std::size_t from, std::uint32_t length) noexcept {
    RxBuffer* const first = queue_.take();
    if (first == nullptr) return nullptr;
    std::memcpy(first->frame, whole.frame, net::kUdpHeaders);
    net::finish_udp_headers(first->frame, static_cast<std::uint16_t>(length));
    first->length = net::kUdpHeaders;
    first->more = nullptr;
    const RxBuffer* source = &whole;
    for (from += net::kUdpHeaders; from >= source->length; source = source->more) from -= source->length;
    for (RxBuffer* to = first; length != 0;) {
        if (to->length == room_) {
            RxBuffer* next = queue_.take();
            if (next == nullptr) {
                queue_.recycle(first);
                return nullptr;
            }
            next->length = 0;
            next->more = nullptr;
            to->more = next;
            to = next;
        }
        if (from == source->length) {
            source = source->more;
            from = 0;
        }
        const auto n = static_cast<std::uint32_t>(
            std::min<std::size_t>({length, source->length - from, room_ - to->length}));
        std::memcpy(to->frame + to->length, source->frame + from, n);
        to->length += n;
        from += n;
        length -= n;
    }
    return first;
}

}  // namespace vma::ring
