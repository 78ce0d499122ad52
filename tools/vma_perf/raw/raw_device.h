// SPDX-License-Identifier: BSD-2-Clause
// The library's device layer without anything on top: a verbs device on a netdev, its queues, and buffers for
// both ways. What it reaches is what the sockets above it can come near to.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "libvma/verbs/device.h"

namespace vma_perf::raw {

// A netdev as the kernel describes it.
struct Netdev {
    std::string name;
    int ifindex = 0;
    vma::verbs::MacAddress mac{};
    std::uint32_t mtu = 0;
    unsigned queues = 1;
};
// `name`, or with an empty name the one that has the IPv4 address. Throws Failure with kUnsupported: none, or
// no Ethernet.
Netdev find_netdev(const std::string& name, const std::string& address);

// One thread.
class RawDevice {
  public:
    // `mode`: "skb" or "drv". Throws Failure with kUnsupported when the device cannot be had.
    RawDevice(const Netdev& netdev, const std::string& mode);
    ~RawDevice();
    RawDevice(const RawDevice&) = delete;
    RawDevice& operator=(const RawDevice&) = delete;

    // Steers UDP datagrams to this address and port here; both in network byte order. Throws Failure.
    void receive_at(in_addr_t address, in_port_t port);
    // Bytes that a frame may have.
    std::size_t max_frame() const noexcept;
    // The buffer that is sent next, or nullptr: all are under way.
    std::uint8_t* next_frame() noexcept;
    // Sends the first `length` bytes of it; the device may hold it back until flush().
    bool post(std::size_t length) noexcept;
    void flush() noexcept { device_->flush(qp_); }
    // Hands over the frames that have come; returns how many. Frames in several buffers are dropped.
    // `take` is called with each frame's bytes, a std::span.
    template <class Take>
    std::size_t poll(Take&& take);

  private:
    static constexpr int kBatch = 32;  // completions taken at once

    void post_receives(std::span<const std::uint64_t> buffers) noexcept;
    void reap() noexcept;

    std::uint8_t* memory_ = nullptr;
    std::size_t length_ = 0;
    std::unique_ptr<vma::verbs::Device> device_;
    ibv_mr* mr_ = nullptr;
    ibv_cq* recv_cq_ = nullptr;
    ibv_cq* send_cq_ = nullptr;
    ibv_qp* qp_ = nullptr;
    std::vector<vma::verbs::Flow*> flows_;
    std::uint32_t recv_count_ = 0, send_count_ = 0;  // buffers
    std::uint64_t posted_ = 0, done_ = 0;            // sends, running
    bool partial_ = false;                           // within a frame of several buffers
};

template <class Take>
std::size_t RawDevice::poll(Take&& take) {
    std::array<ibv_wc, kBatch> wc;
    const int n = ibv_poll_cq(recv_cq_, kBatch, wc.data());
    if (n <= 0) return 0;
    const vma::verbs::DeviceAttr& attr = device_->attr();
    std::array<std::uint64_t, kBatch> buffers;
    for (int i = 0; i < n; ++i) {
        const ibv_wc& c = wc[static_cast<std::size_t>(i)];
        buffers[static_cast<std::size_t>(i)] = c.wr_id;
        const bool more = (c.wc_flags & vma::verbs::kWcMore) != 0;
        const bool whole = !more && !partial_;
        partial_ = more;
        if (c.status == IBV_WC_SUCCESS && whole)
            take(std::span<const std::uint8_t>(memory_ + c.wr_id * attr.chunk_size + attr.rx_offset,
                                               c.byte_len));
    }
    post_receives({buffers.data(), static_cast<std::size_t>(n)});
    return static_cast<std::size_t>(n);
}

}  // namespace vma_perf::raw
