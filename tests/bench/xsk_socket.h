// SPDX-License-Identifier: BSD-2-Clause
// A bare AF_XDP socket for the measurements: umem, rings and the smallest XDP program that steers to it.
// Plain system calls and nothing of the library, which is measured against this.
#pragma once

#include <linux/if_xdp.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>

#include "fd.h"

namespace bench {

inline constexpr std::uint16_t kPort = 7;         // UDP over IPv4 to this port is steered to the socket
inline constexpr std::uint32_t kChunk = 2048;     // a frame with the kernel's 256 bytes of headroom fits
inline constexpr std::uint32_t kRingSize = 2048;  // descriptors of each ring, a power of two
// The first part of the umem is received into, the rest is sent from: several batches, yet at home in the
// cache.
inline constexpr std::uint32_t kReceiveChunks = kRingSize;
inline constexpr std::uint32_t kSendChunks = 256;

// An owned mapping.
class Mapping {
  public:
    Mapping() = default;
    Mapping(std::size_t length, int flags, int fd, off_t offset)
        : base_(mmap(nullptr, length, PROT_READ | PROT_WRITE, flags, fd, offset)), length_(length) {
        if (base_ == MAP_FAILED) fail("mmap");
    }
    Mapping(Mapping&& other) noexcept
        : base_(std::exchange(other.base_, MAP_FAILED)), length_(std::exchange(other.length_, 0)) {}
    Mapping& operator=(Mapping&& other) noexcept {
        std::swap(base_, other.base_);
        std::swap(length_, other.length_);
        return *this;
    }
    ~Mapping() {
        if (base_ != MAP_FAILED) munmap(base_, length_);
    }
    std::uint8_t* data() const noexcept { return static_cast<std::uint8_t*>(base_); }

  private:
    void* base_ = MAP_FAILED;
    std::size_t length_ = 0;
};

// One end of a ring shared with the kernel. The side that produces publishes with release, the other
// acquires.
template <class Entry>
class SharedRing {
  public:
    SharedRing() = default;
    SharedRing(int fd, off_t page, const xdp_ring_offset& offsets)
        : map_(offsets.desc + kRingSize * sizeof(Entry), MAP_SHARED | MAP_POPULATE, fd, page),
          producer_(reinterpret_cast<std::uint32_t*>(map_.data() + offsets.producer)),
          consumer_(reinterpret_cast<std::uint32_t*>(map_.data() + offsets.consumer)),
          entries_(reinterpret_cast<Entry*>(map_.data() + offsets.desc)) {}

    // As consumer: entries waiting, then access to the i-th of them, then give `count` places back.
    std::uint32_t available() const noexcept {
        return __atomic_load_n(producer_, __ATOMIC_ACQUIRE) - *consumer_;
    }
    const Entry& front(std::uint32_t i) const noexcept { return entries_[(*consumer_ + i) % kRingSize]; }
    void release(std::uint32_t count) noexcept {
        __atomic_store_n(consumer_, *consumer_ + count, __ATOMIC_RELEASE);
    }

    // As producer: places free, then write to the i-th of them, then publish `count`.
    std::uint32_t room() const noexcept {
        return kRingSize - (*producer_ - __atomic_load_n(consumer_, __ATOMIC_ACQUIRE));
    }
    Entry& back(std::uint32_t i) noexcept { return entries_[(*producer_ + i) % kRingSize]; }
    void publish(std::uint32_t count) noexcept {
        __atomic_store_n(producer_, *producer_ + count, __ATOMIC_RELEASE);
    }

  private:
    Mapping map_;
    std::uint32_t* producer_ = nullptr;
    std::uint32_t* consumer_ = nullptr;
    Entry* entries_ = nullptr;
};

// An XSK on queue 0 of a device with its own umem. Members in order of construction; the link goes first.
class Xsk {
  public:
    Xsk(const std::string& device, bool native);

    std::uint8_t* chunk(std::uint64_t address) noexcept { return umem_.data() + address; }
    static std::uint64_t send_chunk(std::uint32_t i) noexcept {
        return std::uint64_t{kReceiveChunks + i} * kChunk;
    }

    // Frames waiting; frame(i) is one of them; recycle(n) posts the buffers of the first n again.
    std::uint32_t received() const noexcept { return rx_.available(); }
    const xdp_desc& frame(std::uint32_t i) const noexcept { return rx_.front(i); }
    void recycle(std::uint32_t count) noexcept {
        for (std::uint32_t i = 0; i < count; ++i) fill_.back(i) = rx_.front(i).addr / kChunk * kChunk;
        fill_.publish(count);  // never full: it has a place for each receive chunk
        rx_.release(count);
    }

    // Queues the send chunk that is next in turn, or returns nullptr while all are under way.
    std::uint8_t* next_send_chunk() noexcept {
        if (sent_ - completed_ == kSendChunks) return nullptr;
        return chunk(send_chunk(sent_ % kSendChunks));
    }
    void queue(std::uint32_t length) noexcept {
        xdp_desc& desc = tx_.back(queued_++);
        desc = {send_chunk(sent_++ % kSendChunks), length, 0};
    }
    // Publishes what was queued and lets the kernel transmit; a kick takes up to 32 frames (the kernel's
    // batch).
    void kick() noexcept {
        tx_.publish(std::exchange(queued_, 0));
        sendto(socket_.get(), nullptr, 0, MSG_DONTWAIT, nullptr,
               0);  // EAGAIN: more is left, the next kick takes it
        const std::uint32_t done = completion_.available();
        completion_.release(done);
        completed_ += done;
    }

  private:
    template <class T>
    void set(int option, const T& value, const char* what) {
        if (setsockopt(socket_.get(), SOL_XDP, option, &value, sizeof value) < 0) fail(what);
    }

    Mapping umem_;
    Fd socket_;
    SharedRing<std::uint64_t> fill_, completion_;
    SharedRing<xdp_desc> rx_, tx_;
    Fd map_, program_, link_;
    std::uint32_t queued_ = 0, sent_ = 0, completed_ = 0;  // they wrap; only differences count
};

}  // namespace bench
