// SPDX-License-Identifier: BSD-2-Clause
// The extra API for C++20: what is received frees itself, a send buffer that was not sent gives itself back,
// and a callback ends with its object.
#pragma once

#include <array>
#include <cerrno>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "vma_extra.h"
#include "vma_extra2.h"

namespace vma_extra {

// Received data that the program keeps as long as this object lives. Move-only; any thread may destroy it,
// after the socket was closed, too.
class Packet {
  public:
    Packet() = default;
    // Takes over the packet with this id, as a callback that answers VMA_PACKET_HOLD does. `data` stays the
    // caller's business.
    Packet(vma_api_t* api, int fd, void* id) noexcept : api_(api), fd_(fd), id_(id) {}
    Packet(Packet&& other) noexcept { swap(other); }
    Packet& operator=(Packet&& other) noexcept {
        Packet old(std::move(other));
        swap(old);
        return *this;
    }
    ~Packet() {
        if (id_ == nullptr) return;
        const int before = errno;
        vma_packet_t packet{};
        packet.packet_id = id_;
        api_->free_packets(fd_, &packet, 1);
        errno = before;
    }

    explicit operator bool() const noexcept { return id_ != nullptr; }
    void* id() const noexcept { return id_; }
    // The data, in order.
    std::span<const iovec> pieces() const noexcept { return {pieces_.data(), count_}; }
    std::size_t bytes() const noexcept {
        std::size_t sum = 0;
        for (const iovec& piece : pieces()) sum += piece.iov_len;
        return sum;
    }

    static constexpr std::size_t kMostPieces = 16;

  private:
    friend class Receiver;
    void swap(Packet& other) noexcept {
        std::swap(api_, other.api_);
        std::swap(fd_, other.fd_);
        std::swap(id_, other.id_);
        std::swap(count_, other.count_);
        std::swap(pieces_, other.pieces_);
    }

    vma_api_t* api_ = nullptr;
    int fd_ = -1;
    void* id_ = nullptr;
    std::size_t count_ = 0;
    std::array<iovec, kMostPieces> pieces_{};
};

// Zero-copy receive on one socket.
class Receiver {
  public:
    Receiver(vma_api_t* api, int fd) noexcept : api_(api), fd_(fd) {}

    // As recvfrom(2): bytes, 0 at the end of a stream, or -1 with errno; EIO where only the kernel has the
    // data, which stays there for recv(). `packet` gets the data.
    int receive(Packet& packet, int flags = 0, sockaddr* from = nullptr, socklen_t* length = nullptr) {
        alignas(16) std::array<std::byte, 24 + 16 * Packet::kMostPieces> buffer;
        packet = {};
        flags |= MSG_VMA_ZCOPY_FORCE;
        const int n = api_->recvfrom_zcopy(fd_, buffer.data(), buffer.size(), &flags, from, length);
        if (n < 0 || (flags & MSG_VMA_ZCOPY) == 0) return n;
        const vma_packet_t& got = reinterpret_cast<vma_packets_t*>(buffer.data())->pkts[0];
        packet = Packet(api_, fd_, got.packet_id);
        packet.count_ = got.sz_iov;
        for (std::size_t i = 0; i < got.sz_iov; i++) packet.pieces_[i] = got.iov[i];
        return n;
    }

  private:
    vma_api_t* api_;
    int fd_;
};

// A send buffer, as long as the program has it. Move-only; any thread may send it or destroy it.
class SendBuffer {
  public:
    SendBuffer() = default;
    // For a peer of `fd` (null: the connected one). Empty, with errno: there is none, and the program sends
    // as always.
    SendBuffer(vma_api2_t* api, int fd, const sockaddr* to = nullptr, socklen_t length = 0) noexcept
        : api_(api) {
        if (api->get_send_buffers(fd, &buffer_, 1, to, length) != 0) buffer_ = {};
    }
    // Takes over one of get_send_buffers().
    SendBuffer(vma_api2_t* api, const vma_send_buffer_t& buffer) noexcept : api_(api), buffer_(buffer) {}
    SendBuffer(SendBuffer&& other) noexcept { swap(other); }
    SendBuffer& operator=(SendBuffer&& other) noexcept {
        SendBuffer old(std::move(other));
        swap(old);
        return *this;
    }
    ~SendBuffer() {
        if (buffer_.id == nullptr) return;
        const int before = errno;
        api_->free_send_buffer(buffer_.id);
        errno = before;
    }

    explicit operator bool() const noexcept { return buffer_.id != nullptr; }
    void* id() const noexcept { return buffer_.id; }
    std::span<std::byte> data() const noexcept {
        return {static_cast<std::byte*>(buffer_.data), buffer_.size};
    }
    // As send(2) and sendto(2), of the first `length` bytes. Empty afterwards if the result is `length`.
    int send(int fd, std::size_t length, int flags = 0, const sockaddr* to = nullptr,
             socklen_t to_length = 0) {
        const int n = api_->send_zcopy(fd, buffer_.id, length, flags, to, to_length);
        if (n >= 0 && static_cast<std::size_t>(n) == length) buffer_ = {};
        return n;
    }

  private:
    void swap(SendBuffer& other) noexcept {
        std::swap(api_, other.api_);
        std::swap(buffer_, other.buffer_);
    }

    vma_api2_t* api_ = nullptr;
    vma_send_buffer_t buffer_{};
};

// Calls `judge(std::span<iovec>, vma_info_t&)` for each packet of a socket, until this object ends.
template <class Judge>
class Callback {
  public:
    Callback(vma_api_t* api, int fd, Judge judge) : api_(api), fd_(fd), judge_(std::move(judge)) {
        registered_ = api_->register_recv_callback(fd_, &call, this) == 0;
    }
    ~Callback() {
        if (registered_) api_->register_recv_callback(fd_, nullptr, nullptr);
    }
    Callback(const Callback&) = delete;
    Callback& operator=(const Callback&) = delete;
    // False: the socket is not offloaded (errno of the constructor).
    bool registered() const noexcept { return registered_; }

  private:
    static vma_recv_callback_retval_t call(int, size_t count, iovec* pieces, vma_info_t* info, void* self) {
        return static_cast<Callback*>(self)->judge_(std::span<iovec>(pieces, count), *info);
    }

    vma_api_t* api_;
    int fd_;
    Judge judge_;
    bool registered_ = false;
};

}  // namespace vma_extra
