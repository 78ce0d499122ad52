// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/udp/send_path.h"

#include <iterator>
#include <mutex>

#include "libvma/runtime/clock.h"
#include "libvma/runtime/errno_kept.h"

namespace vma::sockets {
namespace {

constexpr std::chrono::microseconds kRefresh{5'000'000};

// In the order of SendPath::KernelSends.
constexpr const char* kKernelSendsTexts[] = {"UDP_CORK is set",
                                             "UDP_SEGMENT is set",
                                             "SO_MAX_PACING_RATE is set",
                                             "SO_TXTIME is set",
                                             "IP_OPTIONS is set",
                                             "IP_FREEBIND or IP_TRANSPARENT is set",
                                             "SO_NO_CHECK is set",
                                             "it is shut down",
                                             "SO_DONTROUTE is set",
                                             "transmit time stamps are wanted",
                                             "MSG_MORE",
                                             "IP_UNICAST_IF is set"};

}  // namespace

std::string_view SendPath::text_of(unsigned bits) noexcept {
    const auto first = static_cast<std::size_t>(__builtin_ctz(bits));
    return first < std::size(kKernelSendsTexts) ? kKernelSendsTexts[first] : "";
}

void SendPath::set_attributes(const SendAttributes& attributes) noexcept {
    const std::lock_guard guard(lock_);
    attributes_ = attributes;
    version_.fetch_add(1, std::memory_order_release);
}

void SendPath::refresh(clock::Ticks now) noexcept {
    if (now - refreshed_at_.load() <= clock::to_ticks(kRefresh)) return;
    refreshed_at_ = now;
    version_.fetch_add(1, std::memory_order_release);
}

Destination* SendPath::find(Stack& stack, in_addr_t addr, in_port_t port, std::uint32_t version) noexcept {
    Destination* d = last_;
    if (d == nullptr || d->addr != addr || d->port != port) {
        const std::uint64_t key = std::uint64_t{addr} << 16 | port;
        auto it = destinations_.find(key);
        if (it == destinations_.end()) {
            try {
                if (destinations_.size() >= kMaxDestinations) {
                    last_ = nullptr;
                    destinations_.clear();
                }
                auto fresh = std::make_unique<Destination>();
                fresh->addr = addr;
                fresh->port = port;
                it = destinations_.emplace(key, std::move(fresh)).first;
            } catch (...) {
                return nullptr;
            }
        }
        d = last_ = it->second.get();
    }
    if (d->generation != stack.present_view().generation() || d->options != version) {
        resolve_again(stack, *d);
        d->options = version;
    }
    return d;
}

void SendPath::resolve_again(Stack& stack, Destination& d) noexcept {
    const ErrnoKept kept;
    resolve(stack, attributes_, d);
}

}  // namespace vma::sockets
