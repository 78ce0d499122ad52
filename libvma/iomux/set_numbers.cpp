// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/iomux/set_numbers.h"

namespace vma::iomux {

namespace set_numbers {
namespace {

constexpr unsigned kNumbers = 1u << 21;  // as many as sockets::FdTable has; higher numbers are not noted
constinit std::atomic<std::uint64_t> g_bits[kNumbers / 64]{};

std::uint64_t bit_of(unsigned number) noexcept { return std::uint64_t{1} << (number % 64); }

}  // namespace

constinit std::atomic<bool> g_any{false};

void note(int fd) noexcept {
    const auto number = static_cast<unsigned>(fd);
    if (number >= kNumbers || noted(fd)) return;
    g_bits[number / 64].fetch_or(bit_of(number), std::memory_order_relaxed);
    g_any.store(true, std::memory_order_relaxed);
}

void forget(int fd) noexcept {
    const auto number = static_cast<unsigned>(fd);
    if (number < kNumbers) g_bits[number / 64].fetch_and(~bit_of(number), std::memory_order_relaxed);
}

bool noted(int fd) noexcept {
    const auto number = static_cast<unsigned>(fd);
    return number < kNumbers && (g_bits[number / 64].load(std::memory_order_relaxed) & bit_of(number)) != 0;
}

}  // namespace set_numbers

WatchedSets::WatchedSets(const pollfd* fds, nfds_t count) noexcept {
    for (nfds_t i = 0; i < count; i++) look_at(fds[i].fd);
}

WatchedSets::WatchedSets(const fd_set* set, int nfds) noexcept {
    any_number(set, nfds, [this](int fd) { return look_at(fd), false; });
}

}  // namespace vma::iomux
