// SPDX-License-Identifier: BSD-2-Clause
// Socket options, fcntl and ioctl of a TCP socket.
//
// The shadow is asked first, so the kernel says what exists, what is allowed and what a value becomes; then
// the value is read back from it and given to the connection, if it means something there. An option that the
// library cannot serve makes the socket the kernel's, with its connection if there is one, and an option that
// is not in the table counts as such: nothing is silently accepted.
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "libvma/os/calls.h"
#include "libvma/runtime/log.h"
#include "libvma/sockets/names.h"
#include "libvma/sockets/option_value.h"
#include "libvma/sockets/tcp/defaults.h"
#include "libvma/sockets/tcp/option_table.h"
#include "libvma/sockets/tcp/tcp_socket.h"
#include "libvma/tcp/recovery/congestion.h"

namespace vma::sockets {
namespace {

// TCP_CA_NAME_MAX of linux/tcp.h, which does not go with netinet/tcp.h
constexpr std::size_t kCongestionName = 16;

// Does the value switch on what only the kernel can do? Most of these are off at 0.
bool wants_kernel(const TcpOptionRow& row, const void* value, socklen_t len) noexcept {
    switch (row.effect) {
        case TcpEffect::kernel:
            return true;
        case TcpEffect::kernel_if_set:
            return any_byte(value, len);
        case TcpEffect::kernel_if_limited: {  // SO_MAX_PACING_RATE: all ones is no limit
            const auto* p = static_cast<const unsigned char*>(value);
            return std::any_of(p, p + std::min<socklen_t>(len, 4), [](unsigned char b) { return b != 0xff; });
        }
        case TcpEffect::kernel_if_positive: {  // SO_PEEK_OFF: negative is off
            int number = -1;
            std::memcpy(&number, value, std::min<std::size_t>(len, sizeof number));
            return number >= 0;
        }
        default:
            return false;
    }
}

// An int for the program, cut to its room as the kernel cuts it. 0, or -1 with errno.
int put(const void* from, std::size_t size, void* value, socklen_t* len) noexcept {
    if (!UserMemory::writable(len, sizeof *len)) return failed(EFAULT);
    if (static_cast<int>(*len) < 0) return failed(EINVAL);
    const std::size_t n = std::min<std::size_t>(*len, size);
    if (!UserMemory::writable(value, n)) return failed(EFAULT);
    std::memcpy(value, from, n);
    *len = static_cast<socklen_t>(n);
    return 0;
}

}  // namespace

template <class F>
void TcpSocket::edit_options(F&& edit) noexcept {
    Pin pin(transport_);
    if (pin.connection != nullptr) {
        ConnectionScope here(*pin.connection);
        pin.connection->change(edit);
        return;
    }
    if (state_lock_.owned_by_me()) return;
    state_lock_.lock();
    edit(options_.next());
    state_lock_.unlock();
    if (pin.listener != nullptr) pin.listener->change(edit);
}

void TcpSocket::apply(int fd, int level, int name) noexcept {
    const auto edit = [this](auto&& f) { edit_options(f); };
    const int value = int_option(fd, level, name);
    const auto number = static_cast<std::uint32_t>(value);
    if (level == SOL_SOCKET) {
        switch (name) {
            case SO_RCVTIMEO:
            case kReceiveTimeoutNew:
                receive_timeout_.store(timeout_option(fd, SO_RCVTIMEO));
                break;
            case SO_SNDTIMEO:
            case kSendTimeoutNew:
                options_.set_send_timeout(timeout_option(fd, SO_SNDTIMEO));
                break;
            case SO_REUSEADDR:
                edit([&](tcp::Options& o) { o.reuse_address = value != 0; });
                break;
            case SO_REUSEPORT:
                options_.set_reuseport(value != 0);
                break;
            case SO_LINGER: {
                struct linger l {};
                socklen_t len = sizeof l;
                os::getsockopt(fd, SOL_SOCKET, SO_LINGER, &l, &len);
                options_.set_linger(std::chrono::seconds(l.l_onoff != 0 ? std::max(l.l_linger, 0) : -1));
                break;
            }
            case SO_KEEPALIVE:
                edit([&](tcp::Options& o) { o.keepalive = value != 0; });
                break;
            case SO_RCVBUF:
            case SO_RCVBUFFORCE: {
                const int size = int_option(fd, SOL_SOCKET, SO_RCVBUF);
                edit([&](tcp::Options& o) { o.set_receive_window(window_of_receive_buffer(size)); });
                break;
            }
            case SO_SNDBUF:
            case SO_SNDBUFFORCE: {
                const int size = int_option(fd, SOL_SOCKET, SO_SNDBUF);
                edit([&](tcp::Options& o) { o.send_buffer = static_cast<std::uint32_t>(size); });
                break;
            }
            case SO_RCVLOWAT:
                options_.set_receive_lowat(std::max(number, 1u));
                edit([&](tcp::Options& o) { o.receive_lowat = std::max(number, 1u); });
                if (Pin pin(transport_); pin.connection != nullptr) {
                    ConnectionScope here(*pin.connection);
                    pin.connection->tell_readable();
                }
                break;
            case SO_MARK:
                edit([&](tcp::Options& o) { o.path.mark = number; });
                break;
            case SO_BINDTODEVICE:
            case kBindToIfindex: {
                const int ifindex = int_option(fd, SOL_SOCKET, kBindToIfindex);
                edit([&](tcp::Options& o) { o.path.oif = ifindex; });
                if (phase() == Phase::listening) {
                    Stack::Control control(stack_);
                    if (control.mine) refresh_rules();
                }
                break;
            }
            default:
                break;
        }
        return;
    }
    if (level == IPPROTO_IP) {
        switch (name) {
            case IP_TOS:
                edit([&](tcp::Options& o) { o.path.tos = static_cast<std::uint8_t>(value); });
                break;
            case IP_TTL:
                edit([&](tcp::Options& o) { o.path.ttl = static_cast<std::uint8_t>(value); });
                break;
            case IP_MTU_DISCOVER:
                edit([&](tcp::Options& o) { o.never_cut = value == IP_PMTUDISC_DO; });
                edit([&](tcp::Options& o) { o.path.dont_fragment = forbids_fragments(value); });
                break;
            case IP_BIND_ADDRESS_NO_PORT:
                name_.set_no_port(value != 0);
                break;
            default:
                break;
        }
        return;
    }
    switch (name) {
        case TCP_NODELAY: {
            edit([&](tcp::Options& o) { o.nodelay = value != 0; });
            Pin pin(transport_);
            if (pin.connection != nullptr) {
                ConnectionScope here(*pin.connection);
                pin.connection->nodelay(value != 0);
            }
            break;
        }
        case TCP_CORK:
            edit([&](tcp::Options& o) { o.cork = value != 0; });
            break;
        case TCP_MAXSEG:
            edit([&](tcp::Options& o) { o.maxseg = number; });
            break;
        case TCP_KEEPIDLE:
            edit([&](tcp::Options& o) { o.keep_idle = std::chrono::seconds(number); });
            break;
        case TCP_KEEPINTVL:
            edit([&](tcp::Options& o) { o.keep_interval = std::chrono::seconds(number); });
            break;
        case TCP_KEEPCNT:
            edit([&](tcp::Options& o) { o.keep_count = number; });
            break;
        case TCP_SYNCNT:
            edit([&](tcp::Options& o) { o.syn_retries = o.synack_retries = number; });
            break;
        case TCP_LINGER2:
            edit([&](tcp::Options& o) { o.linger2 = std::chrono::seconds(value); });
            break;
        case TCP_DEFER_ACCEPT:
            edit([&](tcp::Options& o) { o.defer_accept = std::chrono::seconds(number); });
            break;
        case TCP_WINDOW_CLAMP:
            edit([&](tcp::Options& o) { o.window_clamp = number; });
            break;
        case TCP_USER_TIMEOUT:
            edit([&](tcp::Options& o) { o.user_timeout = clock::Msec(number); });
            break;
        case TCP_NOTSENT_LOWAT:
            edit([&](tcp::Options& o) { o.notsent_lowat = number; });
            break;
        case TCP_INQ:
            options_.set_report_inq(value != 0);
            break;
        case TCP_CONGESTION: {
            char text[kCongestionName + 1] = "";
            socklen_t len = kCongestionName;
            os::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, text, &len);
            if (auto known = tcp::congestion_algorithm(text))
                edit([&](tcp::Options& o) { o.congestion = *known; });
            else
                handover(fd, leave::congestion_control);
            break;
        }
        default:
            break;
    }
}

