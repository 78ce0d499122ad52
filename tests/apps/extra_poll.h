// SPDX-License-Identifier: BSD-2-Clause
// What programs have that poll rings (SocketXtreme): one completion after another, by their sockets.
#pragma once

#include <sys/epoll.h>

#include <chrono>
#include <deque>

#include "extra_api.h"

namespace extra {

inline std::string bytes_of(const vma_packet_desc_t& packet) {
    std::string all;
    std::size_t count = 0;
    for (const vma_buff_t* b = packet.buff_lst; b != nullptr; b = b->next, count++)
        all.append(static_cast<const char*>(b->payload), b->len);
    CHECK(count == packet.num_bufs && all.size() == packet.total_len);
    return all;
}

inline int ring_of(int fd) {
    int ring = -1;
    CHECK(api->get_socket_rings_fds(fd, &ring, 1) == 1 && ring >= 0);
    return ring;
}

// Polls one ring as sockperf does: many completions at a time.
class Poller {
  public:
    explicit Poller(int ring_fd) : ring_(ring_fd) {}

    // The next completion; false: none came in time.
    bool next(vma_completion_t& out, int msec = 5000) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(msec);
        while (waiting_.empty()) {
            vma_completion_t some[1024];
            errno = 0;
            const int n = api->socketxtreme_poll(ring_, some, 1024, 0);
            CHECK(n >= 0);
            waiting_.insert(waiting_.end(), some, some + n);
            if (n == 0 && std::chrono::steady_clock::now() > end) return false;
        }
        out = waiting_.front();
        waiting_.pop_front();
        return true;
    }
    // The next packet of `fd`; nothing else may come before it.
    vma_completion_t packet(int fd) {
        vma_completion_t c;
        CHECK(next(c));
        CHECK(c.events == VMA_SOCKETXTREME_PACKET);
        CHECK(c.user_data == static_cast<std::uint64_t>(fd));
        return c;
    }
    // The next completion of `fd` that has `event`; packets before it are not wanted.
    vma_completion_t event(std::uint64_t user, std::uint64_t event) {
        vma_completion_t c;
        do {
            CHECK(next(c));
            CHECK((c.events & VMA_SOCKETXTREME_PACKET) == 0);
        } while (c.user_data != user || (c.events & event) != event);
        return c;
    }
    // So much of a stream, in order.
    std::string stream(int fd, std::size_t bytes, std::vector<vma_packet_desc_t>* keep = nullptr) {
        std::string all;
        while (all.size() < bytes) {
            vma_completion_t c;
            CHECK(next(c));
            if (c.events == EPOLLOUT) continue;  // room again
            CHECK(c.events == VMA_SOCKETXTREME_PACKET && c.user_data == static_cast<std::uint64_t>(fd));
            CHECK(c.packet.num_bufs != 0 && c.packet.total_len != 0);
            all += bytes_of(c.packet);
            if (keep != nullptr)
                keep->push_back(c.packet);
            else
                CHECK(api->socketxtreme_free_vma_packets(&c.packet, 1) == 0);
        }
        return all;
    }

  private:
    int ring_;
    std::deque<vma_completion_t> waiting_;
};

inline int give_back(vma_completion_t& c) { return api->socketxtreme_free_vma_packets(&c.packet, 1); }

}  // namespace extra
