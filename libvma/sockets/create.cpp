// SPDX-License-Identifier: BSD-2-Clause
// A socket was made: does the library want it, and as what?
#include <errno.h>
#include <netinet/in.h>

#include "libvma/config/rules.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/runtime.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/sockets/observe/statistics.h"
#include "libvma/sockets/stack.h"
#include "libvma/sockets/tcp/tcp_socket.h"
#include "libvma/sockets/thread_offload.h"
#include "libvma/sockets/udp/udp_socket.h"

namespace vma::sockets {
namespace {

enum class Protocol { udp, tcp, none };

Protocol protocol_of(int domain, int kind, int protocol) noexcept {
    if (domain != AF_INET) return Protocol::none;
    if (kind == SOCK_DGRAM && (protocol == 0 || protocol == IPPROTO_UDP)) return Protocol::udp;
    if (kind == SOCK_STREAM && (protocol == 0 || protocol == IPPROTO_TCP)) return Protocol::tcp;
    return Protocol::none;
}

const char* kind_name(int domain, int kind) noexcept {
    if (domain == AF_INET6)
        return kind == SOCK_STREAM ? "TCP/IPv6" : kind == SOCK_DGRAM ? "UDP/IPv6" : "raw IPv6";
    return kind == SOCK_RAW ? "raw IPv4" : "other IPv4";
}

// Why the rules leave every socket of the protocol to the kernel, or null.
const char* left_by_rules(Protocol protocol) noexcept {
    const config::RuleTable& rules = config::rules();
    const bool udp = protocol == Protocol::udp;
    const std::string* rule = rules.all_os(udp ? config::Role::udp_receiver : config::Role::tcp_server);
    return rule != nullptr && rules.all_os(udp ? config::Role::udp_sender : config::Role::tcp_client)
               ? rule->c_str()
               : nullptr;
}

}  // namespace

void on_socket_created(int fd, int domain, int type, int protocol) noexcept {
    int saved = errno;
    const int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (runtime::inert() || runtime::in_vfork_child()) return;
    const Protocol wanted = protocol_of(domain, kind, protocol);
    if (wanted != Protocol::none && is_standard_stream(fd)) {
        log::once(log::Level::info, "a socket under the number of a standard stream is served by the kernel");
        stats::note_kernel_socket(fd, domain, kind, stats::Reason::other, "a standard stream");
        errno = saved;
        return;
    }
    if (wanted == Protocol::none) {
        // The log must not start for programs that use no network at all, so local kinds are a matter of
        // debugging.
        if (domain == AF_INET || domain == AF_INET6) {
            log::start();
            log::once(
                log::Level::info, "{} sockets are served by the kernel: {}", kind_name(domain, kind),
                domain == AF_INET6 ? "IPv6 offload is not implemented" : "this kind is never offloaded");
            stats::note_kernel_socket(
                fd, domain, kind, domain == AF_INET6 ? stats::Reason::not_inet : stats::Reason::raw_socket,
                domain == AF_INET6 ? "IPv6" : kind_name(domain, kind));
        }
        errno = saved;
        return;
    }
    try {
        if (!thread_offload::wanted()) {
            log::start();
            config::print_start();
            log::once(log::Level::info, "sockets are served by the kernel: {}",
                      config::get().offloaded_sockets == 0 ? "VMA_OFFLOADED_SOCKETS is 0"
                                                           : "the program asked for it (thread_offload)");
        } else if (Stack* stack = Stack::get(fd)) {
            const char* name = wanted == Protocol::udp ? "UDP" : "TCP";
            if (stack->netns() != netns_of(fd)) {
                log::once(
                    log::Level::info,
                    "a {} socket is served by the kernel: the process has changed its network namespace",
                    name);
                statistics::serve();
                stats::note_kernel_socket(fd, domain, kind, stats::Reason::namespace_changed, {});
            } else if (const char* why = left_by_rules(wanted)) {
                log::once(log::Level::info, "{} sockets are served by the kernel: {}", name, why);
                statistics::serve();
                stats::note_kernel_socket(fd, domain, kind, stats::Reason::rule, {}, why);
            } else {
                Socket* socket = wanted == Protocol::udp
                                     ? static_cast<Socket*>(UdpSocket::create(*stack, fd, type))
                                     : TcpSocket::create(*stack, fd, type);
                if (socket != nullptr) {
                    (void)g_fds.insert(fd, socket);
                    socket->unref();
                }
            }
        }
    } catch (...) {
        // no memory: a kernel socket is a good socket
    }
    errno = saved;
}

}  // namespace vma::sockets
