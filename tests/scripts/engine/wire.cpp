// SPDX-License-Identifier: BSD-2-Clause
// See wire.h.
#include "wire.h"

#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>

#include "tests/support/hosts/on_host.h"

namespace scripts {

using testing_support::Host;
using testing_support::TwoHosts;

WallTime now() { return std::chrono::system_clock::now(); }

void Mailbox::put(Heard heard) {
    const std::lock_guard guard(lock_);
    heard_.push_back(std::move(heard));
    come_.notify_all();
}
void Mailbox::record(WallTime when, std::span<const std::uint8_t> frame) {
    const std::lock_guard guard(lock_);
    record_.push_back({when, {frame.begin(), frame.end()}});
}
std::optional<Heard> Mailbox::next(WallTime limit, bool peek) {
    std::unique_lock guard(lock_);
    while (heard_.empty())
        if (come_.wait_until(guard, limit) == std::cv_status::timeout && heard_.empty()) return {};
    Heard first = heard_.front();
    if (!peek) heard_.pop_front();
    return first;
}
std::vector<Recorded> Mailbox::record() const {
    const std::lock_guard guard(lock_);
    return record_;
}

RawWire::RawWire(const TwoHosts& hosts) {
    const testing_support::On there(hosts, Host::a);
    socket_ = testing_support::packet_socket(TwoHosts::interface(), htons(ETH_P_IP));
    stop_ = testing_support::Fd(eventfd(0, EFD_CLOEXEC));
    if (!socket_ || !stop_) throw std::runtime_error("no packet socket");
    const int one = 1, room = 16 << 20;
    setsockopt(socket_.get(), SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one);
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
    setsockopt(socket_.get(), SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
    listener_ = std::thread([this] { listen(); });
}
RawWire::~RawWire() {
    const std::uint64_t one = 1;
    if (::write(stop_.get(), &one, sizeof one) == sizeof one)
        listener_.join();
    else
        listener_.detach();
}

void RawWire::know(in_addr_t address, Mailbox& mailbox) {
    const std::lock_guard guard(lock_);
    mailboxes_[address] = &mailbox;
}
void RawWire::forget(in_addr_t address) {
    const std::lock_guard guard(lock_);
    mailboxes_.erase(address);
}

WallTime RawWire::send(in_addr_t from, const attacker::Frame& frame) {
    const std::lock_guard guard(lock_);
    const WallTime when = now();
    if (const auto found = mailboxes_.find(from); found != mailboxes_.end())
        found->second->record(when, frame);
    for (int tries = 0; ::send(socket_.get(), frame.data(), frame.size(), 0) < 0; tries++) {
        if (tries > 100 || errno == EMSGSIZE) throw std::runtime_error("cannot send a frame");
        usleep(1000);
    }
    return when;
}

void RawWire::listen() {
    std::vector<std::uint8_t> bytes(65536 + 64);
    for (;;) {
        pollfd p[2] = {{socket_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
        ::poll(p, 2, -1);
        if (p[1].revents != 0) return;
        iovec iov{bytes.data(), bytes.size()};
        alignas(cmsghdr) char control[CMSG_SPACE(sizeof(timespec))];
        msghdr m{};
        m.msg_iov = &iov;
        m.msg_iovlen = 1;
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        const ssize_t n = recvmsg(socket_.get(), &m, MSG_DONTWAIT);
        if (n <= 0) continue;
        WallTime when = now();
        for (cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, c))
            if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPNS) {
                timespec t;
                memcpy(&t, CMSG_DATA(c), sizeof t);
                when = WallTime(std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec));
            }
        take({bytes.data(), static_cast<std::size_t>(n)}, when);
    }
}

void RawWire::take(std::span<const std::uint8_t> frame, WallTime when) {
    if (frame.size() < attacker::kEthernet + attacker::kIp) return;
    in_addr_t to;
    memcpy(&to, &frame[attacker::kEthernet + 16], sizeof to);
    const std::lock_guard guard(lock_);
    const auto found = mailboxes_.find(to);
    if (found == mailboxes_.end()) return;
    found->second->record(when, frame);
    if (auto segment = attacker::parse(frame))
        found->second->put({when, std::move(*segment), static_cast<std::uint8_t>(frame[15] & 3)});
}

void write_capture(const std::string& path, const std::vector<Recorded>& frames) {
    FILE* file = fopen(path.c_str(), "wb");
    if (file == nullptr) return;
    const std::uint32_t head[6] = {0xa1b2c3d4, 2 | 4 << 16, 0, 0, 0x40000, 1};
    fwrite(head, sizeof head, 1, file);
    for (const auto& [when, frame] : frames) {
        const auto usec =
            std::chrono::duration_cast<std::chrono::microseconds>(when.time_since_epoch()).count();
        const auto length = static_cast<std::uint32_t>(frame.size());
        const std::uint32_t record[4] = {static_cast<std::uint32_t>(usec / 1'000'000),
                                         static_cast<std::uint32_t>(usec % 1'000'000), length, length};
        fwrite(record, sizeof record, 1, file);
        fwrite(frame.data(), frame.size(), 1, file);
    }
    fclose(file);
}

}  // namespace scripts
