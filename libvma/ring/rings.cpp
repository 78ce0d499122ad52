// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/rings.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string_view>

#include "libvma/config/params.h"
#include "libvma/ring/devices.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/runtime.h"
#include "libvma/runtime/spin.h"
#include "libvma/verbs/xdp/holder.h"

namespace vma::ring {
namespace {

constexpr rlim_t kDescriptors = 8;               // of a ring, at most
constexpr std::chrono::seconds kRetryPeriod{1};  // a process that held the netdev may have ended

RingConfig ring_config() {
    const config::Params& p = config::get();
    RingConfig ring;
    ring.batch = static_cast<std::uint32_t>(p.cq_poll_batch_max);
    ring.post_batch = static_cast<std::uint32_t>(p.rx_wre_batching);
    ring.max_rx_buffers = static_cast<std::uint32_t>(p.rx_bufs);
    ring.max_tx_buffers = static_cast<std::uint32_t>(p.tx_bufs);
    ring.signal_every = std::min(static_cast<std::uint32_t>(p.tx_wre_batching), ring.signal_every);
    ring.huge_pages = p.mem_alloc_type != 0;
    ring.warn_ordinary = p.mem_alloc_type == 2;
    ring.moderation = {p.cq_moderation_enable != 0,
                       static_cast<std::uint32_t>(std::min(p.cq_moderation_count, p.rx_wre / 2)),
                       clock::Usec(p.cq_moderation_period_usec),
                       static_cast<std::uint32_t>(std::min(p.cq_aim_max_count, p.rx_wre / 2)),
                       clock::Usec(p.cq_aim_max_period_usec),
                       clock::Msec(p.cq_aim_interval_msec),
                       static_cast<std::uint32_t>(p.cq_aim_interrupts_rate)};
    return ring;
}

constexpr int kMostGone = 4;  // interfaces that have gone, with rings, and may come back

// What the operator can mend.
bool mendable(int code) { return code == EPERM || code == EACCES || code == ENOBUFS; }

}  // namespace

bool Rings::eligible(const net::Link& link, std::string& why) {
    if (link.loopback)
        why = "it is the loopback interface";
    else if (!link.ethernet)
        why = "it is not an Ethernet interface";
    else if (link.master != 0)
        why = "it is a port of another interface";
    else if (!link.up)
        why = "it is down";
    else
        return has_device(link, why);
    return false;
}

Ring* Rings::find(int ifindex, unsigned lane) noexcept {
    auto it = slots_.find(ifindex);
    Ring* ring = it == slots_.end() ? nullptr : it->second.by_lane[lane];
    return ring == nullptr || ring->failed() ? nullptr : ring;
}

Ring* Rings::get(int ifindex, unsigned lane, std::string* why) {
    if (Ring* ring = find(ifindex, lane)) return ring;
    net::Link link;
    if (!view_.link(ifindex, link)) return nullptr;
    std::string objection;
    auto tell = [&](const std::string& text) {
        if (why != nullptr) *why = link.name + ": " + text;
        return nullptr;
    };
    if (!eligible(link, objection)) {
        if (!link.loopback)
            log::once(log::Level::info, "sockets on {} are served by the kernel: {}", link.name, objection);
        return tell(objection);
    }
    Slot& slot = slots_[ifindex];
    if (slot.by_lane[lane] != nullptr || (!slot.rings.empty() && slot.rings.front()->failed()))
        return tell("its device has failed");  // for good: the ring stays, for sockets that still refer to it
    if (!slot.rings.empty()) return slot.by_lane[lane] = further(link, slot, lane);
    if (slot.retry_at > clock::monotonic()) return tell(slot.why);
    // The first one waits for a predecessor that ends. Later ones are calls of a program that is served by
    // the kernel meanwhile.
    auto ring = open(link, slot, lane,
                     {.patience = slot.held ? clock::Nsec::zero() : kPatience, .rings = lanes_.limit()});
    if (!ring) {
        slot.retry_at = clock::monotonic() + kRetryPeriod;
        const int code = ring.error().code;
        slot.held = code == EBUSY;
        if (slot.held && !slot.waiting && on_freed_) wait_for(ifindex);
        log::once(mendable(code) ? log::Level::warn : log::Level::info,
                  "sockets on {} are served by the kernel: {}", link.name, ring.error().what);
        if (rlimit limit{};
            code == ENOBUFS && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
            log::once(log::Level::warn,
                      "locked memory is limited to {} KiB, which is too little for the buffers of {}: raise "
                      "it (ulimit -l unlimited, "
                      "LimitMEMLOCK=infinity in a systemd unit) or reduce VMA_RX_WRE and VMA_TX_WRE",
                      limit.rlim_cur / 1024, link.name);
        slot.why = ring.error().what;
        return tell(slot.why);
    }
    slot.rings.push_back(std::move(*ring));
    slot.by_lane[lane] = slot.rings.back().get();
    slot.held = false;
    slot.by_lane[lane]->set_sources(view_.sources(ifindex));
    const verbs::DeviceAttr& attr = slot.by_lane[lane]->attr();
    log::info("sockets on {} are offloaded by {}{}{}", link.name, attr.name, attr.details.empty() ? "" : ": ",
              attr.details);
    return slot.by_lane[lane];
}

// ---- further rings of an interface ----

Ring* Rings::further(const net::Link& link, Slot& slot, unsigned lane) {
    if (slot.full) return least_used(slot);
    auto ring = open_further(link, slot, lane);
    if (!ring) {
        slot.full = true;
        log::once(log::Level::info, "{} has {} rings and cannot have more: further sockets share them: {}",
                  link.name, slot.rings.size(), ring.error().what);
        return least_used(slot);
    }
    slot.rings.push_back(std::move(*ring));
    Ring* made = slot.rings.back().get();
    made->set_sources(view_.sources(link.ifindex));
    log::debug("{}: ring {} is for {}", made->attr().name, lane, lanes_.owner(lane));
    return made;
}

Ring* Rings::least_used(const Slot& slot) noexcept {
    Ring* best = nullptr;
    std::size_t least = 0;
    for (const auto& ring : slot.rings) {
        std::size_t users = 0;
        for (unsigned lane = 0; lane < Lanes::kMost; lane++)
            if (slot.by_lane[lane] == ring.get()) users += 1 + lanes_.users(lane);
        if (ring->failed() || (best != nullptr && users >= least)) continue;
        best = ring.get();
        least = users;
    }
    return best;
}

Result<std::unique_ptr<Ring>> Rings::open_further(const net::Link& link, const Slot& slot, unsigned lane) {
    if (slot.owners == nullptr) return fail(EOPNOTSUPP, "its first ring was opened for all");
    // The descriptors of the process are the program's first of all.
    rlimit files{};
    std::size_t count = 0;
    for_each([&](Ring&) { count++; });
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && (count + 1) * kDescriptors > files.rlim_cur / 8)
        return fail(EMFILE, fmt::format("open files are limited to {}", files.rlim_cur));
    Ring& first = *slot.rings.front();
    if (auto shares = first.device().further(); !shares)
        return std::unexpected(shares.error());
    else if (*shares != nullptr) {
        auto ring = open_on(std::move(*shares), slot, lane);
        if (ring) first.post_for_others((*ring)->attr().borrowed_recv);
        return ring;
    }
    auto device = devices_for(view_, link, {.further = true})[slot.candidate].open();
    if (!device) return std::unexpected(device.error());
    return open_on(std::move(*device), slot, lane);
}

// Has on_freed_ called when the interface may be free: when the process that has it goes, or now and then, if
// that process is not known or about to end. Until get() succeeds or there is another reason against it.
void Rings::wait_for(int ifindex) {
    Slot& slot = slots_[ifindex];
    slot.waiting = true;
    InternalFd holder;
    if (verbs::xdp::Holder::ask(ifindex, &holder) == verbs::xdp::Holder::State::alive && holder) {
        slot.holder = std::move(holder);
        runtime::watch(slot.holder.get(), [this, ifindex] {
            Rings* const rings = this;  // this function may end with the watch
            const int index = ifindex;
            runtime::unwatch_this();
            rings->try_again(index);
        });
        return;
    }
    try_again(ifindex);
}

// Quickly at first: a process that ends needs milliseconds. A program without this library may stay for ever.
void Rings::try_again(int ifindex) {
    static constexpr clock::Msec kTick{10};
    static constexpr unsigned kLongest = 1000;  // ticks
    struct State {
        unsigned next = 1, wait = 1;
    };
    runtime::every(kTick, [this, ifindex, state = std::make_shared<State>()] {
        if (--state->next != 0) return true;
        state->next = state->wait = std::min(state->wait < 50 ? state->wait + 1 : state->wait * 2, kLongest);
        return on_freed_(ifindex);
    });
}

bool Rings::retry(int ifindex) {
    auto found = slots_.find(ifindex);
    if (found == slots_.end()) return false;
    if (!found->second.rings.empty() && found->second.rings.front()->failed()) {
        // The interface is gone. It may come back, or another one with its number. Sockets still refer to the
        // rings, so these stay, with their memory: hence a limit. An adapter is no better when opened again.
        const int last = std::min(slots_.begin()->first, 0);
        if (last <= -kMostGone || found->second.rings.front()->attr().coarse_steering) return false;
        auto node = slots_.extract(found);
        node.key() = last - 1;  // no interface has this number
        slots_.insert(std::move(node));
        net::Link link;
        if (view_.link(ifindex, link) && link.up) get(ifindex, 0);
        return false;
    }
    Slot& slot = found->second;
    slot.holder.reset();
    slot.waiting = slot.rings.empty() && slot.held;
    if (!slot.waiting) return false;
    slot.retry_at = {};
    if (get(ifindex, 0) != nullptr || !slot.held) return slot.waiting = false;
    // Another process was faster: wait for its end.
    if (verbs::xdp::Holder::ask(ifindex) != verbs::xdp::Holder::State::alive) return true;
    wait_for(ifindex);
    return false;
}

Result<std::unique_ptr<Ring>> Rings::open(const net::Link& link, Slot& slot, unsigned lane,
                                          const Opening& opening) {
    spinners::open();
    if (lanes_.limit() > 1 && slot.owners == nullptr) slot.owners = std::make_shared<RuleOwners>();
    Error last;
    const std::vector<Candidate> candidates = devices_for(view_, link, opening);
    for (const Candidate& candidate : candidates) {
        if (candidate.only_after != 0 && candidate.only_after != last.code) continue;
        if (last.code != 0)
            log::once(mendable(last.code) ? log::Level::warn : log::Level::info, "{}: {}; {} is tried",
                      link.name, last.what, candidate.name);
        auto device = candidate.open();
        if (!device) {
            last = device.error();
            continue;
        }
        auto made = open_on(std::move(*device), slot, lane);
        if (!made) {
            last = made.error();
            continue;
        }
        slot.candidate = static_cast<unsigned>(&candidate - candidates.data());
        return made;
    }
    // Memory for several rings may be more than may be locked.
    if (last.code == ENOBUFS && opening.rings > 1) return open(link, slot, lane, {opening.patience});
    return std::unexpected(last);
}

Result<std::unique_ptr<Ring>> Rings::open_on(std::unique_ptr<verbs::Device> device, const Slot& slot,
                                             unsigned lane) {
    RingConfig config = ring_config();
    config.lane = lane;
    config.owners = slot.owners;
    config.strays = &strays_;
    if (slot.owners != nullptr && slot.rings.empty() && device->attr().coarse_steering)
        slot.owners->leave_out_peers(config::get().tcp_3t_rules != 0, config::get().udp_3t_rules != 0);
    config.is_local = [this](in_addr_t address) { return view_.is_local(address, nullptr); };
    config.on_failure = on_failure_;
    if (on_freed_) device->on_rule_freed([this, ifindex = device->attr().ifindex] { on_freed_(ifindex); });
    auto made = Ring::create(std::move(device), config);
    // Rings are never destroyed while the process lives.
    if (made && config::get().internal_thread_arm_cq != 0) {
        runtime::watch((*made)->channel_fd(), [r = made->get()] { r->channel_ready(); });
        (*made)->channel_ready();
    }
    return made;
}

void Rings::log_counters() {
    if (PollTime::enabled()) log::info("polling took {} % of the process's time", PollTime::per_cent());
    if (!log::enabled(log::Level::debug)) return;
    for_each([](Ring& ring) {
        const RingCounters c = ring.counters();
        fmt::memory_buffer text;
        auto add = [&](std::string_view name, std::uint64_t value) {
            if (value != 0) fmt::format_to(std::back_inserter(text), " {} {}", name, value);
        };
        add("rx_frames", c.rx_frames);
        add("rx_bytes", c.rx_bytes);
        add("tx_frames", c.tx_frames);
        add("tx_bytes", c.tx_bytes);
        add("tcp_connections", c.tcp_connections);
        add("rx_no_socket", c.rx_no_socket);
        add("rx_no_buffer", c.rx_no_buffer);
        add("rx_copied", c.rx_copied);
        add("rx_bad_source", c.rx_bad_source);
        add("rx_socket_full", c.rx_refused);
        add("rx_to_kernel", c.rx_to_kernel);
        add("rx_strays", c.rx_strays);
        add("rx_error", c.rx_error);
        add("tx_error", c.tx_error);
        add("tx_lost", c.tx_lost);
        add("recoveries", c.recoveries);
        add("tx_no_buffer", c.tx_no_buffer);
        add("rx_device", ring.device().rx_device_drops());
        const ModerationCounters m = ring.moderation_counters();
        add("interrupts_requested", m.requested);
        add("interrupts_received", m.received);
        add("moderation_count", m.count);
        add("moderation_period_usec", m.period.count());
        for (std::size_t i = 0; i < c.rx_bad.size(); i++)
            add(net::drop_name(static_cast<net::Drop>(i)), c.rx_bad[i]);
        const std::string lane = ring.lane() == 0 ? "" : fmt::format(", ring {}", ring.lane());
        log::debug("counters of {}{}:{}", ring.attr().name, lane, std::string_view(text.data(), text.size()));
    });
}

bool Rings::check() noexcept {
    bool changed = false;
    net::Link link;
    for (auto& [ifindex, slot] : slots_) {
        const char* why = nullptr;
        const bool up = view_.link(ifindex, link) && link.up;
        for (auto& ring : slot.rings) {
            if (ring->failed()) continue;
            if (ring->check()) changed = true;
            if (const char* reason = ring->silent(up)) why = reason;
        }
        // What the driver does to one of them it does to all.
        if (why == nullptr) continue;
        for (auto& ring : slot.rings) ring->give_up(why);
    }
    return changed;
}

void Rings::sources_changed() {
    for_each([this](Ring& ring) {
        if (!ring.failed()) ring.set_sources(view_.sources(ring.attr().ifindex));
    });
}

void Rings::link_changed(const net::Link& link) noexcept {
    for_each([&](Ring& ring) {
        if (ring.attr().ifindex == link.ifindex && !ring.failed())
            ring.device().link_changed(link.mac, link.mtu);
    });
}

}  // namespace vma::ring
