// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/net/kernel_path.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>

#include "libvma/net/address.h"
#include "libvma/net/checksum.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/log.h"

namespace vma::net {
namespace {

constexpr std::size_t kIpAt = sizeof(EthernetHeader), kMaxIpHeader = 60, kMaxPieces = 64;
constexpr std::chrono::seconds kReportPeriod{10};  // between two lines of the log

}  // namespace

void KernelPath::open(std::string device, std::function<bool(in_addr_t)> is_local) noexcept {
    device_ = std::move(device);
    is_local_ = std::move(is_local);
    const long fd =
        os::raw_syscall(SYS_socket, AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_RAW);
    if (fd < 0) {
        log::once(log::Level::warn,
                  "{}: frames that are not for this process cannot be given to the kernel: raw socket: {}",
                  device_, strerrordesc_np(static_cast<int>(-fd)));
        return;
    }
    socket_ = InternalFd(static_cast<int>(fd));
}

bool KernelPath::give(FramePieces frame, const MacAddress& own) noexcept {
    if (!socket_ || frame.empty() || frame.size() > kMaxPieces) return false;
    const std::span<const std::uint8_t> first = frame[0];
    if (first.size() < kIpAt + sizeof(Ipv4Header)) return false;
    EthernetHeader eth;
    memcpy(&eth, first.data(), sizeof eth);
    if (eth.type != htons(kEthertypeIpv4) || memcmp(eth.dst, own.data(), own.size()) != 0 ||
        memcmp(eth.src, own.data(), own.size()) == 0)
        return false;
    Ipv4Header ip;
    memcpy(&ip, first.data() + kIpAt, sizeof ip);
    const std::size_t header = static_cast<std::size_t>(ip.version_ihl & 15) * 4,
                      total = ntohs(ip.total_length);
    if (ip.version_ihl >> 4 != 4 || header < sizeof ip || header > total || kIpAt + header > first.size())
        return false;
    if (checksum_fold(checksum_add(first.data() + kIpAt, header, 0)) != 0xffff) return false;
    if (!Address(ip.dst).is_unicast() || !Address(ip.src).is_unicast() || !is_local_ || !is_local_(ip.dst) ||
        is_local_(ip.src))
        return false;

    // The kernel would fill in an identification of 0, a different one for each fragment.
    if (ip.id == 0 && (ip.fragment & htons(kMoreFragments | kFragmentOffset)) != 0) ip.id = 0xffff;
    std::uint8_t head[kMaxIpHeader];
    memcpy(head, first.data() + kIpAt, header);
    memcpy(head, &ip, sizeof ip);
    iovec iov[kMaxPieces + 1]{{head, header}};
    std::size_t n = 1, left = total - header, skip = kIpAt + header;
    for (const std::span<const std::uint8_t> piece : frame) {
        if (left == 0) break;
        const std::size_t take = std::min(left, piece.size() - skip);
        if (take != 0) iov[n++] = {const_cast<std::uint8_t*>(piece.data()) + skip, take};
        left -= take;
        skip = 0;
    }
    if (left != 0) return false;
    sockaddr_in to = ipv4_name(ip.dst, 0);
    msghdr message{};
    message.msg_name = &to;
    message.msg_namelen = sizeof to;
    message.msg_iov = iov;
    message.msg_iovlen = n;
    const long sent = os::raw_syscall(SYS_sendmsg, socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return true;
    report(-sent);
    return false;
}

void KernelPath::report(long error) noexcept {
    const std::uint64_t count = failures_.fetch_add(1, std::memory_order_relaxed) + 1;
    const clock::Time now = clock::monotonic();
    clock::Time last = reported_at_.load(std::memory_order_relaxed);
    if (last != clock::Time{} && now - last < kReportPeriod) return;
    if (!reported_at_.compare_exchange_strong(last, now, std::memory_order_relaxed)) return;
    log::warn("{}: the kernel does not take a frame: {} ({} so far)", device_,
              strerrordesc_np(static_cast<int>(error)), count);
}

}  // namespace vma::net
