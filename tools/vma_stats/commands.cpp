// SPDX-License-Identifier: BSD-2-Clause
// See commands.h. The process's socket has an abstract name, which belongs to its network namespace. So
// vma_stats makes its socket there.
#include "tools/vma_stats/commands.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cstddef>
#include <string_view>

#include "tools/vma_stats/text.h"

namespace vma_stats {
namespace {

namespace control = vma::stats;

bool same_file(const char* a, const char* b) {
    struct stat first {
    }, second{};
    return stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_ino == second.st_ino &&
           first.st_dev == second.st_dev;
}

// A unix socket in the network namespace of the process.
std::expected<tools::Fd, std::string> socket_near(pid_t pid) {
    const auto make = [] { return tools::Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); };
    const std::string theirs = fmt::format("/proc/{}/ns/net", pid);
    struct stat st {};
    // Without permission to read the link, setns() would fail, too. The namespace may still be the same one.
    if (stat(theirs.c_str(), &st) != 0 || same_file(theirs.c_str(), "/proc/self/ns/net")) return make();
    const tools::Fd home(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)),
        there(open(theirs.c_str(), O_RDONLY | O_CLOEXEC));
    if (!home || !there || setns(there.get(), CLONE_NEWNET) != 0)
        return std::unexpected(fmt::format(
            "it runs in another network namespace, which cannot be entered: {}", strerrordesc_np(errno)));
    tools::Fd made = make();
    if (setns(home.get(), CLONE_NEWNET) != 0)
        return std::unexpected(
            fmt::format("cannot return to the network namespace: {}", strerrordesc_np(errno)));
    return made;
}

// The name comes from the file, which may lie. So the peer must have the process id.
std::expected<tools::Fd, std::string> connect_to(const Attachment& process,
                                                 std::chrono::milliseconds patience) {
    const auto& field = process.header().command_socket;
    const std::string_view name(field, strnlen(field, sizeof field));
    if (name.empty()) return std::unexpected("it takes no commands");
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::size_t length = std::min(name.size(), sizeof address.sun_path - 1);
    memcpy(address.sun_path + 1, name.data(), length);
    auto socket = socket_near(process.pid());
    if (!socket) return socket;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(patience);
    const timeval limit{seconds.count(), std::chrono::microseconds(patience - seconds).count()};
    setsockopt(socket->get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(socket->get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(socket->get(), reinterpret_cast<const sockaddr*>(&address),
                static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length)) != 0)
        return std::unexpected(
            fmt::format("its command socket cannot be reached: {}", strerrordesc_np(errno)));
    ucred peer{};
    socklen_t size = sizeof peer;
    if (getsockopt(socket->get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid != process.pid())
        return std::unexpected("its command socket belongs to another process");
    return socket;
}

}  // namespace

std::expected<std::string, std::string> command(const Attachment& process, const Instruction& what,
                                                std::chrono::milliseconds patience) {
    const auto failed = [&](const std::string& why) {
        return std::unexpected(fmt::format("process {} ({}): {}", process.pid(), process.program(), why));
    };
    const auto socket = connect_to(process, patience);
    if (!socket) return failed(socket.error());
    const control::Request request{.magic = control::kControlMagic,
                                   .version = control::kVersion,
                                   .command = static_cast<std::uint32_t>(what.command),
                                   .value = what.value,
                                   .level = what.level};
    if (send(socket->get(), &request, sizeof request, MSG_NOSIGNAL) != sizeof request)
        return failed(fmt::format("the command could not be sent: {}", strerrordesc_np(errno)));
    control::Answer answer{};
    const ssize_t got = recv(socket->get(), &answer, sizeof answer, 0);
    if (got < 0 && errno == EAGAIN) return failed("no answer in time");
    if (got == 0)
        return failed("it closed the connection: commands are for the user of the process and root");
    if (got < static_cast<ssize_t>(offsetof(control::Answer, text)) || answer.magic != control::kControlMagic)
        return failed("its answer makes no sense");
    const std::string said = text(answer.text);
    if (answer.error != 0) {
        const char* name = strerrordesc_np(answer.error);
        return failed(said.empty() ? (name != nullptr ? name : "refused") : said);
    }
    return said;
}

}  // namespace vma_stats
