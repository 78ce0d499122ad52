// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/receive/receive_queue.h"

#include <algorithm>
#include <cstring>

#include "libvma/tcp/lwip/lwip.h"
#include "libvma/tcp/receive/blocks.h"

namespace vma::tcp {
namespace {

constexpr std::uint32_t kMaxLoose = 256;  // buffers of the ring that one connection's queue keeps
constexpr std::uint32_t kMinBlock = 512, kBlocksOfWindow = 8;

// Several fit into a small window, so that one that is nearly empty and one that is nearly read do not count
// much.
std::uint32_t block_bytes(std::uint32_t window) noexcept {
    return std::clamp(window / kBlocksOfWindow, kMinBlock, blocks::kLargest + blocks::kOverhead) -
           blocks::kOverhead;
}

}  // namespace

void ReceiveQueue::link(pbuf* piece) noexcept {
    piece->next = nullptr;
    if (last_ != nullptr)
        last_->next = piece;
    else
        first_ = piece;
    last_ = piece;
}

void ReceiveQueue::append(pbuf* chain, bool scarce, std::uint32_t window, std::size_t elsewhere) noexcept {
    while (chain != nullptr) {
        pbuf* next = chain->next;
        steps_++;
        if (chain->len == 0) {
            blocks::free_one(chain);
        } else {
            bytes_ += chain->len;
            held_ += blocks::cost(*chain);
            loose_++;
            link(chain);
        }
        chain = next;
    }
    const std::size_t limit = std::size_t{window} * 7 / 4;
    if (scarce || loose_ > kMaxLoose || held_ + elsewhere > limit) settle(window);
}

void ReceiveQueue::settle(std::uint32_t window) noexcept {
    pbuf* p = settled_ != nullptr ? settled_->next : first_;
    last_ = settled_;
    (settled_ == nullptr ? first_ : settled_->next) = nullptr;
    while (p != nullptr) {
        pbuf* const next = p->next;
        steps_++;
        // A block that is more than half full is as good as a new one.
        if (blocks::is_block(*p) && p->len >= blocks::room(*p)) {
            link(p);
            settled_ = p;
            loose_--;
            p = next;
            continue;
        }
        const auto* data = static_cast<const std::uint8_t*>(p->payload);
        std::uint32_t done = 0;
        while (done < p->len) {
            std::uint32_t room =
                settled_ != nullptr && blocks::is_block(*settled_) ? blocks::room(*settled_) : 0;
            if (room == 0) {
                pbuf* block = blocks::make(block_bytes(window));
                if (block == nullptr) break;
                held_ += blocks::cost(*block);
                link(block);
                settled_ = block;
                room = blocks::room(*block);
            }
            const std::uint32_t n = std::min(room, p->len - done);
            blocks::append(*settled_, data + done, n);
            done += n;
        }
        blocks::remove(*p, done);
        if (p->len != 0) {  // no memory: the rest stays as it is, and the next one comes back to it
            last_ != nullptr ? last_->next = p : first_ = p;
            for (last_ = p; last_->next != nullptr;) last_ = last_->next;
            return;
        }
        loose_--;
        held_ -= blocks::cost(*p);
        blocks::free_one(p);
        p = next;
    }
}

std::size_t ReceiveQueue::read(const iovec* iov, std::size_t count, std::size_t length,
                               const How& how) noexcept {
    std::size_t done = 0, at = 0, which = 0, from = 0, skip = how.skip;
    pbuf* p = first_;
    while (skip != 0 && p != nullptr) {
        const std::size_t n = std::min<std::size_t>(skip, p->len);
        skip -= n;
        if (n == p->len)
            p = p->next;
        else
            from = n;
    }
    while (p != nullptr && done < length) {
        std::size_t piece = std::min<std::size_t>(p->len - from, length - done);
        if (how.copy) {
            while (which < count && at == iov[which].iov_len) which++, at = 0;
            if (which == count) break;
            piece = std::min(piece, iov[which].iov_len - at);
            std::memcpy(static_cast<std::uint8_t*>(iov[which].iov_base) + at,
                        static_cast<const std::uint8_t*>(p->payload) + from, piece);
            at += piece;
        }
        done += piece;
        from += piece;
        if (!how.take) {
            if (from == p->len) p = p->next, from = 0;
            continue;
        }
        from = 0;
        blocks::remove(*p, static_cast<std::uint32_t>(piece));
        if (p->len != 0) continue;
        first_ = p->next;
        if (first_ == nullptr) last_ = nullptr;
        if (settled_ == nullptr) loose_--;
        if (settled_ == p) settled_ = nullptr;
        held_ -= blocks::cost(*p);
        blocks::free_one(p);
        p = first_;
    }
    if (how.take) bytes_ -= done;
    return done;
}

void ReceiveQueue::clear() noexcept {
    while (first_ != nullptr) {
        pbuf* next = first_->next;
        blocks::free_one(first_);
        first_ = next;
    }
    last_ = settled_ = nullptr;
    bytes_ = held_ = 0;
    loose_ = 0;
}

}  // namespace vma::tcp