int TcpSocket::setsockopt(int fd, int level, int name, const void* value, socklen_t len) {
    if (phase() == Phase::kernel) return os::setsockopt(fd, level, name, value, len);
    options_.settle(fd);
    const TcpOptionRow* row = find_tcp_option(level, name);
    const bool readable = UserMemory::readable(value, len) && len <= 4096;
    char why[64];
    *fmt::format_to_n(why, sizeof why - 1, "socket option {}/{} is set", level, name).out = 0;
    // Such an option may want a connected socket: first the connection moves, then the kernel answers.
    const bool wanted = row != nullptr && readable && wants_kernel(*row, value, len);
    if (wanted && has_connection() && !handover(fd, {stats::Reason::option, why})) return failed(EOPNOTSUPP);

    // No clamp exists for a closed socket only, and to the kernel the shadow is one.
    if (level == IPPROTO_TCP && name == TCP_WINDOW_CLAMP && readable && len >= sizeof(int) &&
        has_connection()) {
        int clamp;
        std::memcpy(&clamp, value, sizeof clamp);
        Pin pin(transport_);
        if (clamp == 0 && pin.connection != nullptr && !over(*pin.connection)) return failed(EINVAL);
    }

    // Stays with the connection, which knows more than its three values (tcp(7)).
    if (level == IPPROTO_TCP && name == TCP_QUICKACK) {
        const int r = os::setsockopt(fd, level, name, value, len);
        if (r != 0 || !readable || len < sizeof(int)) return r;
        int on;
        std::memcpy(&on, value, sizeof on);
        Pin pin(transport_);
        if (pin.connection != nullptr) {
            ConnectionScope here(*pin.connection);
            pin.connection->quick_ack(on != 0);
        } else {
            edit_options([&](tcp::Options& o) { o.quickack = on != 0; });
        }
        return r;
    }
    const int r = os::setsockopt(fd, level, name, value, len);
    if (r != 0 || phase() == Phase::kernel) return r;
    int saved = errno;
    int result = 0;
    if (wanted) {
        leave_to_kernel(fd, {stats::Reason::option, why});
    } else if (row == nullptr) {
        *fmt::format_to_n(why, sizeof why - 1, "socket option {}/{} is not known here", level, name).out = 0;
        if (!handover(fd, {stats::Reason::option, why})) result = EOPNOTSUPP;
    } else if (row->effect == TcpEffect::connection) {
        apply(fd, level, name);
    }
    if (result == 0 && readable && value != nullptr && !has_connection() && !state_lock_.owned_by_me()) {
        const std::lock_guard guard(state_lock_);
        if (!options_.note(level, name, value, len)) result = ENOBUFS;
    }
    errno = saved;
    return result == 0 ? 0 : failed(result);
}

