// SPDX-License-Identifier: BSD-2-Clause
// Calls of the extra API that set something for the process, and socket options.
#include <string.h>

#include "libvma/api/calls.h"
#include "libvma/config/rules.h"
#include "libvma/preload/extra_api.h"
#include "libvma/ring/lent_memory.h"
#include "libvma/runtime/log.h"
#include "libvma/sockets/extreme.h"
#include "libvma/sockets/observe/statistics.h"
#include "libvma/sockets/thread_offload.h"

namespace vma::api {

int add_conf_rule(const char* line) noexcept {
    constexpr std::size_t kLongest = 4096;
    preload::NotCancelled inside;
    if (line == nullptr) return answer(-EINVAL);
    const std::size_t length = strnlen(line, kLongest);
    if (length == kLongest) return answer(-EINVAL);
    const auto added = config::add_rule({line, length});
    if (added) return 0;
    log::print(log::Level::warn, "add_conf_rule: {}", added.error().what);
    return answer(-added.error().code);
}

int thread_offload(int offload, pthread_t thread) noexcept {
    preload::NotCancelled inside;
    return answer(sockets::thread_offload::set(thread, offload != 0));
}

int dump_fd_stats(int fd, int log_level) noexcept {
    preload::NotCancelled inside;
    if (fd < 0 || log_level < static_cast<int>(log::Level::none) ||
        log_level > static_cast<int>(log::Level::fine))
        return answer(-EINVAL);
    if (sockets::statistics::dump(fd, log_level) == 0 && fd != 0) return answer(-EINVAL);
    return 0;
}

namespace {

// The program's allocator runs here, in the program's call and with nothing held: it may do anything.
int take_memory(const vma_cmsg_ioctl_user_alloc_t& from) noexcept {
    constexpr unsigned kFlags = VMA_IOCTL_USER_ALLOC_TX | VMA_IOCTL_USER_ALLOC_RX;
    if ((from.flags & kFlags) == 0 || (from.flags & ~kFlags) != 0) return -EINVAL;
    if (from.memalloc == nullptr || from.memfree == nullptr) return -EINVAL;
    if (!ring::LentMemory::in_time()) return -EINVAL;
    const std::size_t bytes = ring::LentMemory::wanted();
    void* const memory = from.memalloc(bytes);
    if (memory == nullptr) return -ENOMEM;
    if (ring::LentMemory::hand_over({static_cast<std::uint8_t*>(memory), bytes})) return 0;
    from.memfree(memory);
    return -EINVAL;
}

}  // namespace

int register_memory(void* addr, size_t* length) noexcept {
    preload::NotCancelled inside;
    using sockets::UserMemory;
    if (!UserMemory::writable(length, sizeof *length)) return answer(-EFAULT);
    const std::size_t bytes = *length, wanted = ring::LentMemory::wanted();
    if (!ring::LentMemory::in_time()) return answer(-EBUSY);
    if (bytes < wanted) {
        *length = wanted;
        return answer(-ENOSPC);
    }
    if (!UserMemory::writable(addr, bytes)) return answer(-EFAULT);
    return answer(ring::LentMemory::hand_over({static_cast<std::uint8_t*>(addr), bytes}) ? 0 : -EBUSY);
}

// Clients of VMA 9.3 to 9.8.31 know another function by this slot and its bit. Its second argument is a
// pointer, which no length is.
int ioctl(void* cmsg, size_t cmsg_len) noexcept {
    constexpr std::size_t kLength = CMSG_LEN(sizeof(vma_cmsg_ioctl_user_alloc_t));
    if (cmsg == nullptr || cmsg_len < kLength || cmsg_len > CMSG_SPACE(sizeof(vma_cmsg_ioctl_user_alloc_t)))
        return answer(-EINVAL);
    if (!sockets::UserMemory::readable(cmsg, kLength)) return answer(-EFAULT);
    cmsghdr header;
    memcpy(&header, cmsg, sizeof header);
    if (header.cmsg_level != SOL_SOCKET || header.cmsg_type != CMSG_VMA_IOCTL_USER_ALLOC ||
        header.cmsg_len != kLength)
        return answer(-EINVAL);
    vma_cmsg_ioctl_user_alloc_t message;
    memcpy(&message, static_cast<const char*>(cmsg) + CMSG_LEN(0), sizeof message);
    return answer(take_memory(message));
}

}  // namespace vma::api

namespace vma::preload {
namespace {

template <class F>
int on_extra(int fd, F&& call) noexcept {
    NotCancelled inside;
    auto socket = ours(fd);
    sockets::ExtraSocket* const extra = socket ? socket->extra() : nullptr;
    return extra != nullptr ? call(*extra) : -EOPNOTSUPP;
}

// Only in a program that polls rings.
template <class F>
int on_member(int fd, F&& call) noexcept {
    return on_extra(fd, [&](sockets::ExtraSocket& socket) {
        sockets::ExtremeMember* const member = socket.extreme();
        return member != nullptr ? call(*member) : -EOPNOTSUPP;
    });
}

}  // namespace

// EINVAL for a wrong length or an unknown mask, as VMA has it. What a correct one asks for and the library
// does not do is EOPNOTSUPP.
int extra_option(int fd, int name, const void* value, socklen_t length) noexcept {
    switch (name) {
        case SO_VMA_USER_DATA: {
            std::uint64_t data;
            if (length != sizeof data) return -EINVAL;
            if (!sockets::UserMemory::readable(value, length)) return -EFAULT;
            memcpy(&data, value, sizeof data);
            return on_member(fd, [&](sockets::ExtremeMember& member) {
                member.set_user_data(data);
                return 0;
            });
        }
        case SO_VMA_FLOW_TAG:
            // The library gives its rules tags itself, where the device knows them.
            return length == sizeof(std::uint32_t) ? 0 : -EINVAL;
        case SO_VMA_RING_ALLOC_LOGIC:
            return api::choose_ring(fd, value, length);
        case SO_VMA_SHUTDOWN_RX:
            return on_extra(fd, [](sockets::ExtraSocket& socket) { return socket.shut_rules(); });
        case SO_VMA_RING_USER_MEMORY:
            return -EOPNOTSUPP;
        default:
            return -ENOPROTOOPT;
    }
}

int extra_option_value(int fd, int name, void* value, socklen_t* length) noexcept {
    if (name != SO_VMA_USER_DATA) return -ENOPROTOOPT;
    if (!sockets::UserMemory::writable(length, sizeof *length)) return -EFAULT;
    if (*length != sizeof(std::uint64_t)) return -EINVAL;
    if (!sockets::UserMemory::writable(value, *length)) return -EFAULT;
    return on_member(fd, [&](sockets::ExtremeMember& member) {
        const std::uint64_t data = member.user_data();
        memcpy(value, &data, sizeof data);
        return 0;
    });
}

}  // namespace vma::preload
