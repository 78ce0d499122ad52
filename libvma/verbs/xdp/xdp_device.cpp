// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/xdp/xdp_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <mutex>

#include "libvma/net/xsk_features.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/log.h"
#include "libvma/verbs/xdp/ethtool.h"
#include "libvma/verbs/xdp/kernel_age.h"
#include "libvma/verbs/xdp/xdp_lane.h"

namespace vma::verbs::xdp {
namespace {

constexpr std::uint32_t kTxHeadroom = 64;  // metadata needs 24 bytes; a cache line keeps headers aligned
constexpr std::uint32_t kSmallChunk = STEER_CHUNK, kLargeChunk = 4096;
constexpr std::uint32_t kDriversUnit = 1024;  // some drivers' of the room for a frame
constexpr std::uint32_t kFillBatch = 32;      // to one queue before the others have a turn
// Receives of a further device, on all queues together: a burst for a thread that does something else. And
// the most that all of them have.
constexpr std::uint32_t kFurther = 1024, kLeastFurther = 256, kMostFurther = 16384;
constexpr std::uint32_t kFurtherSends = 512;
constexpr std::size_t kRoundedUp = 2u << 20;  // what the memory is larger than its chunks, at most

}  // namespace

// How many receives each device has, on each queue; `further` of them for one that shares the netdev.
struct XdpDevice::Plan {
    std::uint32_t queues, first, further;
    unsigned devices = 1;

