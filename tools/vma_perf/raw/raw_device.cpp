// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/raw/raw_device.h"

#include <errno.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <thread>

#include "libvma/verbs/xdp/xdp_device.h"
#include "tools/common/fd.h"
#include "tools/vma_perf/sockets/address.h"
#include "tools/vma_perf/status.h"

namespace vma_perf::raw {
namespace {

constexpr std::uint32_t kReceives = 2048, kSends = 512;  // buffers: several batches, yet at home in the cache
constexpr std::uint32_t kSignalEvery = 32;               // sends that share a completion

template <class T>
T must(vma::Result<T> result) {
    if (result) return std::move(*result);
    throw Failure(kUnsupported,
                  fmt::format("raw: {}: {}", result.error().what, strerror(result.error().code)));
}

std::string name_with_address(const std::string& address) {
    ifaddrs* all = nullptr;
    if (getifaddrs(&all) != 0) fail_errno("getifaddrs");
    const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, freeifaddrs);
    const sockaddr_in wanted = make_address(address, 0);
    for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
        if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET) continue;
        if (reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr.s_addr == wanted.sin_addr.s_addr)
            return i->ifa_name;
    }
    throw Failure(kUnsupported, fmt::format("raw: no interface has the address {}", address));
}

// Receive queues of the netdev in our network namespace, as far as sysfs shows it; else one.
unsigned receive_queues(const std::string& name) {
    unsigned count = 0;
    std::error_code error;
    for (std::filesystem::directory_iterator at("/sys/class/net/" + name + "/queues", error), end;
         !error && at != end; at.increment(error))
        if (at->path().filename().string().starts_with("rx-")) ++count;
    return std::max(count, 1u);
}

}  // namespace

Netdev find_netdev(const std::string& name, const std::string& address) {
    Netdev netdev;
    netdev.name = name.empty() ? name_with_address(address) : name;
    ifreq request{};
    if (netdev.name.size() >= sizeof request.ifr_name)
        throw Failure(kUsage, fmt::format("--device: {} is no device", netdev.name));
    netdev.name.copy(request.ifr_name, sizeof request.ifr_name - 1);
    const tools::Fd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (ioctl(fd.get(), SIOCGIFHWADDR, &request) != 0) fail_errno("raw: device " + netdev.name, kUnsupported);
    if (request.ifr_hwaddr.sa_family != ARPHRD_ETHER)
        throw Failure(kUnsupported, fmt::format("raw: {} is no Ethernet device", netdev.name));
    memcpy(netdev.mac.data(), request.ifr_hwaddr.sa_data, netdev.mac.size());
    if (ioctl(fd.get(), SIOCGIFMTU, &request) != 0) fail_errno("raw: MTU of " + netdev.name);
    netdev.mtu = static_cast<std::uint32_t>(request.ifr_mtu);
    netdev.ifindex = static_cast<int>(if_nametoindex(netdev.name.c_str()));
    netdev.queues = receive_queues(netdev.name);
    return netdev;
}

RawDevice::RawDevice(const Netdev& netdev, const std::string& mode) {
    vma::verbs::xdp::XdpConfig config;
    config.name = netdev.name;
    config.ifindex = netdev.ifindex;
    config.mac = netdev.mac;
    config.mtu = netdev.mtu;
    config.queues = netdev.queues;
    config.modes = {mode == "drv" ? vma::verbs::xdp::Mode::drv : vma::verbs::xdp::Mode::skb};
    config.rx_entries = kReceives;
    config.tx_entries = kSends;
    // A server's run before this one may be about to close its device. A busy kernel takes seconds for that.
    constexpr std::chrono::seconds kPatience{5};
    config.patience_ns = std::chrono::nanoseconds(kPatience).count();
    const auto limit = std::chrono::steady_clock::now() + kPatience;
    auto device = vma::verbs::xdp::XdpDevice::open(config);
    while (!device && device.error().code == EBUSY && std::chrono::steady_clock::now() < limit) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        device = vma::verbs::xdp::XdpDevice::open(config);
    }
    device_ = must(std::move(device));
    const vma::verbs::DeviceAttr& attr = device_->attr();
    recv_count_ = attr.max_recv_wr;
    send_count_ = std::min(attr.max_send_wr, kSends);
    length_ = std::size_t{recv_count_ + send_count_} * attr.chunk_size;
    void* const memory =
        mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) fail_errno("raw: memory for frames");
    memory_ = static_cast<std::uint8_t*>(memory);
    mr_ = must(device_->reg_mr(memory_, length_));
    recv_cq_ = must(device_->create_cq(static_cast<int>(recv_count_), must(device_->create_comp_channel())));
    send_cq_ = must(device_->create_cq(static_cast<int>(send_count_), nullptr));
    ibv_qp_init_attr init{};
    init.recv_cq = recv_cq_;
    init.send_cq = send_cq_;
    init.qp_type = IBV_QPT_RAW_PACKET;
    init.cap = {.max_send_wr = send_count_, .max_recv_wr = recv_count_, .max_send_sge = 1, .max_recv_sge = 1};
    qp_ = must(device_->create_qp(init));
    for (std::uint64_t i = 0; i < recv_count_; ++i) post_receives({&i, 1});
}

