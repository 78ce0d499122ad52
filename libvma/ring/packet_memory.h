// SPDX-License-Identifier: BSD-2-Clause
// The memory that a device reads and writes packets in: one registered region, and the descriptors of its
// receive buffers.
//
// The region consists of chunks of DeviceAttr::chunk_size bytes: receive chunks first, then send chunks, then
// the send chunks of further devices (DeviceAttr::further_send). Such a device brings its own send chunks.
// PacketMemory owns the region, its registration and the descriptors. RxQueue and TxBuffers take chunks and
// decide which of them are in use. A ring holds its memory apart from its queues, so that rings can share
// memory later.
//
// Locks: none. Nothing here changes after open(); a descriptor's content belongs to the queue or the sink
// that has the buffer.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "libvma/ring/packet_regions.h"
#include "libvma/ring/rx_buffer.h"
#include "libvma/ring/send_buffer.h"
#include "libvma/runtime/error.h"
#include "libvma/verbs/device.h"

namespace vma::ring {

class PacketMemory {
  public:
    struct Config {
        std::uint32_t rx_chunks = 0, tx_chunks = 0;
        bool huge_pages = true;
        bool warn_ordinary = false;  // log it when the host has not enough huge pages
    };

    PacketMemory() = default;
    // Unmaps the region, unless it is the program's. The device that has it registered must be gone.
    ~PacketMemory();
    PacketMemory(const PacketMemory&) = delete;
    PacketMemory& operator=(const PacketMemory&) = delete;

    // Maps and registers the region: page aligned, not inherited by forked children. The first one lies in
    // the program's memory, if there is some (LentMemory). Where the limit on locked memory is too low there
    // are fewer chunks than asked for; the log says so. Errors: those of mmap(2) and of Device::reg_mr().
    // Once.
    Result<void> open(verbs::Device& device, const Config& config);

    // One descriptor for each receive chunk, in order. Its `frame` is set.
    std::span<RxBuffer> rx_buffers() noexcept { return rx_buffers_; }
    // The same for send chunks, for Ring::lend_send_buffers(). Their `ring` is set by publish().
    std::span<SendBuffer> send_buffers() noexcept { return send_buffers_; }
    std::uint32_t rx_chunks() const noexcept { return static_cast<std::uint32_t>(rx_buffers_.size()); }
    std::uint32_t tx_chunks() const noexcept { return tx_chunks_; }
    // First byte of the first receive chunk, and of the first send chunk.
    std::uint8_t* rx_base() const noexcept { return base_; }
    std::uint8_t* tx_base() const noexcept { return tx_base_; }
    // Bytes, a power of two.
    std::uint32_t chunk_size() const noexcept { return chunk_size_; }
    std::uint32_t lkey() const noexcept { return mr_->lkey; }
    // Its number among the process's (PacketRegions), from publish() on.
    unsigned number() const noexcept { return number_; }
    // `ring`, whose memory it is, is complete: from now on others find the memory by its number. Once.
    void publish(Ring& ring) noexcept {
        for (SendBuffer& b : send_buffers_) b.ring = &ring;
        number_ = PacketRegions::add(base_, length_, rx_buffers_, send_buffers_);
    }

  private:
    std::uint8_t* base_ = nullptr;
    std::uint8_t* tx_base_ = nullptr;
    std::size_t length_ = 0;  // bytes mapped
    bool programs_ = false;   // they are the program's
    ibv_mr* mr_ = nullptr;    // the device's
    std::uint32_t chunk_size_ = 0;
    std::uint32_t tx_chunks_ = 0;
    unsigned number_ = PacketRegions::kNone;
    std::vector<RxBuffer> rx_buffers_;
    std::vector<SendBuffer> send_buffers_;
};

}  // namespace vma::ring
