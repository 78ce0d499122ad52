// SPDX-License-Identifier: BSD-2-Clause
// The buffers belong to the program: they may be unaligned, and their lengths may say anything. So headers
// are copied in and out, and libc's CMSG_ macros, which read through pointers and differ from the kernel at
// the end of the buffer (CMSG_NXTHDR stops where the next message does not fit, the kernel calls it invalid),
// are used for sizes only.
#include "libvma/sockets/cmsg.h"

#include <string.h>

namespace vma::sockets {
namespace {

constexpr std::size_t kHeader = sizeof(cmsghdr);
static_assert(kHeader == CMSG_LEN(0));

}  // namespace

void CmsgWriter::put(int level, int type, const void* data, std::size_t length) noexcept {
    if (left_ < kHeader) {
        message_.msg_flags |= MSG_CTRUNC;
        return;
    }
    std::size_t used = kHeader + length;
    if (used > left_) {
        message_.msg_flags |= MSG_CTRUNC;
        used = left_;
    }
    cmsghdr header{};
    header.cmsg_len = used;
    header.cmsg_level = level;
    header.cmsg_type = type;
    memcpy(next_, &header, kHeader);
    if (used > kHeader) memcpy(next_ + kHeader, data, used - kHeader);
    // The padding is skipped, not cleared, and a last message has only as much of it as there is room.
    std::size_t space = CMSG_SPACE(length) < left_ ? CMSG_SPACE(length) : left_;
    next_ += space;
    left_ -= space;
    message_.msg_controllen += space;
}

SendControl classify(const msghdr& message) noexcept {
    const std::size_t size = message.msg_controllen;
    if (size == 0) return SendControl::none;
    // Not readable: EFAULT, which the kernel says before it looks for messages.
    if (message.msg_control == nullptr) return SendControl::os_needed;
    if (size < kHeader) return SendControl::none;
    const auto* start = static_cast<const std::uint8_t*>(message.msg_control);
    std::size_t at = 0;
    for (;;) {
        cmsghdr header;
        memcpy(&header, start + at, kHeader);
        const std::size_t length = header.cmsg_len;
        if (length < kHeader || length > size - at) return SendControl::invalid;
        // Rounding up cannot overflow: length is at most the size of something that is in memory.
        const std::size_t step = CMSG_ALIGN(length);
        if (step > size - at || size - at - step < kHeader) return SendControl::os_needed;
        at += step;
    }
}

}  // namespace vma::sockets