// The kernel's word of the shadow, whose queue holds connections as well as the library's.
int TcpSocket::listener_info(int fd, const Pin& pin, void* value, socklen_t* len) {
    progress(pin);
    alignas(tcp::Info) std::byte all[512]{};
    socklen_t size = sizeof all;
    if (os::getsockopt(fd, IPPROTO_TCP, TCP_INFO, all, &size) != 0) return -1;
    ::tcp_info info;
    std::memcpy(&info, all, sizeof info);
    info.tcpi_unacked += pin.listener->pending();
    std::memcpy(all, &info, sizeof info);
    return put(all, size, value, len);
}

// What only the connection knows. `known` says whether this is one of these.
int TcpSocket::get_from_connection(int fd, int level, int name, void* value, socklen_t* len, bool& known) {
    Pin pin(transport_);
    known = true;
    tcp::Connection* c = pin.connection;
    if (c == nullptr) {
        if (level == SOL_SOCKET && name == SO_ERROR)
            if (const int error = take_pending_error(); error != 0)
                return put(&error, sizeof error, value, len);
        if (const int mss = static_cast<int>(options_.past_mss());
            level == IPPROTO_TCP && name == TCP_MAXSEG && mss != 0 && phase() == Phase::fresh &&
            options_.next().maxseg == 0)
            return put(&mss, sizeof mss, value, len);
        if (pin.listener != nullptr && level == IPPROTO_TCP && name == TCP_INFO)
            return listener_info(fd, pin, value, len);
        known = false;
        return 0;
    }
    if ((level == SOL_SOCKET && name == SO_ERROR) || (level == IPPROTO_TCP && name == TCP_INFO)) look(*c);
    ConnectionScope here(*c);
    if (level == SOL_SOCKET && name == SO_ERROR) {
        int error = take_pending_error();
        if (error == 0) error = c->take_error();
        return put(&error, sizeof error, value, len);
    }
    if (level == SOL_SOCKET && name == SO_PEERNAME) {
        // Unlike getpeername(), this knows the peer of a connection that is over, or begins.
        const net::SocketName peer(c->endpoints().remote);
        if (!UserMemory::writable(len, sizeof *len)) return failed(EFAULT);
        if (*len > peer.size()) return failed(EINVAL);
        return put(peer.get(), peer.size(), value, len);
    }
    if (level == IPPROTO_IP && name == IP_MTU) {
        tcp::Path path;
        if (stack_.paths().find(c->endpoints(), c->options().path, path) != 0) return failed(ENOTCONN);
        const int mtu = static_cast<int>(path.mtu);
        return put(&mtu, sizeof mtu, value, len);
    }
    if (level == IPPROTO_TCP && name == TCP_INFO) {
        // As long as the running kernel has it, and newer fields as in a new socket.
        alignas(tcp::Info) std::byte all[512]{};
        socklen_t size = sizeof all;
        int saved = errno;
        if (os::getsockopt(fd, level, name, all, &size) != 0) size = sizeof(::tcp_info);
        errno = saved;
        tcp::Info info;
        c->info(info);
        if (over(*c)) info.basic.tcpi_state = static_cast<std::uint8_t>(tcp::State::close);
        std::memcpy(all, &info, sizeof info);
        return put(all, size, value, len);
    }
    if (level == IPPROTO_TCP && name == TCP_MAXSEG && (!over(*c) || c->options().maxseg == 0)) {
        const int mss = static_cast<int>(c->mss());
        return put(&mss, sizeof mss, value, len);
    }
    if (level == IPPROTO_TCP && name == TCP_QUICKACK) {
        const int on = c->options().quickack ? 1 : 0;
        return put(&on, sizeof on, value, len);
    }
    if (level == IPPROTO_TCP && name == TCP_CONGESTION) {
        char text[kCongestionName] = "";
        strncpy(text, tcp::congestion_name(c->algorithm()), sizeof text - 1);
        return put(text, sizeof text, value, len);
    }
    known = false;
    return 0;
}

