// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/receive/receive_queue.h"

#include <algorithm>
#include <cstring>

#include "libvma/tcp/lwip/piece.h"

namespace vma::tcp {

using lwip::Piece;

namespace {

constexpr std::uint32_t kMaxLoose = 256;  // buffers of the ring that one connection's queue keeps
constexpr std::uint32_t kMinBlock = 512, kBlocksOfWindow = 8;

// Several fit into a small window, so that one that is nearly empty and one that is nearly read do not count
// much.
std::uint32_t block_bytes(std::uint32_t window) noexcept {
    return std::clamp(window / kBlocksOfWindow, kMinBlock, Piece::kLargest + Piece::kOverhead) -
           Piece::kOverhead;
}

}  // namespace

void ReceiveQueue::link(Piece* piece) noexcept {
    piece->set_next(nullptr);
    if (last_ != nullptr)
        last_->set_next(piece);
    else
        first_ = piece;
    last_ = piece;
}

void ReceiveQueue::append(Piece* chain, bool scarce, std::uint32_t window, std::size_t elsewhere) noexcept {
    while (chain != nullptr) {
        Piece* next = chain->next();
        steps_++;
        if (chain->size() == 0) {
            chain->free();
        } else {
            bytes_ += chain->size();
            held_ += chain->cost();
            loose_++;
            link(chain);
        }
        chain = next;
    }
    const std::size_t limit = std::size_t{window} * 7 / 4;
    if (scarce || loose_ > kMaxLoose || held_ + elsewhere > limit) settle(window);
}

void ReceiveQueue::settle(std::uint32_t window) noexcept {
    Piece* p = settled_ != nullptr ? settled_->next() : first_;
    last_ = settled_;
    if (settled_ == nullptr)
        first_ = nullptr;
    else
        settled_->set_next(nullptr);
    while (p != nullptr) {
        Piece* const next = p->next();
        steps_++;
        // A block that is more than half full is as good as a new one.
        if (p->is_block() && p->size() >= p->room()) {
            link(p);
            settled_ = p;
            loose_--;
            p = next;
            continue;
        }
        const std::uint8_t* data = p->data();
        std::uint32_t done = 0;
        while (done < p->size()) {
            std::uint32_t room = settled_ != nullptr && settled_->is_block() ? settled_->room() : 0;
            if (room == 0) {
                Piece* block = Piece::block(block_bytes(window));
                if (block == nullptr) break;
                held_ += block->cost();
                link(block);
                settled_ = block;
                room = block->room();
            }
            const std::uint32_t n = std::min(room, p->size() - done);
            settled_->append(data + done, n);
            done += n;
        }
        p->remove(done);
        if (p->size() != 0) {  // no memory: the rest stays as it is, and the next one comes back to it
            if (last_ != nullptr)
                last_->set_next(p);
            else
                first_ = p;
            for (last_ = p; last_->next() != nullptr;) last_ = last_->next();
            return;
        }
        loose_--;
        held_ -= p->cost();
        p->free();
        p = next;
    }
}

std::size_t ReceiveQueue::read(const iovec* iov, std::size_t count, std::size_t length,
                               const How& how) noexcept {
    std::size_t done = 0, at = 0, which = 0, from = 0, skip = how.skip;
    Piece* p = first_;
    while (skip != 0 && p != nullptr) {
        const std::size_t n = std::min<std::size_t>(skip, p->size());
        skip -= n;
        if (n == p->size())
            p = p->next();
        else
            from = n;
    }
    while (p != nullptr && done < length) {
        std::size_t piece = std::min<std::size_t>(p->size() - from, length - done);
        if (how.copy) {
            while (which < count && at == iov[which].iov_len) which++, at = 0;
            if (which == count) break;
            piece = std::min(piece, iov[which].iov_len - at);
            std::memcpy(static_cast<std::uint8_t*>(iov[which].iov_base) + at, p->data() + from, piece);
            at += piece;
        }
        done += piece;
        from += piece;
        if (!how.take) {
            if (from == p->size()) p = p->next(), from = 0;
            continue;
        }
        from = 0;
        p->remove(static_cast<std::uint32_t>(piece));
        if (p->size() != 0) continue;
        unlink_first();
        p->free();
        p = first_;
    }
    if (how.take) bytes_ -= done;
    return done;
}

Piece* ReceiveQueue::unlink_first() noexcept {
    Piece* const p = first_;
    first_ = p->next();
    if (first_ == nullptr) last_ = nullptr;
    if (settled_ == nullptr) loose_--;
    if (settled_ == p) settled_ = nullptr;
    held_ -= p->cost();
    return p;
}

Piece* ReceiveQueue::take_first() noexcept {
    Piece* const p = unlink_first();
    bytes_ -= p->size();
    p->set_next(nullptr);
    return p;
}

void ReceiveQueue::put_first(Piece* piece) noexcept {
    piece->set_next(first_);
    first_ = piece;
    if (last_ == nullptr) last_ = piece;
    if (settled_ == nullptr) loose_++;
    bytes_ += piece->size();
    held_ += piece->cost();
}

void ReceiveQueue::clear() noexcept {
    while (first_ != nullptr) {
        Piece* next = first_->next();
        first_->free();
        first_ = next;
    }
    last_ = settled_ = nullptr;
    bytes_ = held_ = 0;
    loose_ = 0;
}

}  // namespace vma::tcp
