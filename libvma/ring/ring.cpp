// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/ring.h"

#include <algorithm>

#include "libvma/ring/tx_flusher.h"
#include "libvma/runtime/log.h"

namespace vma::ring {

Result<std::unique_ptr<Ring>> Ring::create(std::unique_ptr<verbs::Device> device, const RingConfig& config) {
    auto ring = std::unique_ptr<Ring>(new Ring(std::move(device), config));
    if (auto started = ring->start(config); !started) return std::unexpected(started.error());
    ring->memory_.publish(*ring);
    return {std::move(ring)};
}

Ring::Ring(std::unique_ptr<verbs::Device> device, const RingConfig& config)
    : device_(std::move(device)),
      rx_(*this),
      tx_(rx_.lock()),
      recovery_(rx_, tx_),
      events_(rx_, recovery_, config.moderation),
      lane_(config.lane),
      owners_(config.owners),
      strays_(config.strays != nullptr ? *config.strays : no_strays_) {}

Result<void> Ring::start(const RingConfig& config) {
    const verbs::DeviceAttr& attr = device_->attr();
    const std::uint32_t depth = attr.max_recv_wr;
    // As many buffers again as are posted: what sockets may hold before arriving frames are dropped.
    const std::uint32_t own = depth - attr.further_recv;
    const std::uint32_t rx_wanted =
        attr.further_recv + std::max(own, std::min(2 * own, config.max_rx_buffers));
    // One datagram takes up to kMaxPieces of them.
    const std::uint32_t tx_wanted =
        std::min(attr.max_send_wr, std::max(config.max_tx_buffers, 4 * TxQueue::kMaxPieces));
    auto registered = memory_.open(*device_, {rx_wanted, tx_wanted, config.huge_pages, config.warn_ordinary});
    if (!registered) return registered;
    auto channel = device_->create_comp_channel();
    if (!channel) return std::unexpected(channel.error());
    auto recv_cq = device_->create_cq(static_cast<int>(depth), *channel);
    if (!recv_cq) return std::unexpected(recv_cq.error());
    auto send_cq = device_->create_cq(static_cast<int>(memory_.tx_chunks()), nullptr);
    if (!send_cq) return std::unexpected(send_cq.error());
    ibv_qp_init_attr init{};
    init.recv_cq = *recv_cq;
    init.send_cq = *send_cq;
    init.qp_type = IBV_QPT_RAW_PACKET;
    init.cap.max_recv_wr = depth;
    init.cap.max_send_wr = memory_.tx_chunks();
    init.cap.max_send_sge = attr.max_send_sge;
    init.cap.max_recv_sge = 1;
    auto qp = device_->create_qp(init);
    if (!qp) return std::unexpected(qp.error());
    qp_ = *qp;

    rx_.open(*device_, qp_, *recv_cq, config);
    const bool short_of_memory = memory_.rx_chunks() != rx_wanted;
    const std::uint32_t room = attr.max_recv_wr;  // create_qp() may have found less
    rx_.queue().open(*this, qp_, memory_, short_of_memory ? std::min(room, memory_.rx_chunks() / 2) : room,
                     attr.recv_wr_hint, attr.further_recv, config);
    tx_.open(*device_, qp_, *send_cq, memory_, config);
    if (attr.lazy_tx) TxFlusher::instance().add(this);
    events_.open(*device_, *channel, *recv_cq);
    std::function<void()> on_failure;
    if (config.on_failure) on_failure = [this, tell = config.on_failure] { tell(*this); };
    recovery_.open(*device_, qp_, *recv_cq, std::move(on_failure));
    return {};
}

Ring::~Ring() {
    if (device_->attr().lazy_tx) TxFlusher::instance().remove(this);
    if (qp_ != nullptr) device_->flush(qp_);
    rx_.flows().close();
    device_.reset();  // before the memory it uses
}

// ---- receive ----

void Ring::run_deferred() noexcept {
    ReceiveLock::Detach work;
    for (;;) {
        switch (rx_.lock().next(work)) {
            case ReceiveLock::Next::nothing:
                return;
            case ReceiveLock::Next::recover:
                recovery_.recover();
                break;
            case ReceiveLock::Next::detach:
                rx_.detach(work.spec, work.sink, work.drain);
                work.sink->detached(*this);
                break;
        }
    }
}

Result<void> Ring::attach(const verbs::FlowSpec& spec, FrameSink* sink, Share share) {
    ReceiveLock::Hold hold(rx_.lock());
    // A flow whose sink is to go any moment is free.
    if (share == Share::only && hold.mine && rx_.lock().pending()) run_deferred();
    return rx_.flows().attach(spec, sink, share, !failed());
}

void Ring::detach(const verbs::FlowSpec& spec, FrameSink* sink) noexcept {
    ReceiveLock::Hold hold(rx_.lock());
    rx_.detach(spec, sink, true);
}

// Both locks: only here a thread takes two of them, and one thread at a time (the control lock).
Result<void> Ring::take(const verbs::FlowSpec& spec, FrameSink* sink, Share share, Ring& from) {
    const ReceiveLock::Hold here(rx_.lock()), there(from.rx_.lock());
    if (!here.mine || !there.mine) return vma::fail(EBUSY, "a signal handler interrupted the ring");
    if (failed() || from.failed()) return vma::fail(ENODEV, "the device has failed");
    return rx_.take(spec, sink, share, from.rx_);
}

void Ring::detach_soon(const verbs::FlowSpec& spec, FrameSink* sink, bool drain) noexcept {
    rx_.lock().note_detach({spec, sink, drain});
    rx_.lock().attend();
}

void Ring::expect(std::int64_t delta) noexcept {
    ReceiveLock::Hold hold(rx_.lock());
    rx_.queue().expect(delta);
}

void Ring::expect_stream(bool more) noexcept {
    ReceiveLock::Hold hold(rx_.lock());
    rx_.queue().expect_stream(more);
}

void Ring::post_for_others(std::uint32_t receives) noexcept {
    ReceiveLock::Hold hold(rx_.lock());
    rx_.queue().post_for_others(receives);
}

void Ring::set_sources(net::SourceFilter sources) {
    if (!device_->attr().coarse_steering) {
        if (auto set = device_->set_sources(sources); !set)
            log::once(log::Level::info,
                      "what has no connection yet reaches sockets on {} through the kernel: {}", attr().name,
                      set.error().what);
        return;
    }
    auto fresh = std::make_unique<const net::SourceFilter>(std::move(sources));
    ReceiveLock::Hold hold(rx_.lock());
    rx_.flows().set_sources(fresh);
}

void Ring::icmp_error(const verbs::FlowSpec& spec, const IcmpError& error) noexcept {
    ReceiveLock::Hold hold(rx_.lock());
    rx_.flows().for_each_sink(spec, [&](FrameSink& sink) { sink.icmp_error(*this, error); });
}

// ---- state ----

bool Ring::check() noexcept {
    recovery_.check();
    events_.check();
    if (!device_->has_new_queues()) return false;
    ReceiveLock::Hold hold(rx_.lock());
    if (const std::uint32_t receives = device_->follow_queues(); receives != 0)
        rx_.queue().post_for_others(receives);
    return true;
}

const char* Ring::silent(bool link) noexcept {
    Silence::Seen seen{.link = link, .sends_stand = !attr().kernel_sends && tx_.stands()};
    RxCounters rx;
    {
        ReceiveLock::Hold hold(rx_.lock());
        rx_.count(rx);
    }
    seen.frames = rx.rx_frames;
    seen.strays = rx.rx_strays;
    return silence_.look(seen);
}

BufferCounts Ring::buffer_counts() noexcept {
    BufferCounts counts;
    {
        ReceiveLock::Hold hold(rx_.lock());
        rx_.queue().count(counts);
    }
    tx_.count(counts);
    return counts;
}

RingCounters Ring::counters() noexcept {
    RingCounters c;
    // Held before: exit() in a signal handler that interrupted poll(), which may be changing the table.
    ReceiveLock::Hold hold(rx_.lock());
    rx_.count(c);
    if (hold.mine) c.rules = rx_.flows().rules();
    c.tcp_connections = rx_.flows().tcp_connections();
    c.recoveries = recovery_.recoveries();
    c.flows_taken = rx_.flows().taken();
    c.rx_lock_waits = rx_.lock().waits();
    c.tx_lock_waits = tx_.lock_waits();
    c.device_lock_waits = device_->lock_waits();
    tx_.count(c);
    return c;
}

void Ring::reset_drained_max() noexcept {
    ReceiveLock::Hold hold(rx_.lock());
    rx_.reset_drained_max();
}

}  // namespace vma::ring