    Plan(const XdpConfig& config, Mode mode)
        // The tcx program takes the frames of all queues to one ring.
        : queues(mode == Mode::tc ? 1 : config.queues),
          first(std::bit_floor(std::max(256u, config.rx_entries / queues))),
          further(std::max(kLeastFurther, std::min(first, std::bit_floor(kFurther / queues)))) {
        // Before 6.15 two XSKs of one queue may both take the same entry of the fill ring in generic mode.
        if (mode != Mode::skb || generic_rx_is_locked())
            devices = std::clamp(std::min(config.rings, 1 + kMostFurther / (further * queues)), 1u,
                                 unsigned{STEER_MAX_SLOTS});
    }
    // Entries of a queue's ring of received frames, of all devices.
    std::uint32_t received() const noexcept { return first + (devices - 1) * further; }
    // Of its fill ring.
    std::uint32_t posted() const noexcept { return devices == 1 ? first : std::bit_ceil(received()); }
};

Result<std::unique_ptr<XdpDevice>> XdpDevice::open(XdpConfig config) {
    Found found{.queues = config.queues, .allocated = config.queues};
    if (const unsigned used = queues_in_use(config.name); used != 0)
        config.queues = found.queues = std::min(config.queues, used);
    config.queues = std::clamp(config.queues, 1u, unsigned{STEER_MAX_QUEUES});
    const std::uint64_t deadline = clock::monotonic_ns() + config.patience_ns;
    auto announced = Holder::announce(config.ifindex);
    for (; !announced; announced = Holder::announce(config.ifindex)) {
        pid_t pid = 0;
        const Holder::State holder = Holder::ask(config.ifindex, nullptr, &pid);
        if (holder == Holder::State::alive || clock::monotonic_ns() >= deadline)
            return fail(EBUSY, fmt::format("another libvma process holds {}: process {}", config.name, pid));
        pause_msec();
    }
    Error last{ENODEV, "no XDP mode to try"};
    for (Mode mode : config.modes) {
        CopyMaps maps;
        if (mode == Mode::tc) {
            // A frame has as many descriptors when it is sent.
            if (config.mtu > (kMaxSendSge - 1) * std::size_t{STEER_ROOM}) continue;
            const Plan plan(config, mode);
            maps.sizes = {.posted = plan.posted(), .received = plan.received()};
        }
        // Generic XDP would have GRO_HW off, too. Where it cannot be, the kernel warns with a back trace.
        if (mode == Mode::skb && found.refusal.contains("GRO_HW")) {
            last = {EOPNOTSUPP, found.refusal};
            continue;
        }
        auto steering = Steering::attach(config.ifindex, config.name, mode, deadline, maps);
        if (!steering) {
            last = steering.error();
            if (mode == Mode::tc) {
                log::once(log::Level::debug, "{}: {}", config.name, last.what);
                continue;
            }
            if (last.code == EBUSY || last.code == EPERM || last.code == EACCES) break;
            if (mode == Mode::drv) found.refusal = last.what;
            continue;
        }
        std::unique_ptr<CopyRings> copies;
        if (mode == Mode::tc) {
            auto made = CopyRings::make(std::move(maps));
            if (!made) return std::unexpected(made.error());
            copies = std::move(*made);
        }
        auto configured = steering->set_config(config.mac, config.mtu);
        if (!configured) return std::unexpected(configured.error());
        if (mode == Mode::drv) {
            const auto features = net::xsk_features(config.ifindex);
            found.may_avoid_copies = config.zero_copy && (!features || features->zero_copy);
            found.driver_sums = features && features->checksum;
        }
        config.modes = {mode};
        auto device = std::unique_ptr<XdpDevice>(
            new XdpDevice(std::move(config), std::move(found), std::move(*steering), std::move(copies)));
        device->deadline_ns_ = deadline;
        device->name_ = std::move(*announced);
        return device;
    }
    return std::unexpected(last);
}

XdpDevice::XdpDevice(XdpConfig config, Found found, Steering steering, std::unique_ptr<CopyRings> copies)
    : config_(std::move(config)),
      found_(std::move(found)),
      rings_(std::move(copies)),
      steering_(std::move(steering)) {
    copies_ = rings_.get();
    const Plan plan(config_, mode());
    config_.queues = plan.queues;
    attr_.name = fmt::format("xdp:{} ({})", config_.name, name_of(mode()));
    attr_.ifindex = config_.ifindex;
    attr_.mac = config_.mac;
    attr_.mtu = config_.mtu;
    // A small chunk holds a whole frame of an ordinary Ethernet, but a driver without copies may use whole
    // KiB alone (igb). Larger frames come in several large ones.
    const bool small = !found_.may_avoid_copies && config_.mtu + 14 + kHeadroom <= kSmallChunk;
    attr_.chunk_size = copies_ != nullptr || small ? kSmallChunk : kLargeChunk;
    attr_.rx_offset = kHeadroom;
    attr_.tx_headroom = kTxHeadroom;
    attr_.max_send_sge = kMaxSendSge;
    attr_.max_send_wr = std::bit_floor(std::max(64u, config_.tx_entries));
    rx_per_queue_ = plan.first;
    fill_per_queue_ = plan.posted();
    attr_.max_recv_wr = rx_per_queue_ * config_.queues;
    attr_.recv_wr_hint = kSmallDepth * config_.queues;
    attr_.level_events = copies_ == nullptr;
    attr_.partial_sums = config_.partial_sums;
    attr_.lazy_tx = true;
    if (steering_.splits())
        attr_.datagrams_type = STEER_DATAGRAMS;
    else if (mode() == Mode::skb)
        log::once(log::Level::debug,
                  "{}: the kernel gets super-frames of datagrams: CAP_PERFMON and Linux 5.17 spare that",
                  attr_.name);
    open_super_frames(config_.name, config_.inside);
    attr_.kernel_moves_bulk = attr_.tso_copies && mode() != Mode::drv;
    attr_.kernel_receives_bulk = attr_.kernel_moves_bulk && copies_ != nullptr;
    share(plan);
    set_calls({&XdpSender::post_send, &XdpDevice::post_recv, &XdpDevice::poll_cq, &XdpSender::req_notify_cq});
}

void XdpDevice::share(const Plan& plan) {
    if (plan.devices < 2) return;
    const std::uint32_t sends = std::min(kFurtherSends, attr_.max_send_wr);
    shared_ = std::make_unique<SharedPool>(plan.devices, plan.further, sends);
    pool_ = shared_.get();
    attr_.further_recv = (plan.devices - 1) * plan.further * config_.queues;
    attr_.further_send = (plan.devices - 1) * sends;
    attr_.max_recv_wr += attr_.further_recv;
}

Result<std::unique_ptr<Device>> XdpDevice::further() {
    if (shared_ == nullptr)
        return fail(EOPNOTSUPP, generic_rx_is_locked()
                                    ? "it was opened for one"
                                    : "several sockets of one queue need Linux 6.15 in generic mode");
    if (opened_ == shared_->devices())
        return fail(ENOBUFS, fmt::format("its memory is divided for {}", shared_->devices()));
    return std::make_unique<XdpLane>(*this, opened_++);
}

// The sockets go before the program.
XdpDevice::~XdpDevice() { queues_.clear(); }

Result<ibv_mr*> XdpDevice::reg_mr(void* addr, std::size_t length) {
    if (have_mr_) return fail(EBUSY, "the device has its memory region already");
    received_ = static_cast<std::uint8_t*>(addr);
    // The end alone, where the program copies frames into it as into any memory: the umem is locked, which
    // takes time, too. Sends are at the end, in front of what it was rounded up by.
    const std::size_t sends = std::size_t{attr_.max_send_wr + attr_.further_send} * attr_.chunk_size;
    const std::size_t skipped =
        copies_ == nullptr ? 0 : std::max(length, sends + kRoundedUp) - sends - kRoundedUp;
    memory_ = received_ + skipped;
    auto first = std::make_unique<Xsk>();
    bool metadata = false;
    if (auto opened = first->open_with_umem(memory_, length - skipped, attr_.chunk_size, metadata); !opened)
        return std::unexpected(opened.error());
    attr_.tx_checksum = metadata;
    queues_.push_back(std::move(first));
    receives_.start(received_, length, attr_.chunk_size);
    sent_.resize(length - skipped, attr_.chunk_size);
    if (shared_ != nullptr) shared_->laid_out(received_, length, attr_.chunk_size, skipped);
    return fill_mr(addr, length);
}

Result<ibv_qp*> XdpDevice::create_qp(const ibv_qp_init_attr& init) {
    if (!have_mr_ || have_qp_) return fail(EINVAL, "one memory region first, then one QP");
    std::uint32_t room = attr_.chunk_size - kHeadroom;
    if (found_.may_avoid_copies) room = room / kDriversUnit * kDriversUnit;
    // A process that ends gives its sockets up one after the other, and last of all the queue.
    deadline_ns_ = std::max(deadline_ns_, clock::monotonic_ns() + config_.patience_ns);
    const auto ways = ways_to_bind(found_.may_avoid_copies, config_.mtu + 14 <= room);
    if (copies_ != nullptr) copies_->use_posted(queues_.front()->fill);
    queues_.reserve(STEER_MAX_QUEUES);  // the send side looks at the first one while others come
    for (unsigned q = 0; q < config_.queues; q++) {
        auto opened = open_queue(q, ways);
        // The kernel tells how many queues were allocated, not how many are in use; this one is not.
        if (!opened && opened.error().code == EINVAL && q != 0) break;
        if (!opened) return std::unexpected(opened.error());
    }
    // Without copies the driver heeds the metadata, or does not. With copies the kernel does so, but tells
    // drivers no protocol, which many read, and before 6.18 it does not for virtio_net. In doubt the ring
    // sums.
    if (!(zero_copy_ ? found_.driver_sums : config_.inside)) attr_.tx_checksum = false;
    attr_.kernel_sends = !zero_copy_;
    if (auto opened = open_channel(may_grow()); !opened) return std::unexpected(opened.error());
    if (shared_ != nullptr) shared_->set_completions(queues_.front()->completion);
    // There may be fewer queues than were asked for.
    const auto count = static_cast<std::uint32_t>(queues_.size());
    if (shared_ != nullptr) attr_.further_recv = (shared_->devices() - 1) * shared_->receives() * count;
    attr_.max_recv_wr = rx_per_queue_ * count + attr_.further_recv;
    slots_.resize(attr_.max_send_wr);
    attr_.details = details();
    return fill_qp(init);
}

Result<Flow*> XdpDevice::create_flow(ibv_qp*, const FlowSpec& spec, std::uint32_t) {
    if (auto added = steering_.add(spec, 0); !added) return std::unexpected(added.error());
    return new Flow{spec};
}

void XdpDevice::destroy_flow(Flow* flow) noexcept {
    steering_.remove(flow->spec);
    delete flow;
}

// The program's map has one entry for the rule, whichever device it names.
Result<Flow*> XdpDevice::take_flow(ibv_qp*, Device&, Flow* flow, std::uint32_t) {
    if (auto moved = steering_.move(flow->spec, 0); !moved) return std::unexpected(moved.error());
    return flow;
}

void XdpDevice::link_changed(const MacAddress& mac, std::uint32_t mtu) noexcept {
    if (is_gone()) return;
    attr_.mac = mac;
    attr_.mtu = mtu;
    (void)steering_.set_config(mac, mtu);
}

// A program stays on a netdev that moves, and would take frames of another namespace.
void XdpDevice::give_up_flows() noexcept {
    steering_.detach();
    if (!failed()) return;  // its XSKs hold the queues
    name_.reset();
    if (on_freed_) on_freed_();
}

// ---- receive side ----

// Each queue gets back the buffers that it has used. A round robin would gather the buffers in queues without
// traffic.
Xsk* XdpDevice::emptiest_queue() noexcept {
    Xsk* emptiest = nullptr;
    for (const auto& queue : queues_)
        if ((emptiest == nullptr || queue->posted < emptiest->posted) && queue->fill.room(1) != 0)
            emptiest = queue.get();
    return emptiest;
}

int XdpDevice::post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    auto& d = device_of<XdpDevice>(qp->context);
    if (__builtin_expect(d.pool_ == nullptr, 1)) return d.post(wr, bad);
    if (d.pool_->fill_lock().owned_by_me()) {  // in a signal handler
        *bad = wr;
        return ENOMEM;
    }
    const PoolGuard guard(d.pool_->fill_lock(), d.pool_waits_);
    return d.post(wr, bad);
}

