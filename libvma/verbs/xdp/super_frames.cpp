// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/xdp/super_frames.h"

#include <errno.h>
#include <fmt/format.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <netinet/in.h>
#include <sys/uio.h>

#include <array>
#include <cstring>

#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/verbs/xdp/ethtool.h"
#include "libvma/verbs/xdp/xsk.h"

namespace vma::verbs::xdp {
namespace {

constexpr int kSendBuffer = 16 << 20;  // bytes that the netdev may hold; a veth holds none
constexpr std::uint16_t kTransportAt = 14 + 20, kTcpSumAt = 16, kUdpSumAt = 6;

// struct virtio_net_hdr (virtio 1.2, section 5.1.6), in the host's byte order. linux/virtio_net.h is no C++.
struct VnetHeader {
    std::uint8_t flags, gso_type;
    std::uint16_t header_length, gso_size, sum_start, sum_offset;
};
static_assert(sizeof(VnetHeader) == 10);
constexpr std::uint8_t kNeedsSum = 1, kGsoTcp4 = 1, kGsoUdp = 5;

// `direct`: past the queueing discipline.
Result<InternalFd> packet_socket(bool direct) {
    // Protocol 0: the socket receives nothing.
    InternalFd fd(os::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0));
    if (!fd) return fail(errno, fmt::format("socket(AF_PACKET): {}", strerror(errno)));
    const int on = 1;
    if (os::setsockopt(fd.get(), SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on) != 0)
        return fail(errno, fmt::format("PACKET_VNET_HDR: {}", strerror(errno)));
    if (direct && os::setsockopt(fd.get(), SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on) != 0)
        return fail(errno, fmt::format("PACKET_QDISC_BYPASS: {}", strerror(errno)));
    set_send_buffer(fd.get(), kSendBuffer);
    return fd;
}

}  // namespace

Result<void> SuperFrames::open(int ifindex, const std::string& name, bool datagrams) {
    auto direct = packet_socket(true);
    if (!direct) return std::unexpected(direct.error());
    if (!segments_tcp(name)) return fail(EOPNOTSUPP, fmt::format("{} does not segment TCP", name));
    auto queued = packet_socket(false);
    if (!queued) return std::unexpected(queued.error());
    direct_ = std::move(*direct);
    queued_ = std::move(*queued);
    ifindex_ = ifindex;
    datagrams_ = datagrams;
    return {};
}

int SuperFrames::send(const ibv_send_wr& wr) const noexcept {
    if (wr.num_sge <= 0 || wr.num_sge > static_cast<int>(kMaxPieces) || wr.tso.hdr_sz < kTransportAt + 20)
        return EINVAL;
    VnetHeader about{.flags = kNeedsSum,
                     .gso_type = kGsoTcp4,
                     .header_length = wr.tso.hdr_sz,
                     .gso_size = wr.tso.mss,
                     .sum_start = kTransportAt,
                     .sum_offset = kTcpSumAt};
    iovec iov[2 + kMaxPieces];
    iov[0] = {&about, sizeof about};
    iov[1] = {wr.tso.hdr, wr.tso.hdr_sz};
    for (int i = 0; i < wr.num_sge; i++)
        iov[2 + i] = {reinterpret_cast<void*>(wr.sg_list[i].addr), wr.sg_list[i].length};
    const std::span pieces(iov, static_cast<std::size_t>(2 + wr.num_sge));
    long sent = send_message(direct_.get(), pieces);
    if (__builtin_expect(sent == -ENOBUFS, 0)) sent = send_message(queued_.get(), pieces);
    if (sent >= 0) return 0;
    return sent == -EAGAIN || sent == -ENOBUFS ? ENOMEM : static_cast<int>(-sent);
}

bool SuperFrames::send(const DatagramRun& run, std::span<const iovec> frames) noexcept {
    if (pause_ != 0) {
        pause_--;
        return false;
    }
    alignas(8) std::array<std::uint8_t, net::kUdpHeaders> headers;
    run.headers(headers.data());
    VnetHeader about{.flags = kNeedsSum,
                     .gso_type = kGsoUdp,
                     .header_length = net::kUdpHeaders,
                     .gso_size = run.segment(),
                     .sum_start = kTransportAt,
                     .sum_offset = kUdpSumAt};
    iovec iov[2 + DatagramRun::kMost];
    iov[0] = {&about, sizeof about};
    iov[1] = {headers.data(), headers.size()};
    for (std::size_t i = 0; i < frames.size(); i++)
        iov[2 + i] = {static_cast<std::uint8_t*>(frames[i].iov_base) + net::kUdpHeaders,
                      frames[i].iov_len - net::kUdpHeaders};
    if (send_message(direct_.get(), {iov, 2 + frames.size()}) >= 0) return true;
    pause_ = kPause;
    return false;
}

// Pieces: the vnet header, the frame's headers, its payload.
// sendmsg(2)'s result, or a negative errno value.
long SuperFrames::send_message(int fd, std::span<iovec> pieces) const noexcept {
    sockaddr_ll to{};
    to.sll_family = AF_PACKET;
    to.sll_protocol = htons(ETH_P_IP);
    to.sll_ifindex = ifindex_;
    msghdr message{};
    message.msg_name = &to;
    message.msg_namelen = sizeof to;
    message.msg_iov = pieces.data();
    message.msg_iovlen = pieces.size();
    return os::raw_syscall(SYS_sendmsg, fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace vma::verbs::xdp
