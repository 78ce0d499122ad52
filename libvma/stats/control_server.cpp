// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/stats/control_server.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <new>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/runtime.h"
#include "libvma/stats/counter.h"
#include "libvma/stats/stats_memory.h"

namespace vma::stats {
namespace {

constexpr std::size_t kPeers = 8;
constexpr int kBacklog = 16;

struct Peer {
    InternalFd fd;
    unsigned uid = 0;
    std::uint64_t serial = 0;  // in order of arrival
};

// Only the internal thread uses it, once it is started.
struct Server {
    InternalFd listener;
    CommandHandlers handlers;
    std::array<Peer, kPeers> peers;
    std::uint64_t serial = 0;
};
// Never destroyed, because the internal thread outlives exit(). A forked child makes a new one over the
// parent's.
alignas(Server) std::byte g_memory[sizeof(Server)];
Server* g_server = nullptr;

template <class... Args>
Answer say(int error, fmt::format_string<Args...> format, Args&&... args) {
    Answer answer{kControlMagic, error, {}};
    auto out = fmt::format_to_n(answer.text, sizeof answer.text - 1, format, std::forward<Args>(args)...);
    *out.out = '\0';
    return answer;
}

unsigned user_of(int fd) noexcept {
    ucred peer{};
    socklen_t length = sizeof peer;
    if (os::raw_syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return ~0u;
    return peer.uid;
}

void drop(Peer& peer) noexcept {
    runtime::unwatch(peer.fd.get());
    peer.fd.reset();
}

// Answers a peer's request. False: no request has arrived yet.
bool serve(Peer& peer) noexcept {
    char message[sizeof(Request) + 1];  // one byte more, to recognise a message that is too long
    const long n =
        os::raw_syscall(SYS_recvfrom, peer.fd.get(), message, sizeof message, MSG_DONTWAIT, nullptr, nullptr);
    if (n == -EAGAIN || n == -EINTR) return false;
    if (n <= 0) return true;
    const auto euid = static_cast<unsigned>(os::raw_syscall(SYS_geteuid));
    const Answer answer = answer_to(message, static_cast<std::size_t>(n), peer.uid, euid, g_server->handlers);
    os::raw_syscall(SYS_sendto, peer.fd.get(), &answer, sizeof answer, MSG_DONTWAIT | MSG_NOSIGNAL, nullptr,
                    0);
    return true;
}

Peer& free_place() noexcept {
    Peer* oldest = &g_server->peers[0];
    for (Peer& peer : g_server->peers) {
        if (!peer.fd) return peer;
        if (peer.serial < oldest->serial) oldest = &peer;
    }
    drop(*oldest);
    return *oldest;
}

void accept_peers() {
    for (std::size_t i = 0; i < kPeers; i++) {  // the internal thread calls again while more peers wait
        const long fd = os::raw_syscall(SYS_accept4, g_server->listener.get(), nullptr, nullptr,
                                        SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) return;
        Peer& peer = free_place();
        peer.fd = InternalFd(static_cast<int>(fd));
        if (!peer.fd) return;
        peer.uid = user_of(peer.fd.get());
        peer.serial = ++g_server->serial;
        if (serve(peer)) {
            peer.fd.reset();
            continue;
        }
        runtime::watch(peer.fd.get(), [&peer] {
            if (serve(peer)) drop(peer);
        });
    }
}

// Returns the socket's name, or an empty one.
std::string open_listener(InternalFd& out) {
    std::uint64_t random[2] = {};
    if (getrandom(random, sizeof random, GRND_NONBLOCK) != sizeof random) return {};
    const std::string name =
        fmt::format("vma.{}.{:016x}{:016x}", os::raw_syscall(SYS_getpid), random[0], random[1]);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    const long fd = os::raw_syscall(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return {};
    InternalFd listener(static_cast<int>(fd));
    if (!listener || os::raw_syscall(SYS_bind, listener.get(), &address, length) != 0 ||
        os::raw_syscall(SYS_listen, listener.get(), kBacklog) != 0)
        return {};
    out = std::move(listener);
    return name;
}

}  // namespace

Answer answer_to(const void* message, std::size_t length, unsigned uid, unsigned euid,
                 const CommandHandlers& handlers) noexcept {
    if (uid != euid && uid != 0)
        return say(EPERM, "only user {} and root may command process {}", euid, os::raw_syscall(SYS_getpid));
    Request request;
    if (length != sizeof request)
        return say(EINVAL, "a request has {} bytes, not {}", sizeof request, length);
    std::memcpy(&request, message, sizeof request);
    if (request.magic != kControlMagic) return say(EINVAL, "not a request");
    if (request.version != kVersion)
        return say(EPROTONOSUPPORT, "this process speaks version {}, not {}", kVersion, request.version);
    constexpr int kLowest = static_cast<int>(log::Level::none),
                  kHighest = static_cast<int>(log::Level::finer);
    StatsMemory* segment = current();
    switch (static_cast<Command>(request.command)) {
        case Command::log_level:
            if (request.value < kLowest || request.value > kHighest)
                return say(EINVAL, "a log level is a number from {} to {}", kLowest, kHighest);
            log::set_level(static_cast<log::Level>(request.value));
            break;
        case Command::log_details:
            if (request.value < 0 || request.value > 3)
                return say(EINVAL, "log details are a number from 0 to 3");
            log::set_details(request.value);
            break;
        case Command::zero:
            if (handlers.zero != nullptr) handlers.zero();
            return say(0, "counters begin at 0");
        case Command::dump_socket: {
            if (request.value < 0) return say(EBADF, "there is no socket {}", request.value);
            if (request.level < 0 || request.level > kHighest)
                return say(EINVAL, "a log level is a number from 0 to {}", kHighest);
            const unsigned found = handlers.dump == nullptr ? 0 : handlers.dump(request.value, request.level);
            if (found == 0 && request.value != 0)
                return say(EBADF, "socket {} has no statistics", request.value);
            if (!log::enabled(static_cast<log::Level>(request.level)))
                return say(0, "{} sockets dumped at a level that the log does not show now", found);
            return say(0, "{} sockets dumped to the log", found);
        }
        case Command::refresh:
            if (handlers.refresh != nullptr) handlers.refresh();
            return say(0, "up to date");
        default:
            return say(EOPNOTSUPP, "unknown command {}", request.command);
    }
    if (segment != nullptr) {
        store(segment->header().log_level, static_cast<std::int32_t>(log::level()));
        store(segment->header().log_details, log::details());
    }
    return say(0, "log level {}, details {}", static_cast<int>(log::level()), log::details());
}

void start_control(const CommandHandlers& handlers) noexcept {
    StatsMemory* segment = current();
    if (segment == nullptr || !segment->is_file()) return;  // no reader would find the socket
    try {
        auto* server = new (g_memory) Server;
        server->handlers = handlers;
        const std::string name = open_listener(server->listener);
        if (name.empty()) {
            log::once(log::Level::info, "vma_stats cannot command this process: no socket for it");
            return;
        }
        g_server = server;
        put_text(segment->header().command_socket, name);
        runtime::watch(server->listener.get(), accept_peers);
    } catch (...) {
        log::once(log::Level::info, "vma_stats cannot command this process: out of memory");
    }
}

// The child has closed the descriptors and forgotten the watches already.
void forget_control_in_child() noexcept { g_server = nullptr; }
VMA_RENEW_IN_CHILD(forget_control_in_child);

}  // namespace vma::stats
