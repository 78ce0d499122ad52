// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/mlx5_sim/netdev/netdev_wire.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/if_packet.h>
#include <linux/if_tun.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <set>

#include "libvma/os/raw_syscall.h"
#include "tests/support/mlx5_sim/netdev/netdev_raw.h"
#include "tests/support/mlx5_sim/netdev/netdev_steer_load.h"

extern "C" long mlx5_sim_raw_syscall(long number, long a, long b, long c, long d, long e, long f) {
    return vma::os::raw_syscall(number, a, b, c, d, e, f);
}

namespace mlx5_sim {
namespace {

using vma::os::raw_syscall;

constexpr std::uint32_t kTcxIngress = 46;  // BPF_TCX_INGRESS of newer headers
constexpr std::uint32_t
    kBefore = 1u << 3,
    kAfter = 1u << 4;  // BPF_F_BEFORE, BPF_F_AFTER: without another program: at the head, the tail
constexpr int kTapFrames = 16384;  // between two turns
constexpr std::size_t kMaxFrame = 65536 + 64;
constexpr int kFramesATurn = 64;
constexpr std::size_t kMaxWaiting = 4096;

std::string failed(const std::string& what, long error) {
    return fmt::format("{}: {}", what, strerror(static_cast<int>(-error)));
}

// A program on a hook of an interface, for as long as the descriptor is open.
long attach(int program, std::uint32_t ifindex, std::uint32_t flags) {
    // union bpf_attr of newer headers: link_create with tcx' part, whose other fields are 0.
    std::array<std::uint32_t, 16> attr{static_cast<std::uint32_t>(program), ifindex, kTcxIngress, flags};
    return raw_syscall(SYS_bpf, BPF_LINK_CREATE, attr.data(), sizeof attr);
}

void close_fd(int fd) {
    if (fd >= 0) raw_syscall(SYS_close, fd);
}

// The interface gets no IPv6 address when it goes up, so it sends nothing of its own. By rtnetlink, which
// waits its turn; a write to the setting disable_ipv6 tries again and again while interfaces come and go in
// other namespaces.
void no_ipv6_address(std::uint32_t ifindex) {
    struct {
        nlmsghdr header;
        ifinfomsg link;
        nlattr spec, family, mode;
        std::uint32_t value;
    } request{};
    constexpr auto rest = [](std::size_t offset) {
        return static_cast<std::uint16_t>(offsetof(decltype(request), value) + 1 - offset);
    };
    request.header = {sizeof request, RTM_SETLINK, NLM_F_REQUEST, 0, 0};
    request.link.ifi_index = static_cast<int>(ifindex);
    request.spec = {rest(offsetof(decltype(request), spec)), IFLA_AF_SPEC};
    request.family = {rest(offsetof(decltype(request), family)), AF_INET6};
    request.mode = {rest(offsetof(decltype(request), mode)), IFLA_INET6_ADDR_GEN_MODE};
    request.value = IN6_ADDR_GEN_MODE_NONE;
    const auto fd =
        static_cast<int>(raw_syscall(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    if (fd < 0) return;
    raw_syscall(SYS_sendto, fd, &request, sizeof request, 0, nullptr,
                0);  // done when it returns; else the tap only says more
    close_fd(fd);
}

// What the table says of a rule.
std::array<std::uint64_t, 8> row_of(const Rule& rule) {
    union Key {
        netdev_steer_key fields;
        std::array<std::uint64_t, 4> words;
    } value{}, mask{};
    static_assert(sizeof(netdev_steer_key) == sizeof(std::array<std::uint64_t, 4>));
    if (!rule.sniffs_all) {
        const Match& m = rule.match;
        const auto set = [](auto& value_field, auto& mask_field, auto wanted, auto wanted_mask) {
            value_field = wanted & wanted_mask;
            mask_field = wanted_mask;
        };
        for (std::size_t i = 0; i < 6; ++i) {
            set(value.fields.dst_mac[i], mask.fields.dst_mac[i], m.dst_mac[i], m.dst_mac_mask[i]);
            set(value.fields.src_mac[i], mask.fields.src_mac[i], m.src_mac[i], m.src_mac_mask[i]);
        }
        set(value.fields.tci, mask.fields.tci, m.vlan, m.vlan_mask);
        set(value.fields.ether_type, mask.fields.ether_type, m.ether_type, m.ether_type_mask);
        set(value.fields.src_ip, mask.fields.src_ip, m.src_ip, m.src_ip_mask);
        set(value.fields.dst_ip, mask.fields.dst_ip, m.dst_ip, m.dst_ip_mask);
        set(value.fields.protocol, mask.fields.protocol, m.protocol, m.protocol_mask);
        set(value.fields.src_port, mask.fields.src_port, m.src_port, m.src_port_mask);
        set(value.fields.dst_port, mask.fields.dst_port, m.dst_port, m.dst_port_mask);
        const bool ports = m.src_port_mask != 0 || m.dst_port_mask != 0;
        std::uint8_t has = 0;
        if (m.vlan_mask != 0) has |= NETDEV_STEER_TAG;
        if (ports) has |= NETDEV_STEER_PORTS;
        if (ports || m.src_ip_mask != 0 || m.dst_ip_mask != 0 || m.protocol_mask != 0)
            has |= NETDEV_STEER_IPV4;
        value.fields.has = mask.fields.has = has;
    }
    std::array<std::uint64_t, 8> row{};
    std::copy(value.words.begin(), value.words.end(), row.begin());
    std::copy(mask.words.begin(), mask.words.end(), row.begin() + 4);
    return row;
}

}  // namespace

std::expected<std::unique_ptr<NetdevWire>, std::string> NetdevWire::create(Nic& nic,
                                                                           const std::string& netdev) {
    std::unique_ptr<NetdevWire> wire(new NetdevWire(nic));
    if (std::string error = wire->open(netdev); !error.empty())
        return std::unexpected("netdev wire of " + netdev + ": " + error);
    return wire;
}

std::string NetdevWire::open(const std::string& netdev) {
    if (netdev.empty() || netdev.size() >= IFNAMSIZ) return "not a name of an interface";
    packet_ =
        static_cast<int>(raw_syscall(SYS_socket, AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (packet_ < 0) return failed("a packet socket", packet_);
    const auto configure = [&](unsigned long request, ifreq& ifr) {
        return raw_syscall(SYS_ioctl, packet_, request, &ifr);
    };
    ifreq ifr{};
    netdev.copy(ifr.ifr_name, IFNAMSIZ - 1);
    if (const long error = configure(SIOCGIFINDEX, ifr); error < 0) return failed("no such interface", error);
    const auto ifindex = static_cast<std::uint32_t>(ifr.ifr_ifindex);
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;  // no protocol: this socket only sends
    address.sll_ifindex = ifr.ifr_ifindex;
    if (const long error = raw_syscall(SYS_bind, packet_, &address, sizeof address); error < 0)
        return failed("bind", error);
    const int on = 1;
    raw_syscall(SYS_setsockopt, packet_, SOL_PACKET, PACKET_QDISC_BYPASS, &on,
                sizeof on);  // else they only take longer

    tap_ =
        static_cast<int>(raw_syscall(SYS_openat, AT_FDCWD, "/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
    if (tap_ < 0) return failed("/dev/net/tun", tap_);
    ifreq tap{};
    std::strcpy(tap.ifr_name, "mlx5sim%d");
    tap.ifr_flags = IFF_TAP | IFF_NO_PI;
    if (const long error = raw_syscall(SYS_ioctl, tap_, TUNSETIFF, &tap); error < 0)
        return failed("a tap device", error);
    tap.ifr_qlen = kTapFrames;
    if (const long error = configure(SIOCSIFTXQLEN, tap); error < 0) return failed("the tap's queue", error);
    if (const long error = configure(SIOCGIFINDEX, tap); error < 0) return failed("the tap's index", error);
    const auto tap_index = static_cast<std::uint32_t>(tap.ifr_ifindex);
    no_ipv6_address(tap_index);
    tap.ifr_flags = IFF_UP | IFF_NOARP;
    if (const long error = configure(SIOCSIFFLAGS, tap); error < 0)
        return failed("the tap does not go up", error);

    netdev_steer_fds fds{};
    if (const int error = netdev_steer_load(&fds); error != 0)
        return failed("loading the BPF programs", error);
    const long mapped = raw_syscall(SYS_mmap, nullptr, sizeof(netdev_steer_table), PROT_READ | PROT_WRITE,
                                    MAP_SHARED, fds.table, 0L);
    close_fd(fds.table);
    std::string error;
    if (mapped < 0 && mapped > -4096) {
        error = failed("mapping the table", mapped);
    } else {
        table_ = reinterpret_cast<netdev_steer_table*>(mapped);
        table_->netdev = ifindex;
        table_->tap = tap_index;
        table_->returned = NETDEV_STEER_RETURNED | (tap_index & 0x7fff);
        table_->copies = std::getenv("MLX5_SIM_COPIES") != nullptr;
    }
    // A device is ready when frames come: so the netdev's are last.
    for (const auto& [program, where, flags] : {std::tuple{fds.give, tap_index, kAfter},
                                                {fds.drop, ifindex, kAfter},
                                                {fds.take, ifindex, kBefore}}) {
        const long link = error.empty() ? attach(program, where, flags) : -ECANCELED;
        if (link >= 0) {
            held_.push_back(static_cast<int>(link));
        } else if (error.empty()) {
            error = failed("attaching a BPF program (tcx, Linux 6.6)", link);
        }
        close_fd(program);
    }
    if (!error.empty()) return error;
    buffer_.resize(kMaxFrame);
    hooked_ = true;
    nic_.on_transmit([this](Frame frame) { send(std::move(frame)); });
    follow_rules();
    return {};
}

void NetdevWire::follow_rules() {
    nic_.on_rules([this](const std::vector<Rule>& rules) { set_rules(rules); });
}

NetdevWire::~NetdevWire() {
    if (hooked_) {
        nic_.on_rules({});
        nic_.on_transmit({});
    }
    // First nothing more is taken, then what was taken goes where it belongs.
    if (!held_.empty()) {
        close_fd(held_.back());
        held_.pop_back();
        while (hooked_ && turn()) {
        }
    }
    for (const int fd : held_) close_fd(fd);
    close_fd(tap_);
    close_fd(packet_);
    if (table_ != nullptr) raw_syscall(SYS_munmap, table_, sizeof(netdev_steer_table));
}

// Calls come one after another, but from any thread. The programs read while this writes: a rule they see
// half written is either one that comes or one that goes, and what they take too much comes back.
void NetdevWire::set_rules(const std::vector<Rule>& rules) {
    std::set<Row> wanted;
    for (const Rule& rule : rules) wanted.insert(row_of(rule));
    const auto store = [](auto& field, auto value) {
        std::atomic_ref(field).store(static_cast<std::remove_reference_t<decltype(field)>>(value),
                                     std::memory_order_release);
    };
    if (wanted.size() > NETDEV_STEER_MAX_RULES) store(table_->take_all, 1);
    std::erase_if(rows_, [&](const auto& row) {
        if (wanted.contains(row.first)) return false;
        store(table_->rules[row.second].used, 0);
        free_.push_back(row.second);
        return true;
    });
    for (const Row& row : wanted) {
        if (rows_.contains(row)) continue;
        std::size_t at = rows_.size();
        if (!free_.empty()) {
            at = free_.back();
            free_.pop_back();
        }
        if (at >= NETDEV_STEER_MAX_RULES) break;
        netdev_steer_rule& slot = table_->rules[at];
        std::memcpy(slot.value, row.data(), sizeof slot.value);
        std::memcpy(slot.mask, row.data() + 4, sizeof slot.mask);
        store(slot.used, 1);
        rows_[row] = at;
        if (at >= table_->count) store(table_->count, at + 1);
    }
    if (wanted.size() <= NETDEV_STEER_MAX_RULES) store(table_->take_all, 0);
}

// False: try again later.
bool NetdevWire::send_now(const Frame& frame) {
    const long sent = raw_syscall(SYS_sendto, packet_, frame.data(), frame.size(), 0, nullptr, 0);
    if (sent == -EAGAIN || sent == -ENOBUFS || sent == -EINTR) return false;
    if (sent < 0) ++unsent_;
    return true;
}

void NetdevWire::send(Frame frame) {
    if (waiting_.empty() && send_now(frame)) return;
    if (waiting_.size() < kMaxWaiting) {
        waiting_.push_back(std::move(frame));
    } else {
        ++unsent_;
    }
}

bool NetdevWire::turn() {
    bool moved = false;
    std::size_t sent = 0;
    while (sent < waiting_.size() && send_now(waiting_[sent])) ++sent;
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(sent));
    moved |= sent != 0;
    for (int i = 0; i < kFramesATurn; ++i) {
        const long bytes = raw_syscall(SYS_read, tap_, buffer_.data(), buffer_.size());
        if (bytes <= 0) break;
        moved = true;
        const std::span frame(buffer_.data(), static_cast<std::size_t>(bytes));
        // Its rule went meanwhile: back to the netdev, for the kernel.
        if (!nic_.receive(frame)) raw_syscall(SYS_write, tap_, frame.data(), frame.size());
    }
    return moved;
}

}  // namespace mlx5_sim
