// SPDX-License-Identifier: BSD-2-Clause
// rtnetlink messages of any content: each decoder, on exactly the bytes that the message claims.
//
// Input: which decoder, then nlmsg_type, nlmsg_flags and what follows the header.
#include <linux/rtnetlink.h>

#include <vector>

#include "libvma/net/decode.h"
#include "tests/fuzz/input.h"

using namespace vma::net;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Input input(data, size);
    const auto which = input.take<std::uint8_t>();
    nlmsghdr header{};
    header.nlmsg_type = static_cast<std::uint16_t>(RTM_BASE + input.take<std::uint8_t>() % 100);
    header.nlmsg_flags = input.take<std::uint8_t>();
    header.nlmsg_len = static_cast<std::uint32_t>(sizeof header + input.rest().size());
    std::vector<std::uint8_t> bytes(sizeof header + input.rest().size());
    memcpy(bytes.data(), &header, sizeof header);
    if (!input.rest().empty()) memcpy(bytes.data() + sizeof header, input.rest().data(), input.rest().size());
    fuzz::Exact exact(bytes);
    auto* message = reinterpret_cast<nlmsghdr*>(exact.data());
    switch (which % 6) {
        case 0: {
            LinkEntry link;
            if (decode_link(message, link)) {
                FUZZ_CHECK(link.link.name.size() < size && link.link.kind.size() < size);
                FUZZ_CHECK(link.link.name.find('\0') == std::string::npos);
                FUZZ_CHECK(link.link.rx_queues >= 1);
            }
            break;
        }
        case 1: {
            AddressEntry address;
            (void)decode_address(message, address);
            break;
        }
        case 2: {
            NeighbourEntry neighbour;
            (void)decode_neighbour(message, neighbour);
            break;
        }
        case 3: {
            Route route;
            (void)decode_route(message, route);
            break;
        }
        case 4:
            (void)is_ipv4_route(message);
            break;
        default:
            (void)rule_looks_at_ports(message);
    }
    return 0;
}
