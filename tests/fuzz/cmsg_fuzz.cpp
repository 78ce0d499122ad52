// SPDX-License-Identifier: BSD-2-Clause
// Control messages: the check of what a program sends, on any bytes, against a plain reading of the kernel's
// rules; and the writer with any sequence of messages and any room, whose output must be walkable and hold
// what was put.
//
// Input: what to do, room, then control data or (type, length) pairs.
#include <sys/socket.h>

#include <algorithm>
#include <vector>

#include "libvma/sockets/cmsg.h"
#include "tests/fuzz/input.h"

using vma::sockets::CmsgWriter;
using vma::sockets::SendControl;

namespace {

// CMSG_FIRSTHDR, CMSG_OK and cmsg_nxthdr of include/linux/socket.h with numbers instead of pointers.
SendControl by_the_rules(std::span<const std::uint8_t> control) {
    if (control.size() < sizeof(cmsghdr)) return SendControl::none;
    unsigned __int128 at = 0;
    while (at + sizeof(cmsghdr) <= control.size()) {
        std::size_t length;
        memcpy(&length, control.data() + static_cast<std::size_t>(at), sizeof length);
        if (length < sizeof(cmsghdr) || length > control.size() - at) return SendControl::invalid;
        at += (static_cast<unsigned __int128>(length) + 7) / 8 * 8;
    }
    return SendControl::os_needed;
}

void check_send(std::span<const std::uint8_t> bytes) {
    fuzz::Exact control(bytes);
    msghdr message{};
    message.msg_control = bytes.empty() ? nullptr : control.data();
    message.msg_controllen = bytes.size();
    FUZZ_CHECK(vma::sockets::classify(message) == by_the_rules(bytes));
}

void check_receive(fuzz::Input& input, std::size_t room) {
    fuzz::Exact control(std::vector<std::uint8_t>(room, 0xab));
    msghdr message{};
    message.msg_control = control.data();
    message.msg_controllen = room;
    CmsgWriter writer(message);
    std::vector<std::uint8_t> data(300);
    std::size_t complete = 0;
    while (!input.rest().empty()) {
        const auto type = input.take<std::uint8_t>();
        const std::size_t length = input.take<std::uint8_t>();
        std::fill(data.begin(), data.end(), type);
        const bool cut_before = message.msg_flags & MSG_CTRUNC;
        writer.put(type, type, data.data(), length);
        FUZZ_CHECK(message.msg_controllen <= room);
        if (!cut_before && !(message.msg_flags & MSG_CTRUNC)) complete++;
    }
    std::size_t seen = 0;
    for (std::size_t at = 0; at < message.msg_controllen; seen++) {
        cmsghdr header;
        FUZZ_CHECK(message.msg_controllen - at >= sizeof header);
        memcpy(&header, control.data() + at, sizeof header);
        FUZZ_CHECK(header.cmsg_len >= sizeof header && header.cmsg_len <= message.msg_controllen - at);
        FUZZ_CHECK(header.cmsg_level == header.cmsg_type);
        for (std::size_t i = sizeof header; i < header.cmsg_len; i++)
            FUZZ_CHECK(control.data()[at + i] == static_cast<std::uint8_t>(header.cmsg_type));
        at += CMSG_ALIGN(header.cmsg_len);
    }
    FUZZ_CHECK(seen == complete || (seen == complete + 1 && (message.msg_flags & MSG_CTRUNC)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Input input(data, size);
    const auto what = input.take<std::uint8_t>();
    const std::size_t room = input.take<std::uint8_t>();
    if (what % 2)
        check_receive(input, room);
    else
        check_send(input.rest());
    return 0;
}