RawDevice::~RawDevice() {
    if (qp_ != nullptr) device_->flush(qp_);
    for (vma::verbs::Flow* const flow : flows_) device_->destroy_flow(flow);
    device_.reset();  // before the memory it uses
    if (memory_ != nullptr) munmap(memory_, length_);
}

void RawDevice::receive_at(in_addr_t address, in_port_t port) {
    vma::verbs::FlowSpec spec;
    spec.dst_addr = address;
    spec.dst_port = port;
    flows_.push_back(must(device_->create_flow(qp_, spec)));
}

std::size_t RawDevice::max_frame() const noexcept {
    const vma::verbs::DeviceAttr& attr = device_->attr();
    return std::min<std::size_t>(attr.mtu + ETHER_HDR_LEN, attr.chunk_size - attr.tx_headroom);
}

std::uint8_t* RawDevice::next_frame() noexcept {
    if (posted_ - done_ == send_count_) {
        reap();
        if (posted_ - done_ == send_count_) {
            // Completions exist only for what the kernel has seen.
            device_->flush(qp_);
            reap();
            if (posted_ - done_ == send_count_) return nullptr;
        }
    }
    const vma::verbs::DeviceAttr& attr = device_->attr();
    return memory_ + (std::size_t{recv_count_} + posted_ % send_count_) * attr.chunk_size + attr.tx_headroom;
}

bool RawDevice::post(std::size_t length) noexcept {
    const vma::verbs::DeviceAttr& attr = device_->attr();
    std::uint8_t* const frame =
        memory_ + (std::size_t{recv_count_} + posted_ % send_count_) * attr.chunk_size + attr.tx_headroom;
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(frame), static_cast<std::uint32_t>(length), mr_->lkey};
    ibv_send_wr wr{};
    wr.wr_id = posted_ + 1;  // how many are done when this one is
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = (posted_ + 1) % kSignalEvery == 0 ? static_cast<unsigned>(IBV_SEND_SIGNALED) : 0u;
    ibv_send_wr* bad = nullptr;
    if (ibv_post_send(qp_, &wr, &bad) != 0) return false;
    ++posted_;
    return true;
}

void RawDevice::reap() noexcept {
    std::array<ibv_wc, kBatch> wc;
    for (int n; (n = ibv_poll_cq(send_cq_, kBatch, wc.data())) > 0;)
        done_ = wc[static_cast<std::size_t>(n) - 1].wr_id;
}

void RawDevice::post_receives(std::span<const std::uint64_t> buffers) noexcept {
    std::array<ibv_recv_wr, kBatch> wr{};
    std::array<ibv_sge, kBatch> sge;
    const std::uint32_t chunk = device_->attr().chunk_size;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
        sge[i] = {reinterpret_cast<std::uintptr_t>(memory_) + buffers[i] * chunk, chunk, mr_->lkey};
        wr[i].wr_id = buffers[i];
        wr[i].sg_list = &sge[i];
        wr[i].num_sge = 1;
        wr[i].next = i + 1 < buffers.size() ? &wr[i + 1] : nullptr;
    }
    // There is a place for each buffer, so none is refused.
    ibv_recv_wr* bad = nullptr;
    ibv_post_recv(qp_, wr.data(), &bad);
}

}  // namespace vma_perf::raw