int TcpSocket::getsockopt(int fd, int level, int name, void* value, socklen_t* len) {
    bool known = false;
    if (phase() != Phase::kernel) {
        const int r = get_from_connection(fd, level, name, value, len, known);
        if (known) return r;
        options_.settle(fd);
    }
    return os::getsockopt(fd, level, name, value, len);
}

int TcpSocket::ioctl(int fd, unsigned long request, void* arg) {
    if (has_connection()) {
        Pin pin(transport_);
        if (const tcp::Connection* c = pin.connection) {
            const bool young = still_connecting(*c);
            std::size_t answer = 0;
            bool known = true;
            switch (request) {
                case FIONREAD:  // SIOCINQ
                    flush();
                    look(*c);
                    answer = young ? 0 : c->told();
                    break;
                case SIOCOUTQ:
                    look(*c);
                    answer = young ? 0 : c->unacked_bytes();
                    break;
                case SIOCOUTQNSD:
                    look(*c);
                    answer = young ? 0 : c->unsent_bytes();
                    break;
                case SIOCATMARK:
                    answer = 0;
                    known = !c->urgent_seen();
                    break;
                default:
                    known = false;
            }
            if (known) {
                if (!UserMemory::writable(arg, sizeof(int))) return failed(EFAULT);
                *static_cast<int*>(arg) = static_cast<int>(answer);
                return 0;
            }
        }
    }
    if (request == SIOCATMARK && has_connection())
        handover(fd, leave::urgent_data);  // else the mark is nowhere
    return SteeredSocket::ioctl(fd, request, arg);
}

}  // namespace vma::sockets
