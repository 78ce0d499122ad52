// SPDX-License-Identifier: BSD-2-Clause
// AF_XDP sockets: the umem, and the four rings of a queue. This code uses the kernel's interface directly.
// libxdp's helpers cannot ask for transmit metadata, scatter-gather and per-queue rings of one umem at the
// same time.
//
// Rings are single producer, single consumer: the device's caller serialises each side (see ring/ring.h).
#pragma once

#include <linux/if_xdp.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "libvma/runtime/error.h"
#include "libvma/runtime/internal_fd.h"

// Newer than Debian 12's headers (Linux 6.6 and 6.8).
#ifndef XDP_USE_SG
#define XDP_USE_SG (1 << 4)
#endif
#ifndef XDP_PKT_CONTD
#define XDP_PKT_CONTD (1 << 0)
#endif
#ifndef XDP_TX_METADATA
#define XDP_TX_METADATA (1 << 1)
#endif
#ifndef XDP_UMEM_TX_METADATA_LEN
#define XDP_UMEM_TX_METADATA_LEN (1 << 2)
#endif

namespace vma::verbs::xdp {

// struct xsk_tx_metadata of Linux 6.8, request side.
struct TxMetadata {
    std::uint64_t flags;
    std::uint16_t checksum_start;   // from the start of the frame
    std::uint16_t checksum_offset;  // from checksum_start
    std::uint32_t reserved;
    std::uint64_t launch_time;
};
inline constexpr std::uint64_t kTxMetadataChecksum = 1u << 1;
static_assert(sizeof(TxMetadata) == 24);

// One shared ring of `Entry`s. Its user calls either the producer's or the consumer's functions, never both.
template <class Entry>
class XskRing {
  public:
    XskRing() = default;
    XskRing(const XskRing&) = delete;
    XskRing& operator=(const XskRing&) = delete;
    ~XskRing();

    // Sets the ring's size on the socket and maps it. `size` is a power of two.
    Result<void> create(int fd, int option, std::uint64_t page_offset, const xdp_ring_offset& where,
                        std::uint32_t size);

    // The part of create() without the kernel: takes the ring at `base`, which the caller owns.
    void use(void* base, const xdp_ring_offset& where, std::uint32_t size) noexcept;

    // Consumer: entries ready to read, at most size(); then front(i) for i below that count; then release(n).
    std::uint32_t available() noexcept {
        if (cached_producer_ == cached_consumer_) cached_producer_ = load(producer_);
        return std::min(cached_producer_ - cached_consumer_, size_);
    }
    const Entry& front(std::uint32_t i) const noexcept { return entries_[(cached_consumer_ + i) & mask_]; }
    void release(std::uint32_t n) noexcept {
        cached_consumer_ += n;
        std::atomic_ref(*consumer_).store(cached_consumer_, std::memory_order_release);
    }

    // Producer: free places; then back(i); then submit(n).
    std::uint32_t room(std::uint32_t wanted) noexcept {
        std::uint32_t free = size_ - (cached_producer_ - cached_consumer_);
        if (free < wanted) {
            cached_consumer_ = load(consumer_);
            free = size_ - (cached_producer_ - cached_consumer_);
        }
        return free;
    }
    Entry& back(std::uint32_t i) noexcept { return entries_[(cached_producer_ + i) & mask_]; }
    void submit(std::uint32_t n) noexcept {
        cached_producer_ += n;
        std::atomic_ref(*producer_).store(cached_producer_, std::memory_order_release);
    }

    bool needs_wakeup() const noexcept {
        return std::atomic_ref(*flags_).load(std::memory_order_relaxed) & XDP_RING_NEED_WAKEUP;
    }
    std::uint32_t size() const noexcept { return size_; }
    bool mapped() const noexcept { return map_ != nullptr; }

  private:
    static std::uint32_t load(std::uint32_t* p) noexcept {
        return std::atomic_ref(*p).load(std::memory_order_acquire);
    }
    std::uint32_t* producer_ = nullptr;
    std::uint32_t* consumer_ = nullptr;
    std::uint32_t* flags_ = nullptr;
    Entry* entries_ = nullptr;
    std::uint32_t mask_ = 0, size_ = 0;
    std::uint32_t cached_producer_ = 0, cached_consumer_ = 0;
    void* map_ = nullptr;
    std::size_t map_length_ = 0;
};

// Of any socket: past the system's limit where the process may, else up to it.
void set_send_buffer(int fd, int bytes) noexcept;

struct XskConfig {
    int ifindex = 0;
    std::uint32_t queue = 0;
    std::uint32_t rx_size = 0;          // RX and fill ring; 0: there is no RX ring
    std::uint32_t tx_size = 0;          // TX and completion ring; 0: this queue only receives
    std::uint32_t fill_size = 0;        // 0: rx_size
    std::uint32_t completion_size = 0;  // 0: tx_size
    bool own_pool = true;          // false: fill and completion ring are those of the owner on the same queue
    std::uint16_t bind_flags = 0;  // XDP_COPY / XDP_ZEROCOPY, XDP_USE_SG, XDP_USE_NEED_WAKEUP
};

// The flags to try for bind(), in this order: zero copy before copy mode. Where a frame always fits
// `one_chunk`, each mode also has a try without scatter-gather. Some drivers have zero copy or
// scatter-gather, not both.
std::vector<std::uint16_t> ways_to_bind(bool zero_copy, bool one_chunk);

// One AF_XDP socket on one queue. The first one registers the umem, further ones share it.
class Xsk {
  public:
    // Registers [memory, memory+length) as umem. `metadata` becomes true if the kernel accepts the transmit
    // metadata.
    Result<void> open_with_umem(void* memory, std::size_t length, std::uint32_t chunk, bool& metadata);
    Result<void> open();
    // Creates the rings and binds; `owner` is the socket whose umem is shared, or null for the first. bind()
    // returns EBUSY to the caller. The caller decides about a retry: the kernel releases a queue some
    // milliseconds after a close.
    Result<void> make_rings(const XskConfig& config);
    int bind(const XskConfig& config, const Xsk* owner) noexcept;  // 0 or errno
    void close() noexcept { fd_.reset(); }

    int fd() const noexcept { return fd_.get(); }
    void mirror_fd(int* number) noexcept { fd_.mirror(number); }
    // Submits the TX ring's content to the kernel; errno value or 0. EAGAIN/EBUSY: more remains, or try
    // again.
    int kick_tx() noexcept;
    void kick_rx() noexcept;
    // rx_dropped + rx_ring_full + rx_invalid_descs + rx_fill_ring_empty by the kernel's count.
    std::uint64_t rx_drops() const noexcept;
    bool zero_copy() const noexcept;

    XskRing<std::uint64_t> fill, completion;
    XskRing<xdp_desc> rx, tx;
    std::uint32_t posted = 0;  // to the fill ring, and not returned in the RX ring yet
    bool fed = true;           // false: the program does not know it yet, for it has no chunks

  private:
    InternalFd fd_;
};

}  // namespace vma::verbs::xdp
