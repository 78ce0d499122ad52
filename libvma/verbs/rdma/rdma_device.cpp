// SPDX-License-Identifier: BSD-2-Clause
// Opens, makes and destroys the device; rdma_events.cpp has its later events.
#include "libvma/verbs/rdma/rdma_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <mutex>

#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/runtime.h"

namespace vma::verbs::rdma {
namespace {

constexpr std::uint32_t kEthernet =
    14 + 4;  // header with a tag: an adapter may deliver so many bytes beyond the MTU
constexpr std::uint32_t kSmallestChunk = 2048;  // two fit in a page; a frame of ordinary Ethernet fits
constexpr std::uint32_t kSmallDepth =
    1024;  // receives to begin with, as many as a kernel driver has; the ring asks for more
constexpr std::uint32_t kVlanHeadroom = 64;  // the tag needs 4 bytes; frames stay aligned to cache lines
constexpr std::uint32_t kTsoHeader =
    14 + 4 + 20 + 60;  // Ethernet with a tag, IPv4 without options, the longest TCP
constexpr std::uint32_t kTsoPieces =
    17;  // of a large send: the most buffers that a ring uses for one request
constexpr std::uint32_t kLargestTag = 0xffffff;  // 24 bits in a completion of ConnectX

int pid() noexcept { return static_cast<int>(os::raw_syscall(SYS_getpid)); }

// Its manual page wants the call before the first object of any device. It fails if the program has used
// verbs before without it.
void prepare_for_fork(const Verbs& verbs) {
    static const int error = verbs.fork_init();
    if (error != 0) log::once(log::Level::debug, "ibv_fork_init: {}", strerror(error));
}

// The file of the device's counter of frames without a posted buffer.
std::string drops_file(const std::string& root, const Port& port) {
    return fmt::format("{}/class/infiniband/{}/ports/{}/hw_counters/out_of_buffer", root, port.device,
                       port.port);
}

Error open_error(int error, const std::string& device) {
    if (error == EACCES || error == EPERM)
        return {
            EACCES,
            fmt::format("{} may not be opened: the process needs access to /dev/infiniband/uverbs*", device)};
    return {error, fmt::format("{} cannot be opened: {}", device, strerror(error))};
}

}  // namespace

Result<std::unique_ptr<RdmaDevice>> RdmaDevice::open(RdmaConfig config) {
    if (runtime::in_foreign_process() || runtime::in_vfork_child())
        return fail(EBUSY, "not in a vforked child");
    const Result<const Verbs*>& loaded = rdma::verbs();
    if (!loaded) return std::unexpected(loaded.error());
    const Verbs& verbs = **loaded;
    ErrnoAndCancelKept calm;
    if (config.fork) prepare_for_fork(verbs);
    int count = 0;
    ibv_device** list = verbs.get_device_list(&count);
    if (list == nullptr) return fail(errno, fmt::format("libibverbs lists no devices: {}", strerror(errno)));
    ibv_device** const end = list + count;
    ibv_device** found = std::find_if(
        list, end, [&](ibv_device* d) { return config.port.device == verbs.get_device_name(d); });
    ibv_context* context = nullptr;
    int error = ENODEV;
    if (found != end) {
        context = verbs.open_device(*found);
        error = errno;
    }
    verbs.free_device_list(list);
    if (found == end)
        return fail(
            ENODEV,
            fmt::format("libibverbs does not know {}: its provider library, or /dev/infiniband, is missing",
                        config.port.device));
    if (context == nullptr)
        return std::unexpected(open_error(error != 0 ? error : ENODEV, config.port.device));
    std::unique_ptr<RdmaDevice> device(new RdmaDevice(std::move(config), verbs, context));
    if (auto started = device->start(); !started) return std::unexpected(started.error());
    return device;
}

RdmaDevice::RdmaDevice(RdmaConfig config, const Verbs& verbs, ibv_context* context)
    : config_(std::move(config)), verbs_(verbs), owner_(pid()), real_(context) {
    config_.rules.mac = config_.mac;
    config_.rules.vlan = config_.vlan;
    hide(real_->cmd_fd, cmd_fd_);
    hide(real_->async_fd, async_fd_);
    claims_ = std::make_unique<RuleClaims>(real_->cmd_fd);
}

RdmaDevice::~RdmaDevice() {
    if (owner_ != pid()) {
        // Destroying these would free objects of the parent, or of its provider.
        if (flows_) flows_->forget();
        (void)flows_.release();
        (void)claims_.release();
        (void)clock_.release();
        (void)direct_.release();
        return;
    }
    ErrnoAndCancelKept calm;
    destroy();
}

void RdmaDevice::destroy() noexcept {
    if (watching_) runtime::unwatch(async_fd_.get());
    {
        std::lock_guard hold(failure_->lock);
        failure_->call = failure_->qp_call = nullptr;
    }
    flows_.reset();
    claims_.reset();
    if (qp_ != nullptr) verbs_.destroy_qp(qp_);
    direct_.reset();
    if (recv_cq_ != nullptr) verbs_.destroy_cq(recv_cq_);
    if (send_cq_ != nullptr) verbs_.destroy_cq(send_cq_);
    clock_.reset();
    if (mr_ != nullptr) verbs_.dereg_mr(mr_);
    if (pd_ != nullptr) verbs_.dealloc_pd(pd_);
    // libibverbs closes these by their numbers.
    if (channel_ != nullptr) {
        channel_fd_.release();
        verbs_.destroy_comp_channel(channel_);
    }
    cmd_fd_.release();
    async_fd_.release();
    verbs_.close_device(real_);
}

// Moves a descriptor of libibverbs to a high number; libibverbs uses the new number.
void RdmaDevice::hide(int& fd, InternalFd& hidden) noexcept {
    hidden = InternalFd(fd);
    hidden.mirror(&fd);
}

Result<void> RdmaDevice::start() {
    if (!cmd_fd_ || !async_fd_) return fail(EMFILE, "no descriptor for " + config_.port.device);
    if (auto queried = query(); !queried) return queried;
    pd_ = verbs_.alloc_pd(real_);
    if (pd_ == nullptr)
        return fail(errno,
                    fmt::format("no protection domain on {}: {}", config_.port.device, strerror(errno)));
    open_direct();
    attr_.name = fmt::format("{}:{}/{} ({})", direct_ ? "mlx5" : "rdma", config_.port.device,
                             config_.port.port, config_.netdev);
    if (config_.vlan != 0) vlan_ = std::make_unique<VlanLayer>(config_.vlan, config_.priorities);
    drops_before_ = drops_in_sysfs();
    context_ = *real_;
    watch_async_events();
    return {};
}

// Bytes of the buffer that a frame needs in either direction.
std::uint32_t RdmaDevice::buffer_for(std::uint32_t mtu) const noexcept {
    return mtu + kEthernet + attr_.tx_headroom;
}

Result<void> RdmaDevice::query() {
    ibv_port_attr port{};
    if (const int error = verbs_.query_port(real_, config_.port.port, port))
        return fail(error, fmt::format("port {} of {} cannot be queried: {}", config_.port.port,
                                       config_.port.device, strerror(error)));
    if (port.link_layer != IBV_LINK_LAYER_ETHERNET)
        return fail(EOPNOTSUPP, fmt::format("port {} of {} is not an Ethernet port", config_.port.port,
                                            config_.port.device));
    ibv_device_attr_ex device{};
    if (const int error = verbs_.query_device(real_, device))
        return fail(error,
                    fmt::format("{} does not report its features: {}", config_.port.device, strerror(error)));

    const std::uint32_t tag = config_.vlan != 0 ? VlanLayer::kTag : 0;
    attr_.ifindex = config_.ifindex;
    attr_.mac = config_.mac;
    attr_.mtu = config_.mtu;
    attr_.rx_offset = tag;
    attr_.tx_headroom = tag != 0 ? kVlanHeadroom : 0;
    attr_.chunk_size = std::bit_ceil(std::max(kSmallestChunk, buffer_for(config_.mtu)));
    const auto& most = device.orig_attr;
    const auto limit = [](std::uint32_t wanted, int one, int other) {
        const auto bound = static_cast<std::uint32_t>(std::max(1, std::min(one, other)));
        return std::max(1u, std::min(wanted, bound));
    };
    attr_.max_send_wr = limit(config_.tx_entries, most.max_qp_wr, most.max_cqe);
    attr_.max_recv_wr = limit(config_.rx_entries, most.max_qp_wr, most.max_cqe);
    const std::uint64_t caps = most.device_cap_flags | device.device_cap_flags_ex;
    attr_.tx_checksum = attr_.rx_checksum =
        (caps & IBV_DEVICE_RAW_IP_CSUM) || (device.raw_packet_caps & IBV_RAW_PACKET_CAP_IP_CSUM);
    if (ibv_is_qpt_supported(device.tso_caps.supported_qpts, IBV_QPT_RAW_PACKET))
        largest_tso_ = device.tso_caps.max_tso;
    attr_.max_send_sge = limit(largest_tso_ != 0 ? kTsoPieces : 2, most.max_sge, most.max_sge);
    attr_.recv_wr_hint = kSmallDepth;
    moderation_ = device.cq_mod_caps;
    attr_.moderation = moderation_.max_cq_count != 0 && moderation_.max_cq_period != 0;
    attr_.coarse_steering = true;
    attr_.partial_sums = config_.partial_sums;

    const HwClock::Attr clock{
        .conversion = config_.hw_ts, .khz = device.hca_core_clock, .mask = device.completion_timestamp_mask};
    if (clock.conversion != Conversion::none && clock.mask != 0) {
        const bool page = clock.conversion == Conversion::ptp && rdma::mlx5() &&
                          (*rdma::mlx5())->is_supported(real_->device);
        clock_ = std::make_unique<DeviceClock>(real_, clock, page ? *rdma::mlx5() : nullptr);
        if (clock.conversion == Conversion::ptp && clock_->clock().conversion() == Conversion::system)
            log::once(log::Level::info, "{} has no readable PTP clock: VMA_HW_TS_CONVERSION is 3",
                      config_.port.device);
        // A PTP clock may follow TAI, so only conversion `system` is CLOCK_REALTIME.
        attr_.arrival_realtime = clock_->clock().conversion() == Conversion::system;
        if (!clock_->usable()) clock_.reset();
    }
    return {};
}

// Leaves direct_ null where the device is no ConnectX, libmlx5 is missing, or a parameter switches it off.
void RdmaDevice::open_direct() {
    if (!config_.mlx5_direct) return;
    const Result<const Mlx5*>& mlx5 = rdma::mlx5();
    if (!mlx5) {
        if (config_.port.device.starts_with("mlx5"))
            log::once(log::Level::info, "{} is used through libibverbs alone: {}", config_.port.device,
                      mlx5.error().what);
        return;
    }
    if (!(*mlx5)->is_supported(real_->device)) return;
    config_.direct.rx_checksum = attr_.rx_checksum;
    config_.direct.flow_tags = true;
    config_.direct.clock = clock_.get();
    auto direct = mlx5::Direct::create({(*mlx5)->init_obj}, config_.direct);
    if (!direct) {
        log::once(log::Level::info, "{} is used through libibverbs alone: {}", config_.port.device,
                  direct.error().what);
        return;
    }
    direct_ = std::move(*direct);
    attr_.flow_tags = kLargestTag;
    attr_.arrival_times = clock_ != nullptr;
}

bool RdmaDevice::mark(ibv_qp* qp, std::uint64_t wr_id) noexcept {
    if (!direct_ || failed()) return false;
    ibv_send_wr wr{}, *bad = nullptr;
    wr.wr_id = wr_id;
    wr.opcode = IBV_WR_DRIVER1;
    wr.send_flags = IBV_SEND_SIGNALED;
    return ibv_post_send(qp, &wr, &bad) == 0;
}

Result<ibv_mr*> RdmaDevice::reg_mr(void* addr, std::size_t length) {
    ErrnoAndCancelKept calm;
    if (mr_ != nullptr) return fail(EBUSY, "the device has its memory region already");
    mr_ = verbs_.reg_mr(pd_, addr, length, IBV_ACCESS_LOCAL_WRITE);
    if (mr_ != nullptr) return mr_;
    // The kernel counts pinned memory as locked.
    const int error = errno == ENOMEM || errno == EAGAIN ? ENOBUFS : errno;
    return fail(error, fmt::format("{} cannot register {} KiB of buffers: {}", config_.port.device,
                                   length / 1024, strerror(errno)));
}

Result<ibv_comp_channel*> RdmaDevice::create_comp_channel() {
    ErrnoAndCancelKept calm;
    if (channel_ != nullptr) return fail(EBUSY, "the device has its completion channel already");
    channel_ = verbs_.create_comp_channel(real_);
    if (channel_ == nullptr)
        return fail(errno,
                    fmt::format("{} gives no completion channel: {}", config_.port.device, strerror(errno)));
    hide(channel_->fd, channel_fd_);
    if (!channel_fd_) return fail(EMFILE, "no descriptor for the completion channel");
    const int flags = os::fcntl(channel_->fd, F_GETFL, 0);
    os::fcntl(channel_->fd, F_SETFL, static_cast<unsigned long>(flags | O_NONBLOCK));
    return channel_;
}

// Makes a CQ with time stamps, and with flow tags where the device knows them. Null where the device has no
// such CQs; frames then have no time stamps.
ibv_cq_ex* RdmaDevice::make_extended_cq(int entries, ibv_comp_channel* channel) noexcept {
    ibv_cq_init_attr_ex init{};
    init.cqe = static_cast<std::uint32_t>(entries);
    init.channel = channel;
    for (const std::uint64_t flags : {StampedCq::kTimes | StampedCq::kTags, StampedCq::kTimes}) {
        init.wc_flags = flags;
        if (ibv_cq_ex* cq = ibv_create_cq_ex(real_, &init)) {
            if (!direct_) attr_.flow_tags = (flags & StampedCq::kTags) != 0 ? kLargestTag : 0;
            return cq;
        }
    }
    return nullptr;
}

Result<ibv_cq*> RdmaDevice::create_cq(int entries, ibv_comp_channel* channel) {
    ErrnoAndCancelKept calm;
    const bool receive = channel != nullptr && recv_cq_ == nullptr;
    ibv_cq*& real = receive ? recv_cq_ : send_cq_;
    ibv_cq*& facade = receive ? facades_.recv : facades_.send;
    if (real != nullptr) return fail(EBUSY, "the device has its completion queues already");
    // The kernel's driver promises time stamps of the described form only for CQs that ask for them.
    ibv_cq_ex* extended = receive && clock_ ? make_extended_cq(entries, channel) : nullptr;
    if (receive && clock_ && extended == nullptr) {
        log::once(log::Level::info, "{} gives no completion queue with time stamps", config_.port.device);
        attr_.arrival_times = false;
    }
    real = extended != nullptr ? ibv_cq_ex_to_cq(extended)
                               : verbs_.create_cq(real_, entries, nullptr, channel, 0);
    if (real == nullptr)
        return fail(errno, fmt::format("{} gives no completion queue of {} entries: {}", config_.port.device,
                                       entries, strerror(errno)));
    facade = real;
    if (direct_) {
        auto wrapped = direct_->wrap_cq(real);
        if (!wrapped) return std::unexpected(wrapped.error());
        facade = *wrapped;
    } else if (extended != nullptr) {
        stamped_ = std::make_unique<StampedCq>(extended, clock_->clock(), attr_.flow_tags != 0);
        attr_.arrival_times = true;
        facade = stamped_->facade();
    }
    return receive && vlan_ ? vlan_->wrap_recv_cq(facade) : facade;
}

ibv_qp* RdmaDevice::make_qp(ibv_qp_init_attr_ex& init) noexcept {
    if (init.max_tso_header == 0) return verbs_.create_qp(pd_, reinterpret_cast<ibv_qp_init_attr*>(&init));
    verbs_context* extended = verbs_get_ctx_op(real_, create_qp_ex);
    if (extended == nullptr) {
        errno = EOPNOTSUPP;
        return nullptr;
    }
    return extended->create_qp_ex(real_, &init);
}

Result<ibv_qp*> RdmaDevice::create_qp(const ibv_qp_init_attr& wanted) {
    ErrnoAndCancelKept calm;
    if (mr_ == nullptr || recv_cq_ == nullptr || send_cq_ == nullptr || qp_ != nullptr)
        return fail(EINVAL, "one memory region and two completion queues first, then one QP");
    ibv_qp_init_attr_ex init{};
    init.pd = pd_;
    init.qp_type = IBV_QPT_RAW_PACKET;
    init.send_cq = send_cq_;
    init.recv_cq = recv_cq_;
    // The device refuses a missing feature without naming it, so each attempt asks for less.
    const std::uint32_t inline_bytes = config_.max_inline;
    const struct {
        bool tso;
        std::uint32_t inline_bytes;
    } tries[] = {{true, inline_bytes}, {true, 0}, {false, inline_bytes}, {false, 0}};
    int error = EINVAL;
    for (const auto& attempt : tries) {
        // libmlx5 (44, and no other provider has TSO) misplaces the data of a large send whose headers wrap
        // around the queue's end. So only the direct queues use TSO.
        if (attempt.tso && (largest_tso_ == 0 || !direct_)) continue;
        init.cap = wanted.cap;
        init.cap.max_inline_data = attempt.inline_bytes;
        init.comp_mask = IBV_QP_INIT_ATTR_PD | (attempt.tso ? IBV_QP_INIT_ATTR_MAX_TSO_HEADER : 0);
        init.max_tso_header = attempt.tso ? kTsoHeader : 0;
        qp_ = make_qp(init);
        if (qp_ != nullptr) break;
        error = errno;
        if (error == EPERM || error == EACCES) break;
    }
    const std::string& device = config_.port.device;
    if (qp_ == nullptr) {
        if (error == EPERM || error == EACCES)
            return fail(
                EPERM,
                fmt::format(
                    "{} gives no raw packet queue: the process needs CAP_NET_RAW (setcap cap_net_raw+ep, or "
                    "AmbientCapabilities= in a systemd unit)",
                    device));
        if (error == ENOMEM)
            return fail(
                error,
                fmt::format(
                    "{} has no room for queues of {} receives and {} sends: reduce VMA_RX_WRE and VMA_TX_WRE",
                    device, wanted.cap.max_recv_wr, wanted.cap.max_send_wr));
        return fail(error, fmt::format("{} gives no raw packet queue: {}", device, strerror(error)));
    }
    if (const int refused = bring_up())
        return fail(refused,
                    fmt::format("the queues of {} cannot be started: {}", device, strerror(refused)));
    attr_.max_inline = inline_bytes == 0 ? 0 : std::min(init.cap.max_inline_data, inline_bytes);
    attr_.max_tso = init.max_tso_header != 0 ? static_cast<std::uint32_t>(largest_tso_) : 0;
    attr_.max_tso_sge = attr_.max_send_sge;

    facades_.qp = qp_;
    if (direct_) {
        mlx5::QpLimits limits;
        limits.max_send_wr = wanted.cap.max_send_wr;
        limits.max_recv_wr = wanted.cap.max_recv_wr;
        limits.max_send_sge = init.cap.max_send_sge;
        limits.max_recv_sge = init.cap.max_recv_sge;
        limits.max_inline = attr_.max_inline;
        limits.max_tso = attr_.max_tso;
        limits.max_tso_header = init.max_tso_header;
        auto wrapped = direct_->wrap_qp(qp_, facades_.send, facades_.recv, limits);
        if (!wrapped) return std::unexpected(wrapped.error());
        facades_.qp = *wrapped;
    }
    FlowTable::Calls calls{
        [this](ibv_flow_attr* attr) { return ibv_create_flow(qp_, attr); },
        [](ibv_flow* flow) { (void)ibv_destroy_flow(flow); },
    };
    flows_ = std::make_unique<FlowTable>(std::move(calls), config_.rules, config_.port.port, device,
                                         claims_.get());
    if (!vlan_) return facades_.qp;
    attr_.max_inline -= std::min(attr_.max_inline, VlanLayer::kTag);
    return vlan_->wrap_qp(facades_.qp, wanted.cap.max_recv_wr);
}

Result<Flow*> RdmaDevice::create_flow(ibv_qp*, const FlowSpec& spec, std::uint32_t tag) {
    ErrnoAndCancelKept calm;
    return flows_->add(spec, tag);
}

void RdmaDevice::destroy_flow(Flow* flow) noexcept {
    ErrnoAndCancelKept calm;
    flows_->remove(flow);
}

Result<Flow*> RdmaDevice::take_flow(ibv_qp*, Device& from, Flow* flow, std::uint32_t tag) {
    ErrnoAndCancelKept calm;
    // The rings of an interface are all of the same kind (Rings::open_further).
    return flows_->take(*static_cast<RdmaDevice&>(from).flows_, flow, tag);
}

std::uint64_t RdmaDevice::drops_in_sysfs() const {
    const std::string text = read_line(drops_file(sysfs_root(), config_.port));
    std::uint64_t drops = 0;
    std::from_chars(text.data(), text.data() + text.size(), drops);
    return drops;
}

std::uint64_t RdmaDevice::rx_device_drops() noexcept {
    try {
        const std::uint64_t drops = drops_in_sysfs();
        return drops > drops_before_ ? drops - drops_before_ : 0;
    } catch (const std::bad_alloc&) {
        return 0;
    }
}

}  // namespace vma::verbs::rdma
