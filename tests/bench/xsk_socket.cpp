// SPDX-License-Identifier: BSD-2-Clause
#include "xsk_socket.h"

#include <arpa/inet.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <system_error>
#include <thread>

#ifndef XDP_USE_SG  // newer than Debian's kernel headers
#define XDP_USE_SG (1 << 4)
#endif

namespace bench {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

long bpf(bpf_cmd command, bpf_attr& attr) { return syscall(SYS_bpf, command, &attr, sizeof attr); }

constexpr bpf_insn insn(int code, int dst, int src, int offset, int imm) {
    return {static_cast<__u8>(code), static_cast<__u8>(dst & 0xf), static_cast<__u8>(src & 0xf),
            static_cast<__s16>(offset), imm};
}

// UDP over IPv4 without options to our port goes to the socket in the map, all else to the kernel.
Fd load_program(int map) {
    constexpr int kLoad8 = BPF_LDX | BPF_MEM | BPF_B, kLoad16 = BPF_LDX | BPF_MEM | BPF_H,
                  kLoad32 = BPF_LDX | BPF_MEM | BPF_W, kMove = BPF_ALU64 | BPF_MOV | BPF_X,
                  kMoveImm = BPF_ALU64 | BPF_MOV | BPF_K, kAddImm = BPF_ALU64 | BPF_ADD | BPF_K,
                  kJumpAbove = BPF_JMP | BPF_JGT | BPF_X, kJumpUnless = BPF_JMP | BPF_JNE | BPF_K;
    const std::array program{
        insn(kMove, 6, 1, 0, 0),  // r6 = context
        insn(kLoad32, 2, 6, offsetof(xdp_md, data), 0),
        insn(kLoad32, 3, 6, offsetof(xdp_md, data_end), 0),
        insn(kMove, 4, 2, 0, 0),
        insn(kAddImm, 4, 0, 0, sizeof(ether_header) + sizeof(iphdr) + sizeof(udphdr)),
        insn(kJumpAbove, 4, 3, 12, 0),  // too short
        insn(kLoad16, 4, 2, offsetof(ether_header, ether_type), 0),
        insn(kJumpUnless, 4, 0, 10, htons(ETHERTYPE_IP)),
        insn(kLoad8, 4, 2, ETH_HLEN + offsetof(iphdr, protocol), 0),
        insn(kJumpUnless, 4, 0, 8, IPPROTO_UDP),
        insn(kLoad16, 4, 2, ETH_HLEN + sizeof(iphdr) + offsetof(udphdr, uh_dport), 0),
        insn(kJumpUnless, 4, 0, 6, htons(kPort)),
        insn(BPF_LD | BPF_DW | BPF_IMM, 1, BPF_PSEUDO_MAP_FD, 0, map),
        insn(0, 0, 0, 0, 0),  // second half of the load
        insn(kLoad32, 2, 6, offsetof(xdp_md, rx_queue_index), 0),
        insn(kMoveImm, 3, 0, 0, XDP_PASS),  // if the queue has no socket
        insn(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_redirect_map),
        insn(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
        insn(kMoveImm, 0, 0, 0, XDP_PASS),
        insn(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
    };
    bpf_attr attr{};
    attr.prog_type = BPF_PROG_TYPE_XDP;
    attr.expected_attach_type = BPF_XDP;
    attr.insns = reinterpret_cast<std::uintptr_t>(program.data());
    attr.insn_cnt = program.size();
    attr.license = reinterpret_cast<std::uintptr_t>("Dual BSD/GPL");
    attr.prog_flags = BPF_F_XDP_HAS_FRAGS;
    const long fd = bpf(BPF_PROG_LOAD, attr);
    if (fd < 0) fail("loading the XDP program (needs root or CAP_BPF and CAP_NET_ADMIN)");
    return Fd(static_cast<int>(fd));
}

Fd make_xsk_map() {
    bpf_attr attr{};
    attr.map_type = BPF_MAP_TYPE_XSKMAP;
    attr.key_size = 4;
    attr.value_size = 4;
    attr.max_entries = 64;
    const long fd = bpf(BPF_MAP_CREATE, attr);
    if (fd < 0) fail("creating an XSK map (needs CONFIG_XDP_SOCKETS)");
    return Fd(static_cast<int>(fd));
}

// Runs `attempt` until it is not refused with EBUSY. The kernel takes a moment to let go of a queue whose
// previous holder has just ended, usually some milliseconds.
template <class Attempt>
long retry_busy(Attempt attempt) {
    const auto deadline = Clock::now() + 3s;
    for (;;) {
        const long result = attempt();
        if (result >= 0 || errno != EBUSY || Clock::now() > deadline) return result;
        std::this_thread::sleep_for(2ms);
    }
}

// The program leaves the device when the returned link is closed, thus also when the process dies.
Fd attach(int program, int ifindex, bool native) {
    const long fd = retry_busy([&] {
        bpf_attr attr{};
        attr.link_create.prog_fd = static_cast<__u32>(program);
        attr.link_create.target_ifindex = static_cast<__u32>(ifindex);
        attr.link_create.attach_type = BPF_XDP;
        attr.link_create.flags = native ? XDP_FLAGS_DRV_MODE : XDP_FLAGS_SKB_MODE;
        return bpf(BPF_LINK_CREATE, attr);
    });
    if (fd < 0) fail("attaching the XDP program (EBUSY: another program holds the device)");
    return Fd(static_cast<int>(fd));
}

}  // namespace

Xsk::Xsk(const std::string& device, bool native)
    : umem_(std::size_t{kReceiveChunks + kSendChunks} * kChunk, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,
            -1, 0),
      socket_(socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0)) {
    if (socket_.get() < 0) fail("socket(AF_XDP) (needs root and CONFIG_XDP_SOCKETS)");
    const int ifindex = static_cast<int>(if_nametoindex(device.c_str()));
    if (ifindex == 0) fail("no device " + device);

    xdp_umem_reg umem{};
    umem.addr = reinterpret_cast<std::uintptr_t>(umem_.data());
    umem.len = std::uint64_t{kReceiveChunks + kSendChunks} * kChunk;
    umem.chunk_size = kChunk;
    set(XDP_UMEM_REG, umem, "XDP_UMEM_REG");
    set(XDP_UMEM_FILL_RING, kRingSize, "XDP_UMEM_FILL_RING");
    set(XDP_UMEM_COMPLETION_RING, kRingSize, "XDP_UMEM_COMPLETION_RING");
    set(XDP_RX_RING, kRingSize, "XDP_RX_RING");
    set(XDP_TX_RING, kRingSize, "XDP_TX_RING");
    xdp_mmap_offsets offsets{};
    socklen_t length = sizeof offsets;
    if (getsockopt(socket_.get(), SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &length) < 0) fail("XDP_MMAP_OFFSETS");
    fill_ = {socket_.get(), XDP_UMEM_PGOFF_FILL_RING, offsets.fr};
    completion_ = {socket_.get(), XDP_UMEM_PGOFF_COMPLETION_RING, offsets.cr};
    rx_ = {socket_.get(), XDP_PGOFF_RX_RING, offsets.rx};
    tx_ = {socket_.get(), XDP_PGOFF_TX_RING, offsets.tx};
    for (std::uint32_t i = 0; i < kReceiveChunks; ++i) fill_.back(i) = std::uint64_t{i} * kChunk;
    fill_.publish(kReceiveChunks);

    sockaddr_xdp address{};
    address.sxdp_family = AF_XDP;
    address.sxdp_ifindex = static_cast<__u32>(ifindex);
    address.sxdp_flags = XDP_COPY | XDP_USE_SG;
    const auto bind_queue = [&] {
        return retry_busy(
            [&] { return bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address); });
    };
    if (bind_queue() < 0) {
        if (errno != EINVAL) fail("bind an XSK to " + device);
        address.sxdp_flags = XDP_COPY;  // before Linux 6.6
        if (bind_queue() < 0) fail("bind an XSK to " + device);
    }

    map_ = make_xsk_map();
    program_ = load_program(map_.get());
    const std::uint32_t queue = 0;
    const std::uint32_t value = static_cast<std::uint32_t>(socket_.get());
    bpf_attr attr{};
    attr.map_fd = static_cast<__u32>(map_.get());
    attr.key = reinterpret_cast<std::uintptr_t>(&queue);
    attr.value = reinterpret_cast<std::uintptr_t>(&value);
    if (bpf(BPF_MAP_UPDATE_ELEM, attr) < 0) fail("entering the XSK into the map");
    link_ = attach(program_.get(), ifindex, native);
}

}  // namespace bench
