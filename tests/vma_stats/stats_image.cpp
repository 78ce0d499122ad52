// SPDX-License-Identifier: BSD-2-Clause
// See stats_image.h.
#include "tests/vma_stats/stats_image.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace stats_image {
namespace {

constexpr std::byte kBeyond{0xa5};

template <class Block>
void append(std::vector<std::byte>& bytes, layout::SectionEntry& entry, layout::Section kind,
            const std::vector<Block>& blocks, int longer) {
    const std::size_t size = sizeof(Block) + static_cast<std::size_t>(longer);
    entry = {.kind = static_cast<std::uint32_t>(kind),
             .block_size = static_cast<std::uint32_t>(size),
             .blocks = static_cast<std::uint32_t>(blocks.size()),
             .reserved = 0,
             .offset = bytes.size()};
    for (const Block& block : blocks) {
        const std::size_t at = bytes.size();
        bytes.resize(at + size, kBeyond);
        memcpy(bytes.data() + at, &block, std::min(size, sizeof block));
    }
}

std::string path_of(const std::string& directory, const Image& image) {
    return directory + "/" + layout::kFilePrefix + std::to_string(image.header.pid);
}

void must(bool done, const std::string& what) {
    if (!done) throw std::runtime_error(what + ": " + strerror(errno));
}

void fill(int fd, const std::vector<std::byte>& bytes, const std::string& path) {
    must(pwrite(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()), path);
}

}  // namespace

std::vector<std::byte> Image::bytes() const {
    layout::Header head = header;
    std::vector<std::byte> out(sizeof head);
    unsigned n = 0;
    const auto add = [&](layout::Section kind, const auto& blocks) {
        append(out, head.sections[n++], kind, blocks, longer);
    };
    add(layout::Section::sockets, sockets);
    add(layout::Section::rings, rings);
    add(layout::Section::pools, pools);
    add(layout::Section::muxes, muxes);
    add(layout::Section::groups, groups);
    add(layout::Section::parameters, parameters);
    add(layout::Section::totals, totals);
    head.header_size = sizeof head;
    head.file_size = out.size();
    memcpy(out.data(), &head, sizeof head);
    return out;
}

Image empty(pid_t pid, std::uint64_t start_ticks, const std::string& program) {
    Image image;
    layout::Header& h = image.header;
    memcpy(h.magic, layout::kMagic, sizeof h.magic);
    h.version = layout::kVersion;
    h.pid = static_cast<std::uint32_t>(pid);
    h.uid = getuid();
    h.start_ticks = start_ticks;
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    h.started_ns =
        static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
    h.life = static_cast<std::uint32_t>(layout::Life::running);
    h.log_level = 3;
    set_text(h.program, program);
    set_text(h.library, "0.1.0");
    image.sockets.resize(8);
    image.rings.resize(2);
    image.pools.resize(4);
    image.muxes.resize(layout::kMuxBlocks);
    image.groups.resize(8);
    image.parameters.resize(4);
    image.totals.resize(layout::kTotalsCount);
    return image;
}

layout::Address address(const char* text, std::uint16_t port) {
    layout::Address out{};
    out.port = port;
    out.family = strchr(text, ':') != nullptr ? AF_INET6 : AF_INET;
    must(inet_pton(out.family, text, out.bytes) == 1, text);
    return out;
}