int XdpDevice::post(ibv_recv_wr* wr, ibv_recv_wr** bad) noexcept {
    while (wr != nullptr) {
        Xsk* queue = emptiest_queue();
        if (queue == nullptr) {
            *bad = wr;
            return ENOMEM;
        }
        const std::uint32_t room = std::min(queue->fill.room(kFillBatch), kFillBatch);
        std::uint32_t n = 0;
        for (; wr != nullptr && n < room; wr = wr->next) {
            std::uint64_t offset = wr->sg_list->addr - reinterpret_cast<std::uintptr_t>(received_);
            receives_.posted(offset, wr->wr_id);
            queue->fill.back(n++) = offset;
        }
        queue->fill.submit(n);
        queue->posted += n;
        if (__builtin_expect(!queue->fed, 0)) feed(*queue);
        if (queue->fill.needs_wakeup()) queue->kick_rx();
    }
    return 0;
}

int XdpDevice::poll_recv(int count, ibv_wc* wc) noexcept {
    int n = 0;
    for (std::size_t tried = 0; tried < queues_.size() && n < count; tried++) {
        Xsk& queue = *queues_[next_poll_];
        std::uint32_t ready = queue.rx.available();
        if (ready == 0) {
            if (++next_poll_ == queues_.size()) next_poll_ = 0;
            continue;
        }
        ready = std::min<std::uint32_t>(ready, static_cast<std::uint32_t>(count - n));
        bool unfinished = false;
        const int before = n;
        for (std::uint32_t i = 0; i < ready; i++) {
            const xdp_desc& desc = queue.rx.front(i);
            unfinished = (desc.options & XDP_PKT_CONTD) != 0;
            n += receives_.take(desc, qp_.qp_num, wc[n]);
        }
        queue.rx.release(ready);
        queue.posted -= std::min(queue.posted, static_cast<std::uint32_t>(n - before));
        // The loop stays on this queue while a frame is unfinished: its pieces must come out together.
        if (unfinished) break;
        if (++next_poll_ == queues_.size()) next_poll_ = 0;
    }
    if (__builtin_expect(zero_copy_, 0) && n == 0) wake_drivers();
    return n;
}

// A zero-copy driver without buffers sleeps until this process wakes it. No frame arrives meanwhile, so no
// later post would wake it either.
void XdpDevice::wake_drivers() noexcept {
    for (const auto& queue : queues_)
        if (queue->fill.needs_wakeup() && queue->posted != 0) queue->kick_rx();
}

}  // namespace vma::verbs::xdp
