// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/stats/mux.h"

#include <array>
#include <atomic>

#include "libvma/runtime/fork_renewal.h"
#include "libvma/stats/stats_memory.h"

namespace vma::stats {
namespace {

constexpr unsigned kPoll = 0, kSelect = 1, kFirstEpoll = 2, kLastEpoll = kMuxBlocks - 1;

struct alignas(64) Calls {
    MuxBlock blocks[2];  // poll, select
};
constinit std::array<Calls, kStripes> g_calls{};
std::array<std::atomic<bool>, kMuxBlocks> g_used{};
std::atomic<std::uint64_t> g_id{0};

constexpr std::uint64_t MuxBlock::*kCounters[] = {
    &MuxBlock::calls,     &MuxBlock::rx_ready_offload, &MuxBlock::rx_ready_os,
    &MuxBlock::timeouts,  &MuxBlock::errors,           &MuxBlock::poll_hit,
    &MuxBlock::poll_miss, &MuxBlock::polling_ns,       &MuxBlock::waiting_ns,
};

void describe(MuxBlock& block, Mux kind, int fd) noexcept {
    Describe guard(block.sequence);
    for (auto counter : kCounters) store(block.*counter, 0);
    store(block.members, 0);
    block.id = g_id.fetch_add(1, std::memory_order_relaxed) + 1;
    block.kind = static_cast<std::uint32_t>(kind);
    block.fd = fd;
    block.thread = 0;
    store(block.state, 1);
}

}  // namespace

MuxBlock* open_epoll(int fd) noexcept {
    StatsMemory* segment = current();
    if (segment == nullptr) return nullptr;
    for (unsigned i = kFirstEpoll; i < kLastEpoll; i++) {
        if (g_used[i].exchange(true, std::memory_order_acquire)) continue;
        describe(segment->mux(i), Mux::epoll, fd);
        return &segment->mux(i);
    }
    MuxBlock& many = segment->mux(kLastEpoll);
    if (!g_used[kLastEpoll].exchange(true)) describe(many, Mux::epoll, -1);
    return &many;
}

void close_epoll(MuxBlock* block) noexcept {
    StatsMemory* segment = current();
    if (segment == nullptr || block == nullptr) return;
    for (unsigned i = kFirstEpoll; i < kLastEpoll; i++) {
        if (&segment->mux(i) != block) continue;
        {
            Describe guard(block->sequence);
            store(block->state, 0);
        }
        g_used[i].store(false, std::memory_order_release);
    }
}

MuxBlock& calls_of(Mux kind) noexcept {
    return g_calls[thread_number() % kStripes].blocks[kind == Mux::poll ? kPoll : kSelect];
}

void collect_muxes() noexcept {
    StatsMemory* segment = current();
    if (segment == nullptr) return;
    for (Calls& calls : g_calls)
        for (unsigned i : {kPoll, kSelect}) {
            MuxBlock &from = calls.blocks[i], &to = segment->mux(i);
            if (load(from.calls) == 0) continue;
            if (load(to.state) == 0) describe(to, i == kPoll ? Mux::poll : Mux::select, -1);
            for (auto counter : kCounters) add_shared(to.*counter, take(from.*counter));
            store(to.thread, load(from.thread));
        }
}

void zero_muxes() noexcept {
    StatsMemory* segment = current();
    if (segment == nullptr) return;
    collect_muxes();
    for (unsigned i = 0; i < kMuxBlocks; i++)
        for (auto counter : kCounters) store(segment->mux(i).*counter, 0);
}

namespace {
void forget_muxes() noexcept {
    for (auto& used : g_used) used.store(false, std::memory_order_relaxed);
    for (Calls& calls : g_calls)
        for (MuxBlock& block : calls.blocks)
            for (auto counter : kCounters) store(block.*counter, 0);
}
VMA_RENEW_IN_CHILD(forget_muxes);
}  // namespace

}  // namespace vma::stats
