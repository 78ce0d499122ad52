// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/strays/stray_segments.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/bpf.h>
#include <sys/socket.h>

#include <cstring>
#include <string>
#include <utility>

#include "libvma/bpf/object.h"
#include "libvma/net/address.h"
#include "libvma/net/checksum.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/runtime.h"

extern "C" const char vma_strays_object[];

namespace vma::ring {
namespace {

constexpr std::size_t kStrayIpAt = sizeof(net::EthernetHeader),
                      kStrayTcpAt = kStrayIpAt + sizeof(net::Ipv4Header);
constexpr std::size_t kRecordRoom = sizeof(stray_segment) + 65536;
constexpr unsigned kRecordsAtOnce = 256;  // then the internal thread looks at its other work
// A loopback address that programs hardly use.
constexpr in_addr_t kOwnAddress = 0x7f564d42;  // 127.86.77.66

std::unexpected<Error> refused(long result, const char* step) {
    const int code = static_cast<int>(-result);
    if (code == EPERM || code == EACCES)
        return fail(code, fmt::format("no permission (CAP_BPF and CAP_NET_ADMIN): {}", step));
    return fail(code, fmt::format("{}: {}", step, strerrordesc_np(code)));
}

Result<InternalFd> owned(long fd, const char* step) {
    if (fd < 0) return refused(fd, step);
    InternalFd owner(static_cast<int>(fd));
    if (!owner) return refused(-EMFILE, step);
    return owner;
}

Result<InternalFd> load(const char* section, bpf_prog_type type, const bpf::MapNumbers& maps) {
    bpf::Object object;
    if (!object.read(vma_strays_object, section)) return refused(-ENOEXEC, "its object is malformed");
    bpf_attr attr{};
    attr.prog_type = type;
    if (type == BPF_PROG_TYPE_SK_LOOKUP) attr.expected_attach_type = BPF_SK_LOOKUP;
    bpf::set_name(attr.prog_name, "vma_strays");
    return owned(bpf::load(object, maps, attr), "the verifier refuses the program");
}

}  // namespace

std::span<std::uint8_t> frame_of(std::span<const std::uint8_t> record, std::uint8_t* out,
                                 net::ParsedFrame& parsed) noexcept {
    stray_segment head;
    if (record.size() < sizeof head) return {};
    std::memcpy(&head, record.data(), sizeof head);
    const std::size_t total = sizeof(net::Ipv4Header) + head.length;
    if (head.length > record.size() - sizeof head || total > 0xffff) return {};
    net::EthernetHeader ethernet;
    std::memcpy(&ethernet, head.ethernet, sizeof ethernet);
    ethernet.type = htons(net::kEthertypeIpv4);  // behind a tag it is the tag's
    net::Ipv4Header ip;
    std::memcpy(&ip, head.ip, sizeof ip);
    ip.version_ihl = 0x45;
    ip.total_length = htons(static_cast<std::uint16_t>(total));
    ip.fragment = 0;
    ip.checksum = 0;
    ip.checksum = static_cast<std::uint16_t>(~net::checksum_fold(net::checksum_add(&ip, sizeof ip, 0)));
    std::memcpy(out, &ethernet, sizeof ethernet);
    std::memcpy(out + kStrayIpAt, &ip, sizeof ip);
    std::memcpy(out + kStrayTcpAt, record.data() + sizeof head, head.length);
    const std::span frame(out, kStrayTcpAt + head.length);
    if (net::parse(frame, false, parsed) != net::Drop::none || parsed.protocol != IPPROTO_TCP) return {};
    return frame;
}

// Bound, not listening yet: the filter has to be there before.
Result<void> StraySegments::bind_listener(strays_config& config) {
    auto made = owned(os::raw_syscall(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0),
                      "a listening socket");
    if (!made) return std::unexpected(made.error());
    listener_ = std::move(*made);
    sockaddr_in name = net::ipv4_name(htonl(kOwnAddress), 0);
    socklen_t length = sizeof name;
    if (long r = os::raw_syscall(SYS_bind, listener_.get(), &name, sizeof name); r < 0)
        return refused(r, "bind of a listening socket");
    if (long r = os::raw_syscall(SYS_getsockname, listener_.get(), &name, &length); r < 0)
        return refused(r, "getsockname of a listening socket");
    config.own_addr = name.sin_addr.s_addr;
    config.own_port = ntohs(name.sin_port);
    return {};
}

Result<void> StraySegments::open(Sink sink) {
    auto started = start();
    if (!started) {
        listener_.reset();
        records_.reset();
        return started;
    }
    frame_ = std::make_unique_for_overwrite<std::uint8_t[]>(kRecordRoom);
    sink_ = std::move(sink);
    runtime::watch(records_.get(), [this] { take_all(); });
    opened_.store(true, std::memory_order_release);
    return {};
}

Result<void> StraySegments::start() {
    strays_config config{};
    if (auto bound = bind_listener(config); !bound) return bound;

    InternalFd tuples, values, sockets, records;
    const struct {
        InternalFd& owner;
        const char* name;
        bpf_map_type type;
        std::uint32_t key, value, entries, flags;
    } maps[] = {
        {tuples, "tuples", BPF_MAP_TYPE_ARRAY, 4, sizeof(stray_bucket), STRAYS_BUCKETS, BPF_F_MMAPABLE},
        {values, "config", BPF_MAP_TYPE_ARRAY, 4, sizeof config, 1, 0},
        {sockets, "listener", BPF_MAP_TYPE_SOCKMAP, 4, 8, 1, 0},
        {records, "segments", BPF_MAP_TYPE_RINGBUF, 0, 0, STRAYS_RING, 0},
    };
    bpf::MapNumbers numbers;
    for (const auto& m : maps) {
        auto made = owned(bpf::make_map(m.name, m.type, m.key, m.value, m.entries, m.flags), m.name);
        if (!made) return std::unexpected(made.error());
        m.owner = std::move(*made);
        numbers.emplace_back(m.name, m.owner.get());
    }
    if (!tuples_.map(tuples.get()) || !segments_.map(records.get(), STRAYS_RING))
        return refused(-errno, "mmap of maps");
    std::memcpy(config.seeds, tuples_.seeds().data(), sizeof config.seeds);
    const std::uint32_t only = 0;
    if (long r = bpf::update_map(values.get(), &only, &config); r < 0) return refused(r, "configuration");

    auto filter = load("socket", BPF_PROG_TYPE_SOCKET_FILTER, numbers);
    if (!filter) return std::unexpected(filter.error());
    auto lookup = load("sk_lookup", BPF_PROG_TYPE_SK_LOOKUP, numbers);
    if (!lookup) return std::unexpected(lookup.error());
    const int filter_number = filter->get();
    if (long r = os::raw_syscall(SYS_setsockopt, listener_.get(), SOL_SOCKET, SO_ATTACH_BPF, &filter_number,
                                 sizeof filter_number);
        r < 0)
        return refused(r, "SO_ATTACH_BPF");
    if (long r = os::raw_syscall(SYS_listen, listener_.get(), 1); r < 0) return refused(r, "listen");
    const std::uint64_t listener_number = static_cast<std::uint64_t>(listener_.get());
    if (long r = bpf::update_map(sockets.get(), &only, &listener_number); r < 0)
        return refused(r, "the map of the listening socket");

    auto ns = owned(os::raw_syscall(SYS_openat, AT_FDCWD, "/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC),
                    "the network namespace");
    if (!ns) return std::unexpected(ns.error());
    bpf_attr attr{};
    attr.link_create.prog_fd = static_cast<std::uint32_t>(lookup->get());
    attr.link_create.target_fd = static_cast<std::uint32_t>(ns->get());
    attr.link_create.attach_type = BPF_SK_LOOKUP;
    auto link = owned(bpf::bpf(BPF_LINK_CREATE, attr), "attaching to the network namespace");
    if (!link) return std::unexpected(link.error());
    link_ = std::move(*link);
    records_ = std::move(records);
    return {};
}

void StraySegments::take_all() noexcept {
    segments_.take(kRecordsAtOnce, [this](std::span<const std::uint8_t> record) { take(record); });
}

void StraySegments::take(std::span<const std::uint8_t> record) noexcept {
    net::ParsedFrame parsed;
    const std::span<std::uint8_t> frame = frame_of(record, frame_.get(), parsed);
    if (!frame.empty()) sink_(frame, parsed);
}

}  // namespace vma::ring
