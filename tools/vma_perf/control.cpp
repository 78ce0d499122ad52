// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/control.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include <bit>
#include <nlohmann/json.hpp>
#include <utility>

namespace vma_perf {
namespace {

constexpr std::size_t kMagicLength = sizeof kMagic - 1;
constexpr auto kSendLimit = std::chrono::seconds(10);  // a peer that reads nothing for so long is gone

const char* byte_order() { return std::endian::native == std::endian::little ? "little" : "big"; }

}  // namespace

Control::Control(tools::Fd fd, std::string peer_name) : fd_(std::move(fd)), peer_(std::move(peer_name)) {
    const int on = 1;
    setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void Control::send_bytes(const char* data, std::size_t length) {
    const auto deadline = Clock::now() + kSendLimit;
    while (length > 0) {
        const ssize_t sent = ::send(fd_.get(), data, length, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            data += sent;
            length -= static_cast<std::size_t>(sent);
        } else if (errno != EAGAIN && errno != EINTR) {
            fail_errno(fmt::format("{} ended the control connection", peer_), kPeerEnded);
        } else if (!wait_for(fd_.get(), POLLOUT, deadline, nullptr)) {
            throw Failure(kPeerEnded, fmt::format("{} does not read its control connection", peer_));
        }
    }
}

void Control::send(const nlohmann::json& message) {
    const std::string text = message.dump();
    const std::uint32_t length = htonl(static_cast<std::uint32_t>(text.size()));
    std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
    bytes += text;
    send_bytes(bytes.data(), bytes.size());
}

// Takes what has arrived. False: nothing, or the end.
bool Control::read_some() {
    char bytes[16384];
    const ssize_t got = recv(fd_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (got > 0) {
        buffer_.append(bytes, static_cast<std::size_t>(got));
        return true;
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) closed_ = true;
    return false;
}

std::optional<nlohmann::json> Control::next_message() {
    std::uint32_t length;
    if (buffer_.size() < sizeof length) return std::nullopt;
    memcpy(&length, buffer_.data(), sizeof length);
    length = ntohl(length);
    if (length > kMaxControl)
        throw Failure(kVersion, fmt::format("{} sent a control message of {} bytes: no vma_perf does that",
                                            peer_, length));
    if (buffer_.size() < sizeof length + length) return std::nullopt;
    auto message = nlohmann::json::parse(buffer_.begin() + sizeof length,
                                         buffer_.begin() + sizeof length + length, nullptr, false);
    buffer_.erase(0, sizeof length + length);
    if (!message.is_object())
        throw Failure(kVersion, fmt::format("{} sent a control message that is no JSON object", peer_));
    return message;
}

nlohmann::json Control::check_error(nlohmann::json message) const {
    const auto error = message.find("error");
    if (error == message.end()) return message;
    const int status = message.value("status", int{kFailed});
    const bool known = (status >= kFailed && status <= kNotOffloaded);
    throw Failure(
        known ? static_cast<Status>(status) : kFailed,
        fmt::format("{}: {}", peer_, error->is_string() ? error->get<std::string>() : error->dump()));
}

std::optional<nlohmann::json> Control::look() {
    while (true) {
        if (auto message = next_message()) return check_error(std::move(*message));
        if (closed_) throw Failure(kPeerEnded, fmt::format("{} ended", peer_));
        if (!read_some() && !closed_) return std::nullopt;
    }
}

nlohmann::json Control::receive(Clock::time_point deadline, const std::atomic<bool>* stop) {
    while (true) {
        if (auto message = look()) return std::move(*message);
        if (!wait_for(fd_.get(), POLLIN, deadline, stop)) {
            if (stop != nullptr && stop->load()) throw Failure(kInterrupted, "interrupted");
            throw Failure(kPeerEnded, fmt::format("{} does not answer", peer_));
        }
    }
}

nlohmann::json Control::expect(const char* field, Clock::time_point deadline, const std::atomic<bool>* stop) {
    nlohmann::json message = receive(deadline, stop);
    const auto found = message.find(field);
    if (found == message.end())
        throw Failure(kVersion, fmt::format("{} sent {} where \"{}\" was expected", peer_,
                                            message.dump().substr(0, 100), field));
    return std::move(*found);
}

void Control::hello(Clock::time_point deadline, const std::atomic<bool>* stop) {
    send_bytes(kMagic, kMagicLength);
    send({{"protocol", kProtocol}, {"version", VMA_VERSION}, {"byte_order", byte_order()}});
    const auto alien = [&] { return Failure(kVersion, fmt::format("{} is no vma_perf", peer_)); };
    while (buffer_.size() < kMagicLength) {
        if (buffer_ != std::string_view(kMagic).substr(0, buffer_.size())) throw alien();
        if (closed_) {
            if (!buffer_.empty()) throw alien();
            throw Failure(kPeerEnded, fmt::format("{} closed the connection before it said anything", peer_));
        }
        if (!read_some() && !closed_ && !wait_for(fd_.get(), POLLIN, deadline, stop))
            throw Failure(kVersion, fmt::format("{} is no vma_perf: it says nothing", peer_));
    }
    if (buffer_.compare(0, kMagicLength, kMagic) != 0) throw alien();
    buffer_.erase(0, kMagicLength);
    const nlohmann::json theirs = receive(deadline, stop);
    const auto text = [&](const char* field) {
        const auto found = theirs.find(field);
        return found == theirs.end() ? std::string("?")
               : found->is_string()  ? found->get<std::string>()
                                     : found->dump();
    };
    if (text("protocol") != std::to_string(kProtocol))
        throw Failure(
            kVersion,
            fmt::format(
                "{} is vma_perf {} with protocol {}, this is {} with protocol {}: use the same version "
                "on both sides",
                peer_, text("version"), text("protocol"), VMA_VERSION, kProtocol));
    if (text("byte_order") != byte_order())
        throw Failure(kVersion, fmt::format("{} has another byte order", peer_));
}

nlohmann::json error_message(const Failure& failure) {
    return {{"error", failure.what()}, {"status", static_cast<int>(failure.status())}};
}

}  // namespace vma_perf
