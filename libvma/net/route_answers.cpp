// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/net/route_answers.h"

#include <errno.h>
#include <netlink/msg.h>

#include <utility>

#include "libvma/net/decode.h"
#include "libvma/net/requests.h"
#include "libvma/net/section.h"

namespace vma::net {
namespace {

// Announcements do not tell that the kernel has learned a path MTU, so remembered routes expire.
constexpr std::chrono::seconds kKnownFor{1};

}  // namespace

Result<void> RouteAnswers::open() {
    auto opened = NetlinkSocket::open();
    if (!opened) return std::unexpected(opened.error());
    socket_ = std::move(*opened);
    return {};
}

RouteAnswers::Known& RouteAnswers::place(const RouteQuery& q) noexcept {
    std::uint64_t hash = (std::uint64_t{q.dst} << 32 | q.src) * 0x9e3779b97f4a7c15u;
    return known_[hash >> 60];
}

bool RouteAnswers::recall(const RouteQuery& question, std::uint32_t generation, Route& out) noexcept {
    Section section(known_lock_);
    if (!section.entered()) return false;
    const Known& known = place(question);
    if (known.generation != generation || clock::monotonic() - known.asked_at >= kKnownFor ||
        known.query != question)
        return false;
    out = known.route;
    return true;
}

void RouteAnswers::remember(const RouteQuery& question, const Route& answer, std::uint32_t generation,
                            clock::Time asked_at) noexcept {
    Section section(known_lock_);
    if (section.entered()) place(question) = {question, answer, generation, asked_at};
}

Result<Route> RouteAnswers::ask(const RouteQuery& query) {
    Route answer;
    alignas(nlmsghdr) std::uint8_t buffer[4096];  // an answer is some hundred bytes
    nlmsghdr* message = nullptr;
    {
        Section section(socket_lock_);
        if (!section.entered()) return answer;
        const std::uint32_t sequence = socket_.next_sequence();
        RouteRequest request(query, sequence);
        if (socket_.send(request.message()) != 0) return answer;
        // A message before this query's answer belongs to an earlier query whose answer was not readable
        // then.
        while (message == nullptr) {
            ssize_t got = socket_.receive(buffer);
            if (got == -ENOBUFS || got == -EMSGSIZE) continue;
            if (got <= 0) return answer;
            auto* candidate = reinterpret_cast<nlmsghdr*>(buffer);
            if (nlmsg_ok(candidate, static_cast<int>(got)) && candidate->nlmsg_seq == sequence)
                message = candidate;
        }
    }
    if (message->nlmsg_type == NLMSG_ERROR) {
        int error = 0;
        if (nlmsg_datalen(message) >= static_cast<int>(sizeof(nlmsgerr)))
            error = -static_cast<const nlmsgerr*>(nlmsg_data(message))->error;
        if (error > 0) return fail(error, "route lookup");  // short enough for std::string not to allocate
        return answer;
    }
    if (!decode_route(message, answer)) return Route{};
    if (answer.src == 0) answer.src = query.src;  // the kernel does not repeat a source from the question
    return answer;
}

void RouteAnswers::solicit(int ifindex, in_addr_t address) noexcept {
    Section section(socket_lock_);
    if (!section.entered()) return;
    // The request asks for no answer. If one comes (EPERM), the next query takes it for an old one.
    socket_.send(UseNeighbour(ifindex, address, socket_.next_sequence()).message());
}

}  // namespace vma::net
