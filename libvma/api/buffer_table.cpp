// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/api/buffer_table.h"

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>
#include <climits>
#include <mutex>
#include <new>

#include "libvma/runtime/clock.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/never_destroyed.h"

namespace vma::api {
namespace {

constinit NeverDestroyed<BufferTable> g_buffers;

void renew_buffers() noexcept { g_buffers->renew(); }
VMA_RENEW_IN_CHILD(renew_buffers);

}  // namespace

BufferTable& BufferTable::instance() noexcept { return *g_buffers; }

// The region of the parent stays: the program's pointers lead there.
void BufferTable::renew() noexcept { new (this) BufferTable; }

// ---- places ----

bool BufferTable::reserve_locked() noexcept {
    if (places_.load(std::memory_order_relaxed) == nullptr) {
        void* const region = mmap(nullptr, kMost * sizeof(Place), PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (region == MAP_FAILED) return false;
        places_.store(static_cast<Place*>(region), std::memory_order_release);
    }
    const std::uint32_t left = kMost - made_.load(std::memory_order_relaxed) + free_;
    if (left < reserved_ + kMostPieces) return false;
    reserved_ += kMostPieces;
    return true;
}

bool BufferTable::reserve() noexcept {
    const std::lock_guard guard(lock_);
    return reserve_locked();
}

void BufferTable::unreserve() noexcept {
    const std::lock_guard guard(lock_);
    reserved_ -= kMostPieces;
}

// Of a reserved one.
std::uint32_t BufferTable::take() noexcept {
    const std::uint32_t made = made_.load(std::memory_order_relaxed);
    if (free_ > kLate || made == kMost) {
        const std::uint32_t index = first_free_;
        first_free_ = places_.load(std::memory_order_relaxed)[index].next;
        if (first_free_ == kNone) last_free_ = kNone;
        free_--;
        return index;
    }
    new (&places_.load(std::memory_order_relaxed)[made]) Place{};
    made_.store(made + 1, std::memory_order_release);
    return made;
}

void BufferTable::insert(sockets::Held& packet, vma_packet_desc_t& out, bool& room) noexcept {
    static std::uint8_t nothing;
    iovec pieces[kMostPieces];
    unsigned count = std::min(packet.iovecs(pieces, kMostPieces), kMostPieces);
    if (count == 0) pieces[count++] = {&nothing, 0};  // an empty datagram
    Place* before = nullptr;
    Place* first = nullptr;
    const std::lock_guard guard(lock_);
    Place* const places = places_.load(std::memory_order_relaxed);
    for (unsigned i = 0; i < count; i++) {
        const std::uint32_t index = take();
        Place& place = places[index];
        place.buffer = {nullptr, pieces[i].iov_base, static_cast<std::uint16_t>(pieces[i].iov_len)};
        place.next = kNone;
        if (first == nullptr) first = &place;
        place.first = static_cast<std::uint32_t>(first - places);
        if (before != nullptr) before->next = index, before->buffer.next = &place.buffer;
        before = &place;
    }
    out.num_bufs = count;
    out.total_len = static_cast<std::uint16_t>(packet.bytes());
    out.buff_lst = &first->buffer;
    if (packet.arrived() != clock::WallTime{})
        out.hw_timestamp = clock::to_timespec(packet.arrived_at_device().time_since_epoch());
    first->packet = std::move(packet);
    first->live.store(count, std::memory_order_relaxed);
    for (Place* p = first; p != nullptr; p = p->next != kNone ? &places[p->next] : nullptr)
        p->refs.store(1, std::memory_order_release);
    reserved_ -= kMostPieces;
    room = reserve_locked();
}

// ---- the program's pointers ----

BufferTable::Place* BufferTable::find(const vma_buff_t* buffer) noexcept {
    Place* const places = places_.load(std::memory_order_acquire);
    const std::uintptr_t offset =
        reinterpret_cast<std::uintptr_t>(buffer) - reinterpret_cast<std::uintptr_t>(places);
    if (places == nullptr || offset % sizeof(Place) != 0) return nullptr;
    return offset / sizeof(Place) < made_.load(std::memory_order_acquire) ? &places[offset / sizeof(Place)]
                                                                          : nullptr;
}

int BufferTable::ref(const vma_buff_t* buffer) noexcept {
    Place* const place = find(buffer);
    if (place == nullptr) return -EINVAL;
    std::int32_t refs = place->refs.load(std::memory_order_relaxed);
    do {
        if (refs <= 0 || refs == INT_MAX) return -EINVAL;
    } while (!place->refs.compare_exchange_weak(refs, refs + 1, std::memory_order_acq_rel));
    return refs + 1;
}

int BufferTable::drop(Place& place) noexcept {
    std::int32_t refs = place.refs.load(std::memory_order_relaxed);
    do {
        if (refs <= 0) return -EINVAL;
    } while (!place.refs.compare_exchange_weak(refs, refs - 1, std::memory_order_acq_rel));
    if (refs == 1) {
        Place& first = places_.load(std::memory_order_relaxed)[place.first];
        if (first.live.fetch_sub(1, std::memory_order_acq_rel) == 1) release(first);
    }
    return refs - 1;
}

int BufferTable::unref(const vma_buff_t* buffer) noexcept {
    Place* const place = find(buffer);
    return place != nullptr ? drop(*place) : -EINVAL;
}

// The order is the table's: the program may have linked the buffers in another one.
int BufferTable::free_packet(const vma_buff_t* buffer) noexcept {
    Place* place = find(buffer);
    Place* const places = places_.load(std::memory_order_relaxed);
    if (place == nullptr || place->first != place - places) return -EINVAL;
    int error = 0;
    while (place != nullptr) {
        // Its last reference may be the packet's last one.
        Place* const next = place->next != kNone ? &places[place->next] : nullptr;
        if (drop(*place) < 0) error = -EINVAL;
        if (error != 0 && next != nullptr && next->first != place->first) break;
        place = next;
    }
    return error;
}

// All of its buffers are free: so are their places, and the data goes back.
void BufferTable::release(Place& first) noexcept {
    Place* const places = places_.load(std::memory_order_relaxed);
    sockets::Held packet = std::move(first.packet);
    packet.release();
    const std::lock_guard guard(lock_);
    const auto from = static_cast<std::uint32_t>(&first - places);
    std::uint32_t last = from;
    free_++;
    while (places[last].next != kNone) last = places[last].next, free_++;
    (last_free_ != kNone ? places[last_free_].next : first_free_) = from;
    last_free_ = last;
}

}  // namespace vma::api
