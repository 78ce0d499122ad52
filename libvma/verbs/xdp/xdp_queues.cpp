// SPDX-License-Identifier: BSD-2-Clause
// The receive queues of an XdpDevice: those that it is opened with, and those that come into use later.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "libvma/runtime/clock.h"
#include "libvma/runtime/log.h"
#include "libvma/verbs/xdp/ethtool.h"
#include "libvma/verbs/xdp/xdp_device.h"

namespace vma::verbs::xdp {
namespace {

// Of the fill ring that an XSK has to have, although it only sends.
constexpr std::uint32_t kUnusedRing = 64;

}  // namespace

// A socket of its own for queue `q`. EINVAL: the queue is not in use. `ways`: to bind the first one.
Result<void> XdpDevice::open_queue(unsigned q, const std::vector<std::uint16_t>& ways) {
    const bool copies = copies_ != nullptr;
    // Frames are sent on the first queue.
    XskConfig xsk{.ifindex = config_.ifindex,
                  .queue = q,
                  .rx_size = copies ? 0 : rx_per_queue_,
                  .tx_size = q == 0 ? attr_.max_send_wr : 0,
                  .fill_size = copies ? kUnusedRing : fill_per_queue_,
                  .completion_size = std::bit_ceil(attr_.max_send_wr + attr_.further_send)};
    auto further = q == 0 ? nullptr : std::make_unique<Xsk>();
    Xsk& socket = q == 0 ? *queues_.front() : *further;
    if (further != nullptr)
        if (auto opened = further->open(); !opened) return opened;
    if (auto made = socket.make_rings(xsk); !made) return made;
    int error = EINVAL;
    for (std::uint16_t flags : ways) {
        xsk.bind_flags = flags;
        // This process's program is attached, so the process that holds the queue is ending: the kernel takes
        // 1 to 300 ms for it.
        while ((error = socket.bind(xsk, q == 0 ? nullptr : queues_.front().get())) == EBUSY &&
               clock::monotonic_ns() < deadline_ns_)
            pause_msec();
        if (error == 0 || error == EBUSY || q != 0) break;
    }
    if (error != 0)
        return fail(error,
                    error == EBUSY
                        ? fmt::format("another process holds queue {} of {}", q, config_.name)
                        : fmt::format("cannot bind to queue {} of {}: {}", q, config_.name, strerror(error)));
    if (q == 0) scatter_ = (xsk.bind_flags & XDP_USE_SG) != 0;
    if (socket.zero_copy()) zero_copy_ = true;
    if (further != nullptr) queues_.push_back(std::move(further));
    // One that comes later first needs chunks, or its frames would be lost.
    socket.fed = !have_qp_;
    if (have_qp_) return watch(socket);
    return copies ? copies_->open(0, socket.rx, 0, rx_per_queue_) : steering_.set_socket(0, q, socket.fd());
}

bool XdpDevice::has_new_queues() noexcept {
    if (copies_ != nullptr || !may_grow() || failed()) return false;
    const unsigned used = std::min({queues_in_use(config_.name), found_.allocated, STEER_MAX_QUEUES + 0u});
    const bool more = used > std::max<std::size_t>(queues_.size(), found_.queues);
    if (used != 0) found_.queues = used;
    return more;
}

std::uint32_t XdpDevice::follow_queues() noexcept {
    const std::size_t before = queues_.size();
    try {
        while (queues_.size() < found_.queues)
            if (auto opened = open_queue(static_cast<unsigned>(queues_.size()), {0}); !opened) {
                log::info("{}: the kernel serves further queues: {}", attr_.name, opened.error().what);
                break;
            }
        attr_.details = details();
        log::info("{}: {}", attr_.name, attr_.details);
    } catch (...) {
        // no memory: the kernel has their frames
    }
    return static_cast<std::uint32_t>(queues_.size() - before) * kSmallDepth;
}

std::string XdpDevice::details() const {
    const std::string driver = driver_of(config_.name);
    const char* const by = !attr_.tx_checksum ? "the library" : zero_copy_ ? "the driver" : "the kernel";
    const char* const way = mode() == Mode::drv   ? (zero_copy_ ? "native XDP without copies" : "native XDP")
                            : mode() == Mode::skb ? "generic XDP"
                                                  : "tcx";
    // The tcx program takes the frames of all queues to one ring.
    const std::string queues =
        copies_ != nullptr ? "all" : fmt::format("{} of {}", queues_.size(), found_.queues);
    return fmt::format("{}{}{}{}, checksums by {}, {} queues, {} frames to receive, {} to send{}{}",
                       driver.empty() ? "" : "driver ", driver, driver.empty() ? "" : ", ", way, by, queues,
                       rx_per_queue_ * queues_.size(), attr_.max_send_wr, found_.refusal.empty() ? "" : "; ",
                       found_.refusal);
}

[[gnu::cold]] void XdpDevice::feed(Xsk& queue) noexcept {
    queue.fed = true;
    const auto number = std::ranges::find(queues_, &queue, &std::unique_ptr<Xsk>::get) - queues_.begin();
    (void)steering_.set_socket(0, static_cast<std::uint32_t>(number), queue.fd());
}

}  // namespace vma::verbs::xdp