Image sample(pid_t pid, std::uint64_t start_ticks) {
    Image image = empty(pid, start_ticks, "sample");
    constexpr auto kOffloaded = static_cast<std::uint8_t>(layout::Path::offloaded);
    constexpr auto kKernel = static_cast<std::uint8_t>(layout::Path::kernel);
    const auto socket = [&](std::size_t block, int fd, int type) -> layout::SocketBlock& {
        layout::SocketBlock& s = image.sockets[block];
        s.sequence = 4;
        s.state = 1;
        s.id = 100 + block;
        s.fd = fd;
        s.type = type;
        s.family = AF_INET;
        s.inode = 5000 + block;
        s.rx_path = s.tx_path = kOffloaded;
        s.blocking = 1;
        s.ring = 0;
        s.ifindex = 2;
        set_text(s.device, "veth1");
        set_text(s.rule, "no rule");
        return s;
    };
    layout::SocketBlock& udp = socket(0, 14, SOCK_DGRAM);
    udp.multicast_loop = 1;
    udp.local = address("0.0.0.0", 11111);
    udp.rx_thread = 4712;
    udp.rx_queue_packets = 1;
    udp.rx_queue_bytes = 1470;
    udp.rx_queue_limit = 16777216;
    udp.rx_offload = {140479898, 280959796, 3, 4};
    udp.tx_offload = {140479902, 281090048, 5, 6};
    udp.rx_os = {7, 8192, 8, 9};
    udp.tx_os = {10, 11264, 11, 12};
    udp.rx_poll_hit = 276077;
    udp.rx_poll_miss = 10;
    udp.rx_queue_max_packets = 16;
    udp.rx_queue_max_bytes = 23520;
    udp.rx_drop_packets = 13;
    udp.rx_drop_bytes = 19110;

    layout::SocketBlock& listener = socket(1, 15, SOCK_STREAM);
    listener.tcp_state = 10;
    listener.local = address("198.18.1.1", 80);
    listener.tcp_accepted = 41;
    listener.tcp_accept_queue = 2;

    layout::SocketBlock& tcp = socket(3, 16, SOCK_STREAM);
    tcp.tcp_state = 1;
    tcp.blocking = 0;
    tcp.local = address("198.18.1.1", 80);
    tcp.peer = address("198.18.1.2", 40000);
    tcp.rx_offload = {21, 22528, 0, 0};
    tcp.tx_offload = {23, 24576, 0, 0};
    tcp.tcp_segments_in = 31;
    tcp.tcp_segments_out = 32;
    tcp.tcp_retransmits = 33;
    tcp.tcp_rtt_us = 57;
    tcp.tcp_cwnd_bytes = 14600;
    tcp.tcp_mss = 1460;
    tcp.tx_queue_bytes = 77;

    layout::SocketBlock& mixed = socket(4, 17, SOCK_DGRAM);
    mixed.tx_path = kKernel;
    mixed.tx_reason = static_cast<std::uint16_t>(layout::Reason::rule);
    mixed.local = address("198.18.1.1", 5000);
    set_text(mixed.rule, "libvma.conf:12: use os udp_sender *:53");

    layout::RingBlock& ring = image.rings[0];
    ring.sequence = 2;
    ring.state = 1;
    ring.ifindex = 2;
    set_text(ring.interface, "veth1");
    set_text(ring.device, "xdp (generic, copy)");
    set_text(ring.details, "generic XDP, 1 of 4 queues");
    ring.rules = 3;
    ring.moderation_count = 10;
    ring.moderation_period_us = 181;
    ring.rx_packets = 786133;
    ring.rx_bytes = 1192953545;
    ring.tx_packets = 51;
    ring.tx_bytes = 5100;
    ring.interrupts_requested = 786137;
    ring.interrupts_received = 78613;
    ring.drops[static_cast<unsigned>(layout::RingDrop::bad_udp_checksum)] = 6;
    ring.cq_drained_max = 511;
    ring.cq_posted = 500;

    for (unsigned direction = 0; direction < 2; direction++) {
        layout::PoolBlock& pool = image.pools[direction];
        pool.sequence = 2;
        pool.state = 1;
        pool.direction = direction;
        pool.buffers = 4096;
        pool.free = 3000 + direction;
        pool.buffer_bytes = 2048;
        pool.no_buffer = 60 + direction;
    }

    layout::MuxBlock& select = image.muxes[1];
    select.state = 1;
    select.id = 2;
    select.kind = static_cast<std::uint32_t>(layout::Mux::select);
    select.fd = -1;
    select.calls = 50000;
    select.rx_ready_os = 15185;
    select.rx_ready_offload = 30372;
    select.poll_hit = 45557;
    layout::MuxBlock& epoll = image.muxes[2];
    epoll.state = 1;
    epoll.id = 3;
    epoll.kind = static_cast<std::uint32_t>(layout::Mux::epoll);
    epoll.fd = 9;
    epoll.calls = 20;
    epoll.timeouts = 2;
    epoll.errors = 1;
    epoll.poll_hit = 1;
    epoll.poll_miss = 3;
    epoll.members = 2;

    layout::GroupBlock& group = image.groups[0];
    group.state = 1;
    group.socket_id = udp.id;
    group.fd = 14;
    group.path = kOffloaded;
    group.group = address("224.4.1.3", 0);
    group.ifindex = 2;
    set_text(group.interface, "veth1");
    group.frames = 1000;
    group.filtered = 30;
    group.dropped = 4;
    group.delivered = 966;
    layout::GroupBlock& from_source = image.groups[2];
    from_source.state = 1;
    from_source.socket_id = mixed.id;
    from_source.fd = 17;
    from_source.path = kKernel;
    set_text(from_source.detail, "VMA_MC_OFFLOAD is never");
    from_source.group = address("224.4.1.2", 0);
    from_source.source = address("198.18.1.2", 0);

    set_text(image.parameters[0].name, "VMA_RX_POLL");
    set_text(image.parameters[0].value, "100000");
    set_text(image.parameters[0].origin, "default");
    set_text(image.parameters[1].name, "VMA_STATS_FD_NUM");
    set_text(image.parameters[1].value, "8");
    set_text(image.parameters[1].origin, "environment");

    image.totals[layout::kTotalsUdp].sockets = 9;
    image.totals[layout::kTotalsUdp].rx_offload = {71, 72, 73, 74};
    image.totals[layout::kTotalsTcp].sockets = 5;
    image.totals[layout::kTotalsTcp].tcp_retransmits = 75;
    return image;
}

std::uint64_t start_ticks(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    const std::string line{std::istreambuf_iterator<char>(file), {}};
    std::istringstream fields(line.substr(line.rfind(')') + 1));
    std::string field;
    for (int number = 3; number <= 22; number++) fields >> field;
    return std::stoull(field);
}

void write_bytes(const std::string& path, const std::vector<std::byte>& bytes, unsigned mode) {
    const int fd = open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, mode);
    must(fd >= 0, path);
    fill(fd, bytes, path);
    fchmod(fd, mode);
    close(fd);
}

std::string write(const std::string& directory, const Image& image, unsigned mode) {
    const std::string path = path_of(directory, image), made = path + ".new";
    write_bytes(made, image.bytes(), mode);
    must(rename(made.c_str(), path.c_str()) == 0, path);
    return path;
}

void update(const std::string& directory, const Image& image) {
    const std::string path = path_of(directory, image);
    const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    must(fd >= 0, path);
    fill(fd, image.bytes(), path);
    close(fd);
}

}  // namespace stats_image
